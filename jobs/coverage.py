"""``erag coverage``: which parts of what users ask hold no evaluation query."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from rich.console import Console

from engine.errors import InputError
from engine.machine.device import Dtype
from engine.query_coverage.measure import Coverage, measure
from engine.report import query_coverage as report
from engine.retrieval import encode
from engine.retrieval.encoders import BUNDLED, Pooling, specify
from engine.sources.io.files import require_output, write_parquet, write_text
from engine.sources.io.locations import locate
from engine.sources.queries.read import read_query_set
from engine.sources.queries.users import read_user_queries
from jobs._command import ConfigFile, run_command
from jobs._progress import shown_progress


def coverage(
    *,
    queries: Path,
    user_queries: Path,
    clusters: int | None = None,
    encoder: str = BUNDLED,
    preset: str | None = None,
    pooling: Pooling | None = None,
    query_prefix: str | None = None,
    dtype: Dtype = "float32",
    threads: int | None = None,
    seed: int = 0,
    out: Path | None = None,
    config: ConfigFile = None,
) -> None:
    """Cluster evaluation queries together with what users ask, and show clusters that hold none.

    Prints the share of user queries whose cluster has no evaluation query, beside what a random
    choice of as many evaluation queries would leave out, and examples of what is missing.

    Parameters
    ----------
    queries
        Evaluation queries in any layout (docs/formats.md); answers are not needed.
    user_queries
        A sample of what users ask: the same, or a text file (.txt) with a query a line.
    clusters
        How many; by default the square root of the number of distinct user queries.
    encoder
        A Hugging Face id that is in the cache, a directory, or "bundled" (all-MiniLM-L6-v2).
    preset
        How it is used: contriever, e5, bge, minilm; mean or cls for others. By default what its own
        sentence-transformers files say.
    pooling
        mean or cls, instead of the preset's.
    query_prefix
        Written before queries, instead of the preset's.
    dtype
        The encoder's precision; clusters magnify last bits, so by default the one that repeats best.
    threads
        CPU threads of the encoder; all by default.
    seed
        Of the clusters and of the p-value.
    out
        Directory for the tables and the summary; by default nothing is written.
    """
    for option, value in (("--clusters", clusters), ("--threads", threads)):
        if value is not None and value < 1:
            raise InputError(None, None, f"{option} is {value}", "use 1 or more")
    if seed < 0:
        raise InputError(None, None, f"--seed is {seed}", "use 0 or more")
    if out is not None:
        require_output(out, directory=True)
    spec = specify(
        encoder,
        preset=preset,
        pooling=pooling,
        query_prefix=query_prefix,
        dtype=dtype,
        threads=threads or 0,
    )
    evaluation = read_query_set(queries, need_answers=False)
    users = read_user_queries(user_queries)

    def vectors(texts: list[str]) -> Any:
        with shown_progress("encoding", "queries") as on_progress:
            return encode.queries(texts, spec, on_progress=on_progress)

    found = measure(evaluation.table, users.table, vectors, clusters=clusters, seed=seed)
    unanswerable = {"queries": evaluation.unanswerable, "user_queries": users.unanswerable}
    if out is not None:
        files = {"queries": str(locate(queries)), "user_queries": str(locate(user_queries))}
        _write(found, report.summarize(found, spec, files, unanswerable), out)
    # A log has no width of its own; the default of 80 would cut texts short.
    console = Console(width=None if sys.stdout.isatty() else 160)
    for table in report.shown_tables(found):
        console.print(table)
    for line in report.lines(found):
        _print_line(console, line)
    if left := sum(unanswerable.values()):
        _print_line(console, f"note: {left} unanswerable questions left out")
    if out is not None:
        _print_line(console, f"results -> {out}")


def _write(found: Coverage, summary: dict[str, Any], out: Path) -> None:
    # Removed first and written last: a summary means that everything it speaks of is there.
    (out / "summary.json").unlink(missing_ok=True)
    write_parquet(found.clusters, out / "coverage.parquet")
    write_parquet(found.assignments, out / "assignments.parquet")
    write_text(json.dumps(summary, indent=2, ensure_ascii=False) + "\n", out / "summary.json")


def _print_line(console: Console, line: str) -> None:
    console.print(line, highlight=False, markup=False, soft_wrap=True)


if __name__ == "__main__":
    run_command(coverage)
