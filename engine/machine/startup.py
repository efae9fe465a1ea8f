"""Start Ray, and ask for the pool's first nodes, beside work that needs neither."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import ExitStack
from typing import TypeVar

from engine.machine.pool import PoolSettings, first_nodes_asked_for

Made = TypeVar("Made")
# Work that is done already, or is refused at once, needs no Ray.
_PATIENCE = 1.0


def beside_ray(
    work: Callable[..., Made],
    pool: PoolSettings,
    *,
    on_progress: Callable[[str, int], None] = lambda what, done: None,
    check: Callable[[], None] = lambda: None,
) -> Made:
    """Do some work, which reports to its argument ``on_progress``; Ray, if the pool needs it, starts in the meantime.

    Args:
        on_progress: called by a thread of its own.
        check: looks at what needs no work, Ray having started: its error need not wait for the end of the work, which
            takes minutes where runs are cut into shards. Not called where the work is done at once.

    Raises:
        InputError, ReadError: as the work, ``cluster.start_ray``, and ``check``.
    """
    if pool.in_process:
        check()
        return work(on_progress=on_progress)

    with ExitStack() as asked:

        def start() -> None:
            from engine.machine import cluster

            cluster.start_ray()
            check()
            asked.enter_context(first_nodes_asked_for(pool))

        return _beside(work, on_progress, start)


class _Stopped(BaseException):
    """Ends work whose purpose has ended."""


def _beside(
    work: Callable[..., Made], on_progress: Callable[[str, int], None], start: Callable[[], None]
) -> Made:
    """Work in a thread, and start in this one, which Ray's handling of signals needs."""
    working: Future[Made] = Future()
    stopped = threading.Event()

    def on_work(what: str, done: int) -> None:
        if stopped.is_set():
            raise _Stopped
        on_progress(what, done)

    def run() -> None:
        try:
            working.set_result(work(on_progress=on_work))
        except BaseException as error:
            working.set_exception(error)

    # Not waited for where a process ends before it does.
    thread = threading.Thread(target=run, name="work beside Ray", daemon=True)
    thread.start()
    try:
        try:
            return working.result(timeout=_PATIENCE)
        except TimeoutError:
            start()
        return working.result()
    except BaseException:
        # It removes its temporary files.
        stopped.set()
        thread.join(timeout=10)
        raise
