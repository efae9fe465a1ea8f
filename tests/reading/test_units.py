"""Reading one unit in this process."""

import pytest

from engine.messages.errors import ReadError
from engine.reading.local import run_unit
from engine.reading.plan import Unit
from engine.reading.protocol import ReaderStats, ReadOutput

OUT = "out of memory (CUDA out of memory. Tried to allocate 20.00 MiB, 1.5 GiB are free)"
OUT_AGAIN = "out of memory (CUDA out of memory. Tried to allocate 3.25 GiB, 900.00 MiB are free)"
NO_ROOM = "3120 tokens, vLLM has room for 2048; give it more `memory`"
NO_ROOM_EITHER = "2977 tokens, vLLM has room for 2048; give it more `memory`"


class Reader:
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


def failures(outputs):
    """Why reads failed, without the line of this file that is named behind it."""
    return [o.failure and o.failure.partition(f" ({__file__}:")[0] for o in outputs]


def read(reader, *texts):
    return run_unit(reader, Unit(0, 0, len(texts)), [[t] for t in texts], worker="here").outputs


def test_one_bad_read_fails_alone():
    assert failures(read(Reader(), "a", "bad b", "c")) == [None, "ValueError: b", None]


def test_a_reader_whose_first_reads_all_fail_alike_is_given_up():
    with pytest.raises(
        ReadError, match="first 2 LLM calls failed, all for one reason: ValueError: x"
    ):
        read(Reader(), "bad x", "bad x")


@pytest.mark.parametrize("texts", [("bad x",), ("bad x", "bad y"), ("bad x", "b")])
def test_a_single_read_or_different_reasons_prove_nothing(texts):
    assert any(o.failure for o in read(Reader(), *texts))


def test_a_reader_that_has_read_is_not_given_up():
    reader = Reader()
    read(reader, "a", "b")
    assert failures(read(reader, "bad x", "bad x")) == ["ValueError: x"] * 2


@pytest.mark.parametrize("reasons", [(OUT, OUT_AGAIN), (NO_ROOM, NO_ROOM_EITHER)])
def test_a_reader_that_returns_nothing_but_shortages_of_memory_is_given_up(reasons):
    with pytest.raises(ReadError) as refused:
        read(Reader(), *(f"returns {reason}" for reason in reasons))
    assert str(refused.value).startswith("the first 2 LLM calls failed, all for want of memory: ")
    assert reasons[0] in str(refused.value)
    assert str(refused.value).endswith("; give it more `memory`")
    assert str(refused.value).count("more `memory`") == 1


@pytest.mark.parametrize(
    "texts",
    [
        (f"returns {OUT}",),
        (f"returns {OUT}", "a"),
        (f"returns {OUT}", f"returns {NO_ROOM}"),
        ("returns does not fit into the model's positions",) * 2,
    ],
)
def test_other_returned_failures_do_not_end_the_run(texts):
    assert any(output.failure for output in read(Reader(), *texts))


def test_failures_that_are_returned_prove_no_reader():
    reader = Reader()
    read(reader, f"returns {OUT}")  # a unit of one read
    with pytest.raises(ReadError, match="for want of memory"):
        read(reader, f"returns {OUT}", f"returns {OUT_AGAIN}")


def test_a_shortage_of_memory_after_a_read_does_not_end_the_run():
    reader = Reader()
    read(reader, "a", f"returns {OUT}")
    assert all(output.failure for output in read(reader, f"returns {OUT}", f"returns {OUT}"))
