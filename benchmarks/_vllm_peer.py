"""Reads on vLLM's own API, timed in an interpreter that has vLLM; a peer of ``benchmarks.peers``.

    PYTHON_WITH_VLLM -m benchmarks._vllm_peer IN.json OUT.json

Written as by an expert of vLLM: prefix caching in blocks that are smaller than the shared
prefix, compiled if there is a C++ compiler, every thread bound to a CPU. Nothing of the engine is
imported.

IN: ``model`` (a directory) and ``prompts``; further ``dtype`` (bfloat16), ``threads`` (2),
``max_tokens`` (16), ``stop`` (["\\n"]), ``rounds`` (2), ``cache_bytes`` (2 GiB, on a CPU), ``compile``
(true), ``block_size`` (32 on a CPU).
OUT: ``outputs`` of the last round; ``seconds`` of each round, the prefix cache emptied before it; ``processor_seconds`` of
each, of all processes together;
``load_seconds``, compiling and a warm-up of eight prompts included; ``prompt_tokens``,
``cached_tokens``, ``output_tokens`` of the last round; ``memory``, the bytes by which all processes together
rise above their memory with the model loaded, null if that cannot be measured; ``vllm`` and ``torch``
versions, ``compiled``.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from pathlib import Path
from typing import Any

_WARM_UP = 8


def measure(settings: dict[str, Any]) -> dict[str, Any]:
    """Time every prompt in one call, for the given rounds."""
    threads = int(settings.get("threads", 2))
    os.environ |= {
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_DO_NOT_TRACK": "1",
        "VLLM_LOGGING_LEVEL": "ERROR",
        # else the scheduler gets a CPU of its own, and needs little time
        "VLLM_CPU_OMP_THREADS_BIND": f"0-{threads - 1}",
        # Threads that spin while they wait take the CPU from others on a shared machine.
        "OMP_WAIT_POLICY": "PASSIVE",
    }
    import torch
    import vllm

    start = time.perf_counter()
    compiled = bool(settings.get("compile", True)) and bool(shutil.which("g++"))
    options: dict[str, Any] = {}
    if not torch.cuda.is_available():
        options = {
            "kv_cache_memory_bytes": int(settings.get("cache_bytes", 2**31)),
            "block_size": int(settings.get("block_size", 32)),
            "enforce_eager": not compiled,
        }
    llm = vllm.LLM(
        model=settings["model"],
        dtype=settings.get("dtype", "bfloat16"),
        enable_prefix_caching=True,
        **options,
    )
    sampling = vllm.SamplingParams(
        temperature=0,
        max_tokens=int(settings.get("max_tokens", 16)),
        stop=settings.get("stop", ["\n"]),
    )
    prompts = settings["prompts"]
    resident = _resident()
    llm.generate(prompts[:_WARM_UP], sampling, use_tqdm=False)
    loaded = time.perf_counter() - start
    seconds: list[float] = []
    processor: list[float] = []
    results: list[Any] = []
    for _ in range(int(settings.get("rounds", 2))):
        llm.reset_prefix_cache()
        start, used = time.perf_counter(), _processor_seconds()
        results = llm.generate(prompts, sampling, use_tqdm=False)
        seconds.append(time.perf_counter() - start)
        processor.append(_processor_seconds() - used)
    rise = _rise(resident)
    return {
        "memory": None if torch.cuda.is_available() else rise,
        "outputs": [result.outputs[0].text.strip() for result in results],
        "seconds": seconds,
        "processor_seconds": processor,
        "load_seconds": loaded,
        "prompt_tokens": sum(len(result.prompt_token_ids) for result in results),
        "cached_tokens": sum(result.num_cached_tokens or 0 for result in results),
        "output_tokens": sum(len(result.outputs[0].token_ids) for result in results),
        "vllm": vllm.__version__,
        "torch": torch.__version__,
        "compiled": compiled or torch.cuda.is_available(),
    }


def _resident() -> dict[int, int]:
    """Resident bytes of this process and its descendants, whose peaks are reset; empty if unknown."""
    sizes: dict[int, int] = {}
    try:
        for process in _with_children(os.getpid()):
            Path(f"/proc/{process}/clear_refs").write_text("5", encoding="ascii")
            sizes[process] = _status_bytes(process, "VmRSS")
    except OSError:
        return {}
    return sizes


def _with_children(process: int) -> list[int]:
    lists = Path(f"/proc/{process}/task").glob("*/children")
    children = [int(one) for listed in lists for one in listed.read_text("ascii").split()]
    return [process, *(one for child in children for one in _with_children(child))]


def _processor_seconds() -> float:
    """CPU time of this process and its descendants so far; 0 if unknown."""
    try:
        stats = [
            Path(f"/proc/{process}/stat").read_text() for process in _with_children(os.getpid())
        ]
    except OSError:
        return 0.0
    ticks = [sum(map(int, stat.rpartition(")")[2].split()[11:13])) for stat in stats]
    return sum(ticks) / os.sysconf("SC_CLK_TCK")


def _status_bytes(process: int, name: str) -> int:
    status = Path(f"/proc/{process}/status").read_text(encoding="utf-8", errors="replace")
    return int(status.split(f"{name}:")[1].split()[0]) * 1024


def _rise(resident: dict[int, int]) -> int | None:
    """Peak rise in bytes of these processes since then; None if unknown."""
    try:
        peaks = {process: _status_bytes(process, "VmHWM") for process in resident}
    except OSError:  # a process has ended
        return None
    # The kernel counts some pages late, so a peak may appear lower than its start.
    rises = [max(0, peaks[process] - size) for process, size in resident.items()]
    return sum(rises) if rises else None


def main() -> None:
    source, target = map(Path, sys.argv[1:])
    settings = json.loads(source.read_text(encoding="utf-8"))
    target.write_text(json.dumps(measure(settings)) + "\n", encoding="utf-8")


if __name__ == "__main__":  # vLLM starts processes that import this module again
    main()
