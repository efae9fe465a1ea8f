"""Training a reader: from tables, a start and a recipe to a directory that ``reader`` takes."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.machine import device
from engine.messages.errors import InputError
from engine.reading.models.tokenizing import longest_input
from engine.sources.io.files import reported_writing
from engine.sources.io.folders import Folder
from engine.sources.io.outputs import private_directory
from engine.training import checkpoints
from engine.training.checkpoints import MODEL, WEIGHTS, OnProgress, Progress
from engine.training.examples import Examples, ReadingExamples, Readings
from engine.training.settings import Recipe
from engine.training.start import Start, on_this_machine

if TYPE_CHECKING:
    from engine.training.learner import Learner


@dataclass(frozen=True, eq=False)
class Plan:
    """Everything that a worker needs to know; it is sent to all.

    Attributes:
        train: queries that are ``examples.trainable``; or a function that makes other examples (of denoising, say), from
            the start and the tokenizer.
        dev: queries whose metric selects the model and ends training; None for the last model.
        metric: their metric, a name in ``scoring.metrics.METRICS``.
        settings: further ones, as JSON, beside the recipe's in every checkpoint.

    Raises:
        InputError: training is to end by the metric, and there are no development queries.
    """

    start: Start
    recipe: Recipe
    train: Readings | Callable[[Start, Any], Examples]
    dev: Readings | None = None
    metric: str = "em"
    settings: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.recipe.patience is not None and (self.dev is None or self.dev.queries.is_empty()):
            remedy = "give development queries, or leave it out"
            raise InputError("`patience` without `dev_queries`", remedy, "settings.patience")


def train(
    plan: Plan, folder: Folder, *, on_progress: OnProgress = lambda progress, steps: None
) -> Progress:
    """Train, as a worker of torch's process group, if any; all other workers call it, too.

    The model is then in the folder ``model`` within that of the checkpoints, and ``fetch_model`` takes it from
    there. Called again after it was killed, it goes on from the latest checkpoint; after its end, it returns.

    Args:
        folder: the folder of checkpoints, which all workers reach.
        on_progress: called by the first worker for every step.

    Raises:
        InputError: the start cannot be loaded, there is nothing to train on, the folder has another training's
            checkpoints, or memory ran out with a single query.
        ReadError: a development query could not be read, or the start's files have changed.
        WriteError: a checkpoint cannot be written.
    """
    # Before transformers is imported, which looks once.
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    from pickle import UnpicklingError

    from accelerate.utils import broadcast_object_list
    from safetensors import SafetensorError
    from transformers.utils import logging

    from engine.training.learner import best_precision, load_learner
    from engine.training.trainer import FidTrainer, Watch, arguments, measuring

    logging.disable_progress_bar()  # bars of loading and saving weights
    plan = replace(plan, start=on_this_machine(plan.start))
    with private_directory() as directory:
        args = arguments(plan.recipe, device.prepare(plan.start.spec), directory)
        # The first worker's machine decides: a curve has one arithmetic.
        (precision,) = broadcast_object_list([plan.recipe.precision or best_precision()])
        learner, tokenizer = load_learner(plan.start, plan.recipe, args.device, precision)
        examples = _examples(plan, tokenizer, learner)
        if not len(examples):
            problem = "there is nothing to train on"
            raise InputError(problem, "give queries with answers", "training.empty")
        run = _run(plan, examples, precision)
        # All workers read before any writes.
        (latest,) = broadcast_object_list([checkpoints.load_progress(folder, run)])
        progress = latest or Progress(run, precision)
        if not progress.ended:
            measure = None
            if plan.dev is not None and not plan.dev.queries.is_empty():
                share = slice(args.process_index, None, args.world_size)
                measure = measuring(plan.dev, plan.start, plan.metric, share)
            progress.configuration = {**plan.settings, **asdict(plan.recipe)}
            progress.starts += 1
            trainer = FidTrainer(learner, examples, plan.recipe, args, progress, measure)
            trainer.add_callback(Watch(trainer, folder, on_progress))
            begin = checkpoints.load(folder, progress.step, directory) if progress.step else None
            try:
                with reported_writing(directory / WEIGHTS):
                    trainer.train(resume_from_checkpoint=begin and str(begin))
            except (SafetensorError, UnpicklingError, EOFError) as error:
                fault = partial(InputError, path=folder.shown())
                remedy = "remove the checkpoints, and train anew"
                raise fault("a checkpoint is damaged", remedy, "training.damaged") from error
        if args.should_save:
            _deliver(plan, learner, progress, folder)
        args.distributed_state.wait_for_everyone()
    return progress


def _deliver(plan: Plan, learner: Learner, progress: Progress, folder: Folder) -> None:
    """Put the model of the best evaluation, or of the last step, into its folder."""
    from safetensors.torch import load_model

    from engine.training.learner import initial_model, save

    with private_directory() as directory:
        if progress.best:
            best = checkpoints.load(folder, progress.best, directory, WEIGHTS) / WEIGHTS
            load_model(learner.model, best, device=str(learner.device))
        elif progress.step:
            learner.model = initial_model(plan.start, plan.recipe.seed)
        result = directory / MODEL
        result.mkdir()
        save(learner.model, Path(plan.start.spec.path), result)
        for file in sorted(result.iterdir()):
            (folder / MODEL).put(file.name, file)


def fetch_model(folder: Folder, directory: str | Path) -> None:
    """Copy the model of a training that has ended into a directory, which need not exist."""
    target = Path(directory)
    target.mkdir(parents=True, exist_ok=True)
    for name in (folder / MODEL).names():
        (folder / MODEL).download(name, target / name)


def _examples(plan: Plan, tokenizer: Any, learner: Learner) -> Examples:
    from engine.training.learner import end_token

    if not isinstance(plan.train, Readings):
        return plan.train(plan.start, tokenizer)
    spec = plan.start.spec
    return ReadingExamples(
        plan.train,
        plan.start.prompt,
        tokenizer,
        longest_input(spec, learner.model.config),
        spec.special_tokens,
        spec.max_new_tokens,
        end_token(learner.model),
        plan.recipe,
    )


def _run(plan: Plan, examples: Examples, precision: str) -> str:
    """A hash over all inputs that decide the curve; the split of work does not."""
    spec, prompt, dev = plan.start.spec, plan.start.prompt, None
    if plan.dev is not None:
        frames = (plan.dev.queries, plan.dev.lists, plan.dev.corpus)
        dev = [hashlib.sha256(frame.write_json().encode()).hexdigest() for frame in frames]
    recipe = asdict(plan.recipe) | {"precision": precision}
    del recipe["checkpoint_every"], recipe["gradient_checkpointing"]
    reader = [spec.weights, spec.max_input_tokens, spec.max_new_tokens, spec.special_tokens]
    content = [recipe, *reader, prompt.digest, prompt.fused, examples.digest, dev, plan.metric]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()
