"""From logits to answers: which token comes next, and when a reader has written enough."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch

from engine.errors import InputError
from engine.reading.models.deciding import Deciding
from engine.reading.protocol import ReaderSpec
from engine.scoring.decided import Goal


class Tokenizer(Protocol):
    """The part of a transformers tokenizer that is used here."""

    def decode(self, tokens: list[int], *, skip_special_tokens: bool) -> str: ...

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]: ...


@dataclass(frozen=True)
class Asked:
    """A tokenized prompt.

    Attributes:
        tokens: all of it.
        head: how many of its first tokens other prompts begin with, too.
        goal: what decides its answer before the end; None for nothing.
    """

    tokens: list[int]
    head: int = 0
    goal: Goal | None = None


@dataclass
class Written:
    """An answer.

    Attributes:
        tokens: what was generated, the token that ended a stop string included, end tokens not.
        text: their text, before the first stop string; or the choice.
        confidence, decided: see ``ReadOutput``.
        goal: see ``Asked``.
    """

    tokens: list[int] = field(default_factory=list)
    text: str = ""
    confidence: float | None = None
    decided: bool = False
    goal: Goal | None = None


def first_tokens(tokenizer: Tokenizer, choices: Sequence[str], name: str) -> list[int]:
    """The token that each choice begins with, by which they are told apart.

    Raises:
        InputError: two begin with the same token, or one has none.
    """
    encoded = [tokenizer.encode(choice, add_special_tokens=False) for choice in choices]
    first = [next(iter(tokens), -1) for tokens in encoded]
    if len(set(first)) < len(first) or -1 in first:
        raise InputError(
            name,
            None,
            f"begins two of the answers {', '.join(choices)} with the same token, or one with none",
            "let the reader write its answers, or take another reader",
        )
    return first


def choose(
    logits: torch.Tensor, choices: Sequence[str], first: Sequence[int]
) -> list[tuple[str, float]]:
    """The choice made in each row, and the probability of the first choice.

    Args:
        logits: (rows, vocabulary), of the next token.
        choices: two or more, told apart by the probabilities of their first tokens among
            themselves; or one, whose first token's probability is taken among all tokens. It is
            chosen where that exceeds 1/2, else nothing is.
        first: their first tokens.
    """
    if len(choices) == 1:
        alone = logits.float().softmax(-1)[:, first[0]].tolist()
        return [(choices[0] if share > 0.5 else "", share) for share in alone]
    shares = logits[:, list(first)].float().softmax(-1)
    best = shares.argmax(-1).tolist()
    return [
        (choices[place], share) for place, share in zip(best, shares[:, 0].tolist(), strict=True)
    ]


def refuse_nan(logits: torch.Tensor) -> None:
    """Refuse to answer where a model's arithmetic overflowed: any token would do.

    Raises:
        ArithmeticError: some logits are not numbers.
    """
    if logits.isnan().any():
        raise ArithmeticError("the model's logits are not numbers; use `dtype` float32 or bfloat16")


class Writer:
    """Adds to answers greedily, or chooses between given ones, as a specification says.

    Attributes:
        most: tokens generated at most.
        deciding: ends answers that are decided.
        padding: a token that is never read.
    """

    def __init__(self, spec: ReaderSpec, tokenizer: Tokenizer, ends: frozenset[int]) -> None:
        self._tokenizer = tokenizer
        self._ends = ends
        self._stop = spec.stop
        self._choices = spec.choices
        self._first = first_tokens(tokenizer, spec.choices, spec.name)
        self.deciding = Deciding(spec, tokenizer)
        self.most = 0 if spec.choices else spec.max_new_tokens
        self.padding = min(ends, default=0)

    def write(self, answers: Sequence[Written], logits: torch.Tensor) -> list[int]:
        """Take the next token of each answer; the places of those that go on.

        Args:
            logits: (answers, vocabulary).
        """
        refuse_nan(logits)
        if self._choices:
            chosen = choose(logits, self._choices, self._first)
            for answer, (text, confidence) in zip(answers, chosen, strict=True):
                answer.text, answer.confidence = text, confidence
            return []
        chosen = logits.float().argmax(-1).tolist()  # in bf16 it is several times as slow
        return [
            place
            for place, (answer, token) in enumerate(zip(answers, chosen, strict=True))
            if self._take(answer, token)
        ]

    def _take(self, answer: Written, token: int) -> bool:
        if token in self._ends:
            return False
        answer.tokens.append(token)
        text = self._tokenizer.decode(answer.tokens, skip_special_tokens=True)
        places = [at for stop in self._stop if (at := text.find(stop)) >= 0]
        answer.text = text[: min(places)] if places else text
        if places or len(answer.tokens) >= self.most:
            return False
        if answer.goal is not None:
            answer.decided = self.deciding.is_decided(answer.goal, answer.tokens, text)
        return not answer.decided
