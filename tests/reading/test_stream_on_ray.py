"""Ray Data does what the in-process executor does, whatever dies on the way."""

import collections
import io
import os
import pickle
import re
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import SimpleNamespace
from unittest.mock import MagicMock

import polars as pl
import pytest
import ray
from ray.data._internal.stats import _StatsManager

from engine.machine import device, ray_internals
from engine.machine import pool as pools
from engine.machine.nodes import Needs
from engine.machine.pool import Pool, PoolSettings, decide
from engine.messages.errors import ReadError
from engine.reading import stream_on_ray
from engine.reading.local import Local
from engine.reading.plan import PlansInMemory, ReadPlan, Unit
from engine.reading.protocol import ReaderStats, ReadOutput
from engine.reading.readers import specify
from engine.reading.stream_on_ray import OnRay, unit_rows
from engine.sources.io.folders import folder_at
from tests.conftest import SPEC, planned
from tests.expected import as_expected, refused
from tests.reading.stored import load

pytestmark = pytest.mark.usefixtures("ray_session")


def test_only_an_actors_process_ends_without_its_exit_handlers(monkeypatch):
    registered = []
    monkeypatch.setattr(ray_internals.atexit, "register", lambda *call: registered.append(call))
    ray_internals.end_at_exit()  # as when its classes are used in a driver, or in a test
    assert registered == []

    class Ending:
        def registered(self):
            import atexit

            before = atexit._ncallbacks()
            ray_internals.end_at_exit()
            return atexit._ncallbacks() - before

    ending = ray.remote(num_cpus=0)(Ending).remote()
    assert ray.get(ending.registered.remote()) == 1
    ray.kill(ending)


def plan_of(texts, size=3, role=0):
    """The plan of texts, or of that many, in units of a size."""
    reads = planned([f"t{i}" for i in range(texts)] if isinstance(texts, int) else texts)
    return ReadPlan(reads=reads, wanted=reads.height, role=role, least=size, first=size, most=size)


def host_of(on_text):
    """A host whose reader runs ``on_text`` on every text (by value: workers lack this module)."""

    class Reader:
        def __init__(self):
            self.stats = ReaderStats()

        def read(self, inputs):
            return [ReadOutput(on_text(text), 1, 1, False) for (text,) in inputs]

    class OnActor(Local):
        def load(self, spec):
            return Reader()

    return OnActor


def units_done(*plans, actor=Local, specs=(SPEC,), **more):
    """The units of plans, a reader each, done on actors; this process holds the inputs."""
    more = {"pool": of(2)} | more
    return OnRay(actor(list(specs), [None] * len(specs)), **more).read(PlansInMemory(plans))


def by_key(done):
    """Outputs and failures, by their keys; none comes twice."""
    results = {}
    for unit in done:
        got = dict(unit.reads.select("read_key", "output").iter_rows()) | unit.failures
        assert not got.keys() & results.keys(), "a read came twice"
        assert len(got) == unit.done
        results |= got
    return results


def of(actors):
    return decide(PoolSettings(actors=actors), 2**30)


def outputs(plan, actor, actors=2):
    results = by_key(units_done(plan, actor=actor, pool=of(actors)))
    return [results[key] for key in plan.reads["read_key"]]


def test_every_read_comes_once_and_one_that_raises_fails_alone():
    def upper(text):
        if text == "t7":
            raise ValueError("unknown token")
        return text.upper()

    plan = plan_of(20)
    for actors in (1, 2):
        got = outputs(plan, host_of(upper), actors)
        failed = got.pop(7)
        assert failed[0] == "t7"
        assert failed[1].startswith(f"ValueError: unknown token ({__file__}:")
        assert got == [f"T{i}" for i in range(20) if i != 7]


def all_cpus_free(seconds):
    """Whether all CPUs are free within these seconds."""
    end = time.monotonic() + seconds
    while ray.available_resources().get("CPU", 0) < ray.cluster_resources()["CPU"]:
        if time.monotonic() > end:
            return False
        time.sleep(0.1)
    return True


def test_the_driver_sends_no_statistics_of_blocks_and_stops_the_actors_when_it_stops(monkeypatch):
    sent = []
    monkeypatch.setattr(_StatsManager, "update_iteration_metrics", lambda *of: sent.append(of))

    def slow(text):
        time.sleep(60 * (text == "t5"))
        return text

    pieces = units_done(plan_of(6, size=1), actor=host_of(slow), pool=of(1))
    next(pieces)
    assert not all_cpus_free(0)
    pieces.close()
    assert all_cpus_free(30)
    assert sent == []


def test_planning_waits_for_actors_however_much_the_object_store_would_hold(tmp_path):
    log = tmp_path / "planned"
    plan = plan_of(4, 1)
    path = str(log)

    class Plans:
        shards = range(30)

        def __call__(self, shard, role):
            with open(path, "a") as stream:
                stream.write(f"{shard}\n")
            return plan

    class Slow(host_of(str)):
        def load(self, spec):
            time.sleep(5)
            return super().load(spec)

    done = OnRay(Slow([SPEC], [None]), of(2)).read(Plans())
    next(done)
    assert len(log.read_text().split()) <= 4  # two units an actor; two shards are planned at a time
    assert len(list(done)) == 30 * 4 - 1


@pytest.mark.parametrize(
    ("most", "promised", "waits"),
    [(2, None, True), (3, None, False), (None, None, True), (None, [], False)],
)
def test_planning_does_not_wait_where_the_pool_may_outgrow_its_nodes(
    most, promised, waits, monkeypatch
):
    """Ray Data would take planning that waits for the slow stage, and ask for no node."""

    class StartedError(Exception):
        pass

    def start(_, *, waits):
        raise StartedError(waits)

    monkeypatch.setattr(stream_on_ray, "start_ledger", start)
    monkeypatch.setattr(stream_on_ray.nodes, "promised", lambda: promised)
    pool = Pool(1, most, 2, Needs(1.0, 0.0, 0, None))
    with pytest.raises(StartedError, match=str(waits)):
        next(OnRay(host_of(str)([SPEC], [None]), pool).read(SimpleNamespace(shards=[0])))


def test_readers_of_one_model_share_an_actor(tmp_path):
    """Each unit is read by its own reader, which is loaded when its first unit comes."""
    log = str(tmp_path / "loaded")

    class Reader:
        def __init__(self, spec):
            self.spec, self.stats = spec, ReaderStats()

        def read(self, inputs):
            return [ReadOutput(self.spec.name + text, 1, 1, False) for (text,) in inputs]

    class OnActor(Local):
        def load(self, spec):
            with open(log, "a") as stream:
                stream.write(f"{spec.name} {os.getpid()}\n")
            return Reader(spec)

    plans = [
        plan_of([f"t{i}" for i in range(3 * role, 3 * role + 3)], role=role) for role in (0, 1)
    ]
    specs = [replace(SPEC, name="one "), replace(SPEC, name="two ", choices=("yes",))]
    got = {
        unit.plan.role: unit.reads["output"].to_list()
        for unit in units_done(*plans, actor=OnActor, specs=specs, pool=of(1))
    }
    assert got == {0: ["one t0", "one t1", "one t2"], 1: ["two t3", "two t4", "two t5"]}
    # Ray Data may hand over the units of one job in any order.
    names, processes = zip(*map(str.split, open(log)), strict=True)
    assert (sorted(names), len(set(processes))) == (["one", "two"], 1)


def test_an_actor_killed_once_costs_one_unit_and_no_read(tmp_path):
    mark = str(tmp_path / "died")
    counts = str(tmp_path / "counts")

    def die_once(text):
        with open(counts, "a") as stream:
            stream.write(f"{text}\n")
        if text == "t5" and not os.path.exists(mark):
            open(mark, "w").close()
            os.kill(os.getpid(), signal.SIGKILL)
        return text.upper()

    plan = plan_of(12)
    got = outputs(plan, host_of(die_once))
    assert got == [f"T{i}" for i in range(12)]
    begun = collections.Counter((tmp_path / "counts").read_text().split())
    # the unit of t3, t4 and t5 was begun twice; of another unit on the dead actor at most a part
    assert begun["t5"] == 2
    assert sum(begun.values()) <= 12 + 2 * 3


def test_a_read_that_always_kills_is_isolated():
    def die(text):
        if text == "t4":
            os.kill(os.getpid(), signal.SIGKILL)
        return text.upper()

    plan = plan_of(9)
    got = outputs(plan, host_of(die))
    assert "process died" in got.pop(4)[1]
    assert got == [f"T{i}" for i in range(9) if i != 4]


def test_a_reader_that_fails_throughout_ends_the_job_in_one_line():
    def overflow(text):
        raise ArithmeticError("no numbers")

    plan = plan_of(30)
    with pytest.raises(ReadError) as caught:
        outputs(plan, host_of(overflow), actors=1)
    as_expected(str(caught.value).partition(f" ({__file__}:")[0])
    assert "\n" not in str(caught.value)


def test_an_actor_that_cannot_start_ends_in_one_line():
    class Broken(Local):
        def load(self, spec):
            raise ValueError("weights are broken")

    plan = plan_of(["t0"])
    with pytest.raises(ReadError, match="weights are broken") as caught:
        outputs(plan, Broken, actors=1)
    assert "\n" not in str(caught.value)
    # Whatever holds the error's frames, and before any collection of cycles: a next data set may need the CPUs.
    assert all_cpus_free(30)


def test_a_pool_that_gets_no_node_is_given_up_in_one_line(monkeypatch):
    monkeypatch.setattr(pools, "_PATIENCE", 2.0)
    plan = plan_of(["t0"])
    hopeless = Pool(1, 1, 1, Needs(0.0, 1.0, 0, None))
    told = []
    with pytest.raises(ReadError) as caught:
        list(units_done(plan, actor=host_of(str), pool=hopeless, on_event=told.append))
    as_expected([str(caught.value), *told])


def test_a_real_reader_gives_the_same_on_ray_and_in_process(tiny_t5):
    spec, _ = specify(str(tiny_t5), augmentation="fid", task="short-answer", dtype="float32")
    texts = [" ".join(f"w{(i * 13 + j) % 97}" for j in range(5 + i % 4)) for i in range(14)]
    plan = plan_of(texts, 4)
    here = list(Local([spec], [None]).read(PlansInMemory([plan])))
    there = sorted(units_done(plan, specs=[spec]), key=lambda one: one.unit.number)
    assert all(unit.stats["peak_memory"] > 2**20 for unit in there)
    assert pl.concat([u.reads for u in there]).equals(pl.concat([u.reads for u in here]))
    assert [one.unit.number for one in there] == list(range(len(here)))


def test_a_worker_with_another_version_than_the_drivers_reads_nothing(monkeypatch):
    plan = plan_of(6)
    with monkeypatch.context() as newer:
        newer.setattr(device, "__version__", "9.9.9")
        done = units_done(plan, actor=host_of(str), pool=of(1))
        with refused("machine.versions", text=False) as caught:
            list(done)
    assert re.match(r"node \w{8} process \d+ has .*, the driver 9\.9\.9; ", str(caught.value))


def test_what_is_held_is_committed_here_and_shards_on_actors(tmp_path):
    """The store of a driver need not be there on other nodes; a shard's outputs do not come back."""

    class Logging(host_of(str)):
        def commit(self, done):
            with open(log, "a") as stream:
                stream.write(f"{os.getpid()}\n")
            return super().commit(done)

    plan = plan_of(6)
    for held in (True, False):
        place, log = folder_at(tmp_path / str(held)), str(tmp_path / f"{held} log")
        made = PlansInMemory([plan])

        class Plans:
            shards = (0,)

            def __call__(self, shard, role, made=made):
                return made(shard, role)

        done = list(OnRay(Logging([SPEC], [place]), of(1)).read(made if held else Plans()))
        assert [unit.reads is not None for unit in done] == [held] * 2
        assert load(place, SPEC.fingerprint).reads.height == 6
        processes = open(log).read().split()
        assert [int(process) == os.getpid() for process in processes] == [held] * 2


def test_an_actor_starts_a_unit_and_commits_another_while_it_reads(tmp_path):
    """While it reads its second unit, the first one is committed, and then the third one started."""
    folder = str(tmp_path)
    counts = collections.Counter()

    def mark(what):
        counts[what] += 1
        open(os.path.join(folder, f"{what} {counts[what]}"), "w").close()
        return counts[what]

    def wait_for(what):
        until = time.monotonic() + 20
        while not os.path.exists(os.path.join(folder, what)):
            if time.monotonic() > until:
                raise ReadError(f"no {what} meanwhile")
            time.sleep(0.01)

    class Reader:
        reads_ahead = False

        def __init__(self):
            self.stats = ReaderStats()

        def start(self, inputs):
            mark("start")
            return lambda: self.read(inputs)

        def read(self, inputs):
            if mark("read") == 2:
                wait_for("commit 1")
                wait_for("start 3")
            return [ReadOutput(text, 1, 1, False) for (text,) in inputs]

    class OnActor(Local):
        def load(self, spec):
            return Reader()

        def commit(self, done):
            if mark("commit") == 1:
                wait_for("read 2")
            return done

    plan = plan_of(["a", "b", "c"], 1)
    on_ray = OnRay(OnActor([SPEC], [None]), of(1))
    done = on_ray.read(PlansInMemory([plan]))
    assert [unit.done for unit in done] == [1, 1, 1]


class Played:
    """What an actor asks the ledger; units were begun as often as is said."""

    def __init__(self, begun):
        self.begun, self.asked, self.ledger = begun, [], MagicMock()

    def begin(self, unit, attempt):
        self.asked.append(unit)
        return self.begun[unit]

    def enter(self, row, attempt):
        return True

    def leave(self, row):
        pass


class Begins:
    """Begins reads when they are started, as vLLM does; says in which order, and waits before it ends the first."""

    reads_ahead = True

    def __init__(self):
        self.stats, self.log, self.may_end = ReaderStats(), [], threading.Event()

    def start(self, inputs):
        words = [text for (text,) in inputs]
        self.log.append(("start", *words))

        def finish():
            assert self.may_end.wait(20)
            self.log.append(("end", *words))
            return [ReadOutput(word, 1, 1, False) for word in words]

        return finish

    def read(self, inputs):
        return self.start(inputs)()


@pytest.mark.parametrize(
    ("begun", "log"),
    [
        ({0: 1, 1: 2}, [("start", "a"), ("start", "b"), ("end", "a"), ("end", "b")]),
        # Read by read, a unit is alone: what dies then has died of its read.
        ({0: 3, 1: 1}, [("start", "a"), ("end", "a"), ("start", "b"), ("end", "b")]),
        ({0: 1, 1: 3}, [("start", "a"), ("end", "a"), ("start", "b"), ("end", "b")]),
    ],
)
def test_a_unit_in_which_processes_died_is_read_beside_no_other(monkeypatch, begun, log):
    reader = Begins()
    monkeypatch.setattr(stream_on_ray, "Attempts", Played)
    local = Local([SPEC], [None])
    local.readers[0] = reader
    actor = stream_on_ray._Actor(local, begun, commits=True)
    with ThreadPoolExecutor(2) as threads:
        both = []
        for number, text in enumerate("ab"):
            unit = Unit(number, number, 1)
            both.append(threads.submit(actor._read, unit, [[text]]))
            until = time.monotonic() + 20
            while not (reader.log and actor._reading._work_queue.qsize() == number):
                assert time.monotonic() < until
                time.sleep(0.01)
        reader.may_end.set()
        assert [one.result().outputs[0].output for one in both] == ["a", "b"]
    assert reader.log == log
    assert sorted(actor._attempts.asked) == [0, 1]


def test_a_unit_travels_with_its_own_prompts_alone():
    reads = 1000
    plan = pl.DataFrame(
        {
            "read_key": [f"{i:064}" for i in range(reads)],
            "query_id": [f"q{i}" for i in range(reads)],
            "doc_ids": [[f"d{i}"] for i in range(reads)],
            "inputs": [["prompt " * 100 + str(i)] for i in range(reads)],
            "size": 1,
            "group": range(reads),
        }
    )
    shard_plan = ReadPlan(reads=plan, wanted=reads, first=10, most=10, span=(0, 1))
    rows = list(unit_rows(shard_plan, 0, lambda *_: None))
    assert len(rows) == 100
    # 10 prompts of 700 characters, their keys, and what the formats add.
    assert max(len(pickle.dumps(row)) for row in rows) < 13_000
    whole = pl.concat(pl.read_ipc_stream(io.BytesIO(row[3])) for row in rows)
    assert whole.equals(plan.select(whole.columns))
