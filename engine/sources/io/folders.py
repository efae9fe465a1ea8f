"""Folders at any address, for what workers on several machines write and read: shards, stores.

A file of such a folder is written whole or not at all: renamed into place on this machine, one upload
in an object store. The folder itself is a value that travels between processes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from engine.sources.io.files import atomic_path
from engine.sources.io.locations import Location, file_system, locate, reported


@dataclass(frozen=True)
class Folder:
    """A folder by its path or address, whether or not it exists yet.

    Attributes:
        at: a ``Path``, or an address as ``locations.locate`` gives it.
    """

    at: Location

    def __truediv__(self, name: str) -> Folder:
        """The folder of this name inside."""
        return Folder(self.at / name if isinstance(self.at, Path) else f"{self.at}/{name}")

    def __str__(self) -> str:
        return str(self.at)

    def names(self) -> list[str]:
        """The names of the files directly inside, in order; hidden ones are left out."""
        if isinstance(self.at, Path):
            found = (
                [path.name for path in self.at.iterdir() if path.is_file()]
                if self.at.is_dir()
                else []
            )
        else:
            system, inside = file_system(self.at)
            with reported(self.at):
                system.invalidate_cache()
                entries = system.ls(inside, detail=True) if system.isdir(inside) else []
            found = [
                str(entry["name"]).rsplit("/", 1)[-1]
                for entry in entries
                if entry["type"] == "file"
            ]
        return sorted(name for name in found if not name.startswith("."))

    def read(self, name: str) -> bytes:
        """The content of a file.

        Raises:
            FileNotFoundError: there is no such file.
            InputError: the address cannot be read.
        """
        if isinstance(self.at, Path):
            return (self.at / name).read_bytes()
        system, inside = file_system(self.at)
        with reported(self.at, unless=(FileNotFoundError,)):
            return bytes(system.cat_file(f"{inside}/{name}"))

    def write(self, name: str, content: bytes) -> None:
        """Write a file whole or not at all; one of that name is replaced.

        Raises:
            WriteError: the disk is full, or the place cannot be written.
            InputError: the address cannot be written.
        """
        if isinstance(self.at, Path):
            with atomic_path(self.at / name) as temporary:
                temporary.write_bytes(content)
            return
        system, inside = file_system(self.at)
        with reported(self.at):
            system.pipe_file(f"{inside}/{name}", content)

    def delete(self, names: Iterable[str]) -> None:
        """Delete files; those that are not there are none of its business."""
        for name in names:
            if isinstance(self.at, Path):
                (self.at / name).unlink(missing_ok=True)
            else:
                system, inside = file_system(self.at)
                with reported(self.at), contextlib.suppress(FileNotFoundError):
                    system.rm_file(f"{inside}/{name}")


def folder_at(place: Location) -> Folder:
    """The folder at a path or an address."""
    at = locate(place)
    return Folder(at if isinstance(at, Path) else at.rstrip("/"))
