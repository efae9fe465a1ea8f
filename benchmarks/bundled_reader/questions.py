"""Questions made from sentences: a name, date or number is removed, and becomes the answer.

After the cloze questions from which readers have been trained without annotated ones (Lewis, Denoyer &
Riedel, ACL 2019, "Unsupervised question answering by cloze translation"): a clause around the answer,
with a question word in the place of the answer or, if the sentence allows it, in the form of a question.
"""

from __future__ import annotations

import random
import re

from benchmarks.bundled_reader.spans import Kind, Span

_AUXILIARY = re.compile(
    r"\b(?:was|were|is|are|had|has|have|can|could|will|would|may|might|must|did)\b"
)
_VERB = r" (?:was|were|is|are|had|\w+ed|wrote|became|made|gave|led|can|could|would|\w+s)\b"
# A preposition, an article, or both, at the end.
_LEAD = re.compile(
    r"(?:^|\s)(?:(?:the|a|an)|(in|at|by|from|of|on|to|with|for|during|since|until|near|about|after|before|between|as)"
    r"(?: (?:the|a|an))?)\s$",
    re.IGNORECASE,
)
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
_WITH_PREPOSITION = {"year": ("what year", "which year"), "date": ("what date", "which day")}
_PLACE_PREPOSITIONS = frozenset(("in", "at", "near", "from", "to"))


def ask(sentence: str, span: Span, title: str, rng: random.Random) -> str:
    """A question about a sentence whose answer is a span in the sentence.

    Args:
        sentence: one sentence, with a full stop.
        span: the answer; it does not occur in the question (unless the sentence has it twice).
        title: of the article, in the place of a pronoun at the beginning of the sentence.
        rng: chooses among the ways to ask.
    """
    before, after = _shortened(sentence[: span.start], sentence[span.end :].rstrip(" ."), rng)
    cloze = _named(before, title, rng), after, span.kind
    ways = [way for way in (_subject, _inverted, _how_many) if way(*cloze, random.Random(0))]
    chance = rng.random()
    if ways and chance < 0.6:
        text = rng.choice(ways)(*cloze, rng)
    elif chance < 0.85:
        text = f"{_lowered(cloze[0])}{rng.choice(_IN_PLACE[span.kind])}{after}"
    else:
        text = _keywords(*cloze, rng)
    return _styled(text, rng)


def _shortened(before: str, after: str, rng: random.Random) -> tuple[str, str]:
    """A long sentence without its brackets, and often without a clause at one of its ends."""
    before, after = (re.sub(r"\s*\([^()]*\)", "", text) for text in (before, after))
    for mark in ("; ", ", ", ": "):
        kept, found, _ = after.partition(mark)
        if found and rng.random() < 0.5 and len(f"{before} {kept}".split()) >= 5:
            after = kept
        _, found, kept = before.rpartition(mark)
        if found and rng.random() < 0.4 and len(f"{kept} {after}".split()) >= 6:
            before = kept
    return before, after


def _named(before: str, title: str, rng: random.Random) -> str:
    """Replace a pronoun at the beginning by the title, mostly."""
    match = _PRONOUN.match(before)
    if not match or not title or rng.random() < 0.2:
        return before
    name = f"{title}'s" if match.group() in _POSSESSIVE else title
    return name + before[match.end() :]


def _subject(before: str, after: str, kind: Kind, rng: random.Random) -> str:
    """A question with "who" or "what" for the subject; empty if the answer is not the subject."""
    if kind != "name" or before.strip() not in ("", "The", "the", "A", "In fact,"):
        return ""
    if not re.match(_VERB, after):
        return ""
    return rng.choice(("who", "what", "which")) + after


def _inverted(before: str, after: str, kind: Kind, rng: random.Random) -> str:
    """Question word, auxiliary, subject, rest; empty without an auxiliary before the answer."""
    match = _AUXILIARY.search(before)
    if not match or not 1 <= len(before[: match.start()].split()) <= 9:
        return ""
    subject = _lowered(before[: match.start()].strip())
    auxiliary = match.group()
    rest = before[match.end() :]
    word = rng.choice(_IN_PLACE[kind])
    if lead := _LEAD.search(rest):
        rest = rest[: lead.start()]
    if lead and lead[1]:
        preposition = lead[1].lower()
        if (asked := _WITH_PREPOSITION.get(kind)) and preposition in ("in", "on"):
            behind, alone = rng.choice(asked), rng.choice(asked)
            word = rng.choice(("when", f"{preposition} {behind}", alone))
        elif kind == "name" and preposition in _PLACE_PREPOSITIONS and rng.random() < 0.5:
            word = rng.choice(("where", f"{preposition} which place"))
        elif rng.random() < 0.6:
            word = f"{preposition} {word}"
        else:
            rest = f"{rest} {preposition}"
    body = " ".join(part.strip() for part in (rest, after) if part.strip())
    return f"{word} {auxiliary} {subject} {body}"


def _how_many(before: str, after: str, kind: Kind, rng: random.Random) -> str:
    """A question with "how many" of the noun after the number; empty for other answers."""
    noun = re.match(r" ((?:[a-z-]+ )?[a-z-]+s)\b", after)
    if kind != "number" or not noun or not before.strip():
        return ""
    return f"how many {noun.group(1)} {_lowered(before.strip())} {after[noun.end() :].strip()}"


def _keywords(before: str, after: str, kind: Kind, rng: random.Random) -> str:
    """Words of a search query, and the kind of answer."""
    words = re.findall(r"[\w'’.-]*\w", f"{before} {after}")
    kept = [word for word in words if word.lower() not in _FUNCTION_WORDS and rng.random() < 0.85]
    asked = rng.choice(_IN_PLACE[kind])
    return " ".join([asked, *kept] if rng.random() < 0.7 else [*kept, asked])


def _lowered(text: str) -> str:
    """A sentence's beginning within a question: a common first word in lower case."""
    first = text.split(" ", 1)[0]
    common = first.lower() in _FUNCTION_WORDS or first in _OPENINGS
    return text[:1].lower() + text[1:] if common else text


def _styled(text: str, rng: random.Random) -> str:
    """Vary the style as people do: some questions in lower case throughout, some with a question mark."""
    text = re.sub(r"\s+([,;:.])", r"\1", " ".join(text.split())).strip(" ,;:")
    if rng.random() < 0.4:
        return text.lower() + rng.choice(("", "", "?"))
    return text[:1].upper() + text[1:] + rng.choice(("?", "?", ""))
