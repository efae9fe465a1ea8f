"""What a reader is trained on before it reads whole lists: drills that are made as they are drawn.

Each is a question with one passage, in the words of the reader's own prompt, or a text to restore:

- ``copy``: random tokens, some missing in the question and present in the passage. Nothing but copying helps.
- ``restore``: a sentence with gaps as the question, and what stands around it as the passage.
- ``denoise``: T5's span corruption (Raffel et al., JMLR 2020, section 3.1.4), without any passage.
- ``short``: a made-up question, and a few words around the sentence that it was made of.
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
from engine.reading.prompting.prompts import Prompt
from engine.training.examples import Example

Drill = Literal["copy", "restore", "denoise", "short", "passage"]

SENTINELS = tuple(f"<extra_id_{number}>" for number in range(16))
_EXCHANGED = 0.5
# Words around a short question's sentence, and around a sentence that is restored, at most.
_SHORT, _RESTORED = 20, 40
# T5's: a text with 15% of its tokens missing, in spans of 3; of a sentence whose words stand in the
# passage twice as many.
_DENOISED, _GAPS, _GAP = 0.15, 0.3, 3


@dataclass(eq=False)
class Drills:
    """Drills without end, of which as many as ``size`` make an epoch; see ``examples.Examples``.

    Attributes:
        asked: everything that can be asked for.
        mixture: the share of each kind of drill.
        size: drills of an epoch.
        prompt, tokenizer, longest_input: of the reader.
        longest_target: tokens that it writes at most in an answer to a question.
        seed: of everything that is drawn.
    """

    asked: Sequence[Asked]
    mixture: Mapping[Drill, float]
    size: int
    prompt: Prompt
    tokenizer: Any
    longest_input: int
    longest_target: int
    seed: int
    digest: str = field(init=False)

    def __post_init__(self) -> None:
        self._end = int(self.tokenizer.eos_token_id)
        self._sentinels = self.tokenizer.convert_tokens_to_ids(list(SENTINELS))
        pool: dict[str, set[str]] = {}
        for one in self.asked:
            pool.setdefault(one.span.kind, set()).add(one.answer)
        self._pool = {kind: sorted(found) for kind, found in pool.items()}
        content = [dict(self.mixture), self.size, self.seed, self.prompt.digest, self.longest_input]
        texts = [(one.title, one.passage, one.answer) for one in self.asked]
        self.digest = hashlib.sha256(json.dumps([content, texts]).encode()).hexdigest()

    def __len__(self) -> int:
        return self.size

    def draw(self, epoch: int, places: Sequence[int]) -> list[Example]:
        """The drills at some places of an epoch."""
        kinds, weights = list(self.mixture), list(self.mixture.values())
        examples: list[Example] = []
        for place in places:
            rng = random.Random(f"{self.seed} {epoch} {place}")
            examples.append(getattr(self, f"_{rng.choices(kinds, weights)[0]}")(rng))
        return examples

    def _short(self, rng: random.Random) -> Example:
        return self._passage(rng, words=_SHORT)

    def _passage(self, rng: random.Random, words: int | None = None) -> Example:
        """A question; ``words`` of the passage before and behind the sentence, at most; None for all of it."""
        asks, title, passage, answer = question(self.asked, self._pool, rng, words=words)
        (rendered,) = self.prompt.render(asks, [(title, passage)])
        (item,) = tokenize(
            self.tokenizer, [rendered], limit=self.longest_input, special_tokens=True
        )
        target, most = self._tokens(answer), self.longest_target
        if len(target) > most:  # a reader stops there, so that no end follows
            return Example((item.tokens,), tuple(target[:most]), item.truncated, True)
        return Example((item.tokens,), (*target, self._end), item.truncated)

    def _restore(self, rng: random.Random) -> Example:
        """The gaps of a sentence that the passage has."""
        one = rng.choice(self.asked)
        words = rng.randint(0, _RESTORED)
        before = rng.randint(0, words)
        shown, missing = gaps(self._tokens(one.sentence), self._sentinels, _GAPS, rng)
        head, tail = self._frame(one.title, one.around(before, words - before))
        return self._gapped([*head, *shown, *tail], missing)

    def _copy(self, rng: random.Random) -> Example:
        """The gaps of random tokens that the passage has."""
        words = range(self._sentinels[-1] + 1, len(self.tokenizer))

        def drawn(least: int, most: int) -> list[int]:
            return rng.choices(words, k=rng.randint(least, most))

        tokens = drawn(4, 24)
        passage = [*drawn(0, 8), *tokens, *drawn(0, 8)]
        shown, missing = gaps(tokens, self._sentinels, _GAPS, rng)
        head, tail = self._frame("", "")
        return self._gapped([*head, *shown, *tail, *passage], missing)

    def _denoise(self, rng: random.Random) -> Example:
        tokens = self._tokens(rng.choice(self.asked).passage)
        return self._gapped(*gaps(tokens, self._sentinels, _DENOISED, rng))

    def _gapped(self, shown: Sequence[int], missing: Sequence[int]) -> Example:
        """What is shown with gaps, without its end where it is too long, and what is missing."""
        most = self.longest_input - 1
        return Example(((*shown[:most], self._end),), (*missing, self._end), int(len(shown) > most))

    def _frame(self, title: str, passage: str) -> tuple[list[int], list[int]]:
        """Tokens of the prompt before and behind its question."""
        mark = "\ue000"
        (rendered,) = self.prompt.render(mark, [(title, passage or mark)])
        head, tail = rendered.split(mark)[:2]
        return self._tokens(head.rstrip()), self._tokens(tail.strip())

    def _tokens(self, text: str) -> list[int]:
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])


def question(
    asked: Sequence[Asked],
    pool: Mapping[str, Sequence[str]],
    rng: random.Random,
    *,
    words: int | None,
) -> tuple[str, str, str, str]:
    """A made-up question, its passage's title and text, and its answer, every other time exchanged for one of ``pool``."""
    while True:
        one = rng.choice(asked)
        asks = ask(one.sentence, one.span, one.title, rng)
        if holds(asks, one.answer):
            continue
        passage = one.passage
        if words is not None:
            most = rng.randint(0, words)
            before = rng.randint(0, most)
            passage = one.around(before, most - before)
        if rng.random() >= _EXCHANGED:
            return asks, one.title, passage, one.answer
        other = rng.choice(pool[one.span.kind])
        if not (holds(asks, other) or holds(one.title, one.answer)):
            return asks, one.title, exchanged(passage, one.answer, other), other


def gaps(
    tokens: Sequence[int], sentinels: Sequence[int], share: float, rng: random.Random
) -> tuple[list[int], list[int]]:
    """A text with gaps, each marked by a sentinel, and what is missing, each piece behind its sentinel.

    Args:
        tokens: of the text, one or more.
        sentinels: as many gaps as there can be.
        share: of the tokens that are missing, about.
        rng: draws where the gaps are and how long.
    """
    count = min(len(sentinels), max(1, round(len(tokens) * share / _GAP)))
    shown: list[int] = []
    missing: list[int] = []
    used, place = 0, 0
    for start in sorted(rng.sample(range(len(tokens)), min(count, len(tokens)))):
        if start < place + (used > 0):  # gaps do not touch
            continue
        end = min(len(tokens), start + max(1, min(8, round(rng.expovariate(1 / _GAP)))))
        shown += [*tokens[place:start], sentinels[used]]
        missing += [sentinels[used], *tokens[start:end]]
        used, place = used + 1, end
    return [*shown, *tokens[place:]], missing
