"""The second version of Ray's autoscaler, which `ray up` and KubeRay start, with its provider of pretended nodes.

``tests.cluster.play`` plays a scene of this module. Ray's own ``AutoscalingCluster`` would do, but for its start, which
ends every other Ray on the machine. The provider is called external since Ray's wheel lacks the file of defaults
(``fake_multi_node/example.yaml``) that the autoscaler reads, and dies of, under the provider's own name.
"""

import json
import logging
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import ray
from ray._private.services import get_node_ip_address
from ray.autoscaler._private.fake_multi_node.node_provider import FAKE_HEAD_NODE_ID

from engine.machine import watch
from engine.machine.nodes import Needs
from engine.machine.watch import PoolTotals, watched
from tests.cluster.stage import STORE_BYTES, Stage

PROVIDER = "ray.autoscaler._private.fake_multi_node.node_provider.FakeMultiNodeProvider"
COMMANDS = ("initialization", "setup", "head_setup", "worker_setup", "head_start_ray")
ENVIRONMENT = {
    "RAY_enable_autoscaler_v2": "1",
    "RAY_FAKE_CLUSTER": "1",
    "AUTOSCALER_UPDATE_INTERVAL_S": "1",
    # The head is a node of the provider's.
    "RAY_CLOUD_INSTANCE_ID": FAKE_HEAD_NODE_ID,
    "RAY_OVERRIDE_NODE_ID_FOR_TESTING": FAKE_HEAD_NODE_ID,
}


def configuration(address, provider):
    """A head that offers nothing, and up to two nodes with a pretended GPU."""
    return {
        "cluster_name": "pretended",
        "max_workers": 2,
        "upscaling_speed": 1.0,
        "idle_timeout_minutes": 10,
        "provider": {
            "type": "external",
            "module": provider,
            "gcs_address": address,
            "head_node_id": FAKE_HEAD_NODE_ID,
            "launch_multiple": True,
            "disable_node_updaters": True,
        },
        **{name: {} for name in ("auth", "docker", "file_mounts")},
        **{name: [] for name in ("cluster_synced_files", "rsync_exclude", "rsync_filter")},
        "file_mounts_sync_continuously": False,
        "head_node_type": "ray.head.default",
        "available_node_types": {
            "ray.head.default": {"resources": {"CPU": 0}, "node_config": {}, "max_workers": 0},
            "gpu": {
                "resources": {"CPU": 1, "GPU": 1, "object_store_memory": STORE_BYTES},
                "node_config": {},
                "max_workers": 2,
            },
        },
    } | {f"{name}_commands": [] for name in (*COMMANDS, "worker_start_ray")}


class Growing(Stage):
    """A head whose autoscaler adds nodes; its processes end with the play."""

    def __init__(self, folder, provider=PROVIDER):
        self.folder, self.log = Path(folder), Path(folder) / "log"
        self.log.touch()
        self.started, self.events = time.monotonic(), []
        with socket.socket() as free:
            free.bind(("", 0))
            port = free.getsockname()[1]
        address = f"{get_node_ip_address()}:{port}"
        file = self.folder / "cluster.json"
        file.write_text(json.dumps(configuration(address, provider)))
        command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--head", f"--port={port}"]
        command += ["--num-cpus=0", f"--object-store-memory={STORE_BYTES}"]
        command += ["--include-dashboard=false", f"--autoscaling-config={file}"]
        subprocess.run(command, env=os.environ | ENVIRONMENT, check=True)
        ray.init(address=address, log_to_driver=False, logging_level="ERROR")
        logging.getLogger("ray.data").setLevel(logging.ERROR)


def grows(folder):
    """A pool of 1 to 2 begins without any node that reads; with 600 reads it grows long before they end."""
    stage = Growing(folder)
    found = stage.read(actors="1:2", gpus_per_actor=1, pace=0.2, reads=600)
    return found | {"most_at_once": stage.most_at_once()}


def dies(folder):
    """The autoscaler ends as it begins, of which Ray says nothing."""
    stage = Growing(folder, provider="no.such.Provider")
    watch._SECONDS_BETWEEN_LINES = watch._SECONDS_UNCHANGED = 2.0
    told = threading.Event()

    def tell(line):
        stage.say(line)
        if "has not changed" in line:
            told.set()

    with watched(Needs(0, 1, 0, None), tell, PoolTotals(), lambda: None):
        told.wait(timeout=60)
    return {"events": stage.events}


def main():
    name, folder = sys.argv[1:]
    found = globals()[name](folder)
    ray.shutdown()
    (Path(folder) / "result.json").write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
