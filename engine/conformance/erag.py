"""Labels of ranked lists, aggregated by the engine and by the erag package."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl

from engine import tables
from engine.conformance.comparison import (
    Comparison,
    Reference,
    by_query,
    compare,
    not_installed,
    require_installed,
    version_of,
)
from engine.conformance.references import trec_eval_name
from engine.messages.errors import InputError, masked
from engine.messages.wording import counted, quoted
from engine.ranking.measures import Measure
from engine.ranking.scores import score_runs
from engine.sources.io.files import is_text
from engine.sources.io.lines import read_json_lines, read_lines
from engine.tables import QUERY_ID

_WHAT = (
    'lists of labels, JSON lines {"query": …, "labels": [best rank first]} or one object '
    "{query: [labels]}"
)
_CUTOFFS = (1, 3, 5, 10, 20, 50, 100)
_INSTALL = "pip install --no-deps erag pytrec-eval-terrier"
_RULES = (
    "lists: keyed by the query's text; only a list's own labels are judged, as with relevant=list here",
    "ties: none, a list is given in order",
    "means: over queries with results; here those without count 0",
)


@dataclass(frozen=True)
class Lists:
    """Label lists by query text.

    Attributes:
        labels: by query, best rank first, each from 0 to 1.
        binary: whether every label is 0 or 1, by which the package chooses its measures.
    """

    labels: Mapping[str, tuple[float, ...]]
    binary: bool


def compare_erag(path: str | Path) -> Comparison:
    """Aggregate the labels of lists by ``score_runs(relevant="list")`` and by the package's ``eval``.

    On labels of 0 and 1 alone the package computes trec_eval's measures, else only P and success;
    there a cutoff beyond a list is an error, so cutoffs are those that every list has.

    Raises:
        InputError: a file that cannot be read; a query that occurs twice; a label that is not a number
            from 0 to 1; no list with labels; the package is not installed.
    """
    lists = read_lists(path)
    filled = {query: labels for query, labels in lists.labels.items() if labels}
    lengths = [len(labels) for labels in filled.values()]
    measures = _measures(lists.binary, min(lengths), max(lengths))
    try:
        version, result = _their_values(filled, list(measures.values()))
    except ImportError as error:
        missing = not_installed("erag", "erag", _INSTALL, error)
        require_installed([missing], "eRAG")
        raise
    ours = own_values(lists.labels, list(measures))
    rows = []
    for measure, there in measures.items():
        theirs = {query: float(values[there]) for query, values in result["per_input"].items()}
        mean = float(result["aggregated"][there])
        rows.append(
            compare(str(measure), there, ours[measure], theirs, list(filled), their_mean=mean)
        )
    kind = (
        "labels are 0 or 1: the package computes pytrec_eval's measures"
        if lists.binary
        else "labels are real-valued: the package computes P (mean label) and success (largest), "
        f"and fails where k exceeds a list; the shortest has {min(lengths)}"
    )
    without = len(lists.labels) - len(filled)
    counts = f"{counted(len(lists.labels), '[query|queries]')}, {without} of them without results"
    reference = Reference("erag", version, _INSTALL, tuple(rows), _RULES)
    return Comparison(masked(str(path)), "query", (counts, kind), (reference,))


def read_lists(path: str | Path) -> Lists:
    """Read label lists: JSON lines with ``query`` and ``labels``, or one object of lists by query.

    Raises:
        InputError: as ``compare_erag`` says, naming the line where lines have a meaning.
    """
    result: dict[str, tuple[float, ...]] = {}
    for number, query, labels in _rows(Path(path)):
        fault = partial(InputError, path=path, line=number)
        if not isinstance(query, str) or not is_text(query):
            raise fault(f"query {quoted(query)} is not a text", f"give {_WHAT}")
        if query in result:
            raise fault(
                f"query {quoted(query)} stands twice", "the erag package keys lists by query"
            )
        if not isinstance(labels, list):
            raise fault(f"the labels of {quoted(query)} are not a list", f"give {_WHAT}")
        for label in labels:
            # Also false for NaN; true and false are 1 and 0 to the package too.
            if not isinstance(label, (int, float)) or not 0 <= label <= 1:
                raise fault(
                    f"label {quoted(label)} of query {quoted(query)}", "use numbers from 0 to 1"
                )
        result[query] = tuple(float(label) for label in labels)
    if not any(result.values()):
        raise InputError("holds no labels", f"give {_WHAT}", path=path)
    return Lists(result, all(label in (0, 1) for labels in result.values() for label in labels))


def _rows(path: Path) -> list[tuple[int | None, Any, Any]]:
    """(line, query, labels) of every list."""
    text = "".join(line for _, line in read_lines(path, _WHAT))
    pairs = _pairs(text)
    if pairs is not None and not {"query", "labels"} <= dict(pairs).keys():
        return [(None, query, labels) for query, labels in pairs]
    return [(n, row.get("query"), row.get("labels")) for n, row in read_json_lines(path, _WHAT)]


def _pairs(text: str) -> list[tuple[str, Any]] | None:
    """Keys and values of a JSON object, a key as often as it stands there; None if it is not one."""
    try:
        # Objects inside come out as lists of pairs, and are refused as labels.
        value = json.loads(text, object_pairs_hook=tuple)
    except (ValueError, RecursionError):
        return None
    return list(value) if isinstance(value, tuple) else None


def _measures(binary: bool, shortest: int, longest: int) -> dict[Measure, str]:
    """Our measures and the package's names of them."""
    if not binary:
        cutoffs = sorted({k for k in _CUTOFFS if k <= shortest} | {shortest})
        named = {Measure("P"): "P", Measure("Success"): "success"}
        for k in cutoffs:
            named |= {Measure("P", k): f"P_{k}", Measure("Success", k): f"success_{k}"}
        return named
    cutoffs = [k for k in _CUTOFFS if k == 1 or k < 2 * longest]
    kinds = ("P", "R", "AP", "Success", "nDCG")
    measures = [Measure(kind, k) for kind in kinds for k in cutoffs]
    measures += [Measure(kind) for kind in ("AP", "RR", "Rprec", "nDCG")]
    return {measure: str(trec_eval_name(measure)) for measure in measures}


def _their_values(
    lists: Mapping[str, Sequence[float]], names: Sequence[str]
) -> tuple[str, dict[str, Any]]:
    from erag import eval as evaluate

    # A passage is its label, and the reader repeats it: the metric finds the label again.
    passages = {query: [repr(label) for label in labels] for query, labels in lists.items()}
    values = evaluate(
        passages,
        {query: [] for query in lists},
        lambda inputs: {query: documents[0] for query, documents in inputs.items()},
        lambda outputs, expected: {query: float(output) for query, output in outputs.items()},
        set(names),
    )
    return version_of("erag"), values


def own_values(
    lists: Mapping[str, Sequence[float]], measures: Sequence[Measure]
) -> dict[Measure, dict[str, float]]:
    """The values of measures on lists of labels, by query: only a list's own labels are judged."""
    rows = [
        (query, str(rank), rank, float(-rank), label)
        for query, labels in lists.items()
        for rank, label in enumerate(labels, 1)
    ]
    columns = pl.DataFrame(
        rows,
        schema=[QUERY_ID, tables.DOC_ID, tables.RANK, tables.SCORE, tables.LABEL],
        orient="row",
    )
    run = columns.with_columns(pl.lit("lists").alias(tables.RUN)).select(list(tables.RUNS))
    labels = columns.with_columns(pl.lit("erag").alias(tables.ANNOTATOR)).select(
        list(tables.LABELS)
    )
    scored = score_runs(run, labels, list(lists), measures, relevant="list")
    return by_query(scored, measures)
