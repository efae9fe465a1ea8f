"""Which passages the runs list, found by an index and noted as one bit a passage of the corpus."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from engine import tables
from engine.evaluation.by_text import ids_of_texts
from engine.evaluation.titles import match_titles, without_titles
from engine.sources.passages.index import PassageIndex
from engine.sources.passages.read import ROW, first_with
from engine.sources.runs.texts import with_ids
from engine.tables import ARTICLE_ID, DOC_ID, TEXT, TITLE

# Ids that are looked up at a time.
_AT_ONCE = 20_000
_Bits = npt.NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Listed:
    """The listed passages of a corpus.

    Attributes:
        index: of the corpus.
        by_id: of each passage, whether it is listed by its id.
        by_text: whether it is the first of those with a text that is listed instead.
        texts: these texts, and the ids that they stand for (``by_text.ids_of_texts``).
        lacks_some: whether a listed document is neither.
    """

    index: PassageIndex
    by_id: _Bits
    by_text: _Bits
    texts: pl.DataFrame
    lacks_some: bool

    def named(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Rows with document ids instead of texts of passages, in their order."""
        if self.texts.is_empty():
            return rows
        return with_ids(rows, self.texts, DOC_ID)

    def lacking(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Those rows, named by id, whose documents the corpus lacks."""
        return rows.filter(~pl.col(DOC_ID).is_in(self._known(rows[DOC_ID].unique()).implode()))

    def _known(self, ids: pl.Series) -> pl.Series:
        found = [part.filter(self.index.rows_of(part).is_not_null()) for part in _sliced(ids)]
        return pl.concat([pl.Series([], dtype=pl.String), *found])

    def count(self) -> int:
        """How many passages are listed."""
        return int((self.by_id | self.by_text).sum())

    def count_empty(self) -> int:
        """How many listed passages have no text."""
        return int((self.by_id | self.by_text)[self.index.empty_rows()].sum())

    def match(
        self, queries: pl.DataFrame, titles: Mapping[str, Sequence[str]]
    ) -> tuple[pl.DataFrame, tuple[str, ...]]:
        """Queries with their titles matched, and those that cannot be: as ``titles.match_titles`` and
        ``titles.without_titles`` give them for all listed passages.

        Of these, only those are held that have one of the titles, as title or as id of the article.
        """
        if not titles:
            return queries, ()
        wanted = pl.Series(
            sorted({title for names in titles.values() for title in names})
        ).implode()
        first = 0
        held: list[list[pl.DataFrame]] = [[], []]
        any_titled: list[pl.DataFrame] = []
        title = pl.col(TITLE).str.strip_chars()
        for batch in self.index.scan([TITLE, ARTICLE_ID]):
            places = slice(first, first + batch.height)
            first += batch.height
            by_id = self.by_id[places]
            for kind, bits in enumerate((by_id, self.by_text[places] & ~by_id)):
                listed = batch.filter(pl.Series(bits))
                any_titled = any_titled or [listed.filter(title != "").head(1)]
                if any_titled[0].is_empty():
                    any_titled = []
                matching = title.is_in(wanted) | pl.col(ARTICLE_ID).is_in(wanted)
                held[kind].append(listed.filter(matching).unique(maintain_order=True))
        # Passages that are listed by text come behind all others, as where inputs are read whole.
        passages = pl.concat([*held[0], *held[1], *any_titled])
        return match_titles(queries, titles, passages), without_titles(queries, titles, passages)


def look_up(index: PassageIndex, parts: Iterable[pl.Series]) -> Listed:
    """Find the documents that runs list, given part after part and perhaps repeatedly.

    Memory: a byte or two a passage of the corpus; documents that are not ids but hold white space may be
    texts of passages, and are held until the corpus was looked through for them.
    """
    by_id, by_text = (np.zeros(index.passages, dtype=np.bool_) for _ in range(2))
    lacks_some = False
    texts: list[pl.Series] = []
    rows_of = index.finder()
    for documents in parts:
        for part in _sliced(documents):
            places = rows_of(part)
            by_id[places.drop_nulls().to_numpy()] = True
            unknown = part.filter(places.is_null())
            # Texts hold spaces and ids of TREC runs cannot.
            is_text = unknown.str.contains(r"\s")
            texts.append(unknown.filter(is_text))
            lacks_some = lacks_some or not is_text.all()
    wanted = pl.concat(texts).unique() if texts else pl.Series([], dtype=pl.String)
    named = tables.empty({TEXT: pl.String(), DOC_ID: pl.String()})
    if not wanted.is_empty():
        named = first_with(index.scan([TEXT, DOC_ID]), wanted)
        by_text[named[ROW].to_numpy()] = True
    lacks_some = lacks_some or named.height < len(wanted)
    return Listed(index, by_id, by_text, ids_of_texts(named), lacks_some)


def _sliced(ids: pl.Series) -> Iterable[pl.Series]:
    for start in range(0, len(ids), _AT_ONCE):
        yield ids.slice(start, _AT_ONCE)
