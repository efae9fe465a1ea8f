"""The read store: all finished reads, by key.

A store is a folder, at a path or an address, with one folder per reader fingerprint, in which Parquet files hold the
reads table. Any process on any machine may write files; a file is written whole or not at all, and never changes. So a
store survives any crash, and several jobs may share it; at worst, a read is done twice.

A file is named ``LOW-HIGH-KEYS-BYTES.parquet``. ``KEYS`` is a digest of its keys, ``BYTES`` a digest of its bytes. The
bytes are compared before outputs are parsed: a damaged file is moved aside and never used. ``LOW-HIGH`` is the file's
span, the buckets of its reads' queries, in hexadecimal digits, ``HIGH`` excluded; a file without a span may have any
read. Files of earlier versions have no span, and the oldest have no ``BYTES`` and are read without that test. Reads
that ended early, and blank outputs from before thoughts had a column, count as absent.

Small files are merged (``compact``, ``tidy``). No read is lost if several jobs merge at once:

- A merged file has a new name: its bytes, and so ``BYTES``, contain a random number.
- A file is deleted only after its heir, a merged file with all its reads, is written whole, and after the file was
  read. Heirs of heirs get ever younger, so deletions form no circle, and the last heir of every file exists.
- A job that repeats the same reads may write a deleted file again under its name. The new file is the same, byte for
  byte: a second deletion loses nothing. Timed calls have other seconds, and another name.
- A process that misses a listed file lists the folder again, and finds the heir.
- A job that is killed between writing and deleting leaves duplicate reads, which count once.
- A listing made during a merge may miss both a file and its heir: their reads are done again, and not lost.
"""

from __future__ import annotations

import io
import re
import threading
import uuid
from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import polars as pl

from engine import tables
from engine.messages.errors import InputError, WriteError
from engine.reading.protocol import THINK
from engine.sources.io.digests import digest
from engine.sources.io.files import remove_abandoned
from engine.sources.io.folders import Folder
from engine.sources.io.parquet import read_parquet
from engine.sources.queries.buckets import BUCKETS, Range
from engine.tables import CONFIDENCE, OUTPUT, READ_KEY, THOUGHT

SUFFIX = ".parquet"
DAMAGED = ".damaged"  # suffix of a damaged file: its bytes have changed
# Earlier versions ended reads early, and marked their outputs in this column.
_ENDED_EARLY = "decided"
_NAME = re.compile(
    r"((?P<low>[0-9a-f]{4})-(?P<high>[0-9a-f]{4,5})-)?"
    r"(?P<keys>[0-9a-f]{32})(-(?P<content>[0-9a-f]{32}))?\.parquet"
)


def span_of(name: str) -> Range | None:
    """The span in a file's name; None if the name has no span, and the file may hold any read."""
    named = _NAME.fullmatch(name)
    if named is None or named["low"] is None:
        return None
    return int(named["low"], 16), int(named["high"], 16)


def reaches_beyond(name: str, span: Range) -> bool:
    """Whether a file may have reads of queries outside a span."""
    low, high = span_of(name) or (0, BUCKETS)
    return low < span[0] or high > span[1]


def names_of(folder: Folder) -> list[str]:
    """The files of the store in a reader's folder, in order."""
    return [name for name in folder.names() if name.endswith(SUFFIX)]


def table_of(folder: Folder, name: str, content: bytes) -> pl.DataFrame | None:
    """The reads table of a file with these bytes; None if the file is damaged.

    An InputError if it has other columns, or is a damaged file of an earlier version; a FileNotFoundError if it had to
    be fetched again from an address, and is gone.
    """
    named = _NAME.fullmatch(name)
    place = folder.place(name)
    written = named and named["content"]
    if written and digest(content)[:32] != written and not isinstance(folder.at, Path):
        content = folder.read(name)  # the transfer may have damaged it
    if written and digest(content)[:32] != written:
        return None
    try:
        if written:
            frame = pl.read_parquet(io.BytesIO(content))
        else:  # a file of an earlier version may be damaged
            frame = read_parquet(place, content=content)
    except (InputError, pl.exceptions.PolarsError, OSError) as error:
        reason = error.problem if isinstance(error, InputError) else error
        problem = f"broken file in the read store ({reason})"
        remedy = "delete it; its LLM calls are made again"
        raise InputError(problem, remedy, "store.damaged", path=place) from None
    return tables.conform(_in_full(frame), tables.READS, place)


def _in_full(frame: pl.DataFrame) -> pl.DataFrame:
    """A file's table without reads that ended early. A table without a column of thoughts also loses blank outputs and
    outputs that begin with a thought: such an output often was only the text before the first line break. Outputs are
    normalized to NFC.
    """
    if _ENDED_EARLY in frame.columns:
        frame = frame.filter(~pl.col(_ENDED_EARLY))
    if not {OUTPUT, CONFIDENCE} <= set(frame.columns) or THOUGHT in frame.columns:
        return frame
    written = ~pl.col(OUTPUT).str.contains(rf"(?s)^\s*({THINK[0]}.*)?$")
    frame = frame.filter(written | pl.col(CONFIDENCE).is_not_null())
    return frame.with_columns(pl.col(OUTPUT).str.normalize("NFC"))


def keys_of(folder: Folder, name: str) -> pl.Series | None:
    """The keys of a file, verified by the digest in its name; only that column is read. None if that fails."""
    named = _NAME.fullmatch(name)
    if named is None:
        return None
    try:
        keys = read_parquet(folder.place(name), [READ_KEY]).get_column(READ_KEY, default=None)
    except InputError:  # gone, or damaged: reading the whole file will show
        return None
    if keys is None or keys.dtype != pl.String or keys.has_nulls():
        return None
    return keys if _digest_of_keys(keys) == named["keys"] else None


def distinct_reads(frames: list[pl.DataFrame]) -> pl.DataFrame:
    """The reads of several files, one row per key; the first file with the key wins."""
    if not frames:
        return tables.empty(tables.READS)
    return pl.concat(frames).unique(READ_KEY, keep="first", maintain_order=True)


class KeyMemory:
    """Hashes of the keys of often searched files: at most ``most`` keys, at 8 bytes each.

    A collision of hashes makes a file be read in vain, and never yields a wrong read.
    """

    def __init__(self, most: int) -> None:
        self._most, self._total = most, 0
        self._files: OrderedDict[tuple[str, str], npt.NDArray[np.uint64]] = OrderedDict()
        self._lock = threading.Lock()

    def may_have(self, folder: Folder, name: str, keys: pl.Series) -> bool | None:
        """Whether a file may have some of the keys; None if the file is not remembered."""
        with self._lock:
            hashes = self._files.get((str(folder), name))
            if hashes is None:
                return None
            self._files.move_to_end((str(folder), name))
        if not len(hashes):
            return False
        sought = keys.hash().to_numpy()
        places = np.searchsorted(hashes, sought).clip(max=len(hashes) - 1)
        return bool((hashes[places] == sought).any())

    def remember(self, folder: Folder, name: str, keys: pl.Series) -> None:
        """Remember a file's keys, and forget the least recently used files."""
        hashes = np.sort(keys.hash().to_numpy())
        with self._lock:
            if len(hashes) > self._most or (str(folder), name) in self._files:
                return
            self._files[str(folder), name] = hashes
            self._total += len(hashes)
            while self._total > self._most:
                _, forgotten = self._files.popitem(last=False)
                self._total -= len(forgotten)


def _digest_of_keys(keys: pl.Series) -> str:
    return digest("".join(keys.sort()).encode())[:32]


FEW = 64  # a job merges files without a span if there are more than this
# ``tidy`` leaves files of at least so many bytes alone, so that a read is rewritten a few times at most.
LARGE = 8 << 20
# Bytes of files that ``tidy`` merges into one file; in memory the tables are a few times larger.
TOGETHER = 32 << 20
# At most so often a folder is listed again because files were gone: merges are rarer than that.
_LISTINGS = 20
# Keys that a process remembers, of files that several calls of ``find`` search: 128 MiB.
_REMEMBERED = 1 << 24

_MEMORY = KeyMemory(_REMEMBERED)


class StoredReads(NamedTuple):
    """Stored reads of one reader, one row per key, and new places of damaged files, whose reads are not used."""

    reads: pl.DataFrame
    damaged: Sequence[str]


@dataclass(frozen=True)
class Listing:
    """One reader's files in a store, listed once for many calls of ``find``; ``uid`` identifies it."""

    folder: Folder
    names: tuple[str, ...]
    uid: str

    def within(self, span: Range, came: Iterable[str] = ()) -> Listing:
        """Only the files that may have reads of queries in these buckets, and the newer files ``came``."""
        low, high = self._spans
        inside = np.flatnonzero((low < span[1]) & (high > span[0]))
        names = {*came, *(self.names[place] for place in inside)}
        return replace(self, names=tuple(sorted(names)))

    def inside(self, span: Range) -> Listing:
        """Only the files with a span that lies within these buckets."""
        low, high = self._spans
        inside = np.flatnonzero((low >= span[0]) & (high <= span[1]))
        return replace(self, names=tuple(self.names[place] for place in inside))

    @cached_property
    def _spans(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        # An unknown span lies inside no other.
        spans = [span_of(name) or (-1, BUCKETS) for name in self.names]
        low, high = np.array(spans, dtype=np.int64).reshape(-1, 2).T
        return low, high


def add(
    store: Folder,
    fingerprint: str,
    reads: pl.DataFrame,
    *,
    span: Range | None = None,
    uid: str = "",
) -> str:
    """Add finished reads (the reads table) as one file, from any process on any machine; returns the file's name.

    ``span`` are buckets that contain the queries of all these reads, None if unknown; the ``uid`` of a merge gives its
    file a new name. A WriteError if it cannot be written; a ValueError if ``span`` is no range of buckets.
    """
    if reads.is_empty():
        return ""
    if span is not None and not 0 <= span[0] < span[1] <= BUCKETS:
        raise ValueError(f"no span of buckets: {span}")
    memory = io.BytesIO()
    reads[list(tables.READS)].write_parquet(memory, metadata={"merged": uid} if uid else None)
    content = memory.getvalue()
    buckets = "" if span is None else f"{span[0]:04x}-{span[1]:04x}-"
    name = f"{buckets}{_digest_of_keys(reads[READ_KEY])}-{digest(content)[:32]}{SUFFIX}"
    (store / fingerprint).write(name, content)
    return name


def listing(store: Folder, fingerprint: str) -> Listing:
    """The files of one reader, by name; listed once for a pass over all shards, since both may be many."""
    folder = store / fingerprint
    if isinstance(folder.at, Path):
        remove_abandoned(folder.at)
    return Listing(folder, tuple(names_of(folder)), uuid.uuid4().hex)


def find(listing: Listing, keys: pl.Series, span: Range | None = None) -> StoredReads:
    """The stored reads among ``keys``. Files without any of ``keys`` are not read beyond their keys.

    ``span`` are buckets that contain the queries of all these reads, None if unknown. Files that reach beyond it will
    be searched by other calls too: this process remembers hashes of their keys, 128 MiB in all (``KeyMemory``). Files
    newer than the listing are searched only if a listed file is gone, since it was merged. Damaged files are moved
    aside. An InputError if a file cannot be read, has other columns, or is damaged and of an earlier version.
    """
    folder = listing.folder
    sought = keys.unique().alias(READ_KEY).to_frame()
    frames, damaged, gone = list[pl.DataFrame](), list[str](), set[str]()
    for name in _each(listing, span or (0, BUCKETS), gone):
        if sought.is_empty():
            break
        try:
            again = span is None or reaches_beyond(name, span)
            reads = _among(folder, name, sought, again=again)
        except FileNotFoundError:
            gone.add(name)
            continue
        if reads is None:
            damaged.append(folder.set_aside(name, DAMAGED))
        elif reads.height:
            frames.append(reads)
            sought = sought.join(reads, on=READ_KEY, how="anti")
    return StoredReads(distinct_reads(frames), damaged)


def compact(
    store: Folder, fingerprint: str, names: Collection[str], span: Range | None
) -> list[str]:
    """Merge files into one, in memory, delete the originals, and return new places of damaged files: see the top.

    Listed files that another job merged meanwhile are skipped, damaged files moved aside. The merged file has this
    ``span``, which covers the spans of all files; None if a file has no span.

    Raises:
        InputError: a file of the store cannot be read, has other columns, or is a damaged file of an earlier version.
        WriteError: the merged file cannot be written, or the originals cannot be deleted; nothing is lost.
        ValueError: ``span`` is no range of buckets, or a file reaches beyond it.
    """
    if span is not None and any(reaches_beyond(name, span) for name in names):
        raise ValueError(f"files that reach beyond the buckets {span}")
    folder = store / fingerprint
    read, damaged = _tables(folder, sorted(names))
    if len(read) > 1:
        reads = distinct_reads(list(read.values()))
        add(store, fingerprint, reads, span=span, uid=uuid.uuid4().hex)
        folder.settle()
        folder.delete(read)
    return damaged


def tidy(store: Folder, fingerprint: str) -> list[str]:
    """Merge files without a span if there are more than ``FEW``; returns new places of damaged files.

    Files of any age are merged: another job that needs one finds its heir, and clocks of several machines and an object
    store cannot be compared. Files that cannot be written or deleted stay unmerged.
    """
    folder = store / fingerprint
    sizes = {
        name: size
        for name, size in sorted(folder.sizes().items())
        if name.endswith(SUFFIX) and span_of(name) is None and size < LARGE
    }
    damaged: list[str] = []
    if len(sizes) <= FEW:
        return damaged
    with suppress(WriteError):  # later writes that matter will fail aloud
        # An object store may permit writing but not deleting, and denies even deleting a missing file: each job would
        # then add merged files.
        folder.delete([f"{uuid.uuid4().hex}{SUFFIX}"])
        for names in _groups(sizes, TOGETHER):
            damaged += compact(store, fingerprint, names, None)
    return damaged


def _groups(sizes: Mapping[str, int], most: int) -> Iterator[list[str]]:
    group, total = list[str](), 0
    for name, size in sizes.items():
        group.append(name)
        total += size
        if total >= most:
            yield group
            group, total = [], 0
    yield group


def _tables(folder: Folder, names: Sequence[str]) -> tuple[dict[str, pl.DataFrame], list[str]]:
    """The tables of existing files, by name, and the new places of damaged files."""
    read, damaged = dict[str, pl.DataFrame](), list[str]()
    for name, content in folder.read_each(names):
        if content is None:
            continue
        try:
            frame = table_of(folder, name, content)
        except FileNotFoundError:
            continue
        if frame is None:
            damaged.append(folder.set_aside(name, DAMAGED))
        else:
            read[name] = frame
    return read, damaged


def _among(folder: Folder, name: str, sought: pl.DataFrame, *, again: bool) -> pl.DataFrame | None:
    """The sought reads in a file; None if the file is damaged, a FileNotFoundError if it is gone."""
    may_have = _MEMORY.may_have(folder, name, sought[READ_KEY])
    if may_have is None and (keys := keys_of(folder, name)) is not None:
        if again:
            _MEMORY.remember(folder, name, keys)
        may_have = bool(sought[READ_KEY].is_in(keys.implode()).any())
    if may_have is False:
        return tables.empty(tables.READS)
    reads = table_of(folder, name, folder.read(name))
    return None if reads is None else reads.join(sought, on=READ_KEY, how="semi")


@dataclass
class _Changes:
    """Changes to a listing in this process: missing files, and a newer listing."""

    gone: set[str] = field(default_factory=set)
    newer: Listing | None = None


@lru_cache(maxsize=20)
def _changes(uid: str) -> _Changes:
    """The changes of a recent listing, by ``Listing.uid``."""
    return _Changes()


def _each(listing: Listing, span: Range, gone: set[str]) -> Iterator[str]:
    """The files that may have reads of a span; newer files too once the caller adds a file to ``gone``."""
    changes, names, seen = _changes(listing.uid), {*listing.within(span).names}, set[str]()
    if changes.newer is not None and not names.isdisjoint(changes.gone):
        names.update(changes.newer.within(span).names)
    names -= changes.gone
    for _ in range(_LISTINGS):
        yield from sorted(names)
        seen |= names
        if gone.isdisjoint(names):
            return
        changes.gone |= gone
        changes.newer = replace(listing, names=tuple(names_of(listing.folder)))
        names = {*changes.newer.within(span).names} - seen
