"""``engine.Result``: an evaluation's results, to display, compute with, write and load again."""

from __future__ import annotations

import math
import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl

from engine.evaluation.conclude import Evaluation
from engine.evaluation.kept import delivered
from engine.evaluation.settings import Sweep
from engine.evaluation.study import vary
from engine.messages.checked import Natural, fitted
from engine.messages.errors import InputError
from engine.messages.extras import require
from engine.messages.wording import quoted
from engine.ranking.measures import parse_measures
from engine.report import results, summary
from engine.report.findings import TABLES, Findings, read_findings
from engine.report.layout import Grid, typeset_grid
from engine.report.page import overview, remake, render
from engine.report.page.drawings import drawings
from engine.report.page.plotting import figure_of
from engine.report.page_files import PAGE
from engine.sources.io.files import write_text
from engine.sources.io.folders import folder_at
from engine.sources.io.outputs import lies_in, sole_writer
from engine.sources.io.parquet import read_parquet
from engine.sources.runs.export import scored_labels
from engine.sources.runs.qrels import write_qrels
from engine.tables import ANNOTATOR, DOC_ID, LABEL, MEASURE, QUERY_ID, RHO, RUN, TAU, VALUE

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure

# Columns of the leaderboard, by the attributes of a lead.
_LEAD = {"lead": "difference", "low": "low", "high": "high", "p": "p"}
# Characters that MLflow forbids in a metric's name.
_NOT_IN_NAMES = re.compile(r"[^\w\-. :/]")


@dataclass(frozen=True, eq=False, repr=False)
class Result:
    """The results of an evaluation.

    In a notebook, and printed, it shows the verdict and the runs. Every table is a Polars frame with the columns that
    docs/formats.md lists.

    Attributes:
        findings: the summary and the tables, in memory or in the folder that they were loaded from.
        evaluation: the evaluation itself; None if it was loaded.
        files: the evaluated files, by kind.
    """

    findings: Findings
    evaluation: Evaluation | None = None
    files: Mapping[str, Any] | None = None

    @classmethod
    def of(cls, evaluation: Evaluation, files: Mapping[str, Any]) -> Result:
        """The result of an evaluation."""
        content = summary.summarize(evaluation, dict(files))
        return cls(Findings.of(evaluation, content), evaluation, dict(files))

    @classmethod
    def load(cls, directory: str | Path) -> Result:
        """The result that ``save``, or ``erag evaluate --out``, left in a folder.

        Raises:
            InputError: the folder holds none.
        """
        return cls(read_findings(Path(directory), None))

    @property
    def summary(self) -> Mapping[str, Any]:
        """All figures with their origins, as in ``summary.json``."""
        return self.findings.summary

    @property
    def verdict(self) -> str:
        """The run to choose with its certainty, a sentence a line; for a single run, its results."""
        return "\n".join(overview.verdict_of(self.findings))

    @property
    def labels(self) -> pl.DataFrame:
        """The labels: ``query_id``, ``doc_id``, ``annotator``, ``label``."""
        return self.table("labels")

    @property
    def correlations(self) -> pl.DataFrame:
        """How each measure agrees with the end-to-end score, by run, annotator and measure."""
        return self.table("correlations")

    @property
    def scores(self) -> pl.DataFrame:
        """The ranking measures of every query: ``run``, ``annotator``, ``measure``, ``query_id``, ``value``."""
        return self.table("query_scores")

    @property
    def means(self) -> pl.DataFrame:
        """The means of the ranking measures: ``run``, ``annotator``, ``measure``, ``value``, ``n`` queries."""
        return pl.DataFrame(self.summary["means"], infer_schema_length=None)

    def table(self, name: str) -> pl.DataFrame:
        """A table by the name of its file, such as ``traces`` or ``downstream``; also an annotator's own tables.

        Raises:
            InputError: there is no table of that name.
        """
        in_memory, folder = self.findings.frames, self.findings.folder
        parts = self.evaluation.parts if self.evaluation else None
        if self.evaluation and parts and name in parts.tables:
            # A trace may have extra columns, which some shards lack.
            return pl.concat(parts.table(name, self.evaluation.shards.shards), how="diagonal")
        if not in_memory and (place := self.findings.whole(name)).is_dir():
            files = (read_parquet(place / part) for part in delivered(folder_at(place)))
            return pl.concat(files, how="diagonal")
        if name in (*TABLES, *summary.STATISTICS):
            return self.findings.table(name)
        further = in_memory.keys() or {file.stem for file in folder.glob("*.parquet")}
        if name not in further:
            listed = ", ".join(dict.fromkeys((*TABLES, *summary.STATISTICS, *sorted(further))))
            raise InputError(f"no table is called {name!r}", f"use one of {listed}", "result.table")
        return in_memory[name] if in_memory else read_parquet(self.findings.whole(name))

    def leaderboard(self) -> pl.DataFrame:
        """The runs, the best one first.

        Columns: ``run``; ``end_to_end`` with ``end_to_end_low`` and ``end_to_end_high``, if whole lists were read; for
        each annotator the mean of its primary measure, called ``"annotator measure"``; with several runs, ``lead`` of
        the best one over this one, by the figure that the verdict goes by, with its interval ``low`` and ``high`` and
        the ``p`` of its test (null for the best one itself); ``queries``.
        """
        findings = self.findings
        rows = []
        for run in findings.runs:
            row: dict[str, Any] = {RUN: run}
            whole = findings.end_to_end(run)
            if self.summary["end_to_end"]:
                row |= {
                    "end_to_end": whole and whole.value,
                    "end_to_end_low": whole and whole.low,
                    "end_to_end_high": whole and whole.high,
                }
            for annotator, measure in findings.primary_measures.items():
                mean = findings.mean(run, annotator, measure)
                row[f"{annotator} {measure}"] = mean and mean.value
            if findings.leads:
                lead = findings.leads.get(run, {})
                row |= {name: lead.get(key) for name, key in _LEAD.items()}
            rows.append({**row, "queries": findings.numbers.get(run, 0)})
        return pl.DataFrame(rows, infer_schema_length=None)

    def to_pandas(self, table: str = "leaderboard") -> pandas.DataFrame:
        """The leaderboard, or a table by name (as in ``table``), as a pandas frame.

        Raises:
            InputError: there is no such table, or pandas is not installed.
        """
        frame = self.leaderboard() if table == "leaderboard" else self.table(table)
        try:
            return frame.to_pandas()
        except ModuleNotFoundError:
            problem = "a pandas frame needs pandas, which is not installed"
            raise InputError(problem, "pip install pandas", "package.missing") from None

    def figure(self, name: str) -> Figure:
        """A picture of the page as a matplotlib figure, to display or to save: ``figure("scores").savefig(…)``.

        Args:
            name: the name of the page's file: ``scores``, ``correlations`` …

        Raises:
            InputError: the evaluation has no such picture, or the extra ``page`` is not installed.
        """
        require("a figure", "page")
        known = {drawing.name: drawing for drawing in drawings(self.findings)}
        if name not in known:
            problem = f"no figure is called {quoted(name)}"
            raise InputError(problem, f"use one of {', '.join(known)}", "result.figure")
        return figure_of(known[name])

    def metrics(self) -> dict[str, float]:
        """All means and correlations by flat names, as ``mlflow.log_metrics`` and ``wandb.log`` take them.

        The names are ``run/end_to_end``, ``run/annotator/measure`` and ``run/annotator/measure/tau`` (and ``rho``);
        characters that MLflow forbids in a name become ``_`` (``bm25/erag/nDCG_10``). Undefined figures are left out.

        Raises:
            InputError: two figures would have one name.
        """
        figures = [(f"{row[RUN]}/end_to_end", row[VALUE]) for row in self.summary["end_to_end"]]
        for row in self.summary["means"]:
            figures.append((f"{row[RUN]}/{row[ANNOTATOR]}/{row[MEASURE]}", row[VALUE]))
        for row in self.correlations.iter_rows(named=True):
            cell = f"{row[RUN]}/{row[ANNOTATOR]}/{row[MEASURE]}"
            figures += [(f"{cell}/{statistic}", row[statistic]) for statistic in (TAU, RHO)]
        metrics: dict[str, float] = {}
        for place, value in figures:
            name = _NOT_IN_NAMES.sub("_", place)
            if name in metrics:
                problem = f"two figures are called {name}"
                raise InputError(problem, "give the runs other names", "result.ambiguous")
            if value is not None and math.isfinite(value):
                metrics[name] = float(value)
        return metrics

    def qrels(
        self, annotator: str | None = None, *, scale: int = 0, path: str | Path | None = None
    ) -> dict[str, dict[str, float]]:
        """Labels as judgments, ``{query_id: {doc_id: label}}``, for ranx, ir_measures or pytrec_eval.

        Labels are ints, which these tools take, if all are whole numbers or with a scale. Queries as in the means.

        Args:
            annotator: the annotator's name; the first one's by default.
            scale: if above 0, a factor on labels, which are then rounded down (0.678 is 67 at 100), and on thresholds.
            path: a TREC file to write; its second column states scale and thresholds (``scale=100,rel=0.5:50``).

        Raises:
            InputError: an unknown annotator; a threshold times the scale is not whole; the file cannot hold them.
        """
        names = self.findings.annotators
        name = names[0] if annotator is None else annotator
        if name not in names:
            problem = f"no annotator is called {quoted(name)}"
            raise InputError(problem, f"use one of {', '.join(names)}", "result.annotator")
        qrels: dict[str, dict[str, float]] = {}
        labels = pl.concat(scored_labels([self.labels], self.scores))
        labels = labels.filter(pl.col(ANNOTATOR) == name).select(QUERY_ID, DOC_ID, LABEL)
        if fitted("scale", scale, Natural):
            # A product may be slightly below the whole number of its decimals.
            labels = labels.with_columns((pl.col(LABEL) * scale).round(9).floor())
        stated = self._stated(scale, path) if scale else "0"
        if path is not None:
            write_qrels(labels, path, stated)
        whole = bool((labels[LABEL] == labels[LABEL].round()).all())
        for query_id, doc_id, label in labels.iter_rows():
            qrels.setdefault(query_id, {})[doc_id] = int(label) if whole else label
        return qrels

    def _stated(self, scale: int, path: str | Path | None) -> str:
        """A scale of labels and the thresholds of the measures by it, in one word."""
        if path is not None and Path(path).suffix in (".tsv", ".parquet"):
            remedy = "write TREC text, as in labels.txt"
            raise InputError("cannot state `scale`", remedy, "result.scaleless", path=path)
        measures = parse_measures(" ".join(self.findings.configuration["measures"]))
        rels = sorted({Fraction(repr(own.rel)) for own in measures if own.rel is not None})
        for rel in rels:
            if (rel * scale).denominator > 1:
                problem = f"`scale` {scale} makes no whole number of the threshold {float(rel):g}"
                raise InputError(problem, f"use a multiple of {rel.denominator}", "result.scale")
        return ",".join([f"scale={scale}", *(f"rel={float(r):g}:{r * scale}" for r in rels)])

    def save(self, directory: str | Path, *, overwrite: bool = False) -> None:
        """Write tables, ``summary.json`` and the page into a folder, as ``erag evaluate --out`` does.

        Args:
            directory: a folder; the same evaluation's earlier results there are replaced.
            overwrite: whether another evaluation's are replaced, too.

        Raises:
            InputError: the result was loaded, and is in a folder already; or the folder holds another evaluation.
            WriteError: the folder cannot be written.
        """
        if self.evaluation is None:
            place = self.findings.folder
            problem = "is where this result is"
            raise InputError(problem, "copy that folder instead", "result.place", path=place)
        inputs, settings = self.evaluation.inputs, self.evaluation.settings
        parts = self.evaluation.parts
        if parts and lies_in(parts.folder.at, directory):
            problem = "holds the shards of this result and perhaps of others"
            raise InputError(problem, "give another folder", "result.shards", path=Path(directory))
        with sole_writer(directory):
            if not overwrite:
                digests = dict(self.evaluation.sha256) or inputs.sha256
                runs = self.evaluation.means[RUN].n_unique()
                results.refuse_another(directory, vary(settings, Sweep()), digests, runs=runs)
            files = dict(self.files or {})
            findings = results.write_results(self.evaluation, files, directory)
            remake.make_page(findings, directory)

    def report(self, path: str | Path) -> Path:
        """Write a report for people.

        Args:
            path: a name in ``.html`` for the page in one file, one in ``.md`` for verdict and tables as Markdown, or a
                folder for the page with its pictures and tables beside it. The page includes the passages unless the
                result was loaded.

        Returns:
            the file to open.

        Raises:
            WriteError: it cannot be written.
        """
        path = Path(path)
        if path.suffix == ".md":
            # No costs: they differ between repetitions of an evaluation.
            grids = overview.overview_grids(self.findings)
            write_text(self._markdown([grid for grid in grids if grid.name != "costs"]), path)
            return path
        if path.suffix in (".html", ".htm"):
            with tempfile.TemporaryDirectory() as folder:
                remake.write_page(self.findings, Path(folder), single_file=True)
                write_text(Path(folder, PAGE).read_text(encoding="utf-8"), path)
            return path
        render.replace_page(folder_at(path), partial(remake.write_page, self.findings))
        return path / PAGE

    def _repr_markdown_(self) -> str:
        return self._markdown(self._grids())

    def _markdown(self, grids: Sequence[Grid]) -> str:
        answer = overview.answer(self.findings)
        lines = filter(None, [answer.decision, *answer.reasons, *answer.about])
        parts = [f"# {render.escaped(answer.headline)}", *map(render.escaped, lines)]
        parts += [render.markdown(typeset_grid(grid)).strip() for grid in grids]
        notes = overview.notes(self.findings)
        parts += ["\n".join(f"- {render.escaped(note)}" for note in notes)] if notes else []
        return "\n\n".join(parts) + "\n"

    def _grids(self) -> list[Grid]:
        """The tables of a notebook: no costs, and only the primary ranking measures."""
        parts = (part for part in overview.sections(self.findings) if part.name != "tables")
        grids = (grid for part in parts for grid in part.grids)
        return [grid for grid in grids if grid.name not in ("costs", "measures")]

    def __repr__(self) -> str:
        parts = [*overview.answer(self.findings).about, "", self.verdict]
        for grid in self._grids():
            parts += ["", *_lines(grid), *re.findall("Interval methods: [^.;]*", grid.caption)]
        if notes := overview.notes(self.findings):
            parts += ["", *notes]
        return "\n".join(parts)


def _lines(grid: Grid) -> list[str]:
    cells = [grid.head, *grid.rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return [
        "   ".join(
            cell.ljust(width) if place < grid.names else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in cells
    ]
