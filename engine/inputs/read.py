"""Read the inputs of an evaluation and check them against each other: queries, runs, corpus, further tables.

Documents match by id or by text, as in the eRAG package, and gold articles by id or by title. Queries that share an
article are not independent: they are a cluster.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import polars as pl

from engine import tables
from engine.inputs.files import (
    ARTICLE,
    NO_INPUTS,
    OUTPUTS,
    EvaluationInputs,
    InputFiles,
    TableFile,
    empty_note,
    over,
    shares_much,
)
from engine.inputs.lists import IS_EVALUATED, HeldPart, Lists, Parts, named_by_id, read_lists
from engine.messages.errors import InputError
from engine.messages.notes import Note, count_note
from engine.messages.wording import quoted
from engine.sources.input_tables import InputTable
from engine.sources.io.locations import Location
from engine.sources.passages.index import CorpusInMemory, Listed
from engine.sources.queries.read import QuerySet, read_query_set
from engine.sources.runs.forms import WRITTEN
from engine.sources.runs.read import (
    AT,
    ID,
    RunsAndCorpus,
    read_runs_with_texts,
    split_runs,
    with_ids,
    with_query_ids,
)
from engine.sources.runs.scan import runs_within
from engine.sources.strangers import count_strangers, refuse_strangers
from engine.sources.traces.read import named_file, read_outputs
from engine.tables import ARTICLE_ID, DOC_ID, OUTPUT, PROVENANCE, QUERY, QUERY_ID, RUN, TEXT, TITLE

IDENTICAL = "identical_ids"
# Code of the note on queries that share much although `cluster` is not set.
SHARED = "queries_share_articles"
WRITTEN_PASSAGES, UNRANKED = "written_passage_lists", "unranked_rows"
_SKIPPED = "bad [record|records] of the corpus [was|were] left out (`skip_bad`)"
_UNANSWERABLE = (
    "[question is|questions are] marked as unanswerable in the queries file and [was|were] left out"
)
_UNANSWERED = "list[|s] of {} [has|have] no recorded output, and [is|are] left out end to end"
_UNLISTED = "recorded output[|s] of {} [is|are] of a query without a list"
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
    loaded: LoadedInputs | None = None,
) -> tuple[EvaluationInputs, Lists, Listed]:
    """Read the inputs of an evaluation at cutoff ``k``, and check them.

    Args:
        parts_of: makes the store of lists, from ``HeldPart.queries`` of all queries of the file.
        passages_of: makes the store of passages, from the corpus table of the runs' texts, or None.

    Returns:
        The inputs without runs and passages; the lists of all runs, with the ids of documents; and the passages that
        some run lists within the cutoff. Both may lie in files.
    """
    query_set, queries, lists, carried = listed_queries(
        files, k=k, parts_of=parts_of, on_rows=on_rows, loaded=loaded
    )
    judgments = Judgments(query_set, queries, _judged(files), files)
    numbering = query_set.numbering
    for name, table in judgments.tables.items():
        if tables.BY_TEXT not in table.columns or not table[tables.BY_TEXT].all():
            numbering.see(table[QUERY_ID].unique(maintain_order=True), files.tables[name].path)
    recorded, noted = _recorded(judgments, loaded, lists)
    numbering.check()
    passages = passages_of(carried)
    passages.expect(judgments.expected())
    lists = named_by_id(lists, passages, files.corpus)
    checked, fitting = judgments.check(passages)
    titled = passages.scan([ARTICLE_ID, TITLE])
    matched, unmatchable = match_titles(queries, query_set.titles, titled)
    size = 0 if files.corpus is None else passages.size  # the runs' own passages are listed
    matched, clustered = with_clusters(matched, query_set.groups, files.cluster)
    notes = (
        *query_set.notes,
        *numbering.notes(),
        *fitting,
        *noted,
        identical_note(lists, queries, passages),
        count_note("skipped_records", passages.skipped, _SKIPPED),
        count_note("unanswerable_queries", query_set.unanswerable, _UNANSWERABLE),
        empty_note(passages.count_empty()),
        count_note("corpus_passages", size, "passages of the corpus", printed=False),
        *_notes_on_runs(lists),
        clustered,
    )
    inputs = replace(
        NO_INPUTS,
        queries=matched,
        k=k,
        tables=checked | recorded,
        cut_runs=lists.cut_runs(),
        notes=notes,
        queries_file=files.queries,
        unmatchable=unmatchable,
        names=lists.names,
        fields=query_set.fields,
    )
    return inputs, lists, passages


def _notes_on_runs(lists: Lists) -> Iterator[Note]:
    what = "[query of the runs is|queries of the runs are] not in the queries file and [was|were] left out"
    yield count_note("ignored_queries", lists.ignored, what)
    what = "[list|lists] of passages [was|were] written as a text, and [was|were] taken as the list"
    yield count_note(WRITTEN_PASSAGES, lists.taken[WRITTEN], what)
    for names, rows in lists.taken.items():
        if names != WRITTEN:
            yield count_note(UNRANKED, rows, _UNRANKED.format(names))
    yield from lists.notes


def _recorded(
    judgments: Judgments, loaded: LoadedInputs | None, lists: Lists
) -> tuple[dict[str, pl.DataFrame], list[Note]]:
    """The recorded outputs of the queries evaluated, by id, and notes on lists and outputs that lack each other."""
    files, query_set, names = judgments.files, judgments.query_set, lists.names
    if not files.outputs:
        return {}, []
    outputs = loaded.outputs if loaded else None
    outputs = read_outputs(files.outputs) if outputs is None else outputs
    path, known, key = named_file(files.outputs[0])[1], query_set.table, [RUN, QUERY_ID]
    if len(names) == 1:
        outputs = outputs.with_columns(pl.col(RUN).replace("", names[0]))
    # Of every run: a score by the reader here would not compare with a recorded one.
    if (answered := {*outputs[RUN]}) != {*names}:
        shown, lists_of = (", ".join(map(quoted, sorted(runs))) for runs in (answered, names))
        problem = f"has outputs of {shown or 'no run'}, and lists are of {lists_of}"
        raise InputError(problem, "give each its outputs, as in RUN=FILE", "outputs.run", path=path)
    if outputs[QUERY_ID].is_in(known[QUERY_ID].implode()).any():
        query_set.numbering.see(outputs[QUERY_ID], path)
    outputs = with_query_ids(outputs, known)
    for run, query_id in outputs.filter(outputs.select(key).is_duplicated()).select(key).rows():
        problem = f"query {quoted(query_id)} has two outputs of the run {quoted(run)}"
        raise InputError(problem, "keep one", "outputs.twice", path=path)
    what = f"answers none of the {{}} [query|queries] of {query_set.numbering.path}"
    remedy = "name their ids or texts"
    others = count_strangers(outputs[QUERY_ID], known[QUERY_ID], what, remedy=remedy, path=path)
    what = "[query|queries] of recorded outputs [is|are] not in the queries file"
    notes = [count_note("outputs_of_others", others, what)]
    own = outputs.join(judgments.queries, on=QUERY_ID, how="semi", maintain_order="left")
    listed = pl.concat([rows.select(key).unique() for rows in lists])
    for code, part, other, what in (
        ("unanswered_lists", listed, own, _UNANSWERED),
        ("unlisted_outputs", own, listed, _UNLISTED),
    ):
        alone = part.join(other, on=key, how="anti")[RUN].value_counts().sort(RUN)
        notes += [count_note(code, amount, what, about=(run,)) for run, amount in alone.rows()]
    return {OUTPUTS: own.select(*key, OUTPUT)}, notes


class LoadedInputs(NamedTuple):
    """Queries and runs in memory, in place of files; ``InputFiles`` then has names for errors.

    ``passages``: the store of passages; by default the corpus of the files, or the runs' own texts. ``outputs``: as of
    ``read_outputs``; by default those of the files.
    """

    query_set: QuerySet
    runs: RunsAndCorpus
    passages: Listed | None = None
    outputs: pl.DataFrame | None = None


def _judged(files: InputFiles) -> dict[str, pl.DataFrame]:
    """The tables that annotators need; refused if they name documents of a single corpus beside several."""
    judged = {name: file.read() for name, file in files.tables.items()}
    by_id = [name for name, table in judged.items() if tables.BY_TEXT not in table.columns]
    if files.corpora and by_id:
        file = files.tables[by_id[0]]
        way = (
            "name it behind the file, as in FILE@NAME" if file.table.from_texts else "leave it out"
        )
        problem = f"`{by_id[0]}` names documents of one corpus, beside several"
        raise InputError(problem, f"{way}, or give one `corpus`", "inputs.corpus", path=file.path)
    return judged


def listed_queries(
    files: InputFiles,
    *,
    k: int,
    parts_of: Callable[[pl.DataFrame], Parts],
    on_rows: Callable[[int], None] = lambda rows: None,
    loaded: LoadedInputs | None = None,
) -> tuple[QuerySet, pl.DataFrame, Lists, pl.DataFrame | None]:
    """The first half of ``check_inputs``: queries and runs, without the corpus.

    Returns:
        All queries, those evaluated, their lists, and the corpus table of the texts that runs carry without a corpus.
    """
    query_set = read_queries_of(files) if loaded is None else loaded.query_set
    known, query_set.numbering.path = query_set.table, files.queries
    queries = known if files.limit is None else known.head(files.limit)
    together = loaded and loaded.runs
    within = [{} if loaded else runs_within(path) for path in files.run]
    if loaded is None and (files.corpus is None or any(within)):
        together = runs_with_texts(files)
    runs, carried, taken = together or (None, None, Counter())
    is_evaluated = (pl.int_range(pl.len()) < queries.height).alias(IS_EVALUATED)
    every_query = known.select(QUERY_ID, QUERY, is_evaluated)
    lists = read_lists(
        tuple(p for p, names in zip(files.run, within, strict=True) for _ in names or [p]),
        every_query,
        parts_of(every_query),
        k=k,
        numbering=query_set.numbering,
        ignore_identical_ids=files.ignore_identical_ids,
        loaded=runs,
        on_rows=on_rows,
    )
    lists = replace(lists, taken=lists.taken + taken, are_files=loaded is None)
    return query_set, queries, lists, carried


def read_inputs(
    files: InputFiles, *, k: int, loaded: LoadedInputs | None = None
) -> EvaluationInputs:
    """Read the inputs of an evaluation at cutoff ``k``; from the corpus only the listed passages.

    A run whose keys are not query ids is keyed by the texts of queries, and its documents may be texts
    of passages, as in the eRAG package: a text stands for every query, and for the first passage, that
    has it. Gold articles that the queries file names by title alone are matched with the titles of the
    listed passages (``check.match_titles``).

    Args:
        files: in layouts of ``read_query_set``, ``scan_corpus``, ``read_runs``; the default corpus is the runs' texts.

    Raises:
        InputError: a file cannot be used, no run lists any of the queries, a run lists a document
            that the corpus lacks, or judgments judge none of the queries.
    """

    def passages_of(carried: pl.DataFrame | None) -> Listed:
        if loaded and loaded.passages is not None:
            return loaded.passages
        if carried is not None:
            return CorpusInMemory(lambda skip: [carried])
        assert files.corpus is not None
        return CorpusInMemory.from_corpus(files.corpus, files.skip_bad)

    inputs, lists, listed = check_inputs(
        files, k=k, parts_of=HeldPart, passages_of=passages_of, loaded=loaded
    )
    corpus = pl.concat([tables.empty(tables.CORPUS), *listed.scan()])
    return replace(inputs, corpus=corpus, runs=lists.read(0))


def runs_with_texts(files: InputFiles) -> RunsAndCorpus:
    """The runs of an evaluation, with their passages if there is not a single corpus."""
    return read_runs_with_texts(files.run, carried=files.corpus is None, corpora=files.corpora)


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


def located(
    corpus: Location | Sequence[Location] | None,
    runs: Sequence[Location],
    tables: Mapping[str, Location],
    known: Mapping[str, InputTable],
) -> dict[str, Any]:
    """The fields of ``InputFiles`` from the names of files; with several corpora, runs and tables name their own."""
    corpora = corpus if isinstance(corpus, list | tuple) else ()
    files, owners = split_runs(runs, corpora)
    return {"run": files, "tables": table_files(tables, known, corpora), **over(owners or corpus)}


def table_files(
    paths: Mapping[str, Location], known: Mapping[str, InputTable], corpora: Sequence[Location] = ()
) -> dict[str, TableFile]:
    """The files that annotators need; beside several corpora one may name its own, as in ``split_runs``."""
    files = {}
    for name, path in paths.items():
        files[name] = TableFile(path, known[name])
        if AT in str(path) and len(corpora) > 1 and not Path(path).exists():
            (file,), (corpus,) = split_runs([path], corpora)
            files[name] = TableFile(file, known[name], corpus)
    return files


@dataclass(frozen=True)
class Judgments:
    """Human judgments, to check against the queries and the whole corpus.

    Attributes:
        queries: those evaluated.
        tables: tables that annotators need, for any queries, by the name of the input.
        files: their names in errors; without a corpus the runs carry the texts, so judged passages outside the lists
            are unknown.
    """

    query_set: QuerySet
    queries: pl.DataFrame
    tables: Mapping[str, pl.DataFrame]
    files: InputFiles

    def expected(self) -> dict[str, pl.Series]:
        """The ids that the corpus should have, by its column; titles of gold articles are matched elsewhere."""
        documents = [_documents(table) for table in self.tables.values()]
        titles = [title for names in self.query_set.titles.values() for title in names]
        gold = self.queries[tables.PROVENANCE].explode().drop_nulls()
        return {
            DOC_ID: pl.concat([pl.Series([], dtype=pl.String), *documents]),
            ARTICLE_ID: gold.filter(~gold.is_in(titles)),
        }

    def check(self, passages: Listed) -> tuple[dict[str, pl.DataFrame], list[Note]]:
        """The tables of the queries evaluated, and notes on rows that do not fit.

        Raises:
            InputError: a table judges none of the queries or no document of the corpus, or no gold article is in it.
        """
        judged: dict[str, pl.DataFrame] = {}
        notes: list[Note] = []
        corpus, is_needed = self.files.corpus, self.files.need_provenance
        where = "any list" if corpus is None else "the corpus"
        lacking, gold = passages.absent(DOC_ID), passages.absent(ARTICLE_ID)
        # The iterator of batches has no name: a traceback would keep it, and its connection, for another thread.
        some = next(
            (batch for batch in passages.scan([DOC_ID, ARTICLE_ID]) if not batch.is_empty()),
            tables.empty(tables.CORPUS),
        )
        known = some if corpus is not None else some.clear()  # of none, nothing is refused
        texts = self.query_set.table.select(
            pl.col(QUERY).alias(QUERY_ID), pl.col(QUERY_ID).alias(ID)
        )
        for name, table in self.tables.items():
            if tables.BY_TEXT in table.columns and table[tables.BY_TEXT].all():
                table = with_ids(table, texts, QUERY_ID)
            path, evaluated = self.files.tables[name].path, self.queries[QUERY_ID]
            what = f"judges none of the {{}} [query|queries] of {self.files.queries}"
            remedy = "give the judgments of these queries"
            count_strangers(table[QUERY_ID], evaluated, what, remedy=remedy, path=path)
            judged[name] = table.join(self.queries, on=QUERY_ID, how="semi", maintain_order="left")
            if tables.QRELS.keys() <= {*table.columns}:
                judged[name] = judged[name].with_columns(
                    pl.lit(table[tables.LABEL].max()).alias(tables.LARGEST)
                )
            others = table.join(self.query_set.table, on=QUERY_ID, how="anti")[QUERY_ID].n_unique()
            documents = _documents(table)
            lost = lacking.filter(lacking.is_in(documents.implode()))
            what, remedy = f"judges no document of {corpus}", "give judgments of this corpus"
            refuse_strangers(documents, lost, known[DOC_ID], what, remedy=remedy, path=path)
            what = "judged [query|queries] (`{}`) [is|are] not in the queries file"
            notes.append(count_note("judged_other_queries", others, what, about=[name]))
            what = f"judged [document|documents] (`{{}}`) [is|are] not in {where}"
            notes.append(count_note("judged_other_documents", len(lost), what, about=[name]))
        if is_needed:
            what, remedy = f"no gold article is in {corpus}", "give the corpus that was judged"
            wanted, path = self.expected()[ARTICLE_ID], self.files.queries
            refuse_strangers(wanted, gold, known[ARTICLE_ID], what, remedy=remedy, path=path)
        what = f"gold [article is|articles are] not in {where}"
        return judged, [
            *notes,
            count_note("gold_not_in_corpus", len(gold), what, printed=is_needed),
        ]


def _documents(table: pl.DataFrame) -> pl.Series:
    """The documents that a table of judgments names; unknown for judged texts."""
    if tables.BY_TEXT in table.columns:
        return table[DOC_ID].clear()
    return table[DOC_ID] if DOC_ID in table.columns else table[tables.SHOWN].explode().drop_nulls()


def identical_note(lists: Iterable[pl.DataFrame], queries: pl.DataFrame, passages: Listed) -> Note:
    """The number of lists with the query itself: a document with its id and its text."""
    own = pl.concat([rows.filter(pl.col(DOC_ID) == pl.col(QUERY_ID)) for rows in lists])
    texts = passages.get(own[DOC_ID].unique()).select(DOC_ID, TITLE, TEXT)
    both = own.join(queries.select(QUERY_ID, QUERY), on=QUERY_ID).join(texts, on=DOC_ID)
    text = pl.col(TEXT).str.strip_chars()
    with_title = pl.concat_str(pl.col(TITLE), pl.col(TEXT), separator=" ").str.strip_chars()
    query = pl.col(QUERY).str.strip_chars()
    what = "[list holds its query|lists hold their query] as a document, with its id and its text; "
    what += "`ignore_identical_ids` leaves it out, as BEIR does"
    return count_note(IDENTICAL, both.filter((text == query) | (with_title == query)).height, what)


def match_titles(
    queries: pl.DataFrame, titles: Mapping[str, Sequence[str]], passages: Iterable[pl.DataFrame]
) -> tuple[pl.DataFrame, tuple[str, ...]]:
    """The queries, with the ids of the listed articles that have these titles in ``provenance``; and unmatchable ids.

    All articles with the same title are gold. A title without a listed passage stays, and means the corpus' article of
    that name; a title of digits does not, since another article may have it as its page id. Titles cannot be matched if
    no listed passage has a title, and no article has such a name.

    Args:
        titles: titles in ``provenance``, by query id.
        passages: the listed passages, in batches.
    """
    if not titles:
        return queries, ()
    wanted = pl.Series(list({t for names in titles.values() for t in names}), dtype=pl.String)
    title = pl.col(TITLE).str.strip_chars()
    is_gold = title.is_in(wanted.implode()) | pl.col(ARTICLE_ID).is_in(wanted.implode())
    articles_of: dict[str, dict[str, None]] = {}
    called, headed = set[str](), set[str]()
    is_titled = False
    for batch in passages:
        is_titled = is_titled or batch.select((title != "").any()).item()
        named = batch.filter(is_gold).select(ARTICLE_ID, title).unique(maintain_order=True)
        for article, name in named.iter_rows():
            called.add(article)
            if name:
                headed.add(article)
                articles_of.setdefault(name, {})[article] = None

    def articles(query_id: str, name: str) -> Iterable[str]:
        if name not in titles.get(query_id, ()):
            return (name,)
        if name in articles_of:
            return articles_of[name]
        return () if name.isdecimal() and name in headed else (name,)

    gold = [
        list(dict.fromkeys(article for name in names for article in articles(query_id, name)))
        for query_id, names in queries.select(QUERY_ID, PROVENANCE).iter_rows()
    ]
    matched = queries.with_columns(pl.Series(PROVENANCE, gold, dtype=pl.List(pl.String)))
    by_title = [q for q in queries[QUERY_ID] if q in titles]
    is_matchable = is_titled or any(called.intersection(titles[q]) for q in by_title)
    return matched, () if is_matchable else tuple(by_title)


def with_clusters(
    queries: pl.DataFrame, groups: Mapping[str, str], cluster: str | None
) -> tuple[pl.DataFrame, Note]:
    """The queries, with their ``cluster`` (from 0, in the order of the queries); and a note on these.

    By article, a query belongs to its gold article if other queries name it as well: among several, to the one that
    most queries name. A query with no such article belongs to its context, or to its text, if other queries have the
    same. All others are clusters by themselves.

    Args:
        queries: with their titles matched.
        groups: ``QuerySet.groups``, for ``cluster``.
        cluster: a column of the queries file, "article", or None for clusters by article that no figure uses.
    """
    by_article = cluster in (None, ARTICLE)
    own = map(groups.get, queries[QUERY_ID])
    keys = enumerate(_shared(queries, groups) if by_article else own)
    numbers: dict[object, int] = {}
    codes = [
        numbers.setdefault(place if key is None else ("", key), len(numbers)) for place, key in keys
    ]
    clustered = queries.with_columns(pl.Series(tables.CLUSTER, codes, dtype=pl.Int64))
    text = f"{queries.height} queries are in {len(numbers)} clusters"
    if cluster is not None:
        by = f"{text} by `cluster` {cluster}: intervals and p-values take clusters as independent"
        return clustered, Note("clusters", len(numbers), by)
    text += (
        " of a common gold article, context or text, but intervals and p-values assume independent "
    )
    text += f"queries, and may be too narrow: `cluster` {ARTICLE} takes clusters as independent"
    return clustered, Note(SHARED, len(numbers) if shares_much(codes) else 0, text)


def column_of(cluster: str | None) -> str | None:
    """The column of the queries file that is needed for clusters, if any is."""
    return None if cluster == ARTICLE else cluster


def _shared(queries: pl.DataFrame, groups: Mapping[str, str]) -> Iterator[tuple[str, str] | None]:
    """The key that each query shares with others; None if it shares nothing."""
    naming = Counter(name for names in queries[PROVENANCE] for name in set(names))
    having = Counter(groups.get(query_id) for query_id in queries[QUERY_ID])
    asking = Counter(queries[QUERY])
    rows = queries.select(QUERY_ID, QUERY, PROVENANCE).iter_rows()
    for query_id, query, names in rows:
        article = max(names, key=naming.__getitem__, default=None)
        context = groups.get(query_id)
        if article is not None and naming[article] > 1:
            yield PROVENANCE, article
        elif context is not None and having[context] > 1:
            yield "", context
        else:
            yield (QUERY, query) if asking[query] > 1 else None
