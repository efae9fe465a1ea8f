"""Write files whole or not at all, by temporary ones that are removed even after a killed process.

Each lies beside its target, under a lock that ends with its process, however that ends: the next writer into the folder
removes abandoned ones. On some network file systems no other machine sees a lock: names begin with digits of their
machine, and files of other machines are removed only a day after their last change. Private folders use the same locks.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import glob
import hashlib
import os
import re
import shutil
import socket
import stat
import tempfile
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from engine.messages.errors import InputError, WriteError

if TYPE_CHECKING:  # every command begins with this module, and few write tables
    import polars as pl


@contextlib.contextmanager
def atomic_path(path: str | Path) -> Iterator[Path]:
    """Give a temporary path beside ``path`` that becomes ``path`` when the block succeeds.

    Even if the process is killed, ``path`` holds the old content or the new, never a partial one. A WriteError says
    that the disk is full, or that the place cannot be written.
    """
    path = Path(path)
    with reported_writing(path), temporary_file(path) as temporary:
        yield temporary
        flush(temporary)
        os.replace(temporary, path)


@contextlib.contextmanager
def atomic_directory(path: str | Path) -> Iterator[Path]:
    """As ``atomic_path``, for a directory; an InputError if ``path`` has content, as it is replaced in one step."""
    path = Path(path)
    if path.exists() and any(path.iterdir()):
        problem = "is a directory with content"
        raise InputError(problem, "give a new directory", "files.occupied", path=path)
    with reported_writing(path), temporary_directory(path) as temporary:
        yield temporary
        for file in temporary.iterdir():
            flush(file)
        os.replace(temporary, path)


def flush(path: Path) -> None:
    """Flush a file's content to the disk, if the system can."""
    with path.open("rb") as stream:
        os.fsync(stream.fileno())


@contextlib.contextmanager
def reported_writing(path: Path) -> Iterator[None]:
    """Turn libraries' errors about a full disk, or about a file at ``path`` or beside it, into a WriteError."""
    try:
        yield
    except Exception as error:
        name = error.filename if isinstance(error, OSError) else None
        folder = path.absolute().parent
        ours = isinstance(name, str | bytes | Path) and (
            Path(os.fsdecode(name)).absolute().is_relative_to(folder)
        )
        if not no_room(error) and not ours:
            raise
        raise cannot_write(path, error) from error


# The system's words for a full disk, in libraries that have no errno.
_FULL = r"No space left on device|Disk quota exceeded|database or disk is full"


def no_room(error: BaseException) -> tuple[str, str] | None:
    """Problem and remedy if an error or one of its causes says that there is no room for a file; else None."""
    known: set[int] = set()  # an error can be its own cause, through others too
    cause: BaseException | None = error
    while cause is not None and id(cause) not in known:
        known.add(id(cause))
        number = cause.errno if isinstance(cause, OSError) else None
        text = "" if isinstance(cause, InputError) else str(cause)
        if number in (errno.ENOSPC, errno.EDQUOT) or re.search(_FULL, text, re.IGNORECASE):
            return "no space is left on the disk", "free some"
        if number == errno.EFBIG or "file too large" in text.lower():
            return "the file is larger than files may be here", "raise that limit (ulimit -f)"
        cause = cause.__cause__
    return None


def cannot_write(path: str | Path, error: BaseException) -> WriteError:
    """The error for a file that cannot be written."""
    if room := no_room(error):
        problem, remedy = f"{path}: cannot be written: {room[0]}", room[1]
        return WriteError(f"{problem}; {remedy}, and run the same command again")
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return WriteError(f"{path}: cannot be written ({reason}); check the place, and run again")


def write_parquet(frame: pl.DataFrame, path: str | Path) -> None:
    """Write a table as Parquet atomically."""
    with atomic_path(path) as temporary:
        frame.write_parquet(temporary)


def write_text(text: str, path: str | Path) -> None:
    """Write a text file in UTF-8 atomically."""
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_bytes(content: bytes, path: str | Path) -> None:
    """Write a file atomically."""
    with atomic_path(path) as temporary:
        temporary.write_bytes(content)


def is_text(*values: str | None) -> bool:
    """Whether all strings can be written as UTF-8: JSON can contain half a surrogate pair."""
    try:
        "".join(value for value in values if value).encode()
    except UnicodeEncodeError:
        return False
    return True


# Fits into the patterns by which index directories and shards recognize their files.
NAME = re.compile(r"\..*\.[0-9a-f]{32}\.erag(\.\w+)?")
# Characters of the final name that a temporary name keeps: all of a long one would exceed 255 bytes.
_KEPT = 20
# Seconds: longer than pauses of a writer, and than the clocks of machines and a file server differ.
_OLD = 24 * 3600.0


def temporary_file(target: Path) -> AbstractContextManager[Path]:
    """Give the path of an empty file beside ``target``; it is removed if the block leaves it there.

    The suffix stays last, since writers choose the format by it. Creates the folder.
    """
    return _temporary(target, target.suffix, partial(Path.touch, exist_ok=False))


def temporary_directory(target: Path) -> AbstractContextManager[Path]:
    """Give an empty folder beside ``target``; it is removed if the block leaves it there."""
    return _temporary(target, "", Path.mkdir)


def abandoned(directory: Path, *, of: Path | None = None) -> Iterator[Path]:
    """The temporary files and folders in a folder whose processes are gone, each locked for its turn.

    ``of`` restricts to temporary names of this file or folder, or of names with the same beginning. Files of other
    machines, and of engines that named no machine, are left out for a day after their last change.
    """
    begin = "." if of is None else _begin(of)
    if directory.is_dir():
        names = (path for path in sorted(directory.iterdir()) if path.name.startswith(begin))
        for path in left_behind(path for path in names if NAME.fullmatch(path.name)):
            with contextlib.suppress(FileNotFoundError):
                changed = max(inner.lstat().st_mtime for inner in (path, *path.rglob("*")))
                if f".{_machine()}" in path.name or time.time() - changed > _OLD:
                    yield path


def left_behind(paths: Iterable[Path]) -> Iterator[Path]:
    """Files and folders that no process holds, each locked for its turn.

    Files that cannot be locked, as on some network file systems, count as used.
    """
    for path in paths:
        try:
            number = os.open(path, os.O_RDONLY)
        except OSError:
            continue
        try:
            if _lock(number):
                yield path
        finally:
            os.close(number)


@functools.cache
def _machine() -> str:
    """Digits for this machine since its boot: host names are not unique."""
    started = Path("/proc/sys/kernel/random/boot_id")  # Linux's
    since = started.read_text(encoding="ascii") if started.exists() else uuid.getnode()
    return hashlib.sha256(f"{socket.gethostname()} {since}".encode()).hexdigest()[:12]


def remove_abandoned(directory: Path) -> None:
    """Remove the temporary files and folders in a folder whose processes are gone."""
    for path in abandoned(directory):
        _remove(path)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


# Once a process: a folder may have many files, and each new one would check them all.
@functools.cache
def _remove_abandoned_once(directory: Path) -> None:
    with contextlib.suppress(OSError):
        remove_abandoned(directory)


@contextlib.contextmanager
def _temporary(target: Path, suffix: str, make: Callable[[Path], None]) -> Iterator[Path]:
    target = target.absolute()
    target.parent.mkdir(parents=True, exist_ok=True)
    _remove_abandoned_once(target.parent)
    while True:
        path = target.with_name(f"{_begin(target)}{_machine()}{uuid.uuid4().hex[12:]}.erag{suffix}")
        make(path)
        if (number := hold(path)) is not None:
            break
    try:
        yield path
    finally:
        _remove(path)
        os.close(number)


def _begin(target: Path) -> str:
    return f".{target.stem[:_KEPT]}."


def hold(path: Path) -> int | None:
    """Lock a new file or folder until the returned descriptor is closed.

    It counts as locked if the file system has no locks. None if another process took it for abandoned before the lock:
    make another.
    """
    try:
        number = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return None
    with contextlib.suppress(FileNotFoundError):
        if _lock(number) is not False and path.stat().st_ino == os.fstat(number).st_ino:
            return number
    os.close(number)
    return None


@contextlib.contextmanager
def held_folder(folder: Path) -> Iterator[bool]:
    """Lock a folder as long as the block runs, so that no other process of the engine writes there.

    Creates it if missing, and removes it again if it stays empty. Gives False if another process holds it; always True
    if the file system has no locks.
    """
    is_new = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    number = os.open(folder, os.O_RDONLY)
    try:
        yield _lock(number) is not False
    finally:
        os.close(number)
        if is_new:
            with contextlib.suppress(OSError):  # it holds results, or files of others
                folder.rmdir()


def _lock(number: int) -> bool | None:
    """Lock an open file until it is closed; False if another process has, None if that is impossible."""
    from filelock import lock_descriptor  # every command begins with this module, and few write

    try:
        return lock_descriptor(number, blocking=False)
    except OSError:
        return None


_ADDED = 8  # characters that tempfile.mkdtemp adds to a prefix


@dataclass(frozen=True)
class PrivateFolder:
    """A folder with mode 700, locked by the descriptor ``lock``: one whose lock is free was left by a killed process."""

    path: Path
    lock: int

    def remove(self) -> None:
        """Remove the folder with its contents; it may be gone already."""
        shutil.rmtree(self.path, ignore_errors=True)
        with contextlib.suppress(OSError):
            os.close(self.lock)


def make_folder(prefix: str, *, longest: int, parent: str | None = None) -> PrivateFolder:
    """A new private folder; abandoned ones with this prefix are removed first.

    Its path has at most ``longest`` bytes, as sockets within need: it lies in ``parent``, else in the system's temporary
    folder, else in ``/tmp``. An InputError says that none of them is short enough, or that it cannot be written.
    """
    parents = [*filter(None, [parent]), tempfile.gettempdir(), "/tmp"]
    most = longest - 1 - len(prefix) - _ADDED
    fitting = [place for place in parents if len(os.fsencode(place)) <= most]
    if not fitting:
        problem = f"is too long a path for temporary files: sockets in it may have {longest} bytes"
        remedy = "set TMPDIR (or RAY_TMPDIR) to a shorter one"
        raise InputError(problem, remedy, "files.path", path=parents[0])
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
        problem, remedy = f"cannot hold temporary files ({error})", "set TMPDIR to another"
        raise InputError(problem, remedy, "files.temporary", path=fitting[0]) from None


def _is_ours(path: Path) -> bool:
    with contextlib.suppress(OSError):  # gone meanwhile
        status = path.lstat()
        return stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid()
    return False
