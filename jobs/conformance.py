"""``erag conformance``: your files, recomputed with the reference implementations."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from engine.conformance.comparison import THE_MEAN, TOLERANCE, Comparison, Reference, Row
from engine.conformance.erag import compare_erag
from engine.conformance.kilt import compare_kilt
from engine.conformance.ranking import DEFAULT_MEASURES, compare_ranking
from engine.messages.errors import InputError
from engine.messages.wording import counted
from engine.ranking.measures import parse_measures
from jobs._command import ConfigFile, run_command, with_verbosity
from jobs._options import Words, items_of
from jobs._terminal import Terminal, standard_error, standard_output


@with_verbosity
def conformance(
    *,
    run: Path | None = None,
    qrels: Path | None = None,
    measures: Annotated[Words, Parameter(show_default=False)] = (),
    kilt: Annotated[tuple[Path, Path] | None, Parameter(negative=())] = None,
    erag: Path | None = None,
    tolerance: float = TOLERANCE,
    config: ConfigFile = None,
) -> None:
    """Recompute your files with the reference implementations that are installed.

    Prints the largest difference for every reference and measure, and the reference's rules for
    ties, means and missing queries. The exit status is 1 if a difference remains that these rules
    do not explain.

    Parameters
    ----------
    run
        A ranked list per query, scored against --qrels: TREC text, Parquet or JSON.
    qrels
        Judgments, which must be whole numbers: TREC text, BEIR's layout, Parquet or JSON.
    measures
        Ranking measures to compare; by default all that the references compute, at usual cutoffs.
    kilt
        Gold file and file of predictions, both KILT JSONL.
    erag
        Lists of labels, JSON lines {"query": …, "labels": [best rank first]}.
    tolerance
        Largest difference that is attributed to rounding.
    """
    comparisons = _comparisons(run, qrels, " ".join(items_of(measures)) or None, kilt, erag)
    if not 0 <= tolerance < 1:
        raise InputError(f"--tolerance is {tolerance}", "use a number from 0 to less than 1")
    with standard_error().status("recomputing; ranx compiles itself on first use"):
        results = [compare() for compare in comparisons]
    console = standard_output()
    for comparison in results:
        _print_comparison(console, comparison, tolerance)
    verdict, differs = _verdict(results, tolerance)
    console.print_line(verdict)
    if differs:
        sys.exit(1)


def _comparisons(
    run: Path | None,
    qrels: Path | None,
    measures: str | None,
    kilt: tuple[Path, Path] | None,
    erag: Path | None,
) -> list[Callable[[], Comparison]]:
    comparisons: list[Callable[[], Comparison]] = []
    if run is not None and qrels is not None:
        parsed = parse_measures(DEFAULT_MEASURES if measures is None else measures)
        comparisons.append(lambda: compare_ranking(run, qrels, parsed))
    elif run is not None or qrels is not None:
        raise InputError("--run and --qrels go together", "give both")
    elif measures is not None:
        raise InputError("--measures without --run", "give --run and --qrels too")
    if kilt is not None:
        comparisons.append(lambda: compare_kilt(*kilt))
    if erag is not None:
        comparisons.append(lambda: compare_erag(erag))
    if not comparisons:
        raise InputError("nothing to compare", "give --run and --qrels, --kilt or --erag")
    return comparisons


def _print_comparison(console: Terminal, comparison: Comparison, tolerance: float) -> None:
    console.print_line(comparison.title)
    for note in comparison.notes:
        console.print_line(f"  {note}")
    for reference in comparison.references:
        console.print()
        if reference.version is None:
            console.print_line(f"{reference.package}: not installed: {reference.install}")
            continue
        name = f"{reference.package} {reference.version}"
        if reference.rows:
            console.print(_table(name, reference, comparison.unit, tolerance))
        else:
            console.print_line(name)
        for rule in reference.rules:
            console.print_line(f"  {rule}")
        if reference.lacks:
            console.print_line(f"  not compared, since it lacks them: {', '.join(reference.lacks)}")
    console.print()


def _table(title: str, reference: Reference, unit: str, tolerance: float) -> Table:
    plural = "queries" if unit == "query" else f"{unit}s"
    table = Table(box=SIMPLE_HEAD, header_style="bold", pad_edge=False, title_justify="left")
    table.title = Text(title)
    for header in ("measure", "reference's"):
        table.add_column(header, no_wrap=True)
    for header in (plural, "reference mean", "engine mean", "largest difference"):
        table.add_column(header, justify="right", no_wrap=True)
    differing = any(not row.agrees(tolerance) for row in reference.rows)
    excused = any(row.rule for row in reference.rows)
    if differing:
        table.add_column(f"at {unit}", no_wrap=True, max_width=40)
    if excused:
        table.add_column("under its rules", no_wrap=True)
    for row in reference.rows:
        cells = [row.measure, row.there, str(row.n), f"{row.their_mean:.4f}", f"{row.our_mean:.4f}"]
        cells.append(_number(row.difference))
        if differing:
            # Queries of --erag are named by their text, which may contain line ends or control characters.
            at = row.at if row.at.isprintable() else repr(row.at)
            cells.append("" if row.agrees(tolerance) else at)
        if excused:
            cells.append(f"{_number(row.remaining)} ({row.rule})" if row.rule else "")
        style = "" if row.conforms(tolerance) else "red"
        table.add_row(*(Text(cell, style) for cell in cells))  # query names are not markup
    return table


def _number(value: float) -> str:
    return "0" if value == 0 else f"{value:.2g}" if value >= 1e-4 else f"{value:.0e}"


def _verdict(results: Sequence[Comparison], tolerance: float) -> tuple[str, bool]:
    """The last line, and whether something differs."""
    rows = [(r.package, row) for c in results for r in c.references for row in r.rows]
    bad = [(package, row) for package, row in rows if not row.conforms(tolerance)]
    if bad:
        first = "; ".join(_difference(package, row) for package, row in bad[:3])
        more = f"; and {len(bad) - 3} more" if len(bad) > 3 else ""
        count = f"{len(bad)} of {counted(len(rows), 'comparison[|s]')} by more than {tolerance:g}"
        return f"differs: {count}: {first}{more}", True
    excused = sum(not row.agrees(tolerance) for _, row in rows)
    rules = f", {excused} of them after applying the reference's declared rule" if excused else ""
    return f"conforms: {counted(len(rows), 'comparison[|s]')} within {tolerance:g}{rules}", False


def _difference(package: str, row: Row) -> str:
    at = row.at if row.at == THE_MEAN else repr(row.at)
    return f"{row.measure} and {row.there} of {package} by {_number(row.difference)} at {at}"


if __name__ == "__main__":
    run_command(conformance)
