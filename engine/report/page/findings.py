"""What a page shows, read back from the folder that an evaluation wrote.

The page is made of files, whether right after the evaluation or years later: there is one way to make it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import polars as pl

from engine import tables
from engine.errors import InputError
from engine.sources.io.parquet import read_parquet
from engine.statistics import bounded
from engine.statistics.cells import Ints, clusters_of, numbered
from engine.statistics.choice import primary_measures
from engine.tables import ANNOTATOR, MEASURE, QUERY_ID, RUN, VALUE, N

SUMMARY = "summary.json"
# The least end-to-end score that a page calls a success: of scores between 0 and 1, one half.
SUCCESS = 0.5
# Judges' verdicts on claims and answers to questions are right or wrong; other scores are right in part.
_EXACT = frozenset({"em", "accuracy"})
_REMEDY = "name the folder that `erag evaluate` or `erag coverage` wrote"


@dataclass(frozen=True)
class Sources:
    """The evaluation's inputs, as far as it used them.

    Attributes:
        queries, corpus: with the columns of ``tables.QUERIES`` and ``tables.CORPUS``.
        runs: ``tables.RUNS``, up to the evaluation's cutoff.
    """

    queries: pl.DataFrame
    corpus: pl.DataFrame
    runs: pl.DataFrame


@dataclass(frozen=True)
class Interval:
    """A mean and the bounds of its interval, NaN where there is none; of ``n`` queries."""

    value: float
    low: float
    high: float
    n: int


@dataclass(frozen=True)
class Findings:
    """An evaluation as its files have it.

    Attributes:
        summary: the content of ``summary.json``.
        folder: where the files are.
        sources: what was evaluated; None where the page has no passages: the evaluation was done in
            shards, or they were not asked for.
        held: tables by name, where they are in memory; then nothing is looked for in the folder.
    """

    summary: Mapping[str, Any]
    folder: Path
    sources: Sources | None
    held: Mapping[str, pl.DataFrame] = field(default_factory=dict)

    def table(self, name: str) -> pl.DataFrame:
        """A table of the evaluation; without rows where it has none of that name."""
        schema: tables.Schema = getattr(tables, name.upper())
        if self.held:
            return self.held.get(name, tables.empty(schema))
        path = self.folder / f"{name}.parquet"
        return read_table(path, schema) if path.exists() else tables.empty(schema)

    @cached_property
    def configuration(self) -> Mapping[str, Any]:
        """The settings."""
        found: Mapping[str, Any] = self.summary["configuration"]
        return found

    @cached_property
    def correlations(self) -> pl.DataFrame:
        """``tables.CORRELATIONS``."""
        return self.table("correlations")

    def scores(self, annotator: str, measure: str) -> pl.DataFrame:
        """The scores of all runs by a measure on the labels of an annotator: ``run``, ``query_id``, ``value``.

        Read anew each time: of millions of queries, those of all measures would take more memory than the rest.
        """
        path = self.folder / "query_scores.parquet"
        wanted = (pl.col(ANNOTATOR) == annotator) & (pl.col(MEASURE) == measure)
        if "query_scores" in self.held:
            return self.held["query_scores"].filter(wanted).select(RUN, QUERY_ID, VALUE)
        try:
            return pl.scan_parquet(path).filter(wanted).select(RUN, QUERY_ID, VALUE).collect()
        except (pl.exceptions.PolarsError, OSError) as error:
            problem = f"cannot be read ({str(error).splitlines()[0]})"
            raise InputError(problem, "evaluate again; reads are in the store", path=path) from None

    @cached_property
    def downstream(self) -> pl.DataFrame:
        """``tables.DOWNSTREAM``."""
        return self.table("downstream")

    @cached_property
    def traces(self) -> pl.DataFrame:
        """``tables.TRACES``."""
        return self.table("traces")

    @property
    def metric(self) -> str:
        """The downstream metric."""
        return str(self.configuration["metric"])

    @property
    def is_exact(self) -> bool:
        """Whether the downstream metric knows only 0 and 1."""
        return self.metric in _EXACT

    @property
    def confidence(self) -> float:
        """Of the intervals."""
        return float(self.configuration["confidence"])

    @cached_property
    def annotators(self) -> list[str]:
        """The annotators, in the order in which they were asked for."""
        return [*self.configuration["annotators"], *self.configuration["own_annotators"]]

    @cached_property
    def runs(self) -> list[str]:
        """The runs: the best one first, where anything says which that is; else by name."""
        names = sorted({row[RUN] for row in (*self.summary["means"], *self.summary["end_to_end"])})
        verdict = self.summary["verdict"]
        if verdict:
            means = verdict["means"]
            return sorted(names, key=lambda name: -(means.get(name) or -math.inf))
        means = {row[RUN]: row[VALUE] for row in self.summary["end_to_end"]}
        return sorted(names, key=lambda name: -(means.get(name) or -math.inf))

    @property
    def best_run(self) -> str | None:
        """The first run, of which the agreement is shown; None without runs."""
        return self.runs[0] if self.runs else None

    @cached_property
    def primary_measures(self) -> dict[str, str]:
        """By annotator, the measure that it is compared by (``choice.primary_measures``)."""
        # Of the means: summaries of earlier versions name no primary measures.
        found = primary_measures((row[ANNOTATOR], row[MEASURE]) for row in self.summary["means"])
        return {name: found[name] for name in self.annotators if name in found}

    def end_to_end(self, run: str) -> Interval | None:
        """The mean end-to-end score of a run; None where nothing was read end to end."""
        return self.interval(self.downstream.filter(pl.col(RUN) == run))

    def mean(self, run: str, annotator: str, measure: str) -> Interval | None:
        """The mean of a measure on the labels of an annotator; None where it is not defined."""
        return self.interval(self.scores(annotator, measure).filter(pl.col(RUN) == run))

    def interval(self, scores: pl.DataFrame) -> Interval | None:
        """The mean of ``value`` over queries (``query_id``), by clusters where there are some; None of no query."""
        if scores.is_empty():
            return None
        codes = numbered(
            scores[QUERY_ID], clusters_of(self.clusters) if self.clusters.height else None
        )
        return mean_interval(scores[VALUE], self.confidence, codes)

    @cached_property
    def clusters(self) -> pl.DataFrame:
        """``tables.CLUSTERS``; without rows where queries are independent."""
        return self.table("clusters")

    def agreement(self, annotator: str) -> dict[str, Any] | None:
        """The row of ``correlations`` of an annotator's primary measure on the best run; None without one."""
        rows = self.correlations.filter(
            pl.col(RUN) == self.best_run,
            pl.col(ANNOTATOR) == annotator,
            pl.col(MEASURE) == self.primary_measures.get(annotator, ""),
            pl.col(N) > 0,
        )
        if rows.is_empty() or math.isnan(rows[tables.TAU][0]):
            return None
        return rows.row(0, named=True)


def mean_interval(values: pl.Series, confidence: float, clusters: Ints | None = None) -> Interval:
    """The mean of scores over queries with its interval.

    That of Clopper & Pearson for scores of 0 and 1, Gaffke's for others in [0, 1] (``bounded``). NaN bounds
    where some score lies elsewhere.
    """
    mean, n = float(values.mean()), len(values)  # type: ignore[arg-type]
    if float(values.min()) < 0 or float(values.max()) > 1:  # type: ignore[arg-type]
        return Interval(mean, math.nan, math.nan, n)
    low, high = bounded.mean_interval(values.to_numpy(), confidence, clusters)
    return Interval(mean, low, high, n)


def read_table(path: Path, schema: tables.Schema) -> pl.DataFrame:
    """A table of a result, with the columns of a schema.

    Raises:
        InputError: it cannot be read, or lacks a column.
    """
    frame = read_parquet(path)
    if missing := [column for column in schema if column not in frame.columns]:
        problem = f"lacks {', '.join(missing)}: an earlier version wrote it"
        raise InputError(problem, "evaluate again; reads come from the store", path=path)
    return frame.select(list(schema))


def read_summary(folder: Path) -> dict[str, Any]:
    """The content of a folder's ``summary.json``.

    Raises:
        InputError: it has none that can be read.
    """
    path = folder / SUMMARY
    try:
        summary = json.loads(path.read_bytes())
    except OSError as error:
        problem = f"cannot be read ({error.strerror or error})"
        raise InputError(problem, _REMEDY, path=path) from None
    except ValueError as error:
        raise InputError(f"is not JSON ({error})", _REMEDY, path=path) from None
    if not isinstance(summary, dict):
        raise InputError("is not the summary of an evaluation", _REMEDY, path=path)
    return summary


def read_findings(folder: Path, sources: Sources | None) -> Findings:
    """The evaluation that a folder holds.

    Raises:
        InputError: the folder holds none, or one of an earlier version that cannot be shown.
    """
    summary = read_summary(folder)
    needed = {"configuration", "means", "end_to_end", "verdict", "reading", "notes", "counts"}
    if not needed <= summary.keys():
        raise InputError("is not the summary of an evaluation", _REMEDY, path=folder / SUMMARY)
    return Findings(summary, folder, sources)
