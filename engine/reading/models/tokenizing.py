"""Turn inputs of readers into tokens, alike for reading and training, without torch.

Shared beginnings of sequences become segments, so that they are computed once. Prompts longer than a decoder-only
reader's input lose passages, never the question. A scored text becomes tokens behind its prompt.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from engine.reading.protocol import ReaderSpec, ReadOutput

# Below this many tokens a separate segment costs more in bookkeeping than it saves.
LEAST_SHARED = 8


@dataclass(frozen=True)
class Segment:
    """Tokens of a sequence, or several, from ``start`` to ``end`` (exclusive), behind the tokens of ``parent``.

    Attributes:
        parent: index of the segment that ends at ``start``; -1 if there is none.
        sample: a sequence that has these tokens.
        whole: whether this is the rest of ``sample``, so that its answer follows.
    """

    parent: int
    start: int
    end: int
    sample: int
    whole: bool


def common_length(first: Sequence[int], second: Sequence[int]) -> int:
    """Number of tokens in the common beginning of two sequences."""
    pairs = enumerate(zip(first, second, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(first), len(second)))


def segments(
    sequences: Sequence[Sequence[int]], computed: Sequence[int], least: int = LEAST_SHARED
) -> list[Segment]:
    """Cut sequences into segments, parents before their children, so that a shared beginning exists once.

    Every sequence ends in a segment of its own (``whole``), at least one token long, since its answer follows from that.

    Args:
        sequences: token lists, none empty.
        computed: per sequence, how many of its first tokens need not be computed; less than its length.
    """
    segments: list[Segment] = []
    order = sorted(range(len(sequences)), key=lambda i: (computed[i], list(sequences[i])))

    def shared(i: int, j: int) -> int:
        length = common_length(sequences[i], sequences[j])
        # Last tokens are never shared.
        return min(length, len(sequences[i]) - 1, len(sequences[j]) - 1)

    def split(members: list[int], depth: int, parent: int) -> None:
        if len(members) == 1:
            (member,) = members
            segments.append(Segment(parent, depth, len(sequences[member]), member, True))
            return
        lengths = [shared(a, b) for a, b in itertools.pairwise(members)]
        together = min(lengths)
        if together - depth >= least:
            segments.append(Segment(parent, depth, together, members[0], False))
            parent, depth = len(segments) - 1, together
        cuts = [i + 1 for i, length in enumerate(lengths) if length - depth < least]
        for first, last in zip([0, *cuts], [*cuts, len(members)], strict=True):
            split(members[first:last], depth, parent)

    for start, members in itertools.groupby(order, key=lambda i: computed[i]):
        split(list(members), start, -1)
    return segments


# Training length of T5, whose config.json names no largest position.
_USUAL_LIMIT = 512


@dataclass(frozen=True)
class Input:
    """One tokenized encoder input."""

    tokens: tuple[int, ...]
    truncated: bool


def longest_input(spec: ReaderSpec, config: Any) -> int:
    """Tokens of the longest input: as specified, else the number of positions in the model's configuration."""
    # T5 has no largest position; other models state it.
    positions = getattr(config, "max_position_embeddings", 0)
    return spec.max_input_tokens or int(positions or _USUAL_LIMIT)


def tokenize(
    tokenizer: Any, texts: Sequence[str], *, limit: int, special_tokens: bool
) -> list[Input]:
    """Encoder inputs of texts, cut to ``limit`` tokens: the question is first, and a token that ends inputs stays."""
    if not texts:
        return []
    encoded = tokenizer(
        list(texts), return_attention_mask=False, add_special_tokens=special_tokens
    )["input_ids"]
    end = tokenizer.eos_token_id
    items: list[Input] = []
    for tokens in encoded:
        is_cut = len(tokens) > limit
        ended = [*tokens[: limit - 1], end] if is_cut and tokens[-1] == end else tokens
        items.append(Input(tuple(ended[:limit]), is_cut))
    return items


DOES_NOT_FIT = "the prompt exceeds the reader's longest input even without passages"


def fit(
    tokens: list[int],
    text: str,
    *,
    head: Sequence[int],
    limit: int,
    tail_marker: str,
    encode: Callable[[str], Sequence[int]],
) -> list[int]:
    """Cut a prompt to ``limit`` tokens; to no tokens if not even the question fits.

    The beginning (the instruction and examples) stays, and so does the text from the last ``tail_marker`` on (the question).
    Passages between are cut from the first on, since the worst come first.

    Args:
        head: tokens of a common beginning of prompts; the prompt keeps the part that it shares.
        tail_marker: as in ``ReaderSpec``; if the text lacks it, at least one token is kept.
    """
    excess = len(tokens) - limit
    if excess <= 0:
        return tokens
    # Tokens may merge across the end of the head's text, so tokens decide, not text.
    shared = common_length(head, tokens)
    at = text.rfind(tail_marker) if tail_marker else -1
    tail = len(encode(text[at:])) if at >= 0 else 1
    rest = tokens[shared + excess :]
    return [*tokens[:shared], *rest] if len(rest) >= tail else []


_UNSCORED = "what is scored has no tokens, or does not fit behind the prompt"


@dataclass(frozen=True)
class PromptRead:
    """A read of a decoder-only model.

    Attributes:
        tokens: the prompt's tokens, after any cut; none if not even the question fits.
        head: how many of its first tokens other prompts begin with, too.
        target: tokens to score behind it; empty if an answer is written.
        scored: the text of ``target``; None if an answer is written.
        whole: number of the prompt's tokens before any cut.
    """

    tokens: list[int]
    head: int = 0
    target: Sequence[int] = ()
    scored: str | None = None
    whole: int = 0

    @property
    def length(self) -> int:
        """Number of the prompt's tokens; before any cut if it does not fit."""
        return len(self.tokens) or self.whole

    @property
    def truncated(self) -> bool:
        """Whether the prompt was cut, or does not fit."""
        return len(self.tokens) < self.whole

    def room(self, most: int) -> int:
        """Number of tokens of the prompt and its continuation: the target's tokens, or up to ``most`` written ones."""
        return len(self.tokens) + (len(self.target) or most)

    def refused(self, most: int) -> ReadOutput | None:
        """The failed read if the prompt does not fit, or its target is empty or exceeds ``most`` tokens with it; else None."""
        if self.truncated and not self.tokens:
            return ReadOutput.failed(DOES_NOT_FIT, prompt_tokens=self.length, truncated=True)
        if self.scored is not None and not 0 < len(self.target) <= most - self.length:
            return self.failed(_UNSCORED)
        return None

    def failed(self, reason: str) -> ReadOutput:
        return ReadOutput.failed(reason, prompt_tokens=self.length)


class PromptReader:
    """Base of readers with a single prompt per read: inputs become at most ``limit`` tokens (0 for no limit)."""

    def __init__(self, spec: ReaderSpec, tokenizer: Any, limit: int) -> None:
        self._spec = spec
        self._tokenizer = tokenizer
        self._limit = limit
        encoded = self._encode([spec.shared_prefix])
        self._begin = encoded[""]
        self._head = encoded[spec.shared_prefix] if spec.shared_prefix else []

    def _reads(self, inputs: Sequence[Sequence[str]]) -> list[PromptRead]:
        inputs, targets = parted(inputs, self._spec)
        texts = ["".join(pieces) for pieces in inputs]
        beginnings = ["".join(pieces[:-1]) for pieces in inputs]
        encoded = self._encode([*texts, *beginnings])  # several targets may follow one prompt
        reads: list[PromptRead] = []
        for text, beginning, target in zip(texts, beginnings, targets, strict=True):
            whole = encoded[text]
            head = encoded[beginning] if beginning else self._head
            tokens = fit(
                whole,
                text,
                head=head or self._begin,
                limit=self._limit or len(whole),
                tail_marker=self._spec.tail_marker,
                encode=partial(self._tokenizer.encode, add_special_tokens=False),
            )
            # Tokens may merge across the end of a head's text, so tokens decide, not text.
            shared = common_length(head, tokens)
            scored = () if target is None else target_tokens(self._tokenizer, text, target)
            reads.append(PromptRead(tokens, shared, scored, target, len(whole)))
        return reads

    def _encode(self, texts: Sequence[str]) -> dict[str, list[int]]:
        """Tokens of texts, and of the empty text."""
        unique, special = list({"", *texts}), self._spec.special_tokens
        encoded = self._tokenizer(unique, return_attention_mask=False, add_special_tokens=special)
        return dict(zip(unique, encoded["input_ids"], strict=True))


def parted(
    inputs: Sequence[Sequence[str]], spec: ReaderSpec
) -> tuple[list[Sequence[str]], list[str] | list[None]]:
    """Split inputs of reads into prompts and targets; targets are None if the reader scores none."""
    if spec.scores != "target":
        return list(inputs), [None] * len(inputs)
    return [pieces[:-1] for pieces in inputs], [pieces[-1] for pieces in inputs]


def target_tokens(tokenizer: Any, prompt: str, target: str) -> list[int]:
    """Tokens of a target after a prompt: the tokens behind the prompt's last word in a joint encoding.

    The target is encoded alone if a token crosses the prompt's end, which no reader would write.
    """
    word = re.findall(r"\S*\s*\Z", prompt)[0]
    encode = partial(tokenizer.encode, add_special_tokens=False)
    before: list[int] = encode(word)
    both: list[int] = encode(word + target)
    return both[len(before) :] if both[: len(before)] == before else encode(target)
