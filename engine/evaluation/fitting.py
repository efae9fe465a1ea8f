"""Whether judgments and gold articles are those of the queries and the corpus, and which lists hold their query."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import polars as pl

from engine import tables
from engine.messages.notes import Note, count_note
from engine.sources.io.locations import Location
from engine.sources.passages.listed import Listed
from engine.sources.queries.read import QuerySet
from engine.sources.runs.texts import ID, with_ids
from engine.sources.strangers import count_strangers, refuse_strangers
from engine.tables import ARTICLE_ID, BY_TEXT, DOC_ID, LABEL, LARGEST, QUERY, QUERY_ID, TEXT, TITLE

IDENTICAL = "identical_ids"


@dataclass(frozen=True, kw_only=True)
class Judgments:
    """What people judged, to be looked up among the queries and in the whole corpus.

    Attributes:
        tables: what annotators need, of whatever queries, by the name of the input.
        paths: what errors call these tables.
        queries_file: what errors call the queries; None where nothing needs to.
        corpus: what errors call the corpus; None where the runs carry the texts, so that passages which are judged
            and not listed cannot be known.
    """

    query_set: QuerySet
    queries: pl.DataFrame
    tables: Mapping[str, pl.DataFrame]
    paths: Mapping[str, Location]
    queries_file: Location | None
    corpus: Location | None
    need_provenance: bool

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
        where = "any list" if self.corpus is None else "the corpus"
        lacking, gold = passages.absent(DOC_ID), passages.absent(ARTICLE_ID)
        # No name for what gives batches: an error's traceback would keep it, and its connection, for another thread.
        some = next(
            (batch for batch in passages.scan([DOC_ID, ARTICLE_ID]) if not batch.is_empty()),
            tables.empty(tables.CORPUS),
        )
        known = some if self.corpus is not None else some.clear()  # of none, nothing is refused
        of_file = "" if self.queries_file is None else f" of {self.queries_file}"
        texts = self.query_set.table.select(
            pl.col(QUERY).alias(QUERY_ID), pl.col(QUERY_ID).alias(ID)
        )
        for name, given in self.tables.items():
            by_text = BY_TEXT in given.columns and given[BY_TEXT].all()
            table = with_ids(given, texts, QUERY_ID) if by_text else given
            path, asked = self.paths[name], self.queries[QUERY_ID]
            what = f"judges none of the {{}} [query|queries]{of_file}"
            remedy = "give the judgments of these queries"
            count_strangers(table[QUERY_ID], asked, what, remedy=remedy, path=path)
            found[name] = table.join(self.queries, on=QUERY_ID, how="semi", maintain_order="left")
            if tables.QRELS.keys() <= {*table.columns}:
                found[name] = found[name].with_columns(pl.lit(table[LABEL].max()).alias(LARGEST))
            others = table.join(self.query_set.table, on=QUERY_ID, how="anti")[QUERY_ID].n_unique()
            documents = _documents(table)
            lost = lacking.filter(lacking.is_in(documents.implode()))
            what, remedy = f"judges no document of {self.corpus}", "give judgments of this corpus"
            refuse_strangers(documents, lost, known[DOC_ID], what, remedy=remedy, path=path)
            what = "judged [query|queries] (`{}`) [is|are] not in the queries file"
            notes.append(count_note("judged_other_queries", others, what, about=[name]))
            what = f"judged [document|documents] (`{{}}`) [is|are] not in {where}"
            notes.append(count_note("judged_other_documents", len(lost), what, about=[name]))
        if self.need_provenance:
            what, remedy = f"no gold article is in {self.corpus}", "give the corpus that was judged"
            articles = known[ARTICLE_ID]
            wanted = self.expected()[ARTICLE_ID]
            refuse_strangers(wanted, gold, articles, what, remedy=remedy, path=self.queries_file)
        what = f"gold [article is|articles are] not in {where}"
        matters = self.need_provenance
        return found, [*notes, count_note("gold_not_in_corpus", len(gold), what, printed=matters)]


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
