"""Packed sequences in turn, as a CPU does it: no padding, and bits that depend on the sequence alone.

Outputs do not depend on how the work is cut. In bf16 this is claimed for a CPU with AVX512-BF16 and without AMX
only (``machine.device.bf16_rows_are_steady``). There it holds to the bit: matrix products give the same rows
however many there are, from two on, and attention written out as two products around a softmax gives the
same rows however queries are cut, up to some 900 tokens (both measured on oneDNN with AVX512-BF16, as is
that the flash kernel of ``scaled_dot_product_attention`` does not). There it is faster than that kernel,
too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch.nn.functional import scaled_dot_product_attention

from engine.reading.models.attention import KEYS, Beginnings, Cache, Pass, Span

# Query rows that attend at once: bounds the scores held, and leaves out keys that come later. Reads take
# 6 to 9% less time than with 32, 96 or 256 (SmolLM2, one core, 148 tokens a read).
_ROWS = 64


def round_up(tokens: int) -> int:
    """The room that a sequence of this many tokens takes in a cache."""
    return -(-tokens // KEYS) * KEYS


@dataclass
class Turns:
    """Tokens of several sequences in a forward pass, which attend one sequence after the other."""

    cache: Cache
    spans: Sequence[Span]
    # One new token per sequence, for which the flash kernel is the faster one.
    writing: bool = False
    _hiding: dict[tuple[int, int], torch.Tensor] = field(default_factory=dict)

    def attend(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float
    ) -> torch.Tensor:
        """See ``attention.Packing``; the cache has (groups, room, width) of each layer."""
        keys, values = self.cache.keys[layer], self.cache.values[layer]
        keys.index_copy_(1, self._places, key)
        values.index_copy_(1, self._places, value)
        heads, tokens, width = query.shape
        groups = keys.shape[0]
        out = query.new_empty((tokens, heads, width))
        for span in self.spans:
            for first in range(0, span.tokens, _ROWS):
                rows = min(_ROWS, span.tokens - first)
                at, seen = span.at + first, span.have + first + rows
                looked = seen if self.writing else round_up(seen)
                held = slice(span.offset, span.offset + looked)
                folded = query[:, at : at + rows].reshape(groups, -1, width)
                if self.writing:
                    answer = scaled_dot_product_attention(
                        folded.unsqueeze(0),
                        keys[:, held].unsqueeze(0),
                        values[:, held].unsqueeze(0),
                        scale=scale,
                    )
                else:
                    scores = torch.matmul(folded * scale, keys[:, held].transpose(1, 2))
                    own = scores.view(groups, -1, rows, looked)[..., seen - rows :]
                    own += self._hidden(rows, looked - seen, scores)
                    answer = torch.matmul(torch.softmax(scores, -1), values[:, held])
                out[at : at + rows] = answer.reshape(heads, rows, width).transpose(0, 1)
        return out

    @cached_property
    def _places(self) -> torch.Tensor:
        """Where in the cache each packed token's keys and values go: (tokens,)."""
        return torch.cat(
            [torch.arange(s.offset + s.have, s.offset + s.have + s.tokens) for s in self.spans]
        )

    def _hidden(self, rows: int, beyond: int, like: torch.Tensor) -> torch.Tensor:
        """What hides later tokens from earlier ones, and from all those ``beyond`` the last.

        (rows, rows + beyond), 0 or minus infinity.
        """
        if (rows, beyond) not in self._hiding:
            hidden = like.new_full((rows, rows + beyond), float("-inf"))
            self._hiding[rows, beyond] = hidden.triu(1)
        return self._hiding[rows, beyond]


class InTurn:
    """The layout of a CPU; see ``attention.Layout``."""

    def __init__(self, *, layers: int, groups: int, width: int, dtype: torch.dtype) -> None:
        self._layers = layers
        self._groups, self._width = groups, width
        self._dtype = dtype

    def room(self, tokens: int) -> int:
        return round_up(tokens)

    def new_cache(self, room: int) -> Cache:
        shape = (self._groups, round_up(room), self._width)

        def tables() -> list[torch.Tensor]:
            return [torch.zeros(shape, dtype=self._dtype) for _ in range(self._layers)]

        return Cache(tables(), tables())

    def prompts(
        self,
        ids: Sequence[int],
        spans: Sequence[Span],
        cache: Cache,
        begin: Sequence[Beginnings] = (),
        *,
        writing: bool = False,
    ) -> Pass:
        for source, moves in begin:
            for mine, theirs in zip(
                (*cache.keys, *cache.values), (*source.keys, *source.values), strict=True
            ):
                for there, here, tokens in moves:
                    mine[:, here : here + tokens] = theirs[:, there : there + tokens]
        asked, ids, spans = len(spans), list(ids), list(spans)
        if len(ids) == 1:
            # Products with a single row take another way through the library, and round otherwise.
            ids *= 2
            spans.append(replace(spans[0], at=1))
        last = [s.at + s.tokens - 1 for s in spans]
        return Pass(
            torch.tensor(ids),
            torch.cat([torch.arange(s.have, s.have + s.tokens) for s in spans]),
            torch.tensor(last if len(last) > 1 else last * 2),
            asked,
            Turns(cache, spans, writing),
        )

    def writing(
        self, cache: Cache, reads: Sequence[int], offsets: Sequence[int], rooms: Sequence[int]
    ) -> OneByOne:
        return OneByOne(self, cache, list(reads), list(offsets))


class OneByOne:
    """Reads under way; see ``attention.Writing``. Those that have ended leave at once."""

    def __init__(self, layout: InTurn, cache: Cache, reads: list[int], offsets: list[int]) -> None:
        self._layout = layout
        self._cache = cache
        self._offsets = offsets
        self.reads = reads

    def keep(self, rows: Sequence[int]) -> None:
        self.reads = [self.reads[row] for row in rows]
        self._offsets = [self._offsets[row] for row in rows]

    def step(self, ids: Sequence[int], have: Sequence[int]) -> Pass:
        spans = [
            Span(at, 1, offset, known)
            for at, (offset, known) in enumerate(zip(self._offsets, have, strict=True))
        ]
        return self._layout.prompts(ids, spans, self._cache, writing=True)
