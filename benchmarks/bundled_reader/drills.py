"""Training drills before a reader reads whole lists, made as they are drawn.

Each is a question with one passage, in the words of the reader's own prompt, or a text to restore:

- ``copy``: random tokens, some missing in the question and present in the passage. Nothing but copying helps.
- ``restore``: a sentence with gaps as the question, and its surroundings as the passage.
- ``denoise``: T5's span corruption (Raffel et al., JMLR 2020, section 3.1.4), without any passage.
- ``short``: a made-up question, and a few words around its source sentence.
- ``passage``: a made-up question and the whole passage.

In half of the questions the answer is exchanged, in the passage too, for another of its kind, so that
nothing is learned by heart.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from benchmarks.bundled_reader.questions import ask
from benchmarks.bundled_reader.text import Asked, exchanged, holds
from engine.reading.models.tokenizing import tokenize
from engine.training.examples import Example
from engine.training.start import Start

Drill = Literal["copy", "restore", "denoise", "short", "passage"]

SENTINELS = tuple(f"<extra_id_{number}>" for number in range(16))
_EXCHANGED = 0.5
# Most words around a short question's sentence, and around a sentence to restore.
_SHORT, _RESTORED = 20, 40
# T5's: a text with 15% of its tokens missing, in spans of 3; in a sentence whose words are in the
# passage twice as many.
_DENOISED, _GAPS, _GAP = 0.15, 0.3, 3


@dataclass(eq=False)
class Drills:
    """Endless drills, ``size`` to an epoch; see ``examples.Examples``.

    ``mixture`` has the share of every kind of drill.
    """

    asked: Sequence[Asked]
    mixture: Mapping[Drill, float]
    size: int
    seed: int
    start: Start
    tokenizer: Any
    digest: str = field(init=False)

    def __post_init__(self) -> None:
        self._end = int(self.tokenizer.eos_token_id)
        self._sentinels = self.tokenizer.convert_tokens_to_ids(list(SENTINELS))
        pool: dict[str, set[str]] = {}
        for one in self.asked:
            pool.setdefault(one.span.kind, set()).add(one.answer)
        self._pool = {kind: sorted(found) for kind, found in pool.items()}
        self._prompt, self._longest = self.start.prompt, self.start.spec.max_input_tokens
        content = [dict(self.mixture), self.size, self.seed, self._prompt.digest, self._longest]
        texts = [(one.title, one.passage, one.answer) for one in self.asked]
        self.digest = hashlib.sha256(json.dumps([content, texts]).encode()).hexdigest()

    def __len__(self) -> int:
        return self.size

    def draw(self, epoch: int, places: Sequence[int]) -> list[Example]:
        """The drills at some places of an epoch."""
        return [self._drawn(random.Random(f"{self.seed} {epoch} {place}")) for place in places]

    def _drawn(self, rng: random.Random) -> Example:
        (kind,) = rng.choices(list(self.mixture), list(self.mixture.values()))
        found: Example = getattr(self, f"_{kind}")(rng)
        return found

    def _short(self, rng: random.Random) -> Example:
        return self._passage(rng, words=_SHORT)

    def _passage(self, rng: random.Random, words: int | None = None) -> Example:
        """A question; at most ``words`` of the passage before and behind the sentence, None for the whole passage."""
        rendered, answer = self._question(rng, words)
        (item,) = tokenize(self.tokenizer, rendered, limit=self._longest, special_tokens=True)
        target, most = self._tokens(answer), self.start.spec.max_new_tokens
        if len(target) > most:  # a reader stops there, so no end token follows
            return Example((item.tokens,), tuple(target[:most]), item.truncated, True)
        return Example((item.tokens,), (*target, self._end), item.truncated)

    def _question(self, rng: random.Random, words: int | None) -> tuple[list[str], str]:
        """A prompt of a made-up question, and its answer, every other time exchanged for another of its kind."""
        while True:
            one = rng.choice(self.asked)
            asks = ask(one.sentence, one.span, one.title, rng)
            if holds(asks, one.answer):
                continue
            passage = one.passage if words is None else one.around(*_sides(rng, words))
            if rng.random() >= _EXCHANGED:
                return self._prompt.render(asks, [(one.title, passage)]), one.answer
            other = rng.choice(self._pool[one.span.kind])
            if not (holds(asks, other) or holds(one.title, one.answer)):
                changed = exchanged(passage, one.answer, other)
                return self._prompt.render(asks, [(one.title, changed)]), other

    def _restore(self, rng: random.Random) -> Example:
        """Gaps in a sentence, to fill from the passage."""
        one = rng.choice(self.asked)
        sides = _sides(rng, _RESTORED)
        frame = self._frame(one.title, one.around(*sides))
        return self._gapped(self._tokens(one.sentence), _GAPS, rng, *frame)

    def _copy(self, rng: random.Random) -> Example:
        """Gaps in random tokens, to fill from the passage."""
        words = range(self._sentinels[-1] + 1, len(self.tokenizer))

        def drawn(least: int, most: int) -> list[int]:
            return rng.choices(words, k=rng.randint(least, most))

        tokens = drawn(4, 24)
        passage = [*drawn(0, 8), *tokens, *drawn(0, 8)]
        head, tail = self._frame("", "")
        return self._gapped(tokens, _GAPS, rng, head, [*tail, *passage])

    def _denoise(self, rng: random.Random) -> Example:
        tokens = self._tokens(rng.choice(self.asked).passage)
        return self._gapped(tokens, _DENOISED, rng, [], [])

    def _gapped(
        self, tokens: list[int], share: float, rng: random.Random, head: list[int], tail: list[int]
    ) -> Example:
        """Tokens with about a share missing, each gap marked by a sentinel; to write: each piece after its sentinel.

        A text that is too long loses its end.
        """
        count = min(len(self._sentinels), max(1, round(len(tokens) * share / _GAP)))
        shown, missing = head, list[int]()
        used, place = 0, 0
        for start in sorted(rng.sample(range(len(tokens)), min(count, len(tokens)))):
            if start < place + (used > 0):  # gaps do not touch
                continue
            end = min(len(tokens), start + max(1, min(8, round(rng.expovariate(1 / _GAP)))))
            shown = [*shown, *tokens[place:start], self._sentinels[used]]
            missing += [self._sentinels[used], *tokens[start:end]]
            used, place = used + 1, end
        shown, most = [*shown, *tokens[place:], *tail], self._longest - 1
        return Example(((*shown[:most], self._end),), (*missing, self._end), int(len(shown) > most))

    def _frame(self, title: str, passage: str) -> tuple[list[int], list[int]]:
        """Tokens of the prompt before and behind its question."""
        mark = "\ue000"
        (rendered,) = self._prompt.render(mark, [(title, passage or mark)])
        head, tail = rendered.split(mark)[:2]
        return self._tokens(head.rstrip()), self._tokens(tail.strip())

    def _tokens(self, text: str) -> list[int]:
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])


def _sides(rng: random.Random, words: int) -> tuple[int, int]:
    """Numbers of words to keep before and behind a sentence, together at most ``words``."""
    most = rng.randint(0, words)
    before = rng.randint(0, most)
    return before, most - before
