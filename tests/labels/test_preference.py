"""Labels from preferences, by hand and by the closed form of Luce's model."""

import json
import math

import polars as pl
import pytest
import scipy.stats

from engine import tables
from engine.evaluation.settings import Settings
from engine.labels import preference
from engine.messages.errors import InputError
from engine.sources.runs.preferences import preferences_of, read_preferences


def judged(*rows):
    """Passages shown, and the best of them: one, several, or None; no runs."""
    lines = enumerate((dict(zip(("query_id", "shown", "best"), r, strict=True)) for r in rows), 1)
    return preferences_of("p.jsonl", lines)


def drawn(stratum, queries=10, **strata):
    return {"stratum": stratum, "design": {"strata": strata, "queries": queries}}


def by_passage(table, query_id="1"):
    return {d: v for q, d, _, _, v in table.iter_rows() if q == query_id}


def test_a_null_of_a_table_is_a_value_that_is_not_given():
    row = {"query_id": "1", "shown": ["x", "y"], "best": "x"}
    nulls = dict.fromkeys(("answers", "runs", "criteria", "drawn"))
    assert preferences_of("p", [(1, row | nulls)]).equals(preferences_of("p", [(1, row)]))
    answers = {"answers": ["x", "y"], "runs": [["a"], ["b"]], "drawn": drawn("s", s=2)}
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
    how = drawn("a", a=4)
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
    assert found.filter(run="a", run_b="b")["stratum"].to_list() == ["a", "a", "a"]


def of_runs(*judged):
    """Outcomes by stratum: -1, 0 or 1 of each query that was judged."""
    rows = [(name, float(value)) for name, values in judged for value in values]
    return pl.DataFrame(rows, schema={"stratum": pl.String(), "value": pl.Float64()}, orient="row")


def test_a_preference_weighs_each_stratum_by_its_size():
    judgments = of_runs(("a", [1, 1, 1, 0]), ("b", [-1, 0]))
    value, low, high = preference.preferred(
        judgments, strata={"a": 20, "b": 40}, queries=100, level=0.05
    )
    # 0.2 * 3/4 - 0.4 * 1/2, however many were judged; 40 queries are alike, and count as 0.
    assert value == pytest.approx(-0.05)
    # Squares about the means: 3/4 and 1/2, with 2 of the spread of both and 0.1 added each; one degree of freedom more.
    pooled = (0.75 + 0.5 + 3) / (3 + 1 + 3)
    within = [0.2**2 * (0.85 + 2 * pooled) / 5 / 4, 0.4**2 * (0.6 + 2 * pooled) / 3 / 2]
    between = (0.2 * 0.8**2 + 0.4 * 0.45**2 + 0.4 * 0.05**2) / 100
    variance = sum(within) + between
    freedom = variance**2 / (within[0] ** 2 / 5 + within[1] ** 2 / 3 + between**2 / 100)
    half = scipy.stats.t.ppf(0.975, freedom) * variance**0.5
    assert (low, high) == pytest.approx((value - half, value + half))


def test_a_stratum_without_judgments_may_favour_either_run():
    strata = {"a": 50, "b": 50}
    value, low, high = preference.preferred(
        of_runs(("a", [1] * 20)), strata=strata, queries=100, level=0.05
    )
    assert value == pytest.approx(0.5)
    assert low < 0.0 < 0.99 < high


def test_judgments_of_a_query_by_several_are_one_outcome():
    how = drawn("a", a=10)
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


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('{"shown": ["x", "y"], "best": "x"}', "a judgment without a query id"),
        (
            '{"query_id": "1", "shown": ["x"], "best": "x"}',
            "cannot be the passages shown for query '1'",
        ),
        ('{"query_id": "1", "shown": "xy", "best": "x"}', "cannot be the passages shown"),
        ('{"query_id": "1", "shown": ["a", "b", "c", "d"], "best": "a"}', "two or three"),
        ('{"query_id": "1", "shown": ["x", null], "best": "x"}', "cannot be the passages shown"),
        ('{"query_id": "1", "shown": ["x", "x"], "best": "x"}', "shows one passage twice"),
        (
            '{"query_id": "1", "shown": ["x", "y"], "best": ["x", "z"]}',
            r"\['x', 'z'\] was not shown",
        ),
        ('{"query_id": "1", "shown": ["x", "y"], "best": []}', "was not shown"),
        ('{"query_id": "1", "answers": ["x", 0.5], "best": "x"}', "cannot be the answers shown"),
        ('{"query_id": "1", "answers": ["x", "y"], "best": "x"}', "is not as it was"),
        ('{"query_id": "1", "shown": ["x", "y"], "best": "x", "criteria": 1}', "is not as it was"),
        (
            '{"query_id": "1", "shown": ["x", "y"], "best": "x", "runs": [["a"], ["b"]]}',
            "is not as it was",
        ),
        *(
            (
                json.dumps(
                    {
                        "query_id": "1",
                        "answers": ["x", "y"],
                        "best": "x",
                        "runs": runs,
                        "drawn": how,
                    }
                ),
                "is not as it was; keep what `erag ask` wrote",
            )
            for runs, how in [
                ([["a"]], drawn("s", s=4)),
                ([["a"], ["b"]], drawn("t", s=4)),
                ([["a"], ["b"]], drawn("s", s=0)),
                ([["a"], ["b"]], drawn("s", queries=3, s=4)),
                ([["a"], ["b"]], drawn("s", s="4")),
                ([["a"], ["b"]], {"stratum": ["s"], "design": {}}),
            ]
        ),
        ('{"query_id": "1", "shown": ["x", "y"]}', 'a judgment without "best"'),
        ('{"query_id": "1", "shown": ["x", "y"], "best": "z"}', "best passage 'z' was not shown"),
        ('{"query_id": "1", "shown": ["x", "y"], "best": ""}', "was not shown"),
        ("[1]", "not an object"),
    ],
)
def test_bad_preferences_are_refused_with_their_line(tmp_path, line, words):
    path = tmp_path / "p.jsonl"
    path.write_text('{"query_id": "1", "shown": ["x", "y"], "best": "x"}\n' + line + "\n")
    with pytest.raises(InputError, match=rf"p\.jsonl:2: .*{words}"):
        read_preferences(path)


def test_a_file_without_preferences_is_refused(tmp_path):
    path = tmp_path / "p.jsonl"
    path.write_text("\n")
    with pytest.raises(InputError, match="holds no judgments"):
        read_preferences(path)
