"""Open local files for reading; keep what can be read only once, such as a pipe."""

from __future__ import annotations

import os
import stat
import tempfile
import threading
from pathlib import Path
from typing import IO

from engine.messages.errors import InputError

# Most bytes that are kept of one pipe, in the folder of temporary files.
LARGEST_PIPE = 4 << 30
_BLOCK = 1 << 20


def open_local(path: Path) -> IO[bytes]:
    """Open a file or pipe (``<(…)``, ``/dev/stdin``, a FIFO) for reading, from its beginning each time.

    A pipe gives its content once. All of it is kept in a temporary file when it is first opened, and every
    reader of this process reads that until ``forget_pipes``.

    Raises:
        InputError: a device, or a pipe of more than ``LARGEST_PIPE`` bytes.
        OSError: it cannot be opened.
    """
    status = path.stat()
    if stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode):
        return path.open("rb")
    with _LOCK:
        identity = (status.st_dev, status.st_ino)
        if identity not in _PIPES:
            _PIPES[identity] = _kept(path, status)
        # The file has no name; opened by its number, it has a place of its own.
        return Path(f"/proc/self/fd/{_PIPES[identity][0].fileno()}").open("rb")


def forget_pipes() -> None:
    """Close all pipes and remove what was kept of them."""
    with _LOCK:
        while _PIPES:
            for stream in _PIPES.popitem()[1]:
                stream.close()


# What is kept of a pipe, and the pipe, by device and number of its file, which are those of the pipe under
# whatever name it is given. It stays open: its number would be given to another.
_PIPES: dict[tuple[int, int], tuple[IO[bytes], IO[bytes]]] = {}
_LOCK = threading.Lock()


def _kept(path: Path, status: os.stat_result) -> tuple[IO[bytes], IO[bytes]]:
    source = path.open("rb", buffering=0)
    is_empty = status.st_rdev == Path(os.devnull).stat().st_rdev
    if stat.S_ISCHR(status.st_mode) and not (is_empty or source.isatty()):
        source.close()
        raise InputError("is a device", "give a file or a pipe", path=path)
    kept = tempfile.TemporaryFile(prefix="erag-pipe-", buffering=0)
    while block := source.read(_BLOCK):
        kept.write(block)
        if kept.tell() > LARGEST_PIPE:
            problem = f"gives more than {LARGEST_PIPE >> 30} GiB"
            raise InputError(problem, "save it as a file, and give that", path=path)
    return kept, source
