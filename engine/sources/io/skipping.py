"""Refuse bad records, or tolerate and count them up to a limit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from engine.messages.errors import InputError
from engine.messages.wording import counted

Item = TypeVar("Item")
Made = TypeVar("Made")

_SHOWN = 3


class SkipBad:
    """Tolerates up to ``limit`` bad records, and counts them.

    Attributes:
        count: bad records so far.
        first: the errors of the first of them.
    """

    def __init__(self, limit: int = 0) -> None:
        self.limit = limit
        self.count = 0
        self.first: list[InputError] = []

    def tolerate(self, error: InputError) -> None:
        """Count the record that ``error`` is about.

        Raises:
            InputError: that error, if there were ``limit`` bad records before.
        """
        if self.count >= self.limit:
            if not self.limit:
                raise error from None
            which = f" (bad record {self.count + 1}; at most {self.limit} are skipped)"
            problem = f"{error.problem}{which}"
            raise InputError(problem, error.remedy, path=error.path, line=error.line) from None
        self.count += 1
        if len(self.first) < _SHOWN:
            self.first.append(error)

    def kept(self, parse: Callable[[Item], Made], items: Iterable[Item]) -> Iterator[Made]:
        """Yield what a function makes of each item; those that it refuses are tolerated."""
        for item in items:
            try:
                made = parse(item)
            except InputError as error:
                self.tolerate(error)
                continue
            yield made

    def described(self) -> str:
        """``2 bad records skipped (a.jsonl:7: broken JSON …)``; empty if there were none."""
        if not self.count:
            return ""
        problems = "; ".join(
            f"{error.path}{'' if error.line is None else f':{error.line}'}: {error.problem}"
            for error in self.first
        )
        more = f"; and {self.count - len(self.first)} more" if self.count > len(self.first) else ""
        return f"{counted(self.count, 'bad record[|s]')} skipped ({problems}{more})"


def tolerance(skip_bad: int | SkipBad) -> SkipBad:
    """``skip_bad`` as the object that counts; a caller that passes one can read it afterwards."""
    return skip_bad if isinstance(skip_bad, SkipBad) else SkipBad(skip_bad)
