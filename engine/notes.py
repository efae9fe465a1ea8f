"""Notes: what qualifies an evaluation's figures, made where it is known and carried in one tuple."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from engine.wording import counted


@dataclass(frozen=True)
class Note:
    """Something that a user of the figures should know.

    Attributes:
        code: what kind of note it is; ``summary.json`` gives notes by code.
        amount: how many things it is about. A note of amount 0 is kept and not printed: it says that
            the thing was looked for.
        text: the sentence, without a full stop.
        about: the runs or annotators concerned, where it is about particular ones.
        printed: whether it matters to this evaluation; a note on what no annotator in use needs does
            not.
    """

    code: str
    amount: int
    text: str
    about: tuple[str, ...] = ()
    printed: bool = True

    @property
    def is_shown(self) -> bool:
        return self.printed and self.amount > 0


def count_note(
    code: str, amount: int, what: str, *, about: Iterable[str] = (), printed: bool = True
) -> Note:
    """A note whose text is the amount and what it counts, in the forms of ``wording.counted``."""
    return Note(code, amount, counted(amount, what), tuple(about), printed)
