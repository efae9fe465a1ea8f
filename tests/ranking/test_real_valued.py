"""Real-valued labels, against the definitions in the docstring of ``engine.ranking.scores``."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.ranking.measures import parse_measure
from tests.expected import refused
from tests.ranking.ragged import SEEDS, Case, Values, assert_agree, random_case, score, small_cases

pytestmark = pytest.mark.filterwarnings("error")
REL = 0.3
CUTS = ("", "@1", "@5", "@100")
MEASURES = [
    *(f"{kind}{cut}" for kind in ("P", "R", "F1", "Success", "DCG", "nDCG") for cut in CUTS),
    *(f"{kind}(dcg='exp-log2'){cut}" for kind in ("DCG", "nDCG") for cut in CUTS),
    *(
        f"{kind}(rel={REL}){cut}"
        for kind in ("P", "R", "F1", "AP", "RR", "Success")
        for cut in CUTS
    ),
    f"Rprec(rel={REL})",
]
JUDGED = [f"Judged{cut}" for cut in CUTS]
# What is defined where some of the labels exceed 1.
ON_GRADES = [name for name in MEASURES if "DCG" in name or "rel=" in name]


def ratio(numerator: float, denominator: float) -> float:
    return numerator / denominator if denominator > 0 else 0.0


def harmonic_mean(one: float, other: float) -> float:
    return ratio(2 * one * other, one + other)


def by_definition(name: str, listed: list[float | None], judged: list[float]) -> float:
    """A measure of one list of labels in rank order, None where not judged."""
    measure = parse_measure(name)
    kind, k = measure.kind, measure.cutoff or len(listed)
    if kind == "Judged":
        return ratio(sum(label is not None for label in listed[:k]), min(k, len(listed)))
    labels = [label or 0.0 for label in listed]
    if kind in ("DCG", "nDCG"):

        def dcg(gains: list[float]) -> float:
            total = 0.0
            # The best order may be longer than the list: only a cutoff cuts it.
            for i, label in enumerate(gains[: measure.cutoff or len(gains)], 1):
                gain = 2**label - 1 if measure.dcg == "exp-log2" else label
                total += gain / math.log2(i + 1)
            return total

        return dcg(labels) if kind == "DCG" else ratio(dcg(labels), dcg(sorted(judged)[::-1]))
    if measure.rel is None:
        found, total, best = sum(labels[:k]), sum(judged), max(labels[:k], default=0.0)
    else:
        useful = [label >= measure.rel for label in labels]
        total = sum(label >= measure.rel for label in judged)
        found, best = sum(useful[:k]), float(any(useful[:k]))
        if kind == "AP":
            precisions = [sum(useful[:i]) / i for i, hit in enumerate(useful[:k], 1) if hit]
            return ratio(sum(precisions), total)
        if kind == "RR":
            return next((1 / i for i, hit in enumerate(useful[:k], 1) if hit), 0.0)
        if kind == "Rprec":
            return ratio(sum(useful[:total]), total)
    if kind == "Success":
        return best
    precision, recall = ratio(found, k), ratio(found, total)
    return {"P": precision, "R": recall, "F1": harmonic_mean(precision, recall)}[kind]


def all_by_definition(case: Case, names: list[str], relevant: str) -> Values:
    """Every value of a case; labels below 0 mean the same as none."""
    values: Values = {}
    for run, listed in case.lists.items():
        for query in case.queries:
            docs = listed.get(query, [])
            labels = {d: v for d, v in case.labels.get(query, {}).items() if v >= 0}
            counted = {
                "list": set(docs),
                "pool": {d for own in case.lists.values() for d in own.get(query, ())},
                "qrels": set(labels),
            }[relevant]
            judged = [label for doc, label in labels.items() if doc in counted]
            for name in names:
                in_order = [labels.get(doc) for doc in docs]
                values[run, name, query] = by_definition(name, in_order, judged)
    return values


def with_label(case: Case, label: float) -> Case:
    """The case with a query, named by the label, whose one listed passage has that label."""
    name = f"{label:g}"
    lists = {run: own | {name: ["d0"]} for run, own in case.lists.items()}
    return Case([*case.queries, name], lists, case.labels | {name: {"d0": label}})


def with_half(case: Case) -> Case:
    """The case with a label 0.5, so that its labels are real-valued."""
    return with_label(case, 0.5)


def check_definitions(case: Case, relevant: str) -> None:
    case = with_half(case)
    assert_agree(score(case, MEASURES, relevant), all_by_definition(case, MEASURES, relevant))
    graded = with_label(with_label(case, 1.7), 3.0)
    assert_agree(score(graded, ON_GRADES, relevant), all_by_definition(graded, ON_GRADES, relevant))


# Equal labels, labels at the threshold and beside it, whole ones, negative ones.
SOME_LABELS = (-1.0, -0.5, 0.0, 0.1, 0.29999, REL, 0.5, 0.5, 1.0, 1.0)


@pytest.mark.parametrize("relevant", ["list", "pool", "qrels"])
@settings(max_examples=15, deadline=None)
@given(small_cases(st.sampled_from(SOME_LABELS), runs=("s", "t")))
def test_small_cases_follow_the_definitions(relevant, case):
    check_definitions(case, relevant)


@pytest.mark.parametrize("relevant", ["list", "pool", "qrels"])
@settings(max_examples=5, deadline=None)
@given(SEEDS)
def test_ragged_runs_follow_the_definitions(relevant, seed):
    def label(rng: np.random.Generator) -> float:
        return float(rng.choice([rng.random(), rng.choice(SOME_LABELS)]))

    check_definitions(random_case(seed, label, runs=("s", "t")), relevant)


@settings(max_examples=12, deadline=None)
@given(small_cases(st.sampled_from(SOME_LABELS), runs=("s", "t")))
def test_share_of_judged_follows_its_definition(case):
    case = with_half(case)
    for relevant in ("pool", "qrels"):
        assert_agree(score(case, JUDGED, relevant), all_by_definition(case, JUDGED, relevant))


@settings(max_examples=8, deadline=None)
@given(small_cases(st.sampled_from(SOME_LABELS), runs=("s", "t")))
def test_labels_of_passages_that_no_run_lists_count_in_the_qrels_only(case):
    case = with_half(case)
    more = {query: labels | {"unlisted": 0.75} for query, labels in case.labels.items()}
    extended = Case(case.queries, case.lists, more)
    for relevant in ("list", "pool"):
        assert score(extended, MEASURES, relevant) == score(case, MEASURES, relevant)
    # 0.5 of 0.5 + 0.75
    assert score(extended, ["R"], "qrels")["s", "R", "0.5"] == pytest.approx(0.4, abs=1e-12)


def test_values_by_hand():
    labels = {"q": {"a": 0.5, "b": 0.0, "c": 0.9}}
    case = Case(["q"], {"s": {"q": ["a", "b", "c"]}}, labels)
    dcg = 0.5 + 0.9 / 2  # 0.5 / log2(2) + 0 / log2(3) + 0.9 / log2(4)
    ideal = 0.9 + 0.5 / math.log2(3)
    stop = (math.sqrt(2) - 1) / 2
    expected = {
        "P@2": 0.25,  # mean label of the first two
        "P@5": 1.4 / 5,  # over 5 although only 3 are listed
        "P": 1.4 / 3,
        "R@2": 0.5 / 1.4,  # label mass of the first two over all
        "R": 1.0,
        "F1@2": 2 * 0.25 * (0.5 / 1.4) / (0.25 + 0.5 / 1.4),
        "Success@2": 0.5,  # the largest label of the first two
        "Success": 0.9,
        "DCG@3": dcg,
        "nDCG@3": dcg / ideal,
        "DCG(dcg='exp-log2')@1": math.sqrt(2) - 1,
        "AP(rel=0.5)": (1 / 1 + 2 / 3) / 2,
        "RR(rel=0.6)": 1 / 3,
        "RR(rel=0.6)@2": 0.0,
        "Rprec(rel=0.5)": 1 / 2,  # two are relevant, one of them among the first two
        "P(rel=0.5)@2": 1 / 2,
        "R(rel=0.5)@2": 1 / 2,
        "F1(rel=0.5)@2": 1 / 2,
        "RBP": 0.2 * (0.5 + 0.9 * 0.8**2),
        "RBP(rel=0.6,p=0.5)": 0.5 * 0.5**2,
        "ERR(max_rel=1)@2": stop,
        "ERR(max_rel=1)": stop + (1 - stop) * (2**0.9 - 1) / 2 / 3,
        "Bpref(rel=0.5)": (1 + 0) / 2,  # b stands before c
    }
    got = {name: value for (_, name, _), value in score(case, expected, "list").items()}
    assert got == pytest.approx(expected, abs=1e-12)


def test_one_real_valued_label_makes_all_labels_of_the_table_real_valued():
    # Labels 1 and 0 alone: R counts those of 1; with one 0.5 among them: shares of the labels' sum.
    lists = {"s": {"q": ["a", "b"], "p": ["a"]}}
    binary = Case(["q", "p"], lists, {"q": {"a": 1, "b": 1}, "p": {"a": 0}})
    real = Case(["q", "p"], lists, {"q": {"a": 1, "b": 1}, "p": {"a": 0.5}})
    assert score(binary, ["P@1"], "list")["s", "P@1", "p"] == 0.0
    assert score(real, ["P@1"], "list")["s", "P@1", "p"] == 0.5


@pytest.mark.parametrize("name", ["P@2", "R@2", "F1@2", "Success@2", "P"])
def test_one_fractional_grade_among_whole_ones_asks_for_a_threshold(name):
    # Whole grades: those of 1 and more count. With one 0.5 among them P@2 of q would be (3 + 1) / 2.
    lists = {"s": {"q": ["a", "b"], "p": ["a"]}}
    whole = Case(["q", "p"], lists, {"q": {"a": 3, "b": 1}, "p": {"a": 0}})
    some = Case(["q", "p"], lists, {"q": {"a": 3, "b": 1}, "p": {"a": 0.5}})
    assert score(whole, [name], "list")["s", name, "q"] == 1.0
    with refused("measure.real"):
        score(some, [name], "list")
    with_threshold = str(parse_measure(name).with_threshold())
    assert score(some, [with_threshold], "list")["s", with_threshold, "q"] == 1.0
    # Gains are grades anyway, and whether a passage is judged does not depend on its grade.
    score(some, ["nDCG@2", "DCG@2", "Judged@2"], "pool")
    # A label below 0 is none, whatever lies beyond its point.
    unjudged = Case(["q", "p"], lists, {"q": {"a": 3, "b": 1}, "p": {"a": -0.5}})
    assert score(unjudged, [name], "list")["s", name, "q"] == 1.0
