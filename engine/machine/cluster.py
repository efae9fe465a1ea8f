"""Start or join Ray, on one machine or many, check that its nodes share folders, and end its processes."""

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

# A socket's path has 107 bytes at most. Below its folder Ray needs a session's name, with the time and a process id of
# up to seven digits, and "/sockets/plasma_store": 64 bytes, and some to spare.
_LONGEST_FOLDER = 38
# Seconds for an answer from the head of a cluster, and from nodes whether they share a folder.
_ANSWERS, _LOOKS = 5.0, 120.0
_SHARE = "give a folder of a file system that all nodes mount, or of a bucket (s3://…)"
_JOINED = "give host:port of the cluster's head, as in 10.0.0.1:6379, or unset it to use this machine alone"
# The folder of the Ray that this process started, and the previous values of its environment variables.
_folder: PrivateFolder | None = None
_environment_before: dict[str, str | None] = {}
# A single token per process, since Ray's native code remembers the first one.
_token = ""


def start_ray(plan_bytes: int = 0) -> None:
    """Connect to the cluster of ``RAY_ADDRESS``, else start Ray on this machine alone.

    A Ray that already runs on the machine is never joined by accident. Nothing is served: no dashboard, no usage
    reports. Ray listens on all of the machine's addresses; the one started here requires a random token, which it and
    its actors have from the environment. Its temporary files are in a private folder, removed by ``stop_ray`` or when
    the process exits. A cluster of the user's own keeps its own settings. Actors and tasks without a GPU of their own
    see none.

    Raises:
        InputError: there is no folder for Ray's temporary files, or no cluster at ``RAY_ADDRESS``.
        ReadError: the Ray that was started takes commands without a token.
    """
    if ray.is_initialized():
        return
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # Otherwise every pool warns about its actors' arguments (ray issue 53727); they are held here.
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
    address = os.environ.get("RAY_ADDRESS") or "local"
    _refuse_unreachable(address)
    if address == "local":
        folder = _make_private()
        # Ray reserves 30% of the memory for its object store by default, but only the plan is in it.
        settings: dict[str, Any] = {
            "include_dashboard": False,
            # Ray opens its folder to all users: it is one inside ours.
            ray_internals.FOLDER: str(folder / "r"),
            "object_store_memory": max(256 * 2**20, machine_memory() // 20, 2 * plan_bytes),
        }
    else:
        # Skip variables that are already set: a submitted job has them, and Ray rejects duplicates.
        own = {name: "1" for name in (_HIDES, _THREADS) if name not in os.environ}
        settings = {"runtime_env": {"env_vars": own}} if own else {}
    settings |= {"log_to_driver": False, "logging_level": logging.ERROR}
    with _replayed_on_failure(), _own_handler(), _for_workers():
        try:
            ray.init(address=address, job_config=_job_config(), **settings)
        except (ConnectionError, RuntimeError, ValueError) as error:
            if address == "local":
                raise
            problem = f"RAY_ADDRESS is {address}, a cluster that cannot be joined ({error})"
            raise InputError(problem, _JOINED, "cluster.unjoined") from None
    if address == "local" and os.environ.get(_MODE) != "token":
        stop_ray()
        raise ReadError("Ray was started without a token, open to everybody on the network")
    logging.getLogger("ray.data").setLevel(logging.ERROR)


def _refuse_unreachable(address: str) -> None:
    """Reject addresses meant for other commands, and an unresponsive head: Ray would wait for minutes."""
    if address in ("local", "auto"):
        return
    kinds = dict.fromkeys(("http", "https"), "jobs are submitted")
    kinds["ray"] = "Ray's client connects"
    if "://" in address:
        kind = kinds.get(address.partition("://")[0], "no cluster of Ray's is")
        raise InputError(f"RAY_ADDRESS is {address}, where {kind}", _JOINED, "cluster.address")
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), _ANSWERS).close()
    except (OSError, ValueError, OverflowError) as error:
        problem = f"RAY_ADDRESS is {address}, where no cluster answers ({error})"
        raise InputError(problem, _JOINED, "cluster.unreachable") from None


def _job_config() -> JobConfig | None:
    """Module folders for workers, if a folder ``engine`` on their default path would hide this package."""
    own = Path(__file__).resolve().parents[1]
    here = str(Path.cwd())
    for folder in [here, *os.environ.get("PYTHONPATH", "").split(os.pathsep)]:
        spec = PathFinder.find_spec(own.name, [folder or here])
        places = [*(spec.submodule_search_locations or [str(spec.origin)])] if spec else []
        if places and Path(places[0]).resolve() != own:
            return ray_internals.looking_in([here, str(own.parent)])
    return None


_MODE, _TOKEN = "RAY_AUTH_MODE", "RAY_AUTH_TOKEN"
# Otherwise Ray 2.60 leaves a node's GPUs visible to actors and tasks with `num_gpus=0` (ray issue 54868).
_HIDES = "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"
# Otherwise each of many tasks on a node would use as many threads as it has CPUs, and starve actors with GPUs.
_THREADS = "POLARS_MAX_THREADS"


@contextlib.contextmanager
def _for_workers() -> Iterator[None]:
    """Give workers of a Ray that starts in the block one thread of Polars each; not this process."""
    if _THREADS in os.environ:
        yield
        return
    pl.thread_pool_size()  # reads the variable once
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
        _environment_before.update((name, os.environ.get(name)) for name in (_MODE, _TOKEN, _HIDES))
        # Ray's own handler, registered at its import, runs after this one.
        atexit.register(stop_ray)
    _token = _token or secrets.token_hex(32)
    os.environ[_TOKEN] = _token
    os.environ[_HIDES] = "1"
    # If no mode is set, Ray turns tokens on for a cluster that it starts, and records it here. A mode set by hand after
    # Ray's import would not reach its native code.
    os.environ.pop(_MODE, None)
    return _folder.path


@contextlib.contextmanager
def _replayed_on_failure() -> Iterator[None]:
    """Hold back standard error while Ray's native code reports its log level; show it if the block fails."""
    sys.stderr.flush()
    original = os.dup(2)
    with tempfile.TemporaryFile() as messages:
        os.dup2(messages.fileno(), 2)
        try:
            yield
        except BaseException as error:
            if not isinstance(error, InputError):  # which is complete
                messages.seek(0)
                os.write(original, messages.read())
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
    """Shut down our Ray and delete its files, or disconnect from the cluster."""
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
    """Refuse folders in which this process and a joined cluster's present nodes do not see each other's files; a
    WriteError if this process cannot write there.
    """
    if not is_joined():
        return
    here = ray.get_runtime_context().get_node_id()
    others = [node for node in nodes.alive() if node.id != here and (node.cpus or node.gpus)]
    for folder in folders if others else ():
        at = folder.at  # which may not exist yet
        at = next(filter(Path.exists, (at, *at.parents))) if isinstance(at, Path) else at
        # Temporary names, so that a killed process's files are removed in time.
        trial, *replies = (f".trial.{secrets.token_hex(16)}.erag" for _ in [here, *others])
        Folder(at).write(trial, b"")
        try:
            looks = {}
            for node, reply in zip(others, replies, strict=True):
                there = NodeAffinitySchedulingStrategy(node.id, soft=False)
                look = ray.remote(num_cpus=0, scheduling_strategy=there)(_unseen)
                looks[look.remote(Folder(at), trial, reply)] = node.address, reply
            for answer in ray.wait([*looks], num_returns=len(looks), timeout=_LOOKS)[0]:
                with contextlib.suppress(ray.exceptions.RayError):  # it left
                    address, reply = looks[answer]
                    if unseen := ray.get(answer) or _unseen(Folder(at), reply):
                        problem = f"is not shared by this node and {address}: {unseen}"
                        path = Folder(at).shown()
                        raise InputError(problem, _SHARE, "cluster.unshared", path=path)
        finally:
            Folder(at).delete([trial, *replies])


def _unseen(folder: Folder, trial: str, reply: str = "") -> str:
    """Look for a file of another node, and write a reply; the fault, or nothing."""
    try:
        for wait in (0, 1, 2, 4):  # some file systems show others' writes late
            time.sleep(wait)
            if next(folder.read_each([trial]))[1] is not None:
                if reply:
                    folder.write(reply, b"")
                return ""
    except (InputError, WriteError) as error:
        return str(error)
    return "one does not see what the other writes"


def beside_driver() -> dict[str, Any]:
    """Options of ``ray.remote`` that pin an actor to the driver's node: it ends with this node, and thus the driver,
    not with any other. If only its process ends, it starts again, empty, and Ray repeats open calls.
    """
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    restarts = {"max_restarts": -1, "max_task_retries": -1}
    return {"num_cpus": 0, **restarts, "scheduling_strategy": here}


def cpus_per_actor(actors: int) -> float:
    """An even share of the cluster's CPUs that fits its smallest node; Ray sets threads by it. Other tasks need 0."""
    sizes = [node["Resources"].get("CPU", 0.0) for node in ray.nodes() if node["Alive"]]
    share = sum(sizes) / actors
    return share if share < 1 else max(1.0, float(min(share, *filter(None, sizes)) // 1))


def cause(error: BaseException) -> str:
    """The last line of a remote traceback: the error, without its path through Ray."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    errors = [line for line in lines if re.match(r"[\w.]*(Error|Exit)\b", line)]
    return (errors or lines)[-1]
