"""Ranking measures per query: tables in, tables out (the arithmetic is ``engine.ranking.kernel``), and their settings.

Labels may be binary, graded (0, 1, 2, …) or real-valued, as eRAG's are under F1 or ROUGE. The classes in
``engine.ranking.kinds`` define each measure of a list whose passage at rank i has label l_i, with cutoff k (by default
the list's length; a budget of tokens in ``P@300tok``) and N relevant passages among the judged, with a label of at
least ``rel`` (1 unless the name sets it).

On real-valued labels (some label is not a whole number) and without ``rel``, P, R, F1 and Success use labels unchanged
(``kinds.shares``), while AP, RR and Rprec need a threshold. If such labels exceed 1 all need one: otherwise they would
be means and sums of grades. With all labels whole numbers every measure that trec_eval has equals its value.

The judged passages are a choice (``relevant``), never mixed within a table: all passages that some of the compared runs
lists for the query (``pool``); every label of the labels table, listed or not, as trec_eval counts (``qrels``); or the
passages of the query's own list, as in the eRAG reference (``list``). That ignores useful passages that a run did not
find (one useful passage of three, at rank 1, gives AP = nDCG = 1, and R at full depth equals Success): right for
correlating within one run, wrong for comparing runs.

Conventions: order is the given rank (for TREC files, ``sources.runs`` ranks by score and then by document id, both
descending, as trec_eval does). A listed passage without a label is not relevant; a label below 0 means the same as
none, as in trec_eval; a query with no others scores 0, as there, and evaluations leave it out, unlike trec_eval and
ir_measures. A query without retrieved passages, or without relevant ones if N or the best DCG divides, scores 0;
``missing`` decides the treatment of the former.

Labels are finite numbers up to 1e15 (1,000 for exp-log2). Whether an annotator's labels are real-valued is decided
once, over all its labels of the queries evaluated, except labels below 0.

References differ from this (each difference has a test). pytrec_eval has no DCG, no RR@k, no Judged, and F1 without a
cutoff only (``set_F``); it returns only queries that run and qrels share, and labels must be whole numbers.
trec_eval's mean over all queries of the qrels is its option -c, and ours by default. In ir_measures RR@k and Judged
break ties by document id ascending, while our order is the same for all; Judged counts labels below 0 as judged and
leaves out queries without judgments, here 0 (evaluations leave them out of every measure). ranx has no rule for equal
scores; its ``ndcg`` is linear, ``ndcg_burges`` our exp-log2; ``ndcg-l2`` applies the threshold to gains, trec_eval and
ours do not; its Qrels cut real-valued labels. The erag package computes nothing but P and Success on real-valued
labels, crashes there if k exceeds a list or a list is empty, and leaves queries with an empty list out of binary means.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from typing import Annotated, Any, Literal

import numpy as np
import polars as pl

from engine import tables
from engine.messages.checked import SEVERAL, CheckedSettings, Positive
from engine.messages.errors import InputError
from engine.messages.wording import counted
from engine.ranking import kernel
from engine.ranking.kernel import Lengths, RankedLabels, Split, is_real_valued, measure_within
from engine.ranking.kinds.base import Floats, Ints, Measure
from engine.ranking.measures import (
    KINDS,
    UTILITY_KIND,
    defined_on_graded,
    parse_measures,
    undefined_on_graded,
)
from engine.tables import ANNOTATOR, DOC_ID, LABEL, MEASURE, QUERY_ID, RANK, RUN, TOKENS, VALUE

# The value of ``relevant`` that computes recall over all judgments, listed or not.
ALL_JUDGMENTS: Relevant = "qrels"
# Key of `relevant` in a summary, for annotators whose judgments reach beyond the lists.
JUDGED = "relevant_of_qrels"


@dataclass(frozen=True, kw_only=True)
class RankingSettings(CheckedSettings):
    """Cutoff, measures, and choice of judged passages.

    An InputError for an unknown measure, one that looks beyond the cutoff, and one that ``relevant`` makes meaningless.

    Attributes:
        k: Passages per query that are labelled; 10, or the largest of ``k_sweep``.
        measures: Ranking measures, named as in ir_measures; by default nDCG, P, AP, RR, R, Success at k (nDCG, P,
            Success where all labels lie between 0 and 1), and UDCG for utilities. The first is primary: all annotators
            are compared by it in the answer, the page and the verdict.
        relevant: Reference for recall and ideal rankings: each list alone (list), the passages of all runs (pool), or
            all judgments (qrels). By default qrels for labels by qrels; for other annotators, which judge listed
            passages alone, pool for several runs and list for one.
        missing: Treatment of queries without results in a run: they score 0 (zero), are left out of the run's scores,
            also of its end-to-end score (skip), or are an error.
    """

    k: Positive = 10
    measures: Annotated[str, SEVERAL] = ""
    relevant: Relevant | None = None
    missing: Missing = "zero"

    def __post_init__(self) -> None:
        super().__post_init__()
        for measure in parse_measures(self.measures) if self.measures else ():
            if measure.cutoff is not None and measure.cutoff > self.k:
                problem = f"{measure} looks further than `k` {self.k}"
                remedy = f"use `k` {measure.cutoff}, or a smaller cutoff"
                raise InputError(problem, remedy, "measure.deep")
            if self.relevant == "list" and measure.trivial_on_list:
                problem = f"{measure.kind} is 1 by definition where `relevant` is list"
                remedy = f"use `relevant` pool, or leave {measure.kind} out"
                raise InputError(problem, remedy, "measure.trivial")


Relevant = Literal["list", "pool", "qrels"]
Missing = Literal["zero", "skip", "error"]

_QUERY, _LIST = "query_index", "list_index"


def score_runs(
    runs: pl.DataFrame,
    labels: pl.DataFrame,
    query_ids: Sequence[str],
    measures: Sequence[Measure],
    *,
    relevant: Relevant,
    missing: Missing = "zero",
    split: Split = kernel.USUAL,
    names: Sequence[str] = (),
) -> pl.DataFrame:
    """Score every (run, annotator, measure, query): the query_scores table, by annotator, run, measure and query.

    An InputError for a measure that the labels or ``relevant`` do not define; a passage that a list holds twice or that
    has two labels; a query twice; a label that is missing or not a finite number up to 1e15; queries without results
    under ``error``.

    >>> from engine.ranking.measures import parse_measures
    >>> runs = pl.DataFrame({"query_id": ["q", "q"], "doc_id": ["a", "b"], "rank": [1, 2], "run": "mine"})
    >>> labels = pl.DataFrame({"query_id": ["q"], "doc_id": ["b"], "annotator": "me", "label": [1.0]})
    >>> scores = score_runs(runs, labels, ["q"], parse_measures("P@2 RR"), relevant="qrels")
    >>> scores.select("measure", "value").rows()
    [('P@2', 0.5), ('RR', 0.5)]

    Args:
        runs: the run table; a query's passages in the order of their ranks. With ``tokens`` of the passages if measures
            have a token budget.
        labels: the labels table, one label for a (query, passage, annotator).
        query_ids: the queries of the evaluation; rows of others are left out.
        missing: queries that a run lists nothing for: they score ``zero``, are left out (``skip``), or are an error.
        names: names of all runs, in order, as ``runs`` may lack a run that lists nothing for these queries.

    """
    _refuse_measures(measures, relevant)
    if len(set(query_ids)) < len(query_ids):
        twice = pl.Series(query_ids).filter(pl.Series(query_ids).is_duplicated())[0]
        raise InputError(f"query {twice!r} is given twice", "give each query once", "queries.twice")
    ids = pl.Enum(query_ids)
    runs_in_order = pl.Series(RUN, list(names) or runs[RUN].unique(maintain_order=True), pl.String)
    query = pl.col(QUERY_ID).cast(ids, strict=False).to_physical().alias(_QUERY)
    run_keys = runs.select(query, pl.col(RUN).cast(pl.Enum(runs_in_order)).to_physical())
    filled = np.zeros((len(runs_in_order), len(query_ids)), dtype=bool)
    known = run_keys.drop_nulls().unique()
    filled[known[RUN].to_numpy(), known[_QUERY].to_numpy()] = True
    if missing == "error":
        for run, lacking in without_results(runs, query_ids, names=names):
            if lacking:
                raise lists_nothing(run, len(lacking), lacking[0])
    counts = [TOKENS] if any(measure.tokens for measure in measures) else []
    listed = runs.select(DOC_ID, RANK, *counts).hstack(run_keys)
    parts = [tables.empty(tables.QUERY_SCORES)]
    for annotator in labels[ANNOTATOR].unique(maintain_order=True):
        own = labels.lazy().filter(pl.col(ANNOTATOR) == annotator).select(query, DOC_ID, LABEL)
        values = _score_annotator(
            listed, own.collect(), annotator, query_ids, len(filled), measures, relevant, split
        )
        queries = pl.Series(QUERY_ID, query_ids, dtype=pl.String)
        for (place, name), (row, measure) in product(enumerate(runs_in_order), enumerate(measures)):
            scores = pl.DataFrame({QUERY_ID: queries, VALUE: values[place, row]})
            if missing == "skip":
                scores = scores.filter(pl.Series(filled[place]))
            parts.append(_named(scores, name, annotator, measure))
    return pl.concat(parts)


def _named(scores: pl.DataFrame, run: str | None, annotator: Any, measure: Measure) -> pl.DataFrame:
    """The query scores table, from values by query, and by run if ``run`` is None."""
    names = {ANNOTATOR: annotator, MEASURE: str(measure)} | ({} if run is None else {RUN: run})
    columns = [pl.lit(value, pl.String).alias(name) for name, value in names.items()]
    return scores.with_columns(columns).select(list(tables.QUERY_SCORES))


def _refuse_measures(measures: Sequence[Measure], relevant: Relevant) -> None:
    if any(measure.labels == "utilities" for measure in measures):
        problem = f"{UTILITY_KIND} is defined only for utility labels"
        remedy = "leave it out, or give labels that are utilities"
        raise InputError(problem, remedy, "measure.utility")
    trivial = [measure.kind for measure in measures if measure.trivial_on_list]
    if relevant == "list" and trivial:
        problem = (
            f"{trivial[0]} is 1 by definition where only the query's own list counts as judged"
        )
        remedy = f"use `relevant` pool, or leave {trivial[0]} out"
        raise InputError(problem, remedy, "measure.trivial")
    if relevant == "qrels" and (lacking := [m for m in measures if m.tokens and m.has_best]):
        problem = f"{lacking[0]} is not defined where `relevant` is qrels: judged passages that no run lists have no length"
        remedy = "use `relevant` pool, or another measure"
        raise InputError(problem, remedy, "measure.unjudged")


def without_results(
    runs: pl.DataFrame, query_ids: Sequence[str], *, names: Sequence[str] = ()
) -> Iterator[tuple[str, list[str]]]:
    """Every run with the queries for which it lists nothing; ``names`` are of all runs, as ``runs`` may lack some."""
    by_run = dict(runs.group_by(RUN, maintain_order=True).agg(QUERY_ID).iter_rows())
    for run in names or by_run:
        listed = set(by_run.get(run, ()))
        yield run, [query_id for query_id in query_ids if query_id not in listed]


def lists_nothing(run: str, queries: int, first: str) -> InputError:
    """The error for a run that lists nothing for so many queries."""
    problem = f"{run!r} lists nothing for {counted(queries, '[query|queries]')} ({first!r}, …)"
    remedy = "count these as 0 with `missing` zero, or leave them out with `missing` skip"
    return InputError(problem, remedy, "runs.unlisted")


def _score_annotator(
    listed: pl.DataFrame,
    labels: pl.DataFrame,
    annotator: str,
    query_ids: Sequence[str],
    runs: int,
    measures: Sequence[Measure],
    relevant: Relevant,
    split: Split,
) -> Floats:
    """Values of shape (runs, measures, queries)."""
    _refuse_labels(labels[LABEL], annotator, measures)
    counted = labels.filter(pl.col(_QUERY).is_not_null(), pl.col(LABEL) >= 0)[LABEL]
    real_valued = is_real_valued(counted.to_numpy())
    above_one = largest_label(counted) > 1
    if real_valued and (refused := undefined_on_graded(measures, above_one=above_one)):
        first = refused[0]
        advice = first.with_threshold(1.0 if above_one else 0.5)
        usual = [m for m in KINDS.values() if m.labels != "utilities"]
        others = ", ".join(m.kind for m in usual if defined_on_graded(m, above_one))
        which = ", some of which exceed 1" if above_one else ""
        problem = f"{first} is not defined on the real-valued labels of {annotator!r}{which}"
        remedy = f"give a threshold, as in {advice}, or use {others}"
        raise InputError(problem, remedy, "measure.real")
    values = np.zeros((runs, len(measures), len(query_ids)))
    for start, end in _query_blocks(listed[_QUERY], labels[_QUERY], len(query_ids), split.rows):
        inside = pl.col(_QUERY).is_between(start, end - 1)
        size, query = end - start, pl.col(_QUERY).cast(pl.Int64) - start
        place = pl.col(RUN).cast(pl.Int64) * size + query
        ranked, lengths = _rank_labels(
            listed.filter(inside).with_columns(query, place.alias(_LIST)),
            labels.filter(inside).with_columns(query),
            annotator,
            query_ids[start:end],
            runs * size,
            relevant,
        )
        block = measure_within(ranked, lengths, measures, real_valued=real_valued, split=split)
        values[:, :, start:end] = block.reshape(len(measures), runs, size).swapaxes(0, 1)
    return values


def largest_label(labels: pl.Series) -> float:
    """The largest finite label, 0 or more; other functions refuse infinite labels."""
    return max([0.0, *labels.filter(labels.is_finite()).top_k(1)])


def _refuse_labels(labels: pl.Series, annotator: str, measures: Sequence[Measure]) -> None:
    # Above the usual limit, sums of gains are no longer finite.
    strict = min(measures, key=lambda measure: measure.largest_label, default=None)
    most = 1e15 if strict is None else strict.largest_label
    wrong = labels.filter(~(labels.is_finite() & (labels <= most)).fill_null(False))
    if len(wrong):
        problem = f"a label of {annotator!r} is {wrong[0]}, not a finite number up to {most:g}"
        remedy = f"correct the label{strict.for_larger if strict else ''}"
        raise InputError(problem, remedy, "annotator.infinite")


def _query_blocks(
    listed: pl.Series, labelled: pl.Series, queries: int, size: int
) -> Iterator[tuple[int, int]]:
    rows = np.zeros(queries, dtype=np.int64)
    for series in (listed, labelled):
        rows += np.bincount(series.drop_nulls().to_numpy(), minlength=queries)
    edges = (np.flatnonzero(np.diff(np.cumsum(rows) // size)) + 1).tolist()
    return pairwise([0, *edges, queries])


def _rank_labels(
    listed: pl.DataFrame,
    labels: pl.DataFrame,
    annotator: str,
    query_ids: Sequence[str],
    lists: int,
    relevant: Relevant,
) -> tuple[RankedLabels, Lengths]:
    """The labels of a block's lists in rank order, and of its judged sets; and lengths, if these count."""
    joined = listed.join(labels, on=[_QUERY, DOC_ID], how="left").sort(_LIST, RANK)
    checked = [(listed, [_LIST, DOC_ID], "is listed twice")]
    # Two labels of a listed passage lengthen the join; among other labels only the qrels count.
    if joined.height > listed.height or relevant == "qrels":
        checked.append((labels, [_QUERY, DOC_ID], f"has two labels of {annotator!r}"))
    for frame, columns, what in checked:
        if frame.select(columns).n_unique() < frame.height:
            twice = frame.filter(pl.struct(columns).is_duplicated()).row(0, named=True)
            problem = f"passage {twice[DOC_ID]!r} of query {query_ids[twice[_QUERY]]!r} {what}"
            raise InputError(problem, "keep one", "runs.duplicate")
    # A negative label is trec_eval's sign for an unjudged passage.
    judged = labels.filter(pl.col(LABEL) >= 0)
    joined = joined.with_columns(pl.when(pl.col(LABEL) >= 0).then(LABEL).alias(LABEL))
    in_order = joined[LABEL].fill_null(float("nan")).to_numpy()
    offsets = _offsets(joined[_LIST].to_numpy(), lists)
    tokens = joined[TOKENS].to_numpy() if TOKENS in joined.columns else np.zeros(0, dtype=np.int64)
    judged_tokens = tokens
    if relevant == "list":
        return RankedLabels.own_lists(in_order, offsets), Lengths(tokens, tokens)
    if relevant == "pool":
        judged = judged.join(listed, on=[_QUERY, DOC_ID], how="semi")
    judged = judged.sort(_QUERY)
    against = _offsets(judged[_QUERY].to_numpy(), len(query_ids))
    if len(tokens):
        known = listed.select(_QUERY, DOC_ID, TOKENS).unique([_QUERY, DOC_ID])
        judged = judged.join(known, on=[_QUERY, DOC_ID], how="left", maintain_order="left")
        judged_tokens = judged[TOKENS].fill_null(0).to_numpy()
    sets = np.arange(lists) % len(query_ids)
    ranked = RankedLabels(in_order, offsets, judged[LABEL].to_numpy(), against, sets)
    return ranked, Lengths(tokens, judged_tokens)


def _offsets(groups: Ints, count: int) -> Ints:
    return np.concatenate([[0], np.cumsum(np.bincount(groups, minlength=count))])


def score_utility(
    runs: pl.DataFrame,
    labels: pl.DataFrame,
    query_ids: Sequence[str],
    measures: Sequence[Measure],
    *,
    missing: Missing = "zero",
    names: Sequence[str] = (),
) -> pl.DataFrame:
    """Query scores table of one annotator's labels, by run, measure and query.

    Args:
        labels: one annotator's labels table; a passage without a label counts as 0.
        measures: all of the kind ``UDCG``.
        missing: as in ``scores.score_runs``, which refuses ``error``; here it counts as ``zero``.
    """
    place = pl.col(RANK).rank("ordinal").over(RUN, QUERY_ID)
    listed = runs.join(
        labels.select(QUERY_ID, DOC_ID, ANNOTATOR, LABEL), on=[QUERY_ID, DOC_ID], how="left"
    ).select(RUN, QUERY_ID, pl.col(LABEL).fill_null(0.0), place.alias("_place"))
    runs_in_order = list(names) or runs[RUN].unique(maintain_order=True).to_list()
    queries = pl.DataFrame({QUERY_ID: query_ids}, {QUERY_ID: pl.String})
    grid = pl.DataFrame({RUN: runs_in_order}, {RUN: pl.String}).join(
        queries, how="cross", maintain_order="left_right"
    )
    parts = [tables.empty(tables.QUERY_SCORES)]
    for measure in measures:
        cut = listed.filter(pl.col("_place") <= (measure.cutoff or listed.height))
        means = cut.group_by(RUN, QUERY_ID).agg(pl.col(LABEL).mean())
        scored = grid.join(means, on=[RUN, QUERY_ID], how="left", maintain_order="left")
        if missing == "skip":
            scored = scored.filter(pl.col(LABEL).is_not_null())
        value = (1.0 / (1.0 + (-pl.col(LABEL)).exp())).fill_null(0.0)
        scored = scored.with_columns(value.alias(VALUE))
        parts.append(_named(scored, None, labels[ANNOTATOR].first(), measure))
    order = {name: place for place, name in enumerate(runs_in_order)}
    return pl.concat(parts).sort(pl.col(RUN).replace_strict(order, default=0), maintain_order=True)
