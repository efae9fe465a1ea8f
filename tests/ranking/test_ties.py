"""Equal scores in another order: the means that references give for the same scores."""

import random
from functools import partial

import ir_measures
import polars as pl
import pytest
import pytrec_eval

from engine import tables
from engine.ranking.measures import parse_measures
from engine.ranking.scores import score_runs
from engine.ranking.ties import score_reordered, tie_notes
from engine.tables import ORDER
from tests.conftest import make_labels
from tests.expected import as_expected
from tests.tables import framed

MEASURES = parse_measures("P@2 AP RR@3 nDCG@3")


def scored(run, labels, measures=MEASURES):
    """Scores as evaluated and reordered, of (query, document, rank, score)."""
    runs = framed([(*row, "s") for row in run], tables.RUNS)
    by = partial(score_runs, labels=labels, measures=measures, relevant="qrels")
    queries = list(dict.fromkeys(labels["query_id"]))

    def score(runs, queries):
        return by(runs, query_ids=queries)

    return score(runs, queries), score_reordered(runs, queries, score)


def means(here, other, order):
    """By measure, with the lists that an order changes as they are in it."""
    other = other.filter(pl.col(ORDER).str.starts_with(order)).drop(ORDER)
    both = pl.concat([other, here]).unique(["measure", "query_id"], keep="first")
    return dict(both.group_by("measure").agg(pl.col("value").mean()).iter_rows())


@pytest.mark.parametrize("seed", range(3))
def test_means_in_another_order_are_those_of_the_references(seed):
    rng = random.Random(seed)
    run, qrels, listed = [], {}, {}
    for query in (f"q{i}" for i in range(20)):
        docs = rng.sample("abcdefgh", 6)
        values = sorted((rng.choice([1.0, 2.0, 2.0 + 1e-9, 3.0]) for _ in docs), reverse=True)
        # equal in single precision and higher in double: not a tie to ir_measures
        values = [float(round(value)) for value in values] if query != "q0" else values
        run += [
            (query, d, rank, value)
            for rank, (d, value) in enumerate(zip(docs, values, strict=True), 1)
        ]
        listed[query] = dict(zip(docs, values, strict=True))
        qrels[query] = {d: rng.choice([0, 1, 2]) for d in rng.sample("abcdefghij", 5)}
    labels = make_labels([(q, d, float(v)) for q, of in qrels.items() for d, v in of.items()])
    here, other = scored(run, labels)
    assert other[ORDER].n_unique() == 2  # the ranks are in neither order

    found = pytrec_eval.RelevanceEvaluator(qrels, {"P_2", "map", "ndcg_cut_3"}).evaluate(listed)
    theirs = {name: sum(row[name] for row in found.values()) / 20 for name in found["q1"]}
    ours = means(here, other, "trec_eval's")
    assert [ours[name] for name in ("P@2", "AP", "nDCG@3")] == pytest.approx(
        [theirs[name] for name in ("P_2", "map", "ndcg_cut_3")], abs=1e-12
    )
    del listed["q0"], qrels["q0"]
    (rr,) = ir_measures.calc_aggregate([ir_measures.RR @ 3], qrels, listed).values()
    rest = pl.col("query_id") != "q0"
    ascending = means(here.filter(rest), other.filter(rest), "ir_measures'")
    assert ascending["RR@3"] == pytest.approx(rr, abs=1e-12)


def test_a_note_gives_both_values_by_hand():
    # q1 as evaluated: a, b; trec_eval: b, a. q2 has no equal scores, q3 two passages without labels.
    run = [("q1", "a", 1, 1.0), ("q1", "b", 2, 1.0), ("q2", "a", 1, 2.0), ("q2", "b", 2, 1.0)]
    run += [("q3", "x", 1, 1.0), ("q3", "y", 2, 1.0)]
    labels = make_labels([("q1", "a", 1.0), ("q2", "a", 1.0), ("q3", "a", 1.0)])
    here, other = scored(run, labels, parse_measures("P@1 P@2 RR"))
    (note,) = tie_notes(here, other)
    assert (note.code, note.amount, note.about) == ("tied_scores", 1, ("s",))
    as_expected(note.text)
    # 2 / 2,003 and 1.631 / 2,003 are printed alike.
    more = [(f"m{i}", "a") for i in range(2000)]
    run += [(*own, 1, 1.0) for own in more]
    labels = pl.concat([labels, make_labels([(*own, 0.0) for own in more])])
    assert not [*tie_notes(*scored(run, labels, parse_measures("nDCG@2")))]


def test_a_run_in_trec_evals_order_is_held_against_the_opposite():
    run = [("q", "b", 1, 1.0), ("q", "a", 2, 1.0)]
    (note,) = tie_notes(*scored(run, make_labels([("q", "a", 1.0)])))
    as_expected(note.text)


def test_passages_that_share_a_score_change_places_only_side_by_side():
    # By rank: a 1, b 2, c 1. No order of equal scores brings c above b.
    run = [("q", "a", 1, 1.0), ("q", "b", 2, 2.0), ("q", "c", 3, 1.0)]
    _, other = scored(run, make_labels([("q", "a", 1.0)]))
    assert other.is_empty()
