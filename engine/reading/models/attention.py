"""Attention of packed tokens: many sequences behind each other in one row, without padding.

Everything but attention treats tokens one by one, so it needs no padding; attention runs on each
sequence's own slice, with the keys and values of its beginning, which other sequences may have
computed.

Outputs do not depend on how the work is cut. In bf16 this is claimed for a CPU with bf16 arithmetic only
(``machine.device.has_bf16_arithmetic``). There it holds to the bit: matrix products give the same rows
however many there are, from two on, and attention written out as two products around a softmax gives the
same rows however queries are cut, up to some 900 tokens (both measured on oneDNN with AVX512-BF16, as is
that the flash kernel of ``scaled_dot_product_attention`` does not). There it is faster than that kernel,
too.

On a GPU a call for every sequence would wait for launches, so attention there pads to the longest
sequence of the batch; this runs and is tested on a CPU, and has not run on a GPU yet.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

ATTENTION = "erag_packed"
# Query rows that attend at once: bounds the scores held, and leaves out keys that come later. Reads take
# 6 to 9% less time than with 32, 96 or 256 (SmolLM2, one core, 148 tokens a read).
_ROWS = 64
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


def round_up(tokens: int) -> int:
    """The room that a sequence of this many tokens takes in a cache."""
    return -(-tokens // KEYS) * KEYS


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
    """Keys and values of many sequences, behind each other: per layer (groups, room, width)."""

    keys: list[torch.Tensor]
    values: list[torch.Tensor]

    def copy(self, other: Cache, source: int, target: int, tokens: int) -> None:
        """Copy the beginning of a sequence in another cache, or this, to where one begins here."""
        for mine, theirs in zip(
            (*self.keys, *self.values), (*other.keys, *other.values), strict=True
        ):
            mine[:, target : target + tokens] = theirs[:, source : source + tokens]


@dataclass
class Packing:
    """How the tokens of a forward pass are packed; handed to attention through the model."""

    cache: Cache
    spans: Sequence[Span]
    padded: bool
    device: torch.device
    # One new token per sequence, for which the flash kernel is the faster one.
    writing: bool = False
    _hidden: dict[tuple[int, int], torch.Tensor] = field(default_factory=dict)

    @cached_property
    def places(self) -> torch.Tensor:
        """Where in the cache each packed token's keys and values go: (tokens,)."""
        parts = [torch.arange(s.offset + s.have, s.offset + s.have + s.tokens) for s in self.spans]
        return torch.cat(parts).to(self.device)

    @cached_property
    def padding(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Packed positions of the queries (rows, longest), cache positions of the keys (rows, most),
        and which keys a query may see (rows, 1, longest, most). What pads repeats the last token.
        """
        longest = max(s.tokens for s in self.spans)
        most = max(s.have + s.tokens for s in self.spans)
        steps = torch.arange(longest, device=self.device)
        seen = torch.arange(most, device=self.device)
        queries = torch.stack([s.at + steps.clamp(max=s.tokens - 1) for s in self.spans])
        keys = torch.stack([s.offset + seen.clamp(max=s.have + s.tokens - 1) for s in self.spans])
        last = torch.stack([s.have + steps.clamp(max=s.tokens - 1) for s in self.spans])
        return queries, keys, seen[None, None, None, :] <= last[:, None, :, None]

    def hidden(self, rows: int, beyond: int, like: torch.Tensor) -> torch.Tensor:
        """What hides later tokens from earlier ones, and from all those ``beyond`` the last.

        (rows, rows + beyond), 0 or minus infinity.
        """
        if (rows, beyond) not in self._hidden:
            hidden = like.new_full((rows, rows + beyond), float("-inf"))
            self._hidden[rows, beyond] = hidden.triu(1)
        return self._hidden[rows, beyond]


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
    (1, tokens, heads, width). Heads that share a group's keys are further query rows of it.

    Raises:
        ValueError: the model asks for a kind of attention that this is not.
    """
    if unknown := [name for name in _UNSUPPORTED if others.get(name) is not None]:
        raise ValueError(f"packed attention has no {', '.join(unknown)}")
    if packing is None or attention_mask is not None:
        raise ValueError("packed attention runs on packed tokens only")
    layer: int = module.layer_idx
    keys, values = packing.cache.keys[layer], packing.cache.values[layer]
    keys.index_copy_(1, packing.places, key[0])
    values.index_copy_(1, packing.places, value[0])
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    through = _attend_padded if packing.padded else _attend_each
    return through(query[0], keys, values, packing, scale).unsqueeze(0), None


def _attend_each(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, packing: Packing, scale: float
) -> torch.Tensor:
    heads, tokens, width = query.shape
    groups = keys.shape[0]
    out = query.new_empty((tokens, heads, width))
    for span in packing.spans:
        for first in range(0, span.tokens, _ROWS):
            rows = min(_ROWS, span.tokens - first)
            at, seen = span.at + first, span.have + first + rows
            looked = seen if packing.writing else round_up(seen)
            held = slice(span.offset, span.offset + looked)
            folded = query[:, at : at + rows].reshape(groups, -1, width)
            if packing.writing:
                answer = scaled_dot_product_attention(
                    folded.unsqueeze(0),
                    keys[:, held].unsqueeze(0),
                    values[:, held].unsqueeze(0),
                    scale=scale,
                )
            else:
                scores = torch.matmul(folded * scale, keys[:, held].transpose(1, 2))
                own = scores.view(groups, -1, rows, looked)[..., seen - rows :]
                own += packing.hidden(rows, looked - seen, scores)
                answer = torch.matmul(torch.softmax(scores, -1), values[:, held])
            out[at : at + rows] = answer.reshape(heads, rows, width).transpose(0, 1)
    return out


def _attend_padded(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, packing: Packing, scale: float
) -> torch.Tensor:
    heads, tokens, width = query.shape
    places, seen, mask = packing.padding
    per_group = heads // keys.shape[0]
    answer = scaled_dot_product_attention(
        query[:, places].transpose(0, 1),
        keys[:, seen].transpose(0, 1).repeat_interleave(per_group, 1),
        values[:, seen].transpose(0, 1).repeat_interleave(per_group, 1),
        attn_mask=mask,
        scale=scale,
    )
    out = query.new_empty((tokens, heads, width))
    # Padding repeats a sequence's last query, and so its answer.
    out[places.flatten()] = answer.permute(0, 2, 1, 3).reshape(-1, heads, width)
    return out


AttentionInterface.register(ATTENTION, attend)  # without a mask function: no mask is made
