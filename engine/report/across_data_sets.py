"""Several data sets in one table, like Table 1 of the eRAG paper: annotators and measures by data set."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import polars as pl

from engine import tables
from engine.labels.registry import ANNOTATORS
from engine.messages.wording import counted, cut, listed, number
from engine.report import layout
from engine.report.findings import Findings
from engine.report.layout import Answer, Grid
from engine.report.page_files import BESIDE, PAGE, page_files
from engine.report.summary import jsonable
from engine.sources.io.files import write_parquet, write_text
from engine.sources.io.folders import folder_at
from engine.sources.io.locations import Location
from engine.sources.io.outputs import Outputs, replaced_together
from engine.statistics.bounded import holm
from engine.statistics.comparison import STUDENTIZED, reachable_p
from engine.statistics.correlation import Bootstrap
from engine.tables import ANNOTATOR, DATA_SET, MEASURE, RHO, RUN, RUN_B, TAU, N

CONTENT = "data_sets.json"
_FILES = {"correlations": "data_sets.parquet", "comparisons": "data_set_comparisons.parquet"}
# Columns that split rows if they vary within a data set.
_CONDITION = (tables.READER, tables.AUGMENTATION, tables.K)


class Cell(NamedTuple):
    """A data set under a condition; ``primary``: the annotators in order, with the measures that compare them."""

    data_set: str
    reader: str
    augmentation: str
    task: str
    queries: int
    primary: Mapping[str, str]
    correlations: pl.DataFrame
    comparisons: pl.DataFrame

    def named(self, frame: pl.DataFrame, schema: tables.Schema) -> pl.DataFrame:
        """A table of the cell with its data set and condition."""
        names = (DATA_SET, tables.READER, tables.AUGMENTATION)
        frame = frame.with_columns(pl.lit(getattr(self, n)).alias(n) for n in names)
        return frame.select(list(schema))

    def primary_only(self) -> Cell:
        """The cell with each annotator's primary measure alone, and the first annotator's comparisons by it."""
        measure = pl.col(ANNOTATOR).replace_strict(self.primary, default="", return_dtype=pl.String)
        is_primary, first = pl.col(MEASURE) == measure, next(iter(self.primary))
        rivals = self.comparisons.filter(is_primary, pl.col(RUN) == pl.col(RUN_B), annotator=first)
        return self._replace(correlations=self.correlations.filter(is_primary), comparisons=rivals)


@dataclass(frozen=True)
class DataSetComparison:
    """Several data sets side by side; Holm's correction is over all ``comparisons``, NaN left out."""

    cells: Sequence[Cell]
    correlations: pl.DataFrame
    comparisons: pl.DataFrame
    bootstrap: Bootstrap

    def primary_only(self) -> DataSetComparison:
        """The same data sets, limited to primary measures."""
        return together([cell.primary_only() for cell in self.cells], self.bootstrap)

    @property
    def tests(self) -> int:
        """Number of comparisons with a p-value."""
        return int(self.comparisons[tables.p_of(TAU)].is_not_nan().sum())

    @property
    def queries(self) -> dict[str, int]:
        """Number of evaluated queries, by data set."""
        return {cell.data_set: cell.queries for cell in self.cells}

    @property
    def varied(self) -> list[str]:
        """Columns that vary within a data set; differences between data sets split no rows."""
        each = self.correlations.group_by(DATA_SET).agg(pl.col(_CONDITION).n_unique())
        return [name for name in _CONDITION if (each[name] > 1).any()]

    def content(self) -> dict[str, Any]:
        """All content in a form for JSON."""
        rows = {name: getattr(self, name).to_dicts() for name in _FILES}
        return dict(jsonable({"queries": self.queries, **rows, "missing": missing_cells(self)}))


def cells_of(data_set: str, findings: Findings) -> Iterator[Cell]:
    """The cells of a data set: a single one, or for a study, one per condition."""
    for own in findings.conditions or (findings,):
        names = ("reader", "augmentation", "task")
        reader, augmentation, task = (own.configuration[name] for name in names)
        primary = {name: own.primary_measures.get(name, "") for name in own.annotators}
        figures = own.correlations, own.table("comparisons")
        yield Cell(data_set, reader, augmentation, task, own.queries, primary, *figures)


def together(cells: Sequence[Cell], bootstrap: Bootstrap) -> DataSetComparison:
    """Data sets side by side, with one family of comparisons: the first annotator's with its rivals in all cells."""
    schema, primary = tables.DATA_SET_COMPARISONS, [cell.primary_only() for cell in cells]
    comparisons = pl.concat(cell.named(cell.comparisons, schema) for cell in primary)
    for name in (TAU, RHO):
        p = holm(comparisons[tables.p_of(name)].to_list())
        comparisons = comparisons.with_columns(pl.Series(tables.p_holm_of(name), p, pl.Float64()))
    correlations = pl.concat(cell.named(cell.correlations, tables.DATA_SETS) for cell in cells)
    return DataSetComparison(cells, correlations, comparisons, bootstrap)


def grid(data_sets: DataSetComparison, name: str = TAU, *, primary: bool = False) -> Grid:
    """The table in the paper's layout: runs, annotators and measures (or the ``primary`` alone) in rows, data sets in columns."""
    compared = data_sets.primary_only() if primary else data_sets

    def text(row: Mapping[str, Any]) -> str:
        over = "" if row[N] == compared.queries[row[DATA_SET]] else f" (n = {row[N]})"
        return layout.interval(row, name) + over if row[N] else ""

    names = [*compared.varied, RUN, ANNOTATOR, MEASURE]
    texts = pl.Series("text", [text(row) for row in compared.correlations.iter_rows(named=True)])
    wide = compared.correlations.with_columns(texts).pivot(DATA_SET, index=names, values="text")
    rows = [[str(cell or "") for cell in row] for row in wide.iter_rows()]
    # A data set without any defined value has no rows, and no column.
    heads = [f"{data} (n = {compared.queries[data]})" for data in wide.columns[len(names) :]]
    shown = [row for row in rows if any(row[len(names) :])]
    kind = layout.KENDALL if name == TAU else layout.SPEARMAN
    title = f"{kind} with the end-to-end score, by data set{layout.level(compared.bootstrap)}"
    caption = layout.methods_line(compared.correlations[tables.METHOD])
    return Grid(name, caption, [*names, *heads], shown, len(names), title)


def differences(data_sets: DataSetComparison) -> Grid:
    """The first annotator's tau less its rivals' tau, by data set and run, corrected in one family."""
    names, rows = [DATA_SET, *data_sets.varied, RUN, tables.ANNOTATOR_B, MEASURE, N], []
    for row in data_sets.comparisons.iter_rows(named=True):
        difference = layout.interval(row, TAU, tables.difference_of(TAU), plus="+")
        p = layout.p_value(row[tables.p_holm_of(TAU)])
        rows.append([*(str(row[name]) for name in names), difference, p])
    head = ["data set", *names[1:-3], ANNOTATOR, MEASURE, N]
    head += [f"difference{layout.level(data_sets.bootstrap)}"]
    head += [f"p (Holm, {counted(data_sets.tests, 'test[|s]')})"]
    title = f"{layout.KENDALL} of {next(iter(data_sets.cells[0].primary))}, minus that of:"
    caption = layout.methods_line(data_sets.comparisons[tables.METHOD])
    return Grid("differences", caption, head, rows, len(names) - 1, title)


def missing_cells(data_sets: DataSetComparison) -> list[str]:
    """Why cells are empty or undefined, a sentence for each data set, annotator and reason."""
    reasons: dict[tuple[str, str, str], list[str]] = {}
    correlations, names = data_sets.correlations, [RUN, ANNOTATOR, MEASURE]
    keys = correlations.select(names).unique(maintain_order=True)
    # The same data set has other measures under another cutoff.
    under_any = set(correlations.select(DATA_SET, *names).iter_rows())
    for cell in data_sets.cells:
        there = keys.join(cell.correlations, names, how="left", maintain_order="left")
        for row in there.iter_rows(named=True):
            if row[N] is not None:
                if not row[N] or math.isnan(row[TAU]):
                    reason = (cell.data_set, row[ANNOTATOR], row[tables.NOTE])
                    reasons.setdefault(reason, []).append(f"{row[MEASURE]} on {row[RUN]}")
            elif (cell.data_set, *(row[name] for name in names)) not in under_any:
                reasons.setdefault((cell.data_set, *_why(cell, row)), [])
    # Conditions of a data set share measures and runs.
    return [
        f"{', '.join(filter(None, [*names, cut('; '.join(dict.fromkeys(about)), 80)]))}: {reason}"
        for (*names, reason), about in reasons.items()
    ]


def _why(cell: Cell, key: Mapping[str, Any]) -> tuple[str, str]:
    """The reason for a missing row of a cell, after the annotator concerned; "" if it concerns all annotators."""
    if cell.correlations.is_empty():
        return "", "no list was read whole"
    if key[RUN] not in cell.correlations[RUN]:
        return "", f"no run {key[RUN]}"
    if (name := key[ANNOTATOR]) in cell.primary:
        return name, "further measures of other data sets were not computed"
    reason = ANNOTATORS[name].unfit_tasks.get(cell.task) if name in ANNOTATORS else None
    return name, f"no meaning for {cell.task}: {reason}" if reason else "not asked for there"


def answer(data_sets: DataSetComparison) -> Answer:
    """In how many data sets and runs the first annotator agrees best, and whether by more than chance."""
    orders, ahead, sure, alpha = [], 0, 0, 1 - data_sets.bootstrap.confidence
    keys, ahead_of = [DATA_SET, *_CONDITION, RUN], pl.col(tables.difference_of(TAU)) > 0
    is_sure = pl.col(tables.p_holm_of(TAU)).fill_nan(1) < alpha
    certain = data_sets.comparisons.filter(ahead_of, is_sure)
    first = next(iter(data_sets.cells[0].primary))
    defined = data_sets.primary_only().correlations.filter(pl.col(TAU).is_not_nan())
    for names, rows in defined.sort(TAU, descending=True).group_by(keys, maintain_order=True):
        taus = dict(rows.select(ANNOTATOR, TAU).iter_rows())
        if len(taus) < 2 or first not in taus:
            continue
        row = dict(zip(keys, names, strict=True))
        values = " > ".join(f"{name} {number(tau, 2)}" for name, tau in taus.items())
        place = " ".join(str(row[name]) for name in (DATA_SET, *data_sets.varied, RUN))
        orders.append(f"{place}: {values}.")
        ahead += next(iter(taus)) == first
        sure += certain.filter(**row).height == len(taus) - 1
    columns = f"{ahead} of {counted(len(orders), 'column[|s]')} (data set and run)"
    how = f"at the {alpha:.0%} level (Holm, {counted(data_sets.tests, 'test[|s]')})"
    agrees = f"{first} agrees best with the end-to-end score in {columns}"
    headline = f"{agrees}, in {sure} of them above every rival {how}."
    return Answer(headline, sorted(orders), (), [f"Data sets: {listed(list(data_sets.queries))}"])


def notes(data_sets: DataSetComparison) -> list[str]:
    """A note if resamples are too few for any difference to be significant."""
    drawn, bootstrap = pl.col(tables.METHOD) != STUDENTIZED, data_sets.bootstrap
    tested = data_sets.comparisons.filter(drawn, pl.col(tables.p_of(TAU)).is_not_nan())
    least, needed = reachable_p(tested.height, bootstrap)
    if least <= 1 - bootstrap.confidence:
        return []
    have = f"with {bootstrap.resamples} resamples, no p-value of {counted(len(tested), 'test[|s]')}"
    return [f"{have} can fall below {least:.2f} after correction; use `resamples` {needed} or more"]


def outputs(out: Location) -> Outputs:
    """Files that a study of several data sets writes or clears, page included; data sets have folders of their own."""
    folder = folder_at(out)
    files = [folder.place(name) for name in (*_FILES.values(), CONTENT, PAGE)]
    return Outputs(files, [folder.place(BESIDE)])


def write_together(data_sets: DataSetComparison, out: Location) -> None:
    """Write the tables and ``data_sets.json``; an earlier page is removed with its tables."""
    folder, earlier = folder_at(out), (*_FILES.values(), CONTENT)
    with replaced_together(out, lambda: [*page_files(folder), *earlier], last=CONTENT) as directory:
        for name, file in _FILES.items():
            write_parquet(getattr(data_sets, name), directory / file)
        text = json.dumps(data_sets.content(), indent=2, ensure_ascii=False)
        write_text(f"{text}\n", directory / CONTENT)


def all_grids(data_sets: DataSetComparison) -> list[Grid]:
    """Every table, with all measures."""
    return [grid(data_sets), grid(data_sets, RHO), differences(data_sets)]
