"""The page of ``erag coverage``: what users ask that the evaluation does not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl

from engine import tables
from engine.messages.wording import counted, cut
from engine.query_coverage.figures import Figures
from engine.query_coverage.measure import USER, Coverage
from engine.report import layout
from engine.report import query_coverage as report
from engine.report.findings import read_table
from engine.report.layout import Grid
from engine.report.page.content import Answer, Fold, Part, sentence
from engine.report.page.plain import Page, write_plain
from engine.report.page.plotting import (
    COLOURS,
    INK,
    MARKERS,
    Drawing,
    add_legend,
    draw_intervals,
    name_rows,
)
from engine.report.page.render import Written
from engine.tables import (
    CLUSTER,
    EVALUATION_QUERIES,
    EXAMPLES,
    NEAREST,
    P_HOLM,
    QUERY,
    SIMILARITY,
    SOURCE,
    UNCOVERED,
    USER_QUERIES,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CLUSTERS, ASSIGNMENTS = "coverage.parquet", "assignments.parquet"
# Clusters that a picture has room for; queries of a cluster that the page lists; clusters in its table.
_DRAWN, _LISTED, _ROWS = 25, 200, 500
_NOTHING = "\N{EM DASH}"


def is_coverage(summary: Mapping[str, Any]) -> bool:
    """Whether a summary is that of ``erag coverage``."""
    return {"figures", "clusters", "encoder", "counts"} <= summary.keys()


def write_coverage_page(
    coverage: Coverage, summary: Mapping[str, Any], folder: Path, *, single_file: bool = False
) -> Written:
    """Write ``report.html`` into a folder.

    Args:
        coverage: the result.
        summary: the content of its ``summary.json``.
        folder: where the page goes.
        single_file: as in ``write_plain``.

    Raises:
        WriteError: the disk is full, or the place cannot be written.
    """
    return write_plain(_page(coverage, summary), folder, single_file=single_file)


def read_coverage(folder: Path, summary: Mapping[str, Any]) -> Coverage:
    """The result that ``erag coverage`` wrote into a folder.

    Raises:
        InputError: a table is gone, or is not one of its.
    """
    figures = dict(summary["figures"])
    counts = summary["counts"]
    return Coverage(
        clusters=read_table(folder / CLUSTERS, tables.COVERAGE),
        assignments=read_table(folder / ASSIGNMENTS, tables.ASSIGNMENTS),
        figures=Figures(**{**figures, "shares": tuple(figures["shares"])}),
        clusters_wanted=summary["configuration"]["clusters"],
        texts=counts["distinct_texts"],
        user_texts=counts["distinct_user_queries"],
    )


def _page(coverage: Coverage, summary: Mapping[str, Any]) -> Page:
    found = report.gaps(coverage)
    shown = list(zip(("uncovered", "sparse"), found, report.GAPS, strict=True))
    grids = [
        _gaps(coverage, name, rows, title) for name, rows, title in shown if not rows.is_empty()
    ]
    texts = (
        () if grids else ("Every cluster has as many evaluation queries as chance would give it.",)
    )
    parts = [
        Part(
            "gaps",
            "Gaps",
            "What users ask and the evaluation does not",
            texts=texts,
            grids=grids,
            pictures=("clusters",),
            folds=[fold for rows in found for fold in _folds(coverage, rows)],
        ),
        Part("share", "Share", "How much that is", pictures=("share",)),
        Part("clusters", "Clusters", "All clusters", grids=(_all(coverage),)),
    ]
    return Page(
        title="What the evaluation leaves out: erag-engine",
        answer=_answer(coverage, summary),
        parts=parts,
        drawings=[_sizes(coverage), _share(coverage)],
        notes=[_capital(sentence(note)) for note in report.notes(coverage)],
        settings={**summary["configuration"], "encoder": summary["encoder"]["name"]},
    )


def _answer(coverage: Coverage, summary: Mapping[str, Any]) -> Answer:
    f = coverage.figures
    if f.clusters == 1:
        headline = "A single cluster says nothing: it always has an evaluation query"
    elif not f.share:
        headline = "Every cluster of what users ask has an evaluation query"
    else:
        why = "more than chance explains" if f.p < report.ALPHA else "which could be chance"
        headline = f"The evaluation leaves out {f.share:.1%} of what users ask, {why}"
    _, *lines = (line for line in report.lines(coverage) if not line.startswith("note: "))
    audit = summary.get("audit") or {}
    facts = [
        ("evaluation queries", f"{f.evaluation_queries:,}"),
        ("user queries", f"{f.user_queries:,} ({coverage.user_texts:,} distinct)"),
        ("clusters", f"{f.clusters:,}, from {counted(len(f.shares), 'start[|s]')} of k-means"),
        ("encoder", summary["encoder"]["name"]),
    ]
    if audit.get("date"):
        facts.append(("date", f"{audit['date'][:16].replace('T', ' ')} UTC"))
    return Answer(sentence(headline), [_capital(sentence(line)) for line in lines], facts)


def _gaps(coverage: Coverage, name: str, rows: pl.DataFrame, title: str) -> Grid:
    starts = len(coverage.figures.shares)
    cells = [
        [
            str(row[CLUSTER]),
            " \N{MIDDLE DOT} ".join(row[EXAMPLES][:3]),
            row[NEAREST],
            f"{row[USER_QUERIES]:,} ({report.share(row, coverage)})",
            f"{row[EVALUATION_QUERIES]:,}",
            report.other_starts(row[UNCOVERED], starts) if starts > 1 else _NOTHING,
            layout.p_value(row[P_HOLM]),
        ]
        for row in rows.iter_rows(named=True)
    ]
    head = ["cluster", "users ask, for instance", "nearest evaluation query"]
    head += ["user queries", "evaluation queries", "also left out by other starts", "p (Holm)"]
    caption = (
        "Clusters of the first start of k-means, the largest first. \N{LEFT DOUBLE QUOTATION MARK}Also left out by "
        "other starts\N{RIGHT DOUBLE QUOTATION MARK}: the share of the other clusterings in which these user queries "
        "have no evaluation query in their cluster, either. p: that so few evaluation queries fall into the cluster by "
        f"chance, corrected for {coverage.figures.clusters} clusters."
    )
    return Grid(name, caption, head, cells, names=3, title=title)


def _folds(coverage: Coverage, rows: pl.DataFrame) -> Iterator[Fold]:
    asked = coverage.assignments.filter(pl.col(SOURCE) == USER)
    for cluster, count in rows.select(CLUSTER, USER_QUERIES).iter_rows():
        of_one = asked.filter(pl.col(CLUSTER) == cluster).sort(SIMILARITY, descending=True)
        distinct = of_one[QUERY].unique(maintain_order=True)
        cut = f", the {_LISTED} nearest to its centroid" if len(distinct) > _LISTED else ""
        title = f"Cluster {cluster}: {counted(count, 'user [query|queries]')}{cut}"
        yield Fold(title, distinct.head(_LISTED).to_list())


def _all(coverage: Coverage) -> Grid:
    rows = [
        [
            str(row[CLUSTER]),
            row[EXAMPLES][0] if row[EXAMPLES] else _NOTHING,
            row[NEAREST],
            f"{row[USER_QUERIES]:,}",
            f"{row[EVALUATION_QUERIES]:,}",
            layout.p_value(row[P_HOLM]),
        ]
        for row in coverage.clusters.head(_ROWS).iter_rows(named=True)
    ]
    more = f" The {_ROWS} largest; {CLUSTERS} has all." if coverage.clusters.height > _ROWS else ""
    head = ["cluster", "users ask, for instance", "nearest evaluation query"]
    head += ["user queries", "evaluation queries", "p (Holm)"]
    caption = (
        f"Clusters of the first start of k-means, that with the most user queries first.{more}"
    )
    return Grid("clusters", caption, head, rows, names=3)


def _sizes(coverage: Coverage) -> Drawing:
    rows = coverage.clusters.filter(pl.col(USER_QUERIES) > 0).head(_DRAWN)
    none, few = (set(gap[CLUSTER]) for gap in report.gaps(coverage))
    kinds = (
        ("has evaluation queries", COLOURS[0], "", lambda one: one not in none | few),
        ("has fewer than by chance", COLOURS[4], "\\\\", few.__contains__),
        ("has none", COLOURS[1], "//", none.__contains__),
    )

    def draw(figure: Figure) -> None:
        axes = figure.add_subplot()
        clusters, sizes = rows[CLUSTER].to_list(), rows[USER_QUERIES].to_list()
        drawn = 0
        for name, colour, hatch, belongs in kinds:
            places = [place for place, one in enumerate(clusters) if belongs(one)]
            if places:
                drawn += 1
                axes.barh(
                    places, [sizes[place] for place in places], height=0.65, color=colour,
                    hatch=hatch, edgecolor=INK, linewidth=0.4, label=name,
                )  # fmt: skip
        examples = [cut(one[0], 42) for one in rows[EXAMPLES].to_list()]
        name_rows(axes, [f"{one}: {text}" for one, text in zip(clusters, examples, strict=True)])
        axes.set_xlabel("user queries in the cluster")
        add_legend(figure, axes, max(2, drawn))

    more = f" The {_DRAWN} largest of {coverage.clusters.height}." * (
        coverage.clusters.filter(pl.col(USER_QUERIES) > 0).height > _DRAWN
    )
    return Drawing(
        "clusters",
        "What users ask most, and whether the evaluation asks it",
        f"Clusters of the first start of k-means by the number of their user queries ({coverage.figures.user_queries:,} in "
        f"all), each with the user query nearest to its centroid.{more}",
        1.0 + 0.24 * rows.height,
        draw,
    )


def _share(coverage: Coverage) -> Drawing:
    f = coverage.figures

    def draw(figure: Figure) -> None:
        axes = figure.add_subplot()
        if len(f.shares) > 1:
            axes.plot(
                f.shares, [0.28] * len(f.shares), MARKERS[2], color=COLOURS[2], alpha=0.6,
                markersize=5, linestyle="", label="one start each",
            )  # fmt: skip
        draw_intervals(axes, [f.share], [0], [(f.low, f.high)], 0, "this evaluation")
        draw_intervals(axes, [f.expected_share], [1], [(float("nan"),) * 2], 1, "a random sample")
        name_rows(axes, ["this evaluation", "by chance"])
        axes.set_xlim(left=0)
        axes.set_xlabel("share of user queries without an evaluation query in their cluster")
        add_legend(figure, axes, 3)

    return Drawing(
        "share",
        "How much of what users ask is left out",
        f"The mean over {counted(len(f.shares), 'start[|s]')} of k-means with its {f.confidence:.0%} interval, given the "
        f"clusterings; {f.user_queries:,} user queries. By chance: what as many evaluation queries, drawn at random from "
        "all queries, would leave out.",
        2.2,
        draw,
    )


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
