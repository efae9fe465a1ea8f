"""Attention of packed tokens: many sequences behind each other in one row, without padding.

Everything but attention treats tokens one by one, so it needs no padding; attention runs on each
sequence's own tokens, with the keys and values of its beginning, which other sequences may have
computed. On a CPU it takes them in turn (``in_turn``), on a GPU in rows (``in_rows``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from transformers import AttentionInterface

ATTENTION = "erag_packed"
# Keys are taken in multiples of this number, those beyond a sequence's end hidden: the remainder of a
# product or sum takes another way through the libraries, and would round otherwise now and then.
# Sequences have room in a cache in these multiples, and what stands there is finite.
KEYS = 32

# What some models add to attention, and is not done here.
_UNSUPPORTED = ("softcap", "s_aux", "position_bias", "sink", "sliding_window")
# Models whose attention is known to be the plain one, and whose every other part treats tokens one
# by one.
FAMILIES = frozenset(
    [
        "llama",
        "mistral",
        "mixtral",
        "qwen2",
        "qwen2_moe",
        "qwen3",
        "phi3",
        "granite",
        "olmo2",
        "smollm3",
    ]
)


@dataclass(frozen=True)
class Span:
    """Tokens of one sequence within a forward pass.

    Attributes:
        at: where they begin among the packed tokens.
        tokens: how many they are.
        offset: where the sequence begins in the cache.
        have: how many of its tokens the cache holds before these.
    """

    at: int
    tokens: int
    offset: int
    have: int


@dataclass
class Cache:
    """Keys and values of many sequences, behind each other: a tensor per layer, shaped as the layout has it."""

    keys: list[torch.Tensor]
    values: list[torch.Tensor]


class Beginnings(NamedTuple):
    """Beginnings of sequences, computed in one cache and wanted in another.

    Attributes:
        source: where they are.
        moves: (place in the source, place in the target, tokens) of each.
    """

    source: Cache
    moves: Sequence[tuple[int, int, int]]


class Packing(Protocol):
    """How the tokens of a forward pass are packed; handed to attention through the model."""

    def attend(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float
    ) -> torch.Tensor:
        """Keep keys and values in the cache, and attend.

        Shapes: query (heads, tokens, width), key and value (groups, tokens, width); the result is
        (tokens, heads, width). Heads that share a group's keys are further query rows of it.
        """
        ...


class Pass(NamedTuple):
    """What a forward pass is given: on the device, but for ``packing``.

    Attributes:
        ids, positions: of the packed tokens.
        last: the tokens whose logits are wanted.
        asked: how many of these count, from the first on.
    """

    ids: torch.Tensor
    positions: torch.Tensor
    last: torch.Tensor
    asked: int
    packing: Packing


class Writing(Protocol):
    """Reads whose answers are being written, a token of each in a step.

    Attributes:
        reads: which read each row of a step is. Some may have ended.
    """

    @property
    def reads(self) -> Sequence[int]: ...

    def keep(self, rows: Sequence[int]) -> None:
        """Go on with these rows, in order. Others may stay for a while."""
        ...

    def step(self, ids: Sequence[int], have: Sequence[int]) -> Pass:
        """A pass of one token of each read, of which the cache holds ``have`` tokens."""
        ...


class Layout(Protocol):
    """How sequences stand in a cache, and how their tokens are packed."""

    def room(self, tokens: int) -> int:
        """The room that a sequence of this many tokens takes in a cache."""
        ...

    def new_cache(self, room: int) -> Cache: ...

    def prompts(
        self,
        ids: Sequence[int],
        spans: Sequence[Span],
        cache: Cache,
        begin: Sequence[Beginnings] = (),
    ) -> Pass:
        """A pass of these tokens, after which the logits of each span's last are wanted.

        What is to ``begin`` sequences is copied into the cache before.
        """
        ...

    def writing(
        self, cache: Cache, reads: Sequence[int], offsets: Sequence[int], rooms: Sequence[int]
    ) -> Writing:
        """The beginning of writing, of reads that stand in the cache in order of their room."""
        ...


def attend(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    packing: Packing | None = None,
    **others: object,
) -> tuple[torch.Tensor, None]:
    """Causal attention of packed sequences, each to its own tokens in the cache and before it.

    Shapes: query (1, heads, tokens, width), key and value (1, groups, tokens, width); the result is
    (1, tokens, heads, width).

    Raises:
        ValueError: the model asks for a kind of attention that this is not.
    """
    if unknown := [name for name in _UNSUPPORTED if others.get(name) is not None]:
        raise ValueError(f"packed attention has no {', '.join(unknown)}")
    if packing is None or attention_mask is not None:
        raise ValueError("packed attention runs on packed tokens only")
    layer: int = module.layer_idx
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    return packing.attend(layer, query[0], key[0], value[0], scale).unsqueeze(0), None


AttentionInterface.register(ATTENTION, attend)  # without a mask function: no mask is made
