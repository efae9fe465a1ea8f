"""How a result came about: when, by which command, where, from what, and with which code.

It is one block of ``summary.json``, apart from the figures, since it differs from one run to the next
where these are the same.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from engine.evaluation.inputs import InputFiles, input_tables
from engine.machine.identity import this_machine
from engine.messages.errors import InputError, masked
from engine.sources.io.fingerprint import file_sha256
from engine.sources.io.locations import Location, locate
from engine.version import __version__

# Larger files have no digest: their tables have one, and hashing 1 GiB takes up to 3 s.
MOST_BYTES = 2**30
# The directory that holds the package: of a checkout, its root.
_ROOT = Path(__file__).resolve().parents[2]
_GIT_SECONDS = 20


@dataclass(frozen=True)
class InputFile:
    """A file that was given.

    Attributes:
        role: what it was given as: ``queries``, ``corpus``, ``runs`` …
        path: its path or address, without credentials.
        bytes: its size; None for a directory, a pipe or an address.
        sha256: of its bytes as they are stored; None also for a file above ``MOST_BYTES``.
    """

    role: str
    path: str
    bytes: int | None
    sha256: str | None


@dataclass(frozen=True)
class Code:
    """The code that ran.

    Attributes:
        commit: the git commit of the checkout that it runs from; None where it does not, or where git
            is not installed or refuses to look.
        modified: whether tracked files differ from that commit; None without one.
    """

    version: str
    commit: str | None
    modified: bool | None


def code_in(root: Path) -> Code:
    """The code of a directory that holds the package."""
    # A checkout further up is another project's, which has this package installed inside.
    commit = _git(root, "rev-parse", "HEAD") if (root / ".git").exists() else None
    changes = _git(root, "status", "-s", "-uno") if commit else None
    if changes is None:
        return Code(__version__, None, None)
    return Code(__version__, commit, bool(changes))


def _git(root: Path, *arguments: str) -> str | None:
    """What git prints; None where it is not installed or fails."""
    # Inside a hook these variables point at another repository; and nothing is locked or written.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    try:
        done = subprocess.run(
            ["git", "-C", str(root), *arguments],
            env=environment | {"GIT_OPTIONAL_LOCKS": "0"},
            capture_output=True,
            text=True,
            check=False,
            timeout=_GIT_SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


@dataclass(frozen=True)
class Origin:
    """What a result comes from, as far as its tables do not say; made when the work begins.

    The command line is without credentials; None where Python called the engine.
    """

    command: str | None = None
    files: tuple[InputFile, ...] = ()
    code: Code = field(default_factory=lambda: code_in(_ROOT))


def place(path: Location | None) -> str | None:
    """A path or address without credentials."""
    return None if path is None else masked(str(locate(path)))


def name_files(files: InputFiles | None) -> dict[str, Any]:
    """Where inputs come from, as ``summary.json`` has it; None for what was not given, or is a table in memory.

    Addresses are without the credentials that they may hold.
    """

    return {
        "queries": place(files.queries if files else None),
        "corpus": ([*map(place, files.corpora)] or place(files.corpus)) if files else None,
        "runs": [place(path) for path in files.run] if files else [],
        **{name: place(files.tables.get(name) if files else None) for name in input_tables()},
        **{f"{name}_corpus": place(path) for name, path in (files.judged if files else {}).items()},
        "answers": place(files.answers if files else None),
    }


def input_files(named: Mapping[str, str | list[str] | None]) -> tuple[InputFile, ...]:
    """The files of a command, by role and without credentials, with digests of their bytes.

    Raises:
        InputError: a file can no longer be read.
    """
    return tuple(
        _input_file(role, path)
        for role, paths in named.items()
        for path in dict.fromkeys([paths] if isinstance(paths, str) else paths or [])
    )


def _input_file(role: str, path: str) -> InputFile:
    if not Path(path).is_file():  # a directory, a pipe that is empty by now, or an address
        return InputFile(role, path, None, None)
    try:
        size = Path(path).stat().st_size
        return InputFile(role, path, size, file_sha256(path) if size <= MOST_BYTES else None)
    except OSError as error:
        raise InputError(f"cannot be read ({error})", "leave it in place", path=path) from None


def content(origin: Origin, tables: Mapping[str, str]) -> dict[str, Any]:
    """The block of ``summary.json``, with digests of the tables that were evaluated (``evaluation.digest``)."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": origin.command,
        "machine": asdict(this_machine()),
        "code": asdict(origin.code),
        "files": [asdict(file) for file in origin.files],
        "tables_sha256": dict(tables),
    }
