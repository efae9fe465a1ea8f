"""The steps of a training by transformers' Trainer, which drives the optimizer, the schedule and resumption.

Its data set has one item a step: a worker's share of the batch, in an order that the seed decides. The learner splits
it into micro-batches, so that the batch stays as in the recipe. The metric on the development queries is the engine's
own scoring of the engine's own reader.
"""

from __future__ import annotations

import gc
import hashlib
import json
import math
import tempfile
import time
from collections.abc import Callable
from dataclasses import astuple, replace
from pathlib import Path
from typing import Any

import polars as pl
import torch
from accelerate.utils import gather_object
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, Dataset
from transformers import PrinterCallback, Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_utils import IntervalStrategy, get_last_checkpoint

from engine.machine import device
from engine.messages.errors import ReadError
from engine.reading.plan import INPUTS, output_columns, requested_reads
from engine.reading.protocol import ReadOutput
from engine.scoring.metrics import score_outputs
from engine.sources.io.files import temporary_directory
from engine.sources.io.folders import Folder
from engine.tables import DOC_IDS, FAILURE, QUERY_ID, VALUE
from engine.training import checkpoints
from engine.training.checkpoints import Evaluation, OnProgress, Progress
from engine.training.examples import Cuts, Example, Examples, Readings, order
from engine.training.learner import Learner, diverged, save
from engine.training.settings import Recipe
from engine.training.start import Start

# The metric of a model on some queries: its sum, and their number.
Measure = Callable[[Learner], tuple[float, int]]


def measuring(readings: Readings, start: Start, metric: str, share: slice) -> Measure:
    """A function that takes a model's metric on a worker's share of the development queries, or raises a ReadError."""
    queries, corpus = readings.queries, readings.corpus
    lists = queries.select(QUERY_ID).join(readings.lists, QUERY_ID, "left", maintain_order="left")
    # As in an evaluation; a query without a list is read without passages.
    lists = lists.with_columns(pl.col(DOC_IDS).fill_null([]))
    own = requested_reads(lists, queries, corpus, prompt=start.prompt, fingerprint="")[share]

    def measure(learner: Learner) -> tuple[float, int]:
        if own.is_empty():
            return 0.0, 0
        outputs = read(learner, start, own[INPUTS].to_list())
        reads = own.select(QUERY_ID).hstack(output_columns(outputs))
        failed = reads.filter(pl.col(FAILURE).is_not_null())
        if not failed.is_empty():
            raise ReadError(
                f"the reader failed on a development query: {failed[FAILURE][0]}; give more `memory`, "
                "or fewer passages with `k`"
            )
        values = score_outputs(reads, queries, metric)[VALUE]
        return float(values.sum()), len(values)

    return measure


def read(learner: Learner, start: Start, inputs: list[list[str]]) -> list[ReadOutput]:
    """Answers of a model in training as a reader: it is saved, and loaded like any other directory."""
    from engine.reading.models.encoder_decoder import EncoderDecoderReader

    with temporary_directory(Path(tempfile.gettempdir(), "erag-model")) as directory:
        save(learner.model, Path(start.spec.path), directory)
        # Identified by its path: no other process reads these weights.
        spec = replace(start.spec, path=str(directory), weights=directory.name)
        reader = EncoderDecoderReader(spec)
        try:
            return reader.read(inputs)
        except ArithmeticError:
            raise diverged("the output") from None
        finally:
            del reader
            gc.collect()


class Steps(Dataset[list[Example]]):
    """A worker's examples for every step of a training, all epochs in a row."""

    def __init__(self, examples: Examples, recipe: Recipe, rank: int, workers: int) -> None:
        self._examples, self._recipe = examples, recipe
        self._share = slice(rank, None, workers)
        self._epoch, self._order = -1, list[int]()

    def __len__(self) -> int:
        return self._recipe.steps(len(self._examples))

    def __getitem__(self, step: int) -> list[Example]:
        size = self._recipe.batch
        epoch, place = divmod(step, self._recipe.steps_per_epoch(len(self._examples)))
        if epoch != self._epoch:
            self._epoch = epoch
            self._order = order(len(self._examples), self._recipe.seed, epoch + 1)
        batch = self._order[place * size : (place + 1) * size]
        return self._examples.draw(epoch, batch[self._share])


def arguments(recipe: Recipe, where: torch.device, directory: Path) -> TrainingArguments:
    """The Trainer's arguments, with its folder; creating them sets up this worker and joins it to the others."""
    return TrainingArguments(
        output_dir=str(directory),
        num_train_epochs=1,  # its data set has all epochs
        per_device_train_batch_size=1,
        max_grad_norm=recipe.clip,
        seed=recipe.seed % 2**32,
        use_cpu=where.type == "cpu",
        save_steps=recipe.checkpoint_every,
        save_total_limit=1,
        logging_strategy="no",
        report_to="none",
        disable_tqdm=True,
        log_level="error",  # its warnings are of tied weights, and of options that may change
        log_level_replica="error",
        use_cache=True,  # else the model that is saved would be slow to read
        dataloader_pin_memory=False,
    )


class FidTrainer(Trainer):
    """Trains a learner, as a worker of the process group, if any; keeps ``progress``, of the latest checkpoint or of a
    training that begins, up to date. ``measure`` takes the metric on the development queries, if any.
    """

    control: Any

    def __init__(
        self,
        learner: Learner,
        examples: Examples,
        recipe: Recipe,
        args: TrainingArguments,
        progress: Progress,
        measure: Measure | None = None,
    ) -> None:
        self.learner, self.recipe, self.progress, self._measure = learner, recipe, progress, measure
        self._epoch = recipe.steps_per_epoch(len(examples))
        steps = Steps(examples, recipe, args.process_index, args.world_size)
        args.eval_strategy = IntervalStrategy.STEPS if measure else IntervalStrategy.NO
        args.eval_steps = recipe.evaluate_every or self._epoch
        args.eval_on_start = measure is not None and not progress.step
        # All weights decay, and the first step learns: neither is so with the Trainer's own.
        weights = learner.model.parameters()
        optimizer = torch.optim.AdamW(weights, lr=1.0, weight_decay=recipe.weight_decay)
        schedule = LambdaLR(optimizer, lambda step: recipe.rate(step + 1, len(steps)))
        super().__init__(
            model=learner.model,
            args=args,
            train_dataset=steps,
            eval_dataset=steps if measure else None,  # read by nothing, and wanted by the Trainer
            optimizers=(optimizer, schedule),
        )
        self.remove_callback(PrinterCallback)

    def get_train_dataloader(self) -> DataLoader[list[Example]]:
        """Each item is this worker's share of a batch already."""
        return DataLoader(self.train_dataset, batch_size=1, collate_fn=lambda items: items[0])

    def training_step(self, model: Any, inputs: list[Example], *_: Any, **__: Any) -> torch.Tensor:
        """Leave the gradient of the mean loss over the target tokens of all workers' examples.

        Not through ``model``, which DistributedDataParallel may have wrapped: a worker calls it as often as its memory
        needs, and restarts if memory ran out. Gradients are summed when all workers are done.
        """
        args, recipe, progress, step = self.args, self.recipe, self.progress, self.state.global_step
        parts = json.dumps([recipe.seed, step + 1, args.process_index])
        seed = int.from_bytes(hashlib.sha256(parts.encode()).digest()[:6], "big")
        may_checkpoint = recipe.gradient_checkpointing is not False
        total = self.learner.accumulate(inputs, seed, may_checkpoint=may_checkpoint)
        own_read = sum(len(tokens) for example in inputs for tokens in example.inputs)
        written = sum(len(example.target) for example in inputs)
        total, targets, read, *cuts = self._sum(total, written, own_read, *astuple(Cuts.of(inputs)))
        if not math.isfinite(total):
            raise diverged("the loss")
        for parameter in self.learner.model.parameters():
            gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            if args.world_size > 1:
                gradient = self.accelerator.reduce(gradient)
            parameter.grad = gradient.div_(targets)
        progress.losses.append(total / targets)
        progress.tokens += int(read)
        if step < self._epoch:
            known = astuple(progress.cuts)
            progress.cuts = Cuts(*(int(a + b) for a, b in zip(known, cuts, strict=True)))
        return torch.tensor(total / targets, device=args.device)

    def evaluate(self, *_: Any, **__: Any) -> dict[str, float]:
        """Take the metric on the development queries; the latest of equally good ones is the best."""
        assert self._measure is not None
        progress, patience = self.progress, self.recipe.patience
        total, count = self._sum(*self._measure(self.learner))
        value, best, step = total / count, progress.best_value, self.state.global_step
        progress.evaluations.append(Evaluation(step, value, progress.tokens))
        if best is None or value >= best:
            progress.best = step
        if patience and progress.since_best() >= patience and not progress.ended:
            progress.ended = f"no improvement at the last {patience} evaluations"
            self.control.should_training_stop = True
        self.control.should_save = True
        metrics = {"eval_metric": value}
        on_evaluate = self.callback_handler.on_evaluate
        self.control = on_evaluate(self.args, self.state, self.control, metrics)
        return metrics

    def _sum(self, *numbers: float) -> list[float]:
        own = torch.tensor(numbers, dtype=torch.float64, device=self.args.device)
        return self.accelerator.reduce(own).tolist()


class Watch(TrainerCallback):
    """Keeps progress and checkpoints in a folder; the first worker calls ``on_progress`` before steps and at the end."""

    def __init__(self, trainer: FidTrainer, folder: Folder, on_progress: OnProgress) -> None:
        self._trainer, self._folder, self._tell = trainer, folder, on_progress
        self._begun = time.monotonic() - trainer.progress.seconds

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Requested numbers take precedence over the checkpoint's."""
        state.save_steps = args.save_steps

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Report the previous step, its evaluation included."""
        if state.is_world_process_zero:
            self._tell(self._trainer.progress, state.max_steps)

    on_train_end = on_step_begin

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Count a step."""
        progress = self._trainer.progress
        progress.step = state.global_step
        if progress.step == state.max_steps:
            progress.ended = "all epochs are done"
        if self._trainer.eval_dataset is None:
            progress.best = progress.step  # the last, without a metric

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Keep a checkpoint, with values that only single workers know."""
        progress, learner = self._trainer.progress, self._trainer.learner
        workers = gather_object([(learner.at_once, device.peak_memory(learner.device))])
        progress.at_once = [at_once for at_once, _ in workers]
        progress.peak_memory = max(progress.peak_memory, *(peak for _, peak in workers))
        progress.seconds = time.monotonic() - self._begun
        if state.is_world_process_zero:
            checkpoints.save(self._folder, progress, Path(get_last_checkpoint(args.output_dir)))
