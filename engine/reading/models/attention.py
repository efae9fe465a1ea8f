"""Attention of packed tokens on a CPU: many sequences behind each other in one row, without padding.

Everything but attention treats tokens one by one, so it needs no padding. Attention takes the sequences in turn, each
on its own tokens and the keys and values of its beginning, which other sequences may have computed. So bits depend on
the sequence alone.

Outputs do not depend on how the work is cut. In bf16 this is claimed only for a CPU with AVX512-BF16 and without AMX
(``machine.device.bf16_rows_are_steady``). There it holds to the bit: matrix products give the same rows for
any number of rows from two on, and attention as two products around a softmax gives the
same rows however queries are cut, up to some 900 tokens (both measured on oneDNN with AVX512-BF16; the
flash kernel of ``scaled_dot_product_attention`` measurably fails this). There it is also faster than that kernel
if keys are copied before they are transposed: the product itself copies transposed keys slowly.

Prompts go through that kernel in two cases. In fp32, behind many tokens, it is faster, and only the last bits depend on
the cut, not outputs. In bf16 with AMX (``protocol.ReaderSpec.fused_attention``) outputs depend on the cut in any case.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Self

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

from engine.reading.models.decoding import padded_length

ATTENTION = "erag_packed"
# Query rows that attend at once: bounds the scores in memory and skips later keys. Fewer or more
# make reads slower.
_ROWS = 64
# The flash kernel is faster in fp32 behind at least so many tokens: scores no longer fit the caches.
_FAR = 1024

# Additions to attention that are not supported here. Gemma 2's soft cap of scores is left out, as in
# transformers by default (``sdpa``).
_UNSUPPORTED = ("position_bias", "sink")
# Models with plain attention, a window or sinks at most, whose other parts treat tokens one by one.
FAMILIES = frozenset(
    {"gemma2", "gemma3_text", "gpt_oss", "llama", "mistral", "mixtral", "qwen2", "qwen2_moe"}
    | {"qwen3", "phi3", "granite", "olmo2", "smollm3"}
)


@dataclass(frozen=True)
class Span:
    """Tokens of a sequence within a forward pass.

    Attributes:
        at: their beginning among the packed tokens.
        tokens: their number.
        offset: the sequence's beginning in the cache.
        have: number of the sequence's earlier tokens in the cache.
        stem, stem_tokens: beginning and number of its first tokens if they are elsewhere, shared with other sequences.
        writing: whether it is the newest token of an answer under way. Such spans come last in a pass.
    """

    at: int
    tokens: int
    offset: int
    have: int
    stem: int = 0
    stem_tokens: int = 0
    writing: bool = False

    @property
    def last(self) -> int:
        """The place of its last token among the packed tokens."""
        return self.at + self.tokens - 1


@dataclass
class Cache:
    """Keys and values of many sequences in a row: per layer (2, groups, room, width)."""

    layers: list[torch.Tensor]

    @classmethod
    def empty(cls, room: int, *, layers: int, groups: int, width: int, dtype: torch.dtype) -> Self:
        """A cache of zeros with room for so many tokens."""
        shape = (2, groups, padded_length(room), width)
        return cls([torch.zeros(shape, dtype=dtype) for _ in range(layers)])

    def gather(self, moves: Sequence[tuple[int, int, int]], room: int, *, fresh: bool) -> None:
        """Move sequences, (from, to, tokens) each in order, towards the front, with room for so many tokens in all.

        Works layer by layer: if a new cache is needed or requested (``fresh``), only a single layer exists twice.
        """
        for layer, old in enumerate(self.layers):
            new = old
            if fresh or old.shape[2] < room:
                new = old.new_zeros((*old.shape[:2], padded_length(room), old.shape[3]))
            for there, here, tokens in moves:
                if new is not old or there != here:
                    new[:, :, here : here + tokens] = old[:, :, there : there + tokens].clone()
            self.layers[layer] = new


class KeysAreKept(Exception):  # noqa: N818 - nothing went wrong
    """Ends a layer early: its keys and values are in the cache, and its output is not needed."""


@dataclass
class PackedPass:
    """A forward pass over packed tokens and their layout; reaches attention through the model.

    Attributes:
        tokens: ids of the packed tokens.
        rows: the tokens whose logits are needed, by their places among the packed tokens.
        copies: shared beginnings to copy within the cache, (from, to, tokens) each; a source may be tokens of
            this pass.
        fused: whether prompts of any length go through the flash kernel.
        keeps: whether keys and values go to the cache; if not, they are there already.
        attends: whether the layer's output is needed.
    """

    cache: Cache
    spans: Sequence[Span]
    tokens: Sequence[int] = ()
    rows: Sequence[int] = ()
    copies: Sequence[tuple[int, int, int]] = ()
    fused: bool = False
    keeps: bool = True
    attends: bool = True
    _hiding: dict[tuple[int, int], torch.Tensor] = field(default_factory=dict, init=False)
    # Buffer for the scores of a block: otherwise the system allocates and clears pages per block.
    _scores: torch.Tensor = field(default_factory=lambda: torch.empty(0), init=False)

    def attend(
        self,
        layer: int,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        scale: float,
        sinks: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Keep keys and values in the cache, and attend, one sequence after the other.

        Shapes: query (heads, tokens, width), key and value (groups, tokens, width), sinks (heads,), the score of
        a further key without a value; the result is (tokens, heads, width). Heads that share a group's keys are
        further query rows of the group. A second row outside all spans repeats the first.

        Raises:
            KeysAreKept: the output is not needed.
        """
        keys, values = states = self.cache.layers[layer]
        own_rows = self.spans[-1].at + self.spans[-1].tokens
        if self.keeps:
            keys.index_copy_(1, self._places, key[:, :own_rows])
            values.index_copy_(1, self._places, value[:, :own_rows])
            for there, here, many in self.copies:
                states[:, :, here : here + many] = states[:, :, there : there + many]
        if not self.attends:
            raise KeysAreKept
        heads, tokens, width = query.shape
        groups = keys.shape[0]
        out = query.new_empty((tokens, heads, width))
        # The kernel does not support sinks: keys without a value.
        written = self._written if sinks is None else []
        for span in self.spans[: len(self.spans) - len(written)]:
            far = query.dtype == torch.float32 and span.have >= _FAR
            if sinks is None and not span.stem_tokens and (self.fused or far):
                own = slice(span.at, span.at + span.tokens)
                known = slice(span.offset, span.offset + span.have)
                new = query[:, own], key[:, own], value[:, own]
                out[own] = _flash(*new, keys[:, known], values[:, known], scale).transpose(0, 1)
                continue
            for first in range(0, span.tokens, _ROWS):
                rows = min(_ROWS, span.tokens - first)
                at, seen = span.at + first, span.have - span.stem_tokens + first + rows
                looked = padded_length(seen)
                near = states[:, :, span.offset : span.offset + looked]
                if stem := padded_length(span.stem_tokens):
                    near = torch.cat([states[:, :, span.stem : span.stem + stem], near], 2)
                folded = query[:, at : at + rows].reshape(groups, -1, width)
                near_keys = near[0].contiguous()
                size = folded[..., 0].numel() * near_keys.shape[1]
                if len(self._scores) < size:
                    self._scores = query.new_empty(size)
                scores = self._scores[:size].view(groups, -1, near_keys.shape[1])
                torch.bmm(folded * scale, near_keys.transpose(1, 2), out=scores)
                if stem:
                    scores[..., span.stem_tokens : stem] = float("-inf")
                own = scores.view(groups, -1, rows, stem + looked)
                hidden = self._hidden(rows, looked - seen, scores)
                own[..., -hidden.shape[1] :] += hidden
                if sinks is not None:
                    further = sinks.repeat_interleave(rows).view(groups, -1, 1)
                    scores = torch.cat([scores, further], -1)
                weights = torch.softmax(scores, -1, out=scores)[..., : stem + looked]
                answer = torch.matmul(weights, near[1])
                out[at : at + rows] = answer.reshape(heads, rows, width).transpose(0, 1)
        if written:
            last = slice(own_rows - len(written), own_rows)
            queries = query[:, last].transpose(0, 1).reshape(-1, 1, groups, heads // groups, width)
            answers = []
            for row, own_keys in zip(queries.unbind(), written, strict=True):
                near = states[:, None, :, own_keys]
                answers.append(scaled_dot_product_attention(row, near[0], near[1], scale=scale))
            out[last] = torch.cat(answers).view(-1, heads, width)
        out[own_rows:] = out[0]
        return out

    @property
    def narrow(self) -> PackedPass:
        """The packing of only the tokens whose logits are needed, for a layer whose keys and values are all kept."""
        rows = set(self.rows)
        spans = (s for s in self.spans if s.last in rows)
        ends = [replace(s, at=i, tokens=1, have=s.have + s.tokens - 1) for i, s in enumerate(spans)]
        return PackedPass(self.cache, ends, fused=self.fused, keeps=False)

    @cached_property
    def _written(self) -> list[slice]:
        """Slices of the cache that answers under way attend to. Their spans come last."""
        spans = [s for s in self.spans if s.writing]
        return [slice(s.offset, s.offset + s.have + 1) for s in spans]

    @cached_property
    def _places(self) -> torch.Tensor:
        """Cache positions of the packed tokens' keys and values: (tokens,)."""
        begins = [(s.offset + s.have - s.stem_tokens, s.tokens) for s in self.spans]
        return torch.cat([torch.arange(first, first + tokens) for first, tokens in begins])

    def _hidden(self, rows: int, beyond: int, like: torch.Tensor) -> torch.Tensor:
        """Mask of 0 or minus infinity that hides later tokens from earlier ones, and keys ``beyond`` the last from all.

        (rows, keys) for the last keys, a multiple of ``STEP``: sums over unaligned parts take several times as long.
        """
        if (rows, beyond) not in self._hiding:
            keys = padded_length(rows + beyond)
            hidden = like.new_full((rows, keys), float("-inf"))
            self._hiding[rows, beyond] = hidden.triu(1 + keys - rows - beyond)
        return self._hiding[rows, beyond]


def _flash(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    scale: float,
) -> torch.Tensor:
    """Causal attention of new tokens to each other and to all earlier tokens, by torch's flash kernel.

    Shapes: query (heads, tokens, width), key and value (groups, tokens, width), earlier keys and values
    (groups, have, width); the result has the query's shape. The kernel masks squares only, so it runs once
    per part. The sums of their exponentials weigh both parts, as in FlashAttention (Dao et al. 2022, section 3.1).
    """
    heads, groups = query.shape[0], key.shape[0]
    flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    new = (states.repeat_interleave(heads // groups, 0).unsqueeze(0) for states in (key, value))
    near, near_logs = flash(query.unsqueeze(0), *new, 0.0, True, scale=scale)
    if not keys.shape[1]:
        return near[0]
    folded = query.reshape(1, groups, -1, query.shape[-1])
    far, far_logs = flash(folded, keys.unsqueeze(0), values.unsqueeze(0), scale=scale)
    share = torch.sigmoid(near_logs.reshape(query.shape[:2]) - far_logs.reshape(query.shape[:2]))
    mixed = torch.lerp(far.reshape(query.shape).float(), near[0].float(), share.unsqueeze(-1))
    return mixed.to(query.dtype)


def attend(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    packing: PackedPass | None = None,
    **others: Any,
) -> tuple[torch.Tensor, None]:
    """Causal attention of packed sequences, each to its own tokens in the cache and before it.

    Shapes: query (1, heads, tokens, width), key and value (1, groups, tokens, width), and s_aux (heads,)
    if there are sinks; the result is (1, tokens, heads, width).

    Raises:
        ValueError: the model needs an unsupported kind of attention, or a text exceeds its window.
    """
    if unknown := [name for name in _UNSUPPORTED if others.get(name) is not None]:
        raise ValueError(f"packed attention has no {', '.join(unknown)}")
    if packing is None or attention_mask is not None:
        raise ValueError("packed attention runs on packed tokens only")
    window: int | None = others.get("sliding_window")
    if window and any(s.have + s.tokens > window for s in packing.spans):
        raise ValueError("packed attention runs on texts that fit the window only")
    layer: int = module.layer_idx
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    sinks: torch.Tensor | None = others.get("s_aux")
    return packing.attend(layer, query[0], key[0], value[0], scale, sinks).unsqueeze(0), None


AttentionInterface.register(ATTENTION, attend)  # no mask function, so no mask
