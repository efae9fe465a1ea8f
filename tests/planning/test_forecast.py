"""Time, memory and cost foreseen from timed batches, against values computed by hand and by chance."""

import math

import numpy as np
import pytest

from engine.messages.errors import InputError
from engine.planning.forecast import (
    Batch,
    Forecast,
    Kind,
    Left,
    PlanSettings,
    Span,
    actors_to_finish,
    pace_of,
    total_seconds,
)

LINE = [Batch(size, 0.5 + 0.01 * size) for size in (100, 100, 1000, 1200)]


def test_a_line_through_batches_of_differing_size_is_found():
    pace = pace_of(LINE)
    assert (pace.fixed, pace.rate) == pytest.approx((0.5, 0.01))
    assert pace.freedom == 2
    # 8000 in batches of 2000: four times 0.5, and 80.
    span = total_seconds([(Left(8000, 100, 2000), pace)], confidence=0.95)
    assert span.value == pytest.approx(82)
    # The batches lie on the line: what is left is 10%, by the normal distribution.
    reach = 1.96 * 0.1 * 82
    assert (span.low, span.high) == pytest.approx((82 - reach, 82 + reach), rel=1e-3)


def test_batches_alike_in_size_or_few_give_a_proportion():
    for batches in (LINE[2:], [Batch(1000, 9), Batch(1000, 11), Batch(1100, 10), Batch(900, 10)]):
        pace = pace_of(batches)
        assert pace.fixed == 0
        total = sum(batch.seconds for batch in batches) / sum(batch.size for batch in batches)
        assert pace.rate == pytest.approx(total)


def test_a_line_that_would_begin_below_zero_is_a_proportion():
    pace = pace_of([Batch(size, 0.01 * size - 0.5) for size in (100, 100, 1000, 1200)])
    assert pace.fixed == 0
    assert pace.rate == pytest.approx(22 / 2400)


def test_one_batch_gives_no_interval():
    span = total_seconds([(Left(100, 10, 10), pace_of([Batch(10, 1)]))], confidence=0.95)
    assert span.value == pytest.approx(10)
    assert math.isnan(span.low)
    assert span.most == span.value


def test_batches_are_no_more_than_groups_and_no_longer_than_their_seconds():
    pace = pace_of(LINE)
    assert Left(8000, 3, 100).batches(pace) == 3
    # 4 seconds at a rate of 0.01 are a size of 400.
    assert Left(8000, 1000, 4000, batch_seconds=4).batches(pace) == pytest.approx(20)
    assert Left(0, 0, 100).batches(pace) == 0


def test_intervals_hold_the_truth_about_as_often_as_they_say():
    """Batches of two strata whose seconds vary as the interval takes them to: by the root of their sizes,
    and the evaluation as a whole by 10%.
    """
    rng = np.random.default_rng(3)
    sizes = (100, 110, 90, 700, 800, 750)
    held = 0
    for _ in range(400):
        work, truth = [], 0.0
        for fixed, rate in ((0.5, 0.01), (0.2, 0.03)):

            def seconds(size, fixed=fixed, rate=rate):
                return fixed + rate * (size + rng.normal(0, 0.1) * math.sqrt(size * 425))

            left = Left(40_000, 1000, 1000)
            truth += sum(seconds(1000) for _ in range(40))
            work.append((left, pace_of([Batch(size, seconds(size)) for size in sizes])))
        truth *= 1 + rng.normal(0, 0.1)
        span = total_seconds(work, confidence=0.9)
        held += span.low <= truth <= span.high
    assert 0.85 <= held / 400 <= 0.95


def forecast(**more):
    kinds = (Kind(reader="r", name="single passages", asked=10, stored=2, left=7),)
    return Forecast(kinds=kinds, queries=2, reading=Span(3600, 1800, 7200), start=60, **more)


def test_actors_share_the_reads_and_each_has_its_start():
    assert forecast().seconds(1) == Span(3660, 1860, 7260)
    assert forecast().seconds(4) == Span(960, 510, 1860)
    assert forecast().kinds[0].shared == 1


def test_cost_is_of_all_actors_from_their_start():
    assert forecast().cost(4) is None
    cost = forecast(settings=PlanSettings(price_per_hour=1.5)).cost(4)
    # 4 actors for 960 s, which are 3840 s: 64 minutes at 2.5 cents.
    assert cost.value == pytest.approx(1.6)


def test_the_actors_that_finish_in_time_follow_from_the_upper_end():
    assert actors_to_finish(Span(3600, 1800, 7200), 60, hours=1) == 3  # 7200 / 3540
    assert actors_to_finish(Span(3600), 60, hours=1) == 2
    assert actors_to_finish(Span(10), 60, hours=1) == 1
    with pytest.raises(InputError, match=r"`finish_in` is 0.01 hours, and the start .* 60 s; give"):
        actors_to_finish(Span(3600), 60, hours=0.01)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"price_per_hour": -1.0}, "`price_per_hour` is -1; use 0 or more"),
        ({"price_per_hour": math.nan}, "`price_per_hour` is nan"),
        ({"finish_in": 0.0}, "`finish_in` is 0; use more than 0"),
        ({"finish_in": math.inf}, "`finish_in` is inf"),
        ({"probe_reads": -1}, "`probe_reads` is -1; use 0 or more"),
        ({"probe_reads": 0, "price_per_hour": 2.0}, "`price_per_hour` with `probe_reads` 0"),
        ({"probe_reads": 0, "finish_in": 2.0}, "`finish_in` with `probe_reads` 0"),
    ],
)
def test_what_no_plan_can_answer_is_refused(options, words):
    with pytest.raises(InputError) as error:
        PlanSettings(**options)
    assert str(error.value).startswith(words)
