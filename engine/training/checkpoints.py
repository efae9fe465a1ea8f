"""Checkpoints in a folder at any address: killed training resumes from the latest one.

A checkpoint is the files of transformers' Trainer in a folder of its own, and ``checkpoint.json``, which comes last and
names the step: files that it does not name are unused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from engine.messages.errors import InputError
from engine.sources.io.folders import Folder
from engine.training.examples import Cuts

_STATE = "checkpoint.json"
_CHECKPOINT = re.compile(r"checkpoint-\d+")
WEIGHTS = "model.safetensors"
# If a file is missing, the Trainer silently starts that part anew.
_NEEDED = {WEIGHTS, "optimizer.pt", "scheduler.pt", "trainer_state.json"}
# The folder, within that of the checkpoints, of the model when training has ended.
MODEL = "model"


# Called with the progress and the total number of steps.
OnProgress = Callable[["Progress", int], None]


@dataclass(frozen=True)
class Evaluation:
    """The metric on the development queries after a step (0 is the start), and the encoder's ``tokens`` till then."""

    step: int
    value: float
    tokens: int = 0


@dataclass
class Progress:
    """The progress of a training.

    Attributes:
        run: a hash over all settings and data that decide the curve, so that no other training resumes from here.
        precision: of the forward pass, as the recipe or the first worker's machine decided.
        configuration: the latest command's settings, for people; the engine does not use them.
        losses: losses by step, per target token.
        tokens: number of tokens through the encoder, without padding.
        best: the step of the kept weights: the latest with the highest metric, so that a metric that stays 0 does not
            restore the start; 0 for the start.
        cuts: cuts in the first epoch.
        seconds: of training, evaluations included, over all attempts.
        peak_memory: the highest of any worker, in bytes.
        at_once: by worker, as in ``learner.Learner.at_once``.
        starts: number of starts and resumptions.
        ended: reason for the end; empty while training goes on.
    """

    run: str
    precision: str
    configuration: Mapping[str, Any] = field(default_factory=dict)
    step: int = 0
    losses: list[float] = field(default_factory=list)
    tokens: int = 0
    evaluations: list[Evaluation] = field(default_factory=list)
    best: int = 0
    cuts: Cuts = field(default_factory=Cuts)
    seconds: float = 0.0
    peak_memory: int = 0
    at_once: list[dict[str, Any]] = field(default_factory=list)
    starts: int = 0
    ended: str = ""

    @property
    def best_value(self) -> float | None:
        """The metric of the best evaluation; None without any."""
        return max((evaluation.value for evaluation in self.evaluations), default=None)

    def since_best(self) -> int:
        """Evaluations since the first of the best ones: equally good ones are no improvement."""
        values = [evaluation.value for evaluation in self.evaluations]
        return len(values) - 1 - values.index(max(values)) if values else 0


def load_progress(folder: Folder, run: str) -> Progress | None:
    """The progress of the training in a folder, if any; an InputError for another training's, or unreadable ones."""
    try:
        content = json.loads(folder.read(_STATE))
        content["evaluations"] = [Evaluation(**stored) for stored in content["evaluations"]]
        progress = Progress(**content | {"cuts": Cuts(**content["cuts"])})
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError):
        problem = "is not a training checkpoint of this version of the engine"
        remedy = "give another folder, or remove it to train anew"
        raise InputError(problem, remedy, "training.format", path=folder.shown(_STATE)) from None
    if progress.run != run:
        other = "other data, another start or another recipe"
        problem = f"holds checkpoints of another training ({other})"
        remedy = "train in another folder, or remove them"
        raise InputError(problem, remedy, "training.checkpoint", path=folder.shown())
    return progress


def are_in(folder: Folder) -> bool:
    """Whether a folder has checkpoints."""
    return _STATE in folder.names()


def save(folder: Folder, progress: Progress, directory: Path) -> None:
    """Keep a checkpoint of the Trainer, and remove the one before, which is whole after a WriteError."""
    for file in sorted(directory.iterdir()):
        (folder / _name(progress.step)).put(file.name, file)
    folder.write(_STATE, (json.dumps(asdict(progress), indent=1) + "\n").encode())
    # Never delete files that ``checkpoint.json`` still names: the machine may stop.
    folder.settle()
    _delete(folder, but=(progress.step, progress.best))


def load(folder: Folder, step: int, directory: Path, *names: str) -> Path:
    """Copy a step's checkpoint, or some files, into a directory; the path there. An InputError if a file is missing."""
    source, target = folder / _name(step), directory / _name(step)
    target.mkdir(parents=True, exist_ok=True)
    try:
        for name in names or sorted(_NEEDED.union(source.names())):
            source.download(name, target / name)
    except FileNotFoundError:
        problem, remedy = "is missing", "remove the checkpoints, and train anew"
        raise InputError(problem, remedy, "training.missing", path=source.shown(name)) from None
    return target


def remove(folder: Folder) -> None:
    """Remove the checkpoints of a training that has been delivered, and nothing else."""
    folder.delete([_STATE] if are_in(folder) else [])
    _delete(folder)
    (folder / MODEL).delete((folder / MODEL).names())
    folder.delete_empty([MODEL])
    if isinstance(folder.at, Path) and folder.at.is_dir() and not any(folder.at.iterdir()):
        folder.at.rmdir()


def _name(step: int) -> str:
    return f"checkpoint-{step}"


def _delete(folder: Folder, but: tuple[int, ...] = ()) -> None:
    spared = set(map(_name, but))
    for name in folder.folders():
        if _CHECKPOINT.fullmatch(name) and name not in spared:
            (folder / name).delete((folder / name).names())
            folder.delete_empty([name])
