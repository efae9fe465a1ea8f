"""What a command writes, compared with what it reads before it reads anything."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from engine.errors import InputError, masked
from engine.sources.io.files import reported_writing
from engine.sources.io.locations import Location, is_directory, list_files, locate
from engine.sources.io.temporary import held_folder


@dataclass(frozen=True)
class Outputs:
    """What a command will write.

    Attributes:
        files: files that it writes or removes, by path or address.
        folders: folders of which it may write, replace or remove any part.
    """

    files: Sequence[Location] = ()
    folders: Sequence[Location] = ()


@dataclass(frozen=True)
class Inputs:
    """What a command is given to read.

    Attributes:
        files: files, and folders of which some files are read, by the name of the setting; None for
            what was not given.
        folders: folders that are read as a whole (a model, an index): nothing may be written into them.
    """

    files: Mapping[str, Location | Iterable[Location] | None]
    folders: Mapping[str, Location | Iterable[Location] | None]


def refuse_overlap(inputs: Inputs, outputs: Outputs) -> None:
    """Refuse a command that would write over, or clear away, what it is given to read.

    Links are followed on both sides, and a file that is known by two names is the same file. Addresses
    are compared as they are written, without users and passwords; a link in an object store, a bucket
    that is mounted at a path, or one server under two names is not seen through.

    Raises:
        InputError: naming the input and what would be written there; or an address that is given
            cannot be read.
    """
    local = _Local(
        [place for place in map(locate, outputs.files) if isinstance(place, Path)],
        [place for place in map(locate, outputs.folders) if isinstance(place, Path)],
    )
    for field, given in _each(inputs.files):
        if not isinstance(given, Path):
            _refuse_address(field, given, outputs)
            continue
        for file in _files_of(given):
            _refuse_file(field, file, local)
    for field, given in _each(inputs.folders):
        if not isinstance(given, Path):
            _refuse_address(field, given, outputs)
        elif given.is_dir():
            _refuse_folder(field, given, local)
        elif given.exists():
            _refuse_file(field, given, local)


@contextlib.contextmanager
def sole_writer(folder: Location) -> Iterator[None]:
    """Be the only command that writes results into a folder, as long as the block runs.

    At an address nothing can be held: there, whoever ends last has the results.

    Raises:
        InputError: another process writes there; or the folder cannot be made.
    """
    place = locate(folder)
    if not isinstance(place, Path):
        yield
        return
    with contextlib.ExitStack() as held:
        with reported_writing(place):
            is_ours = held.enter_context(held_folder(place))
        if not is_ours:
            raise InputError(
                "another command that is under way writes there",
                "wait until it has ended, or give another folder",
                path=place,
            )
        yield


class _Local(NamedTuple):
    """What a command will write on this machine."""

    files: list[Path]
    folders: list[Path]


def _each(
    named: Mapping[str, Location | Iterable[Location] | None],
) -> Iterator[tuple[str, Location]]:
    for field, value in named.items():
        values = [value] if isinstance(value, str | Path) else list(value or ())
        for one in values:
            place = locate(one)
            # What does not exist, or cannot, is refused by whoever reads it.
            if not isinstance(place, Path) or _exists(place):
                yield field, place


def _refuse_address(field: str, given: str, outputs: Outputs) -> None:
    """Refuse an address that is written, or a folder of which a file is."""
    there = _plain(given)
    written = {_plain(o): o for o in map(locate, outputs.files) if not isinstance(o, Path)}
    given_files = {there}
    # It may be a folder; it is listed only if there is something to find.
    if any(plain.rpartition("/")[0] == there for plain in written) and is_directory(given):
        given_files = {_plain(str(file)) for file in list_files(given)}
    if both := sorted(given_files & written.keys()):
        raise _refusal(given, field, f"{masked(written[both[0]])} will be written")
    for folder in map(locate, outputs.folders):
        if not isinstance(folder, Path) and f"{there}/".startswith(f"{_plain(folder)}/"):
            raise _refusal(given, field, f"what is in {masked(folder)} may be replaced")


# Two names of the same.
_SCHEMES = {"s3a": "s3", "s3n": "s3", "gcs": "gs"}


def _plain(address: str) -> str:
    """An address in the one form by which equal ones are known."""
    scheme, _, rest = address.rpartition("::")[2].partition("://")
    user_and_host, slash, inside = rest.partition("/")
    host = user_and_host.rpartition("@")[2]
    inside = "/".join(part for part in inside.split("/") if part)
    return f"{_SCHEMES.get(scheme.lower(), scheme.lower())}://{host}{slash}{inside}".rstrip("/")


def _exists(path: Path) -> bool:
    try:
        os.lstat(path)
    except (OSError, ValueError):
        return False
    return True


def _files_of(given: Path) -> Iterator[Path]:
    """The file, or those directly in a folder, as layouts of several files have them."""
    if given.is_dir():
        yield from (path for path in sorted(given.iterdir()) if path.is_file())
    else:
        yield given


def _refuse_file(field: str, file: Path, outputs: _Local) -> None:
    for output in outputs.files:
        if _is_same(file, output):
            raise _refusal(file, field, f"{output} will be written")
    for folder in outputs.folders:
        if _is_in(file, folder):
            raise _refusal(file, field, f"what is in {folder} may be replaced")


def _refuse_folder(field: str, given: Path, outputs: _Local) -> None:
    for output in (*outputs.files, *outputs.folders):
        if _is_in(output, given):
            raise _refusal(given, field, f"{output} will be written into it")
    for folder in outputs.folders:
        if _is_in(given, folder):
            raise _refusal(given, field, f"what is in {folder} may be replaced")


def _refusal(path: Location, field: str, why: str) -> InputError:
    return InputError(
        f"is given as `{field}`, and {why}", "write to another place, `out`", path=path
    )


def _names(path: Path) -> set[str]:
    """Where a path leads, and where it is itself: a link can be followed or replaced."""
    return {os.path.realpath(path), str(Path(os.path.realpath(path.parent), path.name))}


def _is_same(one: Path, other: Path) -> bool:
    if _names(one) & _names(other):
        return True
    try:
        return one.samefile(other)
    except OSError:  # at least one of them does not exist
        return False


def _is_in(path: Path, folder: Path) -> bool:
    """Whether a path is a folder or lies anywhere in it."""
    root = os.path.realpath(folder)
    return any(name == root or name.startswith(root + os.sep) for name in _names(path))
