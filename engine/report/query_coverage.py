"""What an evaluation covers of what users ask, as people and programs read it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

import polars as pl
from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from engine.query_coverage.measure import Coverage
from engine.report import layout
from engine.report.summary import jsonable, versions
from engine.retrieval.encoders import EncoderSpec
from engine.tables import (
    CLUSTER,
    EVALUATION_QUERIES,
    EXAMPLE_SIMILARITIES,
    EXAMPLES,
    NEAREST,
    NEAREST_SIMILARITY,
    UNCOVERED,
    USER_QUERIES,
)
from engine.wording import counted

_PACKAGES = ("faiss-cpu", "faiss-gpu", "torch", "transformers", "polars", "scipy", "numpy")
_ALPHA = 0.05
# What is printed; the files hold all.
_CLUSTERS = 10
_EXAMPLES = 3
_CHARACTERS = 60


def shown_tables(found: Coverage) -> list[Table]:
    """The largest clusters without an evaluation query, and those with fewer than chance would give."""
    table = found.clusters
    bare = table.filter((pl.col(EVALUATION_QUERIES) == 0) & (pl.col(USER_QUERIES) > 0))
    thin = table.filter((pl.col(EVALUATION_QUERIES) > 0) & (pl.col("p_holm") < _ALPHA))
    shown = []
    for rows, title in (
        (bare, "User queries without an evaluation query in their cluster"),
        (thin, "Clusters with fewer evaluation queries than chance would give"),
    ):
        if not rows.is_empty():
            some = f", the {_CLUSTERS} largest of {rows.height}" if rows.height > _CLUSTERS else ""
            shown.append(_table(title + some, rows.head(_CLUSTERS), found))
    return shown


def _table(title: str, rows: pl.DataFrame, found: Coverage) -> Table:
    """A cluster a row: its size, and its queries by their cosine to its middle."""
    result = Table(box=SIMPLE_HEAD, header_style="bold", pad_edge=False, title_justify="left")
    result.title = Text(title, style="table.title")
    held = bool((rows[EVALUATION_QUERIES] > 0).any())
    starts = len(found.figures.shares)
    repeated = starts > 1 and not held
    headers = ["cluster", "user\nqueries", *(["evaluation\nqueries"] if held else [])]
    headers += ["in other\nstarts"] if repeated else []
    for header in (*headers, f"p (Holm,\n{found.figures.clusters} tests)"):
        result.add_column(Text(header), justify="right", no_wrap=True)
    result.add_column(Text("\nthose nearest to its middle"))
    result.add_column(Text("\ncosine"), justify="right", no_wrap=True)
    for row in rows.iter_rows(named=True):
        values = [str(row[CLUSTER]), f"{row[USER_QUERIES]} ({_share(row, found)})"]
        values += [str(row[EVALUATION_QUERIES])] if held else []
        values += [_other_starts(row[UNCOVERED], starts)] if repeated else []
        values += [layout.p_value(row["p_holm"])]
        examples = [*zip(row[EXAMPLES], row[EXAMPLE_SIMILARITIES], strict=True)][:_EXAMPLES]
        shown = [(_short(text), cosine) for text, cosine in examples]
        shown.append((f"evaluation: {_short(row[NEAREST])}", row[NEAREST_SIMILARITY]))
        result.add_section()
        for text, cosine in shown:
            # A row each, so that in a narrow terminal a cosine stays beside its text.
            result.add_row(*map(Text, [*values, text, f"{cosine:.2f}"]))  # texts are no markup
            values = [""] * len(values)
    return result


def _share(row: dict[str, Any], found: Coverage) -> str:
    return f"{row[USER_QUERIES] / found.figures.user_queries:.1%}"


def lines(found: Coverage) -> list[str]:
    """What stands around the tables: the figures, what chance would give, and what to make of it."""
    f = found.figures
    grain = f"{counted(f.clusters, 'cluster[|s]')} of {counted(found.texts, 'distinct text[|s]')}"
    if f.clusters < found.clusters_wanted:
        grain += f" ({found.clusters_wanted} wanted; texts have vectors in common)"
    starts = ""
    if len(f.shares) > 1:
        starts = f" (mean of {len(f.shares)} starts of k-means, {_range(f.shares)})"
    return [
        f"{counted(f.evaluation_queries, 'evaluation [query|queries]')}, "
        f"{counted(f.user_queries, 'user [query|queries]')} "
        f"({found.user_texts} distinct); {grain}",
        f"user queries without an evaluation query in their cluster: {f.share:.1%} "
        f"[{f.low:.1%}, {f.high:.1%}]{starts}",
        f"by chance, with as many evaluation queries drawn at random from both: "
        f"{f.expected_share:.1%} expected; p of as much or more: {layout.p_value(f.p)}",
        f"in the tightest clusters, those shown: {counted(f.uncovered_queries, 'user [query|queries]')}, in "
        f"{counted(f.uncovered_clusters, 'cluster[|s]')} ({f.expected_clusters:.1f} expected by chance)",
        *(f"note: {note}" for note in _notes(found)),
    ]


def _range(shares: Sequence[float]) -> str:
    low, high = f"{min(shares):.1%}", f"{max(shares):.1%}"
    return f"{low} in each" if low == high else f"from {low} to {high}"


def _other_starts(uncovered: float, starts: int) -> str:
    """How much of a cluster that is uncovered here is so in the clusters of other starts, too."""
    return f"{max(0.0, uncovered * starts - 1) / (starts - 1):.0%}"


def _notes(found: Coverage) -> Iterator[str]:
    f = found.figures
    if f.clusters == 1:
        yield "one cluster is always covered; --clusters 2 or more could tell something"
    elif not f.share:
        yield "every cluster holds an evaluation query" + (
            "; more --clusters look more closely" if f.clusters < found.texts else ""
        )
    elif f.p < _ALPHA:
        yield "more is left out than chance explains: the evaluation is no sample of what users ask"
    else:
        yield (
            f"what is left out cannot be told from chance (p {layout.p_value(f.p)}); more evaluation "
            "queries, or fewer --clusters, could"
        )
    if f.unasked_clusters:
        yield (
            counted(f.unasked_queries, "evaluation [query is|queries are]")
            + f" in {counted(f.unasked_clusters, 'cluster[|s]')} without a user query"
        )


def summarize(
    found: Coverage, spec: EncoderSpec, files: dict[str, Any], unanswerable: dict[str, int]
) -> dict[str, Any]:
    """All of it as JSON-ready values.

    Args:
        files: what was compared: paths of the evaluation and of the user queries.
        unanswerable: by the same names, questions left out because their file calls them so.
    """
    f = found.figures
    content = {
        "configuration": {**files, "clusters": found.clusters_wanted, "seed": f.seed},
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
            "distinct_user_queries": found.user_texts,
            "distinct_texts": found.texts,
            "unanswerable": unanswerable,
        },
        "figures": asdict(f),
        "clusters": found.clusters.to_dicts(),
        "versions": versions(_PACKAGES),
    }
    made: dict[str, Any] = jsonable(content)
    return made


def _short(text: str) -> str:
    """A text on one line of a table, without what would move a terminal's cursor."""
    words = " ".join(text[: 4 * _CHARACTERS].split())
    shown = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in words)
    if len(shown) <= _CHARACTERS and len(text) <= 4 * _CHARACTERS:
        return shown
    return shown[: _CHARACTERS - 1].rstrip() + "…"
