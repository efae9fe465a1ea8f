"""Reads in this process: a unit is started, and another committed, while one is read; what fails, and which versions read."""

import threading
from dataclasses import replace

import pytest

from engine.machine import device
from engine.machine.remote.api_settings import ApiSettings
from engine.machine.remote.limits import limits_of
from engine.messages.errors import BoundError, ReadError, WriteError
from engine.reading import protocol
from engine.reading.costs import UnitResult
from engine.reading.local import Local
from engine.reading.plan import PlansInMemory, ReadPlan, Unit
from engine.reading.protocol import READING_VERSION, ReaderStats, ReadOutput
from tests.conftest import SPEC, STATS, planned
from tests.expected import as_expected, refused

SOON = 20.0  # seconds that anything may take here


class Reader:
    """Starts reads; ``on_finish`` is called as they are done, with the text of the first."""

    reads_ahead = False

    def __init__(self, on_finish=lambda text: None):
        self.stats, self.on_finish = ReaderStats(), on_finish
        self.started = []
        self.new = threading.Condition()

    def read(self, inputs):
        return self.start(inputs)()

    def start(self, inputs):
        first = inputs[0][0]
        with self.new:
            self.started.append(first)
            self.new.notify_all()

        def finish():
            self.on_finish(first)
            return [ReadOutput(text.upper(), 1, 1, False) for (text,) in inputs]

        return finish

    def wait_for(self, first):
        with self.new:
            assert self.new.wait_for(lambda: first in self.started, SOON), f"{first} not started"


class Logging(Local):
    """Commits by a function, and remembers what was committed."""

    def __init__(self, reader, on_commit=lambda text: None):
        super().__init__([SPEC], [None])
        self.own, self.on_commit, self.committed = reader, on_commit, []

    def load(self, spec):
        return self.own

    def commit(self, done):
        first = done.reads["output"][0].lower()
        self.on_commit(first)
        self.committed.append(first)
        return done


def read(host, texts=("a", "b", "c")):
    return host.read(cut(list(texts), 1))


def cut(texts, size):
    plan = planned(texts)
    return PlansInMemory(
        [ReadPlan(reads=plan, wanted=plan.height, least=size, first=size, most=size)]
    )


def firsts(done):
    return [unit.reads["output"][0].lower() for unit in done]


def test_the_next_unit_is_started_before_one_is_done():
    following = {"a": "b", "b": "c"}
    reader = Reader(lambda text: text in following and reader.wait_for(following[text]))
    assert firsts(read(Logging(reader))) == ["a", "b", "c"]
    assert reader.started == ["a", "b", "c"]


def test_a_unit_is_committed_while_the_next_one_is_read():
    committing, reading = threading.Event(), threading.Event()

    def on_finish(text):
        if text == "b":
            assert committing.wait(SOON), "the commit waits for the next unit"
            reading.set()

    def on_commit(text):
        if text == "a":
            committing.set()
            assert reading.wait(SOON), "the next unit waits for the commit"

    host = Logging(Reader(on_finish), on_commit)
    assert firsts(read(host)) == host.committed == ["a", "b", "c"]


def test_a_commit_that_fails_ends_the_reading_with_its_error():
    def on_commit(text):
        if text == "b":
            raise WriteError("full")

    host = Logging(Reader(), on_commit)
    done = read(host, "abcdef")
    assert firsts([next(done)]) == ["a"]
    with pytest.raises(WriteError, match="full"):
        list(done)
    # What was read beside it is kept where that can be done; nothing more was read.
    assert host.committed == ["a", "c"]


def test_an_interrupt_waits_until_what_was_read_is_committed():
    interrupted = threading.Event()

    def on_finish(text):
        if text == "b":
            interrupted.set()
            raise KeyboardInterrupt

    host = Logging(Reader(on_finish), lambda text: interrupted.wait(SOON))
    with pytest.raises(KeyboardInterrupt):
        list(read(host))
    assert host.committed == ["a"]


def test_a_reader_that_cannot_start_a_unit_does_it_read_by_read():
    class Refusing(Reader):
        def start(self, inputs):
            if len(inputs) > 1 or inputs[0][0] == "b":
                raise ValueError("unknown token")
            return super().start(inputs)

    (done,) = Logging(Refusing()).read(cut(["a", "b", "c"], 9))
    ((_, reason),) = done.failures.values()
    assert reason.startswith(f"ValueError: unknown token ({__file__}:")
    assert done.reads["output"].to_list() == ["A", "C"]


class Loads(Local):
    def load(self, spec):
        return "a reader"


HERE = {"torch": "2.13.0+cpu", "transformers": "5.17.0", "vllm": "0.32.0"}
ENGINE = f"erag-engine {device.__version__}"


@pytest.mark.parametrize(
    ("engine", "driver", "said"),
    [
        ("transformers", {}, ""),
        # a build, and one not in use
        ("transformers", {"torch": "2.13.0+cu130", "vllm": "0.31.0"}, ""),
        ("transformers", {"torch": "2.12.0+cpu"}, "has torch 2.13.0, the driver 2.12.0"),
        ("transformers", {"transformers": "5.16.0"}, "has transformers 5.17.0, the driver 5.16.0"),
        ("vllm", {"vllm": "0.31.0"}, "has vllm 0.32.0, the driver 0.31.0"),
        ("vllm", {"vllm": None}, ""),  # on a head without GPUs
        ("function", {"torch": "2.12.0", "vllm": "0.31.0"}, ""),
        ("function", {"engine": "0.9"}, f"has {ENGINE}, the driver 0.9"),
        ("openai", {"reading": 99}, f"has READING_VERSION {READING_VERSION}, the driver 99"),
    ],
)
def test_a_worker_with_other_versions_than_the_drivers_reads_nothing(
    engine, driver, said, monkeypatch
):
    monkeypatch.setattr(device, "version_of", HERE.get)
    with monkeypatch.context() as there:
        there.setattr(device, "version_of", (HERE | driver).get)
        there.setattr(device, "__version__", driver.get("engine", device.__version__))
        there.setattr(protocol, "READING_VERSION", driver.get("reading", READING_VERSION))
        host = Loads([replace(SPEC, engine=engine)], [None])
    host.worker = "node 12345678 process 9"
    if not said:
        assert host.reader(0) == "a reader"
        return
    with refused("machine.versions", text=False) as caught:
        host.reader(0)
    assert str(caught.value).startswith(f"node 12345678 process 9 {said}; ")


def test_a_worker_that_lacks_a_library_reads_nothing(monkeypatch):
    host = Loads([replace(SPEC, engine="transformers")], [None])
    monkeypatch.setattr(device, "version_of", lambda name: None)
    with refused("machine.versions", text=False) as caught:
        host.reader(0)
    assert str(caught.value).count("(none)") == 2


OUT = "out of memory (CUDA out of memory. Tried to allocate 20.00 MiB, 1.5 GiB are free)"
OUT_AGAIN = "out of memory (CUDA out of memory. Tried to allocate 3.25 GiB, 900.00 MiB are free)"
NO_ROOM = "3120 tokens, vLLM has room for 2048; give it more `memory`"
NO_ROOM_EITHER = "2977 tokens, vLLM has room for 2048; give it more `memory`"


class Unsteady:
    """Raises or returns a failure where a text says so; counts its calls."""

    def __init__(self):
        self.stats = ReaderStats()
        self.calls = 0

    def read(self, inputs):
        self.calls += 1
        for (text,) in inputs:
            if text.startswith("bad"):
                raise ValueError(text.removeprefix("bad "))
        return [
            ReadOutput.failed(text.removeprefix("returns "))
            if text.startswith("returns ")
            else ReadOutput(text, 1, 1, False)
            for (text,) in inputs
        ]


def without_line(text):
    """A text without the line of this file that is named in it."""
    return text and text.partition(f" ({__file__}:")[0]


def failures(outputs):
    return [without_line(one.failure) for one in outputs]


def read_unit(reader, *texts):
    """The outputs of one unit, by a reader that stays in its host."""
    reader.host = getattr(reader, "host", None) or Logging(reader)
    return reader.host.read_unit(Unit(0, 0, len(texts)), [[t] for t in texts]).outputs


def test_one_bad_read_fails_alone():
    assert failures(read_unit(Unsteady(), "a", "bad b", "c")) == [None, "ValueError: b", None]


def test_a_reader_whose_first_reads_all_fail_alike_is_given_up():
    with pytest.raises(ReadError) as caught:
        read_unit(Unsteady(), "bad x", "bad x")
    as_expected(without_line(str(caught.value)))


@pytest.mark.parametrize("texts", [("bad x",), ("bad x", "bad y"), ("bad x", "b")])
def test_a_single_read_or_different_reasons_prove_nothing(texts):
    assert any(o.failure for o in read_unit(Unsteady(), *texts))


def test_a_reader_that_has_read_is_not_given_up():
    reader = Unsteady()
    read_unit(reader, "a", "b")
    assert failures(read_unit(reader, "bad x", "bad x")) == ["ValueError: x"] * 2


@pytest.mark.parametrize("reasons", [(OUT, OUT_AGAIN), (NO_ROOM, NO_ROOM_EITHER)])
def test_a_reader_that_returns_nothing_but_shortages_of_memory_is_given_up(reasons):
    with pytest.raises(ReadError) as caught:
        read_unit(Unsteady(), *(f"returns {reason}" for reason in reasons))
    as_expected(str(caught.value))


@pytest.mark.parametrize(
    "texts",
    [
        (f"returns {OUT}",),
        (f"returns {OUT}", "a"),
        (f"returns {OUT}", f"returns {NO_ROOM}"),
        ("returns too long",) * 2,
    ],
)
def test_other_returned_failures_do_not_end_the_run(texts):
    assert any(output.failure for output in read_unit(Unsteady(), *texts))


def test_failures_that_are_returned_prove_no_reader():
    reader = Unsteady()
    read_unit(reader, f"returns {OUT}")  # a unit of one read
    with pytest.raises(ReadError) as caught:
        read_unit(reader, f"returns {OUT}", f"returns {OUT_AGAIN}")
    as_expected(str(caught.value))


def test_a_shortage_of_memory_after_a_read_does_not_end_the_run():
    reader = Unsteady()
    read_unit(reader, "a", f"returns {OUT}")
    assert all(output.failure for output in read_unit(reader, f"returns {OUT}", f"returns {OUT}"))


@pytest.mark.parametrize("is_program", [False, True])
def test_beyond_a_bound_no_program_is_called_and_no_reader_is_loaded(is_program):
    """Nor is a program, where it goes on unit by unit, asked for another one."""
    called, outputs = [], [ReadOutput("x", 1, 1, False)]

    def program(plan, units, spec):
        called.append("program")
        return (called.append(u) or UnitResult(u, outputs, "", 1.0, STATS) for u in units)

    class Loading(Local):
        def load(self, spec):
            called.append("reader")
            return Reader()

    bounds = ApiSettings(max_hours=1e-9)
    host = Loading([SPEC], [None], bounds, program if is_program else None)
    limits_of(bounds).took.append(1.0)  # a unit of an earlier shard
    with pytest.raises(BoundError, match="max_hours"):
        list(read(host))
    assert called == []
    limits_of(bounds).took.clear()
    with pytest.raises(BoundError, match="max_hours"):
        list(read(host))
    assert len(called) == 1 + is_program
