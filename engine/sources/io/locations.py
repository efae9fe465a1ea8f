"""Locations of files: local paths and pipes, and addresses that fsspec opens (``s3://…``, ``gs://…``).

universal_pathlib would replace some 30 lines: it takes 51 requests for the sizes of 50 files, which one listing has,
and atomic writes, errors and masked credentials stay with us (0.3.10).
"""

from __future__ import annotations

import bz2
import contextlib
import gzip
import io
import os
import re
import shutil
import stat
import tempfile
import threading
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import IO, Any, cast

from engine.messages.errors import MASK, InputError, masked
from engine.messages.wording import quoted
from engine.sources.io.files import atomic_path, write_bytes

# Maximum bytes of a pipe that are buffered in the folder of temporary files.
LARGEST_PIPE = 4 << 30
_BLOCK = 1 << 20


def open_local(path: Path) -> IO[bytes]:
    """Open a file or pipe (``<(…)``, ``/dev/stdin``, a FIFO) for reading, from its beginning each time.

    A pipe yields its content once. The first opening copies it to a temporary file, which every reader of this process
    reads until ``forget_pipes``. An InputError refuses a device, and a pipe of more than ``LARGEST_PIPE`` bytes.
    """
    status = path.stat()
    if stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode):
        return path.open("rb")
    with _LOCK:
        identity = (status.st_dev, status.st_ino)
        if identity not in _PIPES:
            _PIPES[identity] = _copied(path, status)
        # The file has no name; opened by its number, it has a place of its own.
        return Path(f"/proc/self/fd/{_PIPES[identity][0].fileno()}").open("rb")


def forget_pipes() -> None:
    """Close all pipes and remove their temporary files."""
    with _LOCK:
        while _PIPES:
            for stream in _PIPES.popitem()[1]:
                stream.close()


# The copy of a pipe, and the pipe, by device and inode of the pipe, which are equal under all its names. The pipe stays
# open: another file would get its inode.
_PIPES: dict[tuple[int, int], tuple[IO[bytes], IO[bytes]]] = {}
_LOCK = threading.Lock()


def _copied(path: Path, status: os.stat_result) -> tuple[IO[bytes], IO[bytes]]:
    source = path.open("rb", buffering=0)
    is_empty = status.st_rdev == Path(os.devnull).stat().st_rdev
    if stat.S_ISCHR(status.st_mode) and not (is_empty or source.isatty()):
        source.close()
        raise InputError("is a device", "give a file or a pipe", "files.device", path=path)
    copy = tempfile.TemporaryFile(prefix="erag-pipe-", buffering=0)
    while block := source.read(_BLOCK):
        copy.write(block)
        if copy.tell() > LARGEST_PIPE:
            problem = f"gives more than {LARGEST_PIPE >> 30} GiB"
            raise InputError(problem, "save it as a file, and give that", "files.size", path=path)
    return copy, source


Location = str | Path
"""A path, or an address with a scheme."""

# Two letters or more, since one letter is a drive.
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.\-]+):/")
# Suffixes of files that are decompressed.
PACKED = (".gz", ".bz2")
# Prefixes of names of data sets.
IRDS, HF = "irds:", "hf:"
CHECK_ADDRESS = "check the address, the network and the credentials"
# Errors of reading a damaged file, whichever module decompresses it.
DAMAGE = (EOFError, OSError, zlib.error)


def is_data_set(place: str | Path) -> bool:
    """Whether a location names a data set, not a file (``./irds:…``) nor its address (``hf://…``)."""
    scheme, colon, name = str(place).partition(":")
    return f"{scheme}{colon}" in (IRDS, HF) and not name.startswith("/")


def locate(path: Location) -> Location:
    """An address, or the name of a data set, as a string; ``file://`` addresses and everything else as a Path.

    Two slashes that ``Path("s3://bucket/x")`` folds into one are restored: options of the command line may be paths.
    """
    if is_data_set(path):
        return str(path)
    scheme = _SCHEME.match(str(path))
    if scheme is None:
        return Path(path)
    rest = str(path)[scheme.end() :].removeprefix("/")
    return Path("/", rest) if scheme[1] == "file" else f"{scheme[1]}://{rest}"


def shown(place: Location) -> str:
    """A path or address as messages name it: without credentials; in quotes and cut if no file can have it."""
    text = str(place)
    return masked(text) if len(text) < 1000 and "\0" not in text else quoted(text)


def inside_of(folder: Location, name: str) -> Location:
    """The path or address of a name in a folder."""
    return folder / name if isinstance(folder, Path) else f"{folder.rstrip('/')}/{name}"


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
    system, inside = file_system(path)
    with reported(path):
        return bool(system.isdir(inside))


def require_file(path: Location, what: str) -> Location:
    """``path``, located; an InputError if there is no such file, where ``what`` describes the expected one."""
    path = locate(path)
    if is_data_set(path):
        problem = "is a data set, which cannot be read here"
        raise InputError(problem, f"give {what}", "files.dataset", path=path)
    if is_directory(path):
        raise InputError("is a directory", f"give {what}", "files.directory", path=path)
    system, inside = file_system(path)
    with reported(path):
        exists = system.exists(inside)
    if not exists:
        raise InputError("no such file", f"give {what}", "files.missing", path=path)
    return path


def named(files: Iterable[Location], name: str) -> list[Location]:
    """The files of a name, packed or not."""
    return [f for f in files if name_of(f) in (name, *(name + suffix for suffix in PACKED))]


def list_files(directory: Location) -> list[Location]:
    """The files directly under a directory, without hidden ones, ordered by name."""
    directory = locate(directory)
    names = sorted(name for name, _ in entries(directory, "file") if not name.startswith("."))
    return [inside_of(directory, name) for name in names]


def entries(directory: Location, kind: str) -> list[tuple[str, int]]:
    """Names and sizes in bytes of every "file" or "directory" directly under a directory; none if it does not exist."""
    system, inside = file_system(directory)
    with reported(directory):
        # Cached listings lack later files of other machines.
        system.invalidate_cache()
        try:
            each = [e for e in system.ls(inside, detail=True) if e["type"] == kind]
        except (FileNotFoundError, NotADirectoryError):
            return []
    sizes = ((str(e["name"]).rstrip("/").rpartition("/")[2], int(e["size"] or 0)) for e in each)
    return [(name, size) for name, size in sizes if name]


def open_binary(path: Location, *, in_parts: bool = False) -> IO[bytes]:
    """Open a file for reading, without decompression.

    With ``in_parts``, drivers do not fetch ahead from an address; s3fs would, 50 MiB at a time. A path that cannot be
    opened is an OSError, an address an InputError.
    """
    path = locate(path)
    if isinstance(path, Path):
        return open_local(path)
    system, inside = file_system(path)
    with reported(path):
        options = {"cache_type": "none"} if in_parts else {}
        return cast(IO[bytes], system.open(inside, "rb", **options))


def open_decompressed(path: Location) -> IO[bytes]:
    """As ``open_binary``, decompressed according to the suffix: ``.gz``, ``.bz2``."""
    path = locate(path)
    unpack: Any = {".gz": gzip.open, ".bz2": bz2.open}.get(suffix_of(path))
    source: Any = path
    if not isinstance(path, Path):
        # Drivers' streams search for line ends byte by byte.
        source = io.BufferedReader(cast(io.RawIOBase, open_binary(path)), _BLOCK)
    elif not (unpack and path.is_file()):  # else it also closes the file, given a path
        source = open_local(path)
    return cast(IO[bytes], unpack(source, "rb") if unpack else source)


class _LocalFiles:
    """The files of this machine, with the interface of fsspec's drivers: writes are atomic."""

    def invalidate_cache(self) -> None:
        """Nothing is remembered."""

    def isdir(self, path: str) -> bool:
        return Path(path).is_dir()

    def exists(self, path: str) -> bool:
        return Path(path).exists()

    def ls(self, path: str, detail: bool) -> Iterator[dict[str, Any]]:
        with os.scandir(path) as listing:
            for entry in listing:
                # Another process may delete it meanwhile.
                with contextlib.suppress(FileNotFoundError):
                    kind = "file" if entry.is_file() else "directory" if entry.is_dir() else ""
                    yield {"name": entry.path, "type": kind, "size": entry.stat().st_size}

    def cat_file(self, path: str) -> bytes:
        return Path(path).read_bytes()

    def get_file(self, path: str, target: Path) -> None:
        shutil.copyfile(path, target)

    def pipe_file(self, path: str, content: bytes) -> None:
        write_bytes(content, path)

    def put_file(self, source: Path, path: str) -> None:
        with atomic_path(path) as temporary:
            shutil.copyfile(source, temporary)

    def rm_file(self, path: str) -> None:
        Path(path).unlink()

    def rmdir(self, path: str) -> None:
        Path(path).rmdir()


def file_system(place: Location) -> tuple[Any, str]:
    """The driver of a path or an address, and the driver's name for the place; an InputError if there is none."""
    if isinstance(place, Path):
        return _LocalFiles(), str(place)
    import fsspec

    try:
        with reported(place, unless=(ImportError,)):
            return cast(tuple[Any, str], fsspec.core.url_to_fs(place))
    except ImportError as error:  # its message names the package: "Install s3fs to access S3"
        problem = f"the driver for {place.partition(':')[0]}:// is not installed ({error})"
        remedy = "install that package into the engine's environment"
        raise InputError(problem, remedy, "files.driver", path=place) from None


@contextlib.contextmanager
def reported(place: Location, *, unless: tuple[type[Exception], ...] = ()) -> Iterator[None]:
    """Turn the system's errors about a path, or any error of a driver, into an InputError, except ``unless``."""
    remedy = "check the path"
    try:
        if isinstance(place, Path) and "\0" in str(place):
            raise ValueError("it holds the character U+0000")
        yield
    except unless:
        raise
    except Exception as error:
        what: object = getattr(error, "strerror", None) or error
        if isinstance(place, str):
            what, remedy = reason(place, error), CHECK_ADDRESS
        elif not isinstance(error, OSError | ValueError):
            raise
        problem = f"cannot be opened ({what})"
        if isinstance(error, FileNotFoundError):
            problem, remedy = "no such file", remedy.partition(",")[0]
        raise InputError(problem, remedy, "files.missing", path=shown(place)) from None


def reason(address: str, error: Exception) -> str:
    """A driver's message about an address, without the address's user and password.

    Some drivers quote these as a part of a name, without the scheme by which masking knows an address.
    """
    text = f"{type(error).__name__}: {error}"
    user, at, _ = address.partition("://")[2].rpartition("@")
    return text.replace(f"{user}@", f"{MASK}@") if at else text
