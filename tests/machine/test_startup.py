"""Ray starts while inputs are cut; neither end of it loses an error, or leaves the other behind."""

import contextlib
import functools
import threading
import time

import pytest

from engine.machine import startup
from engine.machine.pool import PoolSettings
from engine.messages.errors import InputError


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(startup, "_PATIENCE", 0.05)


def waits(seconds, tidied=None):
    """Cuts for a while and reports now and then, as ``partition.partition`` does."""

    def cut(on_progress):
        try:
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                on_progress("runs", 1)
                time.sleep(0.01)
            return "partition"
        finally:
            if tidied is not None:
                tidied.set()

    return cut


def beside(cut, begin, on_progress=lambda what, done: None):
    return startup._beside(cut, on_progress, begin)


def test_both_are_under_way_at_a_time():
    seen, here = [], []
    made = beside(
        waits(0.3),
        lambda: (here.append(threading.current_thread()), time.sleep(0.2)),
        lambda what, done: seen.append((time.monotonic(), threading.current_thread())),
    )
    assert made == "partition"
    assert here == [threading.main_thread()]
    assert threading.main_thread() not in {thread for _, thread in seen}


def test_nothing_is_started_for_what_is_cut_already():
    assert beside(lambda on_progress: "there", pytest.fail) == "there"


@pytest.mark.parametrize(("seconds", "begin"), [(0, pytest.fail), (0.2, lambda: None)])
def test_inputs_that_are_refused_at_once_or_later_are_told(seconds, begin):
    def refused(on_progress):
        time.sleep(seconds)
        raise InputError("no score", "add one", path="run.txt", line=3)

    with pytest.raises(InputError, match="no score"):
        beside(refused, begin)


@pytest.mark.parametrize("end", [KeyboardInterrupt, ValueError("Ray did not start")])
def test_cutting_ends_and_tidies_up_when_the_start_ends(end):
    tidied = threading.Event()

    def begin():
        raise end

    begun = time.monotonic()
    with pytest.raises(type(end) if isinstance(end, Exception) else end):
        beside(waits(60, tidied=tidied), begin)
    assert tidied.is_set()
    assert time.monotonic() - begun < 5


def test_errors_of_progress_are_told():
    def broken(what, done):
        raise OSError("nobody reads standard error")

    with pytest.raises(OSError, match="nobody reads"):
        beside(waits(60), lambda: None, broken)


@pytest.mark.parametrize("actors", [0, 2])
def test_a_reader_that_cannot_be_is_refused_while_inputs_are_cut(actors, monkeypatch):
    """Minutes before: cutting ends as soon as the readers are looked at, and these after Ray started."""
    order, tidied = [], threading.Event()

    def cut(on_progress):
        return waits(60, tidied=tidied)(on_progress)

    def check():
        order.append("check")
        raise InputError("no such model", "name one", path="reader")

    monkeypatch.setattr("engine.machine.cluster.start_ray", lambda: order.append("Ray"))
    begun = time.monotonic()
    with pytest.raises(InputError, match="no such model"):
        startup.beside_ray(cut, PoolSettings(actors=actors), check=check)
    assert order == (["Ray", "check"] if actors else ["check"])
    assert tidied.is_set() == bool(actors)
    assert time.monotonic() - begun < 5


def test_the_first_nodes_are_asked_for_once_all_is_checked_and_until_inputs_are_cut(monkeypatch):
    order, asked = [], threading.Event()

    @contextlib.contextmanager
    def nodes(pool):
        order.append(("asked", pool.actors))
        asked.set()
        yield
        order.append("let go")

    def cut(on_progress):
        assert asked.wait(60)
        order.append("cut")

    monkeypatch.setattr("engine.machine.cluster.start_ray", lambda: order.append("Ray"))
    monkeypatch.setattr(startup, "first_nodes_asked_for", nodes)
    check = functools.partial(order.append, "check")
    startup.beside_ray(cut, PoolSettings(actors=2), check=check)
    assert order == ["Ray", "check", ("asked", 2), "cut", "let go"]
