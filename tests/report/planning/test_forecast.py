"""Time and cost of reads whose figures are known, against values computed by hand."""

from __future__ import annotations

import math

import polars as pl
import pytest

from engine.evaluation.settings import Settings
from engine.report.planning.forecast import (
    Forecast,
    Kind,
    PlanSettings,
    Way,
    add_up,
    content,
    duration,
    shown,
)
from engine.report.planning.planner import plan_evaluation
from engine.tables import END_TO_END
from jobs._terminal import Terminal
from tests.expected import as_expected, refused
from tests.tables import QUERIES, RUN, inputs


def unread(name, left=7, **more):
    return Kind(reader="r", name=name, asked=left + 3, stored=2, left=left, **more)


def test_actors_share_the_reads_and_each_has_its_start_and_its_price():
    kinds = (unread("single passages", seconds=3600),)
    made = Forecast(kinds=kinds, queries=2, start=60)
    assert (made.seconds(1), made.seconds(4), made.all.shared) == (3660, 960, 1)
    assert made.money(3600, 0.5) == 0.5
    priced = Forecast(kinds=kinds, queries=2, price_per_hour=1.5)
    assert priced.money(7200, 0.5) == pytest.approx(3.5)
    assert priced.money(None, 0.5) is None


def test_kinds_add_up_as_far_as_all_figures_are_known():
    kinds = (
        unread("single passages", prompt_tokens=100, token_price=0.5),
        unread("lists", left=3, prompt_tokens=50, seconds=2.0),
    )
    both = add_up(kinds)
    assert (both.asked, both.stored, both.left, both.prompt_tokens) == (16, 4, 10, 150)
    assert (both.seconds, both.token_price) == (None, 0.5)
    some = add_up(kinds, way=Way("lists", lists=0.5))
    assert (some.left, some.prompt_tokens) == (8.5, 125)


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"pace": "out", "finish_in": 0.0}, "settings.value"),
        ({"pace": "out", "finish_in": math.inf}, "settings.value"),
        ({"finish_in": 2.0}, "plan.pace"),
        ({"budget": "5 reads"}, "settings.budget"),
    ],
)
def test_what_no_plan_can_answer_is_refused(options, code):
    with refused(code):
        PlanSettings(**options)


def kind(name, reader="small", **more):
    figures = {"asked": 1200, "stored": 100, "left": 1000, "seconds": 7200.0} | more
    return Kind(reader=reader, name=name, prompt_tokens=250_000, output_tokens=4000, **figures)


def printed(forecast):
    console = Terminal(width=160)
    with console.capture() as captured:
        console.print_parts(shown(forecast))
    return [line.rstrip() for line in captured.get().splitlines()]


def line(lines, start):
    (found,) = (one for one in lines if one.strip().startswith(start))
    return found.strip()


def plan(*kinds, **more):
    figures = {"pace": "out", "start": 60.0, "peak": 3 * 2**29}
    return Forecast(kinds=kinds, queries=500, **(figures | more))


def test_a_plan_says_what_is_left_and_what_it_takes():
    lines = printed(
        plan(
            kind("single passages"),
            kind("lists"),
            actors=4,
            notes=("a note",),
            settings=PlanSettings(pace="out"),
            price_per_hour=2.0,
        )
    )
    as_expected(lines)
    row = line(lines, "single passages").split()
    # 2 hours, at 2 an hour
    assert " ".join(row[2:]) == "1,200 100 100 1,000 250,000 4,000 2.0 h 30.0 min 4.00"
    assert line(lines, "all").split()[1:5] == ["2,400", "200", "200", "2,000"]
    one, four = (one for one in lines if one.startswith("start and "))
    assert ", 1 actor: 4.0 h, 60 s of " in one
    # 60 s and a fourth of 14,400.
    assert ", 4 actors: 61.0 min, 60 s of " in four
    # 4 actors for 3,660 s, at 2 an hour.
    assert line(lines, "cost:").startswith("cost: 8.13 at 2 ")
    assert "1.5 GiB" in line(lines, "memory:")


def test_without_a_pace_nothing_is_said_of_time():
    """As of a function, of whose tokens nothing is known either."""
    lines = printed(
        Forecast(kinds=(Kind(reader="mine", name="judge", asked=9, stored=0, left=9),), queries=3)
    )
    assert line(lines, "judge").split() == ["judge", "9", "0", "0", "9"]
    as_expected(lines)


@pytest.mark.parametrize("readers", [1, 2, 12])
def test_a_plan_has_at_most_25_lines(readers):
    kinds = [
        kind(name, reader=f"reader {number}")
        for number in range(readers)
        for name in ("single passages", "lists", "judge", "another")
    ]
    settings = PlanSettings(pace="out", finish_in=2.0)
    more = {"actors": 9, "sampled": 4, "notes": ("a", "b")}
    lines = printed(plan(*kinds, settings=settings, price_per_hour=2.0, **more))
    assert len(lines) <= 25
    assert line(lines, "9 actors finish in 2 h")
    row = next(one for one in lines if "judge" in one)
    assert ("reader 0" in " ".join(lines)) == (readers == 2)
    asked = row.split("judge")[1].split()[0]
    assert asked == ("1,200" if readers == 2 else f"{1200 * readers:,}")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.04, "under 0.1 s"),
        (3.25, "3.2 s"),
        (59.6, "60 s"),
        (150, "2.5 min"),
        (7200, "2.0 h"),
        (4e6, "1,111 h"),
    ],
)
def test_times_have_two_or_three_digits(seconds, text):
    assert duration(seconds) == text


def test_ways_to_read_less_say_the_least_that_they_take():
    ways = Way("lists 0.4", 1, 0.5, known=True), Way("lazy", 0.1), Way("until", 0.25, 0.25)
    forecast = plan(kind("single passages"), kind("lists"), ways=ways, actors=2)
    lines = printed(forecast)
    # 1,000 calls of each kind are left: a tenth of the passages and all lists, or a quarter of both.
    lazy = " ".join(line(lines, "with lazy, at least").split())
    assert lazy == "with lazy, at least 1,100 275,000 4,400 2.2 h 66.0 min"
    assert line(lines, "with until, at least").split()[4:7] == ["500", "125,000", "2,000"]
    assert line(lines, "with lists 0.4").split()[3:6] == ["1,500", "375,000", "6,000"]
    assert content(forecast)["ways"] == {"lists 0.4": 1500, "lazy": 1100, "until": 500}


def test_each_row_has_its_price():
    """Of an actor's hours and of tokens, which passages and lists may have different ones of."""
    kinds = kind("single passages", token_price=0.5), kind("lists", token_price=0.04)
    ways = (Way("lists 0.4", 1, 0.5, known=True),)
    for per_hour, costs in (
        (None, ["0.50", "0.0400", "0.54", "0.52"]),
        (1.0, ["2.50", "2.04", "4.54", "3.52"]),
    ):
        asked = PlanSettings(pace="out", budget="4")
        lines = printed(plan(*kinds, ways=ways, settings=asked, price_per_hour=per_hour))
        rows = [
            line(lines, name).split()[-1]
            for name in ("single passages", "lists", "all", "with lists 0.4")
        ]
        assert rows == costs
        assert f"{'lists 0.4' if per_hour else 'evaluation'} keeps " in line(lines, "budget")
    as_expected(printed(plan(kind("lists"))))


@pytest.mark.parametrize(
    ("options", "runs", "names"),
    [
        ({"measures": "RR@3"}, 2, ["lists 0.4", "lazy", "until", "lazy until"]),
        ({}, 2, ["lists 0.4", "until"]),  # the usual measures need every label
        ({"lists": 0.5}, 2, []),
        ({"width": 0.1, "measures": "RR@3"}, 2, ["width 0.1"]),
        ({END_TO_END: False}, 2, ["until"]),
        ({"measures": "RR@3", "cluster": "article"}, 2, ["lazy", "until", "lazy until"]),
        ({"measures": "RR@3"}, 1, ["lists 0.4", "lazy"]),
    ],
)
def test_only_ways_that_the_settings_allow_are_planned(tmp_path, options, runs, names):
    lists = RUN if runs == 1 else pl.concat([RUN, RUN.with_columns(pl.lit("t").alias("run"))])
    queries = QUERIES.with_columns(pl.lit(0).alias("cluster"))
    made = plan_evaluation(
        inputs(lists, queries),
        [Settings.of(k=3, actors=0, dtype="float32", **options)],
        PlanSettings(),
        store=tmp_path,
    )
    assert [way.name for way in made.ways] == names
    shares = {way.name: (way.singles, way.lists) for way in made.ways}
    # Three queries are fewer than a first round has.
    assert shares.get("lazy", (1 / 3, 1)) == (pytest.approx(1 / 3), 1)
    assert shares.get("until", (1, 1)) == (1, 1)


@pytest.mark.parametrize(
    ("budget", "said"),
    [
        # 2,000 calls and 4 h of one actor, 2 h of both, at 3 an hour each: 12; the start takes a minute.
        ("2000reads", "evaluation keeps"),
        ("1999reads", "lazy may keep"),
        ("1000reads", "until may keep"),
        ("499calls", "nothing keeps"),
        ("2.1h", "evaluation keeps"),
        ("2h", "lazy may keep"),
        ("12.2", "evaluation keeps"),
        ("12", "lazy may keep"),
        ("0.5", "nothing keeps"),
    ],
)
def test_a_budget_chooses_the_first_way_that_keeps_to_it(budget, said):
    ways = (Way("lazy", 0.1), Way("until", 0.25, 0.25))
    asked = PlanSettings(pace="out", budget=budget)
    kinds = kind("single passages"), kind("lists")
    lines = printed(plan(*kinds, ways=ways, actors=2, settings=asked, price_per_hour=3.0))
    assert f" {said} " in line(lines, f"budget {budget}: ")


def test_a_budget_needs_what_it_is_counted_in():
    for budget in ("5.00", "2h"):
        asked = PlanSettings(budget=budget)
        lines = printed(plan(kind("lists", seconds=None), settings=asked, pace=None))
        as_expected(line(lines, "budget"))
    lines = printed(plan(kind("lists", token_price=4.0), settings=PlanSettings(budget="5")))
    as_expected(line(lines, "budget"))
