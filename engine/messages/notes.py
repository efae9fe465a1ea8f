"""Notes that qualify an evaluation's figures, made at their source and carried in one tuple."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from engine.messages.wording import counted


@dataclass(frozen=True)
class Note:
    """A qualification for users of the figures."""

    code: str  # the kind of note, by which ``summary.json`` lists notes
    # Number of its objects. A note of amount 0 is kept and not printed: it shows that the check took place.
    amount: int
    text: str  # the sentence, without a full stop
    about: tuple[str, ...] = ()  # the runs or annotators concerned, if particular ones
    # Whether it matters to this evaluation; it does not if no annotator in use depends on it.
    printed: bool = True
    # Template of ``text`` for ``amount``, if any (see ``count_note``): notes of parts of an evaluation are combined with
    # the sum of their amounts.
    what: str = ""
    # Number of passages, for a note that holds for all listed passages or for none: it holds for the whole if it holds
    # for every part. None for a note with additive amounts.
    passages: int | None = None

    @property
    def is_shown(self) -> bool:
        return self.printed and self.amount > 0


def count_note(
    code: str,
    amount: int,
    what: str,
    *,
    about: Iterable[str] = (),
    printed: bool = True,
    passages: int | None = None,
) -> Note:
    """A note whose text is the amount and its noun (``wording.counted``); ``{}`` in ``what`` stands for ``about``."""
    names = tuple(about)
    text = counted(amount, what).replace("{}", ", ".join(names))
    return Note(code, amount, text, names, printed, what, passages)


def merge_notes(parts: Iterable[Iterable[Note]], passages: int) -> tuple[Note, ...]:
    """The notes of the parts of an evaluation as notes of the whole, in the order of the parts'.

    Notes of the same code about the same things become one. The first text stands for notes without ``what``.
    ``passages``: the number of listed passages, of which parts may share some.
    """
    groups: dict[tuple[str, tuple[str, ...]], list[Note]] = {}
    for notes in parts:
        for note in notes:
            groups.setdefault((note.code, note.about), []).append(note)
    return tuple(_merge(notes, passages) for notes in groups.values())


def _merge(notes: list[Note], passages: int) -> Note:
    first = notes[0]
    if first.passages is None:
        amount = sum(note.amount for note in notes)
    else:
        # A note does not hold for the whole if its value is constant within every part, but differs between parts.
        texts = {note.what or note.text for note in notes if note.amount}
        holds = len(texts) == 1 and all(note.amount == note.passages for note in notes)
        amount = passages if holds else 0
    printed = any(note.printed for note in notes)
    if not first.what:
        first = next((note for note in notes if note.amount), first)
        return replace(first, amount=amount, printed=printed)
    whole = None if first.passages is None else passages
    about = first.about
    return count_note(first.code, amount, first.what, about=about, printed=printed, passages=whole)
