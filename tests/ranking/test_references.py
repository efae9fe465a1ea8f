"""Our measures equal those of pytrec_eval, ir_measures, ranx and the erag package."""

from __future__ import annotations

import itertools
import shutil
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path

import erag
import ir_measures
import numpy as np
import pytest
import pytrec_eval
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.ranking.measures import KINDS, parse_measures
from engine.ranking.scores import score_runs
from engine.sources.runs.read import read_run
from tests.ranking.ragged import (
    BURGES,
    SEEDS,
    Case,
    Values,
    assert_agree,
    by_key,
    random_case,
    score,
    small_cases,
    whole,
)

# 1000 is beyond every list and every set of labels.
CUTOFFS = (1, 2, 5, 10, 1000)
LEVELS = (None, 1, 2)
GRADES = (-2, -1, 0, 1, 1, 2, 3)


def trec_names(rel: int | None) -> dict[str, str]:
    """Our name -> trec_eval's, of every measure that it has, at a relevance level."""
    names = {}
    for kind, measure in KINDS.items():
        if rel is None or "rel" in measure.options():
            option = "" if rel is None else f"(rel={rel})"
            whole, cut = measure.references.trec_eval, measure.references.trec_eval_cut
            names |= {f"{kind}{option}": whole} if whole else {}
            names |= {f"{kind}{option}@{k}": cut.format(k) for k in CUTOFFS if cut}
    return names


def trec_eval(
    qrels: Mapping[str, Mapping[str, int]],
    scored: Mapping[str, Mapping[str, float]],
    queries: list[str],
    run: str = "s",
) -> Values:
    """pytrec_eval's values under our names; 0 for queries that it leaves out (trec_eval -c)."""
    # It hangs or crashes on a query whose labels are all negative, which says as much as no labels.
    judged = {q: labels for q, labels in qrels.items() if max(labels.values(), default=-1) >= 0}
    values: Values = {}
    for rel in LEVELS:
        names = trec_names(rel)
        evaluator = pytrec_eval.RelevanceEvaluator(judged, set(names.values()), rel or 1)
        found = evaluator.evaluate(scored)
        for (ours, theirs), query in itertools.product(names.items(), queries):
            values[run, ours, query] = found[query][theirs] if query in found else 0.0
    return values


TREC_MEASURES = [name for rel in LEVELS for name in trec_names(rel)]


def check_trec_eval(case: Case) -> None:
    ours = score(case, TREC_MEASURES, "qrels")
    for run in case.lists:
        assert_agree(ours, trec_eval(case.qrels(), case.scored(run), case.queries, run))


@settings(max_examples=30, deadline=None)
@given(small_cases(st.sampled_from(GRADES)))
def test_small_cases_equal_trec_eval(case):
    check_trec_eval(case)


@settings(max_examples=12, deadline=None)
@given(SEEDS, st.sampled_from([(1,), (0, 1), (0, 1, 2, 3), GRADES]))
def test_ragged_runs_equal_trec_eval(seed, grades):
    # 12 x 30 queries, two runs each
    check_trec_eval(random_case(seed, whole(*grades), runs=("s", "t")))


def test_lists_and_labels_deeper_than_a_thousand_equal_trec_eval():
    rng = np.random.default_rng(3)
    docs = [f"d{i}" for i in range(3000)]
    labels = {"q": {d: int(rng.choice([0, 0, 0, 1, 2, 3])) for d in docs[500:]}}
    lists = {"s": {"q": list(map(str, rng.permutation(docs)[:1500]))}}
    check_trec_eval(Case(["q"], lists, labels))


@settings(max_examples=6, deadline=None)
@given(SEEDS)
def test_own_list_and_pool_equal_trec_eval_on_the_labels_that_these_leave(seed):
    case = random_case(seed, whole(*GRADES), runs=("s", "t"))
    pool = {q: {d for own in case.lists.values() for d in own.get(q, ())} for q in case.queries}
    own_lists, pooled = (score(case, TREC_MEASURES, relevant) for relevant in ("list", "pool"))
    for run, listed in case.lists.items():
        own = {query: set(listed.get(query, ())) for query in case.queries}
        for ours, counted in ((own_lists, own), (pooled, pool)):
            left = {
                query: {doc: label for doc, label in labels.items() if doc in counted[query]}
                for query, labels in case.qrels().items()
            }
            assert_agree(ours, trec_eval(left, case.scored(run), case.queries, run))


@settings(max_examples=8, deadline=None)
@given(SEEDS)
def test_means_over_queries_equal_trec_eval_c(seed):
    # Queries without results count 0 (option -c); those without labels are none of the qrels.
    case = random_case(seed, whole(0, 1, 2, 3))
    judged = Case(list(case.labels), case.lists, case.labels)
    ours = score(judged, IR_NAMES, "qrels")
    means = ir_measures.calc_aggregate(IR_MEASURES.values(), case.qrels(), case.scored("s"))
    for name, measure in IR_MEASURES.items():
        mean = np.mean([ours["s", name, query] for query in judged.queries] or [0.0])
        assert mean == pytest.approx(means[measure], abs=1e-12), name


# ir_measures takes RR@k and Judged from providers of its own, the rest from pytrec_eval.
IR_NAMES = [
    *("AP", "RR", "nDCG", "Rprec", "AP(rel=2)", "RR(rel=2)", "Rprec(rel=2)"),
    *(
        f"{kind}@{k}"
        for k in (1, 2, 5, 10, 100)
        for kind in ("P", "R", "AP", "RR", "nDCG", "Success")
    ),
    *(
        f"{kind}(rel={rel})@{k}"
        for k in (1, 5, 20)
        for kind in ("P", "R", "AP", "RR", "Success")
        for rel in (1, 2)
    ),
]
IR_MEASURES = {name: ir_measures.parse_measure(name) for name in IR_NAMES}


JUDGED_NAMES = ["Judged", *(f"Judged@{k}" for k in (1, 2, 5, 10, 100))]


def check_ir_measures(case: Case, names: Sequence[str] = IR_NAMES) -> None:
    measures = {name: ir_measures.parse_measure(name) for name in names}
    ours = score(case, names, "qrels")
    theirs: Values = {}
    for run in case.lists:
        calculated = ir_measures.iter_calc(measures.values(), case.qrels(), case.scored(run))
        found = {(m.measure, m.query_id): m.value for m in calculated}
        for (name, measure), query in itertools.product(measures.items(), case.labels):
            theirs[run, name, query] = found[measure, query]
    assert_agree(ours, theirs)


@settings(max_examples=8, deadline=None)
@given(SEEDS)
def test_ragged_runs_equal_ir_measures(seed):
    check_ir_measures(random_case(seed, whole(0, 1, 2, 3), runs=("s", "t")))


@settings(max_examples=8, deadline=None)
@given(SEEDS)
def test_judged_in_ragged_runs_equals_ir_measures(seed):
    check_ir_measures(random_case(seed, whole(0, 1), runs=("s", "t")), JUDGED_NAMES)


@pytest.mark.skipif(shutil.which("perl") is None, reason="gdeval is a Perl program")
def test_exponential_gains_equal_gdeval():
    # Through ir_measures; it wants numbers for queries, takes grades up to 4 and prints five decimals.
    case = random_case(11, whole(0, 1, 2, 3, 4), queries=60)
    names = [f"{kind}@{k}" for kind in (BURGES, "ERR") for k in (1, 5, 20)]
    number = {query: query.removeprefix("q") for query in case.queries}
    found = ir_measures.iter_calc(
        [ir_measures.parse_measure(name) for name in names],
        {number[q]: labels for q, labels in case.qrels().items()},
        {number[q]: docs for q, docs in case.scored("s").items()},
    )
    theirs = {("s", str(m.measure), f"q{m.query_id}"): m.value for m in found}
    assert len(theirs) == 6 * len(case.labels)
    assert_agree(score(case, names, "qrels"), theirs, tolerance=0.6e-5)


def test_rank_biased_precision_equals_cwl_eval():
    rulers = pytest.importorskip("cwl.ruler.measures.cwl_rbp")
    rankings = pytest.importorskip("cwl.ruler.ranking")
    case = random_case(12, whole(*GRADES), queries=60)
    # Beyond 1,000 ranks, where cwl-eval stops, 0.95 ** 1000 is left.
    for p, rel in itertools.product((0.5, 0.8, 0.95), (1, 2)):
        name = str(parse_measures(f"RBP(rel={rel},p={p})")[0])
        theirs = {}
        for query, docs in case.lists["s"].items():
            useful = [float(case.labels.get(query, {}).get(doc, 0) >= rel) for doc in docs]
            ranking = rankings.Ranking(query, useful, [1.0] * len(useful))
            theirs["s", name, query] = rulers.RBPCWLMetric(p).measure(ranking)
        assert_agree(score(case, [name], "qrels"), theirs)


# Equal in single precision, in which trec_eval keeps scores: 0.1 and its neighbours, 1 + 2^-25, the
# whole numbers from 2^24, what vanishes, what is close to the largest.
SCORES = [
    *(0.1, 0.1 + 1e-9, 0.1 + 1e-7, 1.0, 1 + 2**-25, 1 + 2**-24, 1 + 2**-23),
    *(2.0**24, 2.0**24 + 1, 2.0**24 + 2, 0.0, -0.0, 1e-46, -1e-46, 1e-40, -1.0),
    *(3e38, 3.4028233e38, 3.4028234e38, -3.4028234e38),
]  # fmt: skip
IDS = ["d1", "d10", "d2", "D1", "d", "é", "e", "z", "文", "d-1", "~", "10", "9"]


@settings(max_examples=25, deadline=None)
@given(
    st.dictionaries(
        st.sampled_from(["q1", "q2", "q10"]),
        st.dictionaries(st.sampled_from(IDS), st.sampled_from(SCORES), min_size=1),
        min_size=1,
    ),
    st.randoms(use_true_random=False),
)
def test_order_of_equal_scores_in_trec_files_is_that_of_trec_eval(tmp_path_factory, scored, random):
    path = Path(tmp_path_factory.getbasetemp(), "equal-scores.trec")
    lines = [
        f"{query} Q0 {doc} {random.randint(0, 9)} {value!r} s\n"
        for query, docs in scored.items()
        for doc, value in docs.items()
    ]
    random.shuffle(lines)
    path.write_text("".join(lines), encoding="utf-8")
    # A label of its own for every passage: nDCG at all depths tells every order from every other.
    qrels = {query: {doc: 1 + IDS.index(doc) for doc in docs} for query, docs in scored.items()}
    labels = Case([], {}, qrels).labels_table()
    ks = range(1, len(IDS) + 1)
    measures = parse_measures(" ".join(f"nDCG@{k}" for k in ks))
    ours = by_key(score_runs(read_run(path), labels, list(scored), measures, relevant="qrels"))
    names = {f"ndcg_cut_{k}": f"nDCG@{k}" for k in ks}
    theirs = pytrec_eval.RelevanceEvaluator(qrels, set(names)).evaluate(scored)
    assert len(theirs) == len(scored)
    for query, found in theirs.items():
        assert_agree(ours, {("s", names[m], query): value for m, value in found.items()})


@settings(max_examples=8, deadline=None)
@given(SEEDS)
def test_runs_with_many_equal_scores_equal_trec_eval(tmp_path_factory, seed):
    case = random_case(seed, whole(0, 1, 2))
    rng = np.random.default_rng(seed)
    scored = {
        query: {doc: float(rng.choice([0.25, 1.5, 1.5 + 1e-9, 7.0])) for doc in docs}
        for query, docs in case.lists["s"].items()
    }
    path = Path(tmp_path_factory.getbasetemp(), "many-equal-scores.trec")
    path.write_text(
        "".join(f"{q} Q0 {d} 0 {v!r} s\n" for q, docs in scored.items() for d, v in docs.items())
    )
    measures = parse_measures(" ".join(TREC_MEASURES))
    ours = score_runs(read_run(path), case.labels_table(), case.queries, measures, relevant="qrels")
    assert_agree(by_key(ours), trec_eval(case.qrels(), scored, case.queries))


def test_scores_that_differ_in_double_precision_only_are_equal(tmp_path):
    # 1 + 2^-25 is 1 in single precision: b comes first, as the later document.
    higher = 1 + 2**-25
    path = tmp_path / "run.trec"
    path.write_text(f"q Q0 a 1 {higher!r} s\nq Q0 b 2 1.0 s\n")
    assert read_run(path)["doc_id"].to_list() == ["b", "a"]
    evaluator = pytrec_eval.RelevanceEvaluator({"q": {"b": 1}}, {"P_1"})
    assert evaluator.evaluate({"q": {"a": higher, "b": 1.0}}) == {"q": {"P_1": 1.0}}


RANX_NAMES = {kind: KINDS[kind].references.ranx for kind in ("P", "R", "F1", "AP", "RR", "Success")}
RANX_MEASURES = (
    {
        f"{ours}{option}@{k}": f"{theirs}@{k}{level}"
        for ours, theirs in RANX_NAMES.items()
        for k in (1, 3, 10, 100)
        for option, level in (("", ""), ("(rel=2)", "-l2"))
    }
    | RANX_NAMES
    | {"Rprec": "r-precision", "Rprec(rel=2)": "r-precision-l2"}
    | {
        f"{ours}{option}{cut}": f"{theirs}{cut}"
        for ours in ("DCG", "nDCG")
        for option, theirs in (("", ours.lower()), ("(dcg='exp-log2')", f"{ours.lower()}_burges"))
        for cut in ("", "@1", "@3", "@10", "@100")
    }
)


def test_ragged_runs_equal_ranx():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import ranx

        for seed in range(2):
            # All queries in both, no equal scores; ranx is interpreted here (see conftest).
            case = random_case(seed, whole(0, 1, 2, 3), queries=200, complete=True)
            found = ranx.evaluate(
                case.qrels(), case.scored("s"), list(RANX_MEASURES.values()), return_mean=False
            )
            theirs = {
                ("s", ours, query): float(value)
                for ours, name in RANX_MEASURES.items()
                for query, value in zip(case.queries, found[name], strict=True)
            }
            assert_agree(score(case, RANX_MEASURES, "qrels"), theirs)


def evaluate_with_erag(case: Case, metrics: set[str]) -> dict[str, dict[str, dict[str, float]]]:
    """The erag package's result where a passage's own text is the output and its label the score."""
    return erag.eval(
        retrieval_results=case.lists["s"],
        expected_outputs={query: [query] for query in case.lists["s"]},
        text_generator=lambda given: {query: docs[0] for query, docs in given.items()},
        downstream_metric=lambda outputs, expected: {
            query: case.labels[expected[query][0]][text] for query, text in outputs.items()
        },
        retrieval_metrics=metrics,
    )


def check_erag(case: Case, names: dict[str, str]) -> None:
    found = evaluate_with_erag(case, set(names.values()))
    ours = score(case, names, "list")
    assert set(found["per_input"]) == set(case.queries)
    for name, theirs in names.items():
        values = {("s", name, q): own[theirs] for q, own in found["per_input"].items()}
        assert_agree(ours, values)
        mean = np.mean([ours[key] for key in values])
        assert mean == pytest.approx(found["aggregated"][theirs], abs=1e-12)


@settings(max_examples=10, deadline=None)
@given(SEEDS)
def test_real_valued_labels_equal_the_erag_package(seed):
    rng = np.random.default_rng(seed)
    lists = {
        f"q{i}": [f"d{j}" for j in rng.permutation(20)[: rng.integers(5, 20)]] for i in range(30)
    }
    labels = {
        query: {doc: float(rng.choice([0, 1, 0.5, rng.random()])) for doc in docs}
        for query, docs in lists.items()
    }
    labels["q0"][lists["q0"][-1]] = 0.25
    # k up to the shortest list: beyond it, the package crashes
    names = {f"P@{k}": f"P_{k}" for k in range(1, 6)} | {"P": "P", "Success": "success"}
    names |= {f"Success@{k}": f"success_{k}" for k in range(1, 6)}
    check_erag(Case(list(lists), {"s": lists}, labels), names)


@settings(max_examples=10, deadline=None)
@given(SEEDS)
def test_binary_labels_equal_the_erag_package(seed):
    case = random_case(seed, whole(0, 1), complete=True)
    check_erag(case, trec_names(None))


def test_sources_of_labels_need_not_be_floats_for_the_erag_package():
    # bool, int and float zeros and ones are one binary metric to it
    case = Case(["q"], {"s": {"q": ["a", "b", "c"]}}, {"q": {"a": False, "b": 1, "c": 1.0}})
    check_erag(case, trec_names(None))


def test_several_runs_equal_ir_measures_on_the_pool():
    lists = {
        "s": {"q1": ["a", "b", "c"], "q2": ["a"]},
        "t": {"q1": ["d", "a"], "q2": ["c", "b"]},
    }
    labels = {"q1": {"a": 1, "b": 0, "c": 1, "d": 1}, "q2": {"a": 0, "b": 1, "c": 0}}
    case = Case(["q1", "q2"], lists, labels)
    # All labels are of the pool, so that qrels and pool are the same.
    names = [*IR_NAMES, *JUDGED_NAMES]
    assert score(case, names, "pool") == score(case, names, "qrels")
    check_ir_measures(case)
