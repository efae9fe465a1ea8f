"""Read the inputs of an evaluation and check them against each other: queries, runs, corpus, further tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import polars as pl

from engine import tables
from engine.inputs.check import (
    Judgments,
    column_of,
    identical_note,
    match_titles,
    named_by_id,
    with_clusters,
)
from engine.inputs.files import NO_INPUTS, EvaluationInputs, InputFiles, TableFile, empty_note
from engine.inputs.lists import IS_EVALUATED, HeldPart, Lists, Parts, read_lists
from engine.messages.errors import InputError
from engine.messages.notes import Note, count_note
from engine.sources.input_tables import InputTable
from engine.sources.io.locations import Location
from engine.sources.passages.index import Collected, Listed
from engine.sources.queries.read import QuerySet, read_query_set
from engine.sources.runs.forms import WRITTEN, runs_within
from engine.sources.runs.read import AT, Together, read_runs_over, read_runs_with_texts, split_runs
from engine.tables import QUERY, QUERY_ID, TITLE

WRITTEN_PASSAGES, UNRANKED = "written_passage_lists", "unranked_rows"
_UNRANKED = (
    "[row|rows] of runs without rank and score [was|were] taken as [it stands|they stand], though they have numbers: call "
    "{} rank or score if it orders them"
)


def check_inputs(
    files: InputFiles,
    *,
    k: int,
    parts_of: Callable[[pl.DataFrame], Parts],
    passages_of: Callable[[pl.DataFrame | None], Listed],
    on_rows: Callable[[int], None] = lambda rows: None,
    given: LoadedInputs | None = None,
) -> tuple[EvaluationInputs, Lists, Listed]:
    """Read what an evaluation at cutoff ``k`` needs, and check it.

    Args:
        parts_of: gives the place for lists, for ``Parts.queries`` of all queries of the file.
        passages_of: gives the place for passages, for the corpus table of what the runs carry, or None.

    Returns:
        The inputs without runs and passages; the lists of all runs, with the ids of documents; and the passages that
        some run lists within the cutoff. Both may lie in files.
    """
    query_set, queries, lists, carried = listed_queries(
        files, k=k, parts_of=parts_of, on_rows=on_rows, given=given
    )
    judgments = Judgments(query_set, queries, _judged(files), files)
    numbering = query_set.numbering
    for name, table in judgments.tables.items():
        if tables.BY_TEXT not in table.columns or not table[tables.BY_TEXT].all():
            numbering.see(table[QUERY_ID].unique(maintain_order=True), files.tables[name].path)
    numbering.check()
    passages = passages_of(carried)
    passages.expect(judgments.expected())
    lists = named_by_id(lists, passages, files.corpus)
    checked, fitting = judgments.check(passages)
    matched, unmatchable = match_titles(
        queries, query_set.titles, passages.scan([tables.ARTICLE_ID, TITLE])
    )
    size = 0 if files.corpus is None else passages.size  # what runs carry is listed
    matched, clustered = with_clusters(matched, query_set.groups, files.cluster)
    notes = (
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
        empty_note(passages.count_empty()),
        count_note("corpus_passages", size, "passages of the corpus", printed=False),
        *_notes_on_runs(lists),
        clustered,
    )
    inputs = replace(
        NO_INPUTS,
        queries=matched,
        k=k,
        tables=checked,
        cut_runs=lists.cut_runs(),
        notes=notes,
        queries_file=files.queries,
        unmatchable=unmatchable,
        names=lists.names,
        fields=query_set.fields,
    )
    return inputs, lists, passages


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


class LoadedInputs(NamedTuple):
    """Queries and runs that were read before, in the place of files, of which ``InputFiles`` then has names for errors."""

    query_set: QuerySet
    runs: Together


def _judged(files: InputFiles) -> dict[str, pl.DataFrame]:
    """The tables that annotators need; refused where they name documents of one corpus beside several."""
    judged = {name: file.read() for name, file in files.tables.items()}
    by_id = [name for name, table in judged.items() if tables.BY_TEXT not in table.columns]
    if files.corpora and by_id:
        file = files.tables[by_id[0]]
        way = "name it behind the file, as in FILE@NAME" if file.table.of_texts else "leave it out"
        raise InputError(
            f"`{by_id[0]}` names documents of one corpus, beside several",
            f"{way}, or give one `corpus`",
            path=file.path,
        )
    return judged


def listed_queries(
    files: InputFiles,
    *,
    k: int,
    parts_of: Callable[[pl.DataFrame], Parts],
    on_rows: Callable[[int], None] = lambda rows: None,
    given: LoadedInputs | None = None,
) -> tuple[QuerySet, pl.DataFrame, Lists, pl.DataFrame | None]:
    """The first half of ``check_inputs``: queries and runs, without the corpus.

    Returns:
        All queries, those evaluated, their lists, and the corpus table of the texts that runs carry without a corpus.
    """
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
    return query_set, queries, lists, carried


def read_inputs(
    files: InputFiles, *, k: int, passages: Listed | None = None, given: LoadedInputs | None = None
) -> EvaluationInputs:
    """Read what an evaluation at cutoff ``k`` needs; of the corpus only the listed passages.

    A run whose keys are not query ids is keyed by the texts of queries, and its documents may be texts
    of passages, as in the eRAG package: a text stands for every query, and for the first passage, that
    has it. Gold articles that the queries file names by title alone are matched with the titles of the
    listed passages (``check.match_titles``).

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

    inputs, lists, listed = check_inputs(
        files, k=k, parts_of=HeldPart, passages_of=passages_of, given=given
    )
    corpus = pl.concat([tables.empty(tables.CORPUS), *listed.scan()])
    return replace(inputs, corpus=corpus, runs=lists.read(0))


def read_queries_of(files: InputFiles) -> QuerySet:
    """The queries of an evaluation, with their answers."""
    remedy = "add them, or give `answers` FILE"
    if files.without_answers:
        names = ", ".join(files.without_answers)
        remedy += f"; no answers are needed with `no_end_to_end` and the annotators {names}"
    return read_query_set(
        files.queries,
        need_answers=files.need_answers,
        answers=files.answers,
        column=column_of(files.cluster),
        remedy=remedy,
    )


def table_files(
    given: Mapping[str, Location], known: Mapping[str, InputTable], corpora: Sequence[Location] = ()
) -> dict[str, TableFile]:
    """The files that annotators need; beside several corpora one may name its own, as in ``split_runs``."""
    files = {}
    for name, path in given.items():
        files[name] = TableFile(path, known[name])
        if AT in str(path) and len(corpora) > 1 and not Path(path).exists():
            (file,), (corpus,) = split_runs([path], corpora)
            files[name] = TableFile(file, known[name], corpus)
    return files
