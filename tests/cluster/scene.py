"""A cluster of pretended nodes in a process of its own, in which something is lost while reads are done.

``python -m tests.cluster.scene NAME FOLDER`` plays one scene and writes ``FOLDER/result.json``. A process
holds one cluster, and none of it is the Ray of the tests: its files, its address and its token are its own.
"""

import collections
import contextlib
import json
import os
import secrets
import sys
import tempfile
import threading
import time
from dataclasses import asdict
from pathlib import Path

# Before Ray is imported: a lost node is noticed within two seconds instead of fifteen.
os.environ |= {
    "RAY_health_check_period_ms": "500",
    "RAY_health_check_failure_threshold": "3",
    "RAY_health_check_initial_delay_ms": "500",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_BACKEND_LOG_LEVEL": "fatal",
    "RAY_DEDUP_LOGS": "0",
    "RAY_AUTH_MODE": "token",
    "RAY_AUTH_TOKEN": secrets.token_hex(32),
}

import polars as pl
import ray
from ray.cluster_utils import Cluster

from engine.machine.pool import PoolSettings, decide
from engine.machine.watch import PoolTotals
from engine.reading import pipeline
from engine.reading.execute import UnitResult
from engine.reading.plan import INPUTS, cut_units
from engine.reading.protocol import ReaderSpec, ReaderStats, ReadOutput

SPEC = ReaderSpec(
    weights="w",
    architecture="causal",
    dtype="float32",
    max_new_tokens=4,
    stop=(),
    max_input_tokens=0,
    path="/nowhere",
    parameters=1,
    name="test",
)
READS = 96
UNIT = 4
SECONDS_PER_READ = 0.05
MEMORY = 80 * 2**20


def answer(text):
    return text.upper()


def actor_class(log, seconds=0):
    """Actors whose reader takes some seconds to load, and writes what it reads, and where, to a log."""

    class Reader:
        def __init__(self):
            self.stats = ReaderStats()

        def read(self, inputs):
            node = ray.get_runtime_context().get_node_id()
            outputs = []
            for (text,) in inputs:
                with open(log, "a") as stream:
                    stream.write(f"{text} {node}\n")
                time.sleep(SECONDS_PER_READ)
                outputs.append(ReadOutput(answer(text), 1, 1, False))
            return outputs

    class Actor(pipeline.ReaderActor):
        def load(self, spec):
            with open(f"{log}.loading", "a") as stream:
                stream.write(f"{ray.get_runtime_context().get_node_id()}\n")
            time.sleep(seconds)
            return Reader()

    return Actor


class Scene:
    """A head without GPUs, which runs the driver, and what is added to it."""

    def __init__(self, folder):
        self.folder = Path(folder)
        self.log = self.folder / "log"
        self.log.touch()
        self.started = time.monotonic()
        self.events = []
        self.cluster = Cluster(
            initialize_head=True,
            head_node_args={"num_cpus": 1, "num_gpus": 0, "object_store_memory": MEMORY},
        )
        ray.init(address=self.cluster.address, log_to_driver=False, logging_level="ERROR")

    def node(self, gpus=1, **more):
        return self.cluster.add_node(num_cpus=1, num_gpus=gpus, object_store_memory=MEMORY, **more)

    def say(self, text):
        self.events.append(text)
        print(f"{time.monotonic() - self.started:6.1f} {text}", flush=True)

    def loading(self, nodes, count):
        """A node of these on which so many actors are loading, once there is one."""
        while True:
            with contextlib.suppress(FileNotFoundError):
                lines = Path(f"{self.log}.loading").read_text().split()
                for node in nodes:
                    if lines.count(node.node_id) >= count:
                        return node
            time.sleep(0.1)

    def read(self, *, after=0, do=None, load=0, **pool):
        """Do the reads; ``do`` is run, beside them, when ``after`` units are done."""
        plan = pl.DataFrame(
            {INPUTS: [[f"t{i}"] for i in range(READS)], "size": 1, "group": range(READS)}
        )
        units = cut_units(plan, UNIT)
        totals = PoolTotals()
        hosting = decide(PoolSettings(**pool), 2**27)
        got: dict[int, list[str]] = {}
        workers = collections.Counter()
        beside = threading.Thread(target=do) if do else None
        results = pipeline.read_on_ray(
            plan,
            units,
            SPEC,
            pool=hosting,
            actor_class=actor_class(str(self.log), load),
            on_event=self.say,
            totals=totals,
        )
        if beside and not after:
            beside.start()
        for done, result in enumerate(results, 1):
            assert isinstance(result, UnitResult)
            workers[result.worker.split(" process")[0]] += 1
            for place, output in enumerate(result.outputs):
                assert output.failure is None, output.failure
                got.setdefault(result.unit.offset + place, []).append(output.output)
            if beside and after and done == after:
                beside.start()
        if beside:
            beside.join()
        begun = collections.Counter(line.split()[0] for line in self.log.read_text().splitlines())
        return {
            "equal": all(got.get(row) == [answer(f"t{row}")] for row in range(READS)),
            "lost": READS - len(got),
            "doubled": sum(len(outputs) > 1 for outputs in got.values()),
            "repeated": sum(times - 1 for times in begun.values()),
            "workers": dict(workers),
            "events": self.events,
            **asdict(totals),
        }

    def busy(self, nodes):
        """A node of these on which something was read, the latest."""
        by_id = {node.node_id: node for node in nodes}
        for line in reversed(self.log.read_text().splitlines()):
            if (node := by_id.get(line.split()[1])) is not None:
                return node
        raise LookupError("none of these nodes read anything")

    def drain(self, node, seconds):
        """Announce the end of a node as autoscalers do, and end it when its time is over."""
        from ray.core.generated import autoscaler_pb2

        client = ray._raylet.GcsClient(address=self.cluster.address)
        accepted, why = client.drain_node(
            node.node_id,
            autoscaler_pb2.DrainNodeReason.Value("DRAIN_NODE_REASON_PREEMPTION"),
            "spot capacity is wanted elsewhere",
            int((time.time() + seconds) * 1000),
        )
        assert accepted, why
        time.sleep(seconds)
        self.cluster.remove_node(node, allow_graceful=True)

    def end(self):
        ray.shutdown()
        self.cluster.shutdown()


def killed(scene):
    nodes = [scene.node(), scene.node()]
    return scene.read(
        actors=2,
        after=4,
        do=lambda: scene.cluster.remove_node(scene.busy(nodes), allow_graceful=False),
    )


def removed(scene):
    nodes = [scene.node(), scene.node()]
    return scene.read(
        actors=2,
        after=4,
        do=lambda: scene.cluster.remove_node(scene.busy(nodes), allow_graceful=True),
    )


def drained(scene):
    nodes = [scene.node(), scene.node()]
    return scene.read(actors=2, after=4, do=lambda: scene.drain(scene.busy(nodes), 2))


def _while_loading(scene, *, gently):
    nodes = [scene.node(gpus=4), scene.node(gpus=1)]
    return scene.read(
        actors=5,
        load=4,
        do=lambda: scene.cluster.remove_node(scene.loading(nodes, 4), allow_graceful=gently),
    )


def removed_while_loading(scene):
    return _while_loading(scene, gently=True)


def killed_while_loading(scene):
    return _while_loading(scene, gently=False)


SCENES = {
    function.__name__: function
    for function in (killed, removed, drained, removed_while_loading, killed_while_loading)
}


def main():
    name, folder = sys.argv[1:]
    with tempfile.TemporaryDirectory(prefix="e", dir="/tmp") as place:  # sockets need short paths
        os.environ["RAY_TMPDIR"] = place
        scene = Scene(folder)
        try:
            found = SCENES[name](scene)
        finally:
            scene.end()
    found["seconds"] = round(time.monotonic() - scene.started, 1)
    (Path(folder) / "result.json").write_text(json.dumps(found, indent=1))
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
