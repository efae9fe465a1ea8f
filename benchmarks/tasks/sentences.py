"""Sentences of the bundled articles that suit questions: whole, on a single named thing, and free of "this" and "he"."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from benchmarks.bundled_reader.spans import Span, sentences, spans
from engine.sources.articles.read import Article

# A sentence with such a word depends on the sentence before it, or on the reader's memory of that sentence.
_LEANS = re.compile(
    r"\b(?:He|She|It|They|We|I|His|Her|Its|Their|he|she|it|they|him|them|us|This|That|These|Those|this|these|those"
    r"|such|Such|latter|former|however|However|also|therefore|above|below|following|here|there|There|Here|another"
    r"|same|then|thus|Thus|again|later|earlier|instead|Both|Other|see|See)\b"
)
_LISTED = re.compile(
    r"(?:The )?(?:First|Second|Third|One|Some|Most|Examples?|first|second|third|most)\b"
)
# So do these words, unless the sentence has a named subject of its own.
_OWNERS = re.compile(r"\b(?:his|her|its|their)\b")
_BAD = re.compile(
    r"[:;\[\]{}|=<>#*\"“”()…]|\.\.|\d\.\d|^[\d\W]|\b[A-Z]\.|\b(?:Dr|St|Mr|Mrs|Maj|Gen|Gov|Col|Lt|Capt|c|ca|cf|i\.e|e\.g)\."
)
# Marks of an entry in a list of books.
_CITED = re.compile(r"\b(?:ISBN|eds?|pp|vol|Press|Routledge|Publish\w*|Books)\b")
_VERBS = """
is are was were has have had can could will would may might did does became becomes began begins came went saw met made
makes took takes gave gives left led leads held holds won lost wrote writes brought built sent fell ran runs rose grew
drew knew said kept chose taught fought bought sold spoke wore lies lay borders covers contains consists includes
remains provides produces supports requires uses offers shows plays serves received
"""
_VERB = rf"(?:{'|'.join(_VERBS.split())}|[a-z]{{2,}}ed)"
_SHORTEST, _LONGEST = 7, 36


@dataclass(frozen=True)
class Fact:
    """A sentence of an article that stands by itself.

    Attributes:
        title: of the article.
        text: the sentence, a full stop at its end.
        subject: its beginning, if that is a name before a verb; else empty.
        rest: the text after the subject, from the verb on, without the full stop.
        spans: possible answers: names, dates, years and numbers.
    """

    title: str
    text: str
    subject: str
    rest: str
    spans: tuple[Span, ...]

    def values(self, *kinds: str) -> list[str]:
        """The texts of spans of some kinds."""
        return [span.of(self.text) for span in self.spans if span.kind in kinds]


def facts(articles: Iterable[Article], *, alone: bool = True) -> list[Fact]:
    """Every sentence of the articles that stands by itself, in their order, each text once.

    ``alone``: whether to leave out sentences that depend on others; a reader has more to learn from with them.
    """
    found: dict[str, Fact] = {}
    for article in articles:
        if "disambiguation" in article.title or article.title.startswith("List of"):
            continue
        for paragraph in article.text.splitlines():
            for text in sentences(paragraph):
                is_fit = is_alone(text) if alone else _SHORTEST <= len(text.split()) <= _LONGEST
                if is_fit and text not in found:
                    fact = _fact(article.title, text)
                    if not alone or fact.subject or not _OWNERS.search(text):
                        found[text] = fact
    return list(found.values())


def is_alone(text: str) -> bool:
    """Whether a sentence depends on no other one, and has only plain words."""
    return (
        _SHORTEST <= len(text.split()) <= _LONGEST
        and not _LEANS.search(text)
        and not _BAD.search(text)
        and not _CITED.search(text)
        and not _LISTED.match(text)
        and re.search(rf" {_VERB}\b", text) is not None
    )


def _fact(title: str, text: str) -> Fact:
    match = re.match(rf"((?:The |A |An )?(?:[\w'’-]+ ){{0,5}}?[\w'’-]+) (?={_VERB}\b)", text)
    subject = match[1] if match and _is_name(match[1]) else ""
    rest = text[len(subject) :].strip(" .") if subject else ""
    return Fact(title, text, subject, rest, tuple(spans(text)))


def _is_name(text: str) -> bool:
    """Whether every word has a capital letter, except for words that join names; the first is no common word."""
    bare = re.sub(r"^(?:The|A|An) ", "", text)
    words = [word for word in bare.split() if word not in ("of", "the", "and", "de", "von", "in")]
    if not words or not all(word[0].isupper() for word in words):
        return False
    return any(span.of(text) == bare for span in spans(f"{text} was here."))


def counts(articles: Sequence[Article]) -> Counter[str]:
    """By name, the number of sentences of all articles that contain it, without sentences that begin with it."""
    return Counter(
        name
        for article in articles
        for paragraph in article.text.splitlines()
        for sentence in sentences(paragraph)
        for name in {s.of(sentence) for s in spans(sentence) if s.kind == "name" and s.start}
    )
