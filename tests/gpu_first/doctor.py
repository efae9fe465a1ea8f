"""Stage 0: what the machine has, how fast it multiplies, and whether what later stages import is there and fits."""

from __future__ import annotations

import ast
import contextlib
import importlib
import os
import platform
import re
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Sequence
from functools import partial
from importlib.metadata import packages_distributions, version
from itertools import chain
from pathlib import Path
from typing import Any

from engine.machine import device
from tests.gpu_first.checks import Check, NotRun, require
from tests.gpu_first.scale import GIB, Scale

ROOT = Path(__file__).parents[2]
PINS = ROOT / "docs" / "cluster" / "constraints-gpu.txt"
# What the checks of a later stage's modules are called.
OF = "modules of {}"


def machine(scale: Scale, figures: dict[str, Any]) -> str:
    """Processors, memory, disk, compilers."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    figures |= {
        "cpus": len(os.sched_getaffinity(0)),
        "memory_gib": round(memory / GIB, 1),
        "shared_memory_gib": round(shutil.disk_usage("/dev/shm").free / GIB, 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "nvcc": shutil.which("nvcc") or "",
        "compiler": device.lacking_compiler() or "found",
    }
    return ", ".join(f"{name} {value}" for name, value in figures.items() if value)


def gpu(scale: Scale, figures: dict[str, Any]) -> str:
    """The GPU, as the driver and torch see it, and whether it computes."""
    import torch

    if scale.gpu:
        asked = "--query-gpu=name,driver_version,memory.total,memory.used,mig.mode.current"
        smi = ["nvidia-smi", asked, "--format=csv,noheader"]
        with contextlib.suppress(OSError):
            figures["driver"] = subprocess.run(
                smi, capture_output=True, text=True, check=False
            ).stdout.strip()
    if not torch.cuda.is_available():
        if scale.gpu:
            raise AssertionError(f"torch {torch.__version__} cannot use the GPU")
        raise NotRun("no GPU")
    about = torch.cuda.get_device_properties(0)
    free, total = torch.cuda.mem_get_info()
    figures |= {
        "name": torch.cuda.get_device_name(0),
        "gpus": torch.cuda.device_count(),
        "capability": f"{about.major}.{about.minor}",
        "torch_cuda": str(torch.version.cuda),
        "free_gib": round(free / GIB, 2),
        "total_gib": round(total / GIB, 2),
        "best_dtype": device.best_dtype(),
        "tf32": torch.backends.cuda.matmul.allow_tf32,
    }
    made = torch.ones(512, 512, device="cuda")
    assert float((made @ made).sum()) == 512.0**3, "a product of ones is wrong"
    return f"{figures['gpus']} of {figures['name']}, {figures['free_gib']} GiB free, CUDA {figures['torch_cuda']}"


def modules(stage: str, packages: Sequence[str], scale: Scale, figures: dict[str, Any]) -> str:
    """All that a stage imports, also within functions, can be imported; ``packages`` may lack: then it is not run."""
    require(*packages)
    source = Path(__file__).with_name(f"{stage}.py").read_text(encoding="utf-8")
    nodes = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ImportFrom))
    names = {str(node.module) for node in nodes}
    for name in names:
        importlib.import_module(name)
    from filelock import lock_descriptor  # noqa: F401 (by the engine, at the first file that it writes)

    return f"{len(names)} modules"


def versions(scale: Scale, figures: dict[str, Any]) -> str:
    """Versions of what is imported by now: they are within pyproject's bounds, and perhaps not as pinned."""
    from packaging.requirements import Requirement

    used = {name.partition(".")[0] for name in sys.modules}
    given = {one for name, ones in packages_distributions().items() if name in used for one in ones}
    pins = dict(re.findall(r"^([\w.-]+)==(\S+)", PINS.read_text(encoding="utf-8"), re.MULTILINE))
    figures |= {name: version(name) for name in sorted(given & pins.keys())}
    differ = (
        f"{name} {found} (pinned {pins[name]})"
        for name, found in figures.items()
        if found.split("+")[0] != pins[name]
    )
    about = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    asked = map(Requirement, chain(about["dependencies"], *about["optional-dependencies"].values()))
    unfit = {
        f"{one.name} {figures[one.name]}, not {one.specifier}"
        for one in asked
        if one.name in figures and not one.specifier.contains(figures[one.name], prereleases=True)
    }
    assert not unfit, "; ".join(sorted(unfit))
    return f"within pyproject's bounds; not as pinned: {', '.join(differ) or 'none'}"


def products(scale: Scale, figures: dict[str, Any]) -> str:
    """TFLOP/s of products of square matrices by precision, of random numbers, which take more power than zeros."""
    import torch

    from tests.gpu_first import models

    size, where = scale.product, models.here()
    for name in ("float32", "tf32", "bfloat16", "float16"):
        dtype = torch.float32 if name == "tf32" else getattr(torch, name)
        one, other = (torch.randn(size, size, device=where).to(dtype) for _ in range(2))
        with models.tf32(name == "tf32"):
            for turns in (3, 10):
                models.synchronize()
                start = time.perf_counter()
                for _ in range(turns):
                    one @ other
                models.synchronize()
        seconds = (time.perf_counter() - start) / turns
        figures[name] = round(2 * size**3 / seconds / 1e12, 3)
    return ", ".join(f"{name} {rate} TFLOP/s" for name, rate in figures.items())


# By the modules of later stages, but vLLM's: packages that may lack here.
LATER: dict[str, tuple[str, ...]] = {
    "real": (),
    "table2": (),
    "search": (),
    "bare": (),
    "actors": ("ray",),
}
CHECKS: dict[str, Check] = {
    "machine": machine,
    "GPU": gpu,
    **{OF.format(name): partial(modules, name, lacks) for name, lacks in LATER.items()},
    "versions": versions,
    "matrix products": products,
}
