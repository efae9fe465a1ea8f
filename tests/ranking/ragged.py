"""Ragged ranked lists with labels, to score by several implementations."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
from hypothesis import strategies as st

from engine import tables
from engine.ranking.measures import parse_measures
from engine.ranking.scores import score_runs
from tests.conftest import framed

Values = dict[tuple[str, str, str], float]
DrawLabel = Callable[[np.random.Generator], float]
DOCS = tuple(f"d{i}" for i in range(10))
BURGES = "nDCG(dcg='exp-log2')"


@dataclass(frozen=True)
class Case:
    """Runs over some queries, and labels.

    Attributes:
        queries: of the evaluation; a run or the labels may lack some and hold others.
        lists: run -> query -> passages, best first; queries without results are left out.
        labels: query -> passage -> label.
    """

    queries: list[str]
    lists: dict[str, dict[str, list[str]]]
    labels: dict[str, dict[str, float]]

    def runs_table(self) -> pl.DataFrame:
        rows = [
            (query, doc, rank, -float(rank), run)
            for run, listed in self.lists.items()
            for query, docs in listed.items()
            for rank, doc in enumerate(docs, 1)
        ]
        return pl.DataFrame(rows, schema=tables.RUNS, orient="row")

    def labels_table(self) -> pl.DataFrame:
        rows = [
            (query, doc, "a", float(label))
            for query, labels in self.labels.items()
            for doc, label in labels.items()
        ]
        return framed(rows, tables.LABELS)

    def qrels(self) -> dict[str, dict[str, int]]:
        """The labels as the references take them."""
        return {
            query: {doc: int(label) for doc, label in labels.items()}
            for query, labels in self.labels.items()
        }

    def scored(self, run: str) -> dict[str, dict[str, float]]:
        """A run as the references take it, without equal scores."""
        return {
            query: {doc: float(len(docs) - i) for i, doc in enumerate(docs)}
            for query, docs in self.lists[run].items()
        }


def score(case: Case, measures: Iterable[str], relevant: str, **options: Any) -> Values:
    """Our values by (run, measure, query)."""
    return by_key(
        score_runs(
            case.runs_table(),
            case.labels_table(),
            case.queries,
            parse_measures(" ".join(measures)),
            relevant=relevant,
            **options,
        )
    )


def by_key(frame: pl.DataFrame) -> Values:
    """A query_scores table of one annotator as a dictionary."""
    return {(run, measure, query): value for run, _, measure, query, value in frame.iter_rows()}


def assert_agree(ours: Values, theirs: Values, tolerance: float = 1e-12) -> None:
    """Every value of a reference is ours."""
    wrong = {
        key: (ours[key], value)
        for key, value in theirs.items()
        if not abs(ours[key] - value) <= tolerance
    }
    assert not wrong, f"(ours, theirs): {dict(list(wrong.items())[:5])}"


@st.composite
def small_cases(
    draw: st.DrawFn, label: st.SearchStrategy[float], runs: Sequence[str] = ("s",)
) -> Case:
    """A few queries over ten passages: what shrinks to a minimal counterexample."""
    queries = [f"q{i}" for i in range(draw(st.integers(1, 4)))]

    # The first query has results and labels, so that no run and no annotator is empty.
    def least(query: str) -> int:
        return int(query == "q0")

    def listed(query: str) -> st.SearchStrategy[list[str]]:
        return st.lists(st.sampled_from(DOCS), unique=True, min_size=least(query), max_size=8)

    def judged(query: str) -> st.SearchStrategy[dict[str, float]]:
        return st.dictionaries(st.sampled_from(DOCS), label, min_size=least(query), max_size=8)

    lists = {run: {query: draw(listed(query)) for query in queries} for run in runs}
    labels = {query: draw(judged(query)) for query in queries}
    return Case(
        queries,
        {run: {q: docs for q, docs in own.items() if docs} for run, own in lists.items()},
        {query: own for query, own in labels.items() if own},
    )


def random_case(
    seed: int,
    label: DrawLabel,
    *,
    queries: int = 30,
    runs: Sequence[str] = ("s",),
    complete: bool = False,
) -> Case:
    """Many queries with lists of 0 to 60 passages, labels that cover some, all or none of a list.

    If it is complete, every query has a list and labels, and every listed passage has a label.
    """
    rng = np.random.default_rng(seed)
    names = [f"q{i}" for i in range(queries)]
    lists: dict[str, dict[str, list[str]]] = {run: {} for run in runs}
    labels: dict[str, dict[str, float]] = {}
    for query in names:
        longest = rng.choice([3, 12, 60])
        docs = [f"d{i}" for i in rng.permutation(longest + rng.integers(0, 8))]
        for own in lists.values():
            length = rng.integers(1 if complete else 0, longest + 1)
            if length:
                own[query] = [str(doc) for doc in rng.permutation(docs)[:length]]
        share = 1.0 if complete else rng.choice([0.0, 0.3, 0.8, 1.0])
        useful = rng.choice([0.0, 0.1, 0.5, 1.0])
        judged = {
            doc: label(rng) if rng.random() < useful else 0.0
            for doc in docs
            if rng.random() < share
        }
        if judged:
            labels[query] = judged
    return Case(names, lists, labels)


def whole(*choices: int) -> DrawLabel:
    """Labels that are whole numbers."""
    return lambda rng: float(rng.choice(choices))


SEEDS = st.integers(0, 2**32 - 1)
