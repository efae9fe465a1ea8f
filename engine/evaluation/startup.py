"""Start an evaluation of files: read those that fit, cut larger ones into shards.

Ray starts, the readers are checked, and the pool's first nodes are asked for while inputs are cut.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import ExitStack
from functools import partial

from engine.evaluation.inputs import InputFiles
from engine.evaluation.partition import PAIRS_PER_SHARD, Partition, Progress, partition
from engine.evaluation.settings import Settings
from engine.machine.pool import PoolSettings, first_nodes_asked_for
from engine.sources.io.folders import Folder
from engine.sources.runs.size import lists_at_least

# Inputs that are cut already, or are refused at once, need no Ray.
_PATIENCE = 1.0
# Listed passages from which on an evaluation is large: half a gigabyte of prompts, and a minute to make them.
LARGE = 200_000


def shard_pairs(files: InputFiles, settings: Settings) -> int:
    """Listed passages of a shard, for an evaluation that is too large to be held; else 0."""
    wanted = settings.running.shard_pairs
    if wanted is not None:
        return wanted
    return PAIRS_PER_SHARD if lists_at_least(files.run, LARGE, k=settings.ranking.k) else 0


def partition_beside_ray(
    files: InputFiles,
    folder: Folder,
    pool: PoolSettings,
    *,
    k: int,
    pairs_per_shard: int = PAIRS_PER_SHARD,
    on_progress: Progress = lambda what, done: None,
    check: Callable[[], None] = lambda: None,
) -> Partition:
    """As ``partition.partition``; Ray, where the reads are done on it, starts in the meantime.

    Args:
        on_progress: called by a thread of its own.
        check: looks at what needs no inputs, Ray having started: its error need not wait for the end of
            cutting, which takes minutes where runs are long. Not called where inputs are cut at once.

    Raises:
        InputError, WriteError: as ``partition.partition``.
        InputError, ReadError: as ``cluster.start_ray``, and as ``check``.
    """
    cut = partial(partition, files, folder, k=k, pairs_per_shard=pairs_per_shard)
    if pool.in_process:
        check()
        return cut(on_progress=on_progress)

    with ExitStack() as asked:

        def start() -> None:
            from engine.machine import cluster

            cluster.start_ray()
            check()
            asked.enter_context(first_nodes_asked_for(pool))

        return _beside(cut, on_progress, start)


class _Stopped(BaseException):
    """What cuts has to end, since what it is for has ended."""


def _beside(
    cut: Callable[..., Partition], on_progress: Progress, start: Callable[[], None]
) -> Partition:
    """Cut in a thread, and start in this one, which Ray's handling of signals needs."""
    cutting: Future[Partition] = Future()
    stopped = threading.Event()

    def on_cut(what: str, done: int) -> None:
        if stopped.is_set():
            raise _Stopped
        on_progress(what, done)

    def run() -> None:
        try:
            cutting.set_result(cut(on_progress=on_cut))
        except BaseException as error:
            cutting.set_exception(error)

    # Not waited for where a process ends before it does.
    thread = threading.Thread(target=run, name="cutting into shards", daemon=True)
    thread.start()
    try:
        try:
            return cutting.result(timeout=_PATIENCE)
        except TimeoutError:
            start()
        return cutting.result()
    except BaseException:
        # It removes its temporary files.
        stopped.set()
        thread.join(timeout=10)
        raise
