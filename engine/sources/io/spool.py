"""Local files opened for reading; what can be read only once, as a pipe, is kept and can be read again."""

from __future__ import annotations

import io
import os
import stat
import tempfile
import threading
from pathlib import Path
from typing import IO

from engine.errors import InputError

# Most bytes that are kept of one pipe, in the folder of temporary files.
LARGEST_PIPE = 4 << 30
_BLOCK = 1 << 20


def open_local(path: Path) -> IO[bytes]:
    """Open a file or pipe (``<(…)``, ``/dev/stdin``, a FIFO) for reading, from its beginning each time.

    A pipe gives its content once. It is read as far as it is asked for and kept in a temporary file,
    which all readers of this process share until ``forget_pipes``.

    Raises:
        InputError: a device, or a pipe of more than ``LARGEST_PIPE`` bytes (while it is read).
        OSError: it cannot be opened.
    """
    status = path.stat()
    if stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode):
        return path.open("rb")
    with _LOCK:
        identity = (status.st_dev, status.st_ino)
        if identity not in _PIPES:
            _PIPES[identity] = _opened(path, status)
        return io.BufferedReader(_Reader(_PIPES[identity]), _BLOCK)


def forget_pipes() -> None:
    """Close all pipes and remove what was kept of them."""
    with _LOCK:
        while _PIPES:
            _PIPES.popitem()[1].close()


class _Pipe:
    """What can be read only once, and a file with as much of it as was read."""

    def __init__(self, path: Path, source: int | None) -> None:
        self._path = path
        self._source = source
        self._kept = tempfile.TemporaryFile(prefix="erag-pipe-")
        self._length = 0
        self._ended = source is None
        self._lock = threading.Lock()

    def read(self, at: int, most: int) -> bytes:
        """Some of the bytes from ``at`` on; none at the end."""
        with self._lock:
            while self._length <= at and self._fill():
                pass
            self._kept.seek(at)
            return self._kept.read(most)

    def length(self) -> int:
        """Of the whole, in bytes; waits for its end."""
        with self._lock:
            while self._fill():
                pass
            return self._length

    def close(self) -> None:
        self._kept.close()
        if self._source is not None:
            os.close(self._source)

    def _fill(self) -> bool:
        """Take the next bytes; False at the end."""
        # The source stays open after its end: its number would be given to another pipe.
        block = b"" if self._ended or self._source is None else os.read(self._source, _BLOCK)
        self._ended = not block
        if self._length + len(block) > LARGEST_PIPE:
            raise InputError(
                f"gives more than {LARGEST_PIPE >> 30} GiB",
                "save it as a file, and give that",
                path=self._path,
            )
        self._kept.seek(self._length)
        self._length += self._kept.write(block)
        return not self._ended


class _Reader(io.RawIOBase):
    """A place in a pipe."""

    def __init__(self, pipe: _Pipe) -> None:
        self._pipe = pipe
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        block = self._pipe.read(self._at, len(buffer))
        buffer[: len(block)] = block
        self._at += len(block)
        return len(block)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at}.get(whence)
        self._at = max(0, (self._pipe.length() if base is None else base) + offset)
        return self._at


# By device and number of the file, which are those of the pipe under whatever name it is given.
_PIPES: dict[tuple[int, int], _Pipe] = {}
_LOCK = threading.Lock()


def _opened(path: Path, status: os.stat_result) -> _Pipe:
    if not stat.S_ISFIFO(status.st_mode) and not stat.S_ISCHR(status.st_mode):
        raise InputError("is neither a file nor a pipe", "give a file", path=path)
    if stat.S_ISCHR(status.st_mode) and status.st_rdev == Path(os.devnull).stat().st_rdev:
        return _Pipe(path, None)
    source = os.open(path, os.O_RDONLY)
    if stat.S_ISCHR(status.st_mode) and not os.isatty(source):
        os.close(source)
        raise InputError("is a device", "give a file or a pipe", path=path)
    return _Pipe(path, source)
