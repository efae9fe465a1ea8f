"""Find a reader's weights: turn a name into a local directory, an architecture and a digest."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from engine.machine import model_files
from engine.messages.errors import InputError
from engine.messages.extras import missing, require
from engine.reading.models import conversion
from engine.reading.protocol import BIASED, Architecture
from engine.sources import bundled
from engine.sources.io.files import reported_writing, temporary_directory

BUNDLED, BUNDLED_FID = "bundled", "bundled-fid"
# FiD and in-prompt encoder-decoder reading are written for, and tested on, the T5 family.
_ENCODER_DECODERS = frozenset({"t5", "mt5", "umt5"})
# Files whose content decides a model's answers.
_DECISIVE_SUFFIXES = frozenset({".safetensors", ".json", ".model", ".txt", ".jinja"})


@dataclass(frozen=True)
class Weights:
    """A reader's weights on this machine.

    Attributes:
        name: the user's name for it.
        source: the name to ``resolve`` on another machine: as ``name``, but paths are absolute.
        path: the directory that holds them; in the cache if they were converted.
        digest: SHA-256 over the files in ``path`` that decide the model's answers.
    """

    name: str
    source: str
    path: Path
    architecture: Architecture
    digest: str


def resolve(name: str, *, required: bool = True) -> Weights:
    """Find the weights that a reader's name stands for.

    Args:
        name: ``bundled``, ``bundled-fid``, a ``.gguf`` file, a local directory, or a Hugging Face id whose files are in the
            local cache. Nothing is downloaded. GGUF files and pickled or wrapped T5 checkpoints are converted once;
            ``path`` is then a directory of the cache.
        required: whether a directory must have weights; training a new model needs none.

    Raises:
        WriteError: the disk is full, so that nothing was converted.
        InputError: the extra ``local`` is not installed, there is no such model here, or its form is unsupported
            (supported: safetensors, GGUF, and a T5's ``pytorch_model.bin``).
    """
    if not name.strip() or "\0" in name:
        remedy = "give bundled, bundled-fid, a directory, a .gguf file, or an id"
        raise InputError("`reader` is empty", remedy, "settings.reader")
    if missing("local") and not Path(name).exists():
        model_files.refuse_provider_model(name)  # which needs no extra
    require(f"reader {name!r}", "local")
    source = name
    if name == BUNDLED:
        path = _from_gguf(bundled.reader_file())
    elif name == BUNDLED_FID:
        path = bundled.fid_reader_directory()
    elif name.endswith(".gguf"):
        if not Path(name).is_file():
            raise InputError("no such file", "give a .gguf file", "files.missing", path=name)
        path, source = _from_gguf(Path(name)), str(Path(name).resolve())
    elif Path(name).is_dir():
        path = Path(name).resolve()
        source = str(path)
    else:
        path = model_files.from_hub_cache(name, "reader")
    _refuse_adapters(path, name)
    config = model_files.read_config(path, name)
    _refuse_other_heads(config, name)
    encodes, kind = config.get("is_encoder_decoder"), config.get("model_type")
    if kind in _ENCODER_DECODERS and (files := conversion.checkpoint_files(path)):
        content = f"T5 checkpoint {conversion.CHECKPOINT_VERSION}\n" + "".join(
            f"{file.name} {model_files.file_digest(file)}\n" for file in files
        )
        path = _converted(content, partial(conversion.convert_checkpoint, path))
    if required and not has_weights(path):
        remedy = "convert the weights (of pickles only a T5's pytorch_model.bin is read)"
        raise InputError("holds no *.safetensors", remedy, "model.weightless", path=name)
    if encodes and kind not in {*_ENCODER_DECODERS, BIASED}:
        remedy = f"encoder-decoder readers are {', '.join(sorted(_ENCODER_DECODERS))}"
        raise InputError(f"a {kind!r} model", remedy, "model.kind", path=name)
    decisive = (f for f in path.iterdir() if f.suffix in _DECISIVE_SUFFIXES and f.is_file())
    digest = model_files.files_digest(path, decisive)
    return Weights(name, source, path, "encoder-decoder" if encodes else "causal", digest)


def has_weights(path: Path) -> bool:
    """Whether a model's directory has weights in the form that is read."""
    return any(path.glob("*.safetensors"))


def _refuse_adapters(path: Path, name: str) -> None:
    """Refuse adapters (LoRA), which would be silently ignored."""
    if any(path.glob("adapter_config.json")) or any(path.glob("adapter_model.*")):
        own = [file for file in path.glob("*.safetensors") if not file.name.startswith("adapter_")]
        beside = ", beside weights that it would change" if own else ""
        raise InputError(
            f"holds an adapter (LoRA){beside}, which is not read",
            "merge it into its model (merge_and_unload of peft), and give the directory that this is saved in; "
            "or remove the adapter's files from this one to use the model without it",
            "model.adapter",
            path=name,
        )


def _refuse_other_heads(config: dict[str, Any], name: str) -> None:
    """A model saved without the head that writes text would get one with random weights."""
    heads = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration")
    architectures = [str(a) for a in config.get("architectures") or []]
    # Fusion-in-Decoder's own class is FiDT5; its forks use names with the same beginning.
    generative = [a for a in architectures if a.endswith(heads) or a.lower().startswith("fid")]
    if architectures and not generative:
        problem = f"is a {architectures[0]}, which writes no text"
        raise InputError(problem, "give a generative model", "model.textless", path=name)


def _converted(content: str, convert: Callable[[Path], None]) -> Path:
    """The directory of a converted model: made once by ``convert``, then found by the digest of ``content``."""
    key = hashlib.sha256(content.encode()).hexdigest()
    target = model_files.cache_directory() / "readers" / key[:32]
    if target.is_dir():
        return target
    with reported_writing(target), temporary_directory(target) as work:
        convert(work)
        try:
            os.replace(work, target)
        except OSError:
            if not target.is_dir():  # otherwise another process was first: its result is the same
                raise
    return target


def _from_gguf(source: Path) -> Path:
    content = f"GGUF {conversion.GGUF_VERSION}\n{model_files.file_digest(source)}"
    return _converted(content, partial(conversion.convert_gguf, source))
