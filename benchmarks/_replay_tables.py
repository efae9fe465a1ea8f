"""Make a table of replays for ``fewer_reads`` from the results of full evaluations.

    python -m benchmarks._replay_tables RESULTS… OUT.parquet

RESULTS are folders of ``erag evaluate --annotators erag`` without ``--lazy``, ``--lists`` and ``--until``: of the same
queries and reader, with runs of other names. A row is a listed passage, by run, number of the query, rank and number of the
passage; with the tokens of its prompt, and the scores of the passage alone and of the whole list, by exact match and by F1
in hundredths. Texts and ids are left out.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from pathlib import Path

import polars as pl

from engine.messages.errors import InputError
from engine.scoring.metrics import METRICS, score_outputs

_KEY = ["query_id", "doc_ids"]


def table_of(results: Sequence[Path]) -> pl.DataFrame:
    """The rows of all runs.

    Raises:
        InputError: a listed passage or a list was not read, or its read failed.
    """
    queries = pl.read_parquet(results[0] / "evaluated_queries.parquet")
    reads = pl.concat(pl.read_parquet(one / "reads.parquet") for one in results)
    reads = reads.unique(_KEY, keep="first", maintain_order=True)
    scored = reads.with_columns(pl.lit(None, pl.String).alias("failure"))
    reads = reads.with_columns(
        score_outputs(scored, queries, METRICS[metric])["value"].alias(metric)
        for metric in ("em", "f1")
    )
    listed = _listed(results)
    passages = listed.with_columns(pl.concat_list("doc_id").alias("doc_ids"))
    rows = passages.join(reads.select(*_KEY, "em", "f1", "prompt_tokens"), on=_KEY, how="left")
    by = ["run", "query_id"]
    lists = listed.group_by(by, maintain_order=True).agg(pl.col("doc_id").alias("doc_ids"))
    whole = lists.join(reads.select(*_KEY, list="em", list_f1="f1"), on=_KEY, how="left")
    rows = rows.join(whole.select(*by, "list", "list_f1"), on=by)
    if lacking := rows.filter(pl.any_horizontal(pl.all().is_null())).height:
        raise InputError(
            f"{lacking} of {rows.height} listed passages, or their lists, have no read in the results",
            "use results of full evaluations, whose reads all succeeded",
            "replay.reads",
        )
    number = {query_id: place for place, query_id in enumerate(queries["query_id"])}
    return rows.select(
        pl.col("run").cast(pl.Categorical),
        pl.col("query_id").replace_strict(number, return_dtype=pl.Int16).alias("query"),
        pl.col("rank").cast(pl.Int8),
        pl.col("doc_id").rank("dense").cast(pl.Int16).alias("doc"),
        pl.col("prompt_tokens").cast(pl.Int16).alias("tokens"),
        pl.col("em").cast(pl.Boolean).alias("label"),
        _hundredths("f1").alias("label_f1"),
        pl.col("list").cast(pl.Boolean),
        _hundredths("list_f1"),
    ).sort("run", "query", "rank")


def _listed(results: Iterable[Path]) -> pl.DataFrame:
    """``run``, ``query_id``, ``doc_id``, ``rank``: the lists of the exported runs, each run once."""
    rows = [
        (run, query_id, doc_id, int(rank))
        for one in results
        for file in sorted((one / "exported" / "runs").glob("*.trec"))
        for query_id, _, doc_id, rank, _, run in map(str.split, file.read_text().splitlines())
    ]
    columns = ["run", "query_id", "doc_id", "rank"]
    return pl.DataFrame(rows, schema=columns, orient="row").unique().sort("run", "query_id", "rank")


def _hundredths(column: str) -> pl.Expr:
    return (pl.col(column) * 100).round().cast(pl.Int8)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("results", nargs="+", type=Path, metavar="RESULTS")
    parser.add_argument("out", type=Path, metavar="OUT")
    options = parser.parse_args(arguments)
    table = table_of(options.results)
    table.write_parquet(options.out, compression="zstd", compression_level=19, statistics=False)
    print(f"{options.out}: {table.height:,} rows, {options.out.stat().st_size:,} bytes")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
