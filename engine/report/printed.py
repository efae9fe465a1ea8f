"""The summary of an evaluation as people read it: tables for a terminal, and the lines around them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import product
from typing import Any

import polars as pl
from rich.table import Table
from rich.text import Text

from engine import tables
from engine.evaluation.assess import Evaluation
from engine.evaluation.edited import EditedReads
from engine.labels.annotator import Annotator, Display, Role
from engine.reading.certify import Certificate
from engine.report import layout, margins, runs, verdict
from engine.report.costs import labelling
from engine.report.costs import table as costs_table
from engine.tables import ANNOTATOR, ANNOTATOR_B, BEST, MEASURE, MEASURE_B, RUN, RUN_B, VALUE
from engine.wording import counted, with_interval

# The line's end sets it apart from what is printed next.
_BEST = (
    "* the annotator's highest tau, chosen after the fact, with these data: it is optimistic;\n"
    "answer, page and verdict take the first measure of each annotator, which was chosen before\n"
)
# What the columns about the order of runs hold.
_SOFT = "SPA: soft pairwise accuracy, agreement on how certain each difference is. "
_WINNERS = "One winner: the pairs of runs of which both name the same"


def shown_tables(evaluation: Evaluation) -> list[Table]:
    """The means and correlations, and where there is something to compare, the comparisons.

    Comparisons are shown with the first annotator and the first run; the files hold all of them.
    """
    statistics, settings = evaluation.statistics, evaluation.settings
    result = [_means_and_correlations(evaluation)]
    if (reached := margins.shown(evaluation)) is not None:
        result.append(reached)
    first = settings.labels.names()[0]
    annotators = statistics.comparisons.filter(
        (pl.col(RUN) == pl.col(RUN_B)) & (pl.col(ANNOTATOR) == first)
    )
    systems = statistics.comparisons.filter(pl.col(ANNOTATOR) == pl.col(ANNOTATOR_B))
    for rows, compared, other in (
        (annotators, (ANNOTATOR, ANNOTATOR_B), RUN),
        (systems.filter(pl.col(RUN) == pl.col(RUN).first()), (RUN, RUN_B), ANNOTATOR),
    ):
        if rows["tau_difference"].is_not_nan().any():
            result.append(_differences(rows, compared, other, evaluation))
    if not statistics.run_pairs.is_empty():
        result.append(runs.shown(evaluation))
    if not statistics.systems.is_empty():
        result.append(_systems(evaluation))
    level = layout.level(settings.bootstrap)
    for annotator in settings.labels.listed():
        result += [_rendered(display) for display in _displays(annotator, evaluation, level)]
    roles = {name: reading.costs for name, reading in evaluation.readings.items()}
    if (costs := costs_table(roles, labelling(settings))) is not None:
        costs.add_row()  # sets it apart from the lines below
        result.append(costs)
    return result


def _displays(annotator: Annotator, evaluation: Evaluation, level: str) -> Iterator[Display]:
    """The further tables of an annotator that are printed."""
    for table in annotator.further_tables:
        frame = evaluation.further_table(table.name)
        if table.display is not None and not frame.is_empty():
            yield table.display(frame, level)


def _rendered(display: Display) -> Table:
    result = layout.table(display.title, display.names, display.values)
    layout.add_rows(result, display.rows)
    return result


def _means_and_correlations(evaluation: Evaluation) -> Table:
    scores, settings = evaluation.means, evaluation.settings
    several = scores[RUN].n_unique() > 1
    cells = {
        (row[RUN], row[ANNOTATOR], row[MEASURE]): row
        for row in evaluation.statistics.correlations.iter_rows(named=True)
    }
    # Where not every figure is over all queries, each says over how many.
    counts = [*scores[tables.N], *(cell[tables.N] for cell in cells.values() if cell[tables.N])]
    partial = any(n != evaluation.queries for n in counts)
    level = layout.level(settings.bootstrap)
    title = "Means of ranking measures over queries"
    if settings.reader.end_to_end:
        title = "Agreement of ranking measures with the end-to-end score, over queries"
    columns = ["mean", *(["n"] if partial else [])]
    if settings.reader.end_to_end:
        columns += [f"Kendall's tau{level}", f"Spearman's rho{level}", *(["n"] if partial else [])]
    result = layout.table(title, (["run"] if several else []) + ["annotator", "measure"], columns)
    means = {(row[RUN], row[ANNOTATOR], row[MEASURE]): row for row in scores.to_dicts()}
    annotators = evaluation.settings.labels.names()
    named = [str(measure) for measure in settings.measures()]
    rows = []
    starred = False
    empty = set(evaluation.undefined.select(ANNOTATOR, MEASURE).iter_rows())
    for key in product(scores[RUN].unique().sort(), annotators, named):
        row, cell = means.get(key), cells.get(key)
        if row is None and key[1:] not in empty:
            continue
        values = [""] * len(columns)  # of cells that have no meaning; the notes say why
        if row is not None:
            values = [f"{row[VALUE]:.3f}"] + ([str(row[tables.N])] if partial else [])
            if settings.reader.end_to_end:
                values += [layout.interval(cell, name) for name in ("tau", "rho")]
                values += [str(cell[tables.N] if cell else 0)] if partial else []
        # One measure alone is not the best of anything.
        rivals = sum(key[:2] == other[:2] for other in means)
        best = " *" if rivals > 1 and cell and cell[BEST] else ""
        rows.append(((*key[0 if several else 1 : 2], key[2] + best), values))
        starred = starred or bool(best)
    methods = [cell[tables.METHOD] for cell in cells.values()]
    layout.add_methods(result, methods, more=_BEST if starred else "")
    layout.add_rows(result, rows)
    return result


def _differences(
    comparisons: pl.DataFrame,
    compared: tuple[str, str],
    other: str,
    evaluation: Evaluation,
) -> Table:
    """Differences of tau to the first of what is compared, a row each; p where there are intervals.

    Args:
        compared: the columns that hold the two compared.
        other: the column of what they share.
    """
    first, second = compared
    settings = evaluation.settings
    # Rows of the first run stand for those of all: corrected together, as the rivals of the first are.
    family = evaluation.statistics.comparisons.filter(pl.col(RUN) != pl.col(RUN_B))
    tests = _tests(family if first == RUN else comparisons)
    keys = [second, other, MEASURE]
    if comparisons[other].n_unique() == 1:
        keys.remove(other)
    partial = (comparisons[tables.N] != evaluation.queries).any()
    result = layout.table(
        f"Kendall's tau of {comparisons[first][0]}, less that of:",
        [{RUN_B: "run", ANNOTATOR_B: "annotator"}.get(key, key) for key in keys],
        [f"difference{layout.level(settings.bootstrap)}"]
        + ([f"p (Holm, {counted(tests, 'test[|s]')})"] if tests else [])
        + (["n"] if partial else []),
    )
    rows = []
    annotators = evaluation.settings.labels.names()
    order = {name: place for place, name in enumerate(annotators)}
    by = [
        pl.col(key).replace_strict(order, return_dtype=pl.Int64)
        if key in (ANNOTATOR, ANNOTATOR_B)
        else pl.col(key)
        for key in keys[:-1]
    ]
    for row in comparisons.sort(by, maintain_order=True).iter_rows(named=True):
        if row[MEASURE_B] != row[MEASURE]:
            row[MEASURE] += f" ({row[MEASURE_B]})"
        values = [_difference(row)]
        values += [layout.p_value(row["tau_p_holm"])] if tests else []
        values += [str(row[tables.N])] if partial else []
        rows.append(([row[key] for key in keys], values))
    layout.add_methods(result, comparisons[tables.METHOD])
    layout.add_rows(result, rows)
    return result


def _difference(row: dict[str, Any]) -> str:
    value, low, high = (row[f"tau_{x}"] for x in ("difference", "low", "high"))
    if math.isnan(value):
        return "undefined"
    text = with_interval(value, low, high, 2, plus="+")
    return text if math.isnan(low) else text + layout.letter(row[tables.METHOD])


def _systems(evaluation: Evaluation) -> Table:
    settings = evaluation.settings
    systems, run_pairs = evaluation.statistics.systems, evaluation.statistics.run_pairs
    partial = (systems[tables.N] != evaluation.queries).any()
    resampled = settings.bootstrap.resamples > 0
    result = layout.table(
        f"Order of the {systems['runs'][0]} runs, by measure and by end-to-end score",
        ["annotator", "measure"],
        [f"tau over runs{layout.level(settings.bootstrap)}"]
        + (["SPA", "one winner", "resampled"] if resampled else ["one winner"])
        + (["n"] if partial else []),
    )
    caption = f"{_WINNERS}\n"
    if resampled:
        caption = f"{_SOFT}{_WINNERS}, here and in resamples\nintervals: percentile of resamples\n"
    result.caption = Text(caption, style="table.caption")
    rows = []
    for row in systems.iter_rows(named=True):
        pairs = run_pairs.filter(
            (pl.col(ANNOTATOR) == row[ANNOTATOR]) & (pl.col(MEASURE) == row[MEASURE])
        )
        winners = pairs["difference"].sign() * pairs["end_to_end_difference"].sign()
        tied = (winners == 0).sum()
        agreed = f"{(winners > 0).sum()} of {pairs.height}" + (f" ({tied} tied)" if tied else "")
        values = [layout.interval(row, "tau"), agreed]
        if resampled:
            soft, agreement = row[tables.SOFT_ACCURACY], pairs["agreement"].to_numpy().mean()
            values.insert(1, "" if math.isnan(soft) else f"{soft:.2f}")
            values.append("" if math.isnan(agreement) else f"{agreement:.0%}")
        values += [str(row[tables.N])] if partial else []
        rows.append(((row[ANNOTATOR], row[MEASURE]), values))
    layout.add_rows(result, rows)
    return result


def lines(evaluation: Evaluation) -> list[str]:
    """The lines below the tables: scores, reads, everything that deserves a warning, the verdict."""
    return [
        *end_to_end(evaluation),
        *_readers(evaluation),
        *asked_for(evaluation),
        *(f"note: {note.text}" for note in evaluation.notes if note.is_shown),
        *(f"note: {remark}" for remark in remarks(evaluation)),
        *(f"verdict: {sentence}" for sentence in verdict.sentences(evaluation)),
    ]


def remarks(evaluation: Evaluation) -> list[str]:
    """Why cells are empty, undefined, or without an interval or a p-value; each reason once."""
    statistics = evaluation.statistics
    return [
        *_empty_cells(evaluation.undefined),
        *_cell_notes(
            statistics.correlations.filter(pl.col(tables.N) > 0), "{of_run}{annotator} {measure}"
        ),
        *_cell_notes(statistics.systems, "order of runs by {annotator} {measure}"),
        *_untested(statistics.comparisons),
    ]


def asked_for(evaluation: Evaluation) -> Iterator[str]:
    """What was asked for beside the figures: the reads of edited runs, prices, certificates."""
    yield from (edits_line(reads) for reads in evaluation.edited)
    yield from _prices(evaluation)
    for role, repeated in evaluation.certificates.items():
        yield certificate_line(repeated, evaluation.readings[role].ask.role)


def end_to_end(evaluation: Evaluation) -> Iterator[str]:
    """The end-to-end score of every run."""
    for row in evaluation.end_to_end.iter_rows(named=True):
        partial = row[tables.N] != evaluation.queries
        over = f" over {counted(row[tables.N], '[query|queries]')}" if partial else ""
        yield (
            f"end-to-end score of {row[RUN]} ({evaluation.settings.reader.metric_name}, "
            f"{counted(row[tables.K], 'passage[|s]')}): {row[VALUE]:.3f}{over}"
        )


def _readers(evaluation: Evaluation) -> Iterator[str]:
    """Who read, where it is not one reader alone, and what the reads of each role cost."""
    reader = evaluation.settings.reader
    asks = evaluation.settings.asks().values()
    for other in dict.fromkeys(ask.model for ask in asks if ask.instead_of_reader):
        whole = f", whole lists by {reader.reader}" if reader.end_to_end else ""
        yield f"single passages are read by {other}{whole}"
    for reading in evaluation.readings.values():
        title = reading.ask.role.title
        if reading.costs.wanted:
            yield layout.reads_line(f"reads of {title}" if title else "reads", reading.costs)


def _tests(comparisons: pl.DataFrame) -> int:
    return comparisons.filter(pl.col("tau_p").is_not_nan()).height


def _empty_cells(undefined: pl.DataFrame) -> Iterator[str]:
    """Why cells are empty, a line for each reason."""
    for (annotator, _), cells in undefined.group_by(
        [ANNOTATOR, pl.col(tables.NOTE).str.split(",").list.first()], maintain_order=True
    ):
        yield f"{', '.join(cells[MEASURE])} of {annotator}: {cells[tables.NOTE][0]}"


def _untested(comparisons: pl.DataFrame) -> list[str]:
    """Why differences have no p-value, or no interval."""
    untested = comparisons.filter(
        pl.col("tau_difference").is_not_nan(), pl.col("tau_low").is_nan(), pl.col("note") != ""
    )
    of_runs = pl.col(RUN) != pl.col(RUN_B)
    return [
        *_cell_notes(untested.filter(~of_runs), "{of_run}{annotator} less {annotator_b} {measure}"),
        *_cell_notes(
            untested.filter(of_runs), "{annotator} {measure} of {run} less that of {run_b}"
        ),
    ]


def _cell_notes(statistics: pl.DataFrame, names: str) -> list[str]:
    """Each distinct note once, with the cells that it stands for; with their runs where there are several."""
    several = RUN in statistics.columns and statistics[RUN].n_unique() > 1
    cells: dict[str, list[str]] = {}
    for row in statistics.filter(pl.col("note") != "").iter_rows(named=True):
        name = names.format_map(row | {"of_run": f"{row[RUN]} " if several else ""})
        cells.setdefault(row["note"], []).append(name)
    return [
        f"{', '.join(named[:3])}{f' and {len(named) - 3} more' if len(named) > 3 else ''}: {note}"
        for note, named in cells.items()
    ]


def edits_line(reads: EditedReads) -> str:
    """What edits of a run cost: how many there were, and how many of the edited run's reads its original does not have."""
    edits = f"{counted(reads.edits, 'edit[|s]')} in {counted(reads.queries, '[query|queries]')}"
    new = [
        f"{fresh} of {counted(total, what)}"
        for fresh, total, what in (
            (reads.new_passages, reads.passages, "single-passage read[|s]"),
            (reads.new_lists, reads.lists, "whole-list read[|s]"),
        )
        if fresh is not None and total is not None
    ]
    if not new:
        return f"{reads.run}: {edits}"
    return f"{reads.run}: {edits}; {' and '.join(new)} are new, the rest are shared with {reads.original}"


def _prices(evaluation: Evaluation) -> Iterator[str]:
    """What the tokens of the reads done now cost; nothing without prices, or where no server was asked."""
    costs = [
        reading.costs
        for reading in evaluation.readings.values()
        if reading.spec.api and not reading.spec.executor
    ]
    prompt = sum(one.prompt_tokens for one in costs)
    output = sum(one.output_tokens for one in costs)
    price = evaluation.settings.api.cost(prompt, output)
    if price is not None and prompt + output:
        yield f"price of the tokens: {price:.4g} ({prompt:,} of prompts, {output:,} of answers)"


def certificate_line(certificate: Certificate, role: Role) -> str:
    """The certificate in a line: what was repeated, and how much of it changed."""
    failed = f", {certificate.failed} failed" if certificate.failed else ""
    return (
        f"certificate{f' of {role.title}' if role.title else ''}: "
        f"{counted(certificate.repeated, 'read[|s]')} repeated{failed}, "
        f"{counted(certificate.changed_outputs, 'output[|s]')} and "
        f"{counted(certificate.changed_labels, 'label[|s]')} changed"
        f"{'' if certificate.reproducible else ' (a server or a function may answer otherwise each time)'}"
    )
