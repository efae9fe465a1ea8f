"""Labels from preferences, by hand and by the closed form of Luce's model."""

import json
import math

import numpy as np
import polars as pl
import pytest
import scipy.stats
from polars.testing import assert_frame_equal

from engine import tables
from engine.evaluation.settings import Settings
from engine.labels import preference
from engine.python.input_forms import records
from engine.sources.runs.qrels import preferences_of, read_preferences
from tests.expected import refused
from tests.tables import framed


def judged(*rows):
    """Passages shown, and the best of them: one, several, or None; no runs."""
    lines = enumerate((dict(zip(("query_id", "shown", "best"), r, strict=True)) for r in rows), 1)
    return preferences_of("p.jsonl", lines)


def drawn(labels=None, probability=0.5, queries=10, **strata):
    how = {"probability": probability, "design": {"strata": strata, "queries": queries}}
    return how if labels is None else {**how, "labels": labels}


def by_passage(table, query_id="1"):
    return {d: v for q, d, _, _, v in table.iter_rows() if q == query_id}


def test_a_null_of_a_table_is_a_value_that_is_not_given():
    row = {"query_id": "1", "shown": ["x", "y"], "best": "x"}
    nulls = dict.fromkeys(("answers", "runs", "criteria", "drawn"))
    assert preferences_of("p", [(1, row | nulls)]).equals(preferences_of("p", [(1, row)]))
    answers = {"answers": ["x", "y"], "runs": [["a"], ["b"]], "drawn": drawn(s=2)}
    of_answers = {"query_id": "1", "best": None, **answers}
    expected = preferences_of("p", [(1, of_answers)])
    assert preferences_of("p", [(1, of_answers | {"shown": None})]).equals(expected)


def test_shares_are_times_chosen_over_times_shown():
    judgments = judged(
        ("1", ["x", "y"], "x"),
        ("1", ["x", "y", "z"], "y"),
        ("1", ["x", "z"], None),
        ("2", ["x", "y"], "y"),
    )
    table = preference.label_preferences(judgments, "share")
    assert table.schema == tables.PREFERENCE_LABELS
    assert table.rows() == [
        ("1", "x", 3, 1, 1 / 3),
        ("1", "y", 2, 1, 1 / 2),
        ("1", "z", 2, 0, 0.0),
        ("2", "x", 1, 0, 0.0),
        ("2", "y", 1, 1, 1.0),
    ]


def test_those_that_are_equally_good_are_all_chosen():
    # x and y share the first place once, and y alone wins against z once.
    judgments = judged(("1", ["x", "y", "z"], ["x", "y"]), ("1", ["y", "z"], "y"))
    shares = by_passage(preference.label_preferences(judgments, "share"))
    assert shares == {"x": 1, "y": 1, "z": 0}
    strengths = by_passage(preference.label_preferences(judgments, "bradley-terry"))
    # z and "none of them" both lost wherever they were offered.
    assert strengths["z"] == pytest.approx(0.5)
    assert 0.5 < strengths["x"] < strengths["y"]


def test_bradley_terry_strengths_are_those_of_the_closed_form():
    # One choice set over and over: strengths are proportional to the choices, 6 : 3 : 1 of none,
    # so alone against none x is chosen in 6/7, y in 3/4 of the cases.
    judgments = judged(
        *[("1", ["x", "y"], "x")] * 600,
        *[("1", ["x", "y"], "y")] * 300,
        *[("1", ["x", "y"], None)] * 100,
    )
    table = preference.label_preferences(judgments, "bradley-terry")
    assert by_passage(table) == pytest.approx({"x": 6 / 7, "y": 3 / 4}, abs=2e-3)
    assert table.select("times_shown", "times_chosen").rows() == [(1000, 600), (1000, 300)]


def test_bradley_terry_tells_apart_what_shares_cannot():
    # x and y were both chosen once of once; but y beat z, which had beaten w twice
    judgments = judged(
        ("1", ["x", "w"], "x"), ("1", ["y", "z"], "y"), *[("1", ["z", "w"], "z")] * 2,
    )  # fmt: skip
    shares = by_passage(preference.label_preferences(judgments, "share"))
    strengths = by_passage(preference.label_preferences(judgments, "bradley-terry"))
    assert shares["x"] == shares["y"] == 1
    assert 0 < strengths["w"] < strengths["x"] < strengths["y"] < 1


def test_queries_do_not_touch_each_other():
    one = judged(("1", ["x", "y"], "x"))
    both = pl.concat([one, judged(*[("2", ["x", "y"], "y")] * 9)])
    for method in ("share", "bradley-terry"):
        alone, beside = (by_passage(preference.label_preferences(j, method)) for j in (one, both))
        assert alone == beside


def test_a_file_of_preferences(tmp_path):
    path = tmp_path / "p.jsonl"
    path.write_text(
        '{"query_id": "1", "shown": ["x", "y"], "best": "x", "judge": "Ann"}\n\n'
        '{"query_id": 2, "shown": ["x", 7, "z"], "best": 7}\n'
        '{"query_id": "2", "shown": ["x", "y"], "best": null}\n'
    )
    assert read_preferences(path).select("query_id", "shown", "best").rows() == [
        ("1", ["x", "y"], ["x"]),
        ("2", ["x", "7", "z"], ["7"]),
        ("2", ["x", "y"], []),
    ]


def test_judgments_of_runs_have_a_row_for_each_pair_and_criterion(tmp_path):
    path = tmp_path / "p.jsonl"
    how = drawn({"a": 0.5, "b": -0.25}, a=4)
    lines = [
        {"query_id": "1", "answers": ["Rome", "", "Oslo"], "best": "", "runs": [["a"], ["b"], ["c"]], "drawn": how,
         "criteria": {"concise": ["Rome", ""]}},
        {"query_id": "2", "shown": ["x", "y"], "best": "x", "runs": [["b", "c"], ["a"]], "drawn": how},
    ]  # fmt: skip
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = read_preferences(path)
    columns = ("query_id", "shown", "criterion", "run", "run_b", "value")
    assert found.select(columns).rows() == [
        ("1", [], "answers", "a", "b", -1),
        ("1", [], "answers", "a", "c", 0),
        ("1", [], "answers", "b", "c", 1),
        ("1", [], "answers concise", "a", "b", 0),
        ("1", [], "answers concise", "a", "c", 1),
        ("1", [], "answers concise", "b", "c", 1),
        ("2", ["x", "y"], "passages", "a", "b", -1),  # its labels count once
        ("2", [], "passages", "a", "c", -1),
        ("2", [], "passages", "b", "c", 0),
    ]
    labels = found.unique(["run", "run_b", "label", "probability"]).sort("run", "run_b")
    assert labels.select("run", "run_b", "label", "probability").rows() == [
        ("a", "b", 0.75, 0.5), ("a", "c", 0.5, 0.5), ("b", "c", -0.25, 0.5)
    ]  # fmt: skip


def test_records_of_different_pages_are_the_same_in_a_frame():
    """Its structs have all fields of all records: null in those that lack them."""
    lines = [
        {"query_id": "1", "shown": ["x", "y"], "best": "x", "runs": [["a"], ["b"]], "drawn": how}
        for how in (drawn(z=2), drawn({"a": 0.5, "b": -0.5}, a=4, z=3), drawn({"c": 1.0}, z=2))
    ]
    frame = pl.DataFrame(lines)
    assert frame["drawn"][0]["labels"] is None
    assert frame["drawn"][0]["design"]["strata"] == {"z": 2, "a": None}
    of_lines, of_frame = (
        preferences_of("p", enumerate(records(given, "p"), 1)) for given in (lines, frame)
    )
    assert of_lines["label"].to_list() == [0, 1, 0]
    assert_frame_equal(of_frame, of_lines)


def of_runs(*judged):
    """Outcome, what labels say, and the probability of each query that was judged."""
    schema = dict.fromkeys(("value", "label", "probability"), pl.Float64())
    return framed(judged, schema)


def test_a_preference_is_corrected_by_what_labels_say_of_queries_that_were_not_judged():
    # 80 of 100 queries differ. Weights 1/16 and 1/32 of one. Ten differ from most, so that a t interval sees them.
    once = ((1, 1, 0.1), (1, 0.5, 0.1), (0, 0, 0.1), (0, -0.5, 0.2), (-1, -1, 0.2))
    judgments, n = of_runs(*once * 4), 20
    value, low, high = preference.preferred(judgments, differing=80, queries=100, level=0.05)
    w = np.array([2, 2, 2, 1, 1] * 4) / 32
    y, x = judgments["value"].to_numpy(), judgments["label"].to_numpy()
    # One more judgment, a whole label from the mean and without a preference, and the residual 1/2 squared.
    rows = [*(np.sqrt(n * w) * (x - w @ x)), 1], [*(np.sqrt(n * w) * (y - w @ y)), 0]
    (slope,) = np.linalg.lstsq(np.array(rows[:1]).T, np.array(rows[1]), rcond=None)[0]
    # Labels are 0 on average of the queries that differ.
    assert value == pytest.approx(0.8 * (w @ y - slope * (w @ x)))
    residuals = n * w * (y - w @ y - slope * (x - w @ x))
    within = 0.8**2 * (residuals @ residuals + 0.5) / (n - 1) / n
    between = (0.8 * slope**2 * (w @ (x - w @ x) ** 2) + 0.2 * 0.8 * (value / 0.8) ** 2) / 100
    freedom = (within + between) ** 2 / (within**2 / (n - 1) + between**2 / 100)
    half = scipy.stats.t.ppf(0.975, freedom) * (within + between) ** 0.5
    assert (low, high) == pytest.approx((max(-1, value - half), value + half))


def agreeing(n, others, other, most=1):
    judged = of_runs(*[(other, 0, 0.2)] * others, *[(most, 0, 0.2)] * (n - others))
    return preference.preferred(judged, differing=600, queries=600, level=0.05)


@pytest.mark.parametrize("n", [20, 50])
def test_judgments_that_agree_hide_as_much_as_the_rule_of_three_says(n):
    # With more of the others, n that agree are drawn in less than 2.5% of the cases (Clopper & Pearson).
    hidden = 1 - 0.025 ** (1 / n)
    assert agreeing(n, 0, 0) == (1, pytest.approx(1 - 2 * hidden), 1)
    assert agreeing(n, 0, 0, most=0.0) == (0, pytest.approx(-hidden), pytest.approx(hidden))
    assert agreeing(1, 0, 0, most=0) == (0, -1, 1)


@pytest.mark.parametrize("n", [20, 50, 100])
@pytest.mark.parametrize("other", [-1, 0])
def test_intervals_hold_where_nearly_all_prefer_one_run(n, other):
    # Added up over how many of the n differ from the others: no more than 40% do.
    bounds = np.array([agreeing(n, others, other)[1:] for others in range(2 * n // 5)])
    for share in (0.01, 0.02, 0.03, 0.05, 0.1):
        mean = 1 - share * (1 - other)
        holds = (bounds[:, 0] <= mean + 1e-12) & (mean <= bounds[:, 1] + 1e-12)
        odds = scipy.stats.binom.pmf(range(len(bounds)), n, share)
        assert odds @ holds >= 0.93, share


def test_judgments_of_a_query_by_several_are_one_outcome():
    how = drawn(a=10)
    best = ["x", "x", None, "y"]
    lines = [
        {"query_id": "1" if n < 2 else "2", "shown": ["x", "y"], "best": one, "runs": [["r"], ["s"]], "drawn": how}
        for n, one in enumerate(best)
    ]  # fmt: skip
    outcomes = preferences_of("p.jsonl", enumerate(lines, 1))
    (row,) = preference._conclude(outcomes, Settings.of(), None).to_dicts()
    # Query 1: 1. Query 2: the mean of 0 and -1.
    assert (row["n"], row["of"], row["difference"]) == (2, 10, pytest.approx(0.25))
    (clustered,) = preference._conclude(outcomes, Settings.of(), {"1": 0, "2": 0}).to_dicts()
    assert clustered["difference"] == row["difference"]
    assert math.isnan(clustered["low"])


def of_two(runs, how):
    return {"answers": ["x", "y"], "shown": None, "runs": runs, "drawn": how}


AB = [["a"], ["b"]]


@pytest.mark.parametrize(
    ("changed", "code"),
    [
        ({"query_id": None}, "qrels.queryless"),
        ({"shown": ["x"]}, "qrels.shown"),
        ({"shown": "xy"}, "qrels.shown"),
        ({"shown": ["a", "b", "c", "d"], "best": "a"}, "qrels.shown"),
        ({"shown": ["x", None]}, "qrels.shown"),
        ({"shown": ["x", "x"]}, "qrels.repeated"),
        ({"best": ["x", "z"]}, "qrels.unshown"),
        ({"best": []}, "qrels.unshown"),
        ({"best": "z"}, "qrels.unshown"),
        ({"best": ""}, "qrels.unshown"),
        ({"shown": None, "answers": ["x", 0.5]}, "qrels.shown"),
        ({"shown": None, "answers": ["x", "y"]}, "qrels.drawn"),
        ({"criteria": 1}, "qrels.drawn"),
        ({"runs": AB}, "qrels.drawn"),
        (of_two([["a"]], drawn(s=4)), "qrels.drawn"),
        (of_two(AB, drawn(probability=0, s=4)), "qrels.drawn"),
        (of_two(AB, drawn({"a": math.inf}, s=4)), "qrels.drawn"),
        (of_two(AB, drawn(s=0)), "qrels.drawn"),
        (of_two(AB, drawn(queries=3, s=4)), "qrels.drawn"),
        (of_two(AB, drawn(s="4")), "qrels.drawn"),
        (of_two(AB, {"stratum": ["s"], "design": {}}), "qrels.drawn"),
        ('{"query_id": "1", "shown": ["x", "y"]}', "qrels.best"),
        ("[1]", "json.object"),
    ],
)
def test_bad_preferences_are_refused_with_their_line(tmp_path, changed, code):
    good, path = {"query_id": "1", "shown": ["x", "y"], "best": "x"}, tmp_path / "p.jsonl"
    bad = changed if isinstance(changed, str) else json.dumps(good | changed)
    path.write_text(json.dumps(good) + "\n" + bad + "\n")
    with refused(code, path=path, line=2):
        read_preferences(path)


def test_a_file_without_preferences_is_refused(tmp_path):
    path = tmp_path / "p.jsonl"
    path.write_text("\n")
    with refused("qrels.none"):
        read_preferences(path)
