"""Folders at any address, for what workers on several machines write and read: shards, stores.

A file of such a folder is written whole or not at all: renamed into place on this machine, one upload
in an object store. The folder itself is a value that travels between processes.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.errors import InputError, WriteError, masked
from engine.sources.io.files import atomic_path, cannot_write, reported_writing, require_output
from engine.sources.io.locations import Location, file_system, locate, reason, reported, shown

# Written, and deleted, to see whether an address can be written.
_TRIAL = ".erag-trial"
# Files that are fetched from an address at once: each takes a round trip, whatever its size.
_AT_ONCE = 8


@dataclass(frozen=True)
class Folder:
    """A folder by its path or address, whether or not it exists yet.

    Attributes:
        at: a ``Path``, or an address as ``locations.locate`` gives it.
    """

    at: Location

    def __truediv__(self, name: str) -> Folder:
        """The folder of this name inside."""
        return Folder(self.place(name))

    def __str__(self) -> str:
        return str(self.at)

    def place(self, name: str) -> Location:
        """The path or address of a file inside."""
        return self.at / name if isinstance(self.at, Path) else f"{self.at}/{name}"

    def shown(self, name: str = "") -> str:
        """The path or address of a file inside, or of the folder, without credentials."""
        place = self.place(name) if name else self.at
        return shown(place) if isinstance(place, Path) else masked(place)

    def names(self) -> list[str]:
        """The names of the files directly inside, in order; hidden ones are left out.

        Raises:
            InputError: the folder cannot be read.
        """
        return sorted(self.sizes())

    def sizes(self) -> dict[str, int]:
        """The bytes of each file directly inside, by name; hidden ones are left out.

        Raises:
            InputError: the folder cannot be read.
        """
        found = self._of_path(self.at) if isinstance(self.at, Path) else self._of_address(self.at)
        return {name: size for name, size in found if name and not name.startswith(".")}

    def folders(self) -> list[str]:
        """The names of the folders directly inside, in order.

        Raises:
            InputError: the folder cannot be read.
        """
        if isinstance(self.at, Path):
            if not self.at.is_dir():
                return []
            return sorted(path.name for path in self.at.iterdir() if path.is_dir())
        return sorted(
            str(entry["name"]).rstrip("/").rsplit("/", 1)[-1]
            for entry in _entries(self.at)
            if entry["type"] == "directory"
        )

    def read(self, name: str) -> bytes:
        """The content of a file.

        Raises:
            FileNotFoundError: there is no such file.
            IsADirectoryError: it is a folder.
            InputError: it cannot be read.
        """
        if isinstance(self.at, Path):
            with _reading(self.at / name):
                return (self.at / name).read_bytes()
        system, inside = file_system(self.at)
        with reported(self.at, unless=(FileNotFoundError,)):
            return bytes(system.cat_file(f"{inside}/{name}"))

    def read_each(self, names: Iterable[str]) -> Iterator[tuple[str, bytes | None]]:
        """Each name with the content of its file, in order; None where there is no such file.

        From an address, some are fetched at once.

        Raises:
            InputError: one cannot be read.
        """
        each = list(names)
        if isinstance(self.at, Path):
            yield from ((name, self._read_if_there(name)) for name in each)
            return
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            for begin in range(0, len(each), _AT_ONCE):
                some = each[begin : begin + _AT_ONCE]
                yield from zip(some, pool.map(self._read_if_there, some), strict=True)

    def write(self, name: str, content: bytes) -> None:
        """Write a file whole or not at all; one of that name is replaced.

        Raises:
            WriteError: the disk is full, or the place cannot be written.
        """
        if isinstance(self.at, Path):
            with atomic_path(self.at / name) as temporary:
                temporary.write_bytes(content)
            return
        with _writing(self.at):
            system, inside = file_system(self.at)
            system.pipe_file(f"{inside}/{name}", content)

    def put(self, name: str, file: Path) -> None:
        """Copy a file of this machine into the folder, whole or not at all; one of that name is replaced.

        Raises:
            WriteError: as ``write``.
        """
        if isinstance(self.at, Path):
            with atomic_path(self.at / name) as temporary:
                shutil.copyfile(file, temporary)
            return
        with _writing(self.at):
            system, inside = file_system(self.at)
            system.put_file(str(file), f"{inside}/{name}")

    def download(self, name: str, file: Path) -> None:
        """Copy a file of any size to one on this machine, which is replaced.

        Raises:
            FileNotFoundError: there is no such file.
            InputError: the address cannot be read.
        """
        if isinstance(self.at, Path):
            shutil.copyfile(self.at / name, file)
            return
        system, inside = file_system(self.at)
        with reported(self.at, unless=(FileNotFoundError,)):
            system.get_file(f"{inside}/{name}", str(file))

    def settle(self) -> None:
        """Have the names of what was written reach the disk, before what it replaces is deleted.

        Raises:
            WriteError: the disk fails.
        """
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
        """Delete files; those that are not there are none of its business.

        Raises:
            WriteError: one cannot be deleted; those after it are left.
        """
        for name in names:
            if isinstance(self.at, Path):
                with reported_writing(self.at / name):
                    (self.at / name).unlink(missing_ok=True)
            else:
                with _writing(self.at), contextlib.suppress(FileNotFoundError):
                    system, inside = file_system(self.at)
                    system.rm_file(f"{inside}/{name}")

    def set_aside(self, name: str, suffix: str) -> str:
        """Give a file a further suffix; it stays where the folder cannot be changed.

        Returns:
            where it is now, without credentials.
        """
        aside = name + suffix
        if isinstance(self.at, Path):
            with contextlib.suppress(OSError):  # another process may have moved it already
                os.replace(self.at / name, self.at / aside)
            return self.shown(aside if (self.at / aside).exists() else name)
        # Object stores do not rename. Stopped half-way, both are there, and the next who looks goes on.
        try:
            with _writing(self.at):
                system, inside = file_system(self.at)
                with contextlib.suppress(FileNotFoundError):
                    system.cp_file(f"{inside}/{name}", f"{inside}/{aside}")
                    system.rm_file(f"{inside}/{name}")
        except WriteError:
            return self.shown(name)
        return self.shown(aside)

    def _read_if_there(self, name: str) -> bytes | None:
        try:
            return self.read(name)
        except FileNotFoundError:
            return None

    @staticmethod
    def _of_path(path: Path) -> Iterator[tuple[str, int]]:
        try:
            with _reading(path), os.scandir(path) as entries:
                for entry in entries:
                    # One that another process deletes meanwhile is not there.
                    with contextlib.suppress(FileNotFoundError):
                        if entry.is_file():
                            yield entry.name, entry.stat().st_size
        except (FileNotFoundError, NotADirectoryError):
            return

    @staticmethod
    def _of_address(address: str) -> Iterator[tuple[str, int]]:
        for entry in _entries(address):
            if entry["type"] == "file":
                yield str(entry["name"]).rsplit("/", 1)[-1], int(entry["size"] or 0)


def copy_tables(source: Folder, target: Folder) -> None:
    """Copy the files of all folders in a folder.

    Raises:
        InputError: a folder cannot be read.
        WriteError: as ``Folder.write``.
    """
    for name in source.folders():
        for file, content in (source / name).read_each((source / name).names()):
            if content is not None:
                (target / name).write(file, content)


def folder_at(place: Location) -> Folder:
    """The folder at a path or an address."""
    at = locate(place)
    return Folder(at if isinstance(at, Path) else at.rstrip("/"))


def require_folder(place: Location) -> None:
    """Check that files can be written into a folder, before any costly work.

    At an address, a small file is written and deleted, which is the only way to know.

    Raises:
        InputError: something else is in its place or above it, or it cannot be read or written.
    """
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


def _entries(address: str) -> list[dict[str, Any]]:
    """What is directly inside the folder at an address, as its driver says it."""
    system, inside = file_system(address)
    with reported(address):
        # What other machines wrote since is asked for.
        system.invalidate_cache()
        try:
            return list(system.ls(inside, detail=True))
        except FileNotFoundError:
            return []


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[None]:
    try:
        yield
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):  # there is no such file
        raise
    except OSError as error:
        raise InputError(
            f"cannot be read ({error.strerror or error})", "check the place", path=shown(path)
        ) from None


@contextlib.contextmanager
def _writing(address: str) -> Iterator[None]:
    """Turn whatever a driver raises into a WriteError."""
    try:
        yield
    except (InputError, WriteError):
        raise
    except Exception as error:
        raise WriteError(
            masked(
                f"{address}: cannot be written ({reason(address, error)}); check the "
                "address, the network and the credentials, and run the same command again"
            )
        ) from None
