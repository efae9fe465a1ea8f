"""The read store: every read that was ever done, found by its key.

A store is a folder, at a path or an address, with one folder per reader fingerprint, in which Parquet files hold the
reads table. Files are written whole or not at all, by any process on any machine, and never changed, so a store
survives any crash, and several jobs may use one store at once; at worst, a read is done twice.

A file is named ``LOW-HIGH-KEYS-BYTES.parquet``. ``KEYS`` is a digest of its keys. ``BYTES`` is one of its bytes, which
are compared before outputs are parsed: a damaged file is never used, and moves aside. ``LOW-HIGH`` is its span, the
buckets of the queries whose reads it has, in hexadecimal digits, ``HIGH`` excluded; a file without a span may have any
read. Files of earlier versions have no span, and the oldest no ``BYTES``: these are read without that test. Some have
reads that ended early, or blank outputs from before thoughts had a column: these count as absent.

Small files are merged (``compact``, ``tidy``). Nothing is lost where several jobs merge at once:

- A merged file has a name that no file ever had, since its bytes, and so ``BYTES``, hold a random number.
- A file is deleted only after a merged file that has all of its reads, its heir, was written, whole, and after the file
  was read. So heirs of heirs get ever younger: there is no circle of deletions, and the last heir of every file is there.
- A deleted file may be written again under its name, by a job that does the same reads once more. It is the same file
  then, byte for byte: a second deletion loses nothing. Calls that were timed have other seconds, and another name.
- Who finds a listed file gone lists the folder again, where its heir is.
- A job that is killed between writing and deleting leaves reads twice; they count once.
- A listing that is made while files are merged may miss a file and its heir: their reads are done again, and not lost.
"""

from __future__ import annotations

import io
import re
import threading
import uuid
from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
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
# Added to the name of a file whose bytes are not those that were written.
DAMAGED = ".damaged"
# Earlier versions ended reads early, and marked their outputs in this column.
_ENDED_EARLY = "decided"
_NAME = re.compile(
    r"((?P<low>[0-9a-f]{4})-(?P<high>[0-9a-f]{4,5})-)?"
    r"(?P<keys>[0-9a-f]{32})(-(?P<content>[0-9a-f]{32}))?\.parquet"
)


def span_of(name: str) -> Range | None:
    """The span in the name of a file; None where it has none, and the file may hold any read."""
    named = _NAME.fullmatch(name)
    if named is None or named["low"] is None:
        return None
    return int(named["low"], 16), int(named["high"], 16)


def reaches_beyond(name: str, span: Range) -> bool:
    """Whether a file may have reads of queries outside of a span."""
    low, high = span_of(name) or (0, BUCKETS)
    return low < span[0] or high > span[1]


def names_of(folder: Folder) -> list[str]:
    """The files of the store in a reader's folder, in order."""
    return [name for name in folder.names() if name.endswith(SUFFIX)]


def write_file(
    folder: Folder, reads: pl.DataFrame, span: Range | None, metadata: Mapping[str, str]
) -> str:
    """Write reads as one file; its name.

    Raises:
        WriteError: it cannot be written; the folder is as it was.
        ValueError: no span.
    """
    if span is not None and not 0 <= span[0] < span[1] <= BUCKETS:
        raise ValueError(f"no span of buckets: {span}")
    memory = io.BytesIO()
    reads[list(tables.READS)].write_parquet(memory, metadata=dict(metadata) or None)
    content = memory.getvalue()
    buckets = "" if span is None else f"{span[0]:04x}-{span[1]:04x}-"
    name = f"{buckets}{_digest_of_keys(reads[READ_KEY])}-{digest(content)[:32]}{SUFFIX}"
    folder.write(name, content)
    return name


def table_of(folder: Folder, name: str, content: bytes) -> pl.DataFrame | None:
    """The reads table of a file with these bytes; None where they are not those that were written.

    Raises:
        InputError: it has other columns, or is a damaged one of an earlier version.
        FileNotFoundError: it is gone from an address where it had to be fetched again.
    """
    named = _NAME.fullmatch(name)
    place = folder.place(name)
    written = named and named["content"]
    if written and digest(content)[:32] != written:
        if isinstance(folder.at, Path):
            return None
        # It may have been damaged on its way here.
        content = folder.read(name)
        if digest(content)[:32] != written:
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
    """A file's table without reads that ended early and, where thoughts have no column yet, without outputs that are blank
    or begin with a thought, which often were what stood before the first line break. Outputs are composed.
    """
    if _ENDED_EARLY in frame.columns:
        frame = frame.filter(~pl.col(_ENDED_EARLY))
    if not {OUTPUT, CONFIDENCE} <= set(frame.columns) or THOUGHT in frame.columns:
        return frame
    written = ~pl.col(OUTPUT).str.contains(rf"(?s)^\s*({THINK[0]}.*)?$")
    kept = frame.filter(written | pl.col(CONFIDENCE).is_not_null())
    return kept.with_columns(pl.col(OUTPUT).str.normalize("NFC"))


def keys_of(folder: Folder, name: str) -> pl.Series | None:
    """The keys of a file, read without the rest of it; None where the whole is needed to know them.

    They are those that were written, since they are compared with their digest in the name.
    """
    named = _NAME.fullmatch(name)
    if named is None:
        return None
    try:
        keys = read_parquet(folder.place(name), [READ_KEY]).get_column(READ_KEY, default=None)
    except InputError:  # gone, or damaged: whoever reads the whole can tell
        return None
    if keys is None or keys.dtype != pl.String or keys.has_nulls():
        return None
    return keys if _digest_of_keys(keys) == named["keys"] else None


def distinct(frames: list[pl.DataFrame]) -> pl.DataFrame:
    """The reads of several files, one row per key: that of the first file which has it."""
    if not frames:
        return tables.empty(tables.READS)
    return pl.concat(frames).unique(READ_KEY, keep="first", maintain_order=True)


class KeyMemory:
    """Hashes of the keys of files that are asked for again and again, of ``most`` keys, at 8 bytes each.

    A hash that two keys share makes a file be read for nothing; it is never taken for a key.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._total = 0
        self._files: OrderedDict[tuple[str, str], npt.NDArray[np.uint64]] = OrderedDict()
        self._lock = threading.Lock()

    def may_have(self, folder: Folder, name: str, keys: pl.Series) -> bool | None:
        """Whether a file may have some of the keys; None where it is not remembered."""
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
        """Remember a file's keys, and forget those of files that were not asked for the longest."""
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


class StoredReads(NamedTuple):
    """What a store has of one reader.

    Attributes:
        reads: the reads table, one row per key.
        damaged: where the damaged files are now, without credentials; none of their reads is used.
    """

    reads: pl.DataFrame
    damaged: Sequence[str]


@dataclass(frozen=True)
class Listing:
    """The files that a store has of one reader, listed once for many calls of ``find``; ``made`` identifies it."""

    folder: Folder
    names: tuple[str, ...]
    made: str

    def within(self, span: Range, came: Iterable[str] = ()) -> Listing:
        """Only the files that may have reads of queries in these buckets, and those that ``came`` since."""
        low, high = self._spans
        inside = np.flatnonzero((low < span[1]) & (high > span[0]))
        names = {*came, *(self.names[place] for place in inside)}
        return Listing(self.folder, tuple(sorted(names)), self.made)

    def inside(self, span: Range) -> Listing:
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


def add(store: Folder, fingerprint: str, reads: pl.DataFrame, *, span: Range | None = None) -> str:
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


def find(listing: Listing, keys: pl.Series, span: Range | None = None) -> StoredReads:
    """The stored reads among ``keys``. Of files that have none of them, only the keys are read.

    Of files that reach beyond ``span``, which other calls will ask for too, this process remembers hashes of the keys,
    128 MiB in all (``KeyMemory``). Damaged files are moved aside.

    Args:
        listing: from any process. Files that came since are looked at only if a listed one is gone, since it was merged.
        span: buckets that have the queries of all of these reads; None where they may be any.

    Raises:
        InputError: a file of the store cannot be read, has other columns, or is a damaged one of an earlier version.
    """
    folder = listing.folder
    sought = keys.unique().alias(READ_KEY).to_frame()
    frames: list[pl.DataFrame] = []
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
            frames.append(reads)
            sought = sought.join(reads, on=READ_KEY, how="anti")
    return StoredReads(distinct(frames), damaged)


def compact(
    store: Folder, fingerprint: str, names: Collection[str], span: Range | None
) -> list[str]:
    """Merge files into one, in memory, and delete them: see the top of this module.

    Args:
        names: of listed files; files that another job has merged meanwhile are passed over, damaged ones moved aside.
        span: of the merged file: it covers those of all files. None if one of them has none.

    Returns:
        where the damaged ones are now, as in ``StoredReads``.

    Raises:
        InputError: a file of the store cannot be read, has other columns, or is a damaged one of an earlier version.
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

    They are merged however young they are: another job that needs one finds its heir, and clocks of several machines and
    an object store cannot be compared. Where files cannot be written or deleted, they are read as they are.

    Returns:
        where damaged files are now, as in ``StoredReads``.
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
    with suppress(WriteError):  # whatever must be written will say that it cannot be
        # An object store may let us write and not delete, and says so of a missing file, too: each job would then
        # add merged files.
        folder.delete([f"{uuid.uuid4().hex}{SUFFIX}"])
        for names in _groups(sizes, TOGETHER):
            damaged += compact(store, fingerprint, names, None)
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
    """The reads of a file that are sought; None if it is damaged, a FileNotFoundError where it is gone."""
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
    """What became of a listing in this process: files that were gone, and a listing of what came."""

    gone: set[str] = field(default_factory=set)
    newer: Listing | None = None


# By the listing; of the last few.
_SINCE: OrderedDict[str, _Since] = OrderedDict()


def _each(listing: Listing, span: Range, gone: set[str]) -> Iterator[str]:
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
