"""Folders at any address that workers on several machines read and write: shards, stores.

A file of such a folder is written whole or not at all: renamed into place on this machine, one upload
in an object store. The folder itself is a value that travels between processes.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import uuid
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from engine.messages.errors import InputError, WriteError, masked
from engine.messages.wording import quoted
from engine.sources.io import locations
from engine.sources.io.files import cannot_write, is_text
from engine.sources.io.locations import Location, entries, file_system, inside_of, locate, reported

# Written and deleted, to test whether an address can be written.
_TRIAL = ".erag-trial"
# Files fetched concurrently from an address: each takes a round trip, for any size.
_AT_ONCE = 8
_ABSENT = (FileNotFoundError, NotADirectoryError, IsADirectoryError)


@dataclass(frozen=True)
class Folder:
    """A folder by its path or address (as ``locations.locate`` gives it), whether or not it exists yet.

    Reading methods raise an InputError if the folder or the file cannot be read; writing and deleting ones a WriteError
    if the disk is full or the place cannot be written.
    """

    at: Location

    def __truediv__(self, name: str) -> Folder:
        return Folder(self.place(name))

    def __str__(self) -> str:
        return str(self.at)

    def place(self, name: str) -> Location:
        """The path or address of a file inside."""
        return inside_of(self.at, name)

    def shown(self, name: str = "") -> str:
        """The path or address of a file inside, or of the folder, without credentials."""
        return locations.shown(self.place(name) if name else self.at)

    def names(self) -> list[str]:
        """The names of the files directly inside, in order; hidden ones are left out."""
        return sorted(self.sizes())

    def sizes(self) -> dict[str, int]:
        """Sizes in bytes of the files directly inside, by name, without hidden ones."""
        return {name: size for name, size in entries(self.at, "file") if not name.startswith(".")}

    def folders(self) -> list[str]:
        """The names of the folders directly inside, in order."""
        return sorted(name for name, _ in entries(self.at, "directory"))

    def read(self, name: str) -> bytes:
        """The content of a file; a FileNotFoundError if it is missing, an IsADirectoryError if it is a folder."""
        with self._reading() as (system, inside):
            return bytes(system.cat_file(f"{inside}/{name}"))

    def read_each(self, names: Iterable[str]) -> Iterator[tuple[str, bytes | None]]:
        """Names with the content of their files, in order; None if there is no such file.

        Several are fetched at once if the folder is at an address.
        """
        each = iter(names)
        if isinstance(self.at, Path):
            yield from ((name, self._read_if_there(name)) for name in each)
            return
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            while some := list(itertools.islice(each, _AT_ONCE)):
                yield from zip(some, pool.map(self._read_if_there, some), strict=True)

    def write(self, name: str, content: bytes) -> None:
        """Write a file whole or not at all; one of that name is replaced."""
        with self._writing(name) as (system, inside):
            system.pipe_file(f"{inside}/{name}", content)

    def put(self, name: str, file: Path) -> None:
        """Copy a file of this machine into the folder, whole or not at all; one of that name is replaced."""
        with self._writing(name) as (system, inside):
            system.put_file(str(file), f"{inside}/{name}")

    def download(self, name: str, file: Path) -> None:
        """Copy a file of any size to one on this machine, which is replaced; a FileNotFoundError if it is missing."""
        with self._reading() as (system, inside):
            system.get_file(f"{inside}/{name}", str(file))

    def settle(self) -> None:
        """Flush names of new files to the disk, before the replaced ones are deleted."""
        # At an address nothing is left to do.
        if isinstance(self.at, Path):
            number = os.open(self.at, os.O_RDONLY)
            try:
                os.fsync(number)
            except OSError as error:
                # Some network file systems know no such thing.
                if error.errno not in (errno.EINVAL, errno.ENOTSUP):
                    raise cannot_write(self.at, error) from error
            finally:
                os.close(number)

    def delete(self, names: Iterable[str]) -> None:
        """Delete files; missing ones are ignored. A failure leaves the later ones."""
        for name in names:
            with self._writing(name) as (system, inside), contextlib.suppress(FileNotFoundError):
                system.rm_file(f"{inside}/{name}")

    def delete_empty(self, names: Iterable[str]) -> None:
        """Delete empty folders directly inside, if the system has folders; others stay."""
        for name in names:
            with contextlib.suppress(WriteError), self._writing(name) as (system, inside):
                system.rmdir(f"{inside}/{name}")

    def set_aside(self, name: str, suffix: str) -> str:
        """Give a file a further suffix, unless the folder is read-only; returns its new path, without credentials."""
        aside = name + suffix
        try:
            # Another process may have moved it already.
            with self._writing(name) as (system, inside), contextlib.suppress(FileNotFoundError):
                if isinstance(self.at, Path):
                    os.replace(self.at / name, self.at / aside)
                else:  # Object stores do not rename. Stopped half-way, both are there, and the next who looks goes on.
                    system.cp_file(f"{inside}/{name}", f"{inside}/{aside}")
                    system.rm_file(f"{inside}/{name}")
        except WriteError:
            return self.shown(name)
        return self.shown(aside)

    def _read_if_there(self, name: str) -> bytes | None:
        with contextlib.suppress(FileNotFoundError):
            return self.read(name)
        return None

    @contextlib.contextmanager
    def _reading(self) -> Iterator[tuple[Any, str]]:
        system, inside = file_system(self.at)
        with reported(self.at, unless=_ABSENT):
            yield system, inside

    @contextlib.contextmanager
    def _writing(self, name: str) -> Iterator[tuple[Any, str]]:
        """Turn the system's errors about a path, or any error of a driver, into a WriteError."""
        try:
            yield file_system(self.at)
        except (InputError, WriteError):
            raise
        except Exception as error:
            if isinstance(self.at, Path):
                if not isinstance(error, OSError):
                    raise
                raise cannot_write(self.at / name, error) from error
            problem = f"{self.at}: cannot be written ({locations.reason(self.at, error)})"
            remedy = f"{locations.CHECK_ADDRESS}, and run the same command again"
            raise WriteError(masked(f"{problem}; {remedy}")) from None


def folder_at(place: Location) -> Folder:
    """The folder at a path or an address."""
    at = locate(place)
    return Folder(at if isinstance(at, Path) else at.rstrip("/"))


@contextlib.contextmanager
def folder_in_memory() -> Iterator[Folder]:
    """A folder in the memory of this process, with a unique name; it is deleted at the end, whatever ends it."""
    folder = folder_at(f"memory://erag-{uuid.uuid4().hex}")
    try:
        yield folder
    finally:
        system, inside = file_system(folder.at)
        with contextlib.suppress(FileNotFoundError):
            system.rm(inside, recursive=True)


def require_folder(place: Location) -> None:
    """Check that files can be written into a folder, before any costly work.

    An InputError says that something else is in its place or above it, that it cannot be read or written, or that its
    name is not UTF-8. At an address, a small file is written and deleted: there is no other test.
    """
    if not is_text(str(place)):
        problem = f"{quoted(str(place))} is no name in UTF-8"
        raise InputError(problem, "use another folder", "files.encoding")
    folder = folder_at(place)
    if isinstance(folder.at, Path):
        require_output(folder.at, directory=True)
        return
    folder.names()
    system, inside = file_system(folder.at)
    with reported(folder.at):
        try:
            system.pipe_file(f"{inside}/{_TRIAL}", b"")
        except FileNotFoundError as error:
            raise OSError(f"nothing can be written there: {error}") from None
        with contextlib.suppress(FileNotFoundError):  # another job may have tried at the same time
            system.rm_file(f"{inside}/{_TRIAL}")


def require_file_output(place: Location) -> None:
    """Check that a file can be written at a path or an address, as ``require_output`` and ``require_folder`` do."""
    at = locate(place)
    if isinstance(at, Path):
        require_output(at, directory=False)
        return
    _refuse_packed(at)
    if "/" not in at.partition("://")[2] or at.endswith("/"):
        raise InputError("has no name of a file", "give one", "files.nameless", path=at)
    require_folder(at.rpartition("/")[0])


def require_output(path: str | Path, *, directory: bool) -> None:
    """Check that a file or directory can be written at a path, before any costly work.

    An InputError says that something else is in its place or above it, or that it cannot be written.
    """
    if locate(path) != Path(path):
        problem = "results are written to local files"
        raise InputError(problem, "give a path", "files.remote", path=locate(path))
    path = Path(path)
    if not directory:
        _refuse_packed(path)
    if any(len(os.fsencode(part)) > 255 for part in path.parts):
        problem = "a name of more than 255 bytes"
        raise InputError(problem, "give another", "files.name", path=locations.shown(path))
    with reported(path):
        existing_part = next(p for p in (path, *path.absolute().parents) if p.exists())
    fault = partial(InputError, path=path)
    if existing_part == path and path.is_dir() != directory:
        existing, expected = ("a file", "a directory") if directory else ("a directory", "a file")
        raise fault(f"is {existing}", f"give {expected}", "files.exists")
    if existing_part != path and not existing_part.is_dir():
        raise fault(f"{existing_part} is a file", "give another path", "files.file")
    if not os.access(existing_part, os.W_OK):
        raise fault(f"{existing_part} cannot be written", "give another path", "files.unwritable")


def _refuse_packed(place: Location) -> None:
    if locations.suffix_of(place) in locations.PACKED:
        problem, remedy = "results are written uncompressed", "leave out the last suffix"
        raise InputError(problem, remedy, "files.compressed", path=place)
