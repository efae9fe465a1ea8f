"""From logits to answers: which token comes next, and when a reader has written enough."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch

from engine.errors import InputError
from engine.reading.models.deciding import INCOMPLETE, Deciding, cleans, grows
from engine.reading.protocol import ReaderSpec
from engine.scoring.decided import Goal

# On a GPU reads leave their rows when as large a part of these has ended: else dead rows are computed along, for
# less than what it takes to copy all others.
ENDED = 0.25


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
        text: their text, before the first stop string; or the choice. Of an answer that has ended; one that
            goes on may not have been looked at yet.
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
            f"begins two of the answers {', '.join(choices)} with the same token, or one with none",
            "let the reader write its answers, or take another reader",
            path=name,
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
        shares = logits.float().softmax(-1)[:, first[0] : first[0] + 1]
    else:
        shares = torch.stack([logits[:, token] for token in first], 1).float().softmax(-1)
    # Told with the rest, in one synchronisation.
    broken = logits.isnan().any(-1, keepdim=True)
    rows: list[list[float]] = shares.masked_fill(broken, math.nan).tolist()
    if any(math.isnan(row[0]) for row in rows):
        raise _not_numbers()
    if len(choices) == 1:
        return [(choices[0] if share > 0.5 else "", share) for (share,) in rows]
    return [(choices[row.index(max(row))], row[0]) for row in rows]


def next_tokens(logits: torch.Tensor) -> list[int]:
    """The token of highest probability in each row, in one synchronisation.

    Args:
        logits: (rows, vocabulary).

    Raises:
        ArithmeticError: some logits are not numbers: any token would do.
    """
    # On a CPU it is several times as slow in bf16. Elsewhere a copy would only take memory.
    best = (logits.float() if logits.device.type == "cpu" else logits).argmax(-1, keepdim=True)
    # What is not a number is taken for the greatest, so that one look at this value suffices.
    broken = logits.gather(-1, best).isnan()
    tokens: list[int] = torch.where(broken, -1, best)[:, 0].tolist()
    if min(tokens, default=0) < 0:
        raise _not_numbers()
    return tokens


def _not_numbers() -> ArithmeticError:
    return ArithmeticError("the model's logits are not numbers; use `dtype` float32 or bfloat16")


class Stops:
    """The strings at which outputs end, looked for only where one may have been completed.

    A string is complete when its last character is, so a token whose text has no such character completes
    none. That is known of tokenizers whose text grows token by token (``deciding.grows``); with others every
    text is looked at.

    Args:
        tokenizer: of the reader.
        stop: the strings.
    """

    def __init__(self, tokenizer: Tokenizer, stop: Sequence[str]) -> None:
        self._tokenizer = tokenizer
        self._stop = stop
        self._last = {string[-1] for string in stop}
        # Where spaces are cleaned up, a token's own text may lose one that it has behind others.
        strange = any(INCOMPLETE in string for string in stop)
        self._always = bool(stop) and (cleans(tokenizer) or strange or not grows(tokenizer))
        self._ends: dict[int, bool] = {}

    def may_end(self, token: int) -> bool:
        """Whether a text that this token was added to may now have a stop string."""
        if self._always or not self._stop:
            return self._always
        if token not in self._ends:
            # Twice, since what stands first may lose its space.
            text = self._tokenizer.decode([token, token], skip_special_tokens=True)
            whole = text and INCOMPLETE not in text
            self._ends[token] = not whole or not self._last.isdisjoint(text)
        return self._ends[token]

    def before(self, text: str) -> str:
        """The text before the first stop string; all of it where it has none."""
        places = (at for stop in self._stop if (at := text.find(stop)) >= 0)
        return text[: min(places, default=len(text))]


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
        self._stops = Stops(tokenizer, spec.stop)
        self._choices = spec.choices
        self._first = first_tokens(tokenizer, spec.choices, spec.name)
        self.deciding = Deciding(spec, tokenizer)
        self.most = 0 if spec.choices else spec.max_new_tokens
        self.padding = min(ends, default=0)

    def write(self, answers: Sequence[Written | None], logits: torch.Tensor) -> list[int]:
        """Take the next token of each answer; the places of those that go on.

        Args:
            answers: None for rows that nothing is written of.
            logits: (answers, vocabulary).
        """
        if self._choices:
            chosen = choose(logits, self._choices, self._first)
            for answer, (text, confidence) in zip(answers, chosen, strict=True):
                if answer is not None:
                    answer.text, answer.confidence = text, confidence
            return []
        going = [
            place
            for place, (answer, token) in enumerate(zip(answers, next_tokens(logits), strict=True))
            if answer is not None and self._take(answer, token)
        ]
        asked = {
            place: (answer, answer.goal)
            for place in going
            if (answer := answers[place]) is not None and answer.goal is not None
        }
        ended = {
            place for place, end in zip(asked, self._ended(asked.values()), strict=True) if end
        }
        return [place for place in going if place not in ended]

    def _take(self, answer: Written, token: int) -> bool:
        """Whether an answer goes on with this token, but for what ``_ended`` says of one with a goal."""
        if token in self._ends:
            answer.text = self._text(answer)
            return False
        answer.tokens.append(token)
        ended = len(answer.tokens) >= self.most
        if not ended and (answer.goal is not None or not self._stops.may_end(token)):
            return True
        text = self._text(answer)
        answer.text = self._stops.before(text)
        return not ended and answer.text == text

    def _ended(self, asked: Collection[tuple[Written, Goal]]) -> list[bool]:
        """Which answers with a goal end: at a stop string, or decided. Their texts are made together."""
        texts = self.deciding.texts([answer.tokens for answer, _ in asked])
        decided = self.deciding.decided([goal for _, goal in asked], texts)
        ended = []
        for (answer, _), text, done in zip(asked, texts, decided, strict=True):
            answer.text = self._stops.before(text.shown)
            stopped = answer.text != text.shown
            answer.decided = done and not stopped
            ended.append(done or stopped)
        return ended

    def _text(self, answer: Written) -> str:
        return self._tokenizer.decode(answer.tokens, skip_special_tokens=True)
