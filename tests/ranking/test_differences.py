"""Where references differ from ours: the differences that ``engine.ranking.scores`` lists are real."""

from __future__ import annotations

import math
import warnings

import erag
import ir_measures
import pytest
import pytrec_eval

from engine.ranking.measures import parse_measures
from engine.ranking.scores import score_runs
from engine.sources.runs.read import read_run
from tests.conftest import make_labels
from tests.ranking.ragged import BURGES, Case, by_key, score


@pytest.fixture(scope="module")
def ranx():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import ranx

        yield ranx


def trec_eval(case: Case, *names: str, rel: int = 1) -> dict[str, dict[str, float]]:
    return pytrec_eval.RelevanceEvaluator(case.qrels(), names, rel).evaluate(case.scored("s"))


def with_ir_measures(qrels, scored, *names: str) -> dict[tuple[str, str], float]:
    measures = [ir_measures.parse_measure(name) for name in names]
    found = ir_measures.iter_calc(measures, qrels, scored)
    return {(str(m.measure), m.query_id): m.value for m in found}


def listed(docs: str, labels: dict[str, float]) -> Case:
    return Case(["q"], {"s": {"q": list(docs)}}, {"q": labels})


# pytrec_eval


def test_pytrec_eval_has_no_dcg_judged_f1_at_k_and_rr_at_k():
    for name in ("dcg", "dcg_cut_5", "f1_5", "F_5", "judged_5"):
        with pytest.raises(ValueError, match="unsupported measure"):
            pytrec_eval.RelevanceEvaluator({"q": {"a": 1}}, {name})
    # These take no cutoff and ignore it: a is at rank 2.
    case = listed("ba", {"a": 1})
    assert trec_eval(case, "recip_rank_1")["q"] == {"recip_rank": 0.5}
    # precision 1/2 and recall 1 of the whole list: its set_F is our F1
    (found,) = trec_eval(case, "set_F_1")["q"].values()
    assert found == pytest.approx(2 / 3, abs=1e-12)
    ours = score(case, ["RR@1", "F1@1", "F1"], "qrels")
    assert list(ours.values()) == pytest.approx([0.0, 0.0, 2 / 3], abs=1e-12)


def test_pytrec_eval_returns_only_queries_that_run_and_qrels_share():
    case = Case(
        ["both", "judged", "listed"],
        {"s": {"both": ["a"], "listed": ["a"]}},
        {"both": {"a": 1}, "judged": {"a": 1}},
    )
    assert trec_eval(case, "P_1") == {"both": {"P_1": 1.0}}
    ours = score(case, ["P@1"], "qrels")
    assert {q: v for (_, _, q), v in ours.items()} == {"both": 1.0, "judged": 0.0, "listed": 0.0}


def test_pytrec_eval_takes_no_floats_for_labels():
    for label in (0.5, 1.0):
        with pytest.raises(TypeError, match="integer"):
            pytrec_eval.RelevanceEvaluator({"q": {"a": label}}, {"map"})
    assert score(listed("a", {"a": 1.0}), ["AP"], "qrels")["s", "AP", "q"] == 1.0


# ir_measures


@pytest.fixture
def equal_scores(tmp_path):
    """A run of two equal scores as a TREC file, and as the references take it."""
    path = tmp_path / "run.trec"
    path.write_text("q Q0 a 1 1.0 s\nq Q0 b 2 1.0 s\n")
    return path, {"q": {"a": 1.0, "b": 1.0}}


def test_ir_measures_breaks_ties_by_the_measure(equal_scores):
    path, scored = equal_scores
    names = ["P@1", "RR", "RR@2", "Judged@1"]
    theirs = with_ir_measures({"q": {"b": 1}}, scored, *names)
    # b is first for what trec_eval computes, a for RR@k and Judged
    assert [theirs[name, "q"] for name in names] == [1.0, 1.0, 0.5, 0.0]
    frame = score_runs(
        read_run(path),
        make_labels([("q", "b", 1.0)]),
        ["q"],
        parse_measures(" ".join(names)),
        relevant="qrels",
    )
    assert [by_key(frame)["s", name, "q"] for name in names] == [1.0, 1.0, 1.0, 1.0]


def test_ir_measures_has_no_judged_for_queries_without_judgments():
    theirs = with_ir_measures({"q": {"a": 1}}, {"q": {"a": 1.0}, "p": {"a": 1.0}}, "Judged@1")
    assert theirs == {("Judged@1", "q"): 1.0}
    case = Case(["q", "p"], {"s": {"q": ["a"], "p": ["a"]}}, {"q": {"a": 1}})
    assert score(case, ["Judged@1"], "qrels")["s", "Judged@1", "p"] == 0.0


def test_ir_measures_counts_labels_below_zero_as_judged():
    case = listed("a", {"a": -1, "z": 0})
    theirs = with_ir_measures(case.qrels(), case.scored("s"), "Judged@1")
    assert theirs == {("Judged@1", "q"): 1.0}
    assert score(case, ["Judged@1"], "qrels")["s", "Judged@1", "q"] == 0.0


@pytest.mark.parametrize("name", ["AP", "P@1", "nDCG", "Success@1"])
def test_ir_measures_takes_no_floats_for_labels(name):
    with pytest.raises(TypeError, match="integer"):
        with_ir_measures({"q": {"a": 0.5}}, {"q": {"a": 1.0}}, name)


# ranx


def with_ranx(ranx, qrels, scored, *names: str) -> dict[str, float]:
    # Dictionaries: for its own classes ranx compiles much longer on first use.
    return {name: float(v) for name, v in ranx.evaluate(qrels, scored, list(names)).items()}


def test_ranx_orders_equal_scores_by_where_they_stand_in_the_run(ranx, equal_scores):
    path, scored = equal_scores
    other_way = {"q": dict(reversed(scored["q"].items()))}
    found = [
        with_ranx(ranx, {"q": {"a": 1}}, run, "mrr", "hit_rate@1") for run in (scored, other_way)
    ]
    assert sorted(own["mrr"] for own in found) == [0.5, 1.0]
    assert {own["hit_rate@1"] for own in found} == {0.0, 1.0}
    # ours by the document, whatever the order of lines: b, a
    lines = path.read_text().splitlines(keepends=True)
    for text in (lines, lines[::-1]):
        path.write_text("".join(text))
        assert read_run(path)["doc_id"].to_list() == ["b", "a"]


def test_ranx_applies_the_threshold_to_gains(ranx):
    case = listed("ab", {"a": 1, "b": 2})
    found = with_ranx(ranx, case.qrels(), case.scored("s"), "ndcg", "ndcg-l2")
    linear = (1 + 2 / math.log2(3)) / (2 + 1 / math.log2(3))
    # the label 1 is gone: 2 at rank 2 over 2 at rank 1
    expected = {"ndcg": linear, "ndcg-l2": 1 / math.log2(3)}
    assert found == pytest.approx(expected, abs=1e-12)
    # trec_eval's level leaves gains alone; ours has no threshold for gains
    assert trec_eval(case, "ndcg", rel=2)["q"]["ndcg"] == pytest.approx(linear, abs=1e-12)
    ours = score(case, ["nDCG"], "qrels")["s", "nDCG", "q"]
    assert ours == pytest.approx(linear, abs=1e-12)


def test_ndcg_of_ranx_is_linear_and_ndcg_burges_exponential(ranx):
    case = listed("ab", {"a": 1, "b": 3})
    found = with_ranx(ranx, case.qrels(), case.scored("s"), "ndcg", "ndcg_burges")
    third = 1 / math.log2(3)
    expected = [(1 + 3 * third) / (3 + third), (1 + 7 * third) / (7 + third)]
    assert list(found.values()) == pytest.approx(expected, abs=1e-12)
    ours = score(case, ["nDCG", BURGES], "qrels")
    assert list(ours.values()) == pytest.approx(expected, abs=1e-12)


def test_ranx_cuts_real_valued_labels(ranx):
    case = listed("ab", {"a": 0.9, "b": 1.7})
    # its class makes whole numbers of them
    (cut,) = ranx.Qrels(case.labels).to_dict().values()
    assert cut == {"a": 0, "b": 1}
    # in a dictionary they stay, but those below 1 have no gain: of 0.9 and 1.7 counts the latter
    found = with_ranx(ranx, case.labels, case.scored("s"), "dcg", "ndcg")
    assert found["dcg"] == pytest.approx(1.7 / math.log2(3), abs=1e-12)
    ours = score(case, ["DCG"], "qrels")["s", "DCG", "q"]
    assert ours == pytest.approx(0.9 + 1.7 / math.log2(3), abs=1e-12)


# the erag package


def evaluate_with_erag(case: Case, metrics: set[str]) -> dict[str, float]:
    labels = case.labels["q"]
    result = erag.eval(
        retrieval_results=case.lists["s"],
        expected_outputs={"q": ["answer"]},
        text_generator=lambda given: {query: docs[0] for query, docs in given.items()},
        downstream_metric=lambda outputs, _: {q: labels[text] for q, text in outputs.items()},
        retrieval_metrics=metrics,
    )
    return result["per_input"]["q"]


@pytest.mark.parametrize("metric", ["map", "recip_rank", "recall_1", "ndcg", "ndcg_cut_1", "Rprec"])
def test_the_erag_package_has_only_p_and_success_on_real_valued_labels(metric):
    case = listed("ab", {"a": 0.5, "b": 1.0})
    assert evaluate_with_erag(case, {"P_2", "success_2"}) == {"P_2": 0.75, "success_2": 1.0}
    with pytest.raises(RuntimeError, match="continuous"):
        evaluate_with_erag(case, {metric})


def test_the_erag_package_crashes_where_k_exceeds_a_list_of_real_valued_labels():
    case = listed("ab", {"a": 0.5, "b": 1.0})
    for metric in ("P_3", "success_3"):
        with pytest.raises(KeyError):
            evaluate_with_erag(case, {metric})
    ours = score(case, ["P@3", "Success@3"], "list")
    assert list(ours.values()) == pytest.approx([1.5 / 3, 1.0], abs=1e-12)
    # on binary labels it does not: there trec_eval divides by k
    binary = listed("ab", {"a": 0, "b": 1})
    assert evaluate_with_erag(binary, {"P_3"}) == {"P_3": pytest.approx(1 / 3)}
