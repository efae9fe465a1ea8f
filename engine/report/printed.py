"""The summary of an evaluation as people read it: tables for a terminal, and the lines around them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import polars as pl
from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from engine import tables
from engine.evaluation import Evaluation, means
from engine.settings import Settings
from engine.tables import ANNOTATOR, ANNOTATOR_B, MEASURE, RUN, RUN_B, VALUE

_MIB = 2**20


def shown_tables(evaluation: Evaluation, settings: Settings) -> list[Table]:
    """The means and correlations, and where there is something to compare, the comparisons.

    Comparisons are shown with the first annotator and the first run; the files hold all of them.
    """
    found = evaluation.statistics
    shown = [_means_and_correlations(evaluation, settings)]
    first = settings.annotators[0]
    annotators = found.comparisons.filter(
        (pl.col(RUN) == pl.col(RUN_B)) & (pl.col(ANNOTATOR) == first)
    )
    runs = found.comparisons.filter(pl.col(ANNOTATOR) == pl.col(ANNOTATOR_B))
    tests = found.comparisons.filter(pl.col("tau_p").is_not_nan()).height
    if annotators["tau_difference"].is_not_nan().any():
        shown.append(
            _differences(annotators, [RUN, MEASURE], (ANNOTATOR, ANNOTATOR_B), settings, tests)
        )
    if runs["tau_difference"].is_not_nan().any():
        of_first = runs.filter(pl.col(RUN) == runs[RUN][0])
        shown.append(_differences(of_first, [ANNOTATOR, MEASURE], (RUN, RUN_B), settings, tests))
    if not found.systems.is_empty():
        shown.append(_systems(found.systems, found.run_pairs, settings))
    return shown


def _table(title: str, names: Sequence[str], values: Sequence[str]) -> Table:
    result = Table(box=SIMPLE_HEAD, header_style="bold", pad_edge=False, title_justify="left")
    result.title = Text(title, style="table.title")  # names of runs are no markup
    for header in names:
        result.add_column(Text(header), no_wrap=True)
    for header in values:
        result.add_column(Text(header), justify="right", no_wrap=True)
    return result


def _add_rows(result: Table, rows: Sequence[tuple[Sequence[str], Sequence[str]]]) -> None:
    """Add (names, values). Names are shown where they change: repeated words hide the numbers."""
    before: Sequence[str] = ()
    for names, values in rows:
        if before and names[:-1] != before[:-1]:
            result.add_section()
        changed = [not before or names[: i + 1] != before[: i + 1] for i in range(len(names))]
        shown = [name if new else "" for name, new in zip(names, changed, strict=True)]
        before = names
        result.add_row(*map(Text, [*shown, *values]))


def _means_and_correlations(evaluation: Evaluation, settings: Settings) -> Table:
    scores, _ = means(evaluation)
    several = scores[RUN].n_unique() > 1
    # Means over other than all queries say over how many.
    counted = not (scores[tables.N] == evaluation.counts.queries).all()
    level = f"{settings.confidence * 100:g}%"
    title = "Means of ranking measures over queries"
    if settings.end_to_end:
        title = "Agreement of ranking measures with the end-to-end score, over queries"
    result = _table(
        title,
        (["run"] if several else []) + ["annotator", "measure"],
        ["mean", *(["queries"] if counted else [])]
        + (
            [f"Kendall's tau [{level}]", f"Spearman's rho [{level}]"] if settings.end_to_end else []
        ),
    )
    cells = {
        (row[RUN], row[ANNOTATOR], row[MEASURE]): row
        for row in evaluation.statistics.correlations.iter_rows(named=True)
    }
    rows = []
    for row in scores.sort(RUN, maintain_order=True).iter_rows(named=True):
        key = (row[RUN], row[ANNOTATOR], row[MEASURE])
        values = [f"{row[VALUE]:.3f}"] + ([str(row[tables.N])] if counted else [])
        if settings.end_to_end:
            values += [_interval(cells.get(key), name) for name in ("tau", "rho")]
        rows.append((key[0 if several else 1 :], values))
    _add_rows(result, rows)
    return result


def _interval(cell: dict[str, Any] | None, name: str) -> str:
    if cell is None or math.isnan(cell[name]):
        return "undefined"
    value, low, high = cell[name], cell[f"{name}_low"], cell[f"{name}_high"]
    return f"{value:.2f}" if math.isnan(low) else f"{value:.2f} [{low:.2f}, {high:.2f}]"


def _differences(
    comparisons: pl.DataFrame,
    keys: list[str],
    compared: tuple[str, str],
    settings: Settings,
    tests: int,
) -> Table:
    """Differences of tau, a column for each second of the two compared."""
    name, other = compared
    first = str(comparisons[name][0])
    seconds = comparisons[other].unique(maintain_order=True).to_list()
    if comparisons[keys[0]].n_unique() == 1:
        keys = keys[1:]
    level = f"{settings.confidence * 100:g}%"
    corrected = f", p after Holm over {tests} comparisons" if settings.resamples else ""
    result = _table(f"Kendall's tau of {first} less that of … [{level}]{corrected}", keys, seconds)
    rows = []
    for key, group in comparisons.group_by(keys, maintain_order=True):
        cells = {row[other]: row for row in group.iter_rows(named=True)}
        rows.append(([str(part) for part in key], [_difference(cells.get(s)) for s in seconds]))
    _add_rows(result, rows)
    return result


def _difference(cell: dict[str, Any] | None) -> str:
    if cell is None or math.isnan(cell["tau_difference"]):
        return "undefined"
    value, low, high, p = (cell[f"tau_{x}"] for x in ("difference", "low", "high", "p_holm"))
    bounds = "" if math.isnan(low) else f" [{low:+.2f}, {high:+.2f}]"
    return f"{value:+.2f}{bounds}" + ("" if math.isnan(p) else f" p {p:.3f}")


def _systems(systems: pl.DataFrame, run_pairs: pl.DataFrame, settings: Settings) -> Table:
    level = f"{settings.confidence * 100:g}%"
    result = _table(
        f"Order of the {systems['runs'][0]} runs, by measure and by end-to-end score",
        ["annotator", "measure"],
        [f"tau over runs [{level}]", "pairs with one winner", "the same, resampled"],
    )
    rows = []
    for row in systems.iter_rows(named=True):
        pairs = run_pairs.filter(
            (pl.col(ANNOTATOR) == row[ANNOTATOR]) & (pl.col(MEASURE) == row[MEASURE])
        )
        agreed = (pairs["difference"].sign() == pairs["end_to_end_difference"].sign()).sum()
        share = float(pairs["agreement"].to_numpy().mean())
        resampled = f"{share:.0%}" if not math.isnan(share) else ""
        rows.append(
            (
                (row[ANNOTATOR], row[MEASURE]),
                [_interval(row, "tau"), f"{agreed} of {pairs.height}", resampled],
            )
        )
    _add_rows(result, rows)
    return result


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
        (
            costs.failed,
            "reads failed and their queries are left out"
            if settings.failed_reads == "skip"
            else "reads failed and count as 0",
        ),
        (counts.queries_without_judgments, "queries have no judgments in the qrels")
        if "qrels" in settings.annotators
        else (0, ""),
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
            (
                amount,
                f"queries have no results in {run} and "
                + (
                    "are left out of it"
                    if settings.missing == "skip"
                    else "score 0 on every measure"
                ),
            )
            for run, amount in counts.queries_without_results.items()
        ),
    ):
        if amount:
            shown.append(f"note: {amount} {what}")
    shown += _correlation_notes(evaluation.statistics.correlations)
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
