"""Runs that carry the texts of their passages, so that no corpus is needed: runs and passages of all of them."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence

import polars as pl

from engine import tables
from engine.messages.errors import InputError
from engine.messages.wording import quoted
from engine.sources.io.locations import Location
from engine.sources.passages.read import with_composed
from engine.sources.runs.read import TextedRun, read_texted_runs
from engine.sources.runs.records import GIVEN, LINE, MADE
from engine.tables import ARTICLE_ID, DOC_ID, QUERY_ID, TEXT, TITLE

_FILE, _KEY = "file", "_key"
Together = tuple[pl.DataFrame, pl.DataFrame | None, Counter[str]]
"""The run table of all runs, the corpus table of the texts that they carry where that is wanted, and ``records.Batch.taken`` of all."""

ID = "_id"


def id_of(text: str) -> str:
    """The id of a passage that came without one: 16 hexadecimal digits, of the SHA-256 of its UTF-8 text."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def read_runs_with_texts(paths: Sequence[Location], *, carried: bool = True) -> Together:
    """The runs, as ``read_runs`` gives them, with their texts where they are ``carried``.

    A passage without an id is called ``id_of`` its text, in the runs too. A run may lack texts that another
    has. The first title that is given for a passage counts, and the first article; without one, the title
    names the article, else the id.

    Raises:
        InputError: as ``read_runs``, or ``with_corpus``.
    """
    return with_corpus(read_texted_runs(paths), paths, carried=carried)


def with_corpus(
    runs: Iterable[TextedRun], paths: Sequence[Location], *, carried: bool = True
) -> Together:
    """As ``read_runs_with_texts``, of runs that were read from these places.

    Raises:
        InputError: a passage has two texts or two titles, with both places.
    """
    frames: list[pl.DataFrame] = []
    texts = [tables.empty({**GIVEN, _FILE: pl.UInt32()})]
    taken: Counter[str] = Counter()
    for number, run in enumerate(runs):
        taken += run.taken
        given = run.texts if carried else run.texts.clear()
        made = given.filter(MADE).select(DOC_ID).unique()
        frames.append(with_ids(run.rows, made.with_columns(_made_ids(made)), DOC_ID))
        texts.append(given.with_columns(pl.lit(number, pl.UInt32).alias(_FILE)))
    given = pl.concat(texts)
    made = given.filter(MADE)
    named_here = made.with_columns(_made_ids(made).alias(DOC_ID))
    given = pl.concat([given.filter(~pl.col(MADE)), named_here])
    given = given.sort(_FILE, LINE, nulls_last=True, maintain_order=True)
    for column in (TEXT, TITLE):
        _refuse_conflict(given, column, paths)
    first = pl.col(TITLE, ARTICLE_ID).filter(pl.col(TITLE, ARTICLE_ID) != "").first().fill_null("")
    corpus = given.group_by(DOC_ID, maintain_order=True).agg(first, pl.col(TEXT).first())
    named = pl.coalesce(pl.when(pl.col(c) != "").then(c) for c in (ARTICLE_ID, TITLE, DOC_ID))
    corpus = corpus.with_columns(named.alias(ARTICLE_ID)).select(list(tables.CORPUS))
    return pl.concat(frames), corpus if carried else None, taken


def _made_ids(made: pl.DataFrame) -> pl.Series:
    return pl.Series(ID, [id_of(text) for text in made[DOC_ID]], dtype=pl.String)


def with_ids(rows: pl.DataFrame, ids: pl.DataFrame, column: str) -> pl.DataFrame:
    """Rows with ids (``ID`` of ``ids``, whose texts are composed) instead of the texts in a column that have some."""
    keyed = rows.hstack(with_composed(rows.select(pl.col(column).alias(_KEY)), [_KEY]))
    ids = ids.rename({column: _KEY})
    renamed = keyed.join(ids, on=_KEY, how="left", maintain_order="left")
    return renamed.with_columns(pl.coalesce(ID, column).alias(column)).drop(ID, _KEY)


def _refuse_conflict(given: pl.DataFrame, column: str, paths: Sequence[Location]) -> None:
    """Refuse a passage with two texts, or with two titles (none is not another)."""
    stated = given.filter(pl.col(column) != "") if column == TITLE else given
    other = stated.filter(pl.col(column) != pl.col(column).first().over(DOC_ID))
    if other.is_empty():
        return
    second = other.row(0, named=True)
    first = stated.filter(pl.col(DOC_ID) == second[DOC_ID]).row(0, named=True)
    line = "" if first[LINE] is None else f":{first[LINE]}"
    raise InputError(
        f"passage {quoted(second[DOC_ID])} of query {quoted(second[QUERY_ID])} has another {column} "
        f"than in {paths[first[_FILE]]}{line} (query {quoted(first[QUERY_ID])})",
        "give each passage an id of its own, or the passages as `corpus`",
        path=paths[second[_FILE]],
        line=second[LINE],
    )
