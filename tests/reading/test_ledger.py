"""The ledger counts what was begun, once however often it is told, and can be lost."""

import asyncio
import heapq
import itertools
import math
import time
from collections import deque
from types import SimpleNamespace

import polars as pl
import pytest
import ray

from engine.machine import attempts, cluster
from engine.machine.attempts import Attempt, new_attempt
from engine.machine.watch import Start
from engine.reading import ledger
from engine.reading.ledger import Attempts, Ledger
from engine.reading.plan import UNIT_SECONDS, ReadPlan, shared_pace
from engine.reading.stream_on_ray import NUMBERS

pytestmark = pytest.mark.usefixtures("ray_session")


def sizes_of(least, first, most=2**30):
    return ReadPlan(reads=pl.DataFrame(), wanted=0, least=least, first=first, most=most).unit_size


SMALL, SIZES = sizes_of(1_000, 8_000), sizes_of(8_192, 32_768)


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
        assert book.enter(3, Attempt(f"{number}", "a node"))
        assert book.begin(5, Attempt(f"{number}", "a node")) == 1 + number // 4
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


def simulated(clock, speeds, seconds, *, a_second=80, sizes=SIZES, shard=2_000_000):
    """Actors of these speeds (sizes a second) read for so long after they have loaded, each two units at a time.

    Tasks plan shards in three seconds, and cut units when the ledger lets them; a driver hands so many units over in a
    second at most, in steps of a tenth of one.

    Returns:
        for each actor the seconds that each of its units took; the share of time that they read; how many units ended
        in a second of the second half; and how many were cut before a pace was known.
    """
    book, took, busy, ended, first = Ledger(), [[] for _ in speeds], 0.0, 0, 0
    for actor in range(len(speeds)):
        book.joined(f"actor {actor}")
    tasks, numbers = [[0.0, 0, 0, 0] for _ in range(max(2, len(speeds) // 10))], itertools.count()
    cut, reading, free = deque(), [], deque(2 * [*range(len(speeds))])
    until, load = [0.0] * len(speeds), 60.0
    for step in range(int(10 * (load + seconds))):
        clock.now = step / 10
        while reading and reading[0][0] <= clock.now:
            _, actor, unit, size = heapq.heappop(reading)
            book.ended(unit, 0, size, size / speeds[actor], f"actor {actor}")
            free.append(actor)
            ended += clock.now > load + seconds / 2
        for task in tasks:
            if task[2] >= shard or not step:  # the next shard
                task[:] = [math.inf, next(numbers) * NUMBERS, 0, 0]
            if task[0] == math.inf and book.cut(task[1], 0)[0]:
                task[0] = clock.now + 3
            may = task[0] <= clock.now
            while may and task[2] < shard:
                may, pace = book.cut(task[1] + task[3], 0)
                if may:
                    first += pace is None
                    cut.append((task[1] + task[3], sizes(pace)))
                    task[2:] = task[2] + sizes(pace), task[3] + 1
        for _ in range(min(a_second // 10, len(cut), len(free))):
            (unit, size), actor = cut.popleft(), free.popleft()
            begins = max(clock.now, until[actor], load)
            until[actor] = begins + size / speeds[actor]
            took[actor].append(size / speeds[actor])
            busy += max(0.0, min(until[actor], load + seconds) - begins)
            heapq.heappush(reading, (until[actor], actor, unit, size))
    return took, busy / seconds / len(speeds), ended / seconds * 2, first


def test_no_actor_holds_a_unit_for_long_because_others_are_fast(clock):
    held, _, a_second, _ = simulated(clock, [1_000.0, *[6_000.0] * 7], 600, sizes=SMALL)
    # The mean of them reads 5,375 a second: a unit of 4.75 s of that takes the slow one 25 s.
    assert len(held[0]) > 20
    assert max(held[0][:2]) <= 8.0  # of a fixed size
    assert max(held[0][2:4]) < 30.0  # cut before its own pace is known
    assert max(held[0][4:]) <= UNIT_SECONDS * 1.01
    assert a_second < 10


def test_one_very_slow_actor_does_not_make_units_that_the_driver_cannot_handle(clock):
    held, _, a_second, _ = simulated(clock, [100.0, *[6_000.0] * 63], 1500, sizes=SMALL)
    assert a_second <= 41
    # An eighth of the mean; with the mean's size it would take 285 s.
    assert max(held[0][6:]) < 100
    held, *_ = simulated(clock, [100.0, *[6_000.0] * 7], 1500, sizes=SMALL)
    assert max(held[0][6:]) < 36  # an eighth of the mean


@pytest.mark.parametrize(("actors", "share"), [(2, 0.99), (64, 0.97), (1000, 0.95)])
def test_actors_are_kept_busy_by_few_units_ahead(clock, actors, share):
    speeds = [10_000 * (0.75 + 0.5 * (actor * 37 % 100) / 99) for actor in range(actors)]
    _, busy, a_second, first = simulated(clock, speeds, 300)
    assert busy >= share
    assert first == 2 * actors
    assert a_second <= 45


def test_two_units_an_actor_are_cut_before_a_pace_is_known_and_four_after(clock, tmp_path):
    kept, shard = str(tmp_path / "paces"), NUMBERS
    book = Ledger(kept)
    book.joined("a")
    book.joined("b")
    yes, no = (True, None), (False, None)
    assert [book.cut(unit, 0) for unit in (0, shard, 1, shard + 1, 2 * shard)] == [yes] * 4 + [no]
    assert book.cut(shard, 0) == yes  # again, for a node that was lost
    book.joined("c")
    clock.now += 1
    assert [book.cut(unit, 0) for unit in (2, 3, 2 * shard)] == [yes, yes, no]
    book.ended(0, 0, 100, 4.0, "a")
    clock.now += 1
    assert [book.cut(4 + unit, 0) for unit in range(8)] == [(True, 25.0)] * 7 + [no]
    book.ended(1, 0, 100, 4.0, "a")
    assert book.cut(2 * shard, 1) == (True, 25.0)  # another role of the same model
    for known in (book, Ledger(kept)):  # the same units again, though the ledger was lost
        clock.now += 1
        known.ended(2, 0, 100, 100.0, "b")
        assert [known.cut(unit, 0)[1] for unit in (0, 4, 10, 2 * shard)] == [None, 25.0, 25.0, 25.0]


def test_where_nothing_is_left_to_read_more_and_more_shards_are_planned_at_a_time(clock):
    book, shards = Ledger(), [number * NUMBERS for number in range(40)]
    at_once = []
    while shards:
        given = list(itertools.takewhile(lambda shard: book.cut(shard, 0)[0], shards))
        at_once.append(len(given))
        for shard in given:
            book.ended(shard, 0, 0, 0.0, "a")
        shards = shards[len(given) :]
    assert at_once == [2, 4, 8, 16, 10]
    assert book.cut(100 * NUMBERS, 0)[0]
    book.ended(100 * NUMBERS, 0, 100, 4.0, "a")
    clock.now += 1
    assert [book.cut(unit, 0)[0] for unit in range(1, 6)] == [True] * 4 + [False]


def test_actors_that_are_gone_have_no_units_ahead(clock):
    book = Ledger()
    for actor in "abc":
        book.ended(0, 0, 100, 4.0, actor)
    clock.now = 301.0
    book.ended(1, 0, 100, 4.0, "a")
    assert [book.cut(unit, 0)[0] for unit in range(5)] == [True] * 4 + [False]


def test_a_ledger_that_holds_nobody_back_keeps_paces_all_the_same(tmp_path):
    book = Ledger(str(tmp_path / "paces"), waits=False)
    assert [book.cut(unit, 0)[0] for unit in range(50)] == [True] * 50
    assert Ledger(str(tmp_path / "paces"))._cut.keys() == set(range(50))


def test_who_cuts_a_unit_waits_until_it_may(monkeypatch):
    monkeypatch.setattr(ledger, "_SECONDS_TO_HOLD", 0.3)
    book = Ledger()
    assert [book.cut(unit, 0)[0] for unit in range(3)] == [True, True, False]

    async def asked():
        waiting = [asyncio.ensure_future(book.hand_over(unit, 0)) for unit in (0, 2, 3)]
        await asyncio.sleep(0.05)
        assert [one.done() for one in waiting] == [True, False, False]
        book.ended(0, 0, 100, 0.0, "a")
        return await asyncio.gather(*waiting)

    assert asyncio.run(asked()) == [(True, None), (True, None), (False, None)]


def test_a_task_that_waits_to_cut_a_unit_lends_its_cpus():
    """An actor that starts again beside tasks that plan would have none for ever otherwise."""
    started = ledger.start_ledger()
    every = ray.remote(num_cpus=ray.cluster_resources()["CPU"])

    def waiting(started):
        return [Attempts(started).hand_over(unit, 0) for unit in range(3)]

    def ending(started):
        ray.get(started.ended.remote(0, 0, 100, 4.0, "a"))

    try:
        waits = every(waiting).remote(started)
        deadline = time.monotonic() + 60
        while not ray.get(started.cut.remote(1, 0))[0] and time.monotonic() < deadline:
            time.sleep(0.1)
        ray.get(every(ending).remote(started), timeout=60)
        assert ray.get(waits, timeout=60)[:2] == [None, None]
    finally:
        ray.kill(started)


@pytest.mark.parametrize(("actors", "seconds"), [(1, 4.75), (8, 4.75), (64, 4.75), (1000, 25)])
def test_units_of_some_seconds_grow_with_more_actors_than_one_driver_serves(actors, seconds):
    size = sizes_of(1, 1)(shared_pace([500.0] * actors))
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
    monkeypatch.setattr(ledger, "SECONDS_TO_COUNT", 0.2)
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
