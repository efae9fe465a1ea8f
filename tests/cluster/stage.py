"""A cluster of pretended nodes, and reads that are done on it while something happens."""

import collections
import contextlib
import logging
import os
import signal
import threading
import time
from dataclasses import asdict
from pathlib import Path

import ray
import ray.data
from ray.cluster_utils import Cluster

from engine.machine.pool import PoolSettings, decide
from engine.machine.watch import PoolTotals
from engine.reading.local import Local
from engine.reading.plan import PlansInMemory, ReadPlan
from engine.reading.protocol import ReaderStats, ReadOutput
from engine.reading.stream_on_ray import OnRay
from tests.cluster.play import READS, UNIT
from tests.conftest import SPEC, planned
from tests.faults.processes import with_variable

ACTOR_BYTES = 2**27
STORE_BYTES = 80 * 2**20


def answer(text):
    return text.upper()


def host_of(log, load, pace, sick=()):
    """A host whose reader takes ``load`` seconds to load and ``pace`` seconds a read, and logs both; on sick nodes it
    does not load.
    """

    class Reader:
        def __init__(self):
            self.stats = ReaderStats()

        def read(self, inputs):
            node = ray.get_runtime_context().get_node_id()
            outputs = []
            for (text,) in inputs:
                with open(log, "a") as stream:
                    stream.write(f"{text} {node} {time.monotonic()}\n")
                time.sleep(pace)
                outputs.append(ReadOutput(text.upper(), 1, 1, False))
            return outputs

    class OnActor(Local):
        def load(self, spec):
            with open(f"{log}.loading", "a") as stream:
                stream.write(f"{ray.get_runtime_context().get_node_id()}\n")
            time.sleep(load)
            if ray.get_runtime_context().get_node_id() in sick:
                raise RuntimeError("CUDA error: uncorrectable ECC error encountered")
            return Reader()

    return OnActor


class Stage:
    """A head, on which the driver runs, and what is added to it."""

    def __init__(self, folder, *, gpus=0, cpus=1, store=STORE_BYTES):
        self.folder = Path(folder)
        self.log = self.folder / "log"
        self.log.touch()
        self.started = time.monotonic()
        self.events = []
        self.cluster = Cluster(
            initialize_head=True,
            head_node_args={"num_cpus": cpus, "num_gpus": gpus, "object_store_memory": store},
        )
        ray.init(address=self.cluster.address, log_to_driver=False, logging_level="ERROR")
        logging.getLogger("ray.data").setLevel(logging.ERROR)

    def node(self, gpus=1, cpus=1):
        """Add a node; in the main thread only."""
        return self.cluster.add_node(num_cpus=cpus, num_gpus=gpus, object_store_memory=STORE_BYTES)

    def kill(self, node):
        self.cluster.remove_node(node, allow_graceful=False)

    def remove(self, node):
        self.cluster.remove_node(node, allow_graceful=True)

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
        self.remove(node)

    def kill_process(self, name):
        """Kill the process of the actor of a class, as the system's memory killer does."""
        for process, command in with_variable("RAY_AUTH_TOKEN", os.environ["RAY_AUTH_TOKEN"]):
            if command.startswith(f"ray::{name}"):
                os.kill(process, signal.SIGKILL)
                return
        raise LookupError(name)

    def say(self, line):
        self.events.append(line)
        print(f"{time.monotonic() - self.started:6.1f} {line}", flush=True)

    def lines(self):
        """Text, node and time of every read that was begun."""
        return [line.split() for line in self.log.read_text().splitlines()]

    def busy(self, nodes):
        """The one of these nodes on which the latest read was begun."""
        by_id = {node.node_id: node for node in nodes}
        return next(by_id[where] for _, where, _ in reversed(self.lines()) if where in by_id)

    def until_reading(self, nodes):
        """Wait until every one of these nodes has read something."""
        while not {node.node_id for node in nodes} <= {where for _, where, _ in self.lines()}:
            time.sleep(0.2)

    def until_loading(self, nodes, count):
        """Wait until so many actors load on one of these nodes; which it is."""
        while True:
            with contextlib.suppress(FileNotFoundError):
                begun = Path(f"{self.log}.loading").read_text().split()
                for node in nodes:
                    if begun.count(node.node_id) >= count:
                        return node
            time.sleep(0.1)

    def most_at_once(self):
        """The most nodes that read within the same two seconds."""
        by_time = collections.defaultdict(set)
        for _, node, when in self.lines():
            by_time[int(float(when)) // 2].add(node)
        return max(map(len, by_time.values()))

    def read(self, *, after=0, do=None, load=0, pace=0.05, reads=READS, sick=(), **settings):
        """Do the reads in a thread, and ``do`` beside them when ``after`` units are done.

        Args:
            load, pace, sick: as in ``host_of``.
            reads: how many.
            settings: as in ``PoolSettings``.
        """
        texts = [f"t{number}" for number in range(reads)]
        plan = planned(texts)
        totals = PoolTotals()
        got: dict[str, list[str]] = {}
        workers = collections.Counter()
        enough = threading.Event()
        raised = []

        def run():
            try:
                sizes = {"least": UNIT, "first": UNIT, "most": UNIT}
                made = PlansInMemory([ReadPlan(reads=plan, wanted=plan.height, **sizes)])
                local = host_of(str(self.log), load, pace, sick)([SPEC], [None])
                pool = decide(PoolSettings(**settings), ACTOR_BYTES)
                results = OnRay(local, pool, self.say, totals).read(made)
                for done, result in enumerate(results, 1):
                    workers[result.worker.split(" process")[0]] += 1
                    assert not result.failures, result.failures
                    for text, output in result.reads.select("read_key", "output").iter_rows():
                        got.setdefault(text, []).append(output)
                    if done >= after:
                        enough.set()
            except Exception as error:
                raised.append(error)
            finally:
                enough.set()

        reading = threading.Thread(target=run, daemon=True)
        reading.start()
        if do:
            if after:
                enough.wait()
            do()
        reading.join()
        if raised:
            raise raised[0]
        begun = collections.Counter(text for text, _, _ in self.lines())
        return {
            "equal": [got.get(text) for text in texts] == [[answer(text)] for text in texts],
            "lost": reads - len(got),
            "doubled": sum(len(outputs) > 1 for outputs in got.values()),
            "repeated": sum(times - 1 for times in begun.values()),
            "workers": dict(workers),
            "events": self.events,
            **asdict(totals),
        }

    def end(self):
        ray.shutdown()
        self.cluster.shutdown()
