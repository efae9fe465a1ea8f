"""What can happen to a cluster while reads are done. ``tests.cluster.play`` plays a scene.

Every scene is given a head alone, without GPUs but where ``WITH_GPU_ON_HEAD`` says so.
"""

import collections
import contextlib
import json
import os
import signal
import sys
import threading
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

import numpy as np
import polars as pl
import ray

from engine.machine.pool import PoolSettings, decide
from engine.machine.survey import reading_dtype
from engine.messages.errors import InputError, ReadError
from engine.retrieval import distribute, flat
from engine.retrieval.encode import Block, Part, Shard
from engine.sources.io.folders import folder_at
from engine.training import on_ray
from engine.training.settings import Workers
from engine.training.start import specify_start
from engine.training.train import Plan
from tests.cluster.play import READS
from tests.cluster.stage import Stage
from tests.faults import driver
from tests.retrieval import search_actors
from tests.training.facts import RECIPE, facts, save_start


def killed(stage):
    """A node that reads, without a word."""
    nodes = [stage.node(), stage.node()]
    return stage.read(actors=2, after=4, do=lambda: stage.kill(stage.busy(nodes)))


def removed(stage):
    """A node that reads, its processes told to end."""
    nodes = [stage.node(), stage.node()]
    return stage.read(actors=2, after=4, do=lambda: stage.remove(stage.busy(nodes)))


def drained(stage):
    """A node that reads, its end announced two seconds before."""
    nodes = [stage.node(), stage.node()]
    return stage.read(actors=2, after=4, do=lambda: stage.drain(stage.busy(nodes), 2))


def killed_while_loading(stage):
    """A node on which four actors are loading."""
    nodes = [stage.node(gpus=4), stage.node()]
    return stage.read(actors=5, load=4, do=lambda: stage.kill(stage.until_loading(nodes, 4)))


def removed_while_loading(stage):
    nodes = [stage.node(gpus=4), stage.node()]
    return stage.read(actors=5, load=4, do=lambda: stage.remove(stage.until_loading(nodes, 4)))


def ledger_killed(stage):
    """The ledger's process, and then a node that reads; the head, which has a GPU here, goes on."""
    node = stage.node()

    def kill():
        stage.until_reading([node])
        stage.kill_process("Ledger")
        stage.kill(node)

    return stage.read(actors=2, after=8, do=kill)


def all_lost(stage):
    """Every node that reads; others join."""
    nodes = [stage.node(), stage.node()]

    def change():
        for node in nodes:
            stage.kill(node)
        time.sleep(3)
        stage.node()
        stage.node()

    return stage.read(actors="1:2", after=4, do=change)


def sick(stage):
    """The GPU of one node, and then those of all nodes, fail while the model is loaded."""
    nodes = [stage.node().node_id, stage.node().node_id]
    found = stage.read(actors=2, sick=nodes[:1])
    try:
        stage.read(actors=2, sick=nodes)
    except ReadError as error:
        return found | {"sick": nodes, "ended": str(error)}


def from_zero(stage):
    """Nodes with GPUs join some seconds after the job began."""

    def later():
        time.sleep(4)
        stage.node()
        stage.node()

    return stage.read(actors="1:4", gpus_per_actor=1, do=later)


def precision_from_zero(stage):
    """The nodes that will read are asked for their precision, and there is none yet."""
    os.environ["RAY_ADDRESS"] = stage.cluster.address
    answers = []

    def ask():
        settings = PoolSettings(actors="1:4", gpus_per_actor=1)
        answers.append(reading_dtype(settings, stage.say))

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    time.sleep(3)
    early = list(answers)
    stage.node()
    asking.join()
    return {"early": early, "answers": answers, "events": stage.events}


def grows_and_shrinks(stage):
    """A pool of 1 to 4: two nodes join, one of the three is drained and one killed, another joins."""
    first = stage.node()

    def change():
        second, third = stage.node(), stage.node()
        stage.until_reading([first, second, third])
        stage.drain(second, 2)
        stage.kill(third)
        stage.until_reading([stage.node()])

    found = stage.read(actors="1:4", after=1, do=change, pace=0.1, reads=1200)
    return found | {"most_at_once": stage.most_at_once()}


def encoding_parquet(stage):
    """A corpus that actors' nodes read, but for its second half, which they do not see."""
    half = SHARDS // 2
    return encoding(stage, [(0, half, True), (half, SHARDS, False)], anywhere=True)


def encoding(stage, parts=((0, None, True),), anywhere=False):
    """Shards of a corpus are encoded; the desk's process is killed, and then a node that encodes."""
    nodes = [stage.node(), stage.node()]
    log = str(stage.log)

    class Encoder:
        def encode(self, texts):
            node = ray.get_runtime_context().get_node_id()
            with open(log, "a") as stream:
                stream.write(f"{texts[0]} {node} {time.monotonic()}\n")
            time.sleep(0.3)
            return np.array([[float(text), 1.0] for text in texts])

    class Actor(distribute.EncoderActor):
        def load(self, spec):
            return Encoder()

    driver = os.getpid()

    def part(first, stop, seen):
        numbers = range(first, stop or SHARDS)

        def scan():
            if not seen and os.getpid() != driver:
                raise InputError("no such file", "give a corpus")
            return numbers

        def cut(numbers):
            return (Shard(f"key {n}", [f"d{n}"], [f"{n}"]) for n in numbers)

        return Part([f"key {n}" for n in numbers], scan, cut, anywhere)

    corpus = [part(*one) for one in parts]

    got: dict[str, list[float]] = collections.defaultdict(list)
    enough = threading.Event()

    def encode():
        pool = decide(PoolSettings(actors=2), 2**27)
        spec = SimpleNamespace(dimensions=2)
        for encoded in distribute.execute(
            corpus, SHARDS, spec, "fp32", pool=pool, actor_class=Actor, on_event=stage.say
        ):
            got[encoded.key].append(float(encoded.vectors[0, 0]))
            if len(got) >= 4:
                enough.set()

    encoding = threading.Thread(target=encode, daemon=True)
    encoding.start()
    enough.wait()
    stage.kill_process("Desk")
    stage.kill(stage.busy(nodes))
    encoding.join()
    begun = collections.Counter(text for text, _, _ in stage.lines())
    return {
        "equal": dict(got) == {f"key {n}": [float(n)] for n in range(SHARDS)},
        "lost": SHARDS - len(got),
        "doubled": sum(len(values) > 1 for values in got.values()),
        "repeated": sum(times - 1 for times in begun.values()),
        "events": stage.events,
    }


def searching(stage):
    """Vectors are searched on three nodes: the process of an actor is killed, and then a node that searches."""
    nodes = [stage.node(), stage.node(), stage.node()]
    os.environ["RAY_ADDRESS"] = stage.cluster.address
    log = str(stage.log)

    class Actor(search_actors.Actor):
        def candidates(self, block):
            node = ray.get_runtime_context().get_node_id()
            with open(log, "a") as stream:
                stream.write(f"{block.doc_ids[0]} {node} {time.monotonic()}\n")
            time.sleep(0.3)
            return super().candidates(block)

    draw = np.random.default_rng(0)
    vectors = draw.standard_normal((20 * SHARDS, 16)).astype(np.float32)
    queries = draw.standard_normal((9, 16)).astype(np.float32)
    ids = pl.Series([f"d{n}" for n in range(len(vectors))])
    blocks = [Block(ids.slice(at, 20), vectors[at : at + 20]) for at in range(0, len(vectors), 20)]
    spec = SimpleNamespace(path=str(stage.folder), dtype="float32", dimensions=16, memory=0)
    found = []

    def search():
        pool = distribute.pool_for(spec, len(blocks))
        parts = [partial(Block, block.doc_ids, block.vectors) for block in blocks]
        actors = distribute.SearchOnRay(pool, spec, parts, stage.say, Actor)
        found.append(flat.search_flat((), queries, k=10, searcher=actors))

    thread = threading.Thread(target=search, daemon=True)
    thread.start()
    stage.until_reading(nodes)
    stage.kill_process("MapWorker")
    stage.kill(stage.busy(nodes))
    thread.join()
    begun = collections.Counter(text for text, _, _ in stage.lines())
    return {
        "equal": found[0].equals(flat.search_flat(blocks, queries, k=10)),
        "lost": SHARDS - len(begun),
        "doubled": 0,
        "repeated": sum(times - 1 for times in begun.values()),
        "events": stage.events,
    }


def head_lost(stage):
    """The head's machine with the driver on it; never returns."""
    stage.node()
    stage.node()
    store = stage.folder / "store"

    def read():
        driver.get(store, str(stage.log), count=READS, ray=True)

    threading.Thread(target=read, daemon=True).start()
    while not store.exists() or len(driver.keys_of(store)) < READS // 4:
        time.sleep(0.05)
    stage.cluster.head_node.kill_all_processes(check_alive=False, allow_graceful=False)
    os.kill(os.getpid(), signal.SIGKILL)


def resumed(stage):
    """The same reads on a new cluster, with the store that a lost head left."""
    stage.node()
    stage.node()
    store = stage.folder / "store"
    before = set(driver.keys_of(store))
    begun = len(stage.log.read_text().splitlines())
    got = driver.get(store, str(stage.log), count=READS, ray=True)
    log = stage.log.read_text().splitlines()
    stored = driver.keys_of(store)
    undisturbed = driver.get(stage.folder / "other", str(stage.folder / "other.log"), count=READS)
    key_of = dict(zip(driver.texts(READS), got["read_key"], strict=True))
    return {
        "equal": got.equals(undisturbed),
        "lost": sum(key_of[text] in before for text in log[begun:]) + READS - len(set(stored)),
        "doubled": len(stored) - len(set(stored)),
        "repeated": sum(times - 1 for times in collections.Counter(log).values()),
        "resumed": len(before),
    }


def trains(stage):
    """Two workers of a training on a node with two GPUs, which torch for CPUs refuses as the workers begin."""
    stage.node(gpus=2)
    start = specify_start(str(save_start(stage.folder)), augmentation="fid")
    of_engine, seen = on_ray._work, stage.folder / "seen"

    def work(config):
        with seen.open("a") as stream:
            try:
                of_engine(config)
            finally:
                stream.write(f"{os.environ['CUDA_VISIBLE_DEVICES']} {os.environ['LOCAL_RANK']}\n")

    # NCCL needs more than pretended GPUs.
    group = partial(on_ray._group, "gloo")
    pretended = patch.multiple(on_ray, _work=work, _group=lambda _: group())
    with pretended, contextlib.suppress(ReadError):
        plan = Plan(start, RECIPE, facts(8, 1))
        on_ray.train_on_ray(plan, folder_at(stage.folder), Workers(workers=2))
    return {"seen": sorted(set(seen.read_text().splitlines()))}


SHARDS = 24
# A head with a GPU reads too.
WITH_GPU_ON_HEAD = ("ledger_killed",)


def main():
    name, folder = sys.argv[1:]
    stage = Stage(folder, gpus=int(name in WITH_GPU_ON_HEAD))
    try:
        found = globals()[name](stage)
    finally:
        stage.end()
    found["seconds"] = round(time.monotonic() - stage.started, 1)
    (Path(folder) / "result.json").write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
