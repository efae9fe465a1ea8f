"""Extract the answer from a reader's text: drop the thoughts before it, and stop at its end.

Models here, servers, and a user's functions and programs share this one rule.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from engine.reading.protocol import THINK, ReaderSpec, ReadOutput

# Tokens for the thoughts of a reader that thinks before it answers, beside those of its answer.
ROOM = 4096
UNFINISHED = (
    "the text ends within a thought: give the reader more tokens (max_new_tokens of the prompt), or have it "
    "answer without thinking"
)


class Parts(NamedTuple):
    """A text that a reader wrote.

    Attributes:
        thought: what it wrote before its answer, without the tags around it; None for nothing.
        answer: up to the first string that ends it, blanks at its end included.
        is_thinking: whether the text ends within a thought; its answer is empty then.
        is_ended: whether such a string was found.
    """

    thought: str | None
    answer: str
    is_thinking: bool = False
    is_ended: bool = False


@dataclass(frozen=True)
class Rule:
    """How texts are taken apart.

    Attributes:
        stop: an answer ends before the first of these strings.
        chat: whether blanks before the first word never end an answer. Those who continue a text go on with the
            next example behind a line break.
        tags: what a thought begins and ends with.
        opened: whether the prompt begins the thought, so that a text has the closing tag alone.
    """

    stop: tuple[str, ...] = ()
    chat: bool = False
    tags: tuple[str, str] = THINK
    opened: bool = False

    def parts(self, text: str) -> Parts:
        """A text, taken apart: first its thought is taken off, then what follows a string that ends it.

        >>> Rule(stop=("\\n",), chat=True).parts("<think>\\nLima?\\n</think>\\n\\nLima\\nor")
        Parts(thought='Lima?', answer='Lima', is_thinking=False, is_ended=True)
        """
        opening, closing = self.tags
        body = text.lstrip()
        thinks = self.opened or body.startswith(opening)
        within, closed, rest = body.removeprefix(opening).partition(closing)
        closed = closed if thinks or opening not in within else ""  # a thought in the answer stays
        if thinks and not closed:
            return Parts(within.strip(), "", is_thinking=True)
        answer = rest if closed else text
        if closed or self.chat:
            answer = answer.lstrip()
        ends = [at for string in self.stop if (at := answer.find(string)) >= 0]
        thought = within.strip() if closed else None
        return Parts(thought, answer[: min(ends, default=len(answer))], is_ended=bool(ends))

    def output(
        self, text: str, prompt_tokens: int, output_tokens: int, *, truncated: bool = False
    ) -> ReadOutput:
        """The output of a read in which a text was written; a failed one where that ends within a thought."""
        parts = self.parts(text)
        if parts.is_thinking:
            return ReadOutput.failed(UNFINISHED, prompt_tokens=prompt_tokens, truncated=truncated)
        return ReadOutput(
            parts.answer.strip(), prompt_tokens, output_tokens, truncated, thought=parts.thought
        )


def rule_of(spec: ReaderSpec) -> Rule:
    """How the texts of a reader are taken apart; a function and a program of a user's end them themselves."""
    if spec.function or spec.executor:
        return Rule(tags=spec.thought)
    if spec.api:
        opened, chat = spec.api.opened, spec.api.endpoint == "chat"
        return Rule(spec.stop, chat, spec.thought, opened)
    return Rule(spec.stop, not spec.special_tokens, spec.thought, spec.room > 0)


def given(outputs: Iterable[ReadOutput], rule: Rule) -> list[ReadOutput]:
    """The outputs that a program of a user's gave, without thoughts."""
    return [
        one
        if one.failure is not None or one.confidence is not None or one.thought is not None
        else replace(
            rule.output(one.output, one.prompt_tokens, one.output_tokens, truncated=one.truncated),
            seconds=one.seconds,
        )
        for one in outputs
    ]


def scored(
    target: str, logs: Sequence[float], prompt_tokens: int, *, truncated: bool
) -> ReadOutput:
    """The output of a read that scored a target, by the natural log-probability of each of its tokens."""
    probability = math.exp(math.fsum(logs) / len(logs))
    text = target.strip()
    return ReadOutput(text, prompt_tokens, len(logs), truncated, confidence=probability)


def with_own(output: ReadOutput, logs: Sequence[float]) -> ReadOutput:
    """The output of a read in which a text was written; with its probability by token where that was asked for."""
    if output.failure is not None or not logs:
        return output
    return replace(output, confidence=math.exp(math.fsum(logs) / len(logs)))
