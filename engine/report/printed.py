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
from engine.evaluation.evaluate import Evaluation, means
from engine.evaluation.read import Role
from engine.evaluation.settings import Settings
from engine.labels import utility
from engine.report import certificate, dual, edits, layout, runs, verdict
from engine.tables import ANNOTATOR, ANNOTATOR_B, BEST, MEASURE, MEASURE_B, RUN, RUN_B, VALUE
from engine.wording import agreeing, counted

# Utilities that differ by less over all queries tell nothing that a reader does on purpose.
_SPREAD = 1e-3
_READS: dict[Role, str] = {
    "reader": "reads",
    "erag": "reads of the reader for eRAG",
    "judge": "reads of the judge",
    "abstain": "reads that may decline",
}
# The line's end sets it apart from what is printed next.
_BEST = "* the annotator's best measure by tau; the highest of several is a little optimistic\n"


def shown_tables(evaluation: Evaluation, settings: Settings) -> list[Table]:
    """The means and correlations, and where there is something to compare, the comparisons.

    Comparisons are shown with the first annotator and the first run; the files hold all of them.
    """
    found = evaluation.statistics
    shown = [_means_and_correlations(evaluation, settings)]
    annotators = found.comparisons.filter(
        (pl.col(RUN) == pl.col(RUN_B)) & (pl.col(ANNOTATOR) == settings.annotators[0])
    )
    systems = found.comparisons.filter(pl.col(ANNOTATOR) == pl.col(ANNOTATOR_B))
    for rows, compared, other in (
        (annotators, (ANNOTATOR, ANNOTATOR_B), RUN),
        (systems.filter(pl.col(RUN) == pl.col(RUN).first()), (RUN, RUN_B), ANNOTATOR),
    ):
        if rows["tau_difference"].is_not_nan().any():
            shown.append(_differences(rows, compared, other, evaluation, settings))
    if not found.run_pairs.is_empty():
        shown.append(runs.shown(evaluation, settings))
    if not found.systems.is_empty():
        shown.append(_systems(evaluation, settings))
    if not evaluation.dual.is_empty():
        shown.append(dual.shown(evaluation.dual, layout.level(settings)))
    return shown


def _means_and_correlations(evaluation: Evaluation, settings: Settings) -> Table:
    scores, _ = means(evaluation)
    several = scores[RUN].n_unique() > 1
    cells = {
        (row[RUN], row[ANNOTATOR], row[MEASURE]): row
        for row in evaluation.statistics.correlations.iter_rows(named=True)
    }
    # Where not every figure is over all queries, each says over how many.
    counts = [*scores[tables.N], *(cell[tables.N] for cell in cells.values() if cell[tables.N])]
    partial = any(n != evaluation.counts.queries for n in counts)
    level = layout.level(settings)
    title = "Means of ranking measures over queries"
    if settings.end_to_end:
        title = "Agreement of ranking measures with the end-to-end score, over queries"
    columns = ["mean", *(["n"] if partial else [])]
    if settings.end_to_end:
        columns += [f"Kendall's tau{level}", f"Spearman's rho{level}", *(["n"] if partial else [])]
    result = layout.table(title, (["run"] if several else []) + ["annotator", "measure"], columns)
    found = {(row[RUN], row[ANNOTATOR], row[MEASURE]): row for row in scores.to_dicts()}
    annotators = evaluation.labels[ANNOTATOR].unique(maintain_order=True).to_list()
    named = [str(measure) for measure in settings.parsed_measures()]
    rows = []
    empty = set(evaluation.undefined.select(ANNOTATOR, MEASURE).iter_rows())
    for key in product(scores[RUN].unique().sort(), annotators, named):
        row, cell = found.get(key), cells.get(key)
        if row is None and key[1:] not in empty:
            continue
        values = [""] * len(columns)  # of cells that have no meaning; the notes say why
        if row is not None:
            values = [f"{row[VALUE]:.3f}"] + ([str(row[tables.N])] if partial else [])
            if settings.end_to_end:
                values += [layout.interval(cell, name) for name in ("tau", "rho")]
                values += [str(cell[tables.N] if cell else 0)] if partial else []
        # One measure alone is not the best of anything.
        rivals = sum(key[:2] == other[:2] for other in found)
        best = " *" if rivals > 1 and cell and cell[BEST] else ""
        rows.append(((*key[0 if several else 1 : 2], key[2] + best), values))
        if best:
            result.caption = Text(_BEST, style="table.caption")
    layout.add_rows(result, rows)
    return result


def _differences(
    comparisons: pl.DataFrame,
    compared: tuple[str, str],
    other: str,
    evaluation: Evaluation,
    settings: Settings,
) -> Table:
    """Differences of tau to the first of what is compared, a row each; p where there are intervals.

    Args:
        compared: the columns that hold the two compared.
        other: the column of what they share.
    """
    first, second = compared
    # Rows of the first run stand for those of all: corrected together, as the rivals of the first are.
    family = evaluation.statistics.comparisons.filter(pl.col(RUN) != pl.col(RUN_B))
    tests = _tests(family if first == RUN else comparisons)
    keys = [second, other, MEASURE]
    if comparisons[other].n_unique() == 1:
        keys.remove(other)
    partial = (comparisons[tables.N] != evaluation.counts.queries).any()
    result = layout.table(
        f"Kendall's tau of {comparisons[first][0]}, less that of:",
        [{RUN_B: "run", ANNOTATOR_B: "annotator"}.get(key, key) for key in keys],
        [f"difference{layout.level(settings)}"]
        + ([f"p (Holm, {counted(tests, 'test[|s]')})"] if settings.resamples else [])
        + (["n"] if partial else []),
    )
    rows = []
    annotators = evaluation.labels[ANNOTATOR].unique(maintain_order=True).to_list()
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
        values += [layout.p_value(row["tau_p_holm"])] if settings.resamples else []
        values += [str(row[tables.N])] if partial else []
        rows.append(([row[key] for key in keys], values))
    layout.add_rows(result, rows)
    return result


def _difference(row: dict[str, Any]) -> str:
    value, low, high = (row[f"tau_{x}"] for x in ("difference", "low", "high"))
    if math.isnan(value):
        return "undefined"
    return f"{value:+.2f}" if math.isnan(low) else f"{value:+.2f} [{low:+.2f}, {high:+.2f}]"


def _systems(evaluation: Evaluation, settings: Settings) -> Table:
    systems, run_pairs = evaluation.statistics.systems, evaluation.statistics.run_pairs
    partial = (systems[tables.N] != evaluation.counts.queries).any()
    result = layout.table(
        f"Order of the {systems['runs'][0]} runs, by measure and by end-to-end score",
        ["annotator", "measure"],
        [f"tau over runs{layout.level(settings)}", "pairs with one winner"]
        + (["the same, resampled"] if settings.resamples else [])
        + (["n"] if partial else []),
    )
    rows = []
    for row in systems.iter_rows(named=True):
        pairs = run_pairs.filter(
            (pl.col(ANNOTATOR) == row[ANNOTATOR]) & (pl.col(MEASURE) == row[MEASURE])
        )
        winners = pairs["difference"].sign() * pairs["end_to_end_difference"].sign()
        tied = (winners == 0).sum()
        agreed = f"{(winners > 0).sum()} of {pairs.height}" + (f" ({tied} tied)" if tied else "")
        values = [layout.interval(row, "tau"), agreed]
        values += [f"{pairs['agreement'].to_numpy().mean():.0%}"] if settings.resamples else []
        values += [str(row[tables.N])] if partial else []
        rows.append(((row[ANNOTATOR], row[MEASURE]), values))
    layout.add_rows(result, rows)
    return result


def lines(evaluation: Evaluation, settings: Settings) -> list[str]:
    """What stands around the tables: scores, reads, everything that deserves a warning, the verdict."""
    counts = evaluation.counts
    readings = {_READS[role]: reading.costs for role, reading in evaluation.readings.items()}
    _, end_to_end = means(evaluation)
    looking = {*settings.annotators}  # who searches passages, in its own name or for utilities
    if utility.NAME in settings.annotators:
        looking.add(settings.helpful)
    evaluated = counted(counts.queries, "[query|queries]"), counted(counts.passages, "passage[|s]")
    shown = [f"{', '.join(evaluated)}; judged: {evaluation.relevant}"]
    for row in end_to_end.iter_rows(named=True):
        some = (
            ""
            if row[tables.N] == counts.queries
            else f" over {counted(row[tables.N], '[query|queries]')}"
        )
        shown.append(
            f"end-to-end score of {row[RUN]} ({settings.metric}, {counted(row[tables.K], 'passage[|s]')}): "
            f"{row[VALUE]:.3f}{some}"
        )
    if settings.erag_reader is not None:
        shown.append(
            f"single passages are read by {settings.erag_reader}, whole lists by {settings.reader}"
            if settings.end_to_end
            else f"single passages are read by {settings.erag_reader}"
        )
    shown += [layout.reads_line(what, costs) for what, costs in readings.items() if costs.wanted]
    shown += [edits.line(found) for found in evaluation.edited]
    shown += [certificate.line(found, role) for role, found in evaluation.certificates.items()]
    for amount, what in (
        (
            sum(costs.failed for costs in readings.values()),
            "read[|s] failed and the figures that need [it|them] go without [its query|their queries]"
            if settings.failed_reads == "skip"
            else "read[|s] failed and [counts|count] as 0",
        ),
        (counts.queries_without_judgments, "[query has|queries have] no judgments in the qrels")
        if "qrels" in settings.annotators
        else (0, ""),
        (
            counts.queries_without_preferences,
            "[query has|queries have] no preferences and [scores|score] 0 by them",
        ),
        (
            counts.preferences_beyond_lists,
            "[passage|passages] of the preferences [is|are] in no list",
        ),
        (counts.truncated_reads, "[read was|reads were] cut to the reader's longest input"),
        (
            sum(costs.memory_halvings for costs in readings.values()),
            "[batch was|batches were] halved because memory ran out",
        ),
        (
            counts.skipped_records,
            "bad [record|records] of the corpus [was|were] left out (--skip-bad)",
        ),
        (
            counts.unanswerable_queries,
            "[question has|questions have] no answer, says the queries file, and [was|were] left out",
        ),
        (counts.empty_passages, "listed [passage has|passages have] no text"),
        (
            counts.ignored_queries,
            "[query of the runs is|queries of the runs are] not in the queries file and [was|were] left out",
        ),
        (counts.queries_without_provenance, "[query has|queries have] no provenance")
        if not {"provenance", "dual"}.isdisjoint(looking)
        else (0, ""),
        (
            counts.queries_running_on,
            "[query has|queries have] answers that Korean particles or further words may follow without a space, "
            "where tokens do not find them; containment-substring and --dual-words substring do",
        )
        if "containment" in looking
        or ("dual" in settings.annotators and settings.dual_words == "tokens")
        else (0, ""),
        (
            int(counts.no_gold_article_listed) * counts.passages,
            "listed [passage|passages], and none from a gold article: do queries and corpus name articles alike?",
        ),
    ):
        if amount:
            shown.append(f"note: {counted(amount, what)}")
    for run, amount in counts.queries_without_results.items():
        if amount:
            lacking = counted(amount, "[query has|queries have]") + f" no results in {run}"
            shown.append(
                f"note: {lacking} and {agreeing(amount, '[is|are]')} left out of it"
                if settings.missing == "skip"
                else f"note: {lacking} and {agreeing(amount, '[scores|score]')} 0 on every measure"
            )
    shown += [f"note: {note}" for note in _remarks(evaluation, settings)]
    shown += _empty_cells(evaluation.undefined)
    for statistics, names in (
        (
            evaluation.statistics.correlations.filter(pl.col(tables.N) > 0),
            "{run}{annotator} {measure}",
        ),
        (evaluation.statistics.systems, "order of runs by {annotator} {measure}"),
    ):
        shown += _notes(statistics, names)
    return shown + [f"verdict: {sentence}" for sentence in verdict.sentences(evaluation, settings)]


def _remarks(evaluation: Evaluation, settings: Settings) -> Iterator[str]:
    """What a reader of the figures might not expect."""
    counts, relevant = evaluation.counts, evaluation.relevant
    systems = len(counts.queries_without_results)
    if counts.real_valued_annotators:
        yield (
            f"labels of {', '.join(counts.real_valued_annotators)} are real-valued: P is their mean, "
            "Success the largest, R the share of their sum"
        )
    if counts.cut_runs and any(m.cutoff is None for m in settings.parsed_measures()):
        yield (
            f"{', '.join(counts.cut_runs)} {agreeing(len(counts.cut_runs), '[lists|list]')} more than "
            f"--k {counted(settings.k, 'passage[|s]')}: measures "
            f"without a cutoff look at the first {settings.k}"
        )
    if utility.NAME in settings.annotators:
        yield from _remarks_on_utilities(evaluation, settings)
    if (
        utility.NAME in settings.annotators
        and settings.task != "short-answer"
        and settings.abstain_prompt is None
    ):
        yield (
            f"the prompt that lets the reader decline asks a question, and the task is {settings.task}: "
            "--abstain-prompt FILE asks as the task does"
        )
    if relevant == "list" and systems > 1:
        yield "--relevant list excuses what a run did not find: its figures do not compare runs"
    if relevant != "qrels" and counts.judgments_beyond_lists:
        yield (
            counted(
                counts.judgments_beyond_lists,
                "[judgment is of a passage|judgments are of passages]",
            )
            + f" that no run lists, and {agreeing(counts.judgments_beyond_lists, '[does|do]')} "
            f"not count under --relevant {relevant}; --annotators qrels alone counts them"
        )
    compared = evaluation.statistics.comparisons
    of_first = pl.col(ANNOTATOR) == settings.annotators[0]
    of_runs = pl.col(RUN) != pl.col(RUN_B)
    # As the p-values are corrected: see ``compare_cells``.
    tests = max(
        _tests(compared.filter(family))
        for family in (of_runs, ~of_runs & of_first, ~of_runs & ~of_first)
    )
    if settings.resamples and tests:
        # The least p-value that so many resamples can give, after Holm's correction.
        least = min(1.0, 2 * tests / (settings.resamples + 1))
        if least > 1 - settings.confidence:
            needed = math.ceil(2 * tests / (1 - settings.confidence))
            yield (
                f"with {settings.resamples} resamples and {counted(tests, 'comparison[|s]')} no p-value can fall "
                f"below {least:.2g}; --resamples {needed} would let one reach "
                f"{1 - settings.confidence:.2g}"
            )


def _remarks_on_utilities(evaluation: Evaluation, settings: Settings) -> Iterator[str]:
    scores = evaluation.query_scores.filter(pl.col(ANNOTATOR) == utility.NAME)
    if settings.missing == "zero" and any(evaluation.counts.queries_without_results.values()):
        yield (
            "UDCG is 0 where a run lists nothing, and 0.42 or more of any list: it tells runs by their "
            "empty lists first; --missing skip leaves these out"
        )
    listed = scores.filter(pl.col(VALUE) > 0)
    for (run, measure), own in listed.group_by([RUN, MEASURE], maintain_order=True):
        spread = float(own[VALUE].max() - own[VALUE].min())  # type: ignore[operator, arg-type]
        if own.height > 1 and spread < _SPREAD:
            yield (
                f"{measure} of {run} differs by {spread:.1g} over all queries: this reader hardly ever "
                "declines, and correlations are of differences too small to mean anything"
            )


def _tests(comparisons: pl.DataFrame) -> int:
    return comparisons.filter(pl.col("tau_p").is_not_nan()).height


def _empty_cells(undefined: pl.DataFrame) -> Iterator[str]:
    """Why cells are empty, a line for each reason."""
    for (annotator, _), cells in undefined.group_by(
        [ANNOTATOR, pl.col(tables.NOTE).str.split(",").list.first()], maintain_order=True
    ):
        yield f"note: {', '.join(cells[MEASURE])} of {annotator}: {cells[tables.NOTE][0]}"


def _notes(statistics: pl.DataFrame, names: str) -> list[str]:
    """Each distinct note once, with the cells that it stands for; with their runs where there are several."""
    several = RUN in statistics.columns and statistics[RUN].n_unique() > 1
    cells: dict[str, list[str]] = {}
    for row in statistics.filter(pl.col("note") != "").iter_rows(named=True):
        run = f"{row[RUN]} " if several else ""
        name = names.format(run=run, annotator=row[ANNOTATOR], measure=row[MEASURE])
        cells.setdefault(row["note"], []).append(name)
    return [
        f"note: {', '.join(named[:3])}{f' and {len(named) - 3} more' if len(named) > 3 else ''}: {note}"
        for note, named in cells.items()
    ]
