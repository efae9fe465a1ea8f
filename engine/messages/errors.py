"""Errors that a user of the engine can meet, with credentials in addresses hidden."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path

# User and password, which may contain an unescaped / or @: up to the last @; or a user alone.
_USER = re.compile(r"(?<=:)(/+)(?:[^/\s@:]*:\S*@|[^/\s]*@)")
# Signatures and tokens of addresses that carry their own permission. Masked text stays unchanged, with any line number
# after it.
_QUERY = re.compile(r"[?#](?!\*\*\*)\S+")
# A scheme is short; without a limit, a megabyte of letters would be rescanned from every letter.
_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.\-]{1,30}:/\S+")
MASK = "***"

_LONGEST = 1000
# The largest whole number that tables hold.
MOST = 2**63 - 1


def masked(text: str) -> str:
    """A text for display or storage, with the credentials of every address in it replaced by ``***``.

    Credentials are user and password (``s3://key:secret@bucket/x``) and any text after ``?`` or ``#``
    (``https://host/x?signature=…``). A path with an ``@`` cannot be distinguished from a password: after a user with a
    password, or a port, all up to the last ``@`` is masked.
    """

    def without(address: re.Match[str]) -> str:
        # Behind the last @ there is no user; a search there would compare each place to the end.
        before, at, after = address[0].rpartition("@")
        return _QUERY.sub(f"?{MASK}", _USER.sub(rf"\1{MASK}@", before + at, count=1) + after)

    return _ADDRESS.sub(without, text)


class InputError(Exception):
    """An unusable input: a file, a line of a file, or a setting.

    Raised on entry of the data, with the file and line, and shown as one line:
    ``run.trec:17: 5 columns, a TREC run has 6; write "query Q0 document rank score name"``.
    Settings are named by their field or parameter in backticks (`` `skip_bad` is -1``); the command
    line shows them as options.

    Args:
        problem: the problem, in one clause.
        remedy: the remedy, in one clause.
        code: the kind of problem, as ``room.word`` (``queries.no-answers``). It stays the same if the words change.
        path: the file, or None if a setting is at fault; credentials in an address are masked.
        line: the line in the file, counted from 1, or None if lines have no meaning.
    """

    def __init__(
        self,
        problem: str,
        remedy: str,
        code: str = "",
        *,
        path: str | Path | None = None,
        line: int | None = None,
    ) -> None:
        self.code = code
        # An error shows no credentials, whether in an address or in another library's message.
        without = None if path is None else masked(str(path))
        self.path = without if without is None or isinstance(path, str) else Path(without)
        self.line = line
        self.problem = masked(problem)
        self.remedy = masked(remedy)
        where = "" if path is None else f"{without}: " if line is None else f"{without}:{line}: "
        # One short line for any data: a message must neither break a log nor hide its end. Quotes are cut, so that the
        # place and the remedy stay readable.
        text = f"{where}{_shortened(self.problem)}; {_shortened(self.remedy)}"
        super().__init__(" ".join(text.split()))

    def __reduce__(self) -> tuple[partial[InputError], tuple[str, str, str]]:
        args = (self.problem, self.remedy, self.code)
        return partial(type(self), path=self.path, line=self.line), args


def _shortened(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST // 2]} … {text[-_LONGEST // 2 :]}"


class ReadError(Exception):
    """Some reads failed; all others are in the store."""


class BoundError(ReadError):
    """The next reads would exceed an evaluation's limit; the same command, with as much again, goes on."""


class LaterError(Exception):
    """The command has done its part, and the evaluation continues once others have done theirs; not a fault."""


class WriteError(Exception):
    """A file cannot be written, since the disk is full or the system refuses; complete files stay complete."""


class EncodeError(Exception):
    """Some vectors could not be computed; the others are kept, but the index is unfinished."""
