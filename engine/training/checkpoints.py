"""Checkpoints in a folder at any address: training that was killed goes on from there as if it had not been.

A checkpoint is the weights and the optimizer's moments as safetensors, and ``checkpoint.json``, which comes
last and names them: where it is, so is everything that it describes, and what it does not name is of
nobody's use. Random numbers follow from the recipe's seed and the step, so none are kept.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.messages.errors import InputError
from engine.sources.io.files import reported_writing
from engine.sources.io.folders import Folder
from engine.sources.io.replacing import private_directory
from engine.training.examples import Cuts

if TYPE_CHECKING:
    from engine.training.learner import Learner

_STATE = "checkpoint.json"
_FILES = re.compile(r"(weights|optimizer)-\d+\.safetensors")
# The folder, within that of the checkpoints, of the model when training has ended.
MODEL = "model"


# Called with how far training is and the number of all steps.
OnProgress = Callable[["Progress", int], None]


@dataclass(frozen=True)
class Evaluation:
    """The metric on the development queries after a step; step 0 is the start.

    ``tokens`` went through the encoder until then, without padding.
    """

    step: int
    value: float
    tokens: int = 0


@dataclass(frozen=True)
class Progress:
    """How far training is.

    Attributes:
        run: a hash of all that decides the curve, so that no other training goes on from here.
        precision: of the forward pass, as the recipe or the first worker's machine decided.
        configuration: what the latest command asked for, for people to read; nothing follows from it.
        step: steps done.
        losses: of each step, per target token.
        tokens: that went through the encoder, without padding.
        evaluations: on the development queries, in their order.
        best: the step whose weights are kept: the latest whose metric no other exceeds, so that a metric that
            never leaves 0 does not bring the start back; 0 for the start.
        cuts: what was cut in the first epoch.
        seconds: of training, evaluations included, over all attempts.
        peak_memory: the highest of any worker, in bytes.
        capacity: of ``learner.Capacity``, of each worker.
        starts: how often training began or went on.
        ended: why training has ended; empty while it goes on.
    """

    run: str
    precision: str = ""
    configuration: Mapping[str, Any] = field(default_factory=dict)
    step: int = 0
    losses: tuple[float, ...] = ()
    tokens: int = 0
    evaluations: tuple[Evaluation, ...] = ()
    best: int = 0
    cuts: Cuts = field(default_factory=Cuts)
    seconds: float = 0.0
    peak_memory: int = 0
    capacity: tuple[Mapping[str, Any], ...] = ()
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

    Args:
        run: of the training that is to go on.

    Raises:
        InputError: they are another training's, or cannot be read.
    """
    try:
        content = json.loads(folder.read(_STATE))
        progress = Progress(
            **content
            | {
                "losses": tuple(content["losses"]),
                "evaluations": tuple(Evaluation(**one) for one in content["evaluations"]),
                "capacity": tuple(content["capacity"]),
                "cuts": Cuts(**content["cuts"]),
            }
        )
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError):
        raise InputError(
            "is not a checkpoint of a training", "give another folder", path=folder.shown(_STATE)
        ) from None
    if progress.run != run:
        raise InputError(
            "holds checkpoints of another training (other data, another start or another recipe)",
            "train in another folder, or remove them",
            path=folder.shown(),
        )
    return progress


def are_in(folder: Folder) -> bool:
    """Whether a folder has checkpoints."""
    return _STATE in folder.names()


def save_progress(folder: Folder, progress: Progress, learner: Learner) -> None:
    """Write a checkpoint, and remove what it replaces.

    Raises:
        WriteError: the place cannot be written; the checkpoint before is whole.
    """
    with private_directory() as directory:
        weights, optimizer = _names(progress.step)
        # Those of the start, too: where no evaluation is better, they are the result.
        _save(_weights_of(learner), directory / weights)
        folder.put(weights, directory / weights)
        if progress.step:
            _save(_moments_of(learner), directory / optimizer)
            folder.put(optimizer, directory / optimizer)
    write_progress(folder, progress)


def write_progress(folder: Folder, progress: Progress) -> None:
    """Write how far training is, whose weights are there, and remove those of no further use."""
    text = json.dumps(asdict(progress), indent=1) + "\n"
    folder.write(_STATE, text.encode())
    kept = {*_names(progress.step), _names(progress.best)[0]}
    # What is deleted must not be what a machine that stops would find named.
    folder.settle()
    folder.delete(name for name in folder.names() if _FILES.fullmatch(name) and name not in kept)


def restore(folder: Folder, progress: Progress, learner: Learner) -> None:
    """Put a model and its optimizer where a checkpoint left them.

    Raises:
        InputError: a file is missing or of another model.
    """
    if progress.step:
        weights, optimizer = _names(progress.step)
        _set_weights(learner, _load(folder, weights))
        _set_moments(learner, _load(folder, optimizer), progress.step)


def restore_best(folder: Folder, progress: Progress, learner: Learner) -> None:
    """Put a model where its best evaluation was.

    Raises:
        InputError: as ``restore``.
    """
    _set_weights(learner, _load(folder, _names(progress.best)[0]))


def remove(folder: Folder) -> None:
    """Remove the checkpoints of a training that has been delivered, and nothing else."""
    names = [name for name in folder.names() if name == _STATE or _FILES.fullmatch(name)]
    folder.delete([_STATE] if _STATE in names else [])
    folder.delete(name for name in names if name != _STATE)
    inside = folder / MODEL
    inside.delete(inside.names())
    for place in (inside.at, folder.at):
        if isinstance(place, Path) and place.is_dir() and not any(place.iterdir()):
            place.rmdir()


def _names(step: int) -> tuple[str, str]:
    return f"weights-{step}.safetensors", f"optimizer-{step}.safetensors"


def _save(tensors: Mapping[str, Any], file: Path) -> None:
    from safetensors.torch import save_file

    with reported_writing(file):
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, file)


def _load(folder: Folder, name: str) -> dict[str, Any]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    remedy = "remove the checkpoints, and train anew"
    with private_directory() as directory:
        try:
            folder.download(name, directory / name)
        except FileNotFoundError:
            raise InputError("is missing", remedy, path=folder.shown(name)) from None
        try:
            return load_file(directory / name)
        except SafetensorError:
            raise InputError("is damaged", remedy, path=folder.shown(name)) from None


def _weights_of(learner: Learner) -> dict[str, Any]:
    return {name: parameter.detach().cpu() for name, parameter in learner.parameters.items()}


def _set_weights(learner: Learner, tensors: Mapping[str, Any]) -> None:
    _refuse_other(learner.parameters, tensors)
    for name, parameter in learner.parameters.items():
        parameter.data.copy_(tensors[name])


_MOMENTS = ("exp_avg", "exp_avg_sq")


def _moments_of(learner: Learner) -> dict[str, Any]:
    return {
        f"{moment}.{name}": learner.optimizer.state[parameter][moment].cpu()
        for name, parameter in learner.parameters.items()
        for moment in _MOMENTS
    }


def _set_moments(learner: Learner, tensors: Mapping[str, Any], step: int) -> None:
    import torch

    for name, parameter in learner.parameters.items():
        state: dict[str, Any] = {"step": torch.tensor(float(step))}
        for moment in _MOMENTS:
            state[moment] = tensors[f"{moment}.{name}"].to(parameter.device)
        learner.optimizer.state[parameter] = state


def _refuse_other(parameters: Iterable[str], tensors: Mapping[str, Any]) -> None:
    if set(parameters) != tensors.keys():
        raise InputError(
            "a checkpoint is of another model", "remove the checkpoints, and train anew"
        )
