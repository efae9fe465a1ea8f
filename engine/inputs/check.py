"""Check inputs against each other: documents, judgments and gold articles with the corpus, and queries among themselves.

Documents are found by id or by text, as in the eRAG package, and gold articles by id or by title. Queries that share an
article are not independent: they are a cluster.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import polars as pl

from engine import tables
from engine.inputs.files import ARTICLE, InputFiles, shares_much
from engine.inputs.lists import Lists
from engine.messages.errors import InputError
from engine.messages.notes import Note, count_note
from engine.messages.wording import quoted
from engine.sources.io.locations import Location
from engine.sources.io.records import read_lines
from engine.sources.passages.index import Listed
from engine.sources.queries.read import QuerySet
from engine.sources.runs.forms import is_trec
from engine.sources.runs.read import ID, with_ids
from engine.sources.strangers import count_strangers, refuse_strangers
from engine.tables import (
    ARTICLE_ID,
    BY_TEXT,
    CLUSTER,
    DOC_ID,
    LABEL,
    LARGEST,
    PROVENANCE,
    QUERY,
    QUERY_ID,
    RANK,
    RUN,
    TEXT,
    TITLE,
)

IDENTICAL = "identical_ids"
# Code of the note on queries that share much although nobody asked for clusters.
SHARED = "queries_share_articles"
_GIVE_TEXTS = "give `corpus`, or write the texts of passages into the run"


def named_by_id(lists: Lists, passages: Listed, corpus: Location | None) -> Lists:
    """The lists with ids of documents, whose passages are looked up, in place of texts of passages.

    Raises:
        InputError: the corpus cannot be used, lacks a document, or a run lists a document by its id and by
            its text.
    """
    texts = [pl.Series([], dtype=pl.String)]
    lacks_some = False
    for ids in lists.map(lambda rows: rows[DOC_ID].unique()):
        unknown = passages.look_up(ids)
        # Texts hold white space and ids of TREC runs cannot, so the corpus is looked through only for texts; those
        # that runs carry have ids by now.
        is_text = unknown.str.contains(r"\s") & (corpus is not None)
        texts.append(unknown.filter(is_text))
        lacks_some = lacks_some or not is_text.all()
    wanted = pl.concat(texts).str.normalize("NFC").unique()  # as the corpus is read
    if not wanted.is_empty():
        named = passages.look_up_texts(wanted)
        lacks_some = lacks_some or named.height < len(wanted)
        lists = replace(
            lists, texts=named.select(pl.col(TEXT).alias(DOC_ID), pl.col(DOC_ID).alias(ID))
        )
        _refuse_twice(lists)
    if lacks_some:
        _refuse_lost(lists, passages, corpus)
    return lists


_Row = tuple[str, str, int, str]


def _first(lists: Lists, fault: Callable[[pl.DataFrame], pl.DataFrame]) -> _Row | None:
    """Run, query id, rank and document id of the first row that has a fault, in this order."""
    found: list[_Row] = []
    for rows in lists:
        faulty = fault(rows).select(RUN, QUERY_ID, RANK, DOC_ID)
        found += faulty.sort(RUN, QUERY_ID, RANK).head(1).rows()
    return min(found, default=None)


def _refuse_twice(lists: Lists) -> None:
    twice = pl.struct(RUN, QUERY_ID, DOC_ID).is_duplicated()
    first = _first(lists, lambda rows: rows.filter(twice))
    if first is not None:
        name, query_id, _, doc_id = first
        raise InputError(
            f"document {quoted(doc_id)} comes into the list of query {quoted(query_id)} twice, "
            "by its id and by its text",
            "name it once",
            path=lists.path_of(name),
        )


def _refuse_lost(lists: Lists, passages: Listed, corpus: Location | None) -> None:
    hashes = np.array([], dtype=np.uint64)

    def lost(rows: pl.DataFrame) -> pl.DataFrame:
        nonlocal hashes
        unknown = passages.unknown(rows[DOC_ID].unique())
        # 8 bytes a document that is lost, of which there may be as many as rows.
        hashes = np.union1d(hashes, unknown.hash().to_numpy())
        return rows.filter(pl.col(DOC_ID).is_in(unknown.implode()))

    first = _first(lists, lost)
    if first is None:
        return
    name, query_id, _, doc_id = first
    path = lists.path_of(name)
    line = _line_of(path, query_id, doc_id) if lists.are_files else None
    texts = _GIVE_TEXTS if lists.are_files else "give `passages`, or runs with texts"
    remedy = texts if corpus is None else "give the corpus that the run was made from"
    more = f" and {len(hashes) - 1} more" if len(hashes) > 1 else ""
    where = "without a text in any run" if corpus is None else f"not in the corpus {corpus}"
    raise InputError(
        f"document {quoted(doc_id)} of query {quoted(query_id)}{more} {where}",
        remedy,
        path=path,
        line=line,
    )


def _line_of(path: Location, query_id: str, doc_id: str) -> int | None:
    """Where a TREC file lists a document; only looked up to word an error."""
    lines = read_lines(path, "a run") if is_trec(path) else ()
    sought = [query_id, doc_id]
    return next((number for number, line in lines if line.split()[0:3:2] == sought), None)


@dataclass(frozen=True)
class Judgments:
    """What people judged, to be looked up among the queries and in the whole corpus.

    Attributes:
        queries: those evaluated.
        tables: what annotators need, of whatever queries, by the name of the input.
        files: what errors call these; without a corpus the runs carry the texts, so that passages which are judged
            and not listed cannot be known.
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
        """The tables of the queries evaluated, and how much of them does not fit.

        Raises:
            InputError: a table judges none of the queries or no document of the corpus, or no gold article is in it.
        """
        found: dict[str, pl.DataFrame] = {}
        notes: list[Note] = []
        corpus, is_needed = self.files.corpus, self.files.need_provenance
        where = "any list" if corpus is None else "the corpus"
        lacking, gold = passages.absent(DOC_ID), passages.absent(ARTICLE_ID)
        # No name for what gives batches: an error's traceback would keep it, and its connection, for another thread.
        some = next(
            (batch for batch in passages.scan([DOC_ID, ARTICLE_ID]) if not batch.is_empty()),
            tables.empty(tables.CORPUS),
        )
        known = some if corpus is not None else some.clear()  # of none, nothing is refused
        texts = self.query_set.table.select(
            pl.col(QUERY).alias(QUERY_ID), pl.col(QUERY_ID).alias(ID)
        )
        for name, given in self.tables.items():
            by_text = BY_TEXT in given.columns and given[BY_TEXT].all()
            table = with_ids(given, texts, QUERY_ID) if by_text else given
            path, asked = self.files.tables[name].path, self.queries[QUERY_ID]
            what = f"judges none of the {{}} [query|queries] of {self.files.queries}"
            remedy = "give the judgments of these queries"
            count_strangers(table[QUERY_ID], asked, what, remedy=remedy, path=path)
            found[name] = table.join(self.queries, on=QUERY_ID, how="semi", maintain_order="left")
            if tables.QRELS.keys() <= {*table.columns}:
                found[name] = found[name].with_columns(pl.lit(table[LABEL].max()).alias(LARGEST))
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
        return found, [*notes, count_note("gold_not_in_corpus", len(gold), what, printed=is_needed)]


def _documents(table: pl.DataFrame) -> pl.Series:
    """The documents that a table of judgments is about; of judged texts nobody knows."""
    if BY_TEXT in table.columns:
        return table[DOC_ID].clear()
    return table[DOC_ID] if DOC_ID in table.columns else table[tables.SHOWN].explode().drop_nulls()


def identical_note(lists: Iterable[pl.DataFrame], queries: pl.DataFrame, passages: Listed) -> Note:
    """How many lists hold the query itself, a document with its id and its text."""
    own = pl.concat([rows.filter(pl.col(DOC_ID) == pl.col(QUERY_ID)) for rows in lists])
    texts = passages.get(own[DOC_ID].unique()).select(DOC_ID, TITLE, TEXT)
    both = own.join(queries.select(QUERY_ID, QUERY), on=QUERY_ID).join(texts, on=DOC_ID)
    text = pl.col(TEXT).str.strip_chars()
    with_title = pl.concat_str(pl.col(TITLE), pl.col(TEXT), separator=" ").str.strip_chars()
    query = pl.col(QUERY).str.strip_chars()
    return count_note(
        IDENTICAL,
        both.filter((text == query) | (with_title == query)).height,
        "[list holds its query|lists hold their query] as a document, with its id and its text; "
        "`ignore_identical_ids` leaves it out, as BEIR does",
    )


def match_titles(
    queries: pl.DataFrame, titles: Mapping[str, Sequence[str]], passages: Iterable[pl.DataFrame]
) -> tuple[pl.DataFrame, tuple[str, ...]]:
    """The queries, with the ids of the listed articles that have these titles in ``provenance``; and unmatchable ids.

    Of several articles with one title, all are gold. A title that no listed passage has stays, and
    stands for the article that the corpus calls so, as where article ids are titles and passages are
    headed otherwise; a title of digits does not, since another article may have it as its page id. Titles of
    queries cannot be matched where no listed passage has a title, and no article is called like one.

    Args:
        titles: those of ``provenance`` that are titles, by query id.
        passages: the listed passages, in batches.
    """
    if not titles:
        return queries, ()
    wanted = pl.Series(list({t for names in titles.values() for t in names}), dtype=pl.String)
    title = pl.col(TITLE).str.strip_chars()
    of_article = title.is_in(wanted.implode()) | pl.col(ARTICLE_ID).is_in(wanted.implode())
    articles_of: dict[str, dict[str, None]] = {}
    called, headed = set[str](), set[str]()
    is_titled = False
    for batch in passages:
        is_titled = is_titled or batch.select((title != "").any()).item()
        named = batch.filter(of_article).select(ARTICLE_ID, title).unique(maintain_order=True)
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
    of_queries = {q: titles[q] for q in queries[QUERY_ID] if q in titles}
    is_matchable = is_titled or any(map(called.intersection, of_queries.values()))
    return matched, () if is_matchable else tuple(of_queries)


def with_clusters(
    queries: pl.DataFrame, groups: Mapping[str, str], cluster: str | None
) -> tuple[pl.DataFrame, Note]:
    """The queries, with their ``cluster`` (from 0, in the order of the queries); and a note on these.

    By article, a query belongs to its gold article, where other queries name it as well: of several articles to
    that which most queries name. Without such an article it belongs to its context, or to its text,
    where other queries have the same. All others are clusters by themselves.

    Args:
        queries: with their titles matched.
        groups: ``QuerySet.groups``, for ``cluster``.
        cluster: a column of the queries file, "article", or None for these by article, of which no figure makes use.
    """
    by_article = cluster in (None, ARTICLE)
    keys = (
        list(_shared(queries, groups)) if by_article else list(map(groups.get, queries[QUERY_ID]))
    )
    numbers: dict[object, int] = {}
    codes = [
        numbers.setdefault(place if key is None else ("", key), len(numbers))
        for place, key in enumerate(keys)
    ]
    clustered = queries.with_columns(pl.Series(CLUSTER, codes, dtype=pl.Int64))
    text = f"{queries.height} queries are in {len(numbers)} clusters"
    if cluster is not None:
        by = f"{text} by `cluster` {cluster}: intervals and p-values take these as independent"
        return clustered, Note("clusters", len(numbers), by)
    return clustered, Note(
        SHARED,
        len(numbers) if shares_much(codes) else 0,
        f"{text} of a common gold article, context or text, but intervals and p-values assume independent "
        f"queries, and may be too narrow: `cluster` {ARTICLE} takes clusters as independent",
    )


def column_of(cluster: str | None) -> str | None:
    """The column of the queries file that is needed for clusters, if any is."""
    return None if cluster == ARTICLE else cluster


def _shared(queries: pl.DataFrame, groups: Mapping[str, str]) -> Iterator[tuple[str, str] | None]:
    """What each query shares with others; None where it shares nothing."""
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
