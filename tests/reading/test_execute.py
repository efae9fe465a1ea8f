"""Reading one unit in this process."""

import pytest

from engine.errors import ReadError
from engine.reading.execute import Asked, run_unit
from engine.reading.plan import Unit
from engine.reading.protocol import ReaderStats, ReadOutput


class Reader:
    """Fails where a text says so; counts its calls."""

    def __init__(self):
        self.stats = ReaderStats()
        self.calls = 0

    def read(self, inputs, references=None):
        self.calls += 1
        for (text,) in inputs:
            if text.startswith("bad"):
                raise ValueError(text.removeprefix("bad "))
        return [ReadOutput(text, 1, 1, False) for (text,) in inputs]


def read(reader, *texts):
    asked = [Asked([text]) for text in texts]
    return run_unit(reader, Unit(0, 0, len(asked)), asked, worker="here").outputs


def test_one_bad_read_fails_alone():
    assert [o.failure for o in read(Reader(), "a", "bad b", "c")] == [None, "ValueError: b", None]


def test_a_reader_whose_first_reads_all_fail_alike_is_given_up():
    with pytest.raises(ReadError, match="first 2 reads failed, all for one reason: ValueError: x"):
        read(Reader(), "bad x", "bad x")


@pytest.mark.parametrize("texts", [("bad x",), ("bad x", "bad y"), ("bad x", "b")])
def test_a_single_read_or_different_reasons_prove_nothing(texts):
    assert any(o.failure for o in read(Reader(), *texts))


def test_a_reader_that_has_read_is_not_given_up():
    reader = Reader()
    read(reader, "a", "b")
    assert [o.failure for o in read(reader, "bad x", "bad x")] == ["ValueError: x"] * 2
