"""Single files of the read store: their names, their contents, and keys that a process remembers.

A file is named ``LOW-HIGH-KEYS-BYTES.parquet``. ``KEYS`` is a digest of its keys. ``BYTES`` is one of its
bytes, which are compared before outputs are parsed: a file that was damaged is never used, whatever
the damage would have meant. ``LOW-HIGH`` is its span, the buckets of the queries whose reads it has, in
hexadecimal digits, from ``LOW`` up to but not including ``HIGH``; a file without a span may have any read.
Files of earlier versions have no span, and the oldest no ``BYTES``: these are read without that test. Some have
reads that ended early, or blank outputs from before thoughts had a column: these count as absent.
"""

from __future__ import annotations

import io
import re
import threading
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt
import polars as pl

from engine import tables
from engine.messages.errors import InputError
from engine.reading.protocol import THINK
from engine.sources.io.digests import digest
from engine.sources.io.folders import Folder
from engine.sources.io.parquet import read_parquet
from engine.sources.queries.buckets import BUCKETS
from engine.tables import CONFIDENCE, OUTPUT, READ_KEY, THOUGHT

Span = tuple[int, int]
"""Buckets: the first, and the one after the last."""

SUFFIX = ".parquet"
# Added to the name of a file whose bytes are not those that were written.
DAMAGED = ".damaged"
# Earlier versions ended reads early, and marked their outputs in this column.
_ENDED_EARLY = "decided"
_NAME = re.compile(
    r"((?P<low>[0-9a-f]{4})-(?P<high>[0-9a-f]{4,5})-)?"
    r"(?P<keys>[0-9a-f]{32})(-(?P<content>[0-9a-f]{32}))?\.parquet"
)


def span_of(name: str) -> Span | None:
    """The span in the name of a file; None where it has none, and the file may hold any read."""
    named = _NAME.fullmatch(name)
    if named is None or named["low"] is None:
        return None
    return int(named["low"], 16), int(named["high"], 16)


def reaches_beyond(name: str, span: Span) -> bool:
    """Whether a file may have reads of queries outside of a span."""
    low, high = span_of(name) or (0, BUCKETS)
    return low < span[0] or high > span[1]


def names_of(folder: Folder) -> list[str]:
    """The files of the store in a reader's folder, in order."""
    return [name for name in folder.names() if name.endswith(SUFFIX)]


def write_file(
    folder: Folder, reads: pl.DataFrame, span: Span | None, metadata: Mapping[str, str]
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
        raise InputError(problem, remedy, path=place) from None
    return tables.conform(_in_full(frame), tables.READS, place)


def _in_full(frame: pl.DataFrame) -> pl.DataFrame:
    """A file's table without reads that ended early, and of before thoughts were told from answers without outputs
    that are blank or begin with a thought, which often were what stood before the first line break.
    Outputs are composed, as they are since.
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
    """Hashes of the keys of files, for files that are asked for again and again.

    A hash that two keys share makes a file be read for nothing; it is never taken for a key.

    Args:
        most: keys that are remembered, at 8 bytes each; files beyond are read again each time.
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

    def forget(self) -> None:
        """Forget all files."""
        with self._lock:
            self._files.clear()
            self._total = 0


def _digest_of_keys(keys: pl.Series) -> str:
    return digest("".join(keys.sort()).encode())[:32]
