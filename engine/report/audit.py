"""How a result came about: when, by which command, where, from what, and with which code.

It is one block of ``summary.json``, apart from the figures, since it differs from one run to the next
where these are the same.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from engine.inputs.files import InputFiles
from engine.labels.registry import input_tables
from engine.machine.identity import this_machine
from engine.messages.errors import InputError, masked
from engine.messages.wording import quoted
from engine.sources.io.files import is_text
from engine.sources.io.fingerprint import file_sha256
from engine.sources.io.locations import Location, locate
from engine.sources.runs.forms import is_trec
from engine.sources.runs.scan import header_of
from engine.version import __version__

# Larger files have no digest: their tables have one, and hashing 1 GiB takes up to 3 s.
MOST_BYTES = 2**30
# The directory that holds the package: of a checkout, its root.
_ROOT = Path(__file__).resolve().parents[2]
_GIT_SECONDS = 20


def code_in(root: Path) -> dict[str, Any]:
    """The code of a directory that holds the package: ``version``, ``commit``, ``modified``.

    The commit is that of a checkout; None in none, or where git is not installed or refuses to look. ``modified``:
    whether tracked files differ from it.
    """
    # A checkout further up is another project's, which has this package installed inside.
    commit = _git(root, "rev-parse", "HEAD") if (root / ".git").exists() else None
    changes = _git(root, "status", "-s", "-uno") if commit else None
    known = changes is not None
    return {
        "version": __version__,
        "commit": commit if known else None,
        "modified": bool(changes) if known else None,
    }


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
    files: Sequence[Mapping[str, Any]] = ()
    code: Mapping[str, Any] = field(default_factory=lambda: code_in(_ROOT))


def place(path: Location | None) -> str | None:
    """A path or address without credentials; an InputError where results could not hold it."""
    text = "" if path is None else masked(str(locate(path)))
    if not is_text(text):
        raise InputError(f"{quoted(text)} is no name in UTF-8", "rename it; results hold its name")
    return text or None


def name_files(files: InputFiles | None) -> dict[str, Any]:
    """Where inputs come from, as ``summary.json`` has it; None for what was not given, or is a table in memory.

    Addresses are without the credentials that they may hold.
    """
    tables = files.tables if files else {}
    return {
        "queries": place(files.queries if files else None),
        "corpus": ([*map(place, files.corpora)] or place(files.corpus)) if files else None,
        "runs": [place(path) for path in files.run] if files else [],
        **{name: place(tables[name].path if name in tables else None) for name in input_tables()},
        **{f"{name}_corpus": place(file.corpus) for name, file in tables.items() if file.corpus},
        "answers": place(files.answers if files else None),
    }


def input_files(named: Mapping[str, str | list[str] | None]) -> list[dict[str, Any]]:
    """The files of a command: ``role`` (``queries``, ``runs`` …), ``path`` without credentials, ``bytes``, ``sha256``; of
    a run that begins with comments, these as its ``header``.

    None for the bytes of a directory, a pipe or an address; for the digest of these, and of a file above ``MOST_BYTES``.

    Raises:
        InputError: a file can no longer be read.
    """
    found: list[dict[str, Any]] = []
    for role, paths in named.items():
        for path in dict.fromkeys([paths] if isinstance(paths, str) else paths or []):
            size = sha256 = None
            try:
                if Path(path).is_file():  # no directory, pipe that is empty by now, or address
                    size = Path(path).stat().st_size
                    sha256 = file_sha256(path) if size <= MOST_BYTES else None
            except OSError as error:
                problem = f"cannot be read ({error})"
                raise InputError(problem, "leave it in place", path=path) from None
            found.append({"role": role, "path": path, "bytes": size, "sha256": sha256})
            if role == "runs" and size and is_trec(path) and (header := header_of(path)):
                found[-1]["header"] = header
    return found


def content(origin: Origin, tables: Mapping[str, str]) -> dict[str, Any]:
    """The block of ``summary.json``, with digests of the tables that were evaluated (``inputs.files``)."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": origin.command,
        "machine": asdict(this_machine()),
        "code": dict(origin.code),
        "files": [dict(file) for file in origin.files],
        "tables_sha256": dict(tables),
    }
