"""The ledger counts what was begun, once however often it is told, and can be lost."""

import time

import pytest
import ray

from engine.machine import cluster
from engine.machine.attempts import Attempt, new_attempt
from engine.machine.watch import Start
from engine.reading import ledger
from engine.reading.ledger import Attempts, Ledger

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
    monkeypatch.setattr(ledger, "_SECONDS_TO_ANSWER", 0.2)
    nowhere = ray.remote(resources={"a resource that no node has": 1})(Ledger).remote()
    attempts = Attempts(nowhere)
    assert attempts.begin(1, new_attempt()) == 1
    assert attempts.enter(1, new_attempt())
    attempts.leave(1)
    assert ledger.tally_of(nowhere) is None
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
