"""Every use of Ray's private API, checked against Ray 2.60.0, with its purpose and the missing public alternative.

An upgrade of Ray begins here. Uses that only inform are skipped if another version of Ray lacks them.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    import pyarrow as pa
    import ray.data
    from ray.job_config import JobConfig

# The setting of ``ray.init`` for a private folder of its sockets and logs; only the command line has a public one.
FOLDER = "_temp_dir"
# The resource that identifies a head; there is no public mark.
HEAD = "node:__internal_head__"
# File on the head in which ``ray up`` leaves a cluster's configuration; no public API lists an autoscaler's node types.
BOOTSTRAP = "ray_bootstrap_config.yaml"
# The modules of Ray Data that warn of fewer blocks than actors; there is no setting for it.
EXECUTION = r"ray\.data\._internal\.execution"
# Extent of the autoscaler's log in a message.
_LINES, _TAIL_BYTES = 3, 8192


def looking_in(folders: Sequence[str]) -> JobConfig:
    """A job whose workers look for modules in these folders first; publicly, they look in the driver's own first."""
    from ray.job_config import JobConfig

    # For a client's job Ray does not add the current directory.
    return JobConfig(_client_job=True, _py_driver_sys_path=list(folders))


def node_groups() -> Sequence[Any]:
    """Types of nodes that may be added, from Ray's control store on some platforms; publicly, it is write-only."""
    with contextlib.suppress(Exception):
        import ray

        return ray._private.state.state.get_cluster_config().node_group_configs
    return ()


def autoscaler_status() -> str:
    """Output of ``ray status``, without its times; empty if unavailable. Only the command is public."""
    with contextlib.suppress(Exception):
        import ray
        from ray._private.ray_constants import DEBUG_AUTOSCALING_ERROR, DEBUG_AUTOSCALING_STATUS
        from ray.autoscaler._private.commands import debug_status
        from ray.experimental.internal_kv import _internal_kv_get

        stored = map(_internal_kv_get, (DEBUG_AUTOSCALING_STATUS, DEBUG_AUTOSCALING_ERROR))
        text = debug_status(*stored, address=ray.get_runtime_context().gcs_address)
        return re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\S*|\d+\.\d+s", "", text)
    return ""


def autoscaler_lines() -> str:
    """The autoscaler's last lines, if on this machine, as on the head. No public API tells where its logs are."""
    with contextlib.suppress(Exception):
        import ray

        return _tail(Path(ray._private.worker._global_node.get_logs_dir_path()))
    return ""


def _tail(logs: Path) -> str:
    """The tail of its final output, else of its log."""
    for name in ("monitor.err", "monitor.log"):
        with contextlib.suppress(OSError):
            text = (logs / name).read_bytes()[-_TAIL_BYTES:].decode(errors="replace")
            if lines := [line.strip() for line in text.splitlines() if line.strip()]:
                return f"{name}: " + " / ".join(lines[-_LINES:])
    return ""


def blocks_of(dataset: ray.data.Dataset) -> Iterator[pa.Table]:
    """The blocks of a data set's results, as they come; if it fails or the iterator is closed, its actors are killed.

    With the public ``iter_batches`` they then hold their CPUs until Python's cyclic collector runs, and the next data set
    may wait for ever. It also sends statistics of all blocks every five seconds, if large through new shared memory.
    """
    import ray

    executor, ended = dataset._create_executor(), False
    # Held, since it shuts the execution down when it is collected; as an iterator, it would do so without killing.
    _execution = dataset._execute_dag(executor)
    executor.set_external_consumer_bytes(0)  # tasks wait where blocks are not taken
    try:
        for bundle in iter(lambda: executor._output_node[1].get_output_blocking(None), None):
            yield from map(ray.get, bundle.block_refs)
        ended = True
    finally:
        executor.shutdown(force=not ended)


def end_process() -> NoReturn:
    """End an actor's process so that Ray starts it again; after the public ``ray.actor.exit_actor`` it does not."""
    os._exit(1)


def end_at_exit() -> None:
    """Have this process end without Ray's native exit handlers, if it is an actor's; no public API skips them.

    The core worker can wait for itself for ever during its destruction (seen once in some twenty runs: its publisher
    posts to the event loop that is being destroyed), and its process then holds a model and a GPU. Nothing is lost: the
    driver commits all results. Any other process has an exit status to keep.
    """
    import ray

    if ray.is_initialized() and ray.get_runtime_context().get_actor_id() is not None:
        atexit.register(os._exit, 0)
