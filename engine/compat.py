"""The call of the eRAG package (Salemi & Zamani), by changing the import.

``from erag import eval`` becomes ``from engine.compat import eval``. Its arguments, the order of its calls and its
result are the package's; the measures are computed here, and equal.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import polars as pl

from engine.messages.errors import InputError
from engine.messages.wording import quoted
from engine.ranking.kinds.base import Measure
from engine.ranking.kinds.shares import Precision, Success
from engine.ranking.measures import KINDS
from engine.ranking.scores import score_runs
from engine.tables import ANNOTATOR, DOC_ID, LABEL, QUERY_ID, RANK, RUN, RUNS, SCORE, VALUE

_CUT = {m.references.trec_eval_cut: m for m in KINDS.values() if m.references.trec_eval_cut}
_WHOLE = {m.references.trec_eval: m for m in KINDS.values() if m.references.trec_eval}
# The package has two measures of labels between 0 and 1; without a cutoff they take the whole list.
_OF_SHARES = {"P": Precision, "success": Success}
_NAMES = f"{', '.join(name.format(10) for name in _CUT)}, {', '.join(_WHOLE)}"

Texts = Mapping[str, Sequence[str]]


def eval(  # noqa: A001  the package calls it so
    retrieval_results: Texts,
    expected_outputs: Texts,
    text_generator: Callable[[dict[str, list[str]]], Mapping[str, str]],
    downstream_metric: Callable[[dict[str, str], dict[str, list[str]]], Mapping[str, float]],
    retrieval_metrics: Iterable[str],
) -> dict[str, Any]:
    """The eRAG scores of ranked lists: labels of single passages, aggregated by ranking measures.

    Args:
        retrieval_results: by query text, the texts of its passages, the best first.
        expected_outputs: by query text, its reference outputs.
        text_generator: takes passages by query and returns an output for each query. It is called for the first
            passages of all lists, then for the second ones, and so on, each time with lists of one passage.
        downstream_metric: takes outputs and references by query and returns a value in [0, 1] for each query.
        retrieval_metrics: measures as pytrec_eval names them. If every label is 0 or 1: ``P_k``,
            ``recall_k``, ``map_cut_k``, ``ndcg_cut_k``, ``success_k``, ``map``, ``recip_rank``, ``ndcg``,
            ``Rprec``, ``bpref``, ``set_P``, ``set_recall``, ``set_F``; else ``P``, ``P_k``, ``success``, ``success_k``
            with a k that every list has.

    Returns:
        ``{"per_input": {query: {measure: value}}, "aggregated": {measure: mean}}``, without queries that
        have no passages.

    Raises:
        InputError: keys that do not match, a value outside [0, 1], or a measure that is not defined.
    """
    if set(retrieval_results) != set(expected_outputs):
        only = quoted(next(iter(set(retrieval_results) ^ set(expected_outputs))))
        problem = (
            f"`retrieval_results` and `expected_outputs` have other queries (only one has {only})"
        )
        raise InputError(problem, "give both for the same queries", "python.queries")
    lists = {query: list(passages) for query, passages in retrieval_results.items()}
    labels = _labels(lists, expected_outputs, text_generator, downstream_metric)
    filled = {query: values for query, values in labels.items() if values}
    if not filled:
        raise InputError("`retrieval_results` has no passages", "give some", "python.passages")
    binary = all(value in (0, 1) for values in filled.values() for value in values)
    per_input: dict[str, dict[str, float]] = {query: {} for query in filled}
    aggregated = {}
    for name in sorted(set(retrieval_metrics)):
        values = _values(_binary(name) if binary else _shares(name, filled), filled)
        for query, value in values.items():
            per_input[query][name] = value
        aggregated[name] = math.fsum(values.values()) / len(values)
    return {"per_input": per_input, "aggregated": aggregated}


def _labels(
    lists: Mapping[str, Sequence[str]],
    expected: Texts,
    generate: Callable[[dict[str, list[str]]], Mapping[str, str]],
    score: Callable[[dict[str, str], dict[str, list[str]]], Mapping[str, float]],
) -> dict[str, list[float]]:
    labels: dict[str, list[float]] = {query: [] for query in lists}
    for rank in range(max(map(len, lists.values()), default=0)):
        single = {q: [passages[rank]] for q, passages in lists.items() if rank < len(passages)}
        outputs = _complete("text_generator", generate(single), single)
        references = {query: list(expected[query]) for query in single}
        values = _complete("downstream_metric", score(outputs, references), single)
        for query in single:
            value = values[query]
            if not 0 <= float(value) <= 1:
                problem = f"`downstream_metric` gives {value!r} for the query {quoted(query)}"
                raise InputError(problem, "return a number from 0 to 1", "python.metric")
            labels[query].append(float(value))
    return labels


def _complete(
    function: str, values: Mapping[str, Any], queries: Mapping[str, Any]
) -> dict[str, Any]:
    """The outputs of a function, checked to be for exactly the queries of its input."""
    values = dict(values)
    if values.keys() != queries.keys():
        query = next(iter(values.keys() ^ queries.keys()))
        what = "gives nothing for" if query in queries else "gives something for"
        remedy = "return one value for each query that it is given"
        raise InputError(f"`{function}` {what} the query {quoted(query)}", remedy, "python.value")
    return values


def _binary(name: str) -> Measure:
    """A measure of trec_eval."""
    cut = re.fullmatch(r"([A-Za-z_]+?)_([1-9]\d*)", name)
    if cut is not None and f"{cut[1]}_{{}}" in _CUT:
        return _CUT[f"{cut[1]}_{{}}"](int(cut[2]))
    if name in _WHOLE:
        return _WHOLE[name]()
    problem = f"the measure {name!r} in `retrieval_metrics`"
    raise InputError(problem, f"use some of {_NAMES}, with any cutoff", "python.measure")


def _shares(name: str, labels: Mapping[str, Sequence[float]]) -> Measure:
    """A measure of labels between 0 and 1: their mean, or the largest."""
    kind, _, cutoff = name.partition("_")
    if kind not in _OF_SHARES or not (cutoff == "" or re.fullmatch(r"[1-9]\d*", cutoff)):
        problem = f"the measure {name!r} in `retrieval_metrics`, and `downstream_metric` gives values between 0 and 1"
        remedy = "use some of P, P_10, success, success_10, with any cutoff"
        raise InputError(problem, remedy, "python.graded")
    k = int(cutoff) if cutoff else None
    if short := [query for query, values in labels.items() if k and len(values) < k]:
        count = len(labels[short[0]])
        problem = f"{name} of the query {quoted(short[0])}, which has {count} passages"
        raise InputError(problem, "use a smaller cutoff", "python.length")
    return _OF_SHARES[kind](k)


def _values(measure: Measure, labels: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """The values of a measure on lists of labels: only a list's own labels are judged."""
    rows = [
        (query, str(rank), rank, -float(rank), "run", "labels", label)
        for query, own in labels.items()
        for rank, label in enumerate(own, 1)
    ]
    columns = [QUERY_ID, DOC_ID, RANK, SCORE, RUN, ANNOTATOR, LABEL]
    both = pl.DataFrame(rows, schema=columns, orient="row")
    run, judged = both.select(list(RUNS)), both.drop(RANK, SCORE, RUN)
    scored = score_runs(run, judged, list(labels), [measure], relevant="list")
    return dict(scored.select(QUERY_ID, VALUE).iter_rows())
