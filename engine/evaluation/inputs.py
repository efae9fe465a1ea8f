"""Read the inputs of an evaluation and check them against each other: queries, runs, corpus, further tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import polars as pl

from engine import tables
from engine.evaluation.corpora import read_runs_over
from engine.evaluation.documents import named_by_id
from engine.evaluation.fitting import Judgments, identical_note
from engine.evaluation.lists import IS_EVALUATED, HeldPart, Lists, Parts, read_lists
from engine.evaluation.query_clusters import column_of, with_clusters
from engine.evaluation.settings import Settings
from engine.evaluation.titles import match_titles, with_titles, without_titles
from engine.labels.annotator import InputTable
from engine.labels.registry import ANNOTATORS
from engine.labels.resolved import needed_by
from engine.messages.checked import Checked, Natural, Positive
from engine.messages.errors import InputError
from engine.messages.notes import Note, count_note
from engine.sources.io.locations import Location
from engine.sources.passages.listed import Collected, Listed
from engine.sources.queries.read import QuerySet, read_query_set
from engine.sources.runs.forms import runs_within
from engine.sources.runs.records import WRITTEN
from engine.sources.runs.texts import Together, read_runs_with_texts
from engine.tables import DOC_ID, QUERY, QUERY_ID, RANK, RUN, TEXT, TITLE

WRITTEN_PASSAGES, UNRANKED = "written_passage_lists", "unranked_rows"
_UNRANKED = (
    "[row|rows] of runs without rank and score [was|were] taken as [it stands|they stand], though they have numbers: call "
    "{} rank or score if it orders them"
)
_EMPTY_PASSAGES = "empty_passages"
_LISTS: tables.Schema = {RUN: pl.String(), QUERY_ID: pl.String()}


@dataclass(frozen=True, kw_only=True)
class InputFiles(Checked):
    """The files of an evaluation, and how much of them is used.

    Attributes:
        queries: Questions with answers (and provenance): KILT JSONL, plain JSONL, CSV, SQuAD or Parquet.
        corpus: The passages: Parquet (a file or shards), JSONL, JSON, CSV, BEIR, or DPR's TSV. Not needed where
            runs carry the texts of their passages. Several may be given, as cuts of the same documents: each run then
            names its own, as in mine.trec@words-100.parquet (docs/guide/chunking.md).
        run: Ranked lists: TREC text, Parquet, JSON or JSONL, with the texts of passages or without. Several
            may be given.
        limit: Evaluate only the first queries, this many of them.
        skip_bad: Leave out bad records of the corpus, up to this many, and count them.
        answers: Reference answers by query id, where the queries file has none or others: JSONL, JSON, CSV
            or Parquet with an id and answers, or any layout of queries.
        ignore_identical_ids: Leave out of each list, before the cut at `k`, a document that has the id of its query, as
            BEIR does (ArguAna, Quora).
        need_answers: whether a query without answers is an error; ``Settings.needs_answers`` says it.
        need_provenance: whether an annotator needs gold articles; ``Settings.needs_provenance`` says it.
        cluster: what queries are clustered by; ``Bootstrap.cluster`` says it.
        tables: files that annotators need, by the name of their input (``labels.annotator.InputTable``).
        corpora: in place of ``corpus``, where there are several, that of each run (``corpora.split_runs``).
        judged: the corpus whose documents a table judges, by the name of its input (``corpora.split_tables``).

    Raises:
        InputError: a number out of range, or something that names documents of one corpus beside several.
    """

    queries: Location
    corpus: Location | None = None
    run: tuple[Location, ...]
    limit: Positive | None = None
    skip_bad: Natural = 0
    answers: Location | None = None
    ignore_identical_ids: bool = False
    need_answers: bool = True
    need_provenance: bool = False
    cluster: str | None = None
    tables: Mapping[str, Location] = field(default_factory=dict)
    corpora: tuple[Location, ...] = ()
    judged: Mapping[str, Location] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.corpora and self.skip_bad:
            problem = "`skip_bad` with several corpora"
            raise InputError(problem, "leave it out, or give one `corpus`")


# Compared by identity: tables have no equality that is true or false.
@dataclass(frozen=True, kw_only=True, eq=False)
class EvaluationInputs:
    """Tables that fit together: every run row has its query and its passage.

    Attributes:
        queries: the queries table, with their ``cluster``.
        corpus: the passages that some run lists within the cutoff.
        runs: the run table, cut at the cutoff, of the queries evaluated.
        names: of all runs, in order, of which some may list nothing; empty for the runs that occur.
        k: the cutoff that the runs were cut at, passages per query; None for runs that were never cut.
        tables: what annotators need, by the name of their input: judgments of the queries evaluated.
        cut_runs: names of runs that list more passages than the cutoff keeps.
        queries_file: where the queries come from, to name the line of one that cannot be used; None
            for tables that were not read from a file.
        unmatchable: queries whose gold articles are named by title alone, where no listed passage has a
            title to match.
        fields: as in ``QuerySet``.
        unread, unlabelled: ``run``, ``query_id`` of lists that are not read whole, and of those without scores by labels,
            which ``runs`` lacks: of runs that were read enough.
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
        """``run`` and ``query_id`` of all lists, empty ones included, less those that are ``unlabelled``."""
        names = pl.DataFrame({RUN: self.run_names}, {RUN: pl.String})
        lists = names.join(self.queries.select(QUERY_ID), how="cross", maintain_order="left_right")
        return lists.join(self.unlabelled, on=list(_LISTS), how="anti", maintain_order="left")


NO_INPUTS = EvaluationInputs(
    queries=tables.empty(tables.QUERIES),
    corpus=tables.empty(tables.CORPUS),
    runs=tables.empty(tables.RUNS),
)
"""Stands for the inputs of an evaluation that no process holds as a whole."""


def input_tables() -> dict[str, InputTable]:
    """The files that the engine's annotators need, by the name of the input."""
    needed = (annotator.needs_input for annotator in ANNOTATORS.values())
    return {table.name: table for table in needed if table is not None}


@dataclass(frozen=True, kw_only=True, eq=False)
class CheckedInputs:
    """All inputs of an evaluation, read and checked against each other; lists and passages may lie in files.

    Attributes:
        queries: the queries evaluated, with gold articles that are named by title matched, and clusters.
        lists: of all runs, with the ids of documents.
        passages: those that some run lists within the cutoff.
        unmatchable, fields: as in ``EvaluationInputs``.
    """

    queries: pl.DataFrame
    lists: Lists
    passages: Listed
    tables: Mapping[str, pl.DataFrame]
    notes: tuple[Note, ...]
    unmatchable: tuple[str, ...]
    fields: Mapping[str, Mapping[str, str]]


def check_inputs(
    files: InputFiles,
    *,
    k: int,
    parts_of: Callable[[pl.DataFrame], Parts],
    passages_of: Callable[[pl.DataFrame | None], Listed],
    on_rows: Callable[[int], None] = lambda rows: None,
    given: Given | None = None,
) -> CheckedInputs:
    """Read what an evaluation at cutoff ``k`` needs, and check it.

    Args:
        parts_of: gives the place for lists, for ``Parts.queries`` of all queries of the file.
        passages_of: gives the place for passages, for the corpus table of what the runs carry, or None.
    """
    query_set, queries, lists, carried = listed_queries(
        files, k=k, parts_of=parts_of, on_rows=on_rows, given=given
    )
    judged = _judged(files)
    judgments = Judgments(
        query_set=query_set,
        queries=queries,
        tables=judged if given is None else given.tables,
        paths=files.tables if given is None else {name: name for name in given.tables},
        queries_file=files.queries,
        corpus=files.corpus,
        need_provenance=files.need_provenance,
    )
    numbering = query_set.numbering
    for name, table in judgments.tables.items():
        if tables.BY_TEXT not in table.columns or not table[tables.BY_TEXT].all():
            numbering.see(table[QUERY_ID].unique(maintain_order=True), judgments.paths[name])
    numbering.check()
    passages = passages_of(carried)
    passages.expect(judgments.expected())
    lists = named_by_id(lists, passages, files.corpus)
    checked, fitting = judgments.check(passages)
    listed = with_titles(query_set.titles, passages.scan([tables.ARTICLE_ID, TITLE]))
    matched = match_titles(queries, query_set.titles, listed)
    size = 0 if files.corpus is None else passages.size  # what runs carry is listed
    matched, clustered = with_clusters(matched, query_set.groups, files.cluster)
    return CheckedInputs(
        queries=matched,
        lists=lists,
        passages=passages,
        tables=checked,
        notes=(
            *query_set.notes,
            *numbering.notes(),
            *fitting,
            identical_note(lists, queries, passages),
            count_note(
                "skipped_records",
                passages.skipped,
                "bad [record|records] of the corpus [was|were] left out (`skip_bad`)",
            ),
            count_note(
                "unanswerable_queries",
                query_set.unanswerable,
                "[question is|questions are] marked as unanswerable in the queries file and [was|were] left out",
            ),
            _empty_note(passages.count_empty()),
            count_note("corpus_passages", size, "passages of the corpus", printed=False),
            *_notes_on_runs(lists),
            clustered,
        ),
        unmatchable=without_titles(queries, query_set.titles, listed),
        fields=query_set.fields,
    )


def _notes_on_runs(lists: Lists) -> Iterator[Note]:
    yield count_note(
        "ignored_queries",
        lists.ignored,
        "[query of the runs is|queries of the runs are] not in the queries file and [was|were] left out",
    )
    yield count_note(
        WRITTEN_PASSAGES,
        lists.taken[WRITTEN],
        "[list|lists] of passages [was|were] written as a text, and [was|were] taken as the list",
    )
    unranked = ((names, rows) for names, rows in lists.taken.items() if names != WRITTEN)
    for names, rows in unranked:
        yield count_note(UNRANKED, rows, _UNRANKED.format(names))
    yield from lists.notes


class Given(NamedTuple):
    """Inputs that were read before, in the place of files of which ``InputFiles`` then has names for errors."""

    query_set: QuerySet
    runs: Together
    tables: Mapping[str, pl.DataFrame]


def _judged(files: InputFiles) -> dict[str, pl.DataFrame]:
    """The tables that annotators need; refused where they name documents of one corpus beside several."""
    judged, known = {}, input_tables()
    for name, path in files.tables.items():
        corpus, of_texts = files.judged.get(name), known[name].of_texts
        judged[name] = of_texts(path, corpus) if corpus and of_texts else known[name].read(path)
    by_id = [name for name, table in judged.items() if tables.BY_TEXT not in table.columns]
    if files.corpora and by_id:
        raise InputError(
            f"`{by_id[0]}` names documents of one corpus, beside several",
            f"{'name it behind the file, as in FILE@NAME' if known[by_id[0]].of_texts else 'leave it out'}, or give one `corpus`",
            path=files.tables[by_id[0]],
        )
    return judged


class ListedQueries(NamedTuple):
    """Queries, what the runs list for them, and the corpus table of the texts that they carry without a corpus."""

    query_set: QuerySet
    queries: pl.DataFrame
    lists: Lists
    carried: pl.DataFrame | None


def listed_queries(
    files: InputFiles,
    *,
    k: int,
    parts_of: Callable[[pl.DataFrame], Parts],
    on_rows: Callable[[int], None] = lambda rows: None,
    given: Given | None = None,
) -> ListedQueries:
    """The first half of ``check_inputs``: queries and runs, without the corpus."""
    query_set = read_queries_of(files) if given is None else given.query_set
    known, query_set.numbering.path = query_set.table, files.queries
    queries = known if files.limit is None else known.head(files.limit)
    together = given and given.runs
    within = [{} if given else runs_within(path) for path in files.run]
    if over := files.corpora:
        together = read_runs_over(files.run, over)
    elif given is None and (files.corpus is None or any(within)):
        together = read_runs_with_texts(files.run, carried=files.corpus is None)
    runs, carried, taken = together or (None, None, Counter())
    is_evaluated = (pl.int_range(pl.len()) < queries.height).alias(IS_EVALUATED)
    asked = known.select(QUERY_ID, QUERY, is_evaluated)
    lists = read_lists(
        tuple(p for p, names in zip(files.run, within, strict=True) for _ in names or [p]),
        asked,
        parts_of(asked),
        k=k,
        numbering=query_set.numbering,
        ignore_identical_ids=files.ignore_identical_ids,
        given=runs,
        on_rows=on_rows,
    )
    lists = replace(lists, taken=lists.taken + taken, are_files=given is None)
    return ListedQueries(query_set, queries, lists, carried)


def read_inputs(
    files: InputFiles, *, k: int, passages: Listed | None = None, given: Given | None = None
) -> EvaluationInputs:
    """Read what an evaluation at cutoff ``k`` needs; of the corpus only the listed passages.

    A run whose keys are not query ids is keyed by the texts of queries, and its documents may be texts
    of passages, as in the eRAG package: a text stands for every query, and for the first passage, that
    has it. Gold articles that the queries file names by title alone are matched with the titles of the
    listed passages (``titles.match_titles``).

    Args:
        files: in any layout of ``read_query_set``, ``scan_corpus`` and ``read_runs``; without a corpus, its passages are the texts that the runs carry (``read_runs_with_texts``).
        passages: where passages are looked up; by default in the corpus of the files, or in what runs carry.

    Raises:
        InputError: a file cannot be used, no run lists any of the queries, a run lists a document
            that the corpus lacks, or judgments judge none of the queries.
    """

    def passages_of(carried: pl.DataFrame | None) -> Listed:
        if passages is not None:
            return passages
        if carried is not None:
            return Collected.of_batches(lambda: [carried])
        assert files.corpus is not None
        return Collected.of_corpus(files.corpus, files.skip_bad)

    checked = check_inputs(files, k=k, parts_of=HeldPart, passages_of=passages_of, given=given)
    rows = checked.lists.read(0, k + 1)
    is_kept = rows[RANK] <= k
    return EvaluationInputs(
        queries=checked.queries,
        corpus=pl.concat([tables.empty(tables.CORPUS), *checked.passages.scan()]),
        runs=rows.filter(is_kept),
        k=k,
        tables=checked.tables,
        cut_runs=tuple(rows.filter(~is_kept)[RUN].unique(maintain_order=True)),
        notes=checked.notes,
        names=checked.lists.names,
        queries_file=files.queries,
        unmatchable=checked.unmatchable,
        fields=checked.fields,
    )


def read_queries_of(files: InputFiles) -> QuerySet:
    """The queries of an evaluation, with their answers."""
    settings = Settings()
    without = (
        known.name
        for known in ANNOTATORS.values()
        if not any(needed.needs_answers for needed in needed_by(known, settings))
    )
    return read_query_set(
        files.queries,
        need_answers=files.need_answers,
        answers=files.answers,
        column=column_of(files.cluster),
        remedy="add them, or give `answers` FILE; no answers are needed with `no_end_to_end` and the "
        f"annotators {', '.join(without)}",
    )


def cut_inputs(inputs: EvaluationInputs, k: int) -> EvaluationInputs:
    """The inputs at cutoff ``k``; themselves where that is what they were cut at.

    Raises:
        InputError: they were cut at a smaller one, and what stood below is unknown.
    """
    if inputs.k == k:
        return inputs
    if inputs.k is not None and inputs.k < k:
        raise InputError(
            f"`k` {k} exceeds the {inputs.k} passages per query that the inputs were read with",
            f"read them with `k` {k}, or evaluate with `k` {inputs.k} or less",
        )
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


def with_empty(notes: Sequence[Note], empty: int) -> tuple[Note, ...]:
    """Notes as of ``check_inputs``, with another number of listed passages without text."""
    return tuple(_empty_note(empty) if note.code == _EMPTY_PASSAGES else note for note in notes)


def _empty_note(empty: int) -> Note:
    return count_note(_EMPTY_PASSAGES, empty, "listed [passage has|passages have] no text")
