"""Playing a scene in a process of its own, with a cluster of its own, of which nothing is left.

``python -m tests.cluster.play MODULE SCENE FOLDER`` plays one by hand.
"""

import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.faults.processes import with_variable

READS = 96
UNIT = 4
# What a lost node's actor had begun: the unit that it reads, and the one before, whose results are on their way.
IN_FLIGHT = 2 * UNIT

ENVIRONMENT = {
    # A lost node is noticed within two seconds instead of fifteen.
    "RAY_health_check_period_ms": "500",
    "RAY_health_check_failure_threshold": "3",
    "RAY_health_check_initial_delay_ms": "500",
    # Else Ray's workers stand behind everything else that a busy machine does, their own driver included.
    "RAY_worker_niceness": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_BACKEND_LOG_LEVEL": "fatal",
    "RAY_AUTH_MODE": "token",
}


def play(scene, folder, *, survives=True, of="tests.cluster.scene"):
    """Play a scene of a module; what it found, or None where it ends with its driver."""
    token = secrets.token_hex(32)
    with tempfile.TemporaryDirectory(prefix="e", dir="/tmp") as place:  # sockets need short paths
        own = ENVIRONMENT | {"RAY_AUTH_TOKEN": token, "RAY_TMPDIR": place}
        try:
            done = subprocess.run(
                [sys.executable, "-m", of, scene, str(folder)],
                env=os.environ | own, capture_output=True, text=True, timeout=900, check=False,
            )  # fmt: skip
        finally:
            for process, _ in with_variable("RAY_AUTH_TOKEN", token):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
    if not survives:
        assert done.returncode == -signal.SIGKILL, done.stderr
        return None
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads((folder / "result.json").read_text())


if __name__ == "__main__":
    print(json.dumps(play(sys.argv[2], Path(sys.argv[3]), of=sys.argv[1]), indent=1))
