"""Questions made of sentences: a name, date or number is taken out, and asked for.

After the cloze questions from which readers have been trained without annotated ones (Lewis, Denoyer &
Riedel, ACL 2019, "Unsupervised question answering by cloze translation"): a clause around the answer,
with a question word in the place of the answer or, where the sentence allows it, as one asks.
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass

from benchmarks.bundled_reader.spans import Kind, Span

_AUXILIARY = re.compile(
    r"\b(?:was|were|is|are|had|has|have|can|could|will|would|may|might|must|did)\b"
)
_BE = r"(?:was|were|is|are)"
_PREPOSITION = re.compile(
    r"(?:^|\s)(in|at|by|from|of|on|to|with|for|during|since|until|near|about|after|before|between|as)"
    r"(?: (the|a|an))?\s$",
    re.IGNORECASE,
)
_DETERMINER = re.compile(r"(?:^|\s)(the|a|an)\s$", re.IGNORECASE)
_PRONOUN = re.compile(r"^(?:He|She|It|They|This|These|His|Her|Its|Their)\b")
_POSSESSIVE = frozenset(("His", "Her", "Its", "Their"))
_FUNCTION_WORDS_TEXT = """
a an and are as at be been being but by can could did do does for from had has have he her his in
into is it its may might of on or she so such than that the their them then there these they this
those to was we were when where which while who whose will with would also
"""
_FUNCTION_WORDS = frozenset(_FUNCTION_WORDS_TEXT.split())
_OPENINGS = ("After", "During", "Since", "Although", "However,")
_IN_PLACE: dict[Kind, tuple[str, ...]] = {
    "name": ("what", "which", "who", "what", "which name"),
    "date": ("what date", "which date", "when", "what day"),
    "year": ("what year", "which year", "when"),
    "number": ("how many", "how many", "what number", "how much"),
}
_PLACE_PREPOSITIONS = frozenset(("in", "at", "near", "from", "to"))


@dataclass(frozen=True)
class _Cloze:
    """A clause without its answer: what stands before it and what behind."""

    before: str
    after: str
    kind: Kind


def ask(sentence: str, span: Span, title: str, rng: random.Random) -> str:
    """A question about a sentence that a span of it answers.

    Args:
        sentence: one sentence, with a full stop.
        span: what is asked for; it does not stand in the question (unless the sentence has it twice).
        title: of the article, in the place of a pronoun that the sentence begins with.
        rng: chooses among the ways to ask.
    """
    whole = _Cloze(sentence[: span.start], sentence[span.end :].rstrip(" ."), span.kind)
    cloze = _shortened(whole, rng)
    if span.start > 0:
        cloze = _named(cloze, title, rng)
    ways = [way for way in (_subject, _inverted, _how_many) if way(cloze, random.Random(0))]
    chance = rng.random()
    if ways and chance < 0.6:
        text = rng.choice(ways)(cloze, rng)
    elif chance < 0.85:
        text = _in_place(cloze, rng)
    else:
        text = _keywords(cloze, rng)
    return _styled(text, rng)


def _shortened(cloze: _Cloze, rng: random.Random) -> _Cloze:
    """A long sentence without what a bracket adds, and often without a clause at one of its ends."""
    before = re.sub(r"\s*\([^()]*\)", "", cloze.before)
    after = re.sub(r"\s*\([^()]*\)", "", cloze.after)
    for mark in ("; ", ", ", ": "):
        place = after.find(mark)
        if (
            place >= 0
            and rng.random() < 0.5
            and len(before.split()) + len(after[:place].split()) >= 5
        ):
            after = after[:place]
        place = before.rfind(mark)
        if place >= 0 and rng.random() < 0.4:
            rest = before[place + len(mark) :]
            if len(rest.split()) + len(after.split()) >= 6:
                before = rest
    return _Cloze(before, after, cloze.kind)


def _named(cloze: _Cloze, title: str, rng: random.Random) -> _Cloze:
    """A pronoun at the beginning is replaced by what the article is about, mostly."""
    match = _PRONOUN.match(cloze.before)
    if not match or not title or rng.random() < 0.2:
        return cloze
    name = f"{title}'s" if match.group() in _POSSESSIVE else title
    return _Cloze(name + cloze.before[match.end() :], cloze.after, cloze.kind)


def _subject(cloze: _Cloze, rng: random.Random) -> str:
    """Who or what does what the rest of the sentence says; empty where the answer is not its subject."""
    if cloze.kind != "name" or cloze.before.strip() not in ("", "The", "the", "A", "In fact,"):
        return ""
    if not re.match(
        rf" (?:{_BE}|had|has|\w+ed|wrote|became|made|gave|led|can|could|would|\w+s)\b", cloze.after
    ):
        return ""
    return rng.choice(("who", "what", "which")) + cloze.after


def _inverted(cloze: _Cloze, rng: random.Random) -> str:
    """Question word, auxiliary, subject, rest; empty where no auxiliary stands before the answer."""
    match = _AUXILIARY.search(cloze.before)
    if not match or not 1 <= len(cloze.before[: match.start()].split()) <= 9:
        return ""
    subject = _lowered(cloze.before[: match.start()].strip())
    auxiliary = match.group()
    rest = cloze.before[match.end() :]
    lead = _PREPOSITION.search(rest) or _DETERMINER.search(rest)
    word = rng.choice(_IN_PLACE[cloze.kind])
    if lead:
        preposition = lead.group(1).lower()
        rest = rest[: lead.start()]
        if preposition in ("the", "a", "an"):
            pass
        elif cloze.kind in ("date", "year") and preposition in ("in", "on"):
            asked = (
                ("what year", "which year") if cloze.kind == "year" else ("what date", "which day")
            )
            behind, alone = rng.choice(asked), rng.choice(asked)
            word = rng.choice(("when", f"{preposition} {behind}", alone))
        elif cloze.kind == "name" and preposition in _PLACE_PREPOSITIONS and rng.random() < 0.5:
            word = rng.choice(("where", f"{preposition} which place"))
        elif rng.random() < 0.6:
            word = f"{preposition} {word}"
        else:
            rest = f"{rest} {preposition}"
    body = " ".join(part.strip() for part in (rest, cloze.after) if part.strip())
    return f"{word} {auxiliary} {subject} {body}"


def _how_many(cloze: _Cloze, rng: random.Random) -> str:
    """How many of what stands behind the number; empty for other answers."""
    noun = re.match(r" ((?:[a-z-]+ )?[a-z-]+s)\b", cloze.after)
    if cloze.kind != "number" or not noun or not cloze.before.strip():
        return ""
    return f"how many {noun.group(1)} {_lowered(cloze.before.strip())} {cloze.after[noun.end() :].strip()}"


def _in_place(cloze: _Cloze, rng: random.Random) -> str:
    return f"{_lowered(cloze.before)}{rng.choice(_IN_PLACE[cloze.kind])}{cloze.after}"


def _keywords(cloze: _Cloze, rng: random.Random) -> str:
    """Words as they are typed into a search box, and the kind of answer."""
    words = re.findall(r"[\w'’.-]*\w", f"{cloze.before} {cloze.after}")
    kept = [word for word in words if word.lower() not in _FUNCTION_WORDS and rng.random() < 0.85]
    asked = rng.choice(_IN_PLACE[cloze.kind])
    return " ".join([asked, *kept] if rng.random() < 0.7 else [*kept, asked])


def _lowered(text: str) -> str:
    """A sentence's beginning within a question: a common first word in small letters."""
    first = text.split(" ", 1)[0]
    common = first.lower() in _FUNCTION_WORDS or first in _OPENINGS
    return text[:1].lower() + text[1:] if common else text


def _styled(text: str, rng: random.Random) -> str:
    """As people write: some in small letters throughout, some with a question mark."""
    text = re.sub(r"\s+([,;:.])", r"\1", " ".join(text.split())).strip(" ,;:")
    if rng.random() < 0.4:
        return text.lower() + rng.choice(("", "", "?"))
    return text[:1].upper() + text[1:] + rng.choice(("?", "?", ""))
