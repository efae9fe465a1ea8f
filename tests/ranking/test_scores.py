import math

import ir_measures
import polars as pl
import pytest
import pytrec_eval
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.errors import InputError
from engine.ranking.measures import parse_measures
from engine.ranking.scores import score_runs
from tests.conftest import make_labels, make_run

SHARED = "P@1 P@5 R@5 R@10 R@1000 AP AP@5 RR nDCG nDCG@5 nDCG@10 Success@1 Success@5"


def values(runs, labels, queries, measures, relevant="list"):
    frame = score_runs(runs, labels, queries, parse_measures(measures), relevant=relevant)
    return {(r, m, q): v for r, _, m, q, v in frame.iter_rows()}


@st.composite
def cases(draw):
    """Ragged runs over some queries, with binary labels for every listed document."""
    rows, labels = [], []
    for query in range(draw(st.integers(1, 5))):
        for rank in range(draw(st.integers(0, 14))):
            rows.append((f"q{query}", f"d{rank}", rank + 1))
            labels.append((f"q{query}", f"d{rank}", float(draw(st.booleans()))))
    extra = [(q, f"e{i}", 1.0) for q in ("q0", "q1") for i in range(draw(st.integers(0, 3)))]
    return rows, labels, extra


@settings(max_examples=300, deadline=None)
@given(cases())
def test_binary_measures_equal_trec_eval(case):
    rows, labels, extra = case
    if not rows:
        return
    queries = [f"q{i}" for i in range(5)]
    # qrels: labels beyond the list count, as in trec_eval
    for relevant, judged in (("list", labels), ("qrels", labels + extra)):
        ours = values(make_run(rows), make_labels(judged), queries, SHARED, relevant)
        qrels, run = {}, {}
        for q, d, v in judged:
            qrels.setdefault(q, {})[d] = int(v)
        for q, d, r in rows:
            run.setdefault(q, {})[d] = float(100 - r)
        names = {
            "P@1": "P_1", "P@5": "P_5", "R@5": "recall_5", "R@10": "recall_10",
            "R@1000": "recall_1000", "AP": "map", "AP@5": "map_cut_5", "RR": "recip_rank",
            "nDCG": "ndcg", "nDCG@5": "ndcg_cut_5", "nDCG@10": "ndcg_cut_10",
            "Success@1": "success_1", "Success@5": "success_5",
        }  # fmt: skip
        theirs = pytrec_eval.RelevanceEvaluator(qrels, set(names.values())).evaluate(run)
        for query in queries:
            for name, trec_name in names.items():
                # trec_eval leaves queries without results out; here they count 0 (its option -c)
                expected = theirs[query][trec_name] if query in theirs else 0.0
                assert ours["sys", name, query] == pytest.approx(expected, abs=1e-12), name


def test_several_runs_equal_ir_measures():
    rows = {
        "s": [("q1", "a", 1), ("q1", "b", 2), ("q1", "c", 3), ("q2", "a", 1)],
        "t": [("q1", "d", 1), ("q1", "a", 2), ("q2", "c", 1), ("q2", "b", 2)],
    }
    labels = [("q1", "a", 1.0), ("q1", "b", 0.0), ("q1", "c", 1.0), ("q1", "d", 1.0)]
    labels += [("q2", "a", 0.0), ("q2", "b", 1.0), ("q2", "c", 0.0)]
    runs = pl.concat([make_run(r, name) for name, r in rows.items()])
    ours = values(runs, make_labels(labels), ["q1", "q2"], SHARED, "pool")
    measures = [ir_measures.parse_measure(m) for m in SHARED.split()]
    qrels = [ir_measures.Qrel(q, d, int(v)) for q, d, v in labels]
    for name, listed in rows.items():
        scored = [ir_measures.ScoredDoc(q, d, float(-r)) for q, d, r in listed]
        for found in ir_measures.iter_calc(measures, qrels, scored):
            key = (name, str(found.measure), found.query_id)
            assert ours[key] == pytest.approx(found.value, abs=1e-12), key


def test_graded_labels_by_hand():
    run = make_run([("q", "a", 1), ("q", "b", 2), ("q", "c", 3)])
    labels = make_labels([("q", "a", 0.5), ("q", "b", 0.0), ("q", "c", 0.9)])
    measures = "P@2 P@5 P Success@2 Success DCG@3 nDCG@3 AP(rel=0.5) RR(rel=0.6) P(rel=0.5)@2 R(rel=0.5)@2 F1(rel=0.5)@2"
    got = {m: v for (_, m, _), v in values(run, labels, ["q"], measures).items()}
    dcg = 0.5 + 0.9 / math.log2(4)  # 0.5 / log2(2) + 0 + 0.9 / log2(4)
    ideal = 0.9 + 0.5 / math.log2(3)
    assert got == pytest.approx(
        {
            "P@2": 0.25,  # mean label of the first two
            "P@5": 1.4 / 5,  # over 5 although only 3 are listed
            "P": 1.4 / 3,
            "Success@2": 0.5,
            "Success": 0.9,
            "DCG@3": dcg,
            "nDCG@3": dcg / ideal,
            "AP(rel=0.5)": (1 / 1 + 2 / 3) / 2,
            "RR(rel=0.6)": 1 / 3,
            "P(rel=0.5)@2": 1 / 2,
            "R(rel=0.5)@2": 1 / 2,
            "F1(rel=0.5)@2": 1 / 2,
        },
        abs=1e-12,
    )


@pytest.mark.parametrize("name", ["AP", "AP@5", "RR", "Rprec"])
def test_graded_labels_need_a_threshold(name):
    run, labels = make_run([("q", "a", 1)]), make_labels([("q", "a", 0.5)])
    with pytest.raises(
        InputError, match="is not defined on the real-valued labels of 'a'; give a threshold"
    ):
        values(run, labels, ["q"], name)


def test_list_excuses_what_a_run_did_not_find_and_pool_does_not():
    # s finds one of three useful documents at rank 1, t all three (CONVENTIONS: consequence 2)
    rows = {"s": ["a", "x", "y"], "t": ["a", "b", "c"]}
    runs = pl.concat(
        [make_run([("q", d, i) for i, d in enumerate(ds, 1)], n) for n, ds in rows.items()]
    )
    labels = make_labels([("q", d, float(d in "abc")) for d in "abcxy"])
    own = values(runs, labels, ["q"], "AP R@3 nDCG@3 P@3", "list")
    pooled = values(runs, labels, ["q"], "AP R@3 nDCG@3 P@3", "pool")
    assert own["s", "AP", "q"] == own["t", "AP", "q"] == own["s", "nDCG@3", "q"] == 1
    assert pooled["s", "AP", "q"] == pooled["s", "R@3", "q"] == pytest.approx(1 / 3)
    assert pooled["s", "nDCG@3", "q"] == pytest.approx(1 / (1 + 1 / math.log2(3) + 1 / 2))
    assert pooled["t", "AP", "q"] == 1
    assert own["s", "P@3", "q"] == pooled["s", "P@3", "q"] == pytest.approx(1 / 3)


def test_queries_without_results_score_zero_and_stay():
    run, labels = make_run([("q1", "a", 1)]), make_labels([("q1", "a", 1.0)])
    got = values(run, labels, ["q1", "q2"], "P@1 RR nDCG@5")
    assert got["sys", "P@1", "q1"] == 1
    assert {v for (_, _, q), v in got.items() if q == "q2"} == {0.0}


def test_annotators_do_not_mix():
    run = make_run([("q", "a", 1), ("q", "b", 2)])
    labels = pl.concat(
        [
            make_labels([("q", "a", 1.0), ("q", "b", 0.0)], "x"),
            make_labels([("q", "a", 0.0), ("q", "b", 0.5)], "y"),
        ]
    )
    frame = score_runs(run, labels, ["q"], parse_measures("P@2"), relevant="list")
    assert {r["annotator"]: r["value"] for r in frame.to_dicts()} == {"x": 0.5, "y": 0.25}
