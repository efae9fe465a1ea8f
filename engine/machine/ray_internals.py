"""Every use of what is private to Ray, as it was read in Ray 2.60.0: what each is for, and what is not public.

An upgrade of Ray begins here. What only informs is left out where another version of Ray has it no more.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from ray.job_config import JobConfig

# The setting of ``ray.init`` for a private folder of its sockets and logs; the public one is the command line's alone.
FOLDER = "_temp_dir"
# The resource by which a head is known; there is no public mark.
HEAD = "node:__internal_head__"
# Where ``ray up`` leaves a cluster's configuration, on the head; nothing public tells what an autoscaler may add.
BOOTSTRAP = "ray_bootstrap_config.yaml"
# The modules of Ray Data that warn of fewer blocks than actors; there is no setting for it.
EXECUTION = r"ray\.data\._internal\.execution"
# Of the autoscaler's log, as much as a message holds.
_LINES, _TAIL_BYTES = 3, 8192


def looking_in(folders: Sequence[str]) -> JobConfig:
    """A job whose workers look for modules in these folders first; publicly, they look in the driver's own first."""
    from ray.job_config import JobConfig

    # To the folders of a client's job Ray does not add the current directory.
    return JobConfig(_client_job=True, _py_driver_sys_path=list(folders))


def node_groups() -> Sequence[Any]:
    """The types of nodes that some platforms say in Ray's control store may be added; publicly, they are only written."""
    with contextlib.suppress(Exception):
        import ray

        return ray._private.state.state.get_cluster_config().node_group_configs
    return ()


def autoscaler_status() -> str:
    """What ``ray status`` prints, without its times; empty where that is not to be had. Only the command is public."""
    with contextlib.suppress(Exception):
        import ray
        from ray._private.ray_constants import DEBUG_AUTOSCALING_ERROR, DEBUG_AUTOSCALING_STATUS
        from ray.autoscaler._private.commands import debug_status
        from ray.experimental.internal_kv import _internal_kv_get

        said = map(_internal_kv_get, (DEBUG_AUTOSCALING_STATUS, DEBUG_AUTOSCALING_ERROR))
        text = debug_status(*said, address=ray.get_runtime_context().gcs_address)
        return re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\S*|\d+\.\d+s", "", text)
    return ""


def autoscaler_lines() -> str:
    """The autoscaler's last lines, where this machine has them: the head does. Nothing public says where its logs are."""
    with contextlib.suppress(Exception):
        import ray

        return _tail(Path(ray._private.worker._global_node.get_logs_dir_path()))
    return ""


def _tail(logs: Path) -> str:
    """Of what it wrote as it ended, else of its log."""
    for name in ("monitor.err", "monitor.log"):
        with contextlib.suppress(OSError):
            text = (logs / name).read_bytes()[-_TAIL_BYTES:].decode(errors="replace")
            if lines := [line.strip() for line in text.splitlines() if line.strip()]:
                return f"{name}: " + " / ".join(lines[-_LINES:])
    return ""


def end_process() -> NoReturn:
    """End an actor's process so that Ray starts it again; after ``ray.actor.exit_actor``, which is public, it does not."""
    os._exit(1)


def end_at_exit() -> None:
    """Have this process end without Ray's native exit handlers, if it is an actor's; nothing public leaves them out.

    The core worker can wait for itself for ever while it is taken down (seen once in some twenty runs: its publisher
    posts to the event loop that is being destroyed), and its process then holds a model and a GPU. Nothing is lost: the
    driver commits all results. Any other process has an exit status to keep.
    """
    import ray

    if ray.is_initialized() and ray.get_runtime_context().get_actor_id() is not None:
        atexit.register(os._exit, 0)
