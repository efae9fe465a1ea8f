"""Measures at a budget of tokens, by hand, and against the measures at the rank that the budget comes to."""

import math

import polars as pl
import pytest

from engine.ranking.measures import parse_measures
from engine.ranking.scores import score_runs
from tests.conftest import make_labels, make_run
from tests.expected import refused
from tests.ranking.ragged import BURGES


def scored(lists, labels, measures, lengths, relevant="list"):
    """Values by run, measure and query of lists ``{run: {query: documents}}``."""
    run = pl.concat(
        make_run([(q, d, i) for q, docs in of_run.items() for i, d in enumerate(docs, 1)], name)
        for name, of_run in lists.items()
    ).with_columns(pl.col("doc_id").replace_strict(lengths, return_dtype=pl.Int64).alias("tokens"))
    queries = list(dict.fromkeys(q for q, _, _ in labels))
    table = score_runs(
        run, make_labels(labels), queries, parse_measures(measures), relevant=relevant
    )
    return {(r, m, q): v for r, _, m, q, v in table.iter_rows()}


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        # Of a (100), b (150), c (60), d (40), 300 tokens hold a and b: c would be 310. d is not taken in its place.
        # The best order of 300 tokens is d, c (both relevant, 100 tokens), then b does not add a third.
        ({"a": 0, "b": 1, "c": 1, "d": 1}, {
            "P@300tok": 150 / 300, "Success@300tok": 1, "RR@300tok": 1 / 2, "R@300tok": 1 / 3,
            "AP@300tok": (1 / 2) / 3, "DCG@300tok": 1 / math.log2(3), "Judged@300tok": None,
            "nDCG@300tok": (1 / math.log2(3)) / (1 + 1 / math.log2(3) + 1 / 2),
        }),
        # Real-valued: at rank 1 the largest label, 0.9 (b); two passages that fit have 0.5 at least (a and b), three
        # 0.2 (d, c and b or a), four do not fit.
        ({"a": 0.5, "b": 0.9, "c": 0.2, "d": 0.2}, {
            "P@300tok": (50 + 135) / 300, "Success@300tok": 0.9, "R@300tok": 1.4 / 1.8,
            "nDCG@300tok": (0.5 + 0.9 / math.log2(3)) / (0.9 + 0.5 / math.log2(3) + 0.2 / 2),
        }),
    ],
)  # fmt: skip
def test_passages_that_the_budget_holds_as_a_whole_count(labels, expected):
    lengths = {"a": 100, "b": 150, "c": 60, "d": 40}
    named = [measure for measure, value in expected.items() if value is not None]
    rows = [("q", doc, float(label)) for doc, label in labels.items()]
    got = scored({"s": {"q": "abcd"}}, rows, " ".join(named), lengths)
    assert got == pytest.approx({("s", m, "q"): expected[m] for m in named}, abs=1e-12)


@pytest.mark.parametrize("relevant", ["list", "pool"])
@pytest.mark.parametrize("values", [(0.0, 1.0), (0.0, 0.3, 0.8)])
def test_with_equal_lengths_a_budget_is_the_rank_that_it_comes_to(relevant, values):
    lists = {"s": {"q1": "abcde", "q2": "ba"}, "t": {"q1": "fgh", "q3": "a"}}
    rows = [
        (q, d, values[(ord(d) + place) % len(values)])
        for place, q in enumerate(("q1", "q2", "q3"))
        for d in "abcdefgh"
    ]
    kinds = ["P", "R", "Success", "DCG", "nDCG", BURGES]
    kinds += ["AP(rel=0.2)", "RR(rel=0.2)"]
    kinds += ["Judged"] * (relevant == "pool")
    both = " ".join(f"{kind}@3 {kind}@39tok" for kind in kinds)
    got = scored(lists, rows, both, dict.fromkeys("abcdefgh", 13), relevant)
    at_rank = {key: value for key, value in got.items() if "tok" not in key[1]}
    assert got == pytest.approx(
        at_rank | {(r, m.replace("@3", "@39tok"), q): v for (r, m, q), v in at_rank.items()}
    )
    assert any(0 < value < 1 for value in at_rank.values())


def test_a_list_whose_first_passage_does_not_fit_has_nothing_within_the_budget():
    lists, labels = {"s": {"q": "ab"}, "t": {"q": "ba"}}, [("q", "a", 1.0), ("q", "b", 1.0)]
    measures = "P@50tok Success@50tok nDCG@50tok RR"
    got = scored(lists, labels, measures, {"a": 51, "b": 50}, "pool")
    of_s, of_t = ([got[run, m, "q"] for m in measures.split()] for run in "st")
    assert (of_s, of_t) == ([0, 0, 0, 1], [1, 1, 1, 1])


def test_a_best_order_with_passages_of_unknown_length_is_refused():
    with refused("measure.unjudged"):
        scored({"s": {"q": "a"}}, [("q", "a", 1.0)], "nDCG@9tok", {"a": 9}, "qrels")
    got = scored({"s": {"q": "a"}}, [("q", "a", 1.0), ("q", "z", 1.0)], "R@9tok", {"a": 9}, "qrels")
    assert got["s", "R@9tok", "q"] == 1 / 2
