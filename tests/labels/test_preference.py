"""Labels from preferences, by hand and by the closed form of Luce's model."""

import polars as pl
import pytest

from engine import tables
from engine.labels import preference
from engine.messages.errors import InputError
from engine.sources.runs.preferences import read_preferences


def judged(*rows):
    return pl.DataFrame(rows, schema=tables.PREFERENCES, orient="row")


def by_passage(table, query_id="1"):
    return {d: v for q, d, _, _, v in table.iter_rows() if q == query_id}


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
    labels = preference.label_preference(table)
    assert labels.schema == tables.LABELS
    assert labels["label"].equals(table["label"])


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
    assert read_preferences(path).rows() == [
        ("1", ["x", "y"], "x"),
        ("2", ["x", "7", "z"], "7"),
        ("2", ["x", "y"], None),
    ]


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
        ('{"query_id": "1", "shown": ["x", "x"], "best": "x"}', "shows a passage twice"),
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
