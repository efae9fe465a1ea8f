"""Cut reads into batches that fit a memory budget, and halve batches that do not fit after all."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")
# Work that may be paused and resumed between its forward passes.
Passes = Generator[None, None, Result]

# Answers of a batch are generated together, and a step costs about as much for one as for many. A unit of work is as
# large, some ten seconds of a core's.
CPU_BATCH_TOKENS = 16384
GPU_BATCH_TOKENS = 65536
# Stands for no limit on tokens or reads.
UNBOUNDED = 2**62
# Calls of a reader, of some seconds each, before it tries larger batches: after the first failure, and at most.
_PATIENCE = 2
_MOST_PATIENCE = 64
# Words that identify a lack of memory in a failed read's reason.
OUT_OF_MEMORY = "out of memory"
MORE_MEMORY = "give it more `memory`"
# The parameter of glibc's mallopt, and bytes: by default they grow to 32 MiB with the buffers freed.
_MMAP_THRESHOLD, _KEPT = -3, 2**18


@dataclass(frozen=True)
class MemoryCost:
    """Bytes that ``rows`` reads, padded to ``length`` tokens, take: ``rows * (per_row + per_token * length + per_pair *
    length**2)``. Caches and activations grow with the tokens, masks and unfused attention scores with their square.
    """

    per_row: float
    per_token: float
    per_pair: float

    def of(self, rows: int, length: int) -> float:
        return rows * (self.per_row + self.per_token * length + self.per_pair * length**2)


def cut_batches(
    lengths: Sequence[int], *, cost: MemoryCost, memory: float, max_tokens: int
) -> list[list[int]]:
    """Group positions of ``lengths`` into batches, longest first.

    Sorting keeps padding small, and brings the batch that is hardest on memory to the front, where a failure costs
    least. Each batch holds as many reads as fit both ``memory`` (bytes) and ``max_tokens`` (padded), and at least one.
    """
    order = sorted(range(len(lengths)), key=lambda i: (-lengths[i], i))
    batches: list[list[int]] = []
    start = 0
    while start < len(order):
        longest = max(1, lengths[order[start]])
        by_memory = int(memory // max(1.0, cost.of(1, longest)))
        rows = max(1, min(by_memory, max_tokens // longest))
        batches.append(order[start : start + rows])
        start += rows
    return batches


def halving(
    batch: Sequence[Item],
    passes: Callable[[Sequence[Item]], Passes[Sequence[Result]]],
    on_single_failure: Callable[[Item, str], Result],
    on_halving: Callable[[], None],
) -> Passes[list[Result]]:
    """Run ``passes`` over ``batch``, pass by pass; where memory runs out, halve and go on. An item that does not fit
    even alone gives ``on_single_failure(item, reason)``; other errors are passed on. Results keep the order of
    ``batch``.
    """
    try:
        return list((yield from passes(batch)))
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        failure = str(error).split("\n")[0] or type(error).__name__
    # Outside the except block: the traceback would keep the failed batch's tensors alive.
    free_cached_memory()
    if len(batch) == 1:
        return [on_single_failure(batch[0], f"{OUT_OF_MEMORY} ({failure})")]
    on_halving()
    results: list[Result] = []
    half = len(batch) // 2
    for part in (batch[:half], batch[half:]):
        results += yield from halving(part, passes, on_single_failure, on_halving)
    return results


def run_halving(
    batch: Sequence[Item],
    forward: Callable[[Sequence[Item]], Sequence[Result]],
    on_single_failure: Callable[[Item, str], Result],
    on_halving: Callable[[], None],
) -> list[Result]:
    """``halving`` for a batch that runs in one pass."""

    def passes(part: Sequence[Item]) -> Passes[Sequence[Result]]:
        yield
        return forward(part)

    run = halving(batch, passes, on_single_failure, on_halving)
    while True:
        try:
            next(run)
        except StopIteration as end:
            return list(end.value)


class Allowance:
    """The memory that batches may use: halved where it ran out, and doubled again when all went well.

    Memory that ran out once may be free later: another process took it, or the reads were unusual. Each further failure
    doubles the number of calls without one that it takes, so that a budget that is too small is hardly tried again.
    """

    def __init__(self, whole: float) -> None:
        self.bytes = whole
        self._whole = whole
        self._patience = _PATIENCE
        self._calm = 0

    def ran_out(self, *, least: float = 0.0) -> None:
        """Memory ran out: halve, but not below ``least`` bytes."""
        self.bytes = max(self.bytes / 2, min(least, self._whole))
        self._patience = min(2 * self._patience, _MOST_PATIENCE)
        self._calm = 0

    def went_well(self) -> bool:
        """A call ended without a failure; whether the allowance has grown by that."""
        if self.bytes >= self._whole:
            return False
        self._calm += 1
        if self._calm < self._patience:
            return False
        self._calm = 0
        self.bytes = min(2 * self.bytes, self._whole)
        return True


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error means that the device or the process ran out of memory."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    # The errors of the CPU allocator have no class of their own.
    text = str(error).lower()
    return isinstance(error, RuntimeError) and (
        "can't allocate memory" in text or "out of memory" in text
    )


def lacked_memory(reason: str) -> bool:
    """Whether a read that failed for this reason may succeed with more memory."""
    return OUT_OF_MEMORY in reason or MORE_MEMORY in reason


def free_cached_memory() -> None:
    import torch

    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def machine_memory() -> int:
    """Bytes of main memory that this process may use: the machine's, or its control group's limit."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for limit_file in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        with contextlib.suppress(OSError):
            text = Path(limit_file).read_text(encoding="ascii").strip()
            total = min(total, int(text)) if text.isdigit() else total
    return total


def give_back_large_buffers() -> None:
    """From now on, return each freed buffer of 256 KiB or more to the system."""
    with contextlib.suppress(AttributeError):  # another C library
        ctypes.CDLL(None).mallopt(_MMAP_THRESHOLD, _KEPT)
