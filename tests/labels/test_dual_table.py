"""The five probabilities of document and word labels: by hand, and what must hold of any."""

import math

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from polars.testing import assert_frame_equal
from scipy.stats import binomtest

from engine import tables
from engine.labels.dual import PROBABILITIES, dual_events, dual_probabilities, dual_table
from engine.statistics.correlation import Bootstrap
from tests.conftest import make_run
from tests.expected import as_expected
from tests.tables import framed

NONE = Bootstrap(resamples=0)
DOC, WORD, BOTH, DOC_GIVEN_WORD, WORD_GIVEN_DOC = PROBABILITIES


def values(found):
    return {p.name: p.value for p in found}


def events(*pairs):
    return np.array([d for d, _ in pairs], dtype=bool), np.array([w for _, w in pairs], dtype=bool)


def test_probabilities_by_hand():
    # 5 queries: both, both, document only, word only, neither
    document, word = events((1, 1), (1, 1), (1, 0), (0, 1), (0, 0))
    found = values(dual_probabilities(document, word, NONE))
    as_expected(list(found))
    assert list(found.values()) == pytest.approx([3 / 5, 3 / 5, 2 / 5, 2 / 3, 2 / 3])


def test_a_condition_that_never_occurs_leaves_the_probability_undefined():
    document, word = events((1, 0), (0, 0))
    found = {p.name: p for p in dual_probabilities(document, word, Bootstrap(resamples=200))}
    given_word, given_document = found[DOC_GIVEN_WORD], found[WORD_GIVEN_DOC]
    assert math.isnan(given_word.value)
    assert math.isnan(given_word.low)
    as_expected(given_word.note)
    assert given_document.value == 0
    assert given_document.high > 0.9  # one query alone tells hardly anything


@settings(deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=40))
def test_identities(pairs):
    p = values(dual_probabilities(*events(*pairs), NONE))
    both = p[BOTH]
    for marginal, conditional in ((DOC, WORD_GIVEN_DOC), (WORD, DOC_GIVEN_WORD)):
        if p[marginal]:
            assert p[marginal] * p[conditional] == pytest.approx(both, abs=1e-12)
        else:
            assert math.isnan(p[conditional])
            assert both == 0
        assert both <= p[marginal] <= 1


@settings(deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=30))
def test_intervals_are_scipys_exact_ones_of_the_queries_that_meet_the_condition(pairs):
    document, word = events(*pairs)
    found = {p.name: p for p in dual_probabilities(document, word, Bootstrap(200))}
    for name, of, successes in (
        (DOC, np.ones_like(word), document),
        (BOTH, np.ones_like(word), document & word),
        (DOC_GIVEN_WORD, word, document),
        (WORD_GIVEN_DOC, document, word),
    ):
        if not of.any():
            assert math.isnan(found[name].low)
            continue
        exact = binomtest(int(successes[of].sum()), int(of.sum())).proportion_ci(0.95)
        assert (found[name].low, found[name].high) == pytest.approx((exact.low, exact.high))


def labelled(*rows):
    return framed(rows, tables.DUAL_LABELS)


def test_at_a_cutoff_any_passage_within_it_counts():
    run = make_run([("1", "x", 1), ("1", "y", 2), ("2", "y", 1), ("2", "z", 2)])
    both = labelled(
        ("1", "x", True, False), ("1", "y", False, True),
        ("2", "y", False, True), ("2", "z", False, False),
    )  # fmt: skip
    made = dual_events(run, both, ["3", "1", "2"], [1, 2], names=["sys"])
    assert made.schema == tables.DUAL_EVENTS
    assert made.rows() == [
        ("sys", 1, "3", None, None), ("sys", 1, "1", True, False), ("sys", 1, "2", False, True),
        ("sys", 2, "3", None, None), ("sys", 2, "1", True, True), ("sys", 2, "2", False, True),
    ]  # fmt: skip
    table = dual_table(made, NONE)
    assert table.schema == tables.DUAL
    assert table["probability"].to_list() == [*PROBABILITIES] * 2
    found = {(row["k"], row["probability"]): row["value"] for row in table.to_dicts()}
    # at 1: Doc for query 1, Word for query 2; at 2: query 1 has both, in two passages; query 3 nothing
    assert [found[1, p] for p in PROBABILITIES] == pytest.approx([1 / 3, 1 / 3, 0, 0, 0])
    assert [found[2, p] for p in PROBABILITIES] == pytest.approx([1 / 3, 2 / 3, 1 / 3, 1 / 2, 1])
    assert set(table["n"]) == {3}
    skipped = dual_table(made.filter(k=1), NONE, skip_missing=True)
    assert set(skipped["n"]) == {2}
    assert skipped["value"].to_list() == pytest.approx([1 / 2, 1 / 2, 0, 0, 0])


@pytest.mark.parametrize("skip_missing", [False, True])
@pytest.mark.parametrize("clusters", [None, {"1": 0, "2": 1, "3": 0, "4": 2}])
def test_events_of_parts_give_the_table_of_the_whole_in_any_order(skip_missing, clusters):
    listed = {"one": ["1", "2", "3"], "two": ["4", "2"]}  # a run lists nothing for a part's queries
    runs = pl.concat(
        make_run([(q, "x", 1) for q in queries]).with_columns(run=pl.lit(name))
        for name, queries in listed.items()
    )
    both = labelled(
        ("1", "x", True, False), ("2", "x", True, True),
        ("3", "x", False, True), ("4", "x", False, False),
    )  # fmt: skip

    def made(*query_ids):
        of_part = pl.col("query_id").is_in(query_ids)
        return dual_events(runs.filter(of_part), both, query_ids, [1], names=list(listed))

    more = {"skip_missing": skip_missing, "clusters": clusters}
    whole = dual_table(made("1", "2", "3", "4"), Bootstrap(200), **more)
    assert whole["run"].unique(maintain_order=True).to_list() == list(listed)
    assert set(whole["n"]) == ({2, 3} if skip_missing else {4})
    for parts in ([made("4"), made("2", "1"), made("3")], [made(q) for q in "3142"]):
        assert_frame_equal(
            dual_table(pl.concat(parts), Bootstrap(200), **more), whole, check_exact=True
        )


RANKED = ("a", "b", "c")


@settings(deadline=None, max_examples=30)
@given(
    st.lists(st.lists(st.tuples(st.booleans(), st.booleans()), max_size=3), min_size=1, max_size=8)
)
def test_identities_hold_at_every_cutoff_of_a_run(lists):
    """P(Doc ∩ Word) = P(Doc) P(Word | Doc) = P(Word) P(Doc | Word), and nothing is lost further down."""
    queries = [str(number) for number in range(len(lists))]
    rows = [
        (query_id, doc_id, *both)
        for query_id, listed in zip(queries, lists, strict=True)
        for doc_id, both in zip(RANKED, listed, strict=False)
    ]
    run = make_run([(query_id, doc_id, RANKED.index(doc_id) + 1) for query_id, doc_id, *_ in rows])
    names = run["run"].unique().to_list()
    table = dual_table(dual_events(run, labelled(*rows), queries, [1, 2, 3], names=names), NONE)
    if run.is_empty():
        assert table.is_empty()
        return
    at = {k: dict(table.filter(k=k).select("probability", "value").rows()) for k in (1, 2, 3)}
    for k, p in at.items():
        both = p[BOTH]
        for marginal, given_it in ((DOC, WORD_GIVEN_DOC), (WORD, DOC_GIVEN_WORD)):
            product = p[marginal] * p[given_it] if p[marginal] else 0
            assert product == pytest.approx(both, abs=1e-12)
            assert k == 1 or p[marginal] >= at[k - 1][marginal]
        # By inclusion and exclusion the union is no more than everything.
        assert p[DOC] + p[WORD] - 1 <= both + 1e-12
        assert k == 1 or both >= at[k - 1][BOTH]
