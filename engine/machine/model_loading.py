"""Load a model's weights in no more memory than the weights take.

transformers maps the files of weights and casts each tensor to the precision in use. Where that is not
the one in the files, the mapped pages stay resident beside what they were cast to until the end: a model
stored in bf16 takes half as much again while it is loaded in fp32. There, files are read instead of mapped,
tensor by tensor, so that only the few in flight are there twice. Values are the same to the last bit. So are
those whose tensors are replaced one after another (``engine.reading.models.ordered``).

A process that has several readers of one model holds its weights once, and processes of one machine load
large models one after another on each GPU.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import pickle
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import quote
from weakref import WeakValueDictionary

from filelock import FileLock, Timeout

from engine.machine import model_files
from engine.machine.batching import machine_memory
from engine.machine.device import Dtype, gpu_count, status_bytes
from engine.messages.errors import InputError

if TYPE_CHECKING:
    import torch

Kind = Literal["causal", "encoder-decoder", "encoder"]

# Models in use, with what was said of their weights; each goes with the last of those that use it.
_IN_USE: WeakValueDictionary[tuple[object, ...], Any] = WeakValueDictionary()
_TOLD: dict[tuple[object, ...], dict[str, Any]] = {}
# Weights in bytes from which on loads take turns: several at once can take a machine's main memory, and without
# GPUs its disk serves one after another sooner. Smaller ones are loaded before they could wait.
LARGE = 2**30


def shared_model(
    kind: Kind,
    path: Path,
    *,
    config: Any,
    dtype: Dtype,
    code: str,
    digest: str,
    device: torch.device,
    **options: Any,
) -> tuple[Any, dict[str, Any]]:
    """As ``load_model``, of a model that nobody changes: one that this process has in use is not loaded again."""
    key = (kind, str(path), digest, dtype, code, str(device), *sorted(options.items()))
    model = _IN_USE.get(key)
    if model is None:
        for gone in _TOLD.keys() - _IN_USE.keys():
            del _TOLD[gone]
        model, _TOLD[key] = load_model(
            kind, path, config=config, dtype=dtype, code=code, device=device, **options
        )
        _IN_USE[key] = model
    return model, _TOLD[key]


def parameters(path: Path) -> int:
    """The number of parameters in a directory's files of weights: safetensors, else ``pytorch_model.bin``.

    Raises:
        InputError: a file is damaged, or holds anything but tensors.
    """
    files = model_files.pickled_files(path)
    if not files:
        return model_files.parameters(path)
    return sum(tensor.numel() for file in files for tensor in _pickled(file).values())


def loading_bytes(path: Path, dtype: Dtype) -> int:
    """As ``model_files.loading_bytes``; of ``pytorch_model.bin``, which is mapped as a whole, all that is cast."""
    files = model_files.pickled_files(path)
    if not files:
        return model_files.loading_bytes(path, dtype)
    tensors = (tensor for file in files for tensor in _pickled(file).values())
    return sum(t.numel() * t.element_size() for t in tensors if str(t.dtype) != f"torch.{dtype}")


def _pickled(file: Path) -> dict[str, torch.Tensor]:
    """The tensors of a pickled file without their values. Only tensors are read: no code can run."""
    import torch

    try:
        # Before PyTorch 1.6 a checkpoint was no zip file, and cannot be mapped.
        mapped = zipfile.is_zipfile(file)
        state = torch.load(file, map_location="meta", weights_only=True, mmap=mapped)
    except Exception as error:  # whatever a damaged or hostile file makes the library raise
        reason = f"{type(error).__name__}: {error}".split("\n")[0][:200]
        if isinstance(error, pickle.UnpicklingError):  # of which PyTorch says how to run the code
            reason = "it is damaged, or would run code"
        raise InputError(
            f"holds no plain tensors ({reason})", "fetch the model again", path=file
        ) from None
    if not isinstance(state, dict) or not all(isinstance(t, torch.Tensor) for t in state.values()):
        raise InputError("is not a table of weights", "fetch the model again", path=file)
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

    Weights are read from safetensors; those of an encoder, where there are none, from ``pytorch_model.bin``, as
    tensors alone.

    Args:
        kind: decoder-only, encoder-decoder, or one that gives vectors.
        code: the digest of the model's code, if it may run; empty where it may not.
        mapped: whether files may be mapped. What is read instead is freed tensor by tensor, by who replaces them.
        device: where it is to be. On a GPU tensors go there one by one, so that main memory never has all.
        options: of ``from_pretrained``.
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
    files = model_files.weight_files(path)
    known = getattr(transformers, mapping)
    model_class = known.get(type(config), None)  # its own, which needs the default
    if (
        code  # its classes are found by the directory's name
        or not isinstance(model_class, type)
        or "text_config" in config.sub_configs
        or getattr(config, "quantization_config", None)  # its tensors are not cast, but unpacked
        or (mapped and not model_files.are_cast(files, dtype))
    ):
        return getattr(transformers, auto).from_pretrained(
            path,
            local_files_only=True,
            use_safetensors=not (kind == "encoder" and model_files.pickled_files(path)),
            weights_only=True,
            trust_remote_code=bool(code),
            **options,
        )
    return _read(model_class, path, files, options)


def _read(
    model_class: Any, path: Path, files: list[Path], options: dict[str, Any]
) -> tuple[Any, dict[str, Any]]:
    from safetensors import safe_open

    with contextlib.ExitStack() as stack:
        opened = [
            stack.enter_context(safe_open(file, framework="pt", device="cpu", backend="pread"))
            for file in files
        ]
        # Slices are read when their turn comes, as transformers does with those of files that it maps.
        slices = {name: file.get_slice(name) for file in opened for name in file.keys()}  # noqa: SIM118
        model, loading = model_class.from_pretrained(
            None, state_dict=slices, trust_remote_code=False, **options
        )
    if model.can_generate():  # without a directory, only the configuration's own settings are known
        model.generation_config = generation_config(path, options["config"])
    return model, loading


def generation_config(path: Path, config: Any) -> Any:
    """The settings of generation in a model's directory, or in its configuration: models need not come with such a file."""
    from transformers import GenerationConfig

    try:
        return GenerationConfig.from_pretrained(path, local_files_only=True)
    except OSError:
        return GenerationConfig.from_model_config(config)


def end_tokens(settings: Any) -> frozenset[int]:
    """The tokens that end what a model writes, by its settings of generation."""
    ends = settings.eos_token_id
    return frozenset({ends} if isinstance(ends, int) else set(ends or ()))


@contextlib.contextmanager
def loading_turn(
    weights: int, folder: Path | None = None, *, always: bool = False
) -> Iterator[None]:
    """Wait until no other process of this user loads a large model on a GPU that this one sees, nor, without GPUs,
    on this machine, and until the free main memory has room; small ones pass.

    Args:
        weights: bytes of the model.
        always: whether a small one waits, too: vLLM takes what others load meanwhile for its own.
        folder: of the locks; the machine's folder for temporary files by default. A process that dies
            gives its turn away.
    """
    if weights < LARGE and not always:
        yield
        return
    own = (folder or Path(tempfile.gettempdir())) / f"erag-loading-{os.getuid()}"
    gpus = os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(gpu_count())))
    with contextlib.ExitStack() as held:
        # Somebody else's file of that name, a full disk, or a system that tells no memory: no reason not to load.
        with contextlib.suppress(OSError, ValueError):
            # GPUs in one order, so that no two wait for each other; then one of the places that memory has.
            seen = {quote(gpu.strip(), safe="") for gpu in gpus.split(",")}
            turns = [[gpu] for gpu in sorted(seen)]
            if weights >= LARGE:
                free = min(machine_memory(), status_bytes("MemAvailable", "/proc/meminfo"))
                turns.append([f"memory-{place}" for place in range(max(1, free // weights))])
            for names in turns:
                for name in itertools.cycle(names):
                    lock = FileLock(f"{own}-{name}.lock", 0.1, mode=0o600, fallback_to_soft=False)
                    with contextlib.suppress(Timeout):
                        held.enter_context(lock)
                        break
        yield
