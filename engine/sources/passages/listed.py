"""Which passages of a corpus the runs list: collected in memory, or marked in an index of any size."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import numpy as np
import polars as pl

from engine import tables
from engine.sources.io.locations import Location
from engine.sources.io.skipping import SkipBad
from engine.sources.passages.index import PassageIndex
from engine.sources.passages.read import ROW, first_with, read_corpus, scan_corpus, select_wanted
from engine.tables import DOC_ID, TEXT

# Ids that are looked up at a time.
_AT_ONCE = 20_000


class Collected:
    """Listed passages in memory: ``find`` gives the passages with some ids, ``read`` all, in batches.

    Attributes:
        skipped: bad records that were left out when passages were found.
        size: passages of the whole corpus, when some were found.
        passages: the corpus table of those that were looked up.
    """

    def __init__(
        self, find: Callable[[pl.Series], pl.DataFrame], read: Callable[[], Iterable[pl.DataFrame]]
    ) -> None:
        self._find, self._read = find, read
        self.skipped = self.size = 0
        self.passages = tables.empty(tables.CORPUS)
        self._absent: dict[str, pl.Series] = {}

    @classmethod
    def of_corpus(cls, corpus: Location, skip_bad: int) -> Collected:
        """Passages of a corpus, which is read once, and again if some are known by their texts.

        Raises:
            InputError: as ``read_corpus``, when passages are looked up.
        """

        def find(ids: pl.Series) -> pl.DataFrame:
            skip = SkipBad(skip_bad)
            found = read_corpus(corpus, wanted=ids, skip_bad=skip, look=collected.look)
            collected.skipped = skip.count
            return found

        collected = cls(find, lambda: scan_corpus(corpus, skip_bad=skip_bad))
        return collected

    @classmethod
    def of_batches(cls, read: Callable[[], Iterable[pl.DataFrame]]) -> Collected:
        """Passages of a corpus in memory; ``read`` gives all of it, in batches."""
        collected = cls(lambda ids: select_wanted(read(), ids, collected.look), read)
        return collected

    def look(self, batch: pl.DataFrame) -> None:
        """Take note of what is expected and there, of passages that may be listed or not."""
        self.size += batch.height
        for column, ids in self._absent.items():
            self._absent[column] = ids.filter(~ids.is_in(batch[column].implode()))

    def expect(self, expected: Mapping[str, pl.Series]) -> None:
        """Say, before anything is looked up, which ids ``absent`` is asked for, by the column of the corpus."""
        self._absent = {column: ids.unique(maintain_order=True) for column, ids in expected.items()}

    def absent(self, column: str) -> pl.Series:
        """The distinct ids expected in a column of the corpus, listed or not, that it lacks."""
        return self._absent[column]

    def get(self, ids: pl.Series) -> pl.DataFrame:
        """The corpus table of the passages noted that have these ids."""
        return self.passages.filter(pl.col(DOC_ID).is_in(ids.implode()))

    def look_up(self, ids: pl.Series) -> pl.Series:
        """Take note of the passages with these distinct ids; returns the ids that the corpus lacks."""
        self.size = 0
        self._add(self._find(ids))
        return self.unknown(ids)

    def look_up_texts(self, texts: pl.Series) -> pl.DataFrame:
        """Take note of the first passage with each of these distinct texts; returns their ``doc_id`` and ``text``."""
        found = first_with(self._read(), texts)
        self._add(found)
        return found.select(DOC_ID, TEXT)

    def _add(self, found: pl.DataFrame) -> None:
        both = pl.concat([self.passages, found.select(list(tables.CORPUS))])
        self.passages = both.unique(DOC_ID, maintain_order=True)

    def unknown(self, ids: pl.Series) -> pl.Series:
        """Those of some ids that are not those of passages noted."""
        return ids.filter(~ids.is_in(self.passages[DOC_ID].implode()))

    def scan(self, columns: Sequence[str] = tuple(tables.CORPUS)) -> Iterator[pl.DataFrame]:
        """Yield what was noted, in the order of the corpus; what was noted by its text alone comes last."""
        yield self.passages.select(columns)

    def count_empty(self) -> int:
        """How many of them have no text."""
        return int((self.passages[TEXT].str.strip_chars() == "").sum())


class Marked:
    """Listed passages of an index, as two bytes for each of its passages."""

    def __init__(self, index: PassageIndex) -> None:
        self.index, self.size = index, index.passages
        self._by_id, self._by_text = (np.zeros(index.passages, dtype=np.bool_) for _ in range(2))
        self._rows_of = index.finder()
        self._expected: Mapping[str, pl.Series] = {}

    @property
    def skipped(self) -> int:
        return self.index.skipped

    def look_up(self, ids: pl.Series) -> pl.Series:
        unknown = [ids.clear()]
        for some in _sliced(ids):
            rows = self._rows_of(some)
            self._by_id[rows.drop_nulls().to_numpy()] = True
            unknown.append(some.filter(rows.is_null()))
        return pl.concat(unknown)

    def look_up_texts(self, texts: pl.Series) -> pl.DataFrame:
        found = first_with(self.index.scan([TEXT, DOC_ID]), texts)
        self._by_text[found[ROW].to_numpy()] = True
        return found.select(DOC_ID, TEXT)

    def unknown(self, ids: pl.Series) -> pl.Series:
        lost = (some.filter(self._rows_of(some).is_null()) for some in _sliced(ids))
        return pl.concat([ids.clear(), *lost])

    def scan(self, columns: Sequence[str] = tuple(tables.CORPUS)) -> Iterator[pl.DataFrame]:
        for marks in (self._by_id, self._by_text & ~self._by_id):
            first = 0
            for batch in self.index.scan(columns) if marks.any() else ():
                yield batch.filter(pl.Series(marks[first : first + batch.height]))
                first += batch.height

    def expect(self, expected: Mapping[str, pl.Series]) -> None:
        self._expected = expected

    def absent(self, column: str) -> pl.Series:
        ids = self._expected[column].unique(maintain_order=True)
        if column == DOC_ID:
            return self.unknown(ids)
        for batch in self.index.scan([column]) if len(ids) else ():
            ids = ids.filter(~ids.is_in(batch[column].implode()))
            if ids.is_empty():
                break
        return ids

    def get(self, ids: pl.Series) -> pl.DataFrame:
        return self.index.find(ids)

    def count(self) -> int:
        """How many passages are listed."""
        return int((self._by_id | self._by_text).sum())

    def count_empty(self) -> int:
        return int((self._by_id | self._by_text)[self.index.empty_rows()].sum())


Listed = Collected | Marked
"""The passages of a corpus that were looked up so far."""


def _sliced(ids: pl.Series) -> Iterator[pl.Series]:
    return (ids.slice(start, _AT_ONCE) for start in range(0, len(ids), _AT_ONCE))
