"""Lines of progress: the time that is left is not that of a job which starts for ever."""

import re
import threading

import pytest

from jobs import _progress, _terminal
from tests.expected import as_expected


@pytest.fixture
def lines(monkeypatch):
    """Lines told, at times that the test sets."""
    told, now = [], [0.0]
    monkeypatch.setattr(_progress, "tell", told.append)
    monkeypatch.setattr(_progress.time, "monotonic", lambda: now[0])
    progress = _progress._Lines("reading", "reads")

    def at(seconds, done, total):
        now[0] = seconds
        progress(done, total)
        return told

    return at


def test_what_is_left_follows_from_the_speed_since_reads_began(lines):
    lines(0.0, 0, 1000)
    lines(90.0, 10, 1000)  # actors started, models loaded
    told = lines(110.0, 50, 1000)
    assert told[0] == "reading: 0/1000 reads"
    # 40 reads in 20 seconds, and not 50 in 110.
    assert told[-1] == "reading: 50/1000 reads, 2.0 reads/s, 475 s left"
    assert not any("left" in line for line in told[:-1])


def test_a_second_evaluation_has_a_speed_of_its_own(lines):
    lines(0.0, 0, 1000)
    lines(10.0, 1000, 1000)
    lines(110.0, 2, 66)
    lines(112.0, 4, 66)
    told = lines(142.0, 64, 66)
    # 60 reads in 30 seconds.
    assert told[2:] == ["reading: 2/66 reads", "reading: 64/66 reads, 2.0 reads/s, 1 s left"]


@pytest.mark.parametrize(
    ("calls", "last"),
    [
        ([(0, 0, 100), (40, 10, 100), (50, 100, 100)], "100/100 reads, 2.0 reads/s"),
        # Reads from the store are no speed.
        ([(1, 500, 1000), (21, 510, 1000), (41, 530, 1000)], "530/1000 reads, 1.0 reads/s, 470 s left"),
    ],
)  # fmt: skip
def test_the_last_line_has_the_speed_of_what_was_read(lines, calls, last):
    for call in calls:
        told = lines(*call)
    assert told[-1] == f"reading: {last}"


@pytest.mark.parametrize("step", [1, 3, 40])
def test_no_estimate_is_off_by_ten(lines, step):
    """A job of one read a second that starts for a minute, reported whenever some reads end."""
    total = 600
    for done in range(0, total + 1, step):
        told = lines(60.0 + done if done else 0.0, done, total)
    assert sum("left" in line for line in told) > 10
    for line in told:
        if found := re.search(r"(\d+)/600 .* (\d+) s left", line):
            done, left = map(int, found.groups())
            assert left == pytest.approx(total - done, rel=0.1, abs=1)


def test_a_step_is_named_before_two_seconds_and_a_log_has_a_line_every_fifteen(monkeypatch):
    told, now = [], [0.0]
    for module in (_progress, _terminal):
        monkeypatch.setattr(module, "tell", lambda line: told.append((now[0], line)))
    monkeypatch.setattr(_progress.time, "monotonic", lambda: now[0])
    steps = _terminal._Steps()
    monkeypatch.setattr(_terminal, "_steps", steps)
    _terminal.step("reading inputs")  # takes a second: nothing is said
    progress = _progress._Lines("reading", "LLM calls", "computing statistics")
    for half in range(141):
        now[0] = half / 2
        if now[0] == 1:
            _terminal.step("loading the model")
        if now[0] in (20, 60):  # a first batch, and the last one
            progress(int(now[0]), 60)
        steps.beat(bar=False)
    as_expected(told)
    # beside a bar a step is named once
    steps.begin("writing")
    for half in range(200):
        now[0] = 80 + half / 2
        steps.beat(bar=True)
    assert [line for _, line in told[7:]] == ["writing \u2026"]


def test_nothing_is_said_once_a_command_has_ended(monkeypatch):
    """A line that is due while the command ends comes before its error, not after it."""
    said, is_due, has_ended = [], threading.Event(), threading.Event()

    def beat(self, *, bar):
        is_due.set()
        has_ended.wait(0.2)
        said.append("reading …")

    monkeypatch.setattr(_terminal._Steps, "beat", beat)
    with _terminal.with_steps():
        assert is_due.wait(10)
    said.append("the error")
    has_ended.set()
    assert said == ["reading …", "the error"]
