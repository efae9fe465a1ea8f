"""Reading corpora of passages, in batches or only those needed: Parquet, JSONL, JSON, CSV, BEIR, DPR."""

from __future__ import annotations

import bisect
import itertools
import unicodedata
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import polars as pl

from engine import tables
from engine.messages.characters import composed
from engine.messages.errors import InputError
from engine.messages.wording import quoted
from engine.sources.data_sets import records_of
from engine.sources.fields import DOC_ID_FIELDS, TEXT_FIELDS, columns_of, first_of, text_in
from engine.sources.io import locations
from engine.sources.io.files import is_text
from engine.sources.io.ids import IdHashes
from engine.sources.io.locations import Location, is_data_set, list_files, suffix_of
from engine.sources.io.parquet import open_parquet
from engine.sources.io.records import SkipBad, read_csv_records, read_json_records, tolerance
from engine.tables import ARTICLE_ID, DOC_ID, TEXT, TITLE

ROW = "row"
# Passages of a batch, of which Arrow, Polars and SQLite have a copy each.
_ROWS = 5_000

_WHAT = "a corpus: JSONL, JSON, CSV or Parquet with doc_id, title, text (and article_id)"
_WIKIPEDIA_ID = "wikipedia_id"
_TABLES = tuple(f".{kind}{packed}" for kind in ("csv", "tsv") for packed in ("", *locations.PACKED))
_COLUMNS = columns_of(DOC_ID_FIELDS, TEXT_FIELDS, (TITLE, ARTICLE_ID, _WIKIPEDIA_ID))

_IS_COMPOSED = partial(unicodedata.is_normalized, "NFC")
_Row = tuple[str, str, str, str]


class _Batch(NamedTuple):
    """Passages of a file, and their lines (None if lines have no meaning)."""

    path: Location
    frame: pl.DataFrame
    lines: list[int | None]


def with_composed(
    frame: pl.DataFrame, columns: Sequence[str] = (TITLE, TEXT, ARTICLE_ID)
) -> pl.DataFrame:
    """The table with the texts in the present ones among ``columns`` composed (``characters.composed``)."""
    for name in set(columns) & set(frame.columns):
        # Ten times as fast as Polars' own, and copies nothing if all are composed.
        if not all(map(_IS_COMPOSED, texts := frame[name].to_list())):
            frame = frame.with_columns(pl.Series(name, map(composed, texts), dtype=pl.String))
    return frame


def scan_corpus(
    path: Location, *, skip_bad: int | SkipBad = 0, distinct: bool = False
) -> Iterator[pl.DataFrame]:
    """Yield the corpus table in batches, in the order of the source and in constant memory; texts are composed (NFC).

    The name decides the layout:

    - ``irds:…``, ``hf:…``: a data set (``engine.sources.data_sets``);
    - ``.parquet``: the corpus table, or columns called as the fields of JSONL;
    - a directory: its ``*.parquet`` files ordered by name, or BEIR's ``corpus.jsonl`` (``.gz``, ``.bz2`` or plain);
    - ``.csv``, ``.tsv`` (``.gz``, ``.bz2``): a header of the fields of JSONL, as in a data frame's export and in
      DPR's ``psgs_w100.tsv``, with the quotes of the csv module;
    - anything else is JSONL or a JSON array (``.gz``, ``.bz2`` or plain), with an id and a text called as
      in ``engine.sources.fields``; ``title`` is empty by default, and ``article_id`` defaults to
      ``wikipedia_id``, else the title, else the document id.

    ``distinct`` refuses duplicate document ids; that costs 8 to 16 bytes per passage. ``skip_bad`` are bad records to
    tolerate, or the ``SkipBad`` that counts them. An InputError says that the corpus is unreadable, empty or cut short,
    or has more bad records than tolerated.
    """
    path = locations.locate(path)
    hashes = IdHashes()
    rows = 0
    for batch in _batches(path, tolerance(skip_bad)):
        rows += batch.frame.height
        if distinct and (
            repeat := hashes.repeat(batch.frame[DOC_ID], itertools.islice(_ids(path), rows))
        ):
            doc_id, (file, line), (_, first) = repeat
            raise _twice(file, line, doc_id, f"already occurs in line {first}" if first else None)
        yield batch.frame
    if not rows:
        raise InputError("the corpus is empty", f"give {_WHAT}", "corpus.empty", path=path)


def read_corpus(
    path: Location, *, ids: Collection[str] | None = None, skip_bad: int | SkipBad = 0
) -> pl.DataFrame:
    """Read passages as the corpus table, from any layout of ``scan_corpus``; with some ``ids`` alone, if given.

    Memory: these passages, one batch, and 8 to 16 bytes for each passage of the source. An InputError says that
    the corpus is unreadable or empty, or that any passage lacks an id or a text, or has another's id.
    """
    return select_ids(scan_corpus(path, skip_bad=skip_bad, distinct=True), ids)


def select_ids(batches: Iterable[pl.DataFrame], ids: Collection[str] | None) -> pl.DataFrame:
    """The passages with some ids (all if None), from batches of all."""
    if ids is not None:
        has_one = pl.col(DOC_ID).is_in(pl.Series(list(ids), dtype=pl.String).implode())
        batches = (batch.filter(has_one) for batch in batches)
    return pl.concat([tables.empty(tables.CORPUS), *batches])


def first_with(batches: Iterable[pl.DataFrame], texts: pl.Series) -> pl.DataFrame:
    """The first passage, of all in the order of the corpus, that has each of some texts; with its ``ROW`` there."""
    has_one = pl.col(TEXT).is_in(texts.implode())
    first = 0
    matches: list[pl.DataFrame] = []
    for batch in batches:
        matches.append(batch.with_row_index(ROW, first).filter(has_one))
        first += batch.height
    return pl.concat(matches).unique(TEXT, keep="first", maintain_order=True)


def _batches(path: Location, skip: SkipBad) -> Iterator[_Batch]:
    records: Iterable[tuple[int | None, dict[str, Any]]]
    for file in [path] if is_data_set(path) else _files(path):
        if is_data_set(file):
            records = ((None, record) for record in records_of(file, "passages"))
        elif suffix_of(file) == ".parquet":
            yield from _parquet_batches(file)
            continue
        elif locations.name_of(file).endswith(_TABLES):
            records = read_csv_records(file, _WHAT, TEXT_FIELDS, skip=skip)
        else:
            records = read_json_records(file, _WHAT, skip=skip)
        yield from _row_batches(file, skip.parsed(_passage, file, records))


def _files(path: Location) -> list[Location]:
    if not locations.is_directory(path):
        return [locations.require_file(path, _WHAT)]
    files = list_files(path)
    beir = locations.named(files, "corpus.jsonl")
    shards = [file for file in files if suffix_of(file) == ".parquet"]
    if not beir and not shards:
        problem = "a directory without *.parquet files or a corpus.jsonl"
        remedy = "give a corpus in Parquet shards, a BEIR data set, or a file"
        raise InputError(problem, remedy, "corpus.files", path=path)
    return beir[:1] or shards


def split_corpus(path: Location, rows: int) -> list[tuple[int, partial[Iterator[pl.DataFrame]]]]:
    """The parts of a corpus in Parquet, for any process that sees its files; empty for other layouts, or a pipe.

    A part begins with a file, or less than ``rows`` later. Each is a pair: its first row, a multiple of ``rows``, and a
    function that reads it as ``scan_corpus`` does, in constant memory.
    """
    path = locations.locate(path)
    files = [] if is_data_set(path) else _files(path)
    files = [file.absolute() if isinstance(file, Path) else file for file in files]
    heights = []
    for file in files:
        if suffix_of(file) != ".parquet" or (isinstance(file, Path) and not file.is_file()):
            return []
        with open_parquet(file, in_parts=True) as table:
            heights.append(table.rows)
    begins = [0, *itertools.accumulate(heights)]
    parts = []
    for number, (begin, end) in enumerate(itertools.pairwise(begins)):
        first, stop = -(-begin // rows) * rows, min(-(-end // rows) * rows, begins[-1])
        if first < stop:
            own = files[number : bisect.bisect_left(begins, stop)]
            parts.append((first, partial(_rows, own, first - begin, stop - first)))
    return parts


def _rows(files: Sequence[Location], skip: int, rows: int) -> Iterator[pl.DataFrame]:
    for batch in itertools.chain.from_iterable(map(_parquet_batches, files)):
        yield (frame := batch.frame.slice(skip, rows))
        skip, rows = max(0, skip - batch.frame.height), rows - frame.height
        if not rows:
            return


def _row_batches(path: Location, rows: Iterable[tuple[int | None, _Row]]) -> Iterator[_Batch]:
    each = iter(rows)
    while some := list(itertools.islice(each, _ROWS)):
        passages = pl.DataFrame([row for _, row in some], schema=tables.CORPUS, orient="row")
        yield _Batch(path, with_composed(passages), [line for line, _ in some])


def _parquet_batches(path: Location) -> Iterator[_Batch]:
    first_row = 0
    with open_parquet(path) as table:
        for frame in table.batches(_ROWS, _COLUMNS):
            frame = tables.conform(_named(frame), tables.CORPUS, path, first_row=first_row)
            first_row += frame.height
            yield _Batch(path, with_composed(frame), [None] * frame.height)
        if not first_row:  # no batch named a missing column
            empty = pl.DataFrame(schema=dict.fromkeys(table.names, pl.String()))
            tables.conform(_named(empty), tables.CORPUS, path)


def _named(frame: pl.DataFrame) -> pl.DataFrame:
    """The columns of a Parquet corpus under the names of the corpus table, with the defaults of JSONL."""
    for name, fields in ((DOC_ID, DOC_ID_FIELDS), (TEXT, TEXT_FIELDS)):
        known = [field for field in fields if field in frame.columns]
        kinds = [frame.schema[field] for field in known]
        if len(known) > 1 and all(k in (pl.String, pl.Null) or k.is_integer() for k in kinds):
            # As ``text_in``: by row the first that is not empty, else the first that is not missing.
            texts = [pl.col(field).cast(pl.String) for field in known]
            filled = (pl.when(text != "").then(text) for text in texts)
            frame = frame.with_columns(pl.coalesce(*filled, *texts).alias(name))
        elif known and known[0] != name:
            frame = frame.drop(name, strict=False).rename({known[0]: name})
    if not {DOC_ID, TEXT} <= set(frame.columns) or frame.schema[DOC_ID].is_float():
        return frame  # to be refused
    if set(tables.CORPUS) <= set(frame.columns) and not any(
        frame[name].null_count() for name in (TITLE, ARTICLE_ID)
    ):
        return frame
    if TITLE not in frame.columns:
        frame = frame.with_columns(pl.lit("").alias(TITLE))
    frame = frame.with_columns(pl.col(TITLE).fill_null(""))
    articles = [n for n in (ARTICLE_ID, _WIKIPEDIA_ID, TITLE, DOC_ID) if n in frame.columns]
    named = (pl.col(name).cast(pl.String) for name in articles)
    article = pl.coalesce(pl.when(text != "").then(text) for text in named)
    return frame.with_columns(article.alias(ARTICLE_ID))


def _passage(path: Location, number: int | None, record: dict[str, Any]) -> _Row:
    fault = partial(InputError, path=path, line=number)
    doc_id = first_of(record, DOC_ID_FIELDS)
    if doc_id is None or isinstance(doc_id, (dict, list, bool)):
        raise fault("a passage without an id", "add a doc_id", "corpus.unnamed")
    if isinstance(doc_id, float):
        remedy = "write ids as strings or whole numbers"
        raise fault(f"the id {quoted(doc_id)}", remedy, "corpus.id")
    text = text_in(record)
    if not isinstance(text, str):
        raise fault(f"passage {quoted(doc_id)} has no text", 'add a "text" string', "corpus.text")
    title = record.get(TITLE) or ""
    if not isinstance(title, str):
        problem = f"passage {quoted(doc_id)} has a title that is not a string"
        raise fault(problem, "fix it", "corpus.title")
    article = str(record.get(ARTICLE_ID) or record.get(_WIKIPEDIA_ID) or title or doc_id)
    if not is_text(str(doc_id), title, text, article):
        problem = f"passage {quoted(doc_id)} holds half a surrogate pair"
        raise fault(problem, "write valid Unicode", "corpus.surrogate")
    return str(doc_id), title, text, article


def _ids(path: Location) -> Iterator[tuple[str, tuple[Location, int | None]]]:
    for batch in _batches(path, SkipBad(limit=2**63)):
        for doc_id, line in zip(batch.frame[DOC_ID], batch.lines, strict=True):
            yield doc_id, (batch.path, line)


def _twice(path: Location, line: int | None, doc_id: str, first: str | None) -> InputError:
    problem = f"document id {quoted(doc_id)} {first or 'occurs more than once'}"
    return InputError(problem, "make document ids unique", "corpus.twice", path=path, line=line)


def passages_of(records: Iterable[Mapping[str, Any]], name: str) -> Iterator[pl.DataFrame]:
    """Yield passages that are in memory as the corpus table, in batches: records with the fields of JSONL.

    An InputError, which calls them by ``name`` and counts them from 1, says that one lacks an id or a text, or that two
    have an id.
    """
    first: dict[str, int] = {}

    def checked() -> Iterator[tuple[int, _Row]]:
        for number, record in enumerate(records, 1):
            row = _passage(name, number, dict(record))
            if (before := first.setdefault(row[0], number)) != number:
                raise _twice(name, number, row[0], f"already occurs in record {before}")
            yield number, row

    return (batch.frame for batch in _row_batches(name, checked()))
