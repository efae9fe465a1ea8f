"""Makers of questions with answers and gold articles, drawn by a seed from sentences that stand by themselves."""

from __future__ import annotations

import random
import re
from calendar import month_name
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.bundled_reader.spans import Span
from benchmarks.tasks.sentences import Fact, counts, facts
from engine.sources.articles.read import Article

# A year in a question, or a substitute, differs at least this much from another year.
_APART = 3
_OPENINGS = (
    "I have been reading about {title}.\nSo have I. What would you like to know?\nWhat can you tell me about {name}?",
    "Do you know the subject of {title}?\nA little, yes.\nThen what do you know about {name} in that connection?",
    "My daughter has to give a talk on {title}.\nThat should be interesting!\nShe asked me about {name}. Any idea?",
    "Let us talk about {title}.\nGladly. Where shall we begin?\nWith {name}, please. What is there to say?",
)
_SHORTEST_REPLY = 12
# Names that do not identify the subject of a sentence.
_WEAK = frozenset(("Moon", "Earth", "Sun", *month_name[1:]))


@dataclass(frozen=True)
class Question:
    """A question, claim or utterance; answers, all right; titles and sentences of its sources."""

    text: str
    answers: tuple[str, ...]
    articles: tuple[str, ...]
    sentences: tuple[str, ...]

    def record(self, query_id: str) -> dict[str, object]:
        """The question in KILT's layout."""
        provenance = [{"wikipedia_id": title, "title": title} for title in self.articles]
        output = [*({"answer": one} for one in self.answers), {"provenance": provenance}]
        return {"id": query_id, "input": self.text, "output": output}


# The articles' sentences for making questions; None for the sentences that stand by themselves.
Facts = Sequence[Fact] | None


def trivia(
    articles: Sequence[Article], count: int, seed: int, every: Facts = None
) -> list[Question]:
    """Questions for the subject of a sentence that has a second name, or a number, in the rest."""
    names, rng = counts(articles), random.Random(f"trivia {seed}")

    def made(fact: Fact) -> Iterator[Question]:
        bare = re.sub(r"^(?:The|A|An) ", "", fact.subject)
        others = [one for one in fact.values("name", "year", "date", "number") if one not in bare]
        long_enough = len(fact.rest.split()) >= 6
        if not fact.subject or names[bare] < 1 or not others or not long_enough:
            return
        if _shares_a_word(bare, fact.rest):
            return
        answers = [bare, *([fact.title] if fact.title.endswith(f" {bare}") else [])]
        yield Question(f"Who or what {fact.rest}?", tuple(answers), (fact.title,), (fact.text,))

    return _drawn(every or facts(articles), made, count, rng)


def claims(
    articles: Sequence[Article], count: int, seed: int, every: Facts = None
) -> list[Question]:
    """Sentences with a year, date or number, half false: another value of the article replaces it."""
    rng, every = random.Random(f"claims {seed}"), every or facts(articles)
    by_article: dict[str, list[Fact]] = {}
    for fact in every:
        by_article.setdefault(fact.title, []).append(fact)

    def supported(fact: Fact) -> Iterator[Question]:
        if _exchangeable(fact) and _is_anchored(fact):
            yield Question(fact.text, ("SUPPORTS",), (fact.title,), (fact.text,))

    def refuted(fact: Fact) -> Iterator[Question]:
        if not _is_anchored(fact):
            return
        for span in _exchangeable(fact):
            old = span.of(fact.text)
            values = {
                value
                for other in by_article[fact.title]
                for value in other.values(span.kind)
                if _differs(old, value) and value not in fact.text
            }
            if values:
                text = fact.text[: span.start] + rng.choice(sorted(values)) + fact.text[span.end :]
                yield Question(text, ("REFUTES",), (fact.title,), (fact.text,))
                return

    taken: set[str] = set()
    halves = [_drawn(every, half, count // 2, rng, taken) for half in (supported, refuted)]
    mixed = [*halves[0], *halves[1]]
    rng.shuffle(mixed)
    return mixed


def two_hop(
    articles: Sequence[Article], count: int, seed: int, every: Facts = None
) -> list[Question]:
    """Questions for a gap in a sentence, about a name that another article's sentence shares; the name is X in both."""
    rng, known = random.Random(f"two-hop {seed}"), counts(articles)
    every = every or facts(articles)
    links = _links(every, known)
    for linking in links.values():
        rng.shuffle(linking)

    def made(fact: Fact) -> Iterator[Question]:
        shared = [span for span in fact.spans if span.of(fact.text) in links]
        gaps = [span for span in fact.spans if _is_gap(fact, span, known)]
        pairs = [(link, gap) for link in shared for gap in gaps if link != gap]
        rng.shuffle(pairs)
        for link, gap in pairs:
            name, answer = link.of(fact.text), gap.of(fact.text)
            clue = next((one for one in links[name] if one.title != fact.title), None)
            if clue is None or answer in clue.text or _shares_a_word(name, answer):
                continue
            links[name].remove(clue)
            links[name].append(clue)  # the next question on the name gets another clue
            second = f"{fact.text[: gap.start]}___{fact.text[gap.end :]}"
            if _holds_once(second, name):
                both = f"“{clue.text.replace(name, 'X')}” “{second.replace(name, 'X')}”"
                text = f"X is the same in two sentences. {both} Which {gap.kind} fills the gap?"
                titles = (clue.title, fact.title)
                yield Question(text, (answer,), titles, (clue.text, fact.text))

    return _drawn(every, made, count, rng)


def _links(every: Sequence[Fact], known: Mapping[str, int]) -> dict[str, list[Fact]]:
    """By name, the sentences with exactly one occurrence, for names in sentences of several articles, as whole names."""
    links: dict[str, list[Fact]] = {}
    for fact in every:
        for name in sorted({*fact.values("name")} - _WEAK):  # sets differ from process to process
            if known[name] > 1 and len(name) > 3 and _holds_once(fact.text, name):
                links.setdefault(name, []).append(fact)
    return {name: some for name, some in links.items() if len({one.title for one in some}) > 1}


def _is_gap(fact: Fact, span: Span, known: Mapping[str, int]) -> bool:
    """Whether a span makes a fair gap: it occurs once in the sentence, and is a name, or no part of a decade."""
    answer = span.of(fact.text)
    is_name = span.kind == "name"
    fit = known[answer] > 0 and not answer.endswith(("'s", "’s")) and answer not in _WEAK
    return _holds_once(fact.text, answer) and (fit if is_name else not _is_decade(fact.text, span))


def _holds_once(text: str, words: str) -> bool:
    """Whether words occur in a text exactly once, as whole words, and not within a longer name."""
    before, found, after = text.partition(words)
    longer = re.match(r"[\w-]| [A-Z0-9]", after) or re.search(r"[\w-]$|[A-Z][\w'’-]* $", before)
    return bool(found) and words not in after and not longer


def dialogue(
    articles: Sequence[Article], count: int, seed: int, every: Facts = None
) -> list[Question]:
    """Questions about a name of several words that occurs once in all articles; its sentence is the answer."""
    rng, everything = random.Random(f"dialogue {seed}"), "\n".join(one.text for one in articles)

    def is_asked(fact: Fact, span: Span) -> bool:
        name, after = span.of(fact.text), fact.text[span.end :]
        is_whole = span.kind == "name" and " " in name and " and " not in name
        return (
            is_whole
            and name[0].isupper()
            and not name.endswith(("'s", "’s"))
            and not name.split()[0].endswith("ing")
            and not re.search(r"[A-Z][\w-]* $", fact.text[: span.start].partition(" ")[2])
            and not re.match(r" (?:of|on|for|in) [A-Z]", after)
            and everything.count(name) == 1
            and bool(re.match(r"[,.]| [a-z]", after))
            and not _WEAK & {*name.split()}
            and not _shares_a_word(name, fact.title)
        )

    def made(fact: Fact) -> Iterator[Question]:
        known = [span.of(fact.text) for span in fact.spans if is_asked(fact, span)]
        if known and len(fact.text.split()) >= _SHORTEST_REPLY:
            text = rng.choice(_OPENINGS).format(title=fact.title, name=known[0])
            yield Question(text, (fact.text,), (fact.title,), (fact.text,))

    return _drawn(every or facts(articles), made, count, rng)


MAKERS: Mapping[str, Callable[..., list[Question]]] = {
    "trivia": trivia,
    "claims": claims,
    "two-hop": two_hop,
    "dialogue": dialogue,
}


def _drawn(
    every: Sequence[Fact],
    made: Callable[[Fact], Iterator[Question]],
    count: int,
    rng: random.Random,
    taken: set[str] | None = None,
) -> list[Question]:
    """Draw questions from sentences in random order, one per sentence as far as possible, without sentences in ``taken``.

    Raises:
        ValueError: there are fewer.
    """
    order, taken = list(every), set() if taken is None else taken
    rng.shuffle(order)
    makers = [made(fact) for fact in order if fact.text not in taken]
    found: list[Question] = []
    while makers and len(found) < count:  # first a question per sentence, then a second, and so on
        firsts = [(maker, next(maker, None)) for maker in makers]
        makers = [maker for maker, question in firsts if question]
        found += [question for _, question in firsts if question]
    del found[count:]
    taken.update(question.sentences[-1] for question in found)
    if len(found) < count:
        raise ValueError(f"{len(found)} questions can be made of these articles, not {count}")
    return found


def _exchangeable(fact: Fact) -> list[Span]:
    return [
        span
        for span in fact.spans
        if span.kind in ("year", "date", "number")
        and not _is_decade(fact.text, span)
        and not re.search(r"\b(?:As of|as of|Using the) $", fact.text[: span.start])
    ]


def _is_decade(text: str, span: Span) -> bool:
    return text[span.end : span.end + 1] in ("s", "'", "’")


def _is_anchored(fact: Fact) -> bool:
    """Whether a sentence identifies its subject: by the title, or by two names."""
    names = [name for name in fact.values("name") if len(name) > 3 and name not in _WEAK]
    return fact.title in fact.text or len(names) >= 2


def _differs(old: str, new: str) -> bool:
    """Whether two years, dates or numbers have the same form, and differ enough to make a true sentence false."""
    if re.sub(r"\d+", "0", old) != re.sub(r"\d+", "0", new):
        return False
    first, second = (re.findall(r"\d+", text.replace(",", "")) for text in (old, new))
    if len(first) > 1 or not old[0].isdigit():
        return first != second
    one, two = int(first[0]), int(second[0])
    return abs(one - two) >= _APART and abs(one - two) > (0 if one >= 1000 else 0.2 * one)


def _shares_a_word(one: str, other: str) -> bool:
    first, second = (
        {word.lower().removesuffix("'s")[:5] for word in re.findall(r"[\w'’]{3,}", text)}
        for text in (one, other)
    )
    return not first.isdisjoint(second)
