"""Extract the answer from a reader's text: drop the thoughts before it, and stop at its end.

Models here, servers, and a user's functions and programs share this rule.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from engine.messages.wording import quoted
from engine.reading.protocol import THINK, Ended, ReaderSpec, ReadOutput

INCOMPLETE = "\ufffd"  # stands for bytes that are no character, or an incomplete one
# Tokens for the thoughts of a reader that thinks first, in addition to the answer's tokens.
ROOM = 4096
UNFINISHED = (
    "the text ends within a thought: give the reader more tokens (max_new_tokens of the prompt), or have it "
    "answer without thinking"
)
# Words in the finish reasons of servers and vLLM (EOS_TOKEN, endTurn, max_tokens, tool_calls), in order of precedence:
# for outputs without an answer (error_limit, not_finished), for a limit, for an end by the model.
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_BROKEN = re.compile(
    r"\b(error|fail|abort|cancel|filter|interrupt|time|rate|quota|not?\b|safety|block|malformed|invalid|unexpected)"
)
_AT_LIMIT = re.compile(r"\b(length|max|limit)")
_BY_MODEL = re.compile(r"\b(stop|eos|eot|end|complete|finish|done|call)")
# A thought's tag has such a name in brackets; a closing tag has a slash before the name, or end instead of start.
_TAG = re.compile(
    r"([<\[◁]\|?)(/?)(\w*:?\w*(?:think|thought|reason|reflect)\w*)(\|?[>\]▷])", re.IGNORECASE
)
_STARTS = (("START_", "END_"), ("start_", "end_"), ("begin_", "end_"), ("_start", "_end"))
# Tags of other forms; the last pair lacks its control tokens.
_OTHER_TAGS = (
    ("<|start|>assistant<|channel|>analysis<|message|>", "<|channel|>final<|message|>"),
    ("<|channel|>analysis<|message|>", "<|channel|>final<|message|>"),
    ("<|channel>thought", "<channel|>"),
    ("analysis", "assistantfinal"),
)
# Control tokens that a server shows around the answer after such a thought.
_AROUND = re.compile(r"\A(\s*<\|[^|<>\s]+\|>)+|(<\|[^|<>\s]+\|>\s*)+\Z")
# If all choices have less probability than this at the first token, their order means nothing.
LEAST_MASS = 0.001
NOT_MEANT = (
    f"all choices together have less than {LEAST_MASS:.1%} of the probability of the first token, so the reader means "
    "none: ask for them in the prompt, and spell them (a blank before them included) as the reader does"
)


class Parts(NamedTuple):
    """A text that a reader wrote: the thought before the answer, without its tags, and the answer."""

    thought: str | None
    answer: str  # up to the first stop string, trailing blanks included
    is_thinking: bool = False  # the text ends within a thought; its answer is empty
    is_ended: bool = False  # by a stop string


@dataclass(frozen=True)
class Rule:
    """The rule that splits a text into thought and answer."""

    stop: tuple[str, ...] = ()  # an answer ends before the earliest stop string
    # Whether blanks before the first word never end an answer; a completion may continue with the next example after a
    # line break.
    chat: bool = False
    tags: tuple[str, str] = THINK  # the opening and closing tags of a thought
    opened: bool = False  # the prompt opens the thought, so that texts have only the closing tag

    def parts(self, text: str) -> Parts:
        """Split a text: first cut off its thought, then everything from a stop string on.

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
        """The output of a read that wrote a text; a failed one if the text ends within a thought.

        A stop string in the text takes precedence over ``ended``, the reason for its end.
        """
        parts, tokens = self.parts(text), (prompt_tokens, output_tokens)
        if parts.is_thinking:
            return ReadOutput.failed(UNFINISHED, prompt_tokens=prompt_tokens, truncated=truncated)
        answer, ended = parts.answer.strip(), "stop" if parts.is_ended else ended
        return ReadOutput(answer, *tokens, truncated, thought=parts.thought, ended=ended)


def tags_in(text: str) -> tuple[str, str] | None:
    """Tags, or a closing tag, of the thought that begins a text, among the forms in use; None if there is none.

    >>> tags_in("<|START_THINKING|>Lima?<|END_THINKING|><|START_RESPONSE|>Lima")
    ('<|START_THINKING|>', '<|END_THINKING|>')
    """
    text = text.lstrip()
    tags = [_pair(tag) for tag in _TAG.finditer(text)]
    known = (*tags, *_OTHER_TAGS)
    begun = (pair for pair in known if text.startswith(pair[0]))
    return next(
        (pair for pair in begun if pair[0].startswith(("<", "[", "◁")) or pair[1] in text),
        next((pair for pair in known[:-1] if pair[1] in text), None),
    )


def _pair(tag: re.Match[str]) -> tuple[str, str]:
    left, slash, name, right = tag.groups()
    for start, end in _STARTS:
        if start in name or (end in name and not slash):
            names = name.replace(end, start), name.replace(start, end)
            return f"{left}{names[0]}{right}", f"{left}{names[1]}{right}"
    return f"{left}{name}{right}", f"{left}/{name}{right}"


def ended_by(reason: str) -> Ended | None:
    """Classify the finish reason of a server or of vLLM; None if it names no end."""
    words = " ".join(_WORD.findall(reason)).lower().removeprefix("finish reason ")
    if _BROKEN.search(words):
        return None
    if _AT_LIMIT.search(words):
        return "length"
    return "stop" if _BY_MODEL.search(words) else None


def not_ended(reason: str) -> str:
    """The failure of a read whose finish reason names no end."""
    return f"the answer was not ended ({quoted(reason)})"


def rule_of(spec: ReaderSpec) -> Rule:
    """The rule for a reader's texts; users' functions and programs end their texts themselves."""
    if spec.function or spec.executor:
        return Rule(tags=spec.thought)
    if spec.api:
        opened, chat = spec.api.opened, spec.api.endpoint == "chat"
        return Rule(spec.stop, chat, spec.thought, opened)
    return Rule(spec.stop, not spec.special_tokens, spec.thought, spec.room > 0)


def without_thought(read: ReadOutput, rule: Rule) -> ReadOutput:
    """The output of a user's program, with its thought cut off as that of all readers."""
    if read.failure is not None or read.confidence is not None or read.thought is not None:
        return _meant(read)
    tokens = read.prompt_tokens, read.output_tokens
    output = rule.output(read.output, *tokens, truncated=read.truncated, ended=read.ended)
    return replace(output, seconds=read.seconds)


def weighed(choices: Sequence[str], logs: Sequence[float]) -> tuple[str, float, float | None]:
    """Choose a text; returns it with ``confidence`` and ``mass`` (see ``ReadOutput``).

    Args:
        choices: several are compared with each other; a single one is chosen if its probability among all tokens
            exceeds 1/2, else the choice is empty.
        logs: the natural log-probabilities of the choices' first tokens, minus infinity if unknown.
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
    """The output of a read that made a choice; a failed one if the reader means no choice."""
    output = ReadOutput(text.strip(), prompt_tokens, 0, truncated, confidence=confidence)
    return _meant(replace(output, mass=mass))


def _meant(output: ReadOutput) -> ReadOutput:
    if output.mass is None or output.mass >= LEAST_MASS:
        return output
    return replace(output, output="", confidence=None, failure=NOT_MEANT)


def scored(
    target: str, logs: Sequence[float], prompt_tokens: int, *, truncated: bool
) -> ReadOutput:
    """The output of a read that scored a target, from the natural log-probabilities of its tokens."""
    probability = math.exp(math.fsum(logs) / len(logs))
    return ReadOutput(target.strip(), prompt_tokens, len(logs), truncated, confidence=probability)


def with_own(output: ReadOutput, logs: Sequence[float]) -> ReadOutput:
    """The output of a read that wrote a text, with its probability per token if there are ``logs``."""
    if output.failure is not None or not logs:
        return output
    return replace(output, confidence=math.exp(math.fsum(logs) / len(logs)))
