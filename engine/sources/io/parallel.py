"""Map a function over a stream of items, in threads or in processes; results and errors keep the order of the items.

Threads are for functions that spend their time where Python lets other threads run: in Polars, Arrow, numpy, digests
and files.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import signal
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sized
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from itertools import islice
from typing import TypeVar

Item = TypeVar("Item")
Made = TypeVar("Made")

# Maximum of threads: each holds its item, and Polars has threads of its own.
_MOST = 4


def ahead(items: Iterable[Item]) -> Generator[Item]:
    """Yield items; a thread makes the next while the caller works on the current."""
    source = iter(items)
    with ThreadPoolExecutor(1) as thread:
        # The next item alone, or nothing at the end: in a thread, ``StopIteration`` would be an error.
        upcoming = thread.submit(list, islice(source, 1))
        while found := upcoming.result():
            upcoming = thread.submit(list, islice(source, 1))
            yield found[0]


def mapped(
    function: Callable[[Item], Made], items: Iterable[Item], *, to_the_end: bool = False
) -> Generator[Made]:
    """Yield the function's result for every item, computing several at a time.

    As many items are in progress as threads, up to four, plus one; ``to_the_end`` has a single thread, which finishes
    every item that it took, whatever ends the caller's loop. Errors of ``items`` or ``function`` are raised in their
    place in the order, as if all ran one after another; later items may have started. A sole item runs in the caller's
    thread.
    """
    if isinstance(items, Sized) and len(items) == 1:
        yield from map(function, items)
        return
    threads = 1 if to_the_end else min(_MOST, len(os.sched_getaffinity(0)))
    waiting: deque[Future[Made]] = deque()
    fault: BaseException | None = None
    source = iter(items)
    with ThreadPoolExecutor(threads) as pool:
        try:
            while True:
                try:
                    found = list(islice(source, 1))
                except Exception as error:  # after earlier results
                    fault, found = error, []
                if not found:
                    break
                waiting.append(pool.submit(function, found[0]))
                if len(waiting) > threads:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for one in () if to_the_end else waiting:
                one.cancel()
    if fault is not None:
        raise fault


# Seconds of work before processes are started; starting them takes more than a second.
PATIENCE = 5.0


def map_ordered(
    function: Callable[[Item], Made],
    items: Iterable[Item],
    *,
    workers: int,
    patience: float = PATIENCE,
) -> Iterator[Made]:
    """Yield ``function(item)`` for every item, in order, for any number of ``workers``.

    At most three items per worker are in progress. The first seconds of work, or all with one worker, are done here.

    Args:
        function: a module-level function, or a partial: it is sent to other processes, as items are.
        patience: seconds of work before processes are started.

    Raises:
        RuntimeError: a process was killed; otherwise whatever ``function`` raises.
    """
    stream = iter(items)
    start = time.monotonic()
    for item in stream:
        yield function(item)
        if workers > 1 and time.monotonic() - start >= patience:
            break
    # Processes are started only if items remain.
    first = list(itertools.islice(stream, 1))
    if not first:
        return
    # Spawned, since a fork of a process with threads (Polars, Arrow) may hang.
    context = multiprocessing.get_context("spawn")
    # Ctrl-C goes to all processes of a terminal; this one sees to the others.
    pool = ProcessPoolExecutor(
        workers,
        mp_context=context,
        initializer=signal.signal,
        initargs=(signal.SIGINT, signal.SIG_IGN),
    )
    try:
        pending: deque[Future[Made]] = deque()
        for item in itertools.chain(first, stream):
            pending.append(pool.submit(function, item))
            if len(pending) >= 3 * workers:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    except BrokenProcessPool:
        raise RuntimeError(
            "a worker process died, probably for lack of memory; use fewer workers"
        ) from None
    finally:
        pool.shutdown(cancel_futures=True)
