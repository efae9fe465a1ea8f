"""``erag retrieve``: search an index for every query."""

from __future__ import annotations

from pathlib import Path

from engine.errors import InputError
from engine.retrieval.bm25 import search
from engine.sources.files import require_output
from engine.sources.queries import read_queries
from engine.sources.runs import write_run
from engine.tables import QUERY_ID
from jobs._command import ConfigFile, run_command


def retrieve(
    *,
    index: Path,
    queries: Path,
    out: Path,
    k: int = 10,
    name: str = "bm25",
    k1: float = 0.9,
    b: float = 0.4,
    limit: int | None = None,
    config: ConfigFile = None,
) -> None:
    """Retrieve passages for queries and write them as a run.

    Parameters
    ----------
    index
        Directory of an index.
    queries
        KILT JSONL, or Parquet with query_id and query.
    out
        The run to write: .parquet, else TREC text.
    k
        Passages per query.
    name
        The system's name in the run.
    k1
        BM25's saturation of term frequency.
    b
        BM25's normalization by length, from 0 to 1.
    limit
        Only the first so many queries.
    """
    for option, value in (("--k", k), ("--limit", limit)):
        if value is not None and value < 1:
            raise InputError(None, None, f"{option} is {value}", "use 1 or more")
    if k1 < 0 or not 0 <= b <= 1:
        raise InputError(None, None, f"--k1 {k1} --b {b}", "use k1 of 0 or more and b from 0 to 1")
    require_output(out, directory=False)
    table = read_queries(queries, need_answers=False)
    if limit is not None:
        table = table.head(limit)
    run = search(index, table, k=k, name=name, k1=k1, b=b)
    write_run(run, out)
    empty = table.height - run[QUERY_ID].n_unique()
    without = f", {empty} queries without any hit" if empty else ""
    print(f"{run.height} results for {table.height} queries{without} -> {out}")


if __name__ == "__main__":
    run_command(retrieve)
