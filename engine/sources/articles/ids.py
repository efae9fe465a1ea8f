"""Article ids given twice, refused while the articles stream by."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import polars as pl

from engine.errors import InputError
from engine.sources.articles.read import article_chunks, parse_chunk, source_files
from engine.sources.io.duplicate_ids import IdHashes, hash_ids
from engine.sources.io.locations import Location
from engine.sources.io.skipping import SkipBad

_Place = tuple[Location, int | None]


class ArticleIds:
    """The ids of the articles of ``sources`` met so far, at 8 to 16 bytes an article."""

    def __init__(self, sources: Sequence[Location]) -> None:
        self._sources = sources
        self._hashes = IdHashes()
        self._articles = 0

    def add(self, ids: Sequence[str]) -> None:
        """Add the ids of the next articles, in the order of the sources.

        Raises:
            InputError: one was met before; both places are named.
        """
        self._articles += len(ids)
        suspects = set(self._hashes.add(pl.Series(ids, dtype=pl.String)).tolist())
        if not suspects:
            return
        # Equal hashes are a suspicion: the ids themselves are looked at, from the beginning.
        first: dict[str, _Place] = {}
        for count, (place, page_id) in enumerate(_ids(self._sources)):
            if count == self._articles:
                return
            if hash_ids(pl.Series([page_id]))[0] in suspects:
                if page_id in first:
                    raise _twice(page_id, place, first[page_id])
                first[page_id] = place


def _ids(sources: Sequence[Location]) -> Iterator[tuple[_Place, str]]:
    anything = SkipBad(limit=2**63)
    for file in source_files(sources):
        for chunk in article_chunks(file, skip=anything):
            for line, article in parse_chunk(chunk, prose=False):
                if not isinstance(article, InputError):
                    yield (file, line), article.page_id


def _twice(page_id: str, place: _Place, before: _Place) -> InputError:
    path, line = place
    where = "occurs more than once"
    if before[1] is not None:
        where = f"stands in line {before[1]}{f' of {before[0]}' * (before[0] != path)} already"
    elif before[0] != path:
        where = f"occurs in {before[0]} already"
    return InputError(
        path, line, f"article id {page_id!r} {where}", "give every article an id of its own"
    )
