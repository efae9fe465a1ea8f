"""Digests of files, tables and values: they identify contents, and show changes of inputs and stored files.

Stored files have their digests in a manifest, which is written last and has its own. Other values end in their digest.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from engine import tables
from engine.messages.errors import InputError, masked
from engine.sources.data_sets import identity_of
from engine.sources.io import locations
from engine.sources.io.locations import Location
from engine.sources.io.records import parse_json

_COLUMNS = tuple(tables.CORPUS)
_BITS = 256


def file_sha256(path: str | Path) -> str:
    """The SHA-256 of a file's bytes, as 64 hexadecimal digits; an OSError if it cannot be read."""
    with Path(path).open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


class RowHashes:
    """The sum modulo 2**256 of the SHA-256 of rows, in any order and batches: a multiset hash (Clarke et al. 2003)."""

    def __init__(self) -> None:
        self.rows = 0
        self._sum = 0

    def add(self, rows: Iterable[bytes]) -> None:
        """Add rows, each written as bytes; different rows must give different bytes."""
        digests = b"".join([hashlib.sha256(row).digest() for row in rows])
        words = np.frombuffer(digests, dtype="<u4").reshape(-1, _BITS // 32)
        self.rows += len(words)
        # Sums of 32-bit words do not overflow 64 bits for up to 4 billion rows at once.
        for place, total in enumerate(words.sum(axis=0, dtype=np.uint64).tolist()):
            self._sum += total << (32 * place)
        self._sum %= 1 << _BITS

    def hexdigest(self) -> str:
        """64 hexadecimal digits; all zeros without any row."""
        return f"{self._sum:064x}"


class Fingerprint(RowHashes):
    """The fingerprint of a corpus, over ids, titles, texts and articles, in constant memory."""

    def update(self, batch: pl.DataFrame) -> pl.DataFrame:
        """Add passages: a frame with the columns of the corpus table, without nulls; gives it back."""
        # Lengths come first, so that ("ab", "c") and ("a", "bc") give different bytes.
        lengths = pl.concat_str(pl.col(*_COLUMNS).str.len_bytes(), separator=",")
        row_bytes = pl.concat_str(lengths, *_COLUMNS, separator=":").cast(pl.Binary)
        self.add(batch.select(row_bytes).to_series())
        return batch


# Bytes read from a file, or from all files of a directory together.
READ = 16 << 20
# Attributes of a file in an object store that change when the file does, if the store has them.
_MARKS = ("size", "ETag", "etag", "md5Hash", "crc32c", "LastModified", "last_modified", "updated", "mtime", "created")  # fmt: skip


def identity(place: Location) -> str:
    """64 hexadecimal digits that change when a file, or a file in a directory, does.

    They cover the names and the first 16 MiB in all, and, for a longer file, its size and the time of its last change
    (at an address, the marks of the store): a later change with the time set back passes. An address that cannot be
    opened is an InputError, a path an OSError.
    """
    place = locations.locate(place)
    if locations.is_data_set(place):
        return identity_of(place)
    files = locations.list_files(place) if locations.is_directory(place) else [place]
    marks: list[list[object]] = []
    left = READ
    for file in files:
        mark, read = _marks_and_bytes(file, left)
        marks.append([masked(str(file)), *mark])
        left -= read
    return hashlib.sha256(json.dumps(marks, default=str).encode()).hexdigest()


def _marks_and_bytes(file: Location, most: int) -> tuple[list[object], int]:
    """Identifying values of a file, from at most ``most`` bytes; and the number of bytes read."""
    content = hashlib.sha256()
    with locations.open_binary(file) as stream:
        start = stream.read(most + 1)
        content.update(start[:most])
        if len(start) <= most:
            return [content.hexdigest()], len(start)
        about = _about(file)
        if about is None:  # a pipe; its content is kept, and so read once
            content.update(start[most:])
            while block := stream.read(READ):
                content.update(block)
    return [content.hexdigest(), about], most


def _about(file: Location) -> dict[str, Any] | None:
    """Size and time of a file; None for a pipe."""
    if isinstance(file, Path):
        if not file.is_file():
            return None
        status = file.stat()
        return {"size": status.st_size, "changed": status.st_mtime_ns}
    system, inside = locations.file_system(file)
    with locations.reported(file):
        info = system.info(inside)
    return {mark: info[mark] for mark in _MARKS if info.get(mark) is not None}


# The key of a manifest's own digest, and the length of a digest at the end of a value.
_OWN, _BYTES = "sha256", 16


def digest(content: bytes) -> str:
    """The SHA-256 of some bytes, as 64 hexadecimal digits."""
    return hashlib.sha256(content).hexdigest()


def json_digest(value: object) -> str:
    """The digest of a JSON value, however it is laid out."""
    return digest(json.dumps(value, sort_keys=True).encode())


def digest_at(place: Path) -> str:
    """The digest of a file, or of the files directly in a folder; an OSError if one cannot be read."""
    if place.is_dir():
        return json_digest([*map(file_sha256, sorted(place.iterdir()))])
    return file_sha256(place)


def require_whole(
    path: Path, written: str | None, remedy: str, *, called: Location | None = None
) -> None:
    """Refuse a file or folder that is gone or has another digest; a null digest, as of earlier versions, passes."""
    try:
        if not written or digest_at(path) == written:
            return
        problem = "is not what was written: it was changed, or the disk damaged it"
    except OSError as error:
        problem = f"cannot be read ({error.strerror or error})"
    raise InputError(problem, remedy, "files.unreadable", path=called or path)


def sealed_json(manifest: Mapping[str, Any]) -> bytes:
    """A manifest with its own digest."""
    own = json_digest(json.loads(json.dumps(manifest)))  # as it reads back: of tuples, lists
    return json.dumps({**manifest, _OWN: own}, indent=1, ensure_ascii=False).encode()


def unsealed_json(content: bytes) -> dict[str, Any]:
    """The manifest in some bytes, without its digest; a ValueError if it was changed, or is no manifest."""
    manifest = parse_json(content)
    if not isinstance(manifest, dict):
        raise ValueError("it is not a manifest")
    if manifest.pop(_OWN, None) not in (None, json_digest(manifest)):  # None: an earlier version's
        raise ValueError("it was changed after it was written")
    return manifest


def sealed(content: bytes) -> bytes:
    """The bytes, followed by their digest."""
    return content + hashlib.sha256(content).digest()[:_BYTES]


def unsealed(content: bytes) -> bytes | None:
    """The bytes without their digest; None if the digest differs."""
    return content[:-_BYTES] if sealed(content[:-_BYTES]) == content else None
