"""What training starts from: a reader of the T5 family, or its configuration and tokenizer alone."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from engine.errors import InputError
from engine.machine import device
from engine.machine.device import PROCESS_MEMORY
from engine.reading.models.weights import has_weights, resolve
from engine.reading.prompting.prompts import Prompt
from engine.reading.prompting.template import Task
from engine.reading.protocol import Augmentation, ReaderSpec
from engine.reading.readers import specify

# Of a parameter in training: itself, its gradient, and the optimizer's two moments, in float32.
TRAINED_BYTES = 16


@dataclass(frozen=True)
class Start:
    """Where training starts.

    Attributes:
        spec: the reader as an evaluation would read with it; ``memory`` bounds a worker.
        prompt: what it is given.
        from_scratch: whether there are no weights, so that they are drawn at random.
    """

    spec: ReaderSpec
    prompt: Prompt
    from_scratch: bool


def specify_start(
    name: str,
    *,
    augmentation: Augmentation,
    task: Task = "short-answer",
    prompt: str | None = None,
    memory: int = 0,
) -> Start:
    """Where training starts, checked before anything is loaded.

    Args:
        name: as in ``weights.resolve``; or a directory with a T5's ``config.json`` and its tokenizer.
        augmentation, task, prompt: as in ``readers.specify``: the reader is trained for the prompt that an
            evaluation with the same settings gives it.
        memory: bytes that a worker may take, 0 for the default.

    Raises:
        InputError: no such reader, one that cannot be trained, or memory that cannot hold the training.
    """
    model = resolve(name, required=False)
    if model.architecture == "causal":
        raise InputError(
            None, None, f"reader {name!r} is decoder-only", "train a reader of the T5 family"
        )
    spec, made = specify(
        model,
        augmentation=augmentation,
        task=task,
        prompt=prompt,
        memory=memory,
    )
    if made.template.choices:
        raise InputError(
            made.template.path,
            None,
            "a prompt with choices, of which the reader writes none",
            "train with a prompt that has the answer written",
        )
    refuse_too_little(memory, spec.parameters)
    return Start(spec, made, from_scratch=not has_weights(Path(spec.path)))


def refuse_too_little(memory: int, parameters: int) -> None:
    """Refuse a budget that cannot hold a model in training, without anything to learn from.

    Args:
        memory: bytes; 0 for no budget.
        parameters: of the model.

    Raises:
        InputError: naming the least budget.
    """
    least = TRAINED_BYTES * parameters
    if not device.machine_has_gpu():
        least += PROCESS_MEMORY
    if memory and memory < least:
        raise InputError(
            None,
            None,
            f"`memory` of {memory / 2**20:.0f} MiB cannot hold the reader, its gradients and the optimizer",
            f"give at least {device.as_budget(least)}",
        )
