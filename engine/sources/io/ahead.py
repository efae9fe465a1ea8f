"""Work ahead on one item after another in threads; results and errors keep the order of the items.

For functions that spend their time where Python lets other threads run: in Polars, Arrow, numpy, digests
and files.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sized
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from typing import TypeVar

Item = TypeVar("Item")
Made = TypeVar("Made")

# Threads at most: each holds what it works on, and Polars has threads of its own.
_MOST = 4


def ahead(items: Iterable[Item]) -> Generator[Item]:
    """Yield items, the next of which is made in a thread while the caller works on one."""
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
    """Yield what a function makes of each item, some items at a time.

    As many are under way as there are threads, up to four, and one more; ``to_the_end`` has one thread, which
    works on every item that was taken, whatever ends the caller's loop. What ``items`` or ``function`` raises
    is raised in its place in the order, as if all were done one after another; items behind it may have been
    begun. One item alone is worked on in the thread of the caller.
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
                except Exception as error:  # after what was made before it
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
