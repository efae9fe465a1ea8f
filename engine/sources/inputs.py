"""The three things an evaluation reads, checked against each other: queries, runs, corpus."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl

from engine.errors import InputError
from engine.sources.corpus import read_corpus
from engine.sources.lines import read_lines
from engine.sources.locations import Location, suffix_of
from engine.sources.qrels import read_qrels
from engine.sources.queries import read_queries
from engine.sources.runs import read_runs
from engine.tables import DOC_ID, QUERY_ID, RANK, RUN, TEXT


@dataclass(frozen=True)
class EvaluationInputs:
    """Tables that fit together: every run row has its query and its passage.

    Attributes:
        queries: the queries table.
        corpus: the passages that some run lists within the cutoff.
        runs: the run table, cut at the cutoff, of the queries evaluated.
        ignored_queries: query ids that runs list and the queries file does not have.
        empty_passages: listed passages without any text.
        qrels: judgments of the queries evaluated (``query_id``, ``doc_id``, ``label``); None without.
        cut_runs: names of runs that list more passages than the cutoff keeps.
    """

    queries: pl.DataFrame
    corpus: pl.DataFrame
    runs: pl.DataFrame
    ignored_queries: int
    empty_passages: int
    qrels: pl.DataFrame | None = None
    cut_runs: tuple[str, ...] = ()


def read_inputs(
    queries: Location,
    corpus: Location,
    runs: Sequence[Location],
    *,
    k: int,
    limit: int | None = None,
    qrels: Location | None = None,
) -> EvaluationInputs:
    """Read what an evaluation at cutoff ``k`` needs; of the corpus only the listed passages.

    With a ``limit`` only the first so many queries are evaluated.

    Raises:
        InputError: a file cannot be used, no run lists any of the queries, a run lists a document
            that the corpus lacks, or the qrels judge none of the queries.
    """
    query_table = read_queries(queries)
    everything = query_table[QUERY_ID].to_list()
    if limit is not None:
        query_table = query_table.head(limit)
    run_table = read_runs(runs)
    known = run_table.filter(pl.col(QUERY_ID).is_in(query_table[QUERY_ID].to_list()))
    for path, name in zip(runs, run_table[RUN].unique(maintain_order=True), strict=True):
        if known.filter(pl.col(RUN) == name).is_empty():
            raise InputError(
                path,
                None,
                f"lists none of the {query_table.height} queries of {queries} "
                f"(it has {run_table.filter(pl.col(RUN) == name)[QUERY_ID][0]!r}, "
                f"they have {query_table[QUERY_ID][0]!r})",
                "give the queries that the run was made for",
            )
    cut = known.filter(pl.col(RANK) <= k)
    passages = read_corpus(corpus, wanted=cut[DOC_ID].unique().to_list())
    lost = cut.join(passages, on=DOC_ID, how="anti").sort(RUN, QUERY_ID, RANK)
    if not lost.is_empty():
        name, query_id, doc_id = lost.select(RUN, QUERY_ID, DOC_ID).row(0)
        order = run_table[RUN].unique(maintain_order=True).to_list()
        path = runs[order.index(name)]
        more = lost[DOC_ID].n_unique() - 1
        raise InputError(
            path,
            _line_of(path, query_id, doc_id),
            f"document {doc_id!r} of query {query_id!r}{f' and {more} more' if more else ''} "
            f"not in the corpus {corpus}",
            "give the corpus that the run was made from",
        )
    judged = None if qrels is None else _read_judged(qrels, query_table, queries)
    return EvaluationInputs(
        queries=query_table,
        corpus=passages,
        runs=cut,
        ignored_queries=run_table.filter(~pl.col(QUERY_ID).is_in(everything))[QUERY_ID].n_unique(),
        empty_passages=int((passages[TEXT].str.strip_chars() == "").sum()),
        qrels=judged,
        cut_runs=tuple(known.filter(pl.col(RANK) > k)[RUN].unique(maintain_order=True)),
    )


def _read_judged(path: Location, query_table: pl.DataFrame, queries: Location) -> pl.DataFrame:
    table = read_qrels(path)
    judged = table.join(query_table, on=QUERY_ID, how="semi", maintain_order="left")
    if judged.is_empty():
        raise InputError(
            path,
            None,
            f"judges none of the {query_table.height} queries of {queries} "
            f"(it has {table[QUERY_ID][0]!r}, they have {query_table[QUERY_ID][0]!r})",
            "give the judgments of these queries",
        )
    return judged


def _line_of(path: Location, query_id: str, doc_id: str) -> int | None:
    """Where a TREC file lists a document; only looked up to word an error."""
    if suffix_of(path) == ".parquet":
        return None
    for number, line in read_lines(path, "a run"):
        columns = line.split()
        if columns[0] == query_id and columns[2] == doc_id:
            return number
    return None
