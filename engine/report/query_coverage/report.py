"""How much of what users ask an evaluation covers, as printed tables and lines and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

import polars as pl
from rich.table import Table

from engine import tables
from engine.inputs.files import table_sha256
from engine.messages.wording import counted, cut
from engine.report import layout
from engine.report.layout import Grid, terminal_table
from engine.report.query_coverage.measure import EVALUATION, USER, Coverage, Figures
from engine.report.summary import Origin, audit_of, jsonable, versions
from engine.tables import EVALUATION_QUERIES, P_HOLM, QUERY_ID, SOURCE, UNCOVERED, USER_QUERIES

_PACKAGES = ("faiss-cpu", "faiss-gpu", "torch", "transformers", "polars", "scipy", "numpy")
_ALPHA = 0.05
# What queries are identified by in the summary.
_ASKED = (QUERY_ID, tables.QUERY)
# Limits of what is printed; the files hold everything.
_CLUSTERS = 10
_EXAMPLES = 3
_CHARACTERS = 60


def shown_tables(coverage: Coverage) -> list[Table]:
    """The largest clusters without evaluation queries, and those with fewer than by chance."""
    sparse = (pl.col(EVALUATION_QUERIES) > 0) & (pl.col(P_HOLM) < _ALPHA)
    gaps = {
        "User queries without an evaluation query in their cluster": (
            (pl.col(EVALUATION_QUERIES) == 0) & (pl.col(USER_QUERIES) > 0)
        ),
        "Clusters with fewer evaluation queries than expected by chance": sparse,
    }
    found = ((title, coverage.clusters.filter(gap)) for title, gap in gaps.items())
    return [_table(title, rows, coverage.figures) for title, rows in found if not rows.is_empty()]


def _table(title: str, rows: pl.DataFrame, f: Figures) -> Table:
    """One cluster per section: its size, and its queries by their cosine to its centroid."""
    if rows.height > _CLUSTERS:
        title += f", the {_CLUSTERS} largest of {rows.height}"
    head = ["cluster", "user\nqueries", "evaluation\nqueries", "in other\nstarts"]
    head += [f"p (Holm,\n{f.clusters} tests)", "queries nearest\nto its centroid", "cosine"]
    cells = []
    for row in rows.head(_CLUSTERS).iter_rows(named=True):
        share = row[USER_QUERIES] / f.user_queries
        others, starts = "", len(f.shares) - 1
        if starts and not row[EVALUATION_QUERIES]:  # so it is uncovered in the first start
            others = f"{max(0.0, row[UNCOVERED] * (starts + 1) - 1) / starts:.0%}"
        about = [str(row[tables.CLUSTER]), f"{row[USER_QUERIES]} ({share:.1%})"]
        about += [str(row[EVALUATION_QUERIES]), others, layout.p_value(row[P_HOLM])]
        texts = [cut(text, _CHARACTERS) for text in row[tables.EXAMPLES][:_EXAMPLES]]
        texts.append(f"evaluation: {cut(row[tables.NEAREST], _CHARACTERS)}")
        cosines = [*row[tables.EXAMPLE_SIMILARITIES][:_EXAMPLES], row[tables.NEAREST_SIMILARITY]]
        # One row each, so that a cosine stays beside its text in a narrow terminal.
        cells += [
            [*about, text, f"{cosine:.2f}"] for text, cosine in zip(texts, cosines, strict=True)
        ]
    return terminal_table(Grid("gaps", "", head, cells, names=6, title=title))


def lines(coverage: Coverage) -> list[str]:
    """The lines below the tables: figures, what chance would give, and notes on reading them."""
    f = coverage.figures
    grain = (
        f"{counted(f.clusters, 'cluster[|s]')} of {counted(coverage.texts, 'distinct text[|s]')}"
    )
    if f.clusters < coverage.clusters_wanted:
        grain += f" ({coverage.clusters_wanted} requested; some texts share a vector)"
    starts = ""
    if len(f.shares) > 1:
        low, high = f"{min(f.shares):.1%}", f"{max(f.shares):.1%}"
        of_each = f"{low} in each" if low == high else f"from {low} to {high}"
        starts = f" (mean of {len(f.shares)} starts of k-means, {of_each})"
    return [
        f"{counted(f.evaluation_queries, 'evaluation [query|queries]')}, "
        f"{counted(f.user_queries, 'user [query|queries]')} "
        f"({coverage.user_texts} distinct); {grain}",
        f"User queries without an evaluation query in their cluster: {f.share:.1%} "
        f"[{f.low:.1%}, {f.high:.1%}]{starts}",
        f"Expected if as many evaluation queries were drawn at random from both: "
        f"{f.expected_share:.1%}; {layout.p_text(f.p)}",
        f"In the tightest clustering, which is shown: {counted(f.uncovered_queries, 'user [query|queries]')}, in "
        f"{counted(f.uncovered_clusters, 'cluster[|s]')} ({f.expected_clusters:.1f} expected by chance)",
        *(f"note: {note}" for note in notes(coverage)),
    ]


def notes(coverage: Coverage) -> Iterator[str]:
    """What the figures show, and what they do not."""
    f = coverage.figures
    if f.clusters == 1:
        yield "a single cluster is always covered; use two or more clusters"
    elif not f.share:
        yield "every cluster has an evaluation query" + (
            "; more clusters would show finer gaps" if f.clusters < coverage.texts else ""
        )
    elif f.p < _ALPHA:
        yield (
            "the gaps are larger than chance explains: the evaluation is not representative of what "
            "users ask"
        )
    else:
        yield (
            f"the gaps could be due to chance ({layout.p_text(f.p)}); more evaluation queries, or "
            "fewer clusters, could show a difference"
        )
    if f.unasked_clusters:
        yield (
            counted(f.unasked_queries, "evaluation [query is|queries are]")
            + f" in {counted(f.unasked_clusters, 'cluster[|s]')} without a user query"
        )


def summarize(
    coverage: Coverage,
    encoder: Mapping[str, Any],
    files: dict[str, Any],
    unanswerable: dict[str, int],
    origin: Origin | None = None,
) -> dict[str, Any]:
    """The whole result as JSON-ready values; ``files`` and ``unanswerable`` (questions left out) have the same names.

    ``encoder``: what decided the vectors.
    """
    f = coverage.figures
    content = {
        "configuration": {**files, "clusters": coverage.clusters_wanted, "seed": f.seed},
        "encoder": encoder,
        "counts": {
            "evaluation_queries": f.evaluation_queries,
            "user_queries": f.user_queries,
            "distinct_user_queries": coverage.user_texts,
            "distinct_texts": coverage.texts,
            "unanswerable": unanswerable,
        },
        "figures": asdict(f),
        "clusters": coverage.clusters.to_dicts(),
        "versions": versions(_PACKAGES),
        "audit": audit_of(
            origin or Origin(),
            {
                name: table_sha256(coverage.assignments.filter(pl.col(SOURCE) == source), _ASKED)
                for name, source in (("queries", EVALUATION), ("user_queries", USER))
            },
        ),
    }
    return dict(jsonable(content))
