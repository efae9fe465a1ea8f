"""One function over a stream of items, in processes, with the results in the order of the items."""

from __future__ import annotations

import itertools
import multiprocessing
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import TypeVar

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")

# Items of a source for which it does not pay to start processes (half a second each).
_FEW = 8


def usable_cpus() -> int:
    """CPUs that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def map_ordered(
    function: Callable[[_Item], _Result], items: Iterable[_Item], *, workers: int
) -> Iterator[_Result]:
    """Yield ``function(item)`` for every item, in order, whatever ``workers`` is.

    At most three items per worker are on their way at any time. Fewer than eight items, and all items
    of one worker, are done in this process.

    Args:
        function: a function of a module, or a partial of one: it goes to other processes.
        items: what can be pickled; taken one by one.
        workers: processes.

    Raises:
        RuntimeError: a process was killed; otherwise whatever ``function`` raises.
    """
    stream = iter(items)
    first = list(itertools.islice(stream, _FEW)) if workers > 1 else []
    if len(first) < _FEW:
        yield from map(function, itertools.chain(first, stream))
        return
    # Spawned: a fork of a process with threads (Polars, Arrow) may never end.
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(workers, mp_context=context)
    try:
        waiting: deque[Future[_Result]] = deque()
        for item in itertools.chain(first, stream):
            waiting.append(pool.submit(function, item))
            if len(waiting) >= 3 * workers:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    except BrokenProcessPool:
        raise RuntimeError(
            "a worker process ended suddenly, probably for lack of memory; use fewer workers"
        ) from None
    finally:
        pool.shutdown(cancel_futures=True)
