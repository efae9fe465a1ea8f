"""Report the status of a cluster's autoscaler and the last lines of its log."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

# Of its log, as much as a message holds.
_LINES, _TAIL_BYTES = 3, 8192


def status() -> str:
    """What ``ray status`` prints, without its times; empty where that is not to be had."""
    with contextlib.suppress(Exception):  # no public interface: it may not be there
        import ray
        from ray._private.ray_constants import DEBUG_AUTOSCALING_ERROR, DEBUG_AUTOSCALING_STATUS
        from ray.autoscaler._private.commands import debug_status
        from ray.experimental.internal_kv import _internal_kv_get

        said = map(_internal_kv_get, (DEBUG_AUTOSCALING_STATUS, DEBUG_AUTOSCALING_ERROR))
        text = debug_status(*said, address=ray.get_runtime_context().gcs_address)
        return re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\S*|\d+\.\d+s", "", text)
    return ""


def last_lines() -> str:
    """The last lines of the autoscaler's process, where this machine has them: the head does."""
    import ray

    with contextlib.suppress(Exception):  # nor is this one
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
