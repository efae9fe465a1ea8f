"""Time and cost of reads whose figures are known, against values computed by hand."""

import math

import pytest

from engine.messages.errors import InputError
from engine.planning.forecast import Forecast, Kind, PlanSettings, Way, add_up


def kind(name, left=7, **more):
    return Kind(reader="r", name=name, asked=left + 3, stored=2, left=left, **more)


def test_actors_share_the_reads_and_each_has_its_start_and_its_price():
    kinds = (kind("single passages", seconds=3600),)
    made = Forecast(kinds=kinds, queries=2, start=60)
    assert (made.seconds(1), made.seconds(4), made.all.shared) == (3660, 960, 1)
    assert made.money(3600, 0.5) == 0.5
    priced = Forecast(kinds=kinds, queries=2, price_per_hour=1.5)
    assert priced.money(7200, 0.5) == pytest.approx(3.5)
    assert priced.money(None, 0.5) is None


def test_kinds_add_up_as_far_as_all_figures_are_known():
    kinds = (
        kind("single passages", prompt_tokens=100, token_price=0.5),
        kind("whole lists", left=3, prompt_tokens=50, seconds=2.0),
    )
    both = add_up(kinds)
    assert (both.asked, both.stored, both.left, both.prompt_tokens) == (16, 4, 10, 150)
    assert (both.seconds, both.token_price) == (None, 0.5)
    some = add_up(kinds, way=Way("lists", lists=0.5))
    assert (some.left, some.prompt_tokens) == (8.5, 125)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"pace": "out", "finish_in": 0.0}, "`finish_in` is 0; use more than 0"),
        ({"pace": "out", "finish_in": math.inf}, "`finish_in` is inf"),
        ({"finish_in": 2.0}, "`finish_in` without `pace`: nothing says how long LLM calls take"),
        ({"budget": "5 reads"}, "`budget` is '5 reads'"),
    ],
)
def test_what_no_plan_can_answer_is_refused(options, words):
    with pytest.raises(InputError) as error:
        PlanSettings(**options)
    assert str(error.value).startswith(words)
