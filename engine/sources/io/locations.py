"""Locations of files: local paths, and addresses that fsspec opens (``s3://…``, ``gs://…``)."""

from __future__ import annotations

import bz2
import gzip
import io
import re
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO, Any, cast

from engine.errors import MASK, InputError
from engine.sources.data_sets import is_data_set
from engine.sources.io.spool import open_local
from engine.wording import quoted

Location = str | Path
"""A path, or an address with a scheme."""

# Two letters or more, since one letter is a drive.
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.\-]+):/")
_BUFFER = 1 << 20
# What reading a damaged file can raise, whichever module decompresses it.
DAMAGE = (EOFError, OSError, zlib.error)


def locate(path: Location) -> Location:
    """An address, or the name of a data set, as a string; ``file://`` addresses and everything else as a Path.

    ``Path("s3://bucket/x")`` folds two slashes into one; they are restored here, since options of
    the command line may be paths.
    """
    if is_data_set(path):
        return str(path)
    scheme = _SCHEME.match(str(path))
    if scheme is None:
        return Path(path)
    rest = str(path)[scheme.end() :].removeprefix("/")
    return Path("/", rest) if scheme[1] == "file" else f"{scheme[1]}://{rest}"


def shown(path: Path) -> str:
    """A path as an error names it; in quotes and cut if no file can have it."""
    text = str(path)
    return text if len(text) < 1000 and "\0" not in text else quoted(text)


def name_of(path: Location) -> str:
    """The last part of a path or address."""
    return PurePosixPath(str(path)).name


def suffix_of(path: Location) -> str:
    """The last suffix of the name: ``.gz`` of ``a.jsonl.gz``."""
    return PurePosixPath(str(path)).suffix


def is_directory(path: Location) -> bool:
    """Whether a directory (or its equivalent in an object store) exists."""
    path = locate(path)
    if is_data_set(path):
        return False
    if isinstance(path, Path):
        with _path_reported(path):
            return path.is_dir()
    system, inside = file_system(path)
    with reported(path):
        return bool(system.isdir(inside))


def require_file(path: Location, what: str) -> Location:
    """``path``, located, if it is a file.

    Raises:
        InputError: there is no such file; ``what`` describes what is expected.
    """
    path = locate(path)
    if is_data_set(path):
        raise InputError("is a data set, which cannot be read here", f"give {what}", path=path)
    if is_directory(path):
        raise InputError("is a directory", f"give {what}", path=path)
    if not _exists(path):
        raise InputError("no such file", f"give {what}", path=path)
    return path


def list_files(directory: Location) -> list[Location]:
    """The files directly under a directory, without hidden ones, ordered by name."""
    directory = locate(directory)
    files: list[Location]
    if isinstance(directory, Path):
        files = [p for p in directory.iterdir() if p.is_file()]
    else:
        system, inside = file_system(directory)
        with reported(directory):
            entries = system.ls(inside, detail=True)
        scheme = directory.split("://", 1)[0]
        files = [
            f"{scheme}://{str(entry['name']).lstrip('/')}"
            for entry in entries
            if entry["type"] == "file"
        ]
    return sorted((p for p in files if not name_of(p).startswith(".")), key=name_of)


def open_binary(path: Location) -> IO[bytes]:
    """Open a file for reading, as it is stored.

    Raises:
        InputError: an address that cannot be opened, or whose driver is not installed.
        OSError: a path that cannot be opened.
    """
    path = locate(path)
    if isinstance(path, Path):
        return open_local(path)
    system, inside = file_system(path)
    with reported(path):
        return cast(IO[bytes], system.open(inside, "rb"))


def open_in_parts(path: Location) -> IO[bytes]:
    """Open a file of which parts are wanted: from an address, no more is fetched than is read.

    Drivers fetch ahead otherwise, s3fs 50 MiB at a time.

    Raises:
        InputError, OSError: as ``open_binary``.
    """
    path = locate(path)
    if isinstance(path, Path):
        return open_local(path)
    system, inside = file_system(path)
    with reported(path):
        return cast(IO[bytes], system.open(inside, "rb", cache_type="none"))


def open_decompressed(path: Location) -> IO[bytes]:
    """Open a file for reading, decompressed according to its suffix: ``.gz``, ``.bz2``.

    Raises:
        InputError: as ``open_binary``.
        OSError: as ``open_binary``.
    """
    path = locate(path)
    unpack: Any = {".gz": gzip.open, ".bz2": bz2.open}.get(suffix_of(path))
    if isinstance(path, Path):
        # Given a path, it also closes the file.
        return cast(
            IO[bytes],
            unpack(path if path.is_file() else open_local(path), "rb")
            if unpack
            else open_local(path),
        )
    # Drivers' streams search for line ends byte by byte.
    stream: Any = io.BufferedReader(cast(io.RawIOBase, open_binary(path)), _BUFFER)
    return cast(IO[bytes], unpack(stream, "rb") if unpack else stream)


@contextmanager
def _path_reported(path: Path) -> Iterator[None]:
    """Turn what a path that no file can have makes the system say into an InputError."""
    try:
        if "\0" in str(path):
            raise ValueError("it holds the character U+0000")
        yield
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(
            f"cannot be opened ({reason})", "check the path", path=shown(path)
        ) from None


def _exists(path: Location) -> bool:
    if isinstance(path, Path):
        with _path_reported(path):
            return path.exists()
    system, inside = file_system(path)
    with reported(path):
        return bool(system.exists(inside))


def file_system(address: str) -> tuple[Any, str]:
    """The driver of an address, and what the driver calls the place.

    Raises:
        InputError: the driver is not installed, or the address cannot be opened.
    """
    import fsspec

    try:
        with reported(address, unless=(ImportError, ValueError)):
            system, inside = fsspec.core.url_to_fs(address)
    except ImportError as error:  # its message names the package: "Install s3fs to access S3"
        scheme = address.split("://", 1)[0]
        raise InputError(
            f"the driver for {scheme}:// is not installed ({error})",
            "install that package into the engine's environment",
            path=address,
        ) from None
    except ValueError as error:
        raise InputError(
            f"cannot be opened ({error})", "give an address that fsspec knows", path=address
        ) from None
    return system, inside


@contextmanager
def reported(address: str, *, unless: tuple[type[Exception], ...] = ()) -> Iterator[None]:
    """Turn whatever a driver raises into an InputError, ``unless`` it is of these types."""
    try:
        yield
    except unless:
        raise
    except FileNotFoundError:
        raise InputError("no such file", "check the address", path=address) from None
    except Exception as error:
        raise InputError(
            f"cannot be opened ({reason(address, error)})",
            "check the address, the network and the credentials",
            path=address,
        ) from None


def reason(address: str, error: Exception) -> str:
    """What a driver says of an address, without the user and password that the address may hold.

    Some drivers take these for a part of a name, and quote it without the scheme by which masking knows
    an address.
    """
    text = f"{type(error).__name__}: {error}"
    user, at, _ = address.partition("://")[2].rpartition("@")
    return text.replace(f"{user}@", f"{MASK}@") if at else text
