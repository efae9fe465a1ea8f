"""Results at their place: compared with the inputs before reading, and replaced as a whole, or all files together."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from engine.messages.errors import InputError, WriteError, masked
from engine.sources.io.files import held_folder, reported_writing, temporary_directory
from engine.sources.io.folders import Folder, folder_at
from engine.sources.io.locations import Location, is_directory, list_files, locate, name_of


@dataclass(frozen=True)
class Outputs:
    """A command's outputs: files that it writes or removes, and folders in which it may change any part."""

    files: Sequence[Location] = ()
    folders: Sequence[Location] = ()


_Places = Mapping[str, Location | Iterable[Location] | None]


@dataclass(frozen=True)
class Inputs:
    """A command's inputs, by the name of the setting; None if not set.

    ``files`` are files, and folders with some files to read; ``folders`` are read as a whole (a model, an index): no
    output may lie in them.
    """

    files: _Places
    folders: _Places


def refuse_overlap(inputs: Inputs, outputs: Outputs, *, option: str = "out") -> None:
    """Refuse a command that would overwrite, or remove, one of its inputs.

    Links are followed on both sides, and two names of a file are the same file. Addresses are compared as texts,
    without users and passwords; links in an object store, mounted buckets, and servers with two names are not resolved.
    The InputError names the input, the output there, and the ``option`` that changes it.
    """
    files, folders = (
        [(masked(str(place)), _names(place)) for place in map(locate, places)]
        for places in (outputs.files, outputs.folders)
    )

    def refuse(field: str, place: Location, *, whole: bool) -> None:
        names = _names(place)
        whys = [
            f"{shown} will be written{' into it' if whole else ''}"
            for shown, written in (files + folders if whole else files)
            if (_are_in(written, names) if whole else written & names)
        ]
        replaced = [shown for shown, folder in folders if _are_in(names, folder)]
        for why in whys + [f"what is in {shown} may be replaced" for shown in replaced]:
            remedy = f"write to another place, `{option}`"
            problem = f"is given as `{field}`, and {why}"
            raise InputError(problem, remedy, "files.overwritten", path=place)

    written = {name for _, names in files for name in names}
    for named, is_folder in ((inputs.files, False), (inputs.folders, True)):
        for field, place in _each(named):
            whole = is_folder and isinstance(place, Path) and place.is_dir()
            for part in [place] if whole else _files_of(place, written):
                refuse(field, part, whole=whole)


def lies_in(place: Location, folder: Location) -> bool:
    """Whether a place is a folder, or lies anywhere in it."""
    return _are_in(_names(place), _names(folder))


@contextlib.contextmanager
def sole_writer(folder: Location) -> Iterator[None]:
    """Lock a folder of results against other commands, as long as the block runs.

    There are no locks at an address: the last command to end has the results there. An InputError says that another
    process writes there, a WriteError that the folder cannot be created.
    """
    place = locate(folder)
    if not isinstance(place, Path):
        yield
        return
    with contextlib.ExitStack() as stack:
        with reported_writing(place):
            is_ours = stack.enter_context(held_folder(place))
        if not is_ours:
            problem = "another command that is under way writes there"
            remedy = "wait until it has ended, or give another folder"
            raise InputError(problem, remedy, "files.locked", path=place)
        yield


def _each(named: _Places) -> Iterator[tuple[str, Location]]:
    for field, value in named.items():
        values = [value] if isinstance(value, str | Path) else list(value or ())
        for place in map(locate, values):
            # The reader of the input refuses missing or impossible paths.
            if not isinstance(place, Path) or os.path.lexists(place):
                yield field, place


def _files_of(place: Location, written: set[str]) -> Iterable[Location]:
    """The file, or all directly in a folder, as layouts of several files have them."""
    # An address may be a folder; it is listed only if there is something to find.
    folders = {name.rpartition("/")[0] for name in written}
    may_be = isinstance(place, Path) or folders & _names(place)
    return list_files(place) if may_be and is_directory(place) else [place]


# Two names of the same.
_SCHEMES = {"s3a": "s3", "s3n": "s3", "gcs": "gs"}


def _names(place: Location) -> set[str]:
    """Names of a place, for a path also its target and inode; places with a common name are the same."""
    if isinstance(place, Path):
        names = {os.path.realpath(place), str(Path(os.path.realpath(place.parent), place.name))}
        with contextlib.suppress(OSError):  # it does not exist yet
            status = place.stat()
            names.add(f"{status.st_dev}:{status.st_ino}")
        return names
    scheme, _, rest = place.rpartition("::")[2].partition("://")
    user_and_host, slash, inside = rest.partition("/")
    host = user_and_host.rpartition("@")[2]
    inside = "/".join(part for part in inside.split("/") if part)
    return {f"{_SCHEMES.get(scheme.lower(), scheme.lower())}://{host}{slash}{inside}".rstrip("/")}


def _are_in(names: set[str], folder: set[str]) -> bool:
    """Whether a place with ``names`` is the folder with the names ``folder``, or lies in it."""
    return any(name == root or name.startswith(f"{root}/") for name in names for root in folder)


@contextlib.contextmanager
def delivered(place: Location) -> Iterator[Path]:
    """Give the path for writing a file: ``place``, or a local one of the same name, which is then uploaded whole."""
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
    """Give an empty folder that no other user of the machine can read; removed after the block."""
    with temporary_directory(Path(tempfile.gettempdir(), "results")) as directory:
        directory.chmod(0o700)
        yield directory


def replaced_together(
    place: Location, old: Callable[[], Iterable[str]] = tuple, *, last: str = ""
) -> contextlib.AbstractContextManager[Path]:
    """Give an empty folder whose files replace those in ``place`` when the block succeeds; a WriteError if they cannot.

    Everything is written first. At a path the old files are then moved away and the new ones in, by a few renames. An
    error or an interruption at any moment leaves the old files or the new; a killed process, or a machine that stops,
    in the middle of the renames can leave a part of the old ones alone or of the new ones alone, never both.

    At an address, which has no renames, the block writes on this machine. Then ``last`` is deleted, the other old files
    that no new one replaces, and the new files are uploaded, ``last`` at the end: it is missing until all are there.

    Args:
        place: a folder, created if missing; its other files stay as they are.
        old: gives the names, in ``place``, of the files of an earlier result, which go; called when
            everything is written.
        last: the file that is deleted first and written last: if it exists, all do.
    """
    folder = folder_at(place)
    return (_moved if isinstance(folder.at, Path) else _uploaded)(folder, old, last)


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
    with contextlib.suppress(OSError):  # a folder of parts, which were moved back out
        original.rmdir()
    with contextlib.suppress(FileNotFoundError):  # it had not been moved yet
        os.replace(moved, original)
