"""Decide pools of actors on Ray: their number, their needs, and whether the cluster can ever host them.

A pool is decided once, from existing nodes and nodes that an autoscaler may add. Ray Data then starts actors as nodes
join, ends them as nodes leave, and replaces dead ones. Ray's start, and the request for the pool's first nodes, overlap
with other work.
"""

# Annotations are no strings here: the command line looks up a base class's annotations in its subclasses' modules.

import contextlib
import logging
import math
import os
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from engine.machine import nodes
from engine.machine.batching import give_back_large_buffers, machine_memory
from engine.machine.nodes import Needs, Node
from engine.messages.checked import Amount, CheckedSettings, Range
from engine.messages.errors import InputError
from engine.messages.extras import missing, require

if TYPE_CHECKING:
    import ray.data

# A number, MIN:MAX, or None for as many as the cluster has room for; 0 stands for no actors at all.
Actors = int | str | None

# Seconds without any progress after which a job on Ray is aborted. On a single machine only a fault can be the cause; a
# cluster may have to find nodes first, which at busy hours takes long.
_PATIENCE, _PATIENCE_ON_A_CLUSTER = 1800.0, 6 * 3600.0
# Assumed growth of a pool without a bound, for cutting units.
_GROWTH = 4
# Name of InputError in a traceback.
_INPUT_ERROR = f"{InputError.__module__}.{InputError.__qualname__}: "


@dataclass(frozen=True, kw_only=True)
class PoolSettings(CheckedSettings):
    """The user's settings of a job's actors.

    Attributes:
        actors: Processes on Ray that do the work: a number, or MIN:MAX for as many as the cluster has room for; 0 does
            it in this process. By default as many as there is room for.
        gpus_per_actor: GPUs of each actor: a fraction, so that several share one; 1; or for a reader on vLLM a number
            over which it is split, all on one node. 0 for CPUs only. By default 1 if the cluster has GPUs.
        cpus_per_actor: CPUs of each actor. By default an even share where there are no GPUs.
        accelerator_type: Kind of GPU, as Ray calls it (L4, H100); only nodes that have it work.

    Raises:
        InputError: a value out of range.
    """

    actors: Actors = None
    gpus_per_actor: Amount | None = None
    cpus_per_actor: Annotated[float, Range(0, is_open=True)] | None = None
    accelerator_type: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self.bounds()
        gpus = self.gpus_per_actor
        if gpus is not None and gpus > 1 and gpus % 1:
            problem = f"`gpus_per_actor` is {gpus:g}"
            raise InputError(problem, "use a fraction up to 1, or a whole number", "cluster.gpus")
        if self.accelerator_type is not None and gpus == 0:
            problem = "`accelerator_type` with `gpus_per_actor` 0"
            raise InputError(problem, "leave one of them out", "cluster.accelerator")

    def bounds(self) -> tuple[int, int | None]:
        """The least and the most actors; (1, None) if the cluster decides, (0, 0) for none."""
        if self.actors is None:
            return 1, None
        parts = re.fullmatch(r"(\d{1,9})(?::(\d{1,9}))?", str(self.actors).strip(), re.ASCII)
        if parts is None:
            remedy = "use a number, 0 or more, or a range like 1:8"
            raise InputError(f"`actors` is {self.actors}", remedy, "cluster.actors")
        least, most = int(parts[1]), int(parts[2] or parts[1])
        if parts[2] is not None and not 1 <= least <= most:
            remedy = "use a range like 1:8, from 1 on"
            raise InputError(f"`actors` is {self.actors}", remedy, "cluster.actors")
        return least, most

    @property
    def in_process(self) -> bool:
        """Whether this process does the work: by request, or without Ray; an InputError if settings want Ray."""
        if self.bounds() == (0, 0):
            return True
        if self != PoolSettings() or os.environ.get("RAY_ADDRESS"):
            require("work on actors", "ray")
        return bool(missing("ray"))

    def pool(self) -> "PoolSettings":
        """The settings of actors among a job's settings."""
        names = [field.name for field in fields(PoolSettings)]
        return PoolSettings(**{name: getattr(self, name) for name in names})


def require_gpus_used(settings: PoolSettings, reader: str, gpus: int) -> None:
    """Refuse actors with more GPUs than a reader would use."""
    if (settings.gpus_per_actor or 0) > max(1, gpus):
        actors = f"`gpus_per_actor` is {settings.gpus_per_actor:g}"
        problem = f"{actors}, and reader {reader!r} runs on {gpus} of them"
        remedy = "use `engine` vllm for decoder-only readers larger than a GPU, or 1 or a fraction"
        raise InputError(problem, remedy, "cluster.idle")


@dataclass(frozen=True)
class Pool:
    """Actors of a job: the least and the most (None: any number) at a time, how many start, their needs."""

    least: int
    most: int | None
    start: int
    needs: Needs

    @property
    def foreseen(self) -> int:
        """Number of actors for cutting work: the pool's maximum, or some growth if unbounded."""
        return self.most or _GROWTH * self.start

    def at_most(self, tasks: int) -> "Pool":
        """The same pool, cut to a job's number of tasks."""
        tasks = max(1, tasks)
        most = tasks if self.most is None else min(self.most, tasks)
        return Pool(min(self.least, tasks), most, min(self.start, tasks), self.needs)


def decide(settings: PoolSettings, actor_bytes: int, *, budget: int = 0) -> Pool:
    """The pool for actors that take so much main memory while they load; Ray must have been started. ``budget`` is the
    user's limit on main memory of an actor without a GPU, if any. An InputError if the cluster can never host such an
    actor, or so many.
    """
    from engine.machine import cluster

    alive, promised = nodes.alive(), nodes.promised()
    known, joined = [*alive, *(promised or [])], cluster.is_joined()
    gpus, kind = settings.gpus_per_actor, settings.accelerator_type
    if gpus is None:
        gpus = float(kind is not None or any(node.gpus for node in known))
    cpus = settings.cpus_per_actor or (_cpus_beside(gpus, kind, known) if gpus else 1.0)
    if not joined and not gpus and settings.cpus_per_actor is None:
        cpus = 0.0  # any number of actors shares the machine's CPUs
    needs = Needs(cpus, gpus, 0, kind)
    _refuse_impossible(needs, alive, promised)
    if joined:
        memory = _memory(actor_bytes if gpus else budget or actor_bytes, needs, known)
        needs = replace(needs, memory=memory)
    room = _room(needs, alive, budget or actor_bytes)
    least, most = settings.bounds()
    _refuse_more_than_ever(least, needs, settings, alive, promised)
    if settings.actors is None:
        pool = Pool(1, None, room, needs) if joined else Pool(room, room, room, needs)
    elif ":" in str(settings.actors):
        pool = Pool(least, most, max(least, min(room, most or room)), needs)
    else:
        _refuse_too_many(least, room, needs, settings, promised)
        pool = Pool(least, least, least, needs)
    if gpus or settings.cpus_per_actor is not None:
        return pool
    # The share is 0 until a node offers CPUs, and an actor without needs would fit the head.
    share = cluster.cpus_per_actor(pool.start) or cpus
    return replace(pool, needs=replace(needs, cpus=share))


@contextlib.contextmanager
def first_nodes_requested(settings: PoolSettings) -> Iterator[None]:
    """Have a cluster find the nodes of the pool's first actors while the block prepares their work.

    Tasks with the needs of actors wait for a node each, and end there. Ray cancels them however this process ends; a
    request to the autoscaler would keep its nodes.
    """
    import ray

    tasks: list[ray.ObjectRef] = []
    if _is_joined():
        pool = decide(settings, 0)
        task = ray.remote(**pool.needs.options(), max_retries=0)(_start)
        tasks = [task.remote() for _ in range(pool.least)]
    try:
        yield
    finally:
        for started in tasks:
            ray.cancel(started)


def _is_joined() -> bool:
    from engine.machine import cluster  # imports Ray

    return cluster.is_joined()


def _start() -> None:
    """Do nothing: the task's start shows that a node is there."""


def _cpus_beside(gpus: float, kind: str | None, known: list[Node]) -> float:
    """As many CPUs as GPUs, one more for several, which have a process each; less one a node for tasks that plan."""
    needs = Needs(0.0, gpus, 0, kind)
    shares = [(node.cpus - 1) / node.room(needs) for node in known if node.fits(needs)]
    return max(0.0, min([gpus if gpus <= 1 else gpus + 1, *shares])) if shares else 0.0


def _memory(actor_bytes: int, needs: Needs, known: list[Node]) -> int:
    """Main memory that an actor requests from Ray: at most a node's, or it would wait for ever; 0 if unknown."""
    largest = max((node.memory for node in known if node.fits(needs)), default=0.0)
    return int(min(actor_bytes, largest)) if largest < math.inf else 0


def _room(needs: Needs, alive: list[Node], actor_bytes: int) -> int:
    """Actors that fit on the nodes now, 1 at least."""
    if needs.gpus or _is_joined():
        return max(1, sum(node.room(needs) for node in alive))
    by_memory = int((machine_memory() - 2 * 2**30) // actor_bytes)
    by_cpus = sum(node.cpus for node in alive) // (needs.cpus or 1)
    return max(1, min(int(by_cpus), by_memory))


def _refuse_impossible(needs: Needs, alive: list[Node], promised: list[Node] | None) -> None:
    """Refuse an actor that no node can host.

    On a cluster without a known autoscaler, the job waits if no node is of the sort (with GPUs, or without). Nodes
    added by hand are assumed to be of an existing sort.
    """
    known = [*alive, *(promised or [])]
    if any(node.fits(needs) for node in known):
        return
    has_the_sort = any(node.gpus if needs.gpus else node.cpus for node in known)
    if _is_joined() and promised is None and not has_the_sort:
        return
    problem = f"no node can host an actor with {needs}: {nodes.describe_largest(known)}"
    remedy = "ask for less with `gpus_per_actor`, `cpus_per_actor` or `accelerator_type`, or add such nodes"
    raise InputError(problem, remedy, "cluster.node")


def _refuse_too_many(
    actors: int, room: int, needs: Needs, settings: PoolSettings, promised: list[Node] | None
) -> None:
    """Refuse a number of GPU actors that fits neither now nor, as far as the cluster tells, ever."""
    import ray

    grows = _is_joined() and (promised is not None or settings.gpus_per_actor is not None)
    if needs.gpus and actors > room and not grows:
        gpus = int(ray.cluster_resources().get("GPU", 0))
        problem = f"{actors} actors with {needs} each on {gpus} GPUs"
        less = f"use at most {room} actors, a smaller `gpus_per_actor`"
        remedy = f"{less}, or `actors` 1:{actors} if nodes will join"
        raise InputError(problem, remedy, "cluster.oversubscribed")


def _refuse_more_than_ever(
    least: int, needs: Needs, settings: PoolSettings, alive: list[Node], promised: list[Node] | None
) -> None:
    """Refuse more actors than the autoscaler's nodes have room for, if it reports their number."""
    # Actors that share CPUs need no room.
    fixed = needs.gpus or settings.cpus_per_actor is not None
    if promised is None or not fixed or not _is_joined():
        return
    ever = nodes.room_ever(needs, alive, promised)
    if least > ever:
        actors = f"`actors` {settings.actors} with {needs} each"
        problem = f"{actors}, on a cluster that can have room for {ever:.0f}"
        less = f"use at most {ever:.0f}, a range like 1:{least}"
        remedy = f"{less}, or let the autoscaler add more nodes"
        raise InputError(problem, remedy, "cluster.size")


def patience() -> float:
    """Seconds without any progress after which a job on Ray is aborted."""
    return _PATIENCE_ON_A_CLUSTER if _is_joined() else _PATIENCE


@contextlib.contextmanager
def reported(doing: str, kind: type[Exception], needs: Needs) -> Iterator[None]:
    """Turn Ray's exceptions in the block into an error that names the task and the cause."""
    import ray.exceptions
    from ray.data.exceptions import ExecutionTimeoutError

    from engine.machine import cluster

    try:
        yield
    except ExecutionTimeoutError as error:
        raise kind(
            f"{doing} on Ray was given up: nothing has moved for {patience() / 60:.0f} minutes on actors with "
            f"{needs}; what is finished is kept: run the same command again when the cluster has nodes"
        ) from error
    except ray.exceptions.RayError as error:
        why = cluster.cause(error)
        # Ray passes on only an exception's text. It is complete: an InputError is one line.
        if why.startswith(_INPUT_ERROR):
            problem, _, remedy = why.removeprefix(_INPUT_ERROR).rpartition("; ")
            raise InputError(problem, remedy, "cluster.failed") from None
        raise kind(f"{doing} on Ray failed: {why}") from error


def one_row_blocks(rows: Sequence[dict[str, Any]]) -> "ray.data.Dataset":
    """A quiet dataset of ``rows``, a block each, that loses nothing and survives actors that die while they load."""
    import ray.data

    # Importing it resets the level.
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    dataset = ray.data.from_items(list(rows), override_num_blocks=len(rows))
    context = dataset.context
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    # The values are unused; each actor would measure its memory every second, in an extra thread.
    context.memory_usage_poll_interval_s = None
    context.max_errored_blocks = 0
    context.max_consecutive_actor_init_deaths = 2
    context.execution_no_progress_timeout_s = patience()
    return dataset


def pool_options(pool: Pool, *, in_flight: int = 2, at_once: int = 1) -> dict[str, Any]:
    """The options of ``map_batches`` for actors that hold a model each, one row a task. With one task ``in_flight``,
    none waits behind a slow one, and Ray Data does not enlarge the pool. An actor works on tasks ``at_once``, each in a
    thread.
    """
    import ray.data

    actors = ray.data.ActorPoolStrategy(
        min_size=pool.least,
        max_size=pool.most,
        initial_size=pool.start,
        max_tasks_in_flight_per_actor=in_flight,
        max_concurrent_calls_per_actor=at_once,
        enable_true_multi_threading=at_once > 1,
    )
    form = {"batch_size": 1, "batch_format": "pyarrow", "compute": actors}
    memory = {"memory": pool.needs.memory} if pool.needs.memory else {}
    return form | pool.needs.options() | memory


Outcome = TypeVar("Outcome")
# Finished work, or work refused at once, needs no Ray.
_BESIDE = 1.0


def beside_ray(
    work: Callable[..., Outcome],
    pool: PoolSettings,
    *,
    on_progress: Callable[[str, int], None] = lambda what, done: None,
    check: Callable[[], None] = lambda: None,
) -> Outcome:
    """Do some work, which reports to its argument ``on_progress``, from a separate thread; Ray, if the pool needs it,
    starts in the meantime. ``check`` needs only Ray: its error comes before the end of the work, which takes minutes if
    runs are cut into shards; it is not called if the work ends at once. Errors as of the work, ``cluster.start_ray``
    and ``check``.
    """
    if pool.in_process:
        check()
        return work(on_progress=on_progress)
    give_back_large_buffers()  # this process loads no model, which would reuse them

    with ExitStack() as requests:

        def start() -> None:
            from engine.machine import cluster

            cluster.start_ray()
            check()
            requests.enter_context(first_nodes_requested(pool))

        return _beside(work, on_progress, start)


class _StopWork(BaseException):
    """Ends work that is no longer needed."""


def _beside(
    work: Callable[..., Outcome], on_progress: Callable[[str, int], None], start: Callable[[], None]
) -> Outcome:
    """Do the work in a thread, and start in this one, as Ray's signal handling requires."""
    working: Future[Outcome] = Future()
    stopped = threading.Event()

    def on_work(what: str, done: int) -> None:
        if stopped.is_set():
            raise _StopWork
        on_progress(what, done)

    def run() -> None:
        try:
            working.set_result(work(on_progress=on_work))
        except BaseException as error:
            working.set_exception(error)

    # A daemon, so that the process can end before the work does.
    thread = threading.Thread(target=run, name="work beside Ray", daemon=True)
    thread.start()
    try:
        try:
            return working.result(timeout=_BESIDE)
        except TimeoutError:
            start()
        return working.result()
    except BaseException:
        # It removes its temporary files.
        stopped.set()
        thread.join(timeout=10)
        raise
