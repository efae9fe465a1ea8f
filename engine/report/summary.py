"""The summary of an evaluation: as JSON for programs, as a table for people."""

from __future__ import annotations

import importlib.metadata
import math
import platform
from dataclasses import asdict
from typing import Any

import polars as pl
from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from engine import __version__, tables
from engine.evaluation import Evaluation, Settings, means
from engine.tables import ANNOTATOR, MEASURE, RUN, VALUE

_PACKAGES = ("torch", "transformers", "ray", "polars", "scipy", "numpy", "pyserini", "rouge-score")
_MIB = 2**20


def summarize(evaluation: Evaluation, settings: Settings, files: dict[str, Any]) -> dict[str, Any]:
    """Everything a reader of the figures needs, as JSON-ready values (NaN becomes null).

    Args:
        files: what was evaluated: paths of queries, corpus and runs.
    """
    scores, end_to_end = means(evaluation)
    spec = evaluation.spec
    return _jsonable(
        {
            "configuration": {
                **files,
                **asdict(settings),
                "measures": [str(measure) for measure in settings.parsed_measures()],
                "relevant": evaluation.relevant,
                "end_to_end_k": settings.end_to_end_k or settings.k,
            },
            "reader": None
            if spec is None
            else {
                "name": spec.name,
                "weights_sha256": spec.weights,
                "architecture": spec.architecture,
                "dtype": spec.dtype,
                "max_new_tokens": spec.max_new_tokens,
                "max_input_tokens": spec.max_input_tokens,
                "fingerprint": spec.fingerprint,
            },
            "counts": asdict(evaluation.counts),
            "reading": asdict(evaluation.costs),
            "seconds": evaluation.seconds,
            "means": scores.to_dicts(),
            "end_to_end": end_to_end.to_dicts(),
            "correlations": evaluation.correlations.to_dicts(),
            "versions": {
                "erag-engine": __version__,
                "python": platform.python_version(),
                **{name: _version(name) for name in _PACKAGES},
            },
        }
    )


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _jsonable(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _jsonable(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_jsonable(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def table(evaluation: Evaluation, settings: Settings) -> Table:
    """One row per run, annotator and measure: mean, and tau and rho with their intervals."""
    scores, _ = means(evaluation)
    several = scores[RUN].n_unique() > 1
    level = f"{settings.confidence * 100:g}%"
    result = Table(box=SIMPLE_HEAD, header_style="bold", pad_edge=False, title_justify="left")
    if settings.end_to_end:
        result.title = "Agreement of ranking measures with the end-to-end score, over queries"
    for header in (["run"] if several else []) + ["annotator", "measure"]:
        result.add_column(header, no_wrap=True)
    result.add_column("mean", justify="right")
    if settings.end_to_end:
        result.add_column(f"Kendall's tau [{level}]", justify="right", no_wrap=True)
        result.add_column(f"Spearman's rho [{level}]", justify="right", no_wrap=True)
    cells = {
        (row[RUN], row[ANNOTATOR], row[MEASURE]): row
        for row in evaluation.correlations.iter_rows(named=True)
    }
    before: tuple[str, str] | None = None
    for row in scores.sort(RUN, maintain_order=True).iter_rows(named=True):
        group = (row[RUN], row[ANNOTATOR])
        if before not in (None, group):
            result.add_section()
        # Names are shown where they change: a table full of repeated words hides its numbers.
        run = row[RUN] if before is None or before[0] != row[RUN] else ""
        annotator = row[ANNOTATOR] if before != group else ""
        before = group
        values = [run] if several else []
        values += [annotator, row[MEASURE], f"{row[VALUE]:.3f}"]
        if settings.end_to_end:
            cell = cells[row[RUN], row[ANNOTATOR], row[MEASURE]]
            values += [_interval(cell, "tau"), _interval(cell, "rho")]
        result.add_row(*map(Text, values))  # names of runs are no markup
    return result


def _interval(cell: dict[str, Any], name: str) -> str:
    value, low, high = cell[name], cell[f"{name}_low"], cell[f"{name}_high"]
    if math.isnan(value):
        return "undefined"
    return f"{value:.2f}" if math.isnan(low) else f"{value:.2f} [{low:.2f}, {high:.2f}]"


def lines(evaluation: Evaluation, settings: Settings) -> list[str]:
    """What stands around the table: end-to-end scores, reads, and everything that deserves a warning."""
    counts, costs = evaluation.counts, evaluation.costs
    _, end_to_end = means(evaluation)
    shown = [f"{counts.queries} queries, {counts.passages} passages; judged: {evaluation.relevant}"]
    for row in end_to_end.iter_rows(named=True):
        shown.append(
            f"end-to-end score of {row[RUN]} ({settings.metric}, {row[tables.K]} passages): "
            f"{row[VALUE]:.3f}"
        )
    if costs.wanted:
        rate = f" at {costs.done / costs.seconds:.1f} reads/s" if costs.done else ""
        peak = (
            f", peak {max(costs.workers.values()) / _MIB:.0f} MiB an actor" if costs.workers else ""
        )
        shown.append(
            f"reads: {costs.wanted} wanted, {costs.reused} from the store, {costs.done} done{rate}{peak}"
        )
    for amount, what in (
        (costs.failed, "reads failed and count as 0"),
        (counts.truncated_reads, "reads were cut to the reader's longest input"),
        (costs.memory_halvings, "batches were halved because memory ran out"),
        (counts.empty_passages, "listed passages have no text"),
        (
            counts.ignored_queries,
            "queries of the runs are not in the queries file and were left out",
        ),
        (counts.queries_without_provenance, "queries have no provenance")
        if "provenance" in settings.annotators
        else (0, ""),
        (
            int(counts.no_gold_article_listed) * counts.passages,
            "listed passages, and none from a gold article: do queries and corpus name articles alike?",
        ),
        *(
            (amount, f"queries have no results in {run} and score 0 on every measure")
            for run, amount in counts.queries_without_results.items()
        ),
    ):
        if amount:
            shown.append(f"note: {amount} {what}")
    shown += _correlation_notes(evaluation.correlations)
    return shown


def _correlation_notes(correlations: pl.DataFrame) -> list[str]:
    """Each distinct note once, with the cells that it stands for."""
    noted = correlations.filter(pl.col("note") != "")
    cells = noted.group_by("note", maintain_order=True).agg(
        pl.format("{} {}", ANNOTATOR, MEASURE).alias("cells"), pl.len()
    )
    return [
        f"note: {', '.join(names[:3])}{f' and {size - 3} more' if size > 3 else ''}: {note}"
        for note, names, size in cells.iter_rows()
    ]
