"""Attention of packed tokens on a CPU: many sequences behind each other in one row, without padding.

Everything but attention treats tokens one by one, so it needs no padding; attention takes the sequences in turn, each
on its own tokens and the keys and values of its beginning, which other sequences may have computed. So bits depend on
the sequence alone.

Outputs do not depend on how the work is cut. In bf16 this is claimed for a CPU with AVX512-BF16 and without AMX
only (``machine.device.bf16_rows_are_steady``). There it holds to the bit: matrix products give the same rows
however many there are, from two on, and attention written out as two products around a softmax gives the
same rows however queries are cut, up to some 900 tokens (both measured on oneDNN with AVX512-BF16, as is
that the flash kernel of ``scaled_dot_product_attention`` does not). There it is faster than that kernel,
too, where keys are copied before they are turned: the product itself copies turned ones slowly.

Prompts go through that kernel in fp32, behind many tokens, where it is faster and the last bits depend on the cut (outputs
do not), and in bf16 with AMX (``protocol.ReaderSpec.fused_attention``), where outputs depend on the cut in any case.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Self

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

ATTENTION = "erag_packed"
# Keys are taken in multiples of this number, those beyond a sequence's end hidden: the remainder of a
# product or sum takes another way through the libraries, and would round otherwise now and then.
# Sequences have room in a cache in these multiples, and what stands there is finite.
_KEYS = 32
# Query rows that attend at once: bounds the scores held, and leaves out keys that come later. Fewer or more
# make reads slower.
_ROWS = 64
# Tokens before a span from which on the flash kernel is the faster one in fp32: scores no longer fit the caches.
_FAR = 1024

# What some models add to attention, and is not done here. Gemma 2's soft cap of scores is left out, as transformers
# leaves it out by default (``sdpa``).
_UNSUPPORTED = ("position_bias", "sink")
# Models whose attention is known to be the plain one, with a window or sinks at most, and whose every other
# part treats tokens one by one.
FAMILIES = frozenset(
    [
        "gemma2",
        "gemma3_text",
        "gpt_oss",
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
        stem, kept: where its first tokens begin instead, which others may follow, too, and how many these are.
        writing: whether it is the one new token of an answer under way. Those of a pass stand behind the others.
    """

    at: int
    tokens: int
    offset: int
    have: int
    stem: int = 0
    kept: int = 0
    writing: bool = False


def round_up(tokens: int) -> int:
    """The room that a sequence of this many tokens takes in a cache."""
    return -(-tokens // _KEYS) * _KEYS


@dataclass
class Cache:
    """Keys and values of many sequences, behind each other: of each layer (groups, room, width)."""

    keys: list[torch.Tensor]
    values: list[torch.Tensor]

    @classmethod
    def empty(cls, room: int, *, layers: int, groups: int, width: int, dtype: torch.dtype) -> Self:
        """Room for so many tokens, all of them 0."""
        shape = (groups, round_up(room), width)
        keys, values = ([torch.zeros(shape, dtype=dtype) for _ in range(layers)] for _ in "kv")
        return cls(keys, values)

    def copy_from(self, source: Cache, there: int, here: int, tokens: int) -> None:
        """Take over what a sequence begins with, from its place in ``source``."""
        for mine, theirs in zip(
            (*self.keys, *self.values), (*source.keys, *source.values), strict=True
        ):
            mine[:, here : here + tokens] = theirs[:, there : there + tokens]

    def gather(self, moves: Sequence[tuple[int, int, int]], room: int, *, fresh: bool) -> None:
        """Move what sequences have, (from, to, tokens) each in order, towards the front, with room for so many tokens in all;
        layer by layer, so that only one of them is there twice where a new one is needed, or asked for (``fresh``).
        """
        for states in (self.keys, self.values):
            for layer, old in enumerate(states):
                new = old
                if fresh or old.shape[1] < room:
                    new = old.new_zeros((old.shape[0], round_up(room), old.shape[2]))
                for there, here, tokens in moves:
                    if new is not old or there != here:
                        new[:, here : here + tokens] = old[:, there : there + tokens].clone()
                states[layer] = new


class KeysAreKept(Exception):  # noqa: N818 - nothing went wrong
    """The keys and values of a layer are in the cache, and nothing else is wanted of it."""


@dataclass
class Packing:
    """A forward pass: which tokens are packed, and how; handed to attention through the model.

    Attributes:
        copies: what sequences begin with, from where others have it in the cache, or have it once this pass has kept it:
            (from, to, tokens) each.
        fused: whether prompts go through the flash kernel, however long they are.
        keeps: whether keys and values go to the cache; where they do not, they are there already.
        attends: whether anything else is wanted of the layer.
        ids, positions: of the packed tokens.
        last: the tokens whose logits are wanted.
        asked: how many of these count, from the first on.
    """

    cache: Cache
    spans: Sequence[Span]
    copies: Sequence[tuple[int, int, int]] = ()
    fused: bool = False
    keeps: bool = True
    attends: bool = True
    ids: torch.Tensor = field(default_factory=lambda: torch.empty(0))
    positions: torch.Tensor = field(default_factory=lambda: torch.empty(0))
    last: torch.Tensor = field(default_factory=lambda: torch.empty(0))
    asked: int = 0
    _hiding: dict[tuple[int, int], torch.Tensor] = field(default_factory=dict, init=False)
    # Room for the scores of one block: else the system takes and clears its pages for each.
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
        further query rows of it. A second row that no span has is the first again.

        Raises:
            KeysAreKept: nothing else is wanted.
        """
        keys, values = self.cache.keys[layer], self.cache.values[layer]
        own_rows = self.spans[-1].at + self.spans[-1].tokens
        if self.keeps:
            keys.index_copy_(1, self._places, key[:, :own_rows])
            values.index_copy_(1, self._places, value[:, :own_rows])
            for there, here, many in self.copies:
                for states in (keys, values):
                    states[:, here : here + many] = states[:, there : there + many]
        if not self.attends:
            raise KeysAreKept
        heads, tokens, width = query.shape
        groups = keys.shape[0]
        out = query.new_empty((tokens, heads, width))
        # A sink is a key without a value, which the kernel does not know.
        written = self._written if sinks is None else []
        for span in self.spans[: len(self.spans) - len(written)]:
            far = query.dtype == torch.float32 and span.have >= _FAR
            if sinks is None and not span.kept and (self.fused or far):
                own = slice(span.at, span.at + span.tokens)
                known = slice(span.offset, span.offset + span.have)
                new = query[:, own], key[:, own], value[:, own]
                out[own] = _flash(*new, keys[:, known], values[:, known], scale).transpose(0, 1)
                continue
            for first in range(0, span.tokens, _ROWS):
                rows = min(_ROWS, span.tokens - first)
                at, seen = span.at + first, span.have - span.kept + first + rows
                looked = round_up(seen)
                held = slice(span.offset, span.offset + looked)
                near, nearby = keys[:, held], values[:, held]
                if stem := round_up(span.kept):
                    before = slice(span.stem, span.stem + stem)
                    near = torch.cat([keys[:, before], near], 1)
                    nearby = torch.cat([values[:, before], nearby], 1)
                folded = query[:, at : at + rows].reshape(groups, -1, width)
                near = near.contiguous()
                size = folded[..., 0].numel() * near.shape[1]
                if len(self._scores) < size:
                    self._scores = query.new_empty(size)
                scores = self._scores[:size].view(groups, -1, near.shape[1])
                torch.bmm(folded * scale, near.transpose(1, 2), out=scores)
                if stem:
                    scores[..., span.kept : stem] = float("-inf")
                own = scores.view(groups, -1, rows, stem + looked)
                hidden = self._hidden(rows, looked - seen, scores)
                own[..., -hidden.shape[1] :] += hidden
                if sinks is not None:
                    further = sinks.repeat_interleave(rows).view(groups, -1, 1)
                    scores = torch.cat([scores, further], -1)
                weights = torch.softmax(scores, -1, out=scores)[..., : stem + looked]
                answer = torch.matmul(weights, nearby)
                out[at : at + rows] = answer.reshape(heads, rows, width).transpose(0, 1)
        if written:
            last = slice(own_rows - len(written), own_rows)
            queries = query[:, last].transpose(0, 1).reshape(-1, 1, groups, heads // groups, width)
            near, nearby = keys.unsqueeze(0), values.unsqueeze(0)
            answers = [
                scaled_dot_product_attention(one, near[:, :, held], nearby[:, :, held], scale=scale)
                for one, held in zip(queries.unbind(), written, strict=True)
            ]
            out[last] = torch.cat(answers).view(-1, heads, width)
        out[own_rows:] = out[0]
        return out

    @property
    def narrow(self) -> Packing:
        """How the tokens whose logits are wanted are packed alone, once all keys and values of a layer are kept."""
        wanted = dict.fromkeys(self.last.tolist())
        spans = (s for s in self.spans if s.at + s.tokens - 1 in wanted)
        ends = [
            replace(s, at=row, tokens=1, have=s.have + s.tokens - 1) for row, s in enumerate(spans)
        ]
        return Packing(self.cache, ends, fused=self.fused, keeps=False)

    @cached_property
    def _written(self) -> list[slice]:
        """The part of the cache that answers under way look back at. They stand last."""
        spans = [s for s in self.spans if s.writing]
        return [slice(s.offset, s.offset + s.have + 1) for s in spans]

    @cached_property
    def _places(self) -> torch.Tensor:
        """Where in the cache each packed token's keys and values go: (tokens,)."""
        begins = [(s.offset + s.have - s.kept, s.tokens) for s in self.spans]
        return torch.cat([torch.arange(first, first + tokens) for first, tokens in begins])

    def _hidden(self, rows: int, beyond: int, like: torch.Tensor) -> torch.Tensor:
        """What hides later tokens from earlier ones, and from all those ``beyond`` the last: 0 or minus infinity.

        (rows, keys), of the last keys, a multiple of ``_KEYS``: sums of parts that begin elsewhere take several times as long.
        """
        if (rows, beyond) not in self._hiding:
            keys = round_up(rows + beyond)
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
    """Causal attention of new tokens to each other, and to all before them, by torch's flash kernel.

    Shapes: query (heads, tokens, width), key and value (groups, tokens, width), keys and values of the tokens before
    (groups, have, width); the result is that of query. The kernel hides later tokens of a square only, so that it is called
    for each part, and both are weighed by the sums of their exponentials, as in FlashAttention (Dao et al. 2022, section 3.1).
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


def pack(
    ids: Sequence[int],
    spans: Sequence[Span],
    cache: Cache,
    *,
    asked: Sequence[Span] | None = None,
    copies: Sequence[tuple[int, int, int]] = (),
    fused: bool = False,
) -> Packing:
    """A pass of these tokens, after which the logits of the last of each span that is ``asked`` are wanted; of all by default."""
    # Products with a single row take another way through the library, and round otherwise. Attention takes it once.
    double = 2 if len(ids) == 1 else 1
    asked = spans if asked is None else asked
    last = [s.at + s.tokens - 1 for s in asked]
    return Packing(
        cache,
        spans,
        copies,
        fused,
        ids=torch.tensor([*ids] * double),
        positions=torch.cat([torch.arange(s.have, s.have + s.tokens) for s in spans]).repeat(
            double
        ),
        last=torch.tensor(last * 2 if len(last) == 1 else last, dtype=torch.long),
        asked=len(asked),
    )


def attend(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    packing: Packing | None = None,
    **others: Any,
) -> tuple[torch.Tensor, None]:
    """Causal attention of packed sequences, each to its own tokens in the cache and before it.

    Shapes: query (1, heads, tokens, width), key and value (1, groups, tokens, width), and s_aux (heads,),
    where there are sinks; the result is (1, tokens, heads, width).

    Raises:
        ValueError: the model asks for a kind of attention that this is not, or its window hides something.
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


AttentionInterface.register(ATTENTION, attend)  # without a mask function: no mask is made
