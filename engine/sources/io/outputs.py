"""What a command writes, compared with what it reads before it reads anything."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from engine.errors import InputError
from engine.sources.io.locations import Location, locate


@dataclass(frozen=True)
class Outputs:
    """What a command will write.

    Attributes:
        files: files that it writes or removes, by name.
        folders: folders of which it may write, replace or remove any part.
    """

    files: Sequence[Path] = ()
    folders: Sequence[Path] = ()


@dataclass(frozen=True)
class Inputs:
    """What a command is given to read.

    Attributes:
        files: files, and folders of which some files are read, by the name of the setting; None for
            what was not given. Addresses are passed over, since nothing is written there.
        folders: folders that are read as a whole (a model, an index): nothing may be written into them.
    """

    files: Mapping[str, Location | Iterable[Location] | None]
    folders: Mapping[str, Location | Iterable[Location] | None]


def refuse_overlap(inputs: Inputs, outputs: Outputs) -> None:
    """Refuse a command that would write over, or clear away, what it is given to read.

    Links are followed on both sides, and a file that is known by two names is the same file.

    Raises:
        InputError: naming the input and what would be written there.
    """
    for field, given in _each(inputs.files):
        for file in _files_of(given):
            _refuse_file(field, file, outputs)
    for field, given in _each(inputs.folders):
        if given.is_dir():
            _refuse_folder(field, given, outputs)
        elif given.exists():
            _refuse_file(field, given, outputs)


def _each(
    named: Mapping[str, Location | Iterable[Location] | None],
) -> Iterator[tuple[str, Path]]:
    for field, value in named.items():
        values = [value] if isinstance(value, str | Path) else list(value or ())
        for one in values:
            place = locate(one)
            # What does not exist, or cannot, is refused by whoever reads it.
            if isinstance(place, Path) and _exists(place):
                yield field, place


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


def _refuse_file(field: str, file: Path, outputs: Outputs) -> None:
    for output in outputs.files:
        if _is_same(file, output):
            raise _refusal(file, field, f"{output} will be written")
    for folder in outputs.folders:
        if _is_in(file, folder):
            raise _refusal(file, field, f"what is in {folder} may be replaced")


def _refuse_folder(field: str, given: Path, outputs: Outputs) -> None:
    for output in (*outputs.files, *outputs.folders):
        if _is_in(output, given):
            raise _refusal(given, field, f"{output} will be written into it")
    for folder in outputs.folders:
        if _is_in(given, folder):
            raise _refusal(given, field, f"what is in {folder} may be replaced")


def _refusal(path: Path, field: str, why: str) -> InputError:
    return InputError(
        path, None, f"is given as `{field}`, and {why}", "write to another place, `out`"
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
