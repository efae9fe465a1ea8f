"""What tells whether a file is still the one that it was, without reading all of a large one."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from engine.masking import masked
from engine.sources.io.locations import (
    Location,
    file_system,
    is_directory,
    list_files,
    locate,
    open_binary,
    reported,
)

# Bytes up to which a file is read whole; of a larger one, this much of its beginning.
READ = 16 << 20
# What stores say of a file that changes when the file does, as far as they say it.
_MARKS = (
    "size",
    "ETag",
    "etag",
    "md5Hash",
    "crc32c",
    "LastModified",
    "last_modified",
    "updated",
    "mtime",
    "created",
)


def identity(place: Location) -> str:
    """64 hexadecimal digits that change when a file, or a file in a directory, does.

    They stand for names, sizes and, up to 16 MiB, the bytes. Of a larger file they stand for the first
    16 MiB and the time of its last change (at an address, what the store says of it): one that was
    overwritten further down by a file of the same size, and had its time set back, is taken for the
    former.

    Raises:
        InputError: an address that cannot be opened.
        OSError: a path that cannot be opened.
    """
    place = locate(place)
    files = list_files(place) if is_directory(place) else [place]
    marks = [_of_file(file) for file in files]
    return hashlib.sha256(json.dumps(marks, default=str).encode()).hexdigest()


def _of_file(file: Location) -> list[object]:
    with open_binary(file) as stream:
        start = stream.read(READ)
        # A pipe says nothing of its size; what is read of it is kept, and so is read once.
        content = hashlib.sha256(start)
        if len(start) < READ:
            return [masked(str(file)), content.hexdigest()]
        about = _about(file)
        if about is None:
            while block := stream.read(READ):
                content.update(block)
        return [masked(str(file)), content.hexdigest(), about]


def _about(file: Location) -> dict[str, Any] | None:
    """Size and time of a file; None for what has neither."""
    if isinstance(file, Path):
        if not file.is_file():
            return None
        status = file.stat()
        return {"size": status.st_size, "changed": status.st_mtime_ns}
    system, inside = file_system(file)
    with reported(file):
        info = system.info(inside)
    return {mark: info[mark] for mark in _MARKS if info.get(mark) is not None}
