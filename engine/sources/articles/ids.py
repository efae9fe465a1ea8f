"""Duplicate article ids, refused while the articles are streamed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import polars as pl

from engine.messages.errors import InputError
from engine.messages.wording import quoted
from engine.sources.articles.read import article_chunks, parse_chunk, source_files
from engine.sources.io.duplicate_ids import IdHashes, hash_ids
from engine.sources.io.locations import Location
from engine.sources.io.skipping import SkipBad

_Place = tuple[Location, int | None]


class ArticleIds:
    """The ids of the articles of ``sources`` seen so far, at 8 to 16 bytes per article."""

    def __init__(self, sources: Sequence[Location]) -> None:
        self._sources = sources
        self._hashes = IdHashes()
        self._articles = 0

    def add(self, ids: Sequence[str]) -> None:
        """Add the ids of the next articles, in the order of the sources.

        Raises:
            InputError: an id was seen before; the error names both places.
        """
        self._articles += len(ids)
        suspects = set(self._hashes.add(pl.Series(ids, dtype=pl.String)).tolist())
        if not suspects:
            return
        # Equal hashes are only a suspicion: the ids themselves are compared, from the beginning.
        first: dict[str, _Place] = {}
        for count, (place, page_id) in enumerate(_ids(self._sources)):
            if count == self._articles:
                return
            if hash_ids(pl.Series([page_id]))[0] in suspects:
                if page_id in first:
                    raise _duplicate(page_id, place, first[page_id])
                first[page_id] = place


def _ids(sources: Sequence[Location]) -> Iterator[tuple[_Place, str]]:
    unlimited = SkipBad(limit=2**63)
    for file in source_files(sources):
        for chunk in article_chunks(file, skip=unlimited, prose=False):
            for line, article in parse_chunk(chunk, prose=False):
                if not isinstance(article, InputError):
                    yield (file, line), article.page_id


def _duplicate(page_id: str, place: _Place, first_place: _Place) -> InputError:
    path, line = place
    first_path, first_line = first_place
    where = "occurs more than once"
    if first_line is not None:
        where = f"already occurs in line {first_line}{f' of {first_path}' * (first_path != path)}"
    elif first_path != path:
        where = f"already occurs in {first_path}"
    return InputError(
        f"article id {quoted(page_id)} {where}", "make article ids unique", path=path, line=line
    )
