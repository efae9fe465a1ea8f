"""This machine: a model's device and memory budget, the compiler that vLLM needs on a GPU, and the machine's name."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import math
import os
import platform
import re
import resource
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

from engine.machine.batching import CPU_BATCH_TOKENS, GPU_BATCH_TOKENS, machine_memory
from engine.messages.errors import InputError, ReadError
from engine.messages.extras import is_installed, version_of
from engine.messages.wording import listed
from engine.version import __version__

if TYPE_CHECKING:
    import torch

Dtype = Literal["bfloat16", "float16", "float32"]

# Bytes that a process with torch and transformers holds before any weight.
PROCESS_MEMORY = 768 * 2**20
# The part that a process allocates only after loading its model, for a first forward pass.
_SET_UP_LATER = 64 * 2**20


class Share(Protocol):
    """The share of a machine for a model, as specifications of readers and encoders state it."""

    @property
    def threads(self) -> int: ...

    @property
    def memory(self) -> int: ...


# Values of CUDA_VISIBLE_DEVICES that hide GPUs.
_NO_DEVICES = frozenset({"", "-1", "none", "NoDevFiles"})
_PERHAPS_GPU = ("/dev/dxg", "/dev/kfd")


def machine_has_gpu() -> bool:
    """Whether this machine has a usable GPU, without loading torch into this process.

    An NVIDIA GPU shows as a file of its own. Under Windows' Linux and on AMD's GPUs other files indicate that there may
    be one: then torch checks, once and in another process.
    """
    if os.environ.get("CUDA_VISIBLE_DEVICES", "0") in _NO_DEVICES or not _assigned_share():
        return False
    if any(Path("/dev").glob("nvidia[0-9]*")):
        return True
    return any(Path(path).exists() for path in _PERHAPS_GPU) and _torch_has_gpu()


@functools.cache
def _torch_has_gpu() -> bool:
    program = "import sys, torch; sys.exit(not torch.cuda.is_available())"
    command = [sys.executable, "-c", program]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def best_dtype() -> Dtype:
    """The fastest precision of this machine: bf16 if it is fast; else fp16 on a GPU, and fp32 on a CPU."""
    if machine_has_gpu():
        import torch

        if torch.cuda.is_available():
            fast = torch.cuda.is_bf16_supported(including_emulation=False)
            return "bfloat16" if fast else "float16"
    return "bfloat16" if has_fast_bf16() else "float32"


def reads_on_vllm() -> bool:
    """Whether this machine has a usable GPU and vLLM."""
    return machine_has_gpu() and is_installed("vllm")


def has_bf16_arithmetic() -> bool:
    """Whether oneDNN, which multiplies torch's matrices on a CPU, uses bf16 instructions here.

    It does if the processor has them (AVX512-BF16 or AMX, by the flags that Linux lists) and ``ONEDNN_MAX_CPU_ISA``
    does not forbid them by making oneDNN act like an older processor (AVX512_CORE: one without bf16 arithmetic).
    Elsewhere products of bf16 are emulated: slower than fp32, and with sums that can depend on the number of rows.

    Source: oneDNN's guide, "CPU Dispatcher Control", and the kernels that torch 2.13 names with ``ONEDNN_VERBOSE=1``.
    """
    return _onednn_limit() not in _NO_BF16 and not _flags().isdisjoint(_BF16_FLAGS)


def has_fast_bf16() -> bool:
    """Whether bf16 matrix products are faster than fp32 products on this CPU.

    They are on all CPUs with bf16 arithmetic, except Intel processors that have AMX (as all with AVX512-FP16 do) but
    may not use it, for example because a virtual machine hides it: without AMX they multiply bf16 at half the rate of
    fp32. On AMD's AVX512-BF16 the rate is about twice that of fp32.
    """
    if not has_bf16_arithmetic():
        return False
    made_for_amx = "GenuineIntel" in _processor("vendor_id") and "avx512_fp16" in _flags()
    return not made_for_amx or has_amx()


def bf16_rows_are_steady() -> bool:
    """Whether oneDNN gives the same rows of a bf16 product for any number of rows.

    With AVX512-BF16 it does, from two rows on; with AMX some rows round differently: among those of 1,024, the rows of
    33 to 512 by 576 x 576 weights (measured with torch 2.13). ``ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16`` keeps oneDNN, and
    this, from AMX.
    """
    return has_bf16_arithmetic() and not has_amx()


def has_amx() -> bool:
    """Whether oneDNN multiplies with AMX here."""
    return has_bf16_arithmetic() and _AMX in _flags() and _onednn_limit() not in _NO_AMX


def _onednn_limit() -> str:
    # oneDNN reads the older name if the newer one is not set, and ignores case in values.
    return (os.environ.get("ONEDNN_MAX_CPU_ISA") or os.environ.get("DNNL_MAX_CPU_ISA", "")).lower()


# Flags of processors that multiply in bf16.
_AMX = "amx_bf16"
_BF16_FLAGS = frozenset({"avx512_bf16", _AMX})
# Values of ONEDNN_MAX_CPU_ISA that exclude both; an unknown value limits nothing.
_NO_BF16 = {"sse41", "avx", "avx2", "avx2_vnni", "avx2_vnni_2", "avx512_core", "avx512_core_vnni"}
# Values that exclude AMX, but not AVX512-BF16.
_NO_AMX = {"avx512_core_bf16", "avx512_core_fp16", "avx10_1_512", "avx10_2", "avx10_2_512"}


def _flags() -> set[str]:
    return {word for line in _processor("flags") for word in line.split()}


def _processor(name: str) -> list[str]:
    """The values, one a processor, of a name in Linux's /proc/cpuinfo; none on other systems."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return []
    parts = (line.partition(":") for line in lines)
    return [value.strip() for key, _, value in parts if key.strip() == name]


def weight_bytes(parameters: int, dtype: Dtype) -> int:
    """Bytes of a model's weights in a precision."""
    return parameters * (4 if dtype == "float32" else 2)


def least_memory(weights: int, *, gpu: bool, loading: int = 0) -> int:
    """Bytes below which a budget cannot work: the weights and, if these will not be on a GPU (of any machine), the
    process around them and the temporary bytes of ``loading`` (``model_files.loading_bytes``).
    """
    if gpu:
        return weights
    return weights + PROCESS_MEMORY + max(0, loading - _SET_UP_LATER)


def as_budget(least: int) -> str:
    """A budget of at least so many bytes, as users write it: ``1281MiB``."""
    return f"{math.ceil(least / 2**20)}MiB"


def describe(*, gpu: bool) -> str:
    """``cuda`` (a GPU of this machine, or of its cluster) or ``cpu``, and its model if identified, for the record."""
    if gpu:
        import torch

        return f"cuda, {torch.cuda.get_device_name(0)}" if torch.cuda.is_available() else "cuda"
    return ", ".join(filter(None, ["cpu", next(iter(_processor("model name")), "")]))


def gpu_count() -> int:
    """Number of GPUs that this process could use; loads torch only if there may be one."""
    if not machine_has_gpu():
        return 0
    import torch

    return torch.cuda.device_count()


def gpu_names() -> list[str]:
    """The GPUs that torch can use in this process."""
    import torch

    return [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]


def prepare(spec: Share) -> torch.device:
    """Set this process up for a model (threads, and on CUDA its memory limit); return the device."""
    import torch

    if spec.threads:
        torch.set_num_threads(spec.threads)
    # As in statistics.resampling: from then on the C library keeps freed blocks up to this size, with their pages.
    torch.empty(31 * 2**20, dtype=torch.uint8, device="cpu")
    if not _assigned_share():
        return torch.device("cpu")
    if not torch.cuda.is_available():
        if os.environ.get("CUDA_VISIBLE_DEVICES", "") not in _NO_DEVICES:
            raise ReadError(
                f"a GPU was assigned, but torch {torch.__version__} cannot use it; "
                "see whether `nvidia-smi` can, or install a CUDA build of torch"
            )
        return torch.device("cpu")
    torch.cuda.set_per_process_memory_fraction(gpu_share(spec))
    return torch.device("cuda", 0)


def gpu_share(spec: Share, *, spare: int = 0) -> float:
    """The part of the GPU's memory that this process may take, from 0 to 1; it leaves ``spare`` bytes free."""
    import torch

    return min(1.0, _gpu_memory(spec, spare) / torch.cuda.get_device_properties(0).total_memory)


def _gpu_memory(spec: Share, spare: int = 0) -> float:
    """GPU bytes to take: the setting, or by default nine tenths of the assigned part; at most the free memory."""
    import torch

    free, total = torch.cuda.mem_get_info()
    own = torch.cuda.memory_reserved()
    return min(float(spec.memory or 0.9 * _assigned_share() * total), float(free + own - spare))


def _assigned_share() -> float:
    """The part of a GPU that Ray assigned to this process, perhaps 0; 1 outside of Ray's workers."""
    ray = sys.modules.get("ray")
    if ray is None or not ray.is_initialized():
        return 1.0
    context = ray.get_runtime_context()
    if context.worker.mode != ray.WORKER_MODE:  # a driver has no assigned GPU
        return 1.0
    return min(1.0, float(context.get_assigned_resources().get("GPU", 0.0)))


def default_actor_memory(weights: int) -> int:
    """Assumed main memory of an actor, in bytes, unless the user sets it."""
    return int(1.2 * weights) + 2 * 2**30


def batch_memory(spec: Share, device: torch.device, weights: int) -> float:
    """Bytes left for a batch beside the weights.

    The total is the user's budget; by default nine tenths of the GPU, or of its free memory, or a quarter of the
    machine's memory on a CPU. On a CPU the process around the weights counts as well: its resident memory by now, and
    at least the usual size of such a process. Call it after the model's first run, since weights are mapped into memory
    on first use.
    """
    taken = float(weights)
    if device.type == "cuda":
        total = _gpu_memory(spec)
    else:
        # If a model is large for its machine, a quarter would leave no room for a batch.
        total = spec.memory or max(machine_memory() / 4, default_actor_memory(weights))
        taken += PROCESS_MEMORY
        with contextlib.suppress(OSError, AttributeError, ValueError):
            taken = max(taken, _resident())
    # A tenth stays free for the allocator's fragmentation.
    return max(0.0, 0.9 * total - taken)


def max_batch_tokens(device: torch.device) -> int:
    return GPU_BATCH_TOKENS if device.type == "cuda" else CPU_BATCH_TOKENS


def peak_memory(device: torch.device) -> int:
    """Highest number of bytes in use so far: allocated on the GPU, or resident in main memory."""
    import torch

    if device.type == "cuda":
        return max(_peak_before_probes, torch.cuda.max_memory_allocated())
    with contextlib.suppress(OSError, ValueError):
        # getrusage would include the parent process.
        return max(_peak_before_probes, status_bytes("VmHWM"))
    scale = 1 if sys.platform == "darwin" else 1024
    return max(_peak_before_probes, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * scale)


# Tokens of a probe.
_PROBE = 512
# Measuring resets the system's record of the peak.
_peak_before_probes = 0


def token_cost(
    device: torch.device, probe: Callable[[int], None], *, most: int | None = None
) -> tuple[float, float] | None:
    """Bytes of a forward pass beside the weights: a constant, and per token; None if not measurable (``peak_above``).
    Measured by ``probe`` on two batches: of 512 tokens, or the ``most`` that the model can read, and a quarter of that.
    """
    large = min(_PROBE, most or _PROBE)
    small = max(1, large // 4)
    if small == large:
        return None
    probe(small)  # a first pass sets up more than its tokens cost
    below, above = (peak_above(device, functools.partial(probe, size)) for size in (small, large))
    if below is None or above is None:
        return None
    per_token = max(0.0, (above - below) / (large - small))
    return max(0.0, below - per_token * small), per_token


def peak_above(device: torch.device, run: Callable[[], None]) -> int | None:
    """Rise of the memory peak in bytes, on a CPU of resident memory (Linux), during ``run``; None if unknown."""
    import torch

    global _peak_before_probes
    _peak_before_probes = peak_memory(device)
    if device.type == "cuda":
        torch.cuda.empty_cache()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        run()
        return torch.cuda.max_memory_allocated() - before
    try:
        before = _resident()
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    except (OSError, AttributeError, ValueError):
        return None
    run()
    return status_bytes("VmHWM") - before


def _resident() -> int:
    """Bytes of main memory that this process holds, without freed memory, whose reuse no measurement would show."""
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    return status_bytes("VmRSS")


def status_bytes(name: str, file: str = "/proc/self/status") -> int:
    """Bytes under a name in Linux's status of this process, or in ``/proc/meminfo``; elsewhere an OSError."""
    for line in Path(file).read_text(encoding="ascii", errors="replace").split("\n"):
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise ValueError(f"no {name} in {file}")


# Messages after which the process cannot use its GPU: of CUDA and its libraries; and of vLLM's processes, if several
# GPUs hold a model (``vllm/v1/executor/multiproc_executor.py``): one is gone, raised, or does not answer. The others'
# part of the current step is lost.
_FATAL = ("CUDA error", "cuDNN error", "CUBLAS_STATUS", "NCCL error", "device-side assert")
_FATAL_OF_VLLM = ("Executor failed.", "Worker failed with error")
_NO_ANSWER = re.compile(r"RPC call to \w+ timed out")
_FATAL_CLASSES = frozenset({"AcceleratorError", "EngineDeadError", "DistBackendError"})


def is_fatal(error: BaseException) -> bool:
    """Whether the process cannot go on: a CUDA kernel failed, or a library lost its device or its partners."""
    text = str(error)
    if isinstance(error, TimeoutError) and _NO_ANSWER.match(text):
        return True
    is_named = type(error).__name__ in _FATAL_CLASSES
    return is_named or any(words in text for words in _FATAL + _FATAL_OF_VLLM)


# Messages of CUDA's libraries that occur on a working GPU, too.
_NO_MEMORY = re.compile(r"out of memory|allocate memory|ALLOC_FAILED", re.IGNORECASE)


def is_at_fault(error: BaseException) -> bool:
    """Whether a GPU fault, not a lack of memory, kept a model from loading: a fatal error, or failing sums here."""
    torch = sys.modules.get("torch")  # imported by any work on a GPU
    assigned = _assigned_share() and os.environ.get("CUDA_VISIBLE_DEVICES", "") not in _NO_DEVICES
    try:
        # A build without CUDA does not mean that the GPU is faulty.
        built = torch and (torch.version.cuda or torch.version.hip)
        if torch and (torch.cuda.is_available() or (assigned and built)):
            for index in range(max(1, torch.cuda.device_count())):
                torch.ones(2, device=f"cuda:{index}").sum().item()
    except Exception as problem:
        return _NO_MEMORY.search(f"{error} {problem}") is None
    return is_fatal(error) and _NO_MEMORY.search(str(error)) is None


COMPILER_REMEDY = (
    "install gcc, libc6-dev and Python's headers there, or choose `engine` transformers"
)


def lacking_compiler() -> str:
    """Missing parts of a compiler that finds the headers of C and Python; empty if none.

    The search is that of ``triton/runtime/build.py`` in Triton 3.7: CC, else gcc, else clang.
    """
    compiler = os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        return "no C compiler"
    command = [compiler, "-x", "c", "-fsyntax-only", f"-I{sysconfig.get_path('include')}", "-"]
    program = b"#include <Python.h>\n"
    try:
        compiled = subprocess.run(command, input=program, capture_output=True, check=False)
    except OSError:
        return f"no C compiler {compiler}"
    return "no headers of C or Python (Python.h) for its C compiler" if compiled.returncode else ""


def require_compiler() -> None:
    """Refuse, by an InputError, a machine whose GPU could not run vLLM for lack of a C compiler or its headers."""
    if lacks := lacking_compiler():
        problem = f"vLLM cannot start: this machine has {lacks}"
        raise InputError(problem, COMPILER_REMEDY, "machine.compiler")


# Directory in which NVIDIA's driver describes GPUs; readable without torch.
_GPUS = Path("/proc/driver/nvidia/gpus")


@dataclass(frozen=True)
class Machine:
    """A machine, as its users would recognize it.

    Attributes:
        processor: the processor's model, or its architecture if the model is unknown.
        cpus: number of its CPUs that this process may use.
        gpus: the models of its NVIDIA GPUs; empty if they are hidden from this process.
    """

    host: str
    processor: str
    cpus: int
    gpus: tuple[str, ...]


def this_machine() -> Machine:
    """The machine that this process runs on; on a cluster, actors may run on others."""
    model = next(iter(_processor("model name")), "") or platform.machine()
    # In a container, a process may be limited to fewer processors.
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return Machine(platform.node(), model, cpus or 1, _gpu_models() if machine_has_gpu() else ())


def versions(*packages: str) -> dict[str, str]:
    """Versions of the engine and of the installed ``packages``, without build suffixes (``+cpu``)."""
    installed = {name: version for name in packages if (version := version_of(name))}
    short = {name: version.partition("+")[0] for name, version in installed.items()}
    return {"erag-engine": __version__} | short


def refuse_other_versions(driver: Mapping[str, str], here: Mapping[str, str], where: str) -> None:
    """Refuse, with an InputError, to work for a driver that has other versions."""
    if other := [name for name in driver if here.get(name) != driver[name]]:
        has = listed([f"{name} {here.get(name, '(none)')}" for name in other])
        problem = f"{where} has {has}, the driver {listed([driver[name] for name in other])}"
        remedy = "start all nodes with the driver's versions, as from one image"
        raise InputError(problem, remedy, "machine.versions")


def _gpu_models() -> tuple[str, ...]:
    texts = (path.read_text(errors="replace") for path in sorted(_GPUS.glob("*/information")))
    lines = (line.partition(":") for text in texts for line in text.splitlines())
    return tuple(value.strip() for name, _, value in lines if name == "Model")
