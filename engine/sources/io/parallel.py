"""One function over a stream of items, in processes, with the results in the order of the items."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import TypeVar

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")

# Seconds of work before processes are started, which takes more than a second.
_PATIENCE = 5.0


def usable_cpus() -> int:
    """CPUs that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def map_ordered(
    function: Callable[[_Item], _Result], items: Iterable[_Item], *, workers: int
) -> Iterator[_Result]:
    """Yield ``function(item)`` for every item, in order, whatever ``workers`` is.

    At most three items per worker are on their way at any time. The first five seconds of work, and all
    the work of one worker, are done in this process.

    Args:
        function: a function of a module, or a partial of one: it goes to other processes.
        items: what can be pickled; taken one by one.
        workers: processes.

    Raises:
        RuntimeError: a process was killed; otherwise whatever ``function`` raises.
    """
    stream = iter(items)
    start = time.monotonic()
    for item in stream:
        yield function(item)
        if workers > 1 and time.monotonic() - start >= _PATIENCE:
            break
    # Whether anything is left, before anything is started for it.
    first = list(itertools.islice(stream, 1))
    if not first:
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
