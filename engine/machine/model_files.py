"""A model's files on this machine: where converted ones lie, their configuration, size and digest."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
from pathlib import Path
from typing import Any, Literal

from engine.errors import InputError
from engine.sources.io.files import write_text


def cache_directory() -> Path:
    """Where converted models and digests are kept: ``$ERAG_CACHE``, by default ``~/.cache/erag``."""
    return Path(os.environ.get("ERAG_CACHE") or Path.home() / ".cache" / "erag")


def parameters(path: Path) -> int:
    """The number of parameters in a directory's safetensors files, read off their headers."""
    total = 0
    for file in path.glob("*.safetensors"):
        with file.open("rb") as stream:
            size = int.from_bytes(stream.read(8), "little")
            try:
                header = json.loads(stream.read(size))
                total += sum(
                    math.prod(entry["shape"])
                    for key, entry in header.items()
                    if key != "__metadata__"
                )
            except (ValueError, KeyError, TypeError, MemoryError, OverflowError):
                raise InputError(
                    file, None, "is not a safetensors file", "fetch the model again"
                ) from None
    return total


def refuse_missing(loading: dict[str, Any], name: str) -> None:
    """Refuse a model of which some weights were not in its files: they would be random.

    Args:
        loading: what ``from_pretrained(..., output_loading_info=True)`` says.

    Raises:
        InputError: weights are missing or have other shapes.
    """
    wanting = [*loading.get("missing_keys", ()), *loading.get("mismatched_keys", ())]
    if wanting:
        first = sorted(map(str, wanting))[0]
        raise InputError(
            name,
            None,
            f"lacks {len(wanting)} of its weights, {first} first",
            "give a complete model; missing weights would be random",
        )


def from_hub_cache(name: str, what: Literal["reader", "encoder"]) -> Path:
    """The directory of a model in the local Hugging Face cache; nothing is downloaded.

    Raises:
        InputError: it is not there.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(name, local_files_only=True))
    except (LocalEntryNotFoundError, HFValidationError, HfHubHTTPError, OSError):
        raise InputError(
            None,
            None,
            f"unknown {what} {name!r}: no directory or file, and not in the Hugging Face cache",
            f"use 'bundled', a directory{', a .gguf file' * (what == 'reader')}, "
            f"or fetch it first: hf download {name}",
        ) from None


def read_config(path: Path, name: str) -> dict[str, Any]:
    """The ``config.json`` of a model's directory; ``name`` is what the user called it."""
    try:
        config = json.loads((path / "config.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(
            name, None, "holds no config.json", "give a directory that transformers can load"
        ) from None
    except (ValueError, OSError) as error:
        raise InputError(
            path / "config.json", None, f"cannot be read ({error})", "fetch the model again"
        ) from None
    if not isinstance(config, dict):
        raise InputError(
            path / "config.json", None, "is not a JSON object", "fetch the model again"
        )
    return config


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
