"""Passages by their ids: in memory, or in an index of a corpus of any size, for workers that need some thousand.

An index is an SQLite file: passages as rows in the order of the corpus, and a unique index of their ids. It is
written once and then only read, by any number of processes; beside it lies a manifest, written last.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import tempfile
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import numpy.typing as npt
import polars as pl

from engine import tables
from engine.messages.errors import InputError
from engine.sources.io import digests
from engine.sources.io.files import flush, reported_writing, temporary_file
from engine.sources.io.folders import Folder
from engine.sources.io.ids import Places
from engine.sources.io.locations import Location
from engine.sources.io.records import SkipBad
from engine.sources.passages.read import ROW, first_with, scan_corpus, select_ids, with_composed
from engine.tables import DOC_ID, TEXT

# Raise it when the file's layout changes; files of other versions are then rebuilt.
_VERSION = 1
_COLUMNS = ", ".join(tables.CORPUS)
_TABLE = f"""
PRAGMA page_size = 8192;
PRAGMA journal_mode = OFF;
PRAGMA synchronous = OFF;
PRAGMA cache_size = -8192;
PRAGMA temp_store = FILE;
CREATE TABLE passages ({ROW} INTEGER PRIMARY KEY, {", ".join(f"{c} TEXT NOT NULL" for c in tables.CORPUS)});
CREATE TABLE empty ({ROW} INTEGER PRIMARY KEY);
"""
# Ids per statement: SQLite takes some 30,000, and gets no faster beyond ``_IDS``.
_AT_ONCE = 1000
# Passages per read, and ids per lookup.
_BATCH = 20_000
# Ids that ``finder`` holds at most: with their rows some 60 MB.
_HELD = 1_000_000


@dataclass(frozen=True)
class PassageIndex:
    """An index of a corpus; small, and the same for every process that uses it.

    An InputError of its methods says that the file is gone or damaged, or that its address cannot be read.

    Attributes:
        folder: place of the index: a path that all workers see, or an address, from which every node fetches the file
            once.
        name: of the file in the folder.
        passages: the number of passages.
        skipped: the bad records of the corpus that were left out.
        fingerprint: of the passages (``fingerprint.Fingerprint``).
        digest: of the file; empty if an earlier version built it.
    """

    folder: Folder
    name: str
    passages: int
    skipped: int
    fingerprint: str
    digest: str = ""

    def is_whole(self) -> bool:
        """Whether the file exists unchanged; at an address the fetch checks that."""
        if not isinstance(self.folder.at, Path):
            return self.name in self.folder.names()
        path = self.folder.at / self.name
        return path.is_file() and self.digest in ("", digests.file_sha256(path))

    def find(self, ids: Iterable[str]) -> pl.DataFrame:
        """The corpus table of the passages with these ids, in the order of the corpus."""
        rows = [row[1:] for row in sorted(self._selected(f"{ROW}, {_COLUMNS}", ids))]
        # An earlier version may have written texts as the corpus has them, not composed.
        return with_composed(pl.DataFrame(rows, schema=tables.CORPUS, orient="row"))

    def rows_of(self, ids: pl.Series) -> pl.Series:
        """The places in the corpus of some ids, from 0, in their order; null for missing ids."""
        places = dict(self._selected(f"{DOC_ID}, {ROW}", ids))
        return pl.Series([places.get(doc_id) for doc_id in ids], dtype=pl.Int64)

    def finder(self) -> Callable[[pl.Series], pl.Series]:
        """``rows_of`` for many calls: it holds the ids of up to a million passages."""
        if self.passages > _HELD:
            return self.rows_of
        none = pl.DataFrame(schema={DOC_ID: pl.String})
        return Places(pl.concat([none, *self.scan([DOC_ID])])[DOC_ID]).of

    def empty_rows(self) -> npt.NDArray[np.int64]:
        """The places of the passages without text, ascending."""
        with _opened(self) as connection:
            rows = connection.execute(f"SELECT {ROW} FROM empty ORDER BY {ROW}")
            return np.fromiter((row for (row,) in rows), dtype=np.int64)

    def scan(self, columns: Sequence[str] = tuple(tables.CORPUS)) -> Iterator[pl.DataFrame]:
        """Yield some columns of all passages in batches, in the order of the corpus."""
        schema = {name: tables.CORPUS[name] for name in columns}
        with _opened(self) as connection:
            each = connection.execute(f"SELECT {', '.join(columns)} FROM passages ORDER BY {ROW}")
            while rows := each.fetchmany(_BATCH):
                yield with_composed(pl.DataFrame(rows, schema=schema, orient="row"))

    def _selected(self, columns: str, ids: Iterable[str]) -> Iterator[tuple[Any, ...]]:
        ordered = sorted(set(ids))  # so that one page of the index serves neighbours
        with _opened(self) as connection:
            for start in range(0, len(ordered), _AT_ONCE):
                some = ordered[start : start + _AT_ONCE]
                which = f"{DOC_ID} IN ({', '.join('?' * len(some))})"
                yield from connection.execute(f"SELECT {columns} FROM passages WHERE {which}", some)


def index_corpus(
    corpus: Location,
    folder: Folder,
    key: str,
    *,
    skip_bad: int = 0,
    on_passages: Callable[[int], None] = lambda passages: None,
) -> PassageIndex:
    """The index of a corpus, built unless ``folder`` has it under this ``key``, which differs by the corpus' state.

    Building reads the corpus once, in constant memory, and takes a file of about the size of the texts plus 30 bytes
    and two ids a passage; at an address, a temporary file of that size here. ``on_passages`` is called with the
    passages read so far. An InputError is as of ``read_corpus``, or says that an address cannot be read or written; a
    WriteError says that the disk is full, or that the folder cannot be written.
    """
    if known := _known(folder, key):
        if known.skipped <= skip_bad:
            return known
        _refuse_as_reading(corpus, skip_bad)
    name = f"{key}-{_VERSION}.sqlite"  # another version is another file, in copies too
    target = folder.at / name if isinstance(folder.at, Path) else _local_copy(name)
    skip = SkipBad(skip_bad)
    with reported_writing(target), temporary_file(target) as temporary:
        try:
            fingerprint = _build(temporary, corpus, skip, on_passages)
        except (InputError, sqlite3.IntegrityError):
            # The reader decides which fault comes first, bad records or duplicate ids: it compares ids as it goes, at
            # 16 bytes each.
            _refuse_as_reading(corpus, skip_bad)
            raise
        flush(temporary)
        digest = digests.file_sha256(temporary)
        os.replace(temporary, target)
    if not isinstance(folder.at, Path):
        folder.put(name, target)
    counts = fingerprint.rows, skip.count
    index = PassageIndex(folder, name, *counts, fingerprint.hexdigest(), digest)
    manifest = {"version": _VERSION, **{k: v for k, v in asdict(index).items() if k != "folder"}}
    folder.write(f"{key}.json", digests.sealed_json(manifest))
    return index


def _known(folder: Folder, key: str) -> PassageIndex | None:
    try:
        manifest = digests.unsealed_json(folder.read(f"{key}.json"))
        if manifest.pop("version") != _VERSION:
            return None
        index = PassageIndex(folder=folder, **manifest)
        return index if index.is_whole() else None
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None  # none yet, or of an unknown version


def _refuse_as_reading(corpus: Location, skip_bad: int) -> None:
    """Read a faulty corpus, so that the error is the same as in every other command."""
    deque(scan_corpus(corpus, skip_bad=skip_bad, distinct=True), maxlen=0)


def _build(
    path: Path, corpus: Location, skip: SkipBad, on_passages: Callable[[int], None]
) -> digests.Fingerprint:
    fingerprint = digests.Fingerprint()
    marks = ", ".join("?" * (len(tables.CORPUS) + 1))
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.executescript(_TABLE + "BEGIN;")
        for batch in scan_corpus(corpus, skip_bad=skip):
            rows = batch.with_row_index(ROW, fingerprint.rows)
            connection.executemany(f"INSERT INTO passages VALUES ({marks})", rows.iter_rows())
            empty = rows.filter(pl.col(TEXT).str.strip_chars() == "")
            connection.executemany("INSERT INTO empty VALUES (?)", empty.select(ROW).iter_rows())
            fingerprint.update(batch)
            on_passages(fingerprint.rows)
        connection.execute("COMMIT")
        connection.execute(f"CREATE UNIQUE INDEX ids ON passages ({DOC_ID})")
    return fingerprint


@contextlib.contextmanager
def _opened(index: PassageIndex) -> Iterator[sqlite3.Connection]:
    at = index.folder.at
    path = at / index.name if isinstance(at, Path) else _fetched(index)
    # Immutable: it is never written again, so nothing is locked, not even on a network file system.
    address = f"file:{quote(str(path.absolute()))}?mode=ro&immutable=1"
    try:
        with contextlib.closing(sqlite3.connect(address, uri=True)) as connection:
            yield connection
    except sqlite3.Error as error:
        problem = f"the index of passages cannot be read ({error})"
        raise InputError(problem, "delete it, and run again", "corpus.cache", path=path) from None


def _fetched(index: PassageIndex) -> Path:
    """The file of an index at an address, on this machine: fetched by the first process that asks."""
    from filelock import lock_descriptor

    path = _local_copy(index.name)
    with (path.parent / f"{index.name}.lock").open("w") as lock, reported_writing(path):
        lock_descriptor(lock.fileno())
        if path.exists():
            return path
        place, remedy = index.folder.place(index.name), "delete it, and run again"
        with temporary_file(path) as temporary:
            try:
                index.folder.download(index.name, temporary)
            except FileNotFoundError:
                raise InputError("no such file", "run again", "files.missing", path=place) from None
            digests.require_whole(temporary, index.digest, remedy, called=place)
            os.replace(temporary, path)
    return path


def _local_copy(name: str) -> Path:
    """The path of an index's copy on this machine, in a folder that no other user may enter."""
    folder = Path(tempfile.gettempdir()) / f"erag-passages-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    status = folder.lstat()
    if status.st_uid != os.getuid() or status.st_mode & 0o077 or folder.is_symlink():
        problem = "belongs to somebody else, or is open to others"
        raise InputError(problem, "set TMPDIR to another", "corpus.owner", path=folder)
    return folder / name


class CorpusInMemory:
    """Listed passages in memory; ``read`` gives all of the corpus, in batches, and counts bad records.

    Attributes:
        skipped: bad records that lookups skipped.
        size: number of passages of the whole corpus, after a lookup.
        passages: the corpus table of the passages found so far.
    """

    def __init__(self, read: Callable[[SkipBad], Iterable[pl.DataFrame]], limit: int = 0) -> None:
        self._read, self._limit = read, limit
        self.skipped = self.size = 0
        self.passages = tables.empty(tables.CORPUS)
        self._absent: dict[str, pl.Series] = {}

    @classmethod
    def from_corpus(cls, corpus: Location, skip_bad: int) -> CorpusInMemory:
        """Passages of a corpus, which lookups read once, and again if some have texts for ids."""
        return cls(lambda skip: scan_corpus(corpus, skip_bad=skip, distinct=True), skip_bad)

    def _look(self, batch: pl.DataFrame) -> pl.DataFrame:
        """Take note of the expected ids that occur, listed or not."""
        self.size += batch.height
        for column, ids in self._absent.items():
            self._absent[column] = ids.filter(~ids.is_in(batch[column].implode()))
        return batch

    def expect(self, expected: Mapping[str, pl.Series]) -> None:
        """Register the ids for ``absent``, by the column of the corpus, before any lookup."""
        self._absent = {column: ids.unique(maintain_order=True) for column, ids in expected.items()}

    def absent(self, column: str) -> pl.Series:
        """The distinct ids expected in a column of the corpus, listed or not, that it lacks."""
        return self._absent[column]

    def get(self, ids: pl.Series) -> pl.DataFrame:
        """The corpus table of the passages noted that have these ids."""
        return self.passages.filter(pl.col(DOC_ID).is_in(ids.implode()))

    def look_up(self, ids: pl.Series) -> pl.Series:
        """Take note of the passages with these distinct ids; returns the ids that the corpus lacks."""
        self.size, skip = 0, SkipBad(self._limit)
        self._add(select_ids(map(self._look, self._read(skip)), ids))
        self.skipped = skip.count
        return self.unknown(ids)

    def look_up_texts(self, texts: pl.Series) -> pl.DataFrame:
        """Take note of the first passage with each distinct text; returns ``doc_id`` and ``text``."""
        passages = first_with(self._read(SkipBad(self._limit)), texts)
        self._add(passages)
        return passages.select(DOC_ID, TEXT)

    def _add(self, passages: pl.DataFrame) -> None:
        both = pl.concat([self.passages, passages.select(list(tables.CORPUS))])
        self.passages = both.unique(DOC_ID, maintain_order=True)

    def unknown(self, ids: pl.Series) -> pl.Series:
        """The ids that no noted passage has."""
        return ids.filter(~ids.is_in(self.passages[DOC_ID].implode()))

    def scan(self, columns: Sequence[str] = tuple(tables.CORPUS)) -> Iterator[pl.DataFrame]:
        """Yield noted passages in the order of the corpus; passages noted by text alone come last."""
        yield self.passages.select(columns)

    def count_empty(self) -> int:
        """Number of noted passages without text."""
        return int((self.passages[TEXT].str.strip_chars() == "").sum())


class PassageMarks:
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
        rows = self._rows(ids)
        self._by_id[rows.drop_nulls().to_numpy()] = True
        return ids.filter(rows.is_null())

    def _rows(self, ids: pl.Series) -> pl.Series:
        each = (self._rows_of(ids.slice(start, _BATCH)) for start in range(0, len(ids), _BATCH))
        return pl.concat([pl.Series(dtype=pl.Int64), *each])

    def look_up_texts(self, texts: pl.Series) -> pl.DataFrame:
        passages = first_with(self.index.scan([TEXT, DOC_ID]), texts)
        self._by_text[passages[ROW].to_numpy()] = True
        return passages.select(DOC_ID, TEXT)

    def unknown(self, ids: pl.Series) -> pl.Series:
        return ids.filter(self._rows(ids).is_null())

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


Listed = CorpusInMemory | PassageMarks
"""The passages of a corpus that were looked up so far."""
