"""A model's files on this machine: place of converted ones, configuration, size and digest."""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
import re
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

from engine.messages.errors import InputError
from engine.messages.wording import quoted
from engine.sources.io.files import write_text
from engine.sources.io.json_text import parse_json


def cache_directory() -> Path:
    """Where converted models and digests are kept: ``$ERAG_CACHE``, by default ``~/.cache/erag``."""
    return Path(os.environ.get("ERAG_CACHE") or Path.home() / ".cache" / "erag")


class _Stored(NamedTuple):
    """A tensor in a safetensors file: its type as such files name it, and how many numbers it has."""

    dtype: str
    numbers: int


# How safetensors files name the precisions.
# Names of models that only their providers run.
_OF_A_PROVIDER = re.compile(
    r"(gpt-\d|chatgpt|o\d(-|$)|claude-|gemini-|grok-|command-r|deepseek-(chat|reasoner)$)"
)
_NAMES = {"bfloat16": "BF16", "float16": "F16", "float32": "F32"}
_SIZES = {"F64": 8, "I64": 8, "F32": 4, "I32": 4, "BF16": 2, "F16": 2, "I16": 2}
# As many tensors as transformers has in its hands at once while it loads a model.
_IN_FLIGHT = 4


def parameters(path: Path) -> int:
    """The number of parameters in a directory's safetensors files, read off their headers."""
    return sum(tensor.numbers for file in path.glob("*.safetensors") for tensor in _stored(file))


def quantization(path: Path, name: str) -> dict[str, Any]:
    """How a model's configuration says that its weights are quantised; empty where they are not."""
    said = read_config(path, name).get("quantization_config")
    return said if isinstance(said, dict) else {}


def stored_bytes(path: Path) -> int:
    """Bytes of the tensors in a directory's safetensors files, read off their headers.

    What weights that are quantised take, whatever precision is computed in.
    """
    return sum(_bytes(file) for file in weight_files(path) or sorted(path.glob("*.safetensors")))


def _bytes(file: Path) -> int:
    try:
        places = [entry["data_offsets"] for entry in tensors(file).values()]
        return sum(int(end) - int(start) for start, end in places)
    except (KeyError, TypeError, ValueError):
        raise _not_safetensors(file) from None


def weight_files(path: Path) -> list[Path]:
    """The safetensors files of a directory that its model is loaded from; none if that is not clear."""
    whole, index = path / "model.safetensors", path / "model.safetensors.index.json"
    if whole.is_file():
        return [whole]
    try:
        names = set(parse_json(index.read_bytes())["weight_map"].values())
        files = [path / name for name in sorted(names)]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return []
    return files if all(file.is_file() for file in files) else []


def pickled_files(path: Path) -> list[Path]:
    """The ``pytorch_model.bin`` of a directory, or its parts, where it has no safetensors; else none."""
    if any(path.glob("*.safetensors")):
        return []
    return sorted(path.glob("pytorch_model*.bin"))


def are_cast(files: Iterable[Path], dtype: str) -> bool:
    """Whether weights in these files are of another precision than ``dtype``."""
    return any(tensor.dtype != _NAMES[dtype] for file in files for tensor in _stored(file))


def loading_bytes(path: Path, dtype: str) -> int:
    """Bytes that loading a model takes for a while, beside the weights in the precision ``dtype``.

    None where files have that precision: what is mapped is what is used. Elsewhere the tensors that are
    cast at a time, as they are stored: the largest ones, for they might come together
    (``engine.machine.model_loading``).
    """
    stored = (tensor for file in weight_files(path) for tensor in _stored(file))
    cast = [_SIZES.get(kind, 1) * numbers for kind, numbers in stored if kind != _NAMES[dtype]]
    return sum(sorted(cast)[-_IN_FLIGHT:])


def ordering_bytes(path: Path) -> int:
    """Bytes that ordering weights in bf16 takes for a while: the largest matrix of a layer, there twice."""
    named = (entry for file in weight_files(path) for entry in tensors(file).items())
    return 2 * max((math.prod(e["shape"]) for name, e in named if ".layers." in name), default=0)


def _stored(file: Path) -> list[_Stored]:
    entries = tensors(file).values()
    if not all(type(size) is int and size >= 0 for entry in entries for size in entry["shape"]):
        raise _not_safetensors(file)
    return [_Stored(str(entry.get("dtype")), math.prod(entry["shape"])) for entry in entries]


def tensors(file: Path) -> dict[str, dict[str, Any]]:
    """What the header of a safetensors file says of each tensor, by name; each has a list ``shape``.

    Raises:
        InputError: it is not such a file, or cannot be read.
    """
    try:
        with file.open("rb") as stream:
            header = parse_json(stream.read(int.from_bytes(stream.read(8), "little")))
    except (ValueError, OSError, MemoryError, OverflowError):
        raise _not_safetensors(file) from None
    if not isinstance(header, dict):
        raise _not_safetensors(file)
    header.pop("__metadata__", None)
    if not all(isinstance(e, dict) and isinstance(e.get("shape"), list) for e in header.values()):
        raise _not_safetensors(file)
    return header


def _not_safetensors(file: Path) -> InputError:
    return InputError("is not a safetensors file", "fetch the model again", path=file)


def refuse_missing(loading: dict[str, Any], name: str) -> None:
    """Refuse a model of which some weights were not in its files: they would be random.

    Args:
        loading: what ``from_pretrained(..., output_loading_info=True)`` says.
    """
    wanting = [*loading.get("missing_keys", ()), *loading.get("mismatched_keys", ())]
    if wanting:
        first = sorted(map(str, wanting))[0]
        raise InputError(
            f"lacks {len(wanting)} of its weights, {first} first",
            "give a complete model; missing weights would be random",
            path=name,
        )


def refuse_of_provider(name: str) -> None:
    """Refuse the name of a model that only its provider runs.

    Raises:
        InputError: it is one.
    """
    if _OF_A_PROVIDER.match(name):
        raise InputError(
            f"{name!r} is a model behind an API, not one on this machine",
            f"write openai:{name}, with `base_url` where the server is not OpenAI's",
        )


def from_hub_cache(name: str, what: Literal["reader", "encoder"]) -> Path:
    """The directory of a model in the local Hugging Face cache; nothing is downloaded."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(name, local_files_only=True))
    except (LocalEntryNotFoundError, HFValidationError, HfHubHTTPError, OSError):
        if what == "reader":
            refuse_of_provider(name)
        if what == "reader" and name.endswith(".py"):
            raise InputError(
                f"reader {name!r} names no function", f"write {name}:FUNCTION"
            ) from None
        others = ", a .gguf file, FILE.py:function, openai:MODEL" * (what == "reader")
        raise InputError(
            f"unknown {what} {name!r}: no directory or file, and not in the Hugging Face cache",
            f"use 'bundled', a directory{others}, or fetch it first: hf download {name}",
        ) from None


def read_config(path: Path, name: str) -> dict[str, Any]:
    """The ``config.json`` of a model's directory; ``name`` is what the user called it."""
    fault = partial(InputError, path=path / "config.json")
    try:
        config = parse_json((path / "config.json").read_bytes())
    except FileNotFoundError:
        raise InputError(
            "holds no config.json", "give a directory that transformers can load", path=name
        ) from None
    except (ValueError, OSError) as error:
        raise fault(f"cannot be read ({error})", "fetch the model again") from None
    if not isinstance(config, dict):
        raise fault("is not a JSON object", "fetch the model again")
    kind, classes = config.get("model_type"), config.get("architectures")
    for key, fits in (
        ("model_type", kind is None or isinstance(kind, str)),
        (
            "architectures",
            classes is None
            or (isinstance(classes, list) and all(isinstance(name, str) for name in classes)),
        ),
    ):
        if not fits:
            raise fault(f"{key} is {quoted(config[key])}", "fetch the model again")
    return config


def read_object(file: Path) -> dict[str, Any] | None:
    """The JSON object in a file of a model; empty where it holds something else, None where there is no such file."""
    value = read_json(file)
    return value if value is None or isinstance(value, dict) else {}


def read_json(file: Path) -> Any:
    """What a JSON file of a model holds; None where there is no such file."""
    try:
        return parse_json(file.read_bytes())
    except FileNotFoundError:
        return None
    except (ValueError, OSError) as error:
        raise InputError(f"cannot be read ({error})", "fetch the model again", path=file) from None


def file_digest(path: Path) -> str:
    """SHA-256 of a file, remembered by its path, size and time of change (weights can be many GiB)."""
    real = path.resolve()
    status = real.stat()
    identity = f"{real} {status.st_size} {status.st_mtime_ns}"
    memory = cache_directory() / "digests" / hashlib.sha256(identity.encode()).hexdigest()
    with contextlib.suppress(FileNotFoundError):
        if len(known := memory.read_text(encoding="ascii")) == 64:
            return known
    with real.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    write_text(digest, memory)
    return digest
