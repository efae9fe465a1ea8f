"""Temporary files and folders that are removed even after a killed process.

Each lies beside what it will become, and the process that made it holds a lock on it, which ends with
the process however it ends. So whoever writes into the same folder next can tell what is abandoned
from what another process is writing right now, and removes the former. On some network file systems no
other machine sees a lock: names begin with digits of their machine, and what another one left is
removed only when nobody has changed it for a day.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import re
import shutil
import socket
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path

# Fits into the patterns by which index directories and shards know what is theirs.
NAME = re.compile(r"\..*\.[0-9a-f]{32}\.erag(\.\w+)?")
# Characters of the final name that a temporary name keeps: all of a long one would exceed 255 bytes.
_KEPT = 20
# Seconds: longer than a writer pauses, and than the clocks of machines and of a file server differ.
_OLD = 24 * 3600.0


def temporary_file(target: Path) -> AbstractContextManager[Path]:
    """Give the path of an empty file beside ``target``; it is removed where the block leaves it there.

    The suffix stays last, since writers choose the format by it. The folder is made.
    """
    return _held(target, target.suffix, partial(Path.touch, exist_ok=False))


def temporary_directory(target: Path) -> AbstractContextManager[Path]:
    """Give an empty folder beside ``target``; it is removed where the block leaves it there."""
    return _held(target, "", Path.mkdir)


def abandoned(directory: Path, *, of: Path | None = None) -> Iterator[Path]:
    """The temporary files and folders in a folder whose processes are gone, each locked for its turn.

    ``of`` leaves only those that were to become this file or folder, or one of a name that begins alike. Those of
    other machines, and of engines that named no machine, are left out for a day after their last change.
    """
    begin = "." if of is None else _begin(of)
    if directory.is_dir():
        names = (path for path in sorted(directory.iterdir()) if path.name.startswith(begin))
        for path in left_behind(path for path in names if NAME.fullmatch(path.name)):
            with contextlib.suppress(FileNotFoundError):
                changed = max(one.lstat().st_mtime for one in (path, *path.rglob("*")))
                if f".{_machine()}" in path.name or time.time() - changed > _OLD:
                    yield path


def left_behind(paths: Iterable[Path]) -> Iterator[Path]:
    """Those of some files and folders that no process holds, each locked for its turn.

    What cannot be locked, as on some network file systems, is taken for used.
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
    """Digits of this machine since it started: host names are given twice."""
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


# Once a process: a folder may have many files, of which each would be looked at for each new one.
@functools.cache
def _remove_abandoned_once(directory: Path) -> None:
    with contextlib.suppress(OSError):
        remove_abandoned(directory)


@contextlib.contextmanager
def _held(target: Path, suffix: str, make: Callable[[Path], None]) -> Iterator[Path]:
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
    """Hold a file or folder that was just made, until the number that is returned is closed.

    Where the file system does not lock, it counts as held. None where another process has taken it for
    abandoned before it was locked: make another.
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
    """Hold a folder as long as the block runs, so that no other process that asks for it writes there, too.

    It is made where it is not there, and removed again where nothing was written. Gives False where another
    process holds it; where the file system does not lock, everybody gets it.
    """
    made = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    number = os.open(folder, os.O_RDONLY)
    try:
        yield _lock(number) is not False
    finally:
        os.close(number)
        if made:
            with contextlib.suppress(OSError):  # it holds results, or somebody else's
                folder.rmdir()


def _lock(number: int) -> bool | None:
    """Lock an open file until it is closed; False if another process has, None if that is impossible."""
    from filelock import lock_descriptor  # every command begins with this module, and few write

    try:
        return lock_descriptor(number, blocking=False)
    except OSError:
        return None
