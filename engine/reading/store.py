"""The read store: every read that was ever done, found by its key.

A store is a folder, at a path or an address, with one folder per reader fingerprint, in which Parquet
files hold the reads table (``store_files``). Files are written whole or not at all, by any process on
any machine, and never changed, so a store survives any crash, and several jobs may use one store at
once; at worst, a read is done twice. A file that was damaged is never used, and moves aside.

Small files are merged (``compact``, ``tidy``). Nothing is lost where several jobs merge at once:

- A merged file has a name that no file ever had, since its bytes, and so the digest of them in its
  name, hold a random number.
- A file is deleted only after a merged file that has all of its reads was written, whole. Call that
  file its heir. The heir was written after the file was read, so heirs of heirs get ever younger: there
  is no circle in which files are deleted for the sake of each other. Whichever jobs are at it, and
  wherever they stop, the last heir of every file is there.
- A deleted file may be written again under its name, by a job that does the same reads once more. It
  is the same file then, byte for byte: a second deletion loses nothing that its heir does not have.
  Calls that were timed have other seconds, and their file another name.
- Who finds a listed file gone lists the folder again, where its heir is.
- A job that is killed between writing and deleting leaves reads twice; they count once.
- A listing that is made while files are merged may miss a file and its heir, since it is not made in
  one moment. What it misses is done again, and not lost.
"""

from __future__ import annotations

import uuid
from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import polars as pl

from engine import tables
from engine.messages.errors import WriteError
from engine.reading.store_files import (
    DAMAGED,
    SUFFIX,
    KeyMemory,
    Span,
    distinct,
    keys_of,
    names_of,
    reaches_beyond,
    span_of,
    table_of,
    write_file,
)
from engine.sources.io.files import remove_abandoned
from engine.sources.io.folders import Folder
from engine.sources.queries.buckets import BUCKETS
from engine.tables import READ_KEY

# As many files without a span are left as they are; more are merged before a job.
FEW = 64
# Bytes of a file that ``tidy`` does not merge again, so that it writes a read a few times at most.
LARGE = 8 << 20
# Bytes of files that it merges into one; in memory they are some times as many.
TOGETHER = 32 << 20
# How often a folder is listed again because files were gone, since nobody merges that often; and of how
# many listings a process remembers that.
_LISTINGS = 20
# Keys that a process remembers of files that several calls of ``find`` ask for: 128 MiB.
_REMEMBERED = 1 << 24

_MEMORY = KeyMemory(_REMEMBERED)


class Stored(NamedTuple):
    """What a store has of one reader.

    Attributes:
        reads: the reads table, one row per key.
        damaged: where the files that were damaged are now, without credentials; none of their reads
            is used.
    """

    reads: pl.DataFrame
    damaged: Sequence[str]


@dataclass(frozen=True)
class Listing:
    """The files that a store has of one reader, listed once for many calls of ``find``.

    Attributes:
        made: tells this listing, and parts of it, from all others.
    """

    folder: Folder
    names: tuple[str, ...]
    made: str

    def within(self, span: Span, came: Iterable[str] = ()) -> Listing:
        """Only the files that may have reads of queries in these buckets, and those that ``came`` since."""
        low, high = self._spans
        inside = np.flatnonzero((low < span[1]) & (high > span[0]))
        names = {*came, *(self.names[place] for place in inside)}
        return Listing(self.folder, tuple(sorted(names)), self.made)

    def inside(self, span: Span) -> Listing:
        """Only the files that have a span, and reads of queries in these buckets alone."""
        low, high = self._spans
        known = np.array([span_of(name) is not None for name in self.names], dtype=bool)
        inside = np.flatnonzero(known & (low >= span[0]) & (high <= span[1]))
        return Listing(self.folder, tuple(self.names[place] for place in inside), self.made)

    @cached_property
    def _spans(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        spans = [span_of(name) or (0, BUCKETS) for name in self.names]
        low, high = np.array(spans, dtype=np.int64).reshape(-1, 2).T
        return low, high


def add(store: Folder, fingerprint: str, reads: pl.DataFrame, *, span: Span | None = None) -> str:
    """Add finished reads (the reads table) as one file, whose name it gives; from any process on any machine.

    Args:
        reads: without failed ones.
        span: buckets that have the queries of all of these reads; None where they may be any.

    Raises:
        WriteError: it cannot be written; the store is as it was.
        ValueError: no span.
    """
    return "" if reads.is_empty() else write_file(store / fingerprint, reads, span, {})


def listing(store: Folder, fingerprint: str) -> Listing:
    """The files of one reader, by name; made once for a pass over all shards, which may be as many as the files."""
    folder = store / fingerprint
    if isinstance(folder.at, Path):
        remove_abandoned(folder.at)
    return Listing(folder, tuple(names_of(folder)), uuid.uuid4().hex)


def find(listing: Listing, keys: pl.Series, span: Span | None = None) -> Stored:
    """The stored reads among ``keys``. Of files that have none of them, only the keys are read.

    Of files that other calls will ask for too, since they reach beyond ``span``, this process remembers
    hashes of the keys, 128 MiB in all (``KeyMemory``). Damaged files are moved aside.

    Args:
        listing: from any process. Files that came since are looked at only if one of those listed is
            gone, since it was merged into others.
        span: buckets that have the queries of all of these reads; None where they may be any.

    Raises:
        InputError: a file of the store cannot be read, has other columns, or is a damaged one of an
            earlier version.
    """
    folder = listing.folder
    sought = keys.unique().alias(READ_KEY).to_frame()
    found: list[pl.DataFrame] = []
    damaged: list[str] = []
    gone: set[str] = set()
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
            found.append(reads)
            sought = sought.join(reads, on=READ_KEY, how="anti")
    return Stored(distinct(found), damaged)


def load(store: Folder, fingerprint: str) -> Stored:
    """All stored reads of one reader; damaged files are moved aside."""
    folder = store / fingerprint
    frames: dict[str, pl.DataFrame] = {}
    damaged: list[str] = []
    names: Sequence[str] = listing(store, fingerprint).names
    seen: set[str] = set()
    for _ in range(_LISTINGS):
        read, broken = _tables(folder, names)
        frames |= read
        damaged += broken
        if len(read) + len(broken) == len(names):
            break
        # Some are gone, into others.
        seen.update(names)
        names = [name for name in names_of(folder) if name not in seen]
    return Stored(distinct([frames[name] for name in sorted(frames)]), damaged)


def compact(
    store: Folder, fingerprint: str, names: Collection[str], span: Span | None
) -> list[str]:
    """Merge files into one, in memory, and delete them: see the top of this module.

    Args:
        names: of files as listed. Those that another job has merged meanwhile are passed over, and
            damaged ones are moved aside.
        span: of the merged file: it covers those of all files. None if one of them has none.

    Returns:
        where the damaged ones are now, as in ``Stored``.

    Raises:
        InputError: a file of the store cannot be read, has other columns, or is a damaged one of an
            earlier version.
        WriteError: the merged file cannot be written, or others cannot be deleted; nothing is lost.
        ValueError: no span, or a file reaches beyond it.
    """
    if span is not None and any(reaches_beyond(name, span) for name in names):
        raise ValueError(f"files that reach beyond the buckets {span}")
    folder = store / fingerprint
    read, damaged = _tables(folder, sorted(names))
    if len(read) > 1:
        write_file(folder, distinct(list(read.values())), span, {"merged": uuid.uuid4().hex})
        folder.settle()
        folder.delete(read)
    return damaged


def tidy(store: Folder, fingerprint: str) -> list[str]:
    """Merge files without a span where there are more than ``FEW``, so that a job opens few of them.

    They are merged however young they are: another job that needs one finds its heir, and the clocks
    by which one might spare those of a job under way, of several machines and an object store, cannot
    be compared. Where files cannot be written or deleted, they are read as they are.

    Returns:
        where damaged files are now, as in ``Stored``.
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
    try:
        # An object store may let us write and not delete: then each job would add merged files. Whether
        # it does is said for a file that is not there, too.
        folder.delete([f"{uuid.uuid4().hex}{SUFFIX}"])
        for names in _groups(sizes, TOGETHER):
            damaged += compact(store, fingerprint, names, None)
    except WriteError:
        # Whatever must be written will say that it cannot be.
        return damaged
    return damaged


def _groups(sizes: Mapping[str, int], most: int) -> Iterator[list[str]]:
    """Names in their order, cut where their sizes reach ``most`` in total."""
    group: list[str] = []
    total = 0
    for name, size in sizes.items():
        group.append(name)
        total += size
        if total >= most:
            yield group
            group, total = [], 0
    yield group


def _tables(folder: Folder, names: Sequence[str]) -> tuple[dict[str, pl.DataFrame], list[str]]:
    """The tables of the files that are there, by name; and where the damaged ones are now."""
    read: dict[str, pl.DataFrame] = {}
    damaged: list[str] = []
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
    """The reads of a file that are sought; None if it is damaged. Raises FileNotFoundError where it is gone."""
    wanted = sought[READ_KEY]
    may_have = _MEMORY.may_have(folder, name, wanted)
    if may_have is None and (keys := keys_of(folder, name)) is not None:
        if again:
            _MEMORY.remember(folder, name, keys)
        may_have = bool(wanted.is_in(keys.implode()).any())
    if may_have is False:
        return tables.empty(tables.READS)
    reads = table_of(folder, name, folder.read(name))
    return None if reads is None else reads.join(sought, on=READ_KEY, how="semi")


@dataclass
class _Since:
    """What this process saw become of a listing: files that were gone, and a listing of what came."""

    gone: set[str] = field(default_factory=set)
    newer: Listing | None = None


# By the listing; of the last few.
_SINCE: OrderedDict[str, _Since] = OrderedDict()


def _each(listing: Listing, span: Span, gone: set[str]) -> Iterator[str]:
    """The files that may have reads of a span; where the caller says that one is ``gone``, also those that came since."""
    since = _SINCE.setdefault(listing.made, _Since())
    while len(_SINCE) > _LISTINGS:
        _SINCE.popitem(last=False)
    listed = listing.within(span).names
    names = [name for name in listed if name not in since.gone]
    if len(names) < len(listed) and since.newer is not None:
        came = since.newer.within(span).names
        names = sorted({*names, *(name for name in came if name not in since.gone)})
    given: set[str] = set()
    for _ in range(_LISTINGS):
        yield from names
        given.update(names)
        if gone.isdisjoint(names):
            return
        since.gone |= gone
        since.newer = Listing(listing.folder, tuple(names_of(listing.folder)), listing.made)
        names = [name for name in since.newer.within(span).names if name not in given]
