"""The same bits for equal lists, whatever block, thread or order of rows they come in."""

from __future__ import annotations

import itertools
import math

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.ranking import kernel
from engine.ranking.kernel import USUAL, RankedLabels, Split, is_real_valued, measure_lists
from engine.ranking.kinds import gains
from engine.ranking.measures import parse_measures
from engine.ranking.scores import score_runs
from tests.ranking.ragged import SEEDS, Case, random_case, score, small_cases, whole

pytestmark = pytest.mark.filterwarnings("error")


def real(rng: np.random.Generator) -> float:
    return float(rng.random())


LABELS = {"binary": whole(0, 1), "graded": whole(0, 1, 2, 3), "real-valued": real}
# Divided by a sum over the judged, which come in no order.
MASS = "R R@3 F1 F1@3"
COUNTING = (
    "P P@3 Success Success@3 DCG DCG@3 nDCG nDCG@3 nDCG@40 DCG(dcg='exp-log2') "
    "nDCG(dcg='exp-log2') nDCG(dcg='exp-log2')@3 AP(rel=0.5) AP(rel=1)@3 RR(rel=0.5) RR(rel=1)@3 "
    "Rprec(rel=0.5) Rprec(rel=1) P(rel=0.5)@3 R(rel=0.5)@3 R(rel=0.5) F1(rel=0.5)@3 "
    "Success(rel=0.5)@3 RBP RBP(rel=0.5,p=0.5)@3 ERR ERR@3 Bpref(rel=0.5) Bpref(rel=1)"
)
NDCG = ["nDCG", "nDCG(dcg='exp-log2')"]
NDCG += [f"{name}@{k}" for name in NDCG for k in (1, 2, 5, 40)]


def table(case: Case, measures: str, relevant: str, **options) -> pl.DataFrame:
    runs, labels = case.runs_table(), case.labels_table()
    return score_tables(runs, labels, case.queries, measures, relevant, **options)


def score_tables(runs, labels, queries, measures, relevant, **options) -> pl.DataFrame:
    frame = score_runs(
        runs, labels, queries, parse_measures(measures), relevant=relevant, **options
    )
    return frame.sort("run", "measure", "query_id")


@pytest.mark.parametrize("relevant", ["list", "pool", "qrels"])
@pytest.mark.parametrize("kind", LABELS)
def test_values_do_not_depend_on_blocks_and_threads(kind, relevant):
    case = random_case(5, LABELS[kind], queries=16, runs=("s", "t"))
    measures = f"{COUNTING} {MASS}" + " Judged Judged@3" * (relevant != "list")
    expected = table(case, measures, relevant, split=Split(threads=1))
    assert expected["value"].is_finite().all()
    for cells, lists, rows, threads in (
        *((1, 1, 1, 3), (7, 3, 10, 1), (64, 2, 200, 3), (200, 7, 50, 1)),
        *((2**18, 4096, 1, 2), (2**18, 4096, 10**6, 3)),
    ):
        split = Split(threads, rows, cells, lists)
        assert table(case, measures, relevant, split=split).equals(expected)


@pytest.mark.parametrize("relevant", ["list", "pool", "qrels"])
@pytest.mark.parametrize("kind", LABELS)
def test_values_do_not_depend_on_the_order_of_rows(kind, relevant):
    case, measures = random_case(6, LABELS[kind], queries=40, runs=("s", "t")), f"{COUNTING} {MASS}"
    runs, labels = case.runs_table(), case.labels_table()
    expected = score_tables(runs, labels, case.queries, measures, relevant)
    for seed in range(3):
        shuffled = [frame.sample(fraction=1, shuffle=True, seed=seed) for frame in (runs, labels)]
        assert score_tables(*shuffled, case.queries, measures, relevant).equals(expected)
    reverse = [frame.reverse() for frame in (runs, labels)]
    assert score_tables(*reverse, case.queries[::-1], measures, relevant).equals(expected)


def repeated(length: int, copies: int, label=real) -> tuple[list[float], Case]:
    """One list of labels for many queries, among lists of other lengths and labels."""
    rng = np.random.default_rng(length)
    labels = [label(rng) for _ in range(length)]
    docs = [f"d{i}" for i in range(length)]
    case = random_case(length, label, queries=50)
    names = [f"copy{i}" for i in range(copies)]
    lists = case.lists["s"] | dict.fromkeys(names, docs)
    judged = dict(case.labels)
    for name in names:
        # The labels of every copy in another order of rows.
        judged[name] = {docs[i]: labels[i] for i in rng.permutation(length)}
    return names, Case([*case.queries, *names], {"s": lists}, judged)


@pytest.mark.parametrize("relevant", ["list", "pool", "qrels"])
@pytest.mark.parametrize("length", [1, 2, 9, 17, 60])
def test_queries_with_equal_labels_get_equal_values(length, relevant):
    measures = f"{COUNTING} {MASS}".split()
    for label in LABELS.values():
        names, case = repeated(length, 23, label)
        values = score(case, measures, relevant)
        for measure in measures:
            assert len({values["s", measure, name] for name in names}) == 1, measure


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.integers(0, 10**6).map(lambda n: n / 10**6), min_size=1, max_size=100),
    st.randoms(use_true_random=False),
)
def test_label_mass_does_not_depend_on_the_order_of_labels(labels, random):
    shuffled = [random.sample(labels, len(labels)) for _ in range(5)]
    flat = np.array([label for own in shuffled for label in own])
    ranked = RankedLabels(
        np.tile(labels, 5),
        np.arange(6) * len(labels),
        flat,
        np.arange(6) * len(labels),
        np.arange(5),
    )
    values = measure_lists(ranked, parse_measures("R R@3 F1 F1@3"), real_valued=True)
    assert (values == values[:, :1]).all()
    assert values[0].tolist() == [float(flat.any())] * 5


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.floats(0, 1, allow_subnormal=False), min_size=1, max_size=300),
    st.integers(1, 5),
)
def test_the_whole_list_has_all_of_its_own_label_mass(labels, copies):
    flat = np.array(labels * copies)
    ranked = RankedLabels.own_lists(flat, np.arange(copies + 1) * len(labels))
    (values,) = measure_lists(ranked, parse_measures("R"), real_valued=True)
    assert values.tolist() == [float(flat.any())] * copies


PERFECT = {
    "binary": st.sampled_from([0.0, 1.0]),
    "graded": st.sampled_from([0.0, 1.0, 2.0, 3.0]),
    "real-valued": st.floats(0.001, 3),
}


@pytest.mark.parametrize("kind", PERFECT)
@settings(max_examples=15, deadline=None)
@given(st.data())
def test_a_perfect_ranking_has_ndcg_of_exactly_one(kind, data):
    case = data.draw(small_cases(PERFECT[kind]))
    best = {q: sorted(own, key=own.get, reverse=True) for q, own in case.labels.items()}
    perfect = Case(list(best), {"s": best}, case.labels)
    for relevant in ("list", "pool", "qrels"):
        for (_, name, query), value in score(perfect, NDCG, relevant).items():
            # without a useful passage there is nothing to be perfect at
            assert value == float(any(case.labels[query].values())), (name, relevant)


@settings(max_examples=15, deadline=None)
@given(SEEDS, st.sampled_from(sorted(LABELS)))
def test_long_perfect_rankings_have_ndcg_of_exactly_one(seed, kind):
    labels = random_case(seed, LABELS[kind]).labels
    best = {q: sorted(own, key=own.get, reverse=True) for q, own in labels.items()}
    # Passages without labels at the end cost nothing.
    lists = {q: [*docs, "unlabelled", "too"] for q, docs in best.items()}
    values = score(Case(list(best), {"s": lists}, labels), NDCG, "qrels")
    assert all(v == float(any(labels[q].values())) for (_, _, q), v in values.items())


@pytest.mark.parametrize("relevant", ["list", "pool", "qrels"])
@pytest.mark.parametrize("highest", [1, 3, 7, 8])
def test_ideals_from_counts_of_grades_are_those_from_sorted_labels(highest, relevant):
    case = random_case(highest, whole(*range(highest + 1)), runs=("s", "t"))
    counted = table(case, " ".join(NDCG), relevant)
    for split in (Split(grades=0), Split(counted=20)):
        assert table(case, " ".join(NDCG), relevant, split=split).equals(counted)


def test_counts_of_grades_tell_all_sets_of_labels_apart():
    # Every set of six labels of 0 to 3, worst first, in one block.
    labels = np.array(list(itertools.combinations_with_replacement(range(4), 6)), dtype=float)
    ranked = RankedLabels.own_lists(labels.ravel(), np.arange(len(labels) + 1) * 6)
    (values,) = measure_lists(ranked, parse_measures("nDCG"), real_valued=False)
    discounts = 1 / np.log2(np.arange(2, 8))
    best = labels[:, ::-1] @ discounts
    expected = np.divide(labels @ discounts, best, out=np.zeros(len(labels)), where=best > 0)
    assert values == pytest.approx(expected, abs=1e-12)


def test_counts_of_grades_tell_the_longest_lists_with_the_highest_grades_apart():
    # 500 labels of up to 7, where the counts together are just below 2^63.
    assert (USUAL.counted + 1) ** USUAL.grades < 2**63
    rng = np.random.default_rng(0)
    length, lists = USUAL.counted, 40
    labels = rng.integers(0, USUAL.grades + 1, (lists, length)).astype(float)
    labels[:3] = USUAL.grades
    labels[1, 7], labels[2, 7] = USUAL.grades - 1, 0
    ranked = RankedLabels.own_lists(labels.ravel(), np.arange(lists + 1) * length)
    (values,) = measure_lists(ranked, parse_measures("nDCG"), real_valued=False)
    discounts = 1 / np.log2(np.arange(2, length + 2))
    expected = labels @ discounts / (np.sort(labels)[:, ::-1] @ discounts)
    assert values == pytest.approx(expected, abs=1e-12)


def test_ndcg_is_one_only_up_to_the_end_of_a_perfect_beginning():
    # The labels 1 1 0 1 are perfect to rank 2: 1 + 1/log2(3) of itself, then 1/log2(5) for 1/2.
    case = Case(["q"], {"s": {"q": list("abcd")}}, {"q": {"a": 1, "b": 1, "c": 0, "d": 1}})
    values = score(case, ["nDCG@1", "nDCG@2", "nDCG@4"], "list")
    first_two = 1 + 1 / math.log2(3)
    assert values["s", "nDCG@1", "q"] == values["s", "nDCG@2", "q"] == 1.0
    expected = (first_two + 1 / math.log2(5)) / (first_two + 1 / 2)
    assert values["s", "nDCG@4", "q"] == pytest.approx(expected, abs=1e-12)


def test_discounts_do_not_depend_on_the_depth():
    deepest = gains.discounts(2000)
    for depth in [*range(70), 127, 128, 129, 1000]:
        assert np.array_equal(gains.discounts(depth), deepest[:depth])
    assert deepest[:3] == pytest.approx([1.0, 1 / math.log2(3), 0.5], abs=1e-15)


@pytest.mark.parametrize("cells", [1, 5, 2**18])
@settings(max_examples=30, deadline=None)
@given(lengths=st.lists(st.integers(0, 6), max_size=12))
def test_blocks_hold_every_list_once_and_pad_with_zeros(cells, lengths):
    offsets = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
    flat = 1.0 + np.arange(offsets[-1])
    blocks = list(kernel._blocks(offsets, Split(cells=cells)))
    assert sorted(i for block in blocks for i in block) == list(range(len(lengths)))
    for block in blocks:
        matrix = kernel._matrix(flat, offsets, block)
        longest = max(lengths[i] for i in block)
        assert matrix.shape == (longest, len(block))
        assert matrix.size <= cells or len(block) == 1
        for column, i in enumerate(block):
            own = flat[offsets[i] : offsets[i + 1]].tolist()
            assert matrix[: len(own), column].tolist() == own
            # 0, or NaN where it should not even count as judged
            assert not np.nan_to_num(matrix[len(own) :, column]).any()


@pytest.mark.parametrize("lengths", [[], [0], [0, 0, 0], [0, 2, 0], [3, 0, 1]])
def test_empty_lists_and_empty_judged_sets_have_no_relevant_passages(lengths):
    offsets = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
    measures = parse_measures(f"{COUNTING} {MASS}")
    nothing = np.zeros(len(lengths) + 1, dtype=np.int64)
    empty = RankedLabels(
        np.full(offsets[-1], np.nan), offsets, np.zeros(0), nothing, np.arange(len(lengths))
    )
    for real_valued in (False, True):
        values = measure_lists(empty, measures, real_valued=real_valued)
        assert values.shape == (len(measures), len(lengths))
        assert not values.any()


def test_lists_may_share_a_judged_set():
    # Lists 1 0 and 0 1 and nothing, all against {1, 1, 0}: R 1/2, 1/2, 0.
    ranked = RankedLabels(
        np.array([1.0, 0.0, 0.0, 1.0]),
        np.array([0, 2, 4, 4]),
        np.array([0.0, 1.0, 1.0]),
        np.array([0, 3]),
        np.zeros(3, dtype=np.int64),
    )
    values = measure_lists(ranked, parse_measures("R AP"), real_valued=False)
    # AP: 1 / 2 and (1 / 2) / 2
    assert values.tolist() == [[0.5, 0.5, 0.0], [0.5, 0.25, 0.0]]


def test_no_measures_give_no_values():
    ranked = RankedLabels.own_lists(np.ones(2), np.array([0, 1, 2]))
    assert measure_lists(ranked, [], real_valued=False).shape == (0, 2)


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        ([], False),
        ([0, 1, 5], False),
        ([0, 1, 0.5], True),
        ([-1], False),
        ([math.nan, 2], False),
        ([1e300], False),
        ([1 + 2**-52], True),
    ],
)
def test_labels_are_real_valued_if_one_is_not_a_whole_number(labels, expected):
    assert is_real_valued(np.array(labels, dtype=np.float64)) is expected
