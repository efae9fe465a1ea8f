"""A model's files on this machine: their place, configuration, size, digest and code; and loading its weights.

Loading weights takes no more memory than they do. transformers maps the files of weights and casts each tensor to the
precision in use. If the files have another, their mapped pages stay resident until the end: a model stored in bf16
takes half as much again while it is loaded in fp32. Then, and if ``engine.reading.models.layers`` replaces tensors,
files are read tensor by tensor, so that only the few in flight are there twice. Values are the same.

A process with several readers of a model holds its weights once, and a machine's processes load large models
one after another on each GPU.

``config.json`` and ``tokenizer_config.json`` may declare in ``auto_map`` that Python files beside them define classes.
These run only with the user's consent (``trust_remote_code``), as they were then: the specification of a reader or an
encoder carries their digest to every process, and no other code is run.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import math
import os
import pickle
import re
import tempfile
import zipfile
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import quote
from weakref import WeakValueDictionary

from filelock import FileLock, Timeout

from engine.machine import device
from engine.machine.batching import machine_memory
from engine.machine.device import Dtype, gpu_count, status_bytes
from engine.messages.errors import InputError, ReadError
from engine.messages.wording import quoted
from engine.sources.io.files import write_text
from engine.sources.io.records import parse_json


def cache_directory() -> Path:
    """Directory of converted models and digests: ``$ERAG_CACHE``, by default ``~/.cache/erag``."""
    return Path(os.environ.get("ERAG_CACHE") or Path.home() / ".cache" / "erag")


# Names of models that only their providers run.
_PROVIDER_MODEL = re.compile(
    r"(gpt-\d|chatgpt|o\d(-|$)|claude-|gemini-|grok-|command-r|deepseek-(chat|reasoner)$)"
)
# Names of the precisions in safetensors files, and the bytes of a number by type.
_NAMES = {"bfloat16": "BF16", "float16": "F16", "float32": "F32"}
_SIZES = {"F64": 8, "I64": 8, "F32": 4, "I32": 4, "BF16": 2, "F16": 2, "I16": 2}
# Number of tensors that transformers handles at once while it loads a model.
_IN_FLIGHT = 4


def parameters(path: Path) -> int:
    """The number of parameters in a directory's safetensors files, from their headers."""
    return sum(numbers for file in path.glob("*.safetensors") for _, numbers in _stored(file))


def quantization(path: Path, name: str) -> dict[str, Any]:
    """A model's quantisation, by its configuration; empty if its weights are not quantised."""
    settings = read_config(path, name).get("quantization_config")
    return settings if isinstance(settings, dict) else {}


def stored_bytes(path: Path) -> int:
    """Bytes of the tensors, perhaps quantised, in a directory's safetensors files, from their headers."""
    total = 0
    for file in weight_files(path) or sorted(path.glob("*.safetensors")):
        try:
            places = [entry["data_offsets"] for entry in tensors(file).values()]
            total += sum(int(end) - int(start) for start, end in places)
        except (KeyError, TypeError, ValueError):
            raise _not_safetensors(file) from None
    return total


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
    """The ``pytorch_model.bin`` of a directory, or its parts, if it has no safetensors; else none."""
    return [] if any(path.glob("*.safetensors")) else sorted(path.glob("pytorch_model*.bin"))


def are_cast(files: Iterable[Path], dtype: str) -> bool:
    """Whether weights in these files have another precision than ``dtype``."""
    return any(kind != _NAMES[dtype] for file in files for kind, _ in _stored(file))


def loading_bytes(path: Path, dtype: str) -> int:
    """Bytes of loading in ``dtype`` beside the weights: of the largest tensors, as stored, that are cast at a time."""
    stored = (tensor for file in weight_files(path) for tensor in _stored(file))
    cast = [_SIZES.get(kind, 1) * numbers for kind, numbers in stored if kind != _NAMES[dtype]]
    return sum(sorted(cast)[-_IN_FLIGHT:])


def ordering_bytes(path: Path) -> int:
    """Temporary bytes of ordering weights in bf16: a second copy of the largest matrix of a layer."""
    named = (entry for file in weight_files(path) for entry in tensors(file).items())
    return 2 * max((math.prod(e["shape"]) for name, e in named if ".layers." in name), default=0)


def _stored(file: Path) -> list[tuple[str, int]]:
    """Types, by their safetensors names, and sizes of the tensors in a safetensors file."""
    entries = tensors(file).values()
    if not all(type(size) is int and size >= 0 for entry in entries for size in entry["shape"]):
        raise _not_safetensors(file)
    return [(str(entry.get("dtype")), math.prod(entry["shape"])) for entry in entries]


def tensors(file: Path) -> dict[str, dict[str, Any]]:
    """The tensors' entries in a safetensors header, by name, each with a list ``shape``; else an InputError."""
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
    remedy = "fetch the model again"
    return InputError("is not a safetensors file", remedy, "model.safetensors", path=file)


def refuse_missing(loading: dict[str, Any], name: str) -> None:
    """Refuse a model whose files lack weights, which would be random, by ``from_pretrained``'s ``output_loading_info``."""
    wanting = [*loading.get("missing_keys", ()), *loading.get("mismatched_keys", ())]
    if wanting:
        problem = f"lacks {len(wanting)} of its weights, {min(map(str, wanting))} first"
        remedy = "give a complete model; missing weights would be random"
        raise InputError(problem, remedy, "model.incomplete", path=name)


def refuse_provider_model(name: str) -> None:
    """Refuse, by an InputError, the name of a model that only its provider runs."""
    if _PROVIDER_MODEL.match(name):
        problem = f"{name!r} is a model behind an API, not one on this machine"
        remedy = f"write openai:{name}, with `base_url` where the server is not OpenAI's"
        raise InputError(problem, remedy, "model.api")


def from_hub_cache(name: str, what: Literal["reader", "encoder"]) -> Path:
    """The directory of a model in the local Hugging Face cache; nothing is downloaded."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(name, local_files_only=True))
    except (LocalEntryNotFoundError, HFValidationError, HfHubHTTPError, OSError):
        if what == "reader":
            refuse_provider_model(name)
        if what == "reader" and name.endswith(".py"):
            problem, remedy = f"reader {name!r} names no function", f"write {name}:FUNCTION"
            raise InputError(problem, remedy, "function.nameless") from None
        others = ", a .gguf file, FILE.py:function, openai:MODEL" * (what == "reader")
        absent = "no directory or file, and not in the Hugging Face cache"
        remedy = f"use 'bundled', a directory{others}, or fetch it first: hf download {name}"
        raise InputError(f"unknown {what} {name!r}: {absent}", remedy, "model.unknown") from None


def read_config(path: Path, name: str) -> dict[str, Any]:
    """The ``config.json`` of a model's directory; ``name`` is the user's name for it."""
    fault = partial(InputError, path=path / "config.json")
    config = read_json(path / "config.json")
    if config is None and not (path / "config.json").exists():
        remedy = "give a directory that transformers can load"
        raise InputError("holds no config.json", remedy, "model.unconfigured", path=name)
    if not isinstance(config, dict):
        raise fault("is not a JSON object", "fetch the model again", "model.config")
    kind, classes = config.get("model_type"), config.get("architectures")
    are_names = isinstance(classes, list) and all(isinstance(item, str) for item in classes)
    for key, fits in (
        ("model_type", isinstance(kind, str | None)),
        ("architectures", classes is None or are_names),
    ):
        if not fits:
            raise fault(f"{key} is {quoted(config[key])}", "fetch the model again", "model.config")
    return config


def read_object(file: Path) -> dict[str, Any] | None:
    """The JSON object in a file of a model; empty for another value, None for a missing file."""
    value = read_json(file)
    return value if value is None or isinstance(value, dict) else {}


def read_json(file: Path) -> Any:
    """The value in a JSON file of a model; None for a missing file."""
    try:
        return parse_json(file.read_bytes())
    except FileNotFoundError:
        return None
    except (ValueError, OSError) as error:
        problem, remedy = f"cannot be read ({error})", "fetch the model again"
        raise InputError(problem, remedy, "model.unreadable", path=file) from None


def file_digest(path: Path) -> str:
    """SHA-256 of a file, cached by its path, size and time of change (weights can be many GiB)."""
    real = path.resolve()
    status = real.stat()
    identity = f"{real} {status.st_size} {status.st_mtime_ns}"
    memory = cache_directory() / "digests" / hashlib.sha256(identity.encode()).hexdigest()
    with contextlib.suppress(FileNotFoundError):
        if len(stored := memory.read_text(encoding="ascii")) == 64:
            return stored
    with real.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    write_text(digest, memory)
    return digest


_REMEDY = "give a model that transformers knows; or read its *.py files and set `trust_remote_code`"


def agreed_code(path: Path, name: str, *, trusted: bool) -> str:
    """The digest of the code that may run when a model is loaded; empty if none may or exists.

    Raises:
        InputError: the model cannot be loaded without code that the user did not agree to (``trusted``), or its code is
            another model's, which the digest would not cover.
    """
    if not (references := _named_code(path)):
        return ""
    if not trusted:
        from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

        if _object(path / "config.json").get("model_type") not in CONFIG_MAPPING_NAMES:
            raise needs_code(name)
        return ""
    if foreign := sorted(reference for reference in references if "--" in reference):
        problem = f"names code outside its own files ({foreign[0]})"
        remedy = "put that code beside the model, and name it in auto_map without '--'"
        raise InputError(problem, remedy, "model.foreign", path=name)
    return code_digest(path)


def code_digest(path: Path) -> str:
    """SHA-256 over the names and contents of all Python files in a model's directory."""
    return files_digest(path, path.rglob("*.py"))


def files_digest(path: Path, files: Iterable[Path]) -> str:
    """SHA-256 over the names and contents of files in a directory, in any order."""
    rows = [f"{file.relative_to(path).as_posix()} {file_digest(file)}\n" for file in sorted(files)]
    return hashlib.sha256("".join(rows).encode()).hexdigest()


def needs_code(name: str) -> InputError:
    """The error for a model that cannot be loaded without its own code."""
    problem = "cannot be loaded without running Python code of its own"
    return InputError(problem, _REMEDY, "model.code", path=name)


def refusal(error: Exception, name: str, what: str = "") -> InputError | ReadError:
    """The error for a model, or a part, that cannot be loaded: its code, the GPU, or files that libraries reject."""
    if isinstance(error, ValueError) and "trust_remote_code" in str(error):
        return needs_code(name)
    reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
    if device.is_at_fault(error):
        return ReadError(f"{name}: the GPU failed while it was loaded ({reason}); see `nvidia-smi`")
    problem, remedy = f"{what} cannot be loaded ({reason})", "check or fetch the model again"
    return InputError(problem.lstrip(), remedy, "model.unloadable", path=name)


@contextlib.contextmanager
def refusals(name: str) -> Iterator[None]:
    """Turn exceptions during a model's loading and first run into the error for the model (``refusal``)."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        raise refusal(error, name) from error


def _named_code(path: Path) -> set[str]:
    """The references in the ``auto_map`` of a model's files, as in ``modeling_x.XModel``."""
    references: set[str] = set()
    for file in ("config.json", "tokenizer_config.json"):
        classes = _object(path / file).get("auto_map")
        for value in classes.values() if isinstance(classes, dict) else ():
            values = value if isinstance(value, list) else [value]
            references |= {item for item in values if isinstance(item, str)}
    return references


def _object(file: Path) -> dict[str, Any]:
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):  # the loader reports broken files
        return {}
    return value if isinstance(value, dict) else {}


if TYPE_CHECKING:
    import torch

Kind = Literal["causal", "encoder-decoder", "encoder"]

# Models in use, until their last user ends.
_IN_USE: WeakValueDictionary[tuple[object, ...], Any] = WeakValueDictionary()
# Least bytes of weights for which loads take turns: several at once can take a machine's main memory, and without GPUs
# its disk serves sequential loads sooner. Waiting would take longer than smaller loads.
LARGE = 2**30


def tokenizer_and_config(path: str, code: str) -> tuple[Any, Any]:
    """The tokenizer and the configuration in a model's directory; ``code`` as in ``load_model``."""
    from transformers import AutoConfig, AutoTokenizer

    # Explicit for every load: by default transformers asks, and takes "y" from stdin.
    trusted = bool(code)
    return (
        AutoTokenizer.from_pretrained(path, local_files_only=True, trust_remote_code=trusted),
        AutoConfig.from_pretrained(path, local_files_only=True, trust_remote_code=trusted),
    )


def shared_model(kind: Kind, path: Path, *, name: str, digest: str, **options: Any) -> Any:
    """As ``load_model``, for an unmodified model, and an InputError for one that lacks weights; a model in use in this
    process is not loaded again.
    """
    decisive = sorted((key, str(value)) for key, value in options.items() if key != "config")
    key = (kind, str(path), digest, *decisive)
    model = _IN_USE.get(key)
    if model is None:
        model, loading = load_model(kind, path, **options)
        refuse_missing(loading, name)
        _IN_USE[key] = model = model.eval()
    return model


def encoder_parameters(path: Path) -> int:
    """The number of parameters in an encoder's safetensors, else in ``pytorch_model.bin``, by ``plain_tensors``."""
    return parameters(path) + sum(tensor.numel() for tensor in _pickled_tensors(path))


def encoder_loading_bytes(path: Path, dtype: Dtype) -> int:
    """As ``loading_bytes``, for an encoder; for ``pytorch_model.bin``, which is mapped as a whole, all cast tensors."""
    cast = (t for t in _pickled_tensors(path) if str(t.dtype) != f"torch.{dtype}")
    return loading_bytes(path, dtype) + sum(t.numel() * t.element_size() for t in cast)


def _pickled_tensors(path: Path) -> Iterator[torch.Tensor]:
    return (tensor for file in pickled_files(path) for tensor in plain_tensors(file).values())


def plain_tensors(file: Path, where: Literal["cpu", "meta"] = "meta") -> dict[str, torch.Tensor]:
    """The plain tensors of a file, by default without values; no code can run. An InputError for anything else."""
    import torch
    from safetensors.torch import load_file

    fault = partial(InputError, remedy="fetch the model again", code="model.tensors", path=file)
    try:
        if file.suffix == ".safetensors":
            return load_file(file, device=where)
        # Before PyTorch 1.6 checkpoints were no zip files, and cannot be mapped.
        mapped = zipfile.is_zipfile(file)
        state = torch.load(file, map_location=where, weights_only=True, mmap=mapped)
    except Exception as error:  # damaged or hostile files raise arbitrary errors
        reason = f"{type(error).__name__}: {error}".split("\n")[0][:200]
        if isinstance(error, pickle.UnpicklingError):  # whose message tells how to run the code
            reason = "it is damaged, or would run code"
        raise fault(f"holds no plain tensors ({reason})") from None
    if not isinstance(state, dict) or not all(isinstance(t, torch.Tensor) for t in state.values()):
        raise fault("is not a table of weights")
    return state


def load_model(
    kind: Kind,
    path: Path,
    *,
    config: Any,
    dtype: Dtype,
    code: str,
    device: torch.device,
    mapped: bool = True,
    **options: Any,
) -> tuple[Any, dict[str, Any]]:
    """A model from its directory, and which weights were missing, unexpected or of another shape.

    Weights are read from safetensors; an encoder's, if there are none, from ``pytorch_model.bin``, as tensors alone.

    Args:
        kind: decoder-only, encoder-decoder, or encoder (vectors).
        code: the digest of the model's code, if it may run; else empty.
        mapped: whether files may be mapped. Otherwise the caller replaces tensors, and thus frees them one by one.
        device: its final device. On a GPU tensors go there one by one, so that main memory never has all.
        options: arguments of ``from_pretrained``.
    """
    import torch
    import transformers

    auto, mapping = {
        "causal": ("AutoModelForCausalLM", "MODEL_FOR_CAUSAL_LM_MAPPING"),
        "encoder-decoder": ("AutoModelForSeq2SeqLM", "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING"),
        "encoder": ("AutoModel", "MODEL_MAPPING"),
    }[kind]
    options |= {"config": config, "dtype": getattr(torch, dtype), "output_loading_info": True}
    if device.type != "cpu":
        options["device_map"] = {"": device}
    files = weight_files(path)
    model_class = getattr(transformers, mapping).get(type(config), None)  # which needs the default
    if (
        code  # transformers finds its classes by the directory's name
        or not isinstance(model_class, type)
        or "text_config" in config.sub_configs
        or getattr(config, "quantization_config", None)  # its tensors are not cast, but unpacked
        or (mapped and not are_cast(files, dtype))
    ):
        options |= {"use_safetensors": not (kind == "encoder" and pickled_files(path))}
        options |= {"local_files_only": True, "weights_only": True}
        auto_class = getattr(transformers, auto)
        return auto_class.from_pretrained(path, trust_remote_code=bool(code), **options)
    return _read(model_class, path, files, options)


def _read(
    model_class: Any, path: Path, files: list[Path], options: dict[str, Any]
) -> tuple[Any, dict[str, Any]]:
    from safetensors import safe_open

    with contextlib.ExitStack() as stack:
        read = partial(safe_open, framework="pt", device="cpu", backend="pread")
        readers = [stack.enter_context(read(file)) for file in files]
        # Slices are read lazily, as transformers does for mapped files.
        slices = {name: file.get_slice(name) for file in readers for name in file.keys()}  # noqa: SIM118
        model, loading = model_class.from_pretrained(
            None, state_dict=slices, trust_remote_code=False, **options
        )
    if model.can_generate():  # transformers knows only the configuration's settings
        model.generation_config = generation_config(path, options["config"])
    return model, loading


def generation_config(path: Path, config: Any) -> Any:
    """Generation settings from a model's directory, or from its configuration if it has no such file."""
    from transformers import GenerationConfig

    try:
        return GenerationConfig.from_pretrained(path, local_files_only=True)
    except OSError:
        return GenerationConfig.from_model_config(config)


def end_tokens(settings: Any) -> frozenset[int]:
    """End tokens of a model's output, by its settings of generation."""
    ends = settings.eos_token_id
    return frozenset({ends} if isinstance(ends, int) else set(ends or ()))


@contextlib.contextmanager
def loading_turn(
    weights: int, folder: Path | None = None, *, always: bool = False
) -> Iterator[None]:
    """Wait until this user's other processes load no large model on this process's GPUs, or, without GPUs, on this
    machine, and until the free main memory has room for the bytes of the weights. Small models wait only if ``always``:
    vLLM counts memory of concurrent loads as its own. Locks are in ``folder``, by default that for temporary files; a
    process that dies releases its turn.
    """
    if weights < LARGE and not always:
        yield
        return
    own = (folder or Path(tempfile.gettempdir())) / f"erag-loading-{os.getuid()}"
    gpus = os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(gpu_count())))
    with contextlib.ExitStack() as locks:
        # Another user's file of that name, a full disk, or a system without memory figures: no reason not to load.
        with contextlib.suppress(OSError, ValueError):
            # GPUs in one order, so that no two wait for each other; then one of the places that memory has.
            turns = [[gpu] for gpu in sorted({quote(g.strip(), safe="") for g in gpus.split(",")})]
            if weights >= LARGE:
                free = min(machine_memory(), status_bytes("MemAvailable", "/proc/meminfo"))
                turns.append([f"memory-{place}" for place in range(max(1, free // weights))])
            for names in turns:
                for name in itertools.cycle(names):
                    lock = FileLock(f"{own}-{name}.lock", 0.1, mode=0o600, fallback_to_soft=False)
                    with contextlib.suppress(Timeout):
                        locks.enter_context(lock)
                        break
        yield
