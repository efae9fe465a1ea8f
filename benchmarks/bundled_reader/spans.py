"""Spans of a sentence that can be answers: names, dates, years and numbers, found by their spelling.

No tagger is used: words with a capital letter within a sentence of an English encyclopedia are almost always
names, and the exceptions do little harm to a reader in training.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

Kind = Literal["name", "date", "year", "number"]

_MONTH = "(?:January|February|March|April|May|June|July|August|September|October|November|December)"
_PARTICLE = r"(?:of|the|de|del|von|van|der|al|and|la|le|du)"
_WORD = r"[A-Z][\w'’-]*[\w]"
# In order of precedence: a date before its year, a year before a number, a name last.
_PATTERNS: dict[Kind, str] = {
    "date": rf"\b(?:\d{{1,2}} {_MONTH}(?: \d{{3,4}})?|{_MONTH} \d{{1,2}}(?:, \d{{4}})?|{_MONTH} \d{{4}})\b",
    "year": r"(?<![\d,.–−-])(?:1[0-9]{3}|20[0-2][0-9])(?![\d–−-]|[,.]\d)",
    "number": r"(?<![\w,.$£€–−-])\d+(?:,\d+)*(?:\.\d+)?(?:%| (?:percent|million|billion|trillion))?(?![\w–−-]|[,.]\d)",
    "name": rf"(?<![\w.])(?:{_WORD}|[A-Z]\.)(?: (?:{_PARTICLE} ){{0,2}}(?:{_WORD}|[A-Z]\.))*",
}
# Capitalized at the beginning of a sentence, but no names there.
_COMMON_TEXT = """
A About According Additionally After All Almost Along Already Also Although Among An And Another Any
Are Around As At Because Before Being Besides Between Both But By Conversely Current Despite Due
During Each Early Either Even Every Except Few Finally First Following For Four From Further
Furthermore Generally Given Had Has Have He Hence Her Here His Historically How However I If
Important In Including Indeed Initially Instead Into Is It Its Just Later Like Many Modern Moreover
Most Much My Nevertheless New No Nor Not Now Of Often On Once One Only Or Other Others Our Out Over
Overall People Perhaps Rather Recent Recently Second See Several She Similarly Since So Some
Sometimes Still Subsequently Such Than That The Their Them Then There Therefore These They Third
This Those Though Three Through Throughout Thus To Today Together Traditionally Two Typically Under
Unlike Until Up Upon Using Usually Various Was We Were What When Where Whether Which While Who Whose
Why With Within Without You
"""
_COMMON = frozenset(_COMMON_TEXT.split())
# An answer of more words is hardly ever short.
_MOST_WORDS = 5


@dataclass(frozen=True)
class Span:
    """The place of a possible answer in a sentence, in characters, and its kind."""

    start: int
    end: int
    kind: Kind

    def of(self, sentence: str) -> str:
        """The span's text."""
        return sentence[self.start : self.end]


def spans(sentence: str) -> list[Span]:
    """Names, dates, years and numbers of a sentence, in order; none overlap.

    A capital letter at the sentence's beginning is no evidence by itself: there, a name has two words,
    or is not among the common first words of sentences.
    """
    found: list[Span] = []
    for kind, pattern in _PATTERNS.items():
        for match in re.finditer(pattern, sentence):
            start, end = match.span()
            words = match.group().split() if kind == "name" else []
            while words and words[0] in _COMMON:
                start += len(words.pop(0)) + 1
            if kind == "name" and not (len(words) <= _MOST_WORDS and start + 3 <= end):
                continue
            if all(end <= other.start or start >= other.end for other in found):
                found.append(Span(start, end, kind))
    return sorted(found, key=lambda span: span.start)


_SENTENCE_END = re.compile(r"(?<=[a-z0-9)\]\"”%][.?!])\s+(?=[\"“(]?[A-Z0-9])")
_SHORTEST, _LONGEST = 6, 45


def sentences(text: str) -> list[str]:
    """Whole sentences of a passage, of 6 to 45 words.

    A passage may begin and end within a sentence: text that does not begin with a capital letter or end with
    a full stop is left out.
    """
    parts = [part.strip() for part in _SENTENCE_END.split(" ".join(text.split()))]
    return [
        part
        for part in parts
        if (part[:1].isupper() or part[:1].isdigit())
        and part.endswith(".")
        and _SHORTEST <= len(part.split()) <= _LONGEST
    ]
