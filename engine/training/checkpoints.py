"""Checkpoints in a folder at any address: training that was killed goes on from the latest one.

A checkpoint is the files of transformers' Trainer in a folder of its own, and ``checkpoint.json``, which comes last
and names the step: what it does not name is of nobody's use.
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
# Without one of these the Trainer would begin that part anew, and say nothing.
_NEEDED = {WEIGHTS, "optimizer.pt", "scheduler.pt", "trainer_state.json"}
# The folder, within that of the checkpoints, of the model when training has ended.
MODEL = "model"


# Called with how far training is and the number of all steps.
OnProgress = Callable[["Progress", int], None]


@dataclass(frozen=True)
class Evaluation:
    """The metric on the development queries after a step (0 is the start), and the encoder's ``tokens`` till then."""

    step: int
    value: float
    tokens: int = 0


@dataclass
class Progress:
    """How far training is.

    Attributes:
        run: a hash of all that decides the curve, so that no other training goes on from here.
        precision: of the forward pass, as the recipe or the first worker's machine decided.
        configuration: what the latest command asked for, for people to read; nothing follows from it.
        losses: of each step, per target token.
        tokens: that went through the encoder, without padding.
        best: the step whose weights are kept: the latest whose metric no other exceeds, so that a metric that
            never leaves 0 does not bring the start back; 0 for the start.
        cuts: what was cut in the first epoch.
        seconds: of training, evaluations included, over all attempts.
        peak_memory: the highest of any worker, in bytes.
        at_once: of each worker, as ``learner.Learner.at_once`` says it.
        starts: how often training began or went on.
        ended: why training has ended; empty while it goes on.
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
        return max((one.value for one in self.evaluations), default=None)

    def since_best(self) -> int:
        """Evaluations since the first of the best ones: those that are as good are no improvement."""
        values = [one.value for one in self.evaluations]
        return len(values) - 1 - values.index(max(values)) if values else 0


def load_progress(folder: Folder, run: str) -> Progress | None:
    """How far the training is whose checkpoints are in a folder; None where there are none.

    Raises:
        InputError: they are another training's, or cannot be read.
    """
    try:
        content = json.loads(folder.read(_STATE))
        evaluations = [Evaluation(**one) for one in content["evaluations"]]
        cuts = Cuts(**content["cuts"])
        progress = Progress(**{**content, "evaluations": evaluations, "cuts": cuts})
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError):
        problem = "is not a training checkpoint of this version of the engine"
        remedy = "give another folder, or remove it to train anew"
        raise InputError(problem, remedy, "training.format", path=folder.shown(_STATE)) from None
    if progress.run != run:
        raise InputError(
            "holds checkpoints of another training (other data, another start or another recipe)",
            "train in another folder, or remove them",
            "training.checkpoint",
            path=folder.shown(),
        )
    return progress


def are_in(folder: Folder) -> bool:
    """Whether a folder has checkpoints."""
    return _STATE in folder.names()


def save(folder: Folder, progress: Progress, directory: Path) -> None:
    """Keep a checkpoint of the Trainer, and remove what it replaces.

    Raises:
        WriteError: the place cannot be written; the checkpoint before is whole.
    """
    for file in sorted(directory.iterdir()):
        (folder / _name(progress.step)).put(file.name, file)
    folder.write(_STATE, (json.dumps(asdict(progress), indent=1) + "\n").encode())
    # What is deleted must not be what a machine that stops would find named.
    folder.settle()
    _delete(folder, but=(progress.step, progress.best))


def load(folder: Folder, step: int, directory: Path, *names: str) -> Path:
    """Copy the checkpoint of a step, or some files of it, into a directory; where it is there.

    Raises:
        InputError: a file is missing or cannot be read.
    """
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
    inside = folder / MODEL
    inside.delete(inside.names())
    folder.delete_empty([MODEL])
    if isinstance(folder.at, Path) and folder.at.is_dir() and not any(folder.at.iterdir()):
        folder.at.rmdir()


def _name(step: int) -> str:
    return f"checkpoint-{step}"


def _delete(folder: Folder, but: tuple[int, ...] = ()) -> None:
    kept = set(map(_name, but))
    for name in folder.folders():
        if _CHECKPOINT.fullmatch(name) and name not in kept:
            (folder / name).delete((folder / name).names())
            folder.delete_empty([name])
