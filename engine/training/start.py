"""The start of training: a reader of the T5 family, or its configuration and tokenizer alone."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from engine.machine import device
from engine.machine.device import PROCESS_MEMORY
from engine.machine.model_files import read_config
from engine.messages.errors import InputError, ReadError
from engine.reading.models.weights import has_weights, resolve
from engine.reading.prompting.prompts import Prompt, Task
from engine.reading.protocol import BIASED, Augmentation, ReaderSpec
from engine.reading.readers import specify

# Bytes per parameter in training: itself, its gradient, and the optimizer's two moments, in float32.
TRAINED_BYTES = 16
# Suffixes of files of weights in unsupported formats.
_UNREAD = frozenset({".bin", ".h5", ".msgpack", ".pt", ".pth", ".ckpt", ".gguf", ".onnx"})


@dataclass(frozen=True)
class Start:
    """The start of a training: the reader as an evaluation would read with it, whose ``memory`` bounds a worker;
    ``from_scratch`` if there are no weights, so that they are drawn at random.
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
    """The start of a training, checked before loading, by a name as in ``weights.resolve``, or a directory with a T5's
    ``config.json`` and its tokenizer. The reader is trained for the prompt that an evaluation with the same settings
    gives it (``readers.specify``). An InputError if there is no such reader, it cannot be trained, or memory cannot
    hold that.
    """
    model = resolve(name, required=False)
    if model.architecture == "causal":
        problem = f"reader {name!r} is decoder-only"
        raise InputError(problem, "train a reader of the T5 family", "training.architecture")
    spec, reader_prompt = specify(
        model, augmentation=augmentation, task=task, prompt=prompt, memory=memory
    )
    if reader_prompt.template.choices:
        problem = "a prompt with choices, but training needs answers that the reader generates"
        remedy = "use a prompt without choices"
        raise InputError(problem, remedy, "training.choices", path=reader_prompt.template.path)
    refuse_too_little(memory, spec.parameters)
    path = Path(spec.path)
    from_scratch = not has_weights(path)
    if from_scratch:  # a model with weights may have been meant
        unread = sorted(file.name for file in path.iterdir() if file.suffix in _UNREAD)
        if unread or not Path(name).is_dir():
            has = f" ({unread[0]} is not read)" if unread else ""
            remedy = (
                "fetch or convert the weights; to start from scratch, give a directory with its config.json and "
                "tokenizer alone"
            )
            raise InputError(f"holds no *.safetensors{has}", remedy, "model.weightless", path=name)
        if read_config(path, name).get("model_type") == BIASED:
            problem = "has no weights, and those of a T5 with Fusion-in-Decoder's own position bias are not drawn at random"
            remedy = "start from its weights, or from the configuration of a plain T5"
            raise InputError(problem, remedy, "training.start", path=name)
    return Start(spec, reader_prompt, from_scratch)


def on_this_machine(start: Start) -> Start:
    """The start with its files' path on this machine; else an InputError, or a ReadError if its files differ."""
    spec = start.spec
    name = spec.path if Path(spec.path).is_dir() else spec.source or spec.name
    model = resolve(name, required=not start.from_scratch)
    if model.digest != spec.weights:
        raise ReadError(f"the files of {spec.name!r} on this machine are not those asked for")
    return replace(start, spec=replace(spec, path=str(model.path)))


def refuse_too_little(memory: int, parameters: int) -> None:
    """Refuse, by an InputError, a budget in bytes (0: none) that cannot hold a model in training without inputs."""
    least = TRAINED_BYTES * parameters
    if not device.machine_has_gpu():
        least += PROCESS_MEMORY
    if memory and memory < least:
        problem = f"`memory` of {memory / 2**20:.0f} MiB cannot hold the reader, its gradients and the optimizer"
        raise InputError(problem, f"give at least {device.as_budget(least)}", "settings.memory")
