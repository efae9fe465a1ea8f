"""``erag train``: train a reader of the T5 family on queries with their passages."""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Group, Parameter

from engine.machine import model_files
from engine.messages.errors import InputError
from engine.messages.extras import missing, require
from engine.messages.wording import counted
from engine.reading.prompting.prompts import Task
from engine.reading.protocol import Augmentation
from engine.report.summary import Origin, input_files, place
from engine.scoring.metrics import METRICS, get_metric
from engine.sources.io import outputs
from engine.sources.io.files import write_text
from engine.sources.io.folders import Folder, folder_at, require_folder
from engine.sources.io.outputs import Inputs, Outputs, refuse_overlap
from engine.training import checkpoints, report
from engine.training.checkpoints import MODEL, Progress
from engine.training.inputs import TrainingFiles, TrainingInputs, read_training
from engine.training.report import PAGE, TrainingResult, write_training_page
from engine.training.settings import Recipe, Workers
from engine.training.start import Start, specify_start
from engine.training.train import Plan, fetch_model
from engine.training.train import train as train_here
from jobs._command import ConfigFile, command_line, run_command, with_verbosity
from jobs._options import Size, keyword, options_of, take, with_signature
from jobs._progress import shown_progress
from jobs._signals import keeps
from jobs._terminal import say, say_json

SUMMARY = "training.json"
_NAMES = ("Inputs", "Reader", "Recipe", "Running")
_INPUTS, _READER, _RECIPE, _RUNNING = (Group(name, sort_key=i) for i, name in enumerate(_NAMES))
_FILES: dict[str, Any] = {"queries": Path, "corpus": Path | None, "run": Path}
_FILES |= {"dev_queries": Path | None, "dev_run": Path | None}
_PLACES = (*_FILES, "out", "checkpoints", "config")
_KEPT = "checkpoints are kept in {}; run the same command again to go on from there"


@dataclass(frozen=True)
class ReaderOptions:
    """The reader to train.

    Attributes:
        reader: Model to start from: a T5, as for erag evaluate; or a directory with only the config.json and tokenizer
            of a T5, to start from random weights.
        augmentation: How the reader gets its passages. fid: Fusion-in-Decoder, each passage with the question in an
            input of its own, of 250 tokens at most; in-prompt: all passages in one prompt.
        task: The reader's task, which chooses the prompt.
        prompt: Prompt template, as in erag evaluate; use the same one there. By default t5.
        metric: Metric on the development queries:
    """

    reader: str
    augmentation: Augmentation = "fid"
    task: Task = "short-answer"
    prompt: str | None = None
    metric: str = "em"


@dataclass(frozen=True)
class RunningOptions:
    """Where training writes, and within which limits.

    Attributes:
        out: Directory for the model, its curve and its page, or an address like s3://….
        checkpoints: Directory of the checkpoints, or an address that every worker reaches; by default checkpoints in
            `out`. They are removed when training has ended.
        memory: Memory limit of a worker, as in 12GiB; 0 for the machine's memory. It changes the number of queries that
            go through the model at once, not the trained model.
        dry_run: Check everything and print the plan, without training.
    """

    out: str
    checkpoints: str | None = None
    memory: Size = 0
    dry_run: bool = False


def parameters() -> list[inspect.Parameter]:
    running = options_of(RunningOptions, _RUNNING)
    return [
        *options_of(TrainingFiles, _INPUTS, types=_FILES),
        *options_of(ReaderOptions, _READER, more_help={"metric": f"{', '.join(METRICS)}."}),
        *options_of(Recipe, _RECIPE),
        *running[:2],
        *options_of(Workers, _RUNNING),
        *running[2:],
        keyword("config", Annotated[ConfigFile, Parameter(group=_RUNNING)], None),
    ]


@partial(with_verbosity, as_json=True)
@partial(with_signature, parameters=parameters())
def train(**options: Any) -> None:
    """Train a reader of the T5 family; the defaults are the recipe of eRAG's study.

    By default it reads as Fusion-in-Decoder. The trained model goes to the folder model in --out,
    which --reader takes, with the training curve beside it. To resume a killed command from its latest
    checkpoint, run it again.
    """
    files, recipe = take(TrainingFiles, options), take(Recipe, options)
    workers = take(Workers, options)
    metric = get_metric(options["metric"]).name
    out = folder_at(options["out"])
    folder = folder_at(options["checkpoints"]) if options["checkpoints"] else out / "checkpoints"
    for written in (out, folder):
        # An address can only be tested by writing.
        if isinstance(written.at, Path) or not options["dry_run"]:
            require_folder(written.at)
    _refuse_overlap(options, out, folder)
    _refuse_trained(out, folder)
    if workers.workers:
        require("training on Ray", "training")
    names = ("augmentation", "task", "prompt", "memory")
    start = specify_start(options["reader"], **{name: options[name] for name in names})
    inputs = read_training(files, k=recipe.k, metric=metric)
    configuration = _configuration(options)
    plan = Plan(start, recipe, inputs.train, inputs.dev, metric, configuration)
    _print_plan(inputs, start, recipe)
    if options["dry_run"]:
        return
    origin = Origin(command_line(), input_files({name: configuration[name] for name in _FILES}))
    keeps(_KEPT.format(folder.shown()))
    with outputs.sole_writer(out.at), outputs.sole_writer(folder.at):
        with shown_progress("training", "steps") as shown:

            def on_progress(progress: Progress, steps: int) -> None:
                shown(progress.step, steps, _so_far(progress, metric))

            if workers.workers:
                from engine.training.on_ray import train_on_ray

                progress = train_on_ray(plan, folder, workers, on_progress=on_progress)
            else:
                progress = train_here(plan, folder, on_progress=on_progress)
        trained = TrainingResult(inputs, start, recipe, metric, progress, configuration, origin)
        summary = _write(trained, folder, out)
        checkpoints.remove(folder)
    say_json(summary)
    for line in report.lines(summary):
        say(line)
    page = "" if missing("page") else f", {PAGE}"
    say(f"model -> {out.shown(MODEL)}; its curve: {SUMMARY}{page}")


def _so_far(progress: Progress, metric: str) -> str:
    parts = [f"loss {progress.losses[-1]:.3f}"] if progress.losses else []
    if progress.evaluations:
        parts.append(f"{metric} {progress.evaluations[-1].value:.4f}")
        parts.append(f"best {progress.best_value:.4f}")
    return ", ".join(parts)


def _configuration(options: Mapping[str, Any]) -> dict[str, Any]:
    """Every option except for the recipe's, and ``dry_run``, which trains nothing."""
    left_out = {"dry_run", *(field.name for field in fields(Recipe))}
    names = [parameter.name for parameter in parameters() if parameter.name not in left_out]
    return {n: place(options[n]) if n in _PLACES else options[n] for n in names}


def _refuse_overlap(options: Mapping[str, Any], out: Folder, folder: Folder) -> None:
    inputs = {name: options[name] for name in (*_FILES, "config")}
    # A file, or the name of a template or a model, which has no place.
    models = {name: options[name] for name in ("reader", "prompt")}
    files = [out.place(name) for name in (SUMMARY, PAGE)]
    refuse_overlap(Inputs(inputs, models), Outputs(files, [(out / MODEL).at, folder.at]))
    if outputs.lies_in(out.at, folder.at) or outputs.lies_in(folder.at, (out / MODEL).at):
        # Checkpoints are removed at the end, and whatever is beside them.
        problem = "is given as `checkpoints`, and the trained model will be written there"
        remedy = "give another folder with `checkpoints`"
        raise InputError(problem, remedy, "files.overwritten", path=folder.shown())


def _refuse_trained(out: Folder, folder: Folder) -> None:
    """Refuse to replace a model, which may have taken days to train."""
    # If its checkpoints still exist, a command was killed while it moved the model into its place.
    if SUMMARY in out.names() or ((out / MODEL).names() and not checkpoints.are_in(folder)):
        remedy = "give another folder with `out`, or remove it"
        raise InputError("holds a trained model", remedy, "training.finished", path=out.shown())
    if (folder / MODEL).names() and not checkpoints.are_in(folder):
        problem = "holds files that are not of this training"
        remedy = "give another folder with `checkpoints`"
        raise InputError(problem, remedy, "files.occupied", path=(folder / MODEL).shown())


def _print_plan(inputs: TrainingInputs, start: Start, recipe: Recipe) -> None:
    queries = inputs.train.queries.height
    dev = 0 if inputs.dev is None else inputs.dev.queries.height
    begin = "from scratch" if start.from_scratch else f"{start.spec.parameters:,} parameters"
    say(
        f"{start.spec.name} ({begin}), {counted(queries, '[query|queries]')}, "
        f"{counted(dev, 'development [query|queries]')}, "
        f"{counted(recipe.steps(queries), '[step|steps]')} of {recipe.batch}"
    )
    for note in inputs.notes:
        if note.is_shown:
            say(f"note: {note.text}")


def _write(trained: TrainingResult, folder: Folder, out: Folder) -> dict[str, Any]:
    """Write the model and its curve together, then the page; the content of ``training.json``."""
    with outputs.replaced_together(out.at, lambda: (PAGE, SUMMARY), last=SUMMARY) as directory:
        fetch_model(folder, directory / MODEL)
        summary = report.content(trained, model_files.parameters(directory / MODEL))
        text = json.dumps(summary, indent=1, ensure_ascii=False) + "\n"
        write_text(text, directory / SUMMARY)
    if not missing("page"):
        with outputs.replaced_together(out.at, last=PAGE) as directory:
            write_training_page(summary, directory)
    return summary


if __name__ == "__main__":
    run_command(train)
