"""Where a reader runs, and how much memory it may take there."""

from __future__ import annotations

import os
import resource
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from engine.errors import ReadError
from engine.reading.batching import CPU_BATCH_TOKENS, GPU_BATCH_TOKENS, machine_memory
from engine.reading.protocol import Dtype, ReaderSpec

if TYPE_CHECKING:
    import torch

# What a process with torch and transformers holds before any weight.
PROCESS_MEMORY = 512 * 2**20


def machine_has_gpu() -> bool:
    """Whether this machine has an NVIDIA GPU, found without loading torch."""
    return any(Path("/dev").glob("nvidia[0-9]*"))


def best_dtype() -> Dtype:
    """The fastest precision of this machine: bf16 where it has bf16 arithmetic; else fp16 on a GPU
    and fp32 on a CPU.

    On a cluster this is the driver's machine: where it has no GPU and the workers have, say --dtype.
    """
    if machine_has_gpu():
        import torch

        if torch.cuda.is_available():
            fast = torch.cuda.is_bf16_supported(including_emulation=False)
            return "bfloat16" if fast else "float16"
    try:
        flags = Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace")
    except OSError:
        return "float32"
    return "bfloat16" if "avx512_bf16" in flags or "amx_bf16" in flags else "float32"


def least_memory(parameters: int, dtype: Dtype) -> int:
    """Bytes below which a budget cannot work: the weights, and on a CPU the process around them."""
    process = 0 if machine_has_gpu() else PROCESS_MEMORY
    return parameters * (4 if dtype == "float32" else 2) + process


def prepare(spec: ReaderSpec) -> torch.device:
    """Set this process up for a reader (threads, and on CUDA its memory limit); return the device."""
    import torch

    if spec.threads:
        torch.set_num_threads(spec.threads)
    if not torch.cuda.is_available():
        if os.environ.get("CUDA_VISIBLE_DEVICES"):
            raise ReadError(
                f"a GPU was assigned, but torch {torch.__version__} cannot use it; "
                "install a CUDA build of torch"
            )
        return torch.device("cpu")
    if spec.memory:
        total = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, spec.memory / total))
    return torch.device("cuda")


def batch_memory(spec: ReaderSpec, device: torch.device, weights: int) -> float:
    """Bytes left for a batch beside the weights.

    The whole is what the user gave; by default nine tenths of the GPU, or a quarter of the
    machine's memory on a CPU. A process with torch loaded holds about 0.5 GiB before any weight,
    which on a CPU is part of the bound.
    """
    import torch

    if spec.memory:
        total = float(spec.memory)
    elif device.type == "cuda":
        total = 0.9 * torch.cuda.get_device_properties(0).total_memory
    else:
        total = machine_memory() / 4
    base = 0 if device.type == "cuda" else PROCESS_MEMORY
    # A tenth stays free for the allocator's fragmentation.
    return max(0.0, 0.9 * total - base - weights)


def max_batch_tokens(device: torch.device) -> int:
    return GPU_BATCH_TOKENS if device.type == "cuda" else CPU_BATCH_TOKENS


def peak_memory(device: torch.device) -> int:
    """Highest number of bytes in use so far: allocated on the GPU, or resident in main memory."""
    import torch

    if device.type == "cuda":
        return torch.cuda.max_memory_allocated()
    scale = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * scale
