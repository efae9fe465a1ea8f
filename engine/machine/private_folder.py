"""Make a temporary folder for this user alone, which is removed soon after its process ends."""

from __future__ import annotations

import contextlib
import glob
import os
import shutil
import stat
import tempfile
from dataclasses import dataclass
from pathlib import Path

from engine.messages.errors import InputError
from engine.sources.io.temporary import hold, left_behind

_ADDED = 8  # characters that tempfile.mkdtemp adds to a prefix


@dataclass(frozen=True)
class PrivateFolder:
    """A folder with mode 700; ``remove`` it when it is no longer used.

    As long as its process lives it holds a lock on the folder, which the system takes back whatever ends
    the process. So a folder whose lock is free was left by a process that was killed.

    Attributes:
        lock: the file descriptor that holds the lock.
    """

    path: Path
    lock: int

    def remove(self) -> None:
        """Remove the folder with all that is in it; it may be gone already."""
        shutil.rmtree(self.path, ignore_errors=True)
        with contextlib.suppress(OSError):
            os.close(self.lock)


def make_folder(prefix: str, *, longest: int, parent: str | None = None) -> PrivateFolder:
    """A new private folder, after those with this prefix are removed that killed processes left.

    Args:
        longest: the most bytes that its path may have (sockets within have short paths).
        parent: where it is made. Without one, or where its path is too long, this is the system's
            folder of temporary files; and ``/tmp`` where that one's is.

    Raises:
        InputError: there is no folder whose path is short enough, or it cannot be written.
    """
    parents = [*filter(None, [parent]), tempfile.gettempdir(), "/tmp"]
    fitting = [
        place for place in parents if len(os.fsencode(place)) + 1 + len(prefix) + _ADDED <= longest
    ]
    if not fitting:
        raise InputError(
            f"is too long a path for temporary files: sockets in it may have {longest} bytes",
            "set TMPDIR (or RAY_TMPDIR) to a shorter one",
            path=parents[0],
        )
    # Exactly as many characters as mkdtemp adds: other folders may have names that begin alike.
    alike = Path(fitting[0]).glob(glob.escape(prefix) + "?" * _ADDED)
    for path in left_behind(filter(_is_ours, alike)):
        shutil.rmtree(path, ignore_errors=True)
    try:
        while True:
            path = Path(tempfile.mkdtemp(prefix=prefix, dir=fitting[0]))
            if (lock := hold(path)) is not None:
                return PrivateFolder(path, lock)
            # Another process took it for abandoned between two calls of this one.
    except OSError as error:
        raise InputError(
            f"cannot hold temporary files ({error})", "set TMPDIR to another", path=fitting[0]
        ) from None


def _is_ours(path: Path) -> bool:
    try:
        status = path.lstat()
    except OSError:  # gone meanwhile
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid()
