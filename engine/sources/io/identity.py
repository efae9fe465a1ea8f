"""Tell whether a file changed, without reading all of a large one."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from engine.messages.errors import masked
from engine.sources.data_sets import identity_of, is_data_set
from engine.sources.io.locations import (
    Location,
    file_system,
    is_directory,
    list_files,
    locate,
    open_binary,
    reported,
)

# Bytes that are read of a file, or of all files of a directory together.
READ = 16 << 20
# What stores say of a file that changes when the file does, as far as they say it.
_MARKS = ("size", "ETag", "etag", "md5Hash", "crc32c", "LastModified", "last_modified", "updated", "mtime", "created")  # fmt: skip


def identity(place: Location) -> str:
    """64 hexadecimal digits that change when a file, or a file in a directory, does.

    They stand for the names and the first 16 MiB in all. A file that reaches beyond stands for itself with
    its size and the time of its last change (at an address, with what the store says of it): one that was
    overwritten further down by a file of the same size, and had its time set back, is taken for the
    former.

    Raises:
        InputError, OSError: an address, or a path, that cannot be opened.
    """
    place = locate(place)
    if is_data_set(place):
        return identity_of(place)
    files = list_files(place) if is_directory(place) else [place]
    marks: list[list[object]] = []
    left = READ
    for file in files:
        mark, read = _of_file(file, left)
        marks.append([masked(str(file)), *mark])
        left -= read
    return hashlib.sha256(json.dumps(marks, default=str).encode()).hexdigest()


def _of_file(file: Location, most: int) -> tuple[list[object], int]:
    """What tells a file, of which at most so much is read; and how much was."""
    content = hashlib.sha256()
    with open_binary(file) as stream:
        start = stream.read(most + 1)
        content.update(start[:most])
        if len(start) <= most:
            return [content.hexdigest()], len(start)
        about = _about(file)
        if about is None:  # a pipe; what is read of it is kept, and so is read once
            content.update(start[most:])
            while block := stream.read(READ):
                content.update(block)
    return [content.hexdigest(), about], most


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
