"""Ceilings per minute and bounds in all, by a clock that a test turns."""

import heapq
import random
import threading

import pytest

from engine.machine.remote.api_settings import ApiSettings
from engine.machine.remote.limits import Limits, StoppedAskingError, Usage, forget, limits_of
from engine.messages.errors import BoundError
from tests.expected import as_expected


class Clock:
    """Time that passes only where somebody sleeps."""

    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds


def limits(**settings):
    clock = Clock()
    made = Limits(ApiSettings(**settings), clock=clock, sleep=clock.sleep)
    return made, clock


def ask(made, size=0, output=0, used=None):
    ticket = made.take(size, output)
    made.settle(ticket, used or Usage())
    return ticket.ended  # the clock stands between start and end


def refusal(call, *given):
    with pytest.raises((StoppedAskingError, BoundError)) as caught:
        call(*given)
    return str(caught.value)


def test_no_minute_has_more_requests_than_the_ceiling():
    made, _ = limits(requests_per_minute=3)
    at = [ask(made) for _ in range(9)]
    # of any three in a row and the next, at least a minute lies between the first and the last
    assert all(later - earlier >= 60 for earlier, later in zip(at, at[3:], strict=False))
    assert at[-1] - at[0] < 122


def test_no_minute_has_more_tokens_than_the_ceiling():
    made, _ = limits(tokens_per_minute=100)
    # The first is expected to take 40 of an answer and nothing of a prompt, and takes 30 and 10.
    at = [ask(made, output=40, used=Usage(30, 10)) for _ in range(6)]
    # two at a time: a third would make 120
    assert at[1] == at[0]
    assert at[2] - at[0] >= 60
    assert at[4] - at[2] >= 60


def test_a_request_larger_than_the_ceiling_goes_alone():
    made, _ = limits(tokens_per_minute=100)
    first, second = (ask(made, output=150, used=Usage(0, 150)) for _ in range(2))
    assert second - first >= 60


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize(
    "ceiling",
    [
        {"requests_per_minute": 7},
        {"tokens_per_minute": 900},
        {"requests_per_minute": 5, "tokens_per_minute": 700},
    ],
)
def test_no_60_seconds_of_the_server_have_more_than_the_ceiling(ceiling, seed):
    """Requests reach the server at any time between being let go and ending; four are under way at a time."""
    chance = random.Random(seed)
    made, clock = limits(**ceiling)
    came, under_way = [], []

    def end_one():
        ended, _, ticket, used = heapq.heappop(under_way)
        clock.now = max(clock.now, ended)
        made.settle(ticket, used)

    def pass_time(seconds):
        until = clock.now + seconds
        while under_way and under_way[0][0] <= until:
            end_one()
        clock.now = max(clock.now, until)

    made._sleep = pass_time
    for number in range(60):
        size, most = chance.randrange(100, 1000), 30
        ticket = made.take(size, most)
        # A fifth of a token a byte at most; a request in ten is not answered, and counts for the server all the same.
        used = Usage(int(size * chance.uniform(0.1, 0.2)), chance.randrange(1, most))
        seconds = chance.choice([0.01, 0.5, 5, 40]) * chance.random()
        came.append((clock.now + chance.random() * seconds, used.total))
        answered = None if chance.random() < 0.1 else used
        heapq.heappush(under_way, (clock.now + seconds, number, ticket, answered))
        if len(under_way) == 4:
            end_one()
    for begun, _ in came:
        inside = [tokens for at, tokens in came if begun <= at < begun + 60]
        assert len(inside) <= ceiling.get("requests_per_minute", 60)
        assert sum(inside) <= ceiling.get("tokens_per_minute", 10**6)


def test_a_minute_does_not_end_with_an_evaluation():
    settings = ApiSettings(requests_per_minute=2, max_tokens=100)
    first = limits_of(settings)
    first.settle(first.take(0, 0), Usage())
    open_still = first.take(0, 0)
    forget()
    for later in (settings, ApiSettings(requests_per_minute=2)):
        next_one = limits_of(later)
        assert next_one is not first
        with next_one._lock:
            assert 59 < next_one._wait(open_still) <= 60
        next_one.end()


def test_answers_that_go_beyond_what_was_allowed_are_reserved_for():
    made, _ = limits(max_tokens=1000)
    ask(
        made, output=16, used=Usage(20, 401)
    )  # thoughts that the ceiling of a request does not hold
    ask(made, output=16, used=Usage(20, 10))
    assert made.take(0, 16).expected.output == 401


def test_all_wait_while_the_server_says_so():
    made, clock = limits()
    made.pause(7)
    assert ask(made) - 1000 == pytest.approx(7)
    made.pause(3)
    made.pause(1)  # the longer one holds
    before = clock.now
    assert ask(made) - before == pytest.approx(3)


def test_tokens_of_the_evaluation_are_bounded_by_what_a_request_could_take():
    made, _ = limits(max_tokens=100)
    ask(made, output=40, used=Usage(20, 40))
    ask(made, output=40, used=Usage(20, 5))  # 85 are used
    ask(made, output=15, used=Usage(0, 15))
    as_expected(refusal(made.take, 0, 1))
    assert made.spent == Usage(40, 60)


def test_prompts_are_foreseen_by_what_the_server_counted():
    made, _ = limits(max_tokens=1000)
    ask(made, size=100, used=Usage(50, 0))  # half a token a byte
    made.refuse_beyond(2000)  # 50 used and 950 to come
    as_expected(refusal(made.refuse_beyond, 2001))
    ask(made, size=1900, used=Usage(940))
    as_expected(refusal(made.take, 22, 0))  # 11 more
    assert made.take(20, 0)


def test_prompts_that_are_given_up_are_not_foreseen():
    made, _ = limits(max_tokens=1000)
    ask(made, size=100, used=Usage(50, 0))  # half a token a byte
    made.settle(made.take(500, 0), None)
    made.give_up(500)
    made.refuse_beyond(2500)  # 50 used, and 950 to come of 1,900 bytes
    as_expected(refusal(made.refuse_beyond, 2501))


def test_a_request_that_only_tries_the_server_foretells_no_others():
    made, _ = limits(max_tokens=1000)
    ticket = made.take(10, 0)
    made.settle(ticket, Usage(30), calibrates=False)  # a chat's own tokens are most of it
    made.refuse_beyond(1000)
    assert made.spent == Usage(30)


def test_money_is_bounded_by_both_prices():
    made, _ = limits(max_cost=1.0, price_in=1000.0, price_out=10_000.0)
    ask(made, output=50, used=Usage(400, 50))  # 0.4 and 0.5
    as_expected(refusal(made.take, 0, 11))
    assert made.take(0, 10)


HOURLY = {"max_cost": 10.0, "price_per_hour": 2.0}


@pytest.mark.parametrize(
    ("settings", "unit", "used", "passes"),
    [
        # One actor for an hour, three for another: four actor-hours, which cost 8; the clock stands at 2 h.
        ({"max_hours": 2.0}, 0, 0, False),
        ({"max_hours": 2.0}, 1, 0, True),
        (HOURLY, 1100, 0, False),
        # A unit more of 1,200 s of each of the three would be another actor-hour, and 10 in all.
        (HOURLY, 1201, 0, True),
        (HOURLY | {"price_in": 1.0, "price_out": 1.0}, 0, 2_000_000, False),
        (HOURLY | {"price_in": 1.0, "price_out": 1.0}, 0, 2_000_001, True),
        (HOURLY | {"max_cost": None}, 10**6, 10**9, False),
    ],
)
def test_hours_and_cost_are_bounded_with_a_unit_more_of_each_actor(settings, unit, used, passes):
    made, clock = limits(**settings)
    made.see(1)
    clock.now += 3600
    made.see(3)
    clock.now += 3600
    made.took.append(unit)
    made.spent = Usage(used)
    assert bool(made.passed()) is passes
    as_expected(made.passed())


def test_the_first_unit_is_begun_whatever_its_bound():
    made, clock = limits(max_hours=1.0)
    clock.now += 7200
    made.require()
    made.took.append(1.0)
    as_expected(refusal(made.require))


def test_a_request_that_would_pass_the_hours_is_not_made():
    made, clock = limits(max_hours=1.0)
    ask(made, used=Usage(400, 50))
    clock.now += 3601
    as_expected(refusal(made.take, 0, 11))


def test_who_could_go_beyond_waits_for_those_under_way():
    made = Limits(ApiSettings(max_tokens=100))
    first = made.take(0, 90)
    done = threading.Thread(target=lambda: made.settle(made.take(0, 90), Usage(0, 90)))
    done.start()
    done.join(0.1)
    assert done.is_alive()
    made.settle(first, Usage(0, 10))  # it took less than it could
    done.join(5)
    assert not done.is_alive()
    assert made.spent == Usage(0, 100)


def test_who_waits_is_woken_when_no_more_is_asked():
    made = limits_of(ApiSettings(base_url="http://waits/v1", requests_per_minute=1))
    ask(made)
    said = []

    waiting = threading.Thread(target=lambda: said.append(refusal(made.take, 0, 0)))
    waiting.start()
    made.end()
    waiting.join(5)
    as_expected(said)


def test_an_evaluation_shares_its_bounds_and_the_next_begins_anew():
    settings = ApiSettings(max_tokens=10)
    assert limits_of(settings) is limits_of(ApiSettings(max_tokens=10))
    assert limits_of(settings) is not limits_of(ApiSettings(max_tokens=11))
    before = limits_of(settings)
    forget()
    assert limits_of(settings) is not before
