"""The ledger counts what was begun, once however often it is told, and can be lost."""

import heapq
import time
from types import SimpleNamespace

import pytest
import ray

from engine.machine import attempts, cluster
from engine.machine.attempts import Attempt, new_attempt
from engine.machine.watch import Start
from engine.reading import ledger
from engine.reading.ledger import Attempts, Ledger
from engine.reading.stream import UNIT_SECONDS, UnitSizes, shared_pace

pytestmark = pytest.mark.usefixtures("ray_session")


def here(name):
    return Attempt(name, ray.get_runtime_context().get_node_id())


def test_beginnings_are_counted_and_a_repeated_message_is_not():
    book = Ledger()
    assert book.begin(7, here("a")) == 1
    assert book.begin(7, here("a")) == 1
    assert book.begin(7, here("b")) == 2
    assert book.begin(7, here("c")) == 3
    assert book.begin(8, here("d")) == 1
    assert book.tally().repeated == 1


def test_a_read_may_be_entered_until_two_processes_died_in_it():
    book = Ledger()
    assert [book.enter(3, here(name)) for name in "aabc"] == [True, True, True, False]
    assert book.enter(4, here("a"))
    book.leave(4)
    assert book.enter(4, here("b"))
    assert book.enter(4, here("c"))


def test_what_is_no_read_may_be_entered_more_often():
    book = Ledger()
    planning = ledger.planning_of(0)
    assert planning < 0
    assert [book.enter(planning, here(name), 3) for name in "abcd"] == [True, True, True, False]
    assert book.enter(0, here("a"))


def test_attempts_that_ended_with_their_node_count_a_quarter():
    book = Ledger()
    for number in range(8):
        # Seven attempts lost with their nodes weigh one and three quarters.
        assert book.enter(3, Attempt(f"{number}", "a node that is gone"))
        assert book.begin(5, Attempt(f"{number}", "a node that is gone")) == 1 + number // 4
    assert not book.enter(3, here("ninth"))


@pytest.fixture
def clock(monkeypatch):
    """The ledger's clock, which the test sets."""
    made = SimpleNamespace(now=0.0)
    monkeypatch.setattr(ledger, "time", SimpleNamespace(monotonic=lambda: made.now))
    return made


def test_the_pace_of_each_actor_is_that_of_its_last_units(clock):
    book = Ledger()
    assert book.paces(0) == []
    book.ended(0, 0, 100, 50.0, "a")  # the first one, in which something is made once
    assert book.paces(0) == [2.0]
    for unit in range(1, 9):
        book.ended(unit, 0, 100, 4.0, "a")
    book.ended(9, 0, 100, 20.0, "b")
    book.ended(10, 1, 100, 1.0, "b")
    assert book.paces(0) == [25.0, 5.0]
    assert book.paces(1) == [100.0]
    # Others go on, and the one that was lost with its node is no longer waited for.
    clock.now = 301.0
    book.ended(11, 0, 100, 4.0, "a")
    assert book.paces(0) == [25.0]


def simulated(clock, speeds, units):
    """Actors of these speeds (sizes a second) read so many units, each cut when an actor becomes free.

    Returns:
        for each actor, the seconds that each of its units took; and how many units ended in a second of
        the second half.
    """
    book, sizes = Ledger(), UnitSizes(1_000, 8_000, 2**30)
    held = [[] for _ in speeds]
    under_way = [(0.0, actor, 0) for actor in range(len(speeds))]
    half = 0.0
    for unit in range(units):
        clock.now, actor, size = heapq.heappop(under_way)
        if size:
            book.ended(unit, 0, size, size / speeds[actor], f"actor {actor}")
        half = clock.now if unit == units // 2 else half
        size = sizes.at(shared_pace(book.paces(0)))
        held[actor].append(size / speeds[actor])
        heapq.heappush(under_way, (clock.now + size / speeds[actor], actor, size))
    return held, units / 2 / (clock.now - half)


def test_no_actor_holds_a_unit_for_long_because_others_are_fast(clock):
    held, a_second = simulated(clock, [1_000.0, *[6_000.0] * 7], 2000)
    # The mean of them reads 5,375 a second: a unit of 4.75 s of that takes the slow one 25 s.
    assert len(held[0]) > 20
    assert max(held[0]) <= 8.0  # its first one, of a fixed size
    assert max(held[0][1:]) <= UNIT_SECONDS * 1.01
    assert a_second < 10


def test_one_very_slow_actor_does_not_make_units_that_the_driver_cannot_handle(clock):
    held, a_second = simulated(clock, [100.0, *[6_000.0] * 63], 20_000)
    assert a_second <= 41
    # A third of the mean, as forty units a second are then; with the mean's size it would take 285 s.
    assert max(held[0][2:]) < 100
    held, _ = simulated(clock, [100.0, *[6_000.0] * 7], 2000)
    assert max(held[0][2:]) < 36  # an eighth of the mean


@pytest.mark.parametrize(("actors", "seconds"), [(1, 4.75), (8, 4.75), (64, 4.75), (1000, 25)])
def test_units_of_some_seconds_grow_with_more_actors_than_one_driver_serves(actors, seconds):
    size = UnitSizes(1, 1, 2**30).at(shared_pace([500.0] * actors))
    assert size / 500 == pytest.approx(seconds, rel=1e-2)
    assert actors / (size / 500) <= 40.1  # units that end in a second
    assert shared_pace([]) is None


def test_a_lost_ledger_starts_again_and_no_call_fails():
    started = ledger.start_ledger()
    attempts = Attempts(started)
    try:
        first = new_attempt()
        assert attempts.begin(1, first) == 1
        assert attempts.begin(1, new_attempt()) == 2
        before = ray.get(started.tally.remote())
        ray.kill(started, no_restart=False)
        deadline = time.monotonic() + 60  # what kills it takes its time
        while attempts.begin(1, new_attempt()) != 1:  # counts begin anew
            assert time.monotonic() < deadline
        after = ray.get(started.tally.remote())
        assert after.counter != before.counter
        assert (before.repeated, after.repeated) == (1, 0)
    finally:
        ray.kill(started)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:  # until its end is known here
        try:
            ray.get(started.tally.remote())
        except ray.exceptions.RayActorError:
            break
    assert attempts.begin(1, first) == 1
    assert attempts.enter(1, first)
    attempts.leave(1)


def test_a_ledger_that_never_answers_holds_nothing_up(monkeypatch):
    monkeypatch.setattr(ledger, "_SECONDS_TO_COUNT", 0.2)
    monkeypatch.setattr(attempts, "SECONDS_TO_ANSWER", 0.2)
    nowhere = ray.remote(resources={"a resource that no node has": 1})(Ledger).remote()
    asked = Attempts(nowhere)
    assert asked.begin(1, new_attempt()) == 1
    assert asked.enter(1, new_attempt())
    asked.leave(1)
    assert attempts.tally_of(nowhere) is None
    ray.kill(nowhere)


def test_actors_announce_themselves_once_loaded():
    book = Ledger()
    for start in (Start("a", "n", 1, False), Start("a", "n", 2, True), Start("a", "n", 2, True)):
        book.started(start)
    assert [start.again for start in book.tally().starts] == [False, True]


def test_what_the_driver_needs_stands_on_its_node():
    options = cluster.beside_driver()
    assert options["scheduling_strategy"].node_id == ray.get_runtime_context().get_node_id()
    assert options["scheduling_strategy"].soft is False
