"""Extract the answer from a reader's text: drop the thoughts before it, and stop at its end.

Models here, servers, and a user's functions and programs share this one rule.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from engine.messages.wording import quoted
from engine.reading.protocol import THINK, Ended, ReaderSpec, ReadOutput

# Stands for bytes that are not a character, or not a whole one yet.
INCOMPLETE = "\ufffd"
# Tokens for the thoughts of a reader that thinks before it answers, beside those of its answer.
ROOM = 4096
UNFINISHED = (
    "the text ends within a thought: give the reader more tokens (max_new_tokens of the prompt), or have it "
    "answer without thinking"
)
# Words in the reasons that servers and vLLM give for the end of an output (EOS_TOKEN, endTurn, max_tokens, tool_calls):
# of what leaves no answer, whatever else is said (error_limit, not_finished), of a limit, of a model that ended it.
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_BROKEN = re.compile(
    r"\b(error|fail|abort|cancel|filter|interrupt|time|rate|quota|not?\b|safety|block|malformed|invalid|unexpected)"
)
_AT_LIMIT = re.compile(r"\b(length|max|limit)")
_BY_MODEL = re.compile(r"\b(stop|eos|eot|end|complete|finish|done|call)")
# A tag of a thought has such a name within brackets; one that closes has a slash before it, or says end for start.
_TAG = re.compile(
    r"([<\[◁]\|?)(/?)(\w*:?\w*(?:think|thought|reason|reflect)\w*)(\|?[>\]▷])", re.IGNORECASE
)
_STARTS = (("START_", "END_"), ("start_", "end_"), ("begin_", "end_"), ("_start", "_end"))
# Those of other forms, the last without its control tokens.
_OTHER_TAGS = (
    ("<|start|>assistant<|channel|>analysis<|message|>", "<|channel|>final<|message|>"),
    ("<|channel|>analysis<|message|>", "<|channel|>final<|message|>"),
    ("<|channel>thought", "<channel|>"),
    ("analysis", "assistantfinal"),
)
# Control tokens that a server shows around the answer behind such a thought.
_AROUND = re.compile(r"\A(\s*<\|[^|<>\s]+\|>)+|(<\|[^|<>\s]+\|>\s*)+\Z")
# Below this share of a first token's probability, nothing is known of choices but how rarely they are meant.
LEAST_MASS = 0.001
NOT_MEANT = (
    f"all choices together have less than {LEAST_MASS:.1%} of the probability of the first token, so the reader means "
    "none: ask for them in the prompt, and spell them (a blank before them included) as the reader does"
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
        chat: whether blanks before the first word never end an answer; a text that is continued goes on with the next
            example behind a line break.
        tags: the beginning and the end of a thought.
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
        answer = text
        if closed:
            answer = rest if self.tags == THINK else _AROUND.sub("", rest)
        if closed or self.chat:
            answer = answer.lstrip()
        ends = [at for string in self.stop if (at := answer.find(string)) >= 0]
        thought = within.strip() if closed else None
        return Parts(thought, answer[: min(ends, default=len(answer))], is_ended=bool(ends))

    def output(
        self,
        text: str,
        prompt_tokens: int,
        output_tokens: int,
        *,
        truncated: bool = False,
        ended: str | None = None,
    ) -> ReadOutput:
        """The output of a read in which a text was written; a failed one where that ends within a thought.

        Args:
            ended: what ended the text; a string in it that ends answers comes before that.
        """
        parts = self.parts(text)
        if parts.is_thinking:
            return ReadOutput.failed(UNFINISHED, prompt_tokens=prompt_tokens, truncated=truncated)
        return ReadOutput(
            parts.answer.strip(),
            prompt_tokens,
            output_tokens,
            truncated,
            thought=parts.thought,
            ended="stop" if parts.is_ended else ended,
        )


def tags_in(text: str) -> tuple[str, str] | None:
    """What the thought at the beginning of a text begins and ends with, by the forms in use; None where there is none.

    The text may have the closing tag alone.

    >>> tags_in("<|START_THINKING|>Lima?<|END_THINKING|><|START_RESPONSE|>Lima")
    ('<|START_THINKING|>', '<|END_THINKING|>')
    """
    text = text.lstrip()
    tags = [_pair(found) for found in _TAG.finditer(text)]
    known = (*tags, *_OTHER_TAGS)
    begun = (pair for pair in known if text.startswith(pair[0]))
    return next(
        (pair for pair in begun if pair[0].startswith(("<", "[", "◁")) or pair[1] in text),
        next((pair for pair in known[:-1] if pair[1] in text), None),
    )


def _pair(found: re.Match[str]) -> tuple[str, str]:
    left, slash, name, right = found.groups()
    for start, end in _STARTS:
        if start in name or (end in name and not slash):
            names = name.replace(end, start), name.replace(start, end)
            return f"{left}{names[0]}{right}", f"{left}{names[1]}{right}"
    return f"{left}{name}{right}", f"{left}/{name}{right}"


def ended_by(reason: str) -> Ended | None:
    """What ended an output, from the words of a server or of vLLM; None where these say nothing of an end."""
    words = " ".join(_WORD.findall(reason)).lower().removeprefix("finish reason ")
    if _BROKEN.search(words):
        return None
    if _AT_LIMIT.search(words):
        return "length"
    return "stop" if _BY_MODEL.search(words) else None


def not_ended(reason: str) -> str:
    """Why a read failed whose output ended for a reason that is no end."""
    return f"the answer was not ended ({quoted(reason)})"


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

    def own(one: ReadOutput) -> ReadOutput:
        if one.failure is not None or one.confidence is not None or one.thought is not None:
            return _meant(one)
        tokens = one.prompt_tokens, one.output_tokens
        found = rule.output(one.output, *tokens, truncated=one.truncated, ended=one.ended)
        return replace(found, seconds=one.seconds)

    return [own(one) for one in outputs]


def weighed(choices: Sequence[str], logs: Sequence[float]) -> tuple[str, float, float | None]:
    """The choice that is made, with its ``confidence`` and ``mass`` (see ``ReadOutput``).

    Args:
        choices: one is taken among all tokens, and chosen where its probability exceeds 1/2, else nothing is; several
            are weighed among each other.
        logs: the natural log-probability of the first token of each, minus infinity for an unknown one.
    """
    if len(logs) == 1:
        confidence = math.exp(min(0.0, logs[0]))
        return choices[0] if confidence > 0.5 else "", confidence, None
    shares = [math.exp(log - max(logs)) for log in logs]
    choice = choices[shares.index(max(shares))]
    return choice, shares[0] / sum(shares), math.fsum(map(math.exp, logs))


def chosen(
    text: str, confidence: float, mass: float | None, prompt_tokens: int, *, truncated: bool
) -> ReadOutput:
    """The output of a read in which a choice was made; a failed one where the reader means none of them."""
    output = ReadOutput(text.strip(), prompt_tokens, 0, truncated, confidence=confidence)
    return _meant(replace(output, mass=mass))


def _meant(output: ReadOutput) -> ReadOutput:
    """The output; a failed one in the place of a choice that is not meant."""
    if output.mass is None or output.mass >= LEAST_MASS:
        return output
    return replace(output, output="", confidence=None, failure=NOT_MEANT)


def scored(
    target: str, logs: Sequence[float], prompt_tokens: int, *, truncated: bool
) -> ReadOutput:
    """The output of a read that scored a target, by the natural log-probability of each of its tokens."""
    probability = math.exp(math.fsum(logs) / len(logs))
    return ReadOutput(target.strip(), prompt_tokens, len(logs), truncated, confidence=probability)


def with_own(output: ReadOutput, logs: Sequence[float]) -> ReadOutput:
    """The output of a read in which a text was written; with its probability by token where that was asked for."""
    if output.failure is not None or not logs:
        return output
    return replace(output, confidence=math.exp(math.fsum(logs) / len(logs)))
