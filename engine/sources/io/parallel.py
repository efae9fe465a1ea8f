"""Map a function over a stream of items in several processes, in order."""

from __future__ import annotations

import itertools
import multiprocessing
import signal
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import TypeVar

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")

# Seconds of work before processes are started; starting them takes more than a second.
PATIENCE = 5.0


def map_ordered(
    function: Callable[[_Item], _Result],
    items: Iterable[_Item],
    *,
    workers: int,
    patience: float = PATIENCE,
) -> Iterator[_Result]:
    """Yield ``function(item)`` for every item, in order, for any number of ``workers``.

    At most three items per worker are in progress at any time. The first seconds of work are
    done in this process, and so is everything if there is one worker.

    Args:
        function: a module-level function, or a partial of one, since it is sent to other processes, as the
            items are.
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
        pending: deque[Future[_Result]] = deque()
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
