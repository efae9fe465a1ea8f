"""Documents and ranks that a run lists twice, looked for in one part after another."""

from __future__ import annotations

import polars as pl

from engine.errors import InputError
from engine.sources.io.locations import Location
from engine.sources.runs.read import by_rank, by_score, twice_in_parquet, twice_in_trec
from engine.sources.runs.stream import LINE
from engine.tables import DOC_ID, QUERY_ID, RANK


class Repeats:
    """Looks for documents and ranks that a run lists twice, in one part after another.

    As in ``read_run``, the line that repeats first counts in TREC text; in Parquet the first row of those
    that are repeated, with documents before ranks.
    """

    def __init__(self, path: Location, ranked: bool, ids: pl.Series) -> None:
        self._path = path
        self._ranked = ranked
        self._ids = ids
        self._found: list[tuple[tuple[int, int], InputError]] = []

    def ordered(self, rows: pl.DataFrame) -> pl.DataFrame:
        """The lists of a part in their order, with ranks from 1."""
        return by_rank(rows) if self._ranked else by_score(rows)

    def look(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Look through a part that has all rows of its queries; gives it back."""
        columns = [(DOC_ID, "document"), (RANK, "rank")] if self._ranked else [(DOC_ID, "document")]
        for place, (column, what) in enumerate(columns):
            # Hashes first, since hardly any run repeats anything.
            hashes = rows.select(pl.col(QUERY_ID).hash(1) ^ pl.col(column).hash(2)).to_series()
            if hashes.n_unique() < rows.height:
                self._note(rows.sort(LINE), column, what, place)
        return rows

    def _note(self, rows: pl.DataFrame, column: str, what: str, place: int) -> None:
        repeated = rows.filter(pl.struct(QUERY_ID, column).is_duplicated())
        if repeated.is_empty():
            return
        if self._ranked:
            query, value, line = repeated.select(QUERY_ID, column, LINE).row(0)
            error = twice_in_parquet(self._path, self._id(query), value, what)
        else:
            again = repeated.filter(~pl.struct(QUERY_ID, column).is_first_distinct())
            query, value, line = again.select(QUERY_ID, column, LINE).row(0)
            same = (pl.col(QUERY_ID) == query) & (pl.col(column) == value)
            first = repeated.filter(same)[LINE][0]
            error = twice_in_trec(self._path, line, self._id(query), value, first)
        self._found.append(((place, line), error))

    def _id(self, query: int | str) -> str:
        return query if isinstance(query, str) else str(self._ids[query])

    def refuse(self) -> None:
        """Refuse what was found.

        Raises:
            InputError: the run lists a document or a rank twice.
        """
        if self._found:
            raise min(self._found, key=lambda found: found[0])[1]
