"""Map a function over a stream of items, in threads or in processes; results and errors keep the order of the items.

Threads are for functions that spend their time where Python lets other threads run: in Polars, Arrow, numpy, digests
and files.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sized
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from itertools import chain, islice
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
        while item := upcoming.result():
            upcoming = thread.submit(list, islice(source, 1))
            yield item[0]


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
    pool = ThreadPoolExecutor(threads)

    def started() -> Iterator[Future[Made]]:
        try:
            for item in items:
                yield pool.submit(function, item)
        except Exception as error:  # raised after earlier results
            failed: Future[Made] = Future()
            failed.set_exception(error)
            yield failed

    try:
        yield from _in_order(started(), threads)
    finally:
        pool.shutdown(cancel_futures=not to_the_end)


def _in_order(started: Iterable[Future[Made]], most: int) -> Iterator[Made]:
    """Results in the order of their start; beyond the next, at most ``most`` are in progress."""
    waiting: deque[Future[Made]] = deque()
    for future in started:
        waiting.append(future)
        if len(waiting) > most:
            yield waiting.popleft().result()
    while waiting:
        yield waiting.popleft().result()


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

    At most three items per worker are in progress. The first ``patience`` seconds of work, or all with one worker, are
    done here. The function is sent to other processes: it is a module-level one, or a partial. A RuntimeError says that
    a process was killed.
    """
    stream = iter(items)
    start = time.monotonic()
    for item in stream:
        yield function(item)
        if workers > 1 and time.monotonic() - start >= patience:
            break
    # Processes are started only if items remain.
    if not (first := list(islice(stream, 1))):
        return
    # Spawned, since a fork of a process with threads (Polars, Arrow) may hang.
    context = multiprocessing.get_context("spawn")
    # Ctrl-C goes to all processes of a terminal; this one sees to the others.
    ignored = (signal.SIGINT, signal.SIG_IGN)
    pool = ProcessPoolExecutor(workers, context, initializer=signal.signal, initargs=ignored)
    started = (pool.submit(function, item) for item in chain(first, stream))
    try:
        yield from _in_order(started, 3 * workers - 1)
    except BrokenProcessPool:
        problem = "a worker process died, probably for lack of memory; use fewer workers"
        raise RuntimeError(problem) from None
    finally:
        pool.shutdown(cancel_futures=True)
