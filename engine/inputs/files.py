"""The files of an evaluation, their tables, cuts of tables, and digests."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import polars as pl

from engine import tables
from engine.messages.checked import CheckedSettings, Natural, Positive
from engine.messages.errors import InputError
from engine.messages.notes import Note, count_note
from engine.sources.input_tables import InputTable
from engine.sources.io.digests import RowHashes
from engine.sources.io.locations import Location
from engine.tables import DOC_ID, QUERY_ID, RANK, RUN, TEXT, TITLE, TOKENS

# The name of recorded outputs among an evaluation's ``tables``.
OUTPUTS = "outputs"
_EMPTY_PASSAGES = "empty_passages"
_LISTS: tables.Schema = {RUN: pl.String(), QUERY_ID: pl.String()}
# The value of ``cluster`` that takes queries of a common article as one cluster.
ARTICLE = "article"
# If fewer queries share a cluster, coverage of intervals is almost as without shared clusters.
_MANY = 0.2
# Rows that are hashed at a time: their hashes are all in memory.
_ROWS = 100_000
# One encoder for all rows: json.dumps would make one for each.
_AS_JSON = json.JSONEncoder(ensure_ascii=False, sort_keys=True, default=str).encode


class TableFile(NamedTuple):
    """A file that an annotator needs; ``corpus``: the one whose documents it judges, among several."""

    path: Location
    table: InputTable
    corpus: Location | None = None

    def read(self) -> pl.DataFrame:
        if self.corpus is not None and self.table.from_texts is not None:
            return self.table.from_texts(self.path, self.corpus)
        return self.table.read(self.path)


@dataclass(frozen=True, kw_only=True)
class InputFiles(CheckedSettings):
    """The files of an evaluation, and the limits on their use.

    Attributes:
        queries: Questions with answers (and provenance): KILT JSONL, plain JSONL, CSV, SQuAD or Parquet.
        corpus: The passages: Parquet (a file or shards), JSONL, JSON, CSV, BEIR, or DPR's TSV. Not needed where
            runs carry the texts of their passages. Several may be given, as cuts of the same documents: each run then
            names its own, as in mine.trec@words-100.parquet.
        run: Ranked lists: TREC text, Parquet, JSON or JSONL, with the texts of passages or without. Several
            may be given.
        limit: Evaluate only the first queries, this many of them.
        skip_bad: Leave out bad records of the corpus, up to this many, and count them.
        outputs: Recorded answers of the system itself, scored end to end in place of answers from whole lists: JSONL,
            JSON or Parquet with query_id, output and run; or RUN=FILE. Several may be given.
        answers: Reference answers by query id, where the queries file has none or others: JSONL, JSON, CSV
            or Parquet with an id and answers, or any layout of queries.
        ignore_identical_ids: Leave out of each list, before the cut at `k`, a document that has the id of its query, as
            BEIR does (ArguAna, Quora).
        need_answers: whether a query without answers is an error.
        need_provenance: whether an annotator needs gold articles.
        cluster: the key of clusters: a column of the queries file, or "article".
        without_answers: names of annotators that need no answers, for the remedy if answers are missing.
        tables: files that annotators need, by the name of their input.
        corpora: the corpus of every run, in place of ``corpus``, if there are several (``sources.runs.read``).

    Raises:
        InputError: a number out of range, or a file that names documents of a single corpus beside several.
    """

    queries: Location
    corpus: Location | None = None
    run: tuple[Location, ...]
    limit: Positive | None = None
    skip_bad: Natural = 0
    outputs: tuple[Location, ...] = ()
    answers: Location | None = None
    ignore_identical_ids: bool = False
    need_answers: bool = True
    need_provenance: bool = False
    cluster: str | None = None
    without_answers: tuple[str, ...] = ()
    tables: Mapping[str, TableFile] = field(default_factory=dict)
    corpora: tuple[Location, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.corpora and self.skip_bad:
            problem = "`skip_bad` with several corpora"
            raise InputError(problem, "leave it out, or give one `corpus`", "settings.tolerance")

    @property
    def passages(self) -> Location | tuple[Location, ...] | None:
        """The corpus, or the corpora by run if there are several, as ``over`` takes them."""
        return self.corpora or self.corpus


def over(corpus: Location | Sequence[Location] | None) -> dict[str, Any]:
    """The fields of ``InputFiles`` for a single corpus, no corpus, or a corpus per run."""
    if isinstance(corpus, list | tuple):
        return {"corpus": None, "corpora": tuple(corpus)}
    return {"corpus": corpus}


# Compared by identity: tables have no equality that is true or false.
@dataclass(frozen=True, kw_only=True, eq=False)
class EvaluationInputs:
    """Tables that fit together: every run row has its query and its passage.

    Attributes:
        queries: the queries table, with their ``cluster``.
        corpus: the passages that some run lists within the cutoff.
        runs: the run table, cut at the cutoff, of the queries evaluated.
        names: names of all runs, in order; a run may list nothing. Empty for the runs that occur.
        k: the cutoff that the runs were cut at, passages per query; None for runs that were never cut.
        tables: tables that annotators need, by the name of their input: judgments of the queries evaluated.
        cut_runs: names of runs that list more passages than the cutoff keeps.
        queries_file: the file of the queries, to name the line of an unusable query; None for tables without a file.
        unmatchable: queries whose gold articles have titles alone, while no listed passage has a title to match.
        fields: as in ``QuerySet``.
        unread, unlabelled: ``run``, ``query_id`` of lists that are not read whole, and of lists without scores by
            labels, which ``runs`` lacks: from runs that were read enough.
        is_whole: whether these are all queries of the evaluation.
    """

    queries: pl.DataFrame
    corpus: pl.DataFrame
    runs: pl.DataFrame
    k: int | None = None
    tables: Mapping[str, pl.DataFrame] = field(default_factory=dict)
    cut_runs: tuple[str, ...] = ()
    notes: tuple[Note, ...] = ()
    queries_file: Location | None = None
    unmatchable: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    fields: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    unread: pl.DataFrame = field(default_factory=lambda: tables.empty(_LISTS))
    unlabelled: pl.DataFrame = field(default_factory=lambda: tables.empty(_LISTS))
    is_whole: bool = True

    @property
    def run_names(self) -> tuple[str, ...]:
        """The names of all runs, in order."""
        return self.names or tuple(self.runs[RUN].unique(maintain_order=True))

    def lists(self) -> pl.DataFrame:
        """``run`` and ``query_id`` of all lists, empty ones included, less the ``unlabelled`` ones."""
        names = pl.DataFrame({RUN: self.run_names}, {RUN: pl.String})
        lists = names.join(self.queries.select(QUERY_ID), how="cross", maintain_order="left_right")
        return lists.join(self.unlabelled, on=list(_LISTS), how="anti", maintain_order="left")

    @cached_property
    def sha256(self) -> dict[str, str]:
        """Digests of an evaluation's inputs, by name: ``queries``, ``corpus``, ``runs``, and tables of annotators.

        Only the listed passages of the corpus count, and the ranks within the cutoff: nothing else was used.
        """
        digests = {
            "queries": table_sha256(self.queries, list(tables.QUERIES)),
            "corpus": table_sha256(self.corpus, list(tables.CORPUS)),
            "runs": table_sha256(self.runs, [RUN, QUERY_ID, RANK, DOC_ID]),
        }
        for name, table in self.tables.items():
            schemas = (tables.QRELS, tables.PREFERENCES)
            known = (list(schema) for schema in schemas if schema.keys() <= {*table.columns})
            digests[name] = table_sha256(table, next(known, table.columns))
        return digests


NO_INPUTS = EvaluationInputs(
    queries=tables.empty(tables.QUERIES),
    corpus=tables.empty(tables.CORPUS),
    runs=tables.empty(tables.RUNS),
)
"""Stands for the inputs of an evaluation that no process holds as a whole."""


def shares_much(clusters: Iterable[int]) -> bool:
    """Whether so many queries share a cluster that intervals without clusters hold too rarely."""
    counts = Counter(clusters)
    return sum(count for count in counts.values() if count > 1) > _MANY * counts.total()


def cut_inputs(inputs: EvaluationInputs, k: int) -> EvaluationInputs:
    """The inputs at cutoff ``k``; unchanged if that is their cutoff.

    Raises:
        InputError: their cutoff is smaller, so the ranks below are unknown.
    """
    if inputs.k == k:
        return inputs
    if inputs.k is not None and inputs.k < k:
        problem = (
            f"`k` {k} exceeds the {inputs.k} passages per query that the inputs were read with"
        )
        remedy = f"read them with `k` {k}, or evaluate with `k` {inputs.k} or less"
        raise InputError(problem, remedy, "inputs.cutoff")
    beyond = inputs.runs[RANK] > k
    if not beyond.any():
        return replace(inputs, k=k)
    runs = inputs.runs.filter(~beyond)
    corpus = inputs.corpus.join(runs, on=DOC_ID, how="semi", maintain_order="left")
    cut = set(inputs.runs.filter(beyond)[RUN]) | set(inputs.cut_runs)
    return replace(
        inputs,
        runs=runs,
        corpus=corpus,
        k=k,
        cut_runs=tuple(name for name in runs[RUN].unique(maintain_order=True) if name in cut),
        notes=with_empty(inputs.notes, int((corpus[TEXT].str.strip_chars() == "").sum())),
    )


def with_tokens(
    inputs: EvaluationInputs, count: Callable[[Iterable[tuple[str, str]]], Sequence[int]]
) -> EvaluationInputs:
    """The inputs with ``tokens`` per passage in their runs, as ``count`` returns for (title, text)."""
    tokens = pl.Series(TOKENS, count(inputs.corpus.select(TITLE, TEXT).iter_rows()), pl.Int64)
    counted = inputs.corpus.select(DOC_ID).with_columns(tokens)
    runs = inputs.runs.join(counted, on=DOC_ID, how="left", maintain_order="left")
    return replace(inputs, runs=runs)


def with_empty(notes: Sequence[Note], empty: int) -> tuple[Note, ...]:
    """Notes as of ``check_inputs``, with another number of listed passages without text."""
    return tuple(empty_note(empty) if note.code == _EMPTY_PASSAGES else note for note in notes)


def empty_note(empty: int) -> Note:
    return count_note(_EMPTY_PASSAGES, empty, "listed [passage has|passages have] no text")


def table_sha256(table: pl.DataFrame, columns: Sequence[str]) -> str:
    """A digest of a table's rows in the named columns, as a multiset (``RowHashes``).

    Rows are hashed as JSON: neither the order of rows nor further columns count, the order within lists does.
    """
    hashes = RowHashes()
    for part in table.select(columns).iter_slices(_ROWS):
        hashes.add(_AS_JSON(row).encode("utf-8", "surrogatepass") for row in part.iter_rows())
    return hashes.hexdigest()
