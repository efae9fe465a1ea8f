"""Results of an evaluation, in memory or as its files hold them: the one value behind terminal, page and Python."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import polars as pl

from engine import tables
from engine.evaluation.conclude import Evaluation
from engine.evaluation.score import UNREAD
from engine.evaluation.study import Study
from engine.inputs.files import EvaluationInputs, InputFiles, over
from engine.labels.annotator import READER, Role
from engine.labels.registry import ANNOTATORS
from engine.messages.errors import InputError
from engine.messages.wording import counted
from engine.ranking.measures import parse_measure
from engine.ranking.scores import ALL_JUDGMENTS, JUDGED
from engine.reading.costs import KindCosts, ReadingCosts, merge_kinds
from engine.report.summary import (
    DIGESTS,
    STATISTICS,
    SUMMARY,
    conditions_of,
    digests_of,
    notes_by_code,
)
from engine.sources.io.digests import json_digest, require_whole
from engine.sources.io.locations import Location, inside_of, open_binary
from engine.sources.io.parquet import read_parquet
from engine.statistics.comparison import clusters_of, numbered
from engine.statistics.correlation import Bootstrap
from engine.statistics.runs import Interval, mean_interval, mean_until
from engine.statistics.table import primary_measures
from engine.tables import ANNOTATOR, MEASURE, QUERY_ID, RUN, VALUE, N, high_of, low_of

TABLES = ("labels", "query_scores", "downstream", "traces", "reads")
STUDY = ("conditions", "readers", "reader_comparisons")
Costs = TypeVar("Costs", KindCosts, ReadingCosts)
_REMEDY = "name the folder that `erag evaluate` wrote"
_AGAIN = "evaluate again; LLM calls are cached"
_AS_WRITTEN = f"{_AGAIN} (if you changed it, delete `{DIGESTS}` from {SUMMARY})"


@dataclass(frozen=True)
class Findings:
    """Results of an evaluation; every outlet is rendered from it, whether it has just ended or is read from a folder.

    ``sources``: the evaluated inputs, cut at the cutoff; None if the page has no passages, since the evaluation was done
    in shards, or passages were switched off. ``frames``: tables in memory, by name; if there are any, none is read.
    """

    summary: Mapping[str, Any]
    folder: Path
    sources: EvaluationInputs | None
    frames: Mapping[str, pl.DataFrame] = field(default_factory=dict)
    conditions: Sequence[Findings] = ()  # of a study, the main one first
    study_notes: Mapping[str, Any] = field(default_factory=dict)  # on the study as a whole, by code

    @classmethod
    def of(
        cls,
        evaluation: Evaluation,
        summary: Mapping[str, Any],
        study: Study | None = None,
        conditions: Sequence[Findings] = (),
    ) -> Findings:
        """Findings of an evaluation that has just ended, or of a study: its first and further ``conditions``."""
        frames = {name: getattr(evaluation, name) for name in (*TABLES, "clusters")}
        frames |= {name: getattr(evaluation.statistics, name) for name in STATISTICS}
        frames |= evaluation.further
        sources = None if evaluation.parts else evaluation.inputs
        first = cls(summary, Path(), sources, frames)
        if study is None:
            return first
        frames |= {name: getattr(study, name) for name in STUDY}
        notes = notes_by_code(study.notes)
        return replace(first, conditions=[first, *conditions], study_notes=notes)

    def table(self, name: str, schema: tables.Schema | None = None) -> pl.DataFrame:
        """A table of the evaluation; without rows if there is none of that name in a single file."""
        schema = schema or getattr(tables, name.upper())
        if self.frames:
            return self.frames.get(name, tables.empty(schema))
        if (self.folder / f"{name}.parquet").is_dir():  # of an evaluation in shards
            return tables.empty(schema)
        path = self.whole(name)
        return _read_table(path, schema) if path.is_file() else tables.empty(schema)

    def whole(self, name: str) -> Path:
        """Path of a table, in one file or several; an InputError if it was changed or removed after the evaluation."""
        path = self.folder / f"{name}.parquet"
        require_whole(path, self._digests.get(path.name), _AS_WRITTEN)
        self._digests.pop(path.name, None)
        return path

    @cached_property
    def _digests(self) -> dict[str, str]:
        return dict(digests_of(self.summary))

    @property
    def configuration(self) -> Mapping[str, Any]:
        return self.summary["configuration"]

    def files(self, remedy: str) -> InputFiles:
        """The evaluated files, limited to the first queries, as evaluated; ``remedy`` if Python passed tables."""
        settings, counts = self.configuration, self.summary["counts"]
        if not settings.get("queries"):
            problem = "does not say which files were evaluated, since Python gave tables"
            raise InputError(problem, remedy, "results.files", path=self.folder / SUMMARY)
        return InputFiles(
            queries=settings["queries"],
            **over(settings["corpus"]),
            run=tuple(settings["runs"]),
            limit=counts["queries"] or None,
            skip_bad=counts["skipped_records"],
            answers=settings.get("answers"),
            need_answers=False,  # the evaluation checked them, if it needed any
        )

    @cached_property
    def correlations(self) -> pl.DataFrame:
        return self.table("correlations")

    def named(self, measure: str, *annotators: str) -> str:
        """A measure's name in tables: ``nDCG@5 (pool)`` if not all judgments of its annotators count."""
        known = (ANNOTATORS[name] for name in annotators if name in ANNOTATORS)
        beyond = any(annotator.judges_everything for annotator in known)
        if not (measure and beyond) or (parsed := parse_measure(measure)).of_one_list:
            return measure
        whole = self.configuration["relevant"]  # of all annotators, in earlier versions
        base = whole if parsed.tokens else self.configuration.get(JUDGED, whole)
        return measure if base == ALL_JUDGMENTS else f"{measure} ({base})"

    def scores(self, annotator: str, measure: str) -> pl.DataFrame:
        """The scores of all runs by a measure on the labels of an annotator: ``run``, ``query_id``, ``value``.

        Read anew each time: the scores of millions of queries by all measures would take more memory than the rest.
        """
        rows = (pl.col(ANNOTATOR) == annotator) & (pl.col(MEASURE) == measure)
        if "query_scores" in self.frames:
            return self.frames["query_scores"].filter(rows).select(RUN, QUERY_ID, VALUE)
        path = self.whole("query_scores")
        try:
            scores = pl.scan_parquet(path).filter(rows).select(RUN, QUERY_ID, VALUE).collect()
        except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError) as error:
            problem = f"cannot be read ({str(error).splitlines()[0]})"
            raise InputError(problem, _AGAIN, "results.unreadable", path=path) from None
        return _finite(scores, path)

    @cached_property
    def downstream(self) -> pl.DataFrame:
        scores = self.table("downstream")
        return scores if self.frames else _finite(scores, self.folder / "downstream.parquet")

    @cached_property
    def traces(self) -> pl.DataFrame:
        return self.table("traces")

    @cached_property
    def complete_traces(self) -> pl.DataFrame:
        """``traces`` of annotators that labelled all passages: labels of some passages would be a biased sample."""
        return self.traces.filter(~pl.col(ANNOTATOR).is_in(list(self.partly_labelled)))

    @cached_property
    def partly_labelled(self) -> frozenset[str]:
        """Annotators that labelled only the passages that measures need."""
        noted = self.summary["notes"].get(UNREAD, ())
        return frozenset(name for note in noted for name in note["about"])

    @property
    def metric(self) -> str:
        """The downstream metric."""
        return str(self.configuration["metric"])

    @property
    def confidence(self) -> float:
        return float(self.configuration["confidence"])

    @property
    def bootstrap(self) -> Bootstrap:
        names = "resamples", "confidence", "seed", "until"  # the last is not in earlier versions
        settings: dict[str, Any] = {name: self.configuration.get(name) for name in names}
        return Bootstrap(**settings)

    @property
    def queries(self) -> int:
        return int(self.summary["counts"]["queries"])

    @property
    def notes(self) -> list[str]:
        return texts_of(self.summary["notes"])

    @property
    def is_read_whole(self) -> bool:
        return bool(self.configuration["end_to_end"])

    @cached_property
    def means(self) -> dict[tuple[str, str, str], dict[str, Any]]:
        """The rows of the means, by run, annotator and measure."""
        return {(row[RUN], row[ANNOTATOR], row[MEASURE]): row for row in self.summary["means"]}

    @cached_property
    def wholes(self) -> dict[str, dict[str, Any]]:
        """The rows of the mean end-to-end scores, by run."""
        return {row[RUN]: row for row in self.summary["end_to_end"]}

    @cached_property
    def numbers(self) -> dict[str, int]:
        """Number of queries of every run with the score that decides: the end-to-end score, if there is one."""
        numbers: dict[str, int] = {}
        for row in self.summary["end_to_end"] or self.summary["means"]:
            numbers[row[RUN]] = max(row[N], numbers.get(row[RUN], 0))
        return numbers

    @cached_property
    def leads(self) -> dict[str, dict[str, Any]]:
        """Leads of the best run over others, by their names; NaN if unknown."""
        return {
            lead["over"]: {key: math.nan if value is None else value for key, value in lead.items()}
            for lead in self.verdict.get("leads", ())
        }

    @property
    def verdict(self) -> Mapping[str, Any]:
        """The verdict in the summary; empty in results of earlier versions, for a single run."""
        return self.summary["verdict"] or {}

    @cached_property
    def roles(self) -> dict[Role, ReadingCosts]:
        """Costs of reads by role, for each role in the summary, the reader's first."""
        known = {named.role.key: named.role for named in ANNOTATORS.values() if named.role}
        roles = {READER: costs_of(self.summary["reading"])}
        for key, value in self.summary.items():
            if isinstance(value, dict) and {"fingerprint", "reading"} <= value.keys():
                name = key.replace("_", " ")  # of a user's annotator's role, only the key is stored
                roles[known.get(key, Role(name, name, key))] = costs_of(value["reading"])
        return roles

    @cached_property
    def annotators(self) -> list[str]:
        """The annotators in the order of the request; annotators without a mean come last."""
        names = [*self.configuration["annotators"], *self.configuration["own_annotators"]]
        order = list(dict.fromkeys(row[ANNOTATOR] for row in self.summary["means"]))
        return sorted(names, key=[*order, *names].index)

    @cached_property
    def runs(self) -> list[str]:
        """The runs: from the best one down if they can be ranked; else by name."""
        names = sorted({row[RUN] for row in (*self.summary["means"], *self.summary["end_to_end"])})
        judged, best = self.verdict.get("means", {}), self.verdict.get("best")
        means = {run: row[VALUE] for run, row in self.wholes.items()} | judged
        known = {run: mean for run, mean in means.items() if mean is not None}
        if self.verdict and self.configuration.get("until"):  # means may be of other queries each
            known = {run: -place for place, run in enumerate(judged)}
        return sorted(names, key=lambda name: (-known.get(name, -math.inf), name != best))

    @property
    def best_run(self) -> str | None:
        """The run to choose, else the first one; None without runs. The page shows the agreement on this run."""
        return self.verdict.get("best") or next(iter(self.runs), None)

    @cached_property
    def primary_measures(self) -> dict[str, str]:
        """The primary measure per annotator, for comparisons (``table.primary_measures``)."""
        # Taken from the means: summaries of earlier versions name no primary measures.
        primary = primary_measures((row[ANNOTATOR], row[MEASURE]) for row in self.summary["means"])
        return {name: primary[name] for name in self.annotators if name in primary}

    @property
    def first_measure(self) -> tuple[str, str]:
        """The first annotator that has a primary measure, and this measure; empty texts without one."""
        return next(iter(self.primary_measures.items()), ("", ""))

    def end_to_end(self, run: str) -> Interval | None:
        """The mean end-to-end score of a run; None without end-to-end reads."""
        row = self.wholes.get(run, {})
        if low_of(VALUE) in row:  # of sampled lists
            ends = (row[low_of(VALUE)], row[high_of(VALUE)])
            low, high = (math.nan if end is None else end for end in ends)
            return Interval(row[VALUE], low, high, row[N])
        return self.interval(self.downstream.filter(pl.col(RUN) == run))

    def mean(self, run: str, annotator: str, measure: str) -> Interval | None:
        """The mean of a measure on the labels of an annotator; None if undefined."""
        return self.interval(self.scores(annotator, measure).filter(pl.col(RUN) == run))

    def interval(self, scores: pl.DataFrame | None) -> Interval | None:
        """The mean of ``value`` over queries (``query_id``), by clusters if requested; None without queries."""
        if scores is None or scores.is_empty():
            return None
        until = self.bootstrap.until
        clusters = clusters_of(self.clusters, self.configuration.get("cluster") or until)
        if until:
            return mean_until(scores, self.bootstrap, clusters)
        return mean_interval(scores[VALUE], self.confidence, numbered(scores[QUERY_ID], clusters))

    @cached_property
    def clusters(self) -> pl.DataFrame:
        return self.table("clusters")

    @cached_property
    def primary_cells(self) -> dict[str, dict[str, Any]]:
        """By annotator, the row of ``correlations`` of its primary measure on the best run."""
        best = self.correlations.filter(pl.col(RUN).eq_missing(self.best_run), pl.col(N) > 0)
        primary = self.primary_measures.items()
        rows = best.iter_rows(named=True)
        return {row[ANNOTATOR]: row for row in rows if (row[ANNOTATOR], row[MEASURE]) in primary}

    def agreement(self, annotator: str) -> dict[str, Any] | None:
        """The row of an annotator in ``primary_cells``; None without a tau."""
        cell = self.primary_cells.get(annotator)
        return None if cell is None or math.isnan(cell[tables.TAU]) else cell


def texts_of(notes: Mapping[str, Any]) -> list[str]:
    """Texts of notes, which ``summary.json`` groups by code."""
    return [note["text"] for alike in notes.values() for note in alike]


def _filled(kind: type[Costs], values: Mapping[str, Any]) -> Costs:
    """Costs from a summary; summaries of earlier versions lack some fields."""
    names = [each.name for each in fields(kind) if values.get(each.name) is not None]
    return kind(**{name: values[name] for name in names})


def costs_of(values: Mapping[str, Any]) -> ReadingCosts:
    """Costs of reads, from ``summary.json``."""
    kinds = (values.get("kinds") or {}).items()
    filled = {name: _filled(KindCosts, costs) for name, costs in kinds}
    return _filled(ReadingCosts, {**values, "kinds": filled})


def costs_together(several: Iterable[ReadingCosts]) -> ReadingCosts:
    """Sum the costs of reads of several roles or conditions, in the figures that ``calls_line`` shows."""
    each = list(several)
    counts = ("wanted", "reused", "done", "failed", "retried_requests")
    peaks = [peak for costs in each for peak in costs.workers.values()]
    return ReadingCosts(
        **{name: sum(getattr(costs, name) for costs in each) for name in counts},
        seconds=sum(costs.seconds for costs in each if costs.done),
        workers={"": max(peaks)} if peaks else {},
        kinds=merge_kinds(costs.kinds for costs in each),
    )


def _read_table(path: Path, schema: tables.Schema) -> pl.DataFrame:
    frame = tables.with_added(read_parquet(path), schema)
    if missing := [column for column in schema if column not in frame.columns]:
        problem = f"lacks {', '.join(missing)}: an earlier version wrote it"
        raise InputError(problem, _AGAIN, "results.version", path=path)
    return frame.select(list(schema))


def _finite(scores: pl.DataFrame, path: Path) -> pl.DataFrame:
    if others := scores.height - int(scores[VALUE].is_finite().sum()):
        problem = counted(others, "[score is|scores are] not finite, or null")
        raise InputError(problem, _AGAIN, "results.infinite", path=path)
    return scores


def read_summary(folder: Location) -> dict[str, Any]:
    """The content of the ``summary.json`` of a folder, or at an address.

    Raises:
        InputError: no summary can be read.
    """
    path = inside_of(folder, SUMMARY)
    try:
        with open_binary(path) as file:
            summary = json.load(file)
    except OSError as error:
        problem = f"cannot be read ({error.strerror or error})"
        raise InputError(problem, _REMEDY, "results.unreadable", path=path) from None
    except ValueError as error:
        raise InputError(f"is not JSON ({error})", _REMEDY, "results.json", path=path) from None
    if not isinstance(summary, dict):
        raise InputError("is not an evaluation's summary", _REMEDY, "results.summary", path=path)
    digests = digests_of(summary)
    if (own := digests.pop(SUMMARY, None)) not in (None, json_digest(summary)):
        problem = "is not what was written: it was changed, or the disk damaged it"
        raise InputError(problem, _AS_WRITTEN, "results.changed", path=path)
    digests |= {SUMMARY: own} if own else {}
    return summary


def read_findings(folder: Path, sources: EvaluationInputs | None) -> Findings:
    """The evaluation in a folder; a study includes its conditions if the folder has all of its conditions.

    Raises:
        InputError: the folder holds none, or an earlier version's that the page cannot show.
    """
    main = _read_alone(folder, sources)
    places = [folder / condition["directory"] for condition in conditions_of(main.summary)]
    if not all((place / SUMMARY).is_file() for place in places):
        return main
    conditions = [main if place == folder else _read_alone(place, None) for place in places]
    return replace(main, conditions=conditions)


def _read_alone(folder: Path, sources: EvaluationInputs | None) -> Findings:
    summary = read_summary(folder)
    needed = {"configuration", "means", "end_to_end", "verdict", "reading", "notes", "counts"}
    if not needed <= summary.keys():
        problem = "is not an evaluation's summary"
        raise InputError(problem, _REMEDY, "results.summary", path=folder / SUMMARY)
    return Findings(summary, folder, sources)
