"""Replace results atomically: a single file, or all files together."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from engine.messages.errors import WriteError
from engine.sources.io.files import reported_writing
from engine.sources.io.folders import Folder, folder_at
from engine.sources.io.locations import Location, locate, name_of
from engine.sources.io.temporary import temporary_directory


@contextlib.contextmanager
def delivered(place: Location) -> Iterator[Path]:
    """Give the path to write a file to: ``place``, or one of the same name that is uploaded to it, whole or not at all."""
    at = locate(place)
    if isinstance(at, Path):
        yield at
        return
    with private_directory() as directory:
        file = directory / name_of(at)
        yield file
        Folder(at.rpartition("/")[0]).put(file.name, file)


@contextlib.contextmanager
def private_directory() -> Iterator[Path]:
    """Give an empty folder that nobody else on the machine can read; removed after the block."""
    with temporary_directory(Path(tempfile.gettempdir(), "results")) as directory:
        directory.chmod(0o700)
        yield directory


@contextlib.contextmanager
def replaced_together(
    place: Location, old: Callable[[], Iterable[str]] = tuple, *, last: str = ""
) -> Iterator[Path]:
    """Give an empty folder whose files become those of ``place`` when the block succeeds.

    Everything is written first; until then the old files are whole and in their places. At a path they
    are then moved away and the new ones in, which takes a few renames. An error or an interruption at
    any moment leaves the old files or the new; a killed process, or a machine that stops, in the middle
    of the renames can leave a part of the old ones alone or of the new ones alone, never both.

    At an address, which has no renames, the block writes on this machine. Then ``last`` is deleted, the
    other old files that no new one replaces, and the new files are uploaded, ``last`` at the end. Where
    this stops half-way, old and new files may be there, and ``last`` is not.

    Args:
        place: a folder, made if it does not exist; its other files stay as they are.
        old: gives the names, in ``place``, of the files of an earlier result, which go; called when
            everything is written.
        last: the file that is the first to go and the last to come: where it is, all are.

    Raises:
        WriteError: the disk is full, or the place cannot be written.
    """
    folder = folder_at(place)
    make = _moved if isinstance(folder.at, Path) else _uploaded
    with make(folder, old, last) as new:
        yield new


@contextlib.contextmanager
def _uploaded(folder: Folder, old: Callable[[], Iterable[str]], last: str) -> Iterator[Path]:
    with private_directory() as new:
        yield new
        files = sorted(path.as_posix() for path in _files(new))
        earlier = list(old())
        if last:
            folder.delete([last])
        folder.delete(name for name in earlier if name not in files)
        folder.delete_empty({name.split("/")[0] for name in earlier if "/" in name} & set(files))
        for name in sorted(files, key=lambda name: (name == last, name)):
            folder.put(name, new / name)


@contextlib.contextmanager
def _moved(folder: Folder, old: Callable[[], Iterable[str]], last: str) -> Iterator[Path]:
    directory = folder.at
    assert isinstance(directory, Path)
    with reported_writing(directory), temporary_directory(directory / "results") as work:
        new, aside = work / "new", work / "old"
        new.mkdir()
        aside.mkdir()
        yield new
        files = sorted(_files(new), key=lambda path: (str(path) == last, path))
        with contextlib.ExitStack() as undo:
            earlier = [Path(name) for name in old()]
            for path in sorted({*files, *earlier}, key=lambda path: (str(path) != last, path)):
                if (directory / path).is_symlink() or (directory / path).is_file():
                    _move(directory / path, aside / path, undo)
            for path in files:
                _move(new / path, directory / path, undo)
            undo.pop_all()
        for path in _files(aside):
            with contextlib.suppress(OSError):  # a folder holds something, or is gone
                for parent in path.parents[:-1]:
                    (directory / parent).rmdir()


def _files(directory: Path) -> list[Path]:
    """The files anywhere in a folder, relative to it."""
    return [p.relative_to(directory) for p in directory.rglob("*") if not p.is_dir()]


def _move(source: Path, target: Path, undo: contextlib.ExitStack) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if target.is_dir():  # a table in parts was where it will be one file
        try:
            target.rmdir()
        except OSError:
            raise WriteError(f"{target}: holds other files; move them elsewhere") from None
    # Before the rename: an interruption between the two would otherwise lose track of the file.
    undo.callback(_move_back, target, source)
    os.replace(source, target)


def _move_back(moved: Path, original: Path) -> None:
    original.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(OSError):  # a folder of parts, which were moved back out of it
        original.rmdir()
    with contextlib.suppress(FileNotFoundError):  # it had not been moved yet
        os.replace(moved, original)
