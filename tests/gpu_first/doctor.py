"""Stage 0: what the machine has, and which versions differ from those that are pinned."""

from __future__ import annotations

import contextlib
import os
import platform
import re
import shutil
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from engine.machine import compiler, device
from tests.gpu_first.checks import Check, NotRun
from tests.gpu_first.scale import GIB, Scale

PINS = Path(__file__).parents[2] / "docs" / "cluster" / "constraints-gpu.txt"
_PACKAGES = (
    *("torch", "triton", "transformers", "tokenizers", "accelerate", "numpy", "polars", "pyarrow"),
    *("ray", "faiss-gpu", "vllm", "cuda-bindings", "nvidia-ml-py"),
)


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
        "compiler": compiler.lacking() or "found",
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


def versions(scale: Scale, figures: dict[str, Any]) -> str:
    """What is installed, and what of it is not as pinned: no fault by itself, but the first thing to know."""
    pins = dict(re.findall(r"^([\w.-]+)==(\S+)", PINS.read_text(encoding="utf-8"), re.MULTILINE))
    differ: list[str] = []
    absent: list[str] = []
    for package in _PACKAGES:
        try:
            figures[package] = version(package)
        except PackageNotFoundError:
            absent.append(package)
            continue
        if package in pins and figures[package].split("+")[0] != pins[package]:
            differ.append(f"{package} {figures[package]} (pinned {pins[package]})")
    return f"not as pinned: {', '.join(differ) or 'none'}; not installed: {', '.join(absent) or 'none'}"


CHECKS: dict[str, Check] = {"machine": machine, "GPU": gpu, "versions": versions}
