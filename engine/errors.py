"""The errors that a user of the engine meets."""

from __future__ import annotations

from pathlib import Path


class InputError(Exception):
    """Something the user gave cannot be used: a file, a line of it, or an option.

    Raised at the rim, where the file and line are known, and shown as one line:
    ``run.trec:17: 5 columns, a TREC run has 6; write "query Q0 document rank score name"``.

    Args:
        path: the file, or None where the fault is in an option.
        line: the line in the file, counted from 1, or None where lines have no meaning.
        problem: what is wrong, in one clause.
        remedy: what to do about it, in one clause.
    """

    def __init__(
        self, path: str | Path | None, line: int | None, problem: str, remedy: str
    ) -> None:
        self.path = path
        self.line = line
        self.problem = problem
        self.remedy = remedy
        where = "" if path is None else f"{path}: " if line is None else f"{path}:{line}: "
        # One line whatever the data held: a message must not break a log or hide its own end.
        super().__init__(" ".join(f"{where}{problem}; {remedy}".split()))

    def __reduce__(self) -> tuple[type[InputError], tuple[object, ...]]:
        return type(self), (self.path, self.line, self.problem, self.remedy)


class ReadError(Exception):
    """Reads that could not be done; everything that could be done is in the store."""


class EncodeError(Exception):
    """Vectors that could not be made; those made so far are kept, and an index is not finished."""
