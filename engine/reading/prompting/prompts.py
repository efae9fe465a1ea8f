"""Make prompts: turn a query and its passages into the text that a reader is given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Literal

from engine.messages.errors import InputError
from engine.reading.prompting.controls import NONE, Controls
from engine.reading.prompting.template import (
    ABSTAIN,
    JUDGE,
    NUMBER,
    PASSAGES,
    QUERY,
    QUESTION,
    TEXT,
    TITLE,
    Purpose,
    Template,
    Text,
    read_template,
)
from engine.reading.protocol import Augmentation

Architecture = Literal["causal", "encoder-decoder"]

# Stands for data in a prompt whose own control strings are counted; no tokenizer knows it.
_NO_DATA = "\ue000"

# Many lists hold a passage, so the last are remembered as prompts show them, of at most so many letters: some 30 MB.
_REMEMBERED = 2_000

_TEXTS = ("body", "passage", "untitled")

DEFAULT_STYLE: dict[Architecture, str] = {"causal": "completion", "encoder-decoder": "t5"}


@dataclass(frozen=True)
class Prompt:
    """A template as one kind of reader is given it.

    Attributes:
        best_last: whether passages stand in reverse order, the best one next to the question.
        fused: whether each passage makes an input of its own (Fusion-in-Decoder).
        shares_query: whether what stands before the passages is a piece of its own, for all reads
            of a query to share (decoder-only readers).
        head, tail: what stands around the user's message in the model's chat template.
        controls: strings that the reader's tokenizer takes for control tokens, which data must not hold.
    """

    template: Template
    best_last: bool
    fused: bool
    shares_query: bool
    max_new_tokens: int
    head: str = ""
    tail: str = ""
    controls: Controls = NONE

    def described(self) -> dict[str, Any]:
        """What prompts are made of, as JSON can hold it; ``of`` makes them again, but for control strings in data."""
        names = ("best_last", "fused", "shares_query", "max_new_tokens", "head", "tail")
        texts = {name: asdict(getattr(self.template, name)) for name in _TEXTS}
        return texts | {name: getattr(self, name) for name in names}

    @classmethod
    def of(cls, described: Mapping[str, Any]) -> Prompt:
        """The prompts of a description, which may say more."""
        body, passage, untitled = (Text(*map(tuple, described[name].values())) for name in _TEXTS)
        names = [one.name for one in fields(cls) if one.name in described]
        return cls(
            Template("", Path(), "", body, passage, untitled),
            **{name: described[name] for name in names},
        )

    @property
    def prefix(self) -> str:
        """What every prompt begins with, examples included."""
        return self.head + self.template.body.literals[0]

    @property
    def digest(self) -> str:
        """SHA-256 of the template's file."""
        return self.template.digest

    @property
    def stop(self) -> tuple[str, ...]:
        """Generation ends before the first of these strings."""
        return self.template.stop

    @property
    def tail_marker(self) -> str:
        """What the part begins with that must not be cut from a prompt that is too long.

        That is what follows the passages. It begins with what separates passages (a line's end), so
        that it is not found within one of them.
        """
        _, after = self.template.body.around(PASSAGES)
        literal = after.literals[0] + ("" if after.fields else self.tail)
        ends = [text.literals[-1] for text in (self.template.passage, self.template.untitled)]
        spaces = {end[len(end.rstrip()) :] for end in ends}
        return (spaces.pop() if len(spaces) == 1 else "") + literal if literal else ""

    def target(self, text: str) -> str:
        """A text as the reader would write it behind the prompt: a decoder-only model that continues one begins with
        a blank; behind a chat template's tail, and in a decoder of its own, nothing stands before it.
        """
        return " " * (self.shares_query and not self.template.chat) + self.controls.as_text(
            text.strip()
        )

    def render(self, query: str, passages: Sequence[tuple[str, str]]) -> list[str]:
        """The inputs of one read: the pieces of one prompt, or one prompt per passage (fused).

        A prompt is one string; or two, where the query precedes the passages and ``shares_query``:
        what stands before the first passage, and the rest. Control tokens come from the template and
        from the chat template alone: such strings in data are broken (``controls``).

        Args:
            query: the question, claim or conversation.
            passages: (title, text) in rank order, best first; none is a read without passages.
        """
        if self.fused and len(passages) > 1:
            return [text for passage in passages for text in self.render(query, [passage])]
        ordered = reversed(passages) if self.best_last else passages
        short = all(len(text) <= _REMEMBERED for passage in passages for text in passage)
        clean = partial(_clean if short else _clean.__wrapped__, self.controls)
        asked = self.controls.as_text(query.strip())
        data = [(clean(title), clean(text)) for title, text in ordered]
        pieces = self._filled(asked, data)
        if (count := self.controls.count("".join(pieces))) and count > self._own(asked, data):
            # The end of one piece of data and what follows it make a control string together.
            pieces = self._filled(_apart(asked), [(_apart(one), _apart(two)) for one, two in data])
        return pieces

    def _filled(self, query: str, passages: Sequence[tuple[str, str]]) -> list[str]:
        """The pieces of one prompt, from data that is clean, in the order of the prompt."""
        shown = "".join(self._passage(i, *passage) for i, passage in enumerate(passages, 1))
        before, after = self.template.body.around(PASSAGES)
        values = {QUERY: query}
        start = before.fill(values)
        text = start + shown + after.fill(values)
        # Where nothing stands before or after a field, what fills it may begin or end with spaces.
        cut = max(0, len(start) - (len(text) - len(text.lstrip())))
        text = text.strip()
        pieces = [self.head + text[:cut], text[cut:] + self.tail]
        shared = self.shares_query and QUERY in before.fields and all(pieces)
        return pieces if shared else ["".join(pieces)]

    def _own(self, query: str, passages: Sequence[tuple[str, str]]) -> int:
        """How many control strings the prompt has of its own, with any data in these places."""
        other = [(bool(title) * _NO_DATA, bool(text) * _NO_DATA) for title, text in passages]
        return self.controls.count("".join(self._filled(bool(query) * _NO_DATA, other)))

    def _passage(self, number: int, title: str, text: str) -> str:
        template = self.template.passage if title else self.template.untitled
        return template.fill({TITLE: title, TEXT: text, NUMBER: str(number)})


@lru_cache(maxsize=8_192)
def _clean(controls: Controls, data: str) -> str:
    """A title or text without control strings, in one line: a break inside a passage would look like the end of it."""
    return controls.as_text(" ".join(data.split()))


def _apart(data: str) -> str:
    return f" {data} " if data else data


def make_prompt(
    template: Template,
    task: Purpose,
    architecture: Architecture,
    augmentation: Augmentation,
    *,
    head: str = "",
    tail: str = "",
    controls: Controls = NONE,
) -> Prompt:
    """A template as a kind of reader is given it; what it leaves open is filled in.

    Without ``order``, the passages that a prompt too long for the reader loses first are the worst:
    decoder-only readers get the best one last, encoder-decoder readers first. Arguments are as in ``Prompt``.

    Raises:
        InputError: the end of a long prompt could not be told from its passages.
    """
    causal = architecture == "causal"
    if task == QUESTION:  # which is scored, and no part of the prompt
        before, after = template.body.around(PASSAGES)
        literals = (*before.literals, after.literals[0].rstrip())
        template = replace(template, body=Text(literals, (*before.fields, PASSAGES)))
    most = template.max_new_tokens
    if most is None:
        # A choice is made without decoding; other prompts do as the task's own.
        chooses = template.choices or task in (JUDGE, ABSTAIN, QUESTION)
        usual = None if chooses else read_template(DEFAULT_STYLE[architecture], task)
        most = (usual and usual.max_new_tokens) or 1
    prompt = Prompt(
        template=template,
        best_last=causal if template.order is None else template.order == "best-last",
        fused=augmentation == "fid",
        shares_query=causal,
        max_new_tokens=most,
        head=head,
        tail=tail,
        controls=controls,
    )
    _, after = template.body.around(PASSAGES)
    if causal and after.fields and not prompt.tail_marker.strip():
        raise InputError(
            "only blanks between {passages} and {query}: in a prompt that is too long, where the "
            "question begins would not be known",
            "write something there, as in Question: {query}",
            path=template.path,
        )
    return prompt
