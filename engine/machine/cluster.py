"""Start or join Ray, on one machine or many, see that its nodes share folders, and end its processes."""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import re
import secrets
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

import polars as pl
import ray
from ray.job_config import JobConfig
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from engine.machine import nodes, ray_internals
from engine.machine.batching import machine_memory
from engine.messages.errors import InputError, ReadError, WriteError
from engine.sources.io.files import PrivateFolder, make_folder
from engine.sources.io.folders import Folder

# A socket's path has 107 bytes at most. Below its folder Ray needs a session's name, with the time and a
# process id of up to seven digits, and "/sockets/plasma_store": 64 bytes, and some to spare.
_LONGEST_FOLDER = 38
# Seconds in which the head of a cluster answers, and nodes whether they share a folder.
_ANSWERS, _LOOKS = 5.0, 120.0
_SHARE = "give a folder of a file system that all nodes mount, or of a bucket (s3://…)"
_JOINED = "give host:port of the cluster's head, as in 10.0.0.1:6379, or unset it to use this machine alone"
# The folder of the Ray that this process started, and the variables of its environment before.
_folder: PrivateFolder | None = None
_environment_before: dict[str, str | None] = {}
# One for all that this process starts, since Ray's native code remembers the first one.
_token = ""


def start_ray(plan_bytes: int = 0) -> None:
    """Connect to the cluster of ``RAY_ADDRESS``, else start Ray on this machine alone.

    A Ray that already runs on the machine is never joined by accident. Nothing is served: no
    dashboard, no usage reports. Ray listens on all of the machine's addresses; the one started here
    answers only those who know a random token, which it and its actors have from the environment. Its
    temporary files are in a private folder, removed by ``stop_ray`` or when the process exits. A
    cluster of the user's own keeps its own settings. Actors and tasks without a GPU of their own see none.

    Args:
        plan_bytes: size of the plan that will be in the object store.

    Raises:
        InputError: there is no folder for Ray's temporary files, or no cluster at ``RAY_ADDRESS``.
        ReadError: the Ray that was started takes commands without a token.
    """
    if ray.is_initialized():
        return
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # Else every pool prints a warning about its actors' arguments (ray issue 53727); they are held here.
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
    address = os.environ.get("RAY_ADDRESS") or "local"
    _refuse_unreachable(address)
    if address == "local":
        folder = _make_private()
        # Ray keeps 30% of the memory for its object store by default; the plan is all that is in it.
        settings: dict[str, Any] = {
            "include_dashboard": False,
            # Ray opens its folder to all users: it is one inside ours.
            ray_internals.FOLDER: str(folder / "r"),
            "object_store_memory": max(256 * 2**20, machine_memory() // 20, 2 * plan_bytes),
        }
    else:
        # A submitted job has the variables that are set, and Ray refuses them twice.
        own = {name: "1" for name in (_HIDES, _THREADS) if name not in os.environ}
        settings = {"runtime_env": {"env_vars": own}} if own else {}
    with _replayed_on_failure(), _own_handler(), _for_workers():
        try:
            ray.init(
                address=address,
                job_config=_job_config(),
                log_to_driver=False,
                logging_level=logging.ERROR,
                **settings,
            )
        except (ConnectionError, RuntimeError, ValueError) as error:
            if address == "local":
                raise
            raise InputError(
                f"RAY_ADDRESS is {address}, a cluster that cannot be joined ({error})",
                _JOINED,
                "cluster.unjoined",
            ) from None
    if address == "local" and os.environ.get(_MODE) != "token":
        stop_ray()
        raise ReadError("Ray was started without a token, open to everybody on the network")
    logging.getLogger("ray.data").setLevel(logging.ERROR)


def _refuse_unreachable(address: str) -> None:
    """Refuse other commands' addresses, and a head that does not answer: Ray would wait for minutes."""
    if address in ("local", "auto"):
        return
    kinds = {
        "ray": "Ray's client connects",
        "http": "jobs are submitted",
        "https": "jobs are submitted",
    }
    scheme, separated, _ = address.partition("://")
    if separated:
        kind = kinds.get(scheme, "no cluster of Ray's is")
        raise InputError(f"RAY_ADDRESS is {address}, where {kind}", _JOINED, "cluster.address")
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), _ANSWERS).close()
    except (OSError, ValueError, OverflowError) as error:
        raise InputError(
            f"RAY_ADDRESS is {address}, where no cluster answers ({error})",
            _JOINED,
            "cluster.unreachable",
        ) from None


def _job_config() -> JobConfig | None:
    """Where workers look for modules, if a folder ``engine`` where they do by default would take this one's place."""
    own = Path(__file__).resolve().parents[1]
    here = str(Path.cwd())
    for folder in [here, *os.environ.get("PYTHONPATH", "").split(os.pathsep)]:
        spec = PathFinder.find_spec(own.name, [folder or here])
        places = [*(spec.submodule_search_locations or [str(spec.origin)])] if spec else []
        if places and Path(places[0]).resolve() != own:
            return ray_internals.looking_in([here, str(own.parent)])
    return None


_MODE, _TOKEN = "RAY_AUTH_MODE", "RAY_AUTH_TOKEN"
# Without it, Ray 2.60 leaves a node's GPUs visible to actors and tasks with `num_gpus=0` (ray issue 54868).
_HIDES = "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"

# Else each of many tasks on a node would take as many threads as it has CPUs, and starve actors with GPUs.
_THREADS = "POLARS_MAX_THREADS"


@contextlib.contextmanager
def _for_workers() -> Iterator[None]:
    """Let workers of a Ray that starts in the block have one thread of Polars each; not this process."""
    if _THREADS in os.environ:
        yield
        return
    pl.thread_pool_size()  # it looks at the variable once
    os.environ[_THREADS] = "1"
    try:
        yield
    finally:
        del os.environ[_THREADS]


def _make_private() -> Path:
    """Prepare this process's environment for a Ray of its own; the folder for its temporary files."""
    global _folder, _token
    if _folder is None:
        parent = os.environ.get("RAY_TMPDIR")
        _folder = make_folder("erag-ray-", longest=_LONGEST_FOLDER, parent=parent)
        _environment_before.update({name: os.environ.get(name) for name in (_MODE, _TOKEN, _HIDES)})
        # Ray's own handler, registered when it was imported, comes after this one.
        atexit.register(stop_ray)
    _token = _token or secrets.token_hex(32)
    os.environ[_TOKEN] = _token
    os.environ[_HIDES] = "1"
    # Where no mode is set, Ray turns tokens on for a cluster that it starts, and says so here. Set by hand
    # after it was imported, the mode would not reach its native code.
    os.environ.pop(_MODE, None)
    return _folder.path


@contextlib.contextmanager
def _replayed_on_failure() -> Iterator[None]:
    """Hold back standard error, where Ray's native code tells its log level; show it if the block fails."""
    sys.stderr.flush()
    original = os.dup(2)
    with tempfile.TemporaryFile() as held:
        os.dup2(held.fileno(), 2)
        try:
            yield
        except BaseException as error:
            if not isinstance(error, InputError):  # which says it all
                held.seek(0)
                os.write(original, held.read())
            raise
        finally:
            os.dup2(original, 2)
            os.close(original)


@contextlib.contextmanager
def _own_handler() -> Iterator[None]:
    """Keep the program's own handler of SIGTERM: Ray's prints a native stack and aborts."""
    handler = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if callable(handler) and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, handler)


def stop_ray() -> None:
    """Stop the Ray that was started, or leave the cluster that was joined, and leave nothing behind."""
    global _folder
    ray.shutdown()
    if _folder is not None:
        atexit.unregister(stop_ray)
        _folder.remove()
        _folder = None
        for name, value in _environment_before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def is_joined() -> bool:
    """Whether Ray is a cluster of the user's, which other nodes may join, and not this process's own."""
    return ray.is_initialized() and _folder is None


def require_shared(folders: Sequence[Folder]) -> None:
    """Check that this process and the other nodes that a joined cluster has now see files that either writes into folders.

    Raises:
        InputError: they do not.
        WriteError: this process cannot write there.
    """
    if not is_joined():
        return
    here = ray.get_runtime_context().get_node_id()
    others = [node for node in nodes.alive() if node.id != here and (node.cpus or node.gpus)]
    for folder in folders if others else ():
        at = folder.at  # which need not be there yet
        at = next(filter(Path.exists, (at, *at.parents))) if isinstance(at, Path) else at
        # Names of temporary files: what a killed process leaves is removed in time.
        trial, *replies = (f".trial.{secrets.token_hex(16)}.erag" for _ in [here, *others])
        Folder(at).write(trial, b"")
        try:
            asked = {}
            for node, reply in zip(others, replies, strict=True):
                there = NodeAffinitySchedulingStrategy(node.id, soft=False)
                look = ray.remote(num_cpus=0, scheduling_strategy=there)(_unseen)
                asked[look.remote(Folder(at), trial, reply)] = node.address, reply
            for answer in ray.wait([*asked], num_returns=len(asked), timeout=_LOOKS)[0]:
                with contextlib.suppress(ray.exceptions.RayError):  # it left
                    address, reply = asked[answer]
                    if unseen := ray.get(answer) or _unseen(Folder(at), reply):
                        problem = f"is not shared by this node and {address}: {unseen}"
                        raise InputError(
                            problem, _SHARE, "cluster.unshared", path=Folder(at).shown()
                        )
        finally:
            Folder(at).delete([trial, *replies])


def _unseen(folder: Folder, sought: str, reply: str = "") -> str:
    """Look for a file of another node, and write a reply; the fault, or nothing."""
    try:
        for wait in (0, 1, 2, 4):  # some file systems show late what others wrote
            time.sleep(wait)
            if next(folder.read_each([sought]))[1] is not None:
                if reply:
                    folder.write(reply, b"")
                return ""
    except (InputError, WriteError) as error:
        return str(error)
    return "one does not see what the other writes"


def beside_driver() -> dict[str, Any]:
    """The options of ``ray.remote`` for an actor that the driver cannot do without.

    It stands on the driver's node: with that node the driver ends too, and no other node's end takes it
    away. Where its process alone ends, it starts again, empty, and calls under way are sent to it again.
    """
    here = ray.get_runtime_context().get_node_id()
    return {
        "num_cpus": 0,
        "max_restarts": -1,
        "max_task_retries": -1,
        "scheduling_strategy": NodeAffinitySchedulingStrategy(here, soft=False),
    }


def cpus_per_actor(actors: int) -> float:
    """An even share of the cluster's CPUs that fits on its smallest node; Ray sets threads by it.

    A pool that takes every CPU leaves none for the dataset's other tasks; here those need none.
    """
    sizes = [node["Resources"].get("CPU", 0.0) for node in ray.nodes() if node["Alive"]]
    share = sum(sizes) / actors
    return share if share < 1 else max(1.0, float(min(share, *filter(None, sizes)) // 1))


def cause(error: BaseException) -> str:
    """The last line of a remote traceback: the error, without how Ray got there."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return next(
        (line for line in reversed(lines) if re.match(r"[\w.]*(Error|Exit)\b", line)), lines[-1]
    )
