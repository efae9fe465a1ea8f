"""Score given texts: which tokens they are behind a prompt, and what a reader's read of one gives."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from engine.reading.models.sharing import common_length
from engine.reading.models.stops import Tokenizer
from engine.reading.prompting.truncation import DOES_NOT_FIT, fit
from engine.reading.protocol import ReaderSpec, ReadOutput

_UNSCORED = "what is scored has no tokens, or does not fit behind the prompt"


@dataclass(frozen=True)
class PromptRead:
    """A read of a decoder-only model.

    Attributes:
        tokens: those of the prompt that the model is given; none where not even the question fits.
        head: how many of its first tokens other prompts begin with, too.
        target: the tokens behind it that are scored; empty where an answer is written.
        scored: their text; None where an answer is written.
        whole: tokens of the prompt before it was cut.
    """

    tokens: list[int]
    head: int = 0
    target: Sequence[int] = ()
    scored: str | None = None
    whole: int = 0

    @property
    def length(self) -> int:
        """Tokens of the prompt; of the whole one where it does not fit."""
        return len(self.tokens) or self.whole

    @property
    def truncated(self) -> bool:
        """Whether the prompt was cut, or does not fit."""
        return len(self.tokens) < self.whole

    def room(self, most: int) -> int:
        """Tokens of the prompt with those that follow it: the target's, or up to ``most`` that are written."""
        return len(self.tokens) + (len(self.target) or most)

    def refused(self, most: int) -> ReadOutput | None:
        """The failed read of what cannot be read, within ``most`` tokens with the target; None where it can."""
        if self.truncated and not self.tokens:
            return ReadOutput.failed(DOES_NOT_FIT, prompt_tokens=self.length, truncated=True)
        if self.scored is not None and not 0 < len(self.target) <= most - self.length:
            return ReadOutput.failed(_UNSCORED, prompt_tokens=self.length)
        return None


class PromptReader:
    """What readers of one prompt have in common: inputs become tokens, cut where they are too long.

    Args:
        limit: tokens of the longest prompt; 0 for none.
    """

    def __init__(self, spec: ReaderSpec, tokenizer: Any, limit: int) -> None:
        self._spec = spec
        self._tokenizer = tokenizer
        self._limit = limit
        self._begin = self._encode([""])[0]
        self._head = self._encode([spec.shared_prefix])[0] if spec.shared_prefix else []

    def _reads(self, inputs: Sequence[Sequence[str]]) -> list[PromptRead]:
        inputs, targets = parted(inputs, self._spec)
        texts, heads = ["".join(pieces) for pieces in inputs], self._heads(inputs)
        encoded = self._encoded(texts)  # several targets may follow one prompt
        prompts = [
            fit(
                encoded[text],
                text,
                head=head or self._begin,
                limit=self._limit or len(encoded[text]),
                tail_marker=self._spec.tail_marker,
                encode=lambda tail: self._tokenizer.encode(tail, add_special_tokens=False),
            )
            for head, text in zip(heads, texts, strict=True)
        ]
        return [
            PromptRead(
                tokens,
                # Tokens may merge across the end of a head's text, so what is shared is decided on tokens.
                common_length(head, tokens),
                () if target is None else target_tokens(self._tokenizer, text, target),
                target,
                len(encoded[text]),
            )
            for text, target, tokens, head in zip(texts, targets, prompts, heads, strict=True)
        ]

    def _encode(self, texts: list[str]) -> list[list[int]]:
        special = self._spec.special_tokens
        encoded = self._tokenizer(texts, return_attention_mask=False, add_special_tokens=special)
        return list(encoded["input_ids"])

    def _encoded(self, texts: Sequence[str]) -> dict[str, list[int]]:
        unique = list({"", *texts})
        return dict(zip(unique, self._encode(unique), strict=True))

    def _heads(self, inputs: Sequence[Sequence[str]]) -> list[list[int]]:
        """The tokens that each prompt shares: of all pieces but the last, or of the template."""
        texts = ["".join(pieces[:-1]) for pieces in inputs]
        tokens = self._encoded(texts)
        return [tokens[text] if text else self._head for text in texts]


def parted(
    inputs: Sequence[Sequence[str]], spec: ReaderSpec
) -> tuple[list[Sequence[str]], list[str] | list[None]]:
    """The prompts of reads, and their targets, which stand behind these; None where a reader writes."""
    if spec.scores != "target":
        return list(inputs), [None] * len(inputs)
    return [pieces[:-1] for pieces in inputs], [pieces[-1] for pieces in inputs]


def target_tokens(tokenizer: Tokenizer, prompt: str, target: str) -> list[int]:
    """The tokens of a target as they follow a prompt: those behind the prompt's last word in the encoding of both.

    Where a token reaches across the end of the prompt, which no reader that is given the prompt's tokens would
    write, the target is encoded alone.
    """
    found = re.search(r"\S*\s*\Z", prompt)
    word = found[0] if found else ""
    before = tokenizer.encode(word, add_special_tokens=False)
    both = tokenizer.encode(word + target, add_special_tokens=False)
    if both[: len(before)] == before:
        return both[len(before) :]
    return tokenizer.encode(target, add_special_tokens=False)
