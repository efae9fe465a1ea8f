"""Single files for a path or an address: what is made on this machine is uploaded when it is whole."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

from engine.errors import InputError
from engine.sources.io.files import require_output
from engine.sources.io.folders import Folder, require_folder
from engine.sources.io.locations import Location, locate, name_of, suffix_of
from engine.sources.io.temporary import temporary_directory


@contextlib.contextmanager
def delivered(place: Location) -> Iterator[Path]:
    """Give the path to write a file to: ``place``, or one of the same name that is uploaded to it.

    Raises:
        WriteError: it cannot be uploaded; what was there before is as it was.
    """
    at = locate(place)
    if isinstance(at, Path):
        yield at
        return
    with private_directory() as directory:
        file = directory / name_of(at)
        yield file
        _parent(at).put(file.name, file)


@contextlib.contextmanager
def private_directory() -> Iterator[Path]:
    """Give an empty folder that nobody else on the machine can read; removed after the block."""
    with temporary_directory(Path(tempfile.gettempdir(), "results")) as directory:
        directory.chmod(0o700)
        yield directory


def require_file_output(place: Location) -> None:
    """Check that a file can be written at a path or an address, before any costly work.

    Raises:
        InputError: as ``files.require_output`` and ``folders.require_folder``.
    """
    at = locate(place)
    if isinstance(at, Path):
        require_output(at, directory=False)
        return
    if suffix_of(at) in (".gz", ".bz2"):
        raise InputError("results are written uncompressed", "leave out the last suffix", path=at)
    if "/" not in at.partition("://")[2] or at.endswith("/"):
        raise InputError("has no name of a file", "give one", path=at)
    require_folder(_parent(at).at)


def _parent(address: str) -> Folder:
    return Folder(address.rpartition("/")[0])
