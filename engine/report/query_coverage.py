"""How much of what users ask an evaluation covers, as printed tables and lines and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import polars as pl
from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from engine.evaluation.digest import table_sha256
from engine.messages.wording import counted
from engine.query_coverage.measure import EVALUATION, USER, Coverage
from engine.report import audit, layout
from engine.report.audit import Origin
from engine.report.summary import jsonable, versions
from engine.retrieval.encoders import EncoderSpec
from engine.tables import (
    CLUSTER,
    EVALUATION_QUERIES,
    EXAMPLE_SIMILARITIES,
    EXAMPLES,
    NEAREST,
    NEAREST_SIMILARITY,
    P_HOLM,
    QUERY,
    QUERY_ID,
    SOURCE,
    UNCOVERED,
    USER_QUERIES,
)

_PACKAGES = ("faiss-cpu", "faiss-gpu", "torch", "transformers", "polars", "scipy", "numpy")
ALPHA = 0.05
# What the two tables of ``gaps`` show.
GAPS = (
    "User queries without an evaluation query in their cluster",
    "Clusters with fewer evaluation queries than expected by chance",
)
# What queries are identified by in the summary.
_ASKED = (QUERY_ID, QUERY)
# Limits of what is printed; the files hold everything.
_CLUSTERS = 10
_EXAMPLES = 3
_CHARACTERS = 60


def gaps(coverage: Coverage) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The clusters of user queries without evaluation queries, and those with fewer than by chance."""
    table = coverage.clusters
    uncovered = table.filter((pl.col(EVALUATION_QUERIES) == 0) & (pl.col(USER_QUERIES) > 0))
    sparse = table.filter((pl.col(EVALUATION_QUERIES) > 0) & (pl.col(P_HOLM) < ALPHA))
    return uncovered, sparse


def shown_tables(coverage: Coverage) -> list[Table]:
    """The largest clusters without evaluation queries, and those with fewer than by chance."""
    shown_tables = []
    for rows, title in zip(gaps(coverage), GAPS, strict=True):
        if not rows.is_empty():
            limit = f", the {_CLUSTERS} largest of {rows.height}" if rows.height > _CLUSTERS else ""
            shown_tables.append(_table(title + limit, rows.head(_CLUSTERS), coverage))
    return shown_tables


def _table(title: str, rows: pl.DataFrame, coverage: Coverage) -> Table:
    """One cluster per row: its size, and its queries by their cosine to its centroid."""
    result = Table(box=SIMPLE_HEAD, header_style="bold", pad_edge=False, title_justify="left")
    result.title = Text(title, style="table.title")
    with_evaluation = bool((rows[EVALUATION_QUERIES] > 0).any())
    starts = len(coverage.figures.shares)
    repeated = starts > 1 and not with_evaluation
    headers = ["cluster", "user\nqueries", *(["evaluation\nqueries"] if with_evaluation else [])]
    headers += ["in other\nstarts"] if repeated else []
    for header in (*headers, f"p (Holm,\n{coverage.figures.clusters} tests)"):
        result.add_column(Text(header), justify="right", no_wrap=True)
    result.add_column(Text("\nqueries nearest to its centroid"))
    result.add_column(Text("\ncosine"), justify="right", no_wrap=True)
    for row in rows.iter_rows(named=True):
        values = [str(row[CLUSTER]), f"{row[USER_QUERIES]} ({share(row, coverage)})"]
        values += [str(row[EVALUATION_QUERIES])] if with_evaluation else []
        values += [other_starts(row[UNCOVERED], starts)] if repeated else []
        values += [layout.p_value(row[P_HOLM])]
        examples = [*zip(row[EXAMPLES], row[EXAMPLE_SIMILARITIES], strict=True)][:_EXAMPLES]
        queries = [(_short(text), cosine) for text, cosine in examples]
        queries.append((f"evaluation: {_short(row[NEAREST])}", row[NEAREST_SIMILARITY]))
        result.add_section()
        for text, cosine in queries:
            # One row each, so that a cosine stays beside its text in a narrow terminal.
            result.add_row(*map(Text, [*values, text, f"{cosine:.2f}"]))  # texts are not markup
            values = [""] * len(values)
    return result


def share(row: Mapping[str, Any], coverage: Coverage) -> str:
    """The share of all user queries that a cluster has."""
    return f"{row[USER_QUERIES] / coverage.figures.user_queries:.1%}"


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
        starts = f" (mean of {len(f.shares)} starts of k-means, {_range(f.shares)})"
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


def _range(shares: Sequence[float]) -> str:
    low, high = f"{min(shares):.1%}", f"{max(shares):.1%}"
    return f"{low} in each" if low == high else f"from {low} to {high}"


def other_starts(uncovered: float, starts: int) -> str:
    """How much of an uncovered cluster is uncovered in the clusterings of other starts too."""
    return f"{max(0.0, uncovered * starts - 1) / (starts - 1):.0%}"


def notes(coverage: Coverage) -> Iterator[str]:
    """What the figures show, and what they do not."""
    f = coverage.figures
    if f.clusters == 1:
        yield "a single cluster is always covered; use two or more clusters"
    elif not f.share:
        yield "every cluster has an evaluation query" + (
            "; more clusters would show finer gaps" if f.clusters < coverage.texts else ""
        )
    elif f.p < ALPHA:
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
    spec: EncoderSpec,
    files: dict[str, Any],
    unanswerable: dict[str, int],
    origin: Origin | None = None,
) -> dict[str, Any]:
    """The whole result as JSON-ready values.

    Args:
        coverage: the result.
        spec: the encoder.
        files: the paths of the evaluation queries and of the user queries.
        unanswerable: by the same names, the number of questions left out as unanswerable.
        origin: where the result comes from; None where Python called the engine.
    """
    f = coverage.figures
    content = {
        "configuration": {**files, "clusters": coverage.clusters_wanted, "seed": f.seed},
        "encoder": {
            "name": spec.name,
            "digest": spec.digest,
            "dtype": spec.dtype,
            "dimensions": spec.dimensions,
            "text": asdict(spec.text),
            "fingerprint": spec.fingerprint,
        },
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
        "audit": audit.content(
            origin or Origin(),
            {
                name: table_sha256(coverage.assignments.filter(pl.col(SOURCE) == source), _ASKED)
                for name, source in (("queries", EVALUATION), ("user_queries", USER))
            },
        ),
    }
    summary: dict[str, Any] = jsonable(content)
    return summary


def _short(text: str) -> str:
    """A text on one line of a table, without characters that would move a terminal's cursor."""
    words = " ".join(text[: 4 * _CHARACTERS].split())
    printable = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in words)
    if len(printable) <= _CHARACTERS and len(text) <= 4 * _CHARACTERS:
        return printable
    return printable[: _CHARACTERS - 1].rstrip() + "…"
