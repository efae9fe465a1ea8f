"""Notes: what qualifies an evaluation's figures, made where it is known and carried in one tuple."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from engine.messages.wording import counted


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
        what: how ``text`` is made of ``amount``, where it is (see ``count_note``): the notes of parts of
            an evaluation are told again with the sum of their amounts.
        passages: of a note that holds of all listed passages or of none, how many there are: it holds of
            the whole where it holds of every part. None for one whose amounts add up.
    """

    code: str
    amount: int
    text: str
    about: tuple[str, ...] = ()
    printed: bool = True
    what: str = ""
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
    """A note whose text is the amount and what it counts, in the forms of ``wording.counted``.

    ``{}`` in ``what`` stands for what the note is about.
    """
    names = tuple(about)
    text = counted(amount, what).replace("{}", ", ".join(names))
    return Note(code, amount, text, names, printed, what, passages)


def merge_notes(parts: Iterable[Iterable[Note]], passages: int) -> tuple[Note, ...]:
    """The notes of the parts of an evaluation as notes of the whole, in the order of the parts'.

    Notes of the same code about the same things become one. Of a note without ``what`` the first text
    stands.

    Args:
        passages: how many are listed; the parts may share some.
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
        # Of one value in every part, but of another in each, a note does not hold of the whole.
        texts = {note.what or note.text for note in notes if note.amount}
        holds = len(texts) == 1 and all(note.amount == note.passages for note in notes)
        amount = passages if holds else 0
    printed = any(note.printed for note in notes)
    if first.what:
        of = None if first.passages is None else passages
        about = first.about
        return count_note(first.code, amount, first.what, about=about, printed=printed, passages=of)
    told = next((note for note in notes if note.amount), first)
    return replace(told, amount=amount, printed=printed)
