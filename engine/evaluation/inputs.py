"""The three things an evaluation reads, checked against each other: queries, runs, corpus."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import polars as pl

from engine.errors import InputError
from engine.sources.io.lines import read_lines
from engine.sources.io.locations import Location, suffix_of
from engine.sources.io.skipping import SkipBad
from engine.sources.passages.read import read_corpus, scan_corpus
from engine.sources.queries.read import read_query_set
from engine.sources.runs.dictionaries import is_dictionary
from engine.sources.runs.edits import EditedRun, apply_edits, read_edits
from engine.sources.runs.preferences import read_preferences
from engine.sources.runs.qrels import read_qrels
from engine.sources.runs.read import read_runs
from engine.tables import DOC_ID, QUERY, QUERY_ID, RANK, RUN, TEXT


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
        unanswerable_queries: questions that the queries file calls unanswerable; left out.
        skipped_records: bad records of the corpus that were left out.
        preferences: human preferences of the queries evaluated (the preferences table); None without.
        edited: which of the runs came of edits, and of which.
    """

    queries: pl.DataFrame
    corpus: pl.DataFrame
    runs: pl.DataFrame
    ignored_queries: int
    empty_passages: int
    qrels: pl.DataFrame | None = None
    cut_runs: tuple[str, ...] = ()
    unanswerable_queries: int = 0
    skipped_records: int = 0
    preferences: pl.DataFrame | None = None
    edited: tuple[EditedRun, ...] = ()


def read_inputs(
    queries: Location,
    corpus: Location,
    runs: Sequence[Location],
    *,
    k: int,
    limit: int | None = None,
    qrels: Location | None = None,
    preferences: Location | None = None,
    edits: Location | None = None,
    skip_bad: int = 0,
) -> EvaluationInputs:
    """Read what an evaluation at cutoff ``k`` needs; of the corpus only the listed passages.

    A run whose keys are no query ids is keyed by the texts of queries, and its documents may be texts
    of passages, as the eRAG package has them: a text stands for every query, and for the first passage,
    that has it.

    Args:
        queries: in any layout of ``read_query_set``.
        corpus: in any layout of ``scan_corpus``.
        runs: ranked lists, a system each.
        k: passages per query at most.
        limit: evaluate only the first so many queries.
        qrels: judgments.
        preferences: human preferences.
        edits: edits of the runs (``read_edits``), each of which gives a further run; applied before the
            cutoff, so that what is deleted makes room for what stood behind.
        skip_bad: bad records of the corpus that may be left out.

    Raises:
        InputError: a file cannot be used, no run lists any of the queries, a run lists a document
            that the corpus lacks, an edit cannot be made, or the qrels or preferences judge none of
            the queries.
    """
    asked = read_query_set(queries)
    query_table = asked.table if limit is None else asked.table.head(limit)
    everything = asked.table[QUERY_ID].to_list()
    run_table = _keyed_by_id(read_runs(runs), asked.table)
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
    edited: tuple[EditedRun, ...] = ()
    if edits is not None:
        further, edited = apply_edits(
            run_table, read_edits(edits), path=edits, query_ids=everything
        )
        known = pl.concat([known, _of_edits(edits, further, edited, query_table)])
    cut = known.filter(pl.col(RANK) <= k)
    skip = SkipBad(skip_bad)
    passages = read_corpus(corpus, wanted=cut[DOC_ID].unique().to_list(), skip_bad=skip)
    cut, passages = _named_by_id(cut, passages, corpus, skip_bad)
    twice = cut.filter(pl.struct(RUN, QUERY_ID, DOC_ID).is_duplicated())
    if edits is not None and not twice.is_empty():
        raise InputError(
            edits,
            None,
            f"document {twice[DOC_ID][0]!r} comes into the list of query {twice[QUERY_ID][0]!r} twice, "
            "by its id and by its text",
            "name documents as the run does",
        )
    lost = cut.join(passages, on=DOC_ID, how="anti").sort(RUN, QUERY_ID, RANK)
    if not lost.is_empty():
        name, query_id, doc_id = lost.select(RUN, QUERY_ID, DOC_ID).row(0)
        order = run_table[RUN].unique(maintain_order=True).to_list()
        remedy = "give the corpus that the run was made from"
        came_of = next((run for run in edited if run.name == name), None)
        line = came_of.line_of(query_id, doc_id) if came_of else None
        if edits is not None and line is not None:
            path, remedy = edits, "insert passages of the corpus"
        else:
            path = runs[order.index(came_of.original if came_of else name)]
            line = _line_of(path, query_id, doc_id)
        more = lost[DOC_ID].n_unique() - 1
        raise InputError(
            path,
            line,
            f"document {doc_id!r} of query {query_id!r}{f' and {more} more' if more else ''} "
            f"not in the corpus {corpus}",
            remedy,
        )
    judged = preferred = None
    if qrels is not None:
        judged = _of_queries(qrels, read_qrels(qrels), query_table, queries)
    if preferences is not None:
        preferred = _of_queries(preferences, read_preferences(preferences), query_table, queries)
    return EvaluationInputs(
        queries=query_table,
        corpus=passages,
        runs=cut,
        ignored_queries=run_table.filter(~pl.col(QUERY_ID).is_in(everything))[QUERY_ID].n_unique(),
        empty_passages=_empty_passages(passages),
        qrels=judged,
        cut_runs=tuple(known.filter(pl.col(RANK) > k)[RUN].unique(maintain_order=True)),
        unanswerable_queries=asked.unanswerable,
        skipped_records=skip.count,
        preferences=preferred,
        edited=edited,
    )


def cut_inputs(inputs: EvaluationInputs, k: int) -> EvaluationInputs:
    """The same inputs at a smaller cutoff."""
    runs = inputs.runs.filter(pl.col(RANK) <= k)
    corpus = inputs.corpus.join(runs, on=DOC_ID, how="semi", maintain_order="left")
    cut = set(inputs.runs.filter(pl.col(RANK) > k)[RUN]) | set(inputs.cut_runs)
    return replace(
        inputs,
        runs=runs,
        corpus=corpus,
        empty_passages=_empty_passages(corpus),
        cut_runs=tuple(name for name in runs[RUN].unique(maintain_order=True) if name in cut),
    )


def _empty_passages(passages: pl.DataFrame) -> int:
    return int((passages[TEXT].str.strip_chars() == "").sum())


def _of_edits(
    path: Location, runs: pl.DataFrame, edited: tuple[EditedRun, ...], query_table: pl.DataFrame
) -> pl.DataFrame:
    known = runs.filter(pl.col(QUERY_ID).is_in(query_table[QUERY_ID].to_list()))
    for run in edited:
        if known.filter(pl.col(RUN) == run.name).is_empty():
            raise InputError(
                path,
                None,
                f"leaves {run.original!r} no document for any of the {query_table.height} queries",
                "leave some",
            )
    return known


def _keyed_by_id(runs: pl.DataFrame, queries: pl.DataFrame) -> pl.DataFrame:
    """The runs, with query ids in the place of query texts in those that know no id."""
    frames: list[pl.DataFrame] = []
    ids = queries.select(pl.col(QUERY).alias(QUERY_ID), pl.col(QUERY_ID).alias("_id"))
    for own in runs.partition_by(RUN, maintain_order=True):
        if own.join(queries, on=QUERY_ID, how="semi").is_empty():
            renamed = own.join(ids, on=QUERY_ID, how="left", maintain_order="left")
            own = renamed.with_columns(pl.coalesce("_id", QUERY_ID).alias(QUERY_ID)).drop("_id")
        frames.append(own.sort(QUERY_ID, RANK))
    return pl.concat(frames)


def _named_by_id(
    runs: pl.DataFrame, passages: pl.DataFrame, corpus: Location, skip_bad: int
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The runs, with document ids in the place of texts of passages, and the passages of both."""
    # Texts have spaces, and ids of TREC runs cannot: only for texts the corpus is read once more.
    texts = runs.join(passages, on=DOC_ID, how="anti").filter(pl.col(DOC_ID).str.contains(r"\s"))
    if texts.is_empty():
        return runs, passages
    wanted = texts[DOC_ID].unique().implode()
    batches = scan_corpus(corpus, skip_bad=skip_bad)
    found = pl.concat(batch.filter(pl.col(TEXT).is_in(wanted)) for batch in batches)
    found = found.unique(TEXT, keep="first", maintain_order=True)
    ids = found.select(pl.col(TEXT).alias(DOC_ID), pl.col(DOC_ID).alias("_id"))
    renamed = runs.join(ids, on=DOC_ID, how="left", maintain_order="left")
    runs = renamed.with_columns(pl.coalesce("_id", DOC_ID).alias(DOC_ID)).drop("_id")
    return runs, pl.concat([passages, found]).unique(DOC_ID, maintain_order=True)


def _of_queries(
    path: Location, table: pl.DataFrame, query_table: pl.DataFrame, queries: Location
) -> pl.DataFrame:
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
    if suffix_of(path) == ".parquet" or is_dictionary(path, "a run"):
        return None
    for number, line in read_lines(path, "a run"):
        columns = line.split()
        if columns[0] == query_id and columns[2] == doc_id:
            return number
    return None
