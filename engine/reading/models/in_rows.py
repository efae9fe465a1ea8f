"""Attention of packed sequences as a GPU needs it: a few launches, however many sequences there are.

A call for every sequence, as on a CPU (``in_turn``), would wait for launches. So prompts are padded to the
longest of their chunk. Attention is then plainly causal and needs no mask, so that the fastest kernels serve; where
beginnings are computed already, queries that nobody asks for stand in their places. Only where those would be
more work than a mask is there one. While answers are written, keys and values are
not copied: reads that take equally much room stand side by side, and attention looks at them there. What a
forward pass needs to know goes to the device in one copy.

Runs on a pretended device only, so far (``tests/pretended_cuda.py``), and on the CPU for comparison.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby

import numpy as np
import torch
from torch.nn.functional import scaled_dot_product_attention

from engine.reading.models.attention import KEYS, Beginnings, Cache, Pass, Span
from engine.reading.models.decoding import ENDED
from engine.reading.models.transfer import Numbers, ramps, to_device


@dataclass
class Prompts:
    """Tokens of several sequences in a forward pass, which attention pads to the longest.

    Attributes:
        cache: keys and values, per layer (room, groups, width).
        places: where in the cache each token's go: (tokens,).
        queries: of each sequence its tokens in the pass: (rows, longest). Where there is no mask, each at its
            position. Others are repeated in the places that are left.
        back: where in (rows, longest), as one, each token's query is: (tokens,).
        seen: of each sequence the places of its keys; None where all of them are in this pass.
        reach: the last position that a query sees, (rows, longest); None where that is its own place.
    """

    cache: Cache
    places: torch.Tensor
    queries: torch.Tensor
    back: torch.Tensor
    seen: torch.Tensor | None
    reach: torch.Tensor | None
    _masked: torch.Tensor | None = None

    def attend(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float
    ) -> torch.Tensor:
        """See ``attention.Packing``."""
        heads, _, width = query.shape
        groups, (rows, longest) = key.shape[0], self.queries.shape
        keys, values = self.cache.keys[layer], self.cache.values[layer]
        keys.index_copy_(0, self.places, key.transpose(0, 1))
        values.index_copy_(0, self.places, value.transpose(0, 1))
        asked = query.transpose(0, 1)[self.queries]  # (rows, longest, heads, width)
        if self.seen is None:
            seen_keys = key.transpose(0, 1)[self.queries]
            seen_values = value.transpose(0, 1)[self.queries]
        else:
            seen_keys, seen_values = keys[self.seen], values[self.seen]
        if self.reach is None:
            answer = scaled_dot_product_attention(
                asked.transpose(1, 2),
                seen_keys.transpose(1, 2),
                seen_values.transpose(1, 2),
                is_causal=True,
                scale=scale,
                enable_gqa=heads > groups,
            ).transpose(1, 2)
        else:
            # Heads that share a group's keys are further queries of it: keys are not repeated.
            folded = asked.view(rows, longest, groups, -1, width).permute(0, 2, 3, 1, 4)
            answer = scaled_dot_product_attention(
                folded.reshape(rows, groups, -1, width),
                seen_keys.transpose(1, 2),
                seen_values.transpose(1, 2),
                attn_mask=self._mask(heads // groups),
                scale=scale,
            )
            answer = answer.reshape(rows, heads, longest, width).transpose(1, 2)
        return answer.reshape(-1, heads, width).index_select(0, self.back)

    def _mask(self, shared: int) -> torch.Tensor:
        """Which keys a query may see, the same for each of ``shared`` heads: (rows, 1, queries, keys)."""
        if self._masked is None:
            assert self.seen is not None
            assert self.reach is not None
            positions = torch.arange(self.seen.shape[1], device=self.seen.device)
            mask = positions <= self.reach[:, None, :, None]
            self._masked = mask.repeat(1, 1, shared, 1)
        return self._masked


@dataclass(frozen=True)
class Bucket:
    """Reads side by side: ``rows`` of the same ``room``, from ``offset`` on; ``first`` is the first's row."""

    offset: int
    rows: int
    room: int
    first: int


@dataclass
class Step:
    """One new token of each of several reads.

    Attributes:
        cache: as in ``Prompts``.
        buckets: how the reads stand in it.
        places: where each token's keys and values go: (rows,).
        positions: of the tokens: (rows,).
    """

    cache: Cache
    buckets: Sequence[Bucket]
    places: torch.Tensor
    positions: torch.Tensor

    def attend(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float
    ) -> torch.Tensor:
        """See ``attention.Packing``."""
        heads, _, width = query.shape
        groups = key.shape[0]
        keys, values = self.cache.keys[layer], self.cache.values[layer]
        keys.index_copy_(0, self.places, key.transpose(0, 1))
        values.index_copy_(0, self.places, value.transpose(0, 1))
        asked = query.transpose(0, 1)
        answers = []
        for bucket, mask in zip(self.buckets, self._masks, strict=True):
            own = slice(bucket.offset, bucket.offset + bucket.rows * bucket.room)
            shape = (bucket.rows, bucket.room, groups, width)
            answer = scaled_dot_product_attention(
                asked[bucket.first : bucket.first + bucket.rows].reshape(
                    bucket.rows, groups, -1, width
                ),
                keys[own].view(shape).transpose(1, 2),
                values[own].view(shape).transpose(1, 2),
                attn_mask=mask,
                scale=scale,
            )
            answers.append(answer.reshape(bucket.rows, heads, width))
        return torch.cat(answers)

    @cached_property
    def _masks(self) -> list[torch.Tensor]:
        """Of each bucket, which keys its reads see: (rows, 1, 1, room)."""
        widest = max(bucket.room for bucket in self.buckets)
        seen = torch.arange(widest, device=self.positions.device) <= self.positions[:, None]
        return [
            seen[bucket.first : bucket.first + bucket.rows, None, None, : bucket.room]
            for bucket in self.buckets
        ]


class InRows:
    """The layout of a GPU; see ``attention.Layout``. Sequences of equal room stand side by side."""

    def __init__(
        self, *, layers: int, groups: int, width: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self._layers = layers
        self._shape = (groups, width)
        self._dtype = dtype
        self._device = device

    def room(self, tokens: int) -> int:
        """32, 64, 96, 128, 192, 256, 384 and so on: few sizes; from 65 tokens on, less than a third unused."""
        size = KEYS
        while size < tokens:
            larger = 2 * size if size == KEYS else size // 2 * 3
            size = size // 3 * 4 if size % 3 == 0 else larger
        return size

    def new_cache(self, room: int) -> Cache:
        # What stands where nothing was written must be finite.
        def tables() -> list[torch.Tensor]:
            shape = (room, *self._shape)
            return [
                torch.zeros(shape, dtype=self._dtype, device=self._device)
                for _ in range(self._layers)
            ]

        return Cache(tables(), tables())

    def to_device(self, *parts: Numbers) -> list[torch.Tensor]:
        """See ``transfer.to_device``."""
        return to_device(self._device, *parts)

    def prompts(
        self,
        ids: Sequence[int],
        spans: Sequence[Span],
        cache: Cache,
        begin: Sequence[Beginnings] = (),
    ) -> Pass:
        at, tokens, offset, have = np.array(
            [(s.at, s.tokens, s.offset, s.have) for s in spans], dtype=np.int64
        ).T
        ends = have + tokens
        alone = not have.any()
        # Of all pairs of positions a causal kernel computes half.
        causal = ends.max() <= 2 * tokens.max()
        first, length = (have, ends.max()) if causal else (np.zeros_like(have), tokens.max())
        steps = np.clip(np.arange(length) - first[:, None], 0, tokens[:, None] - 1)
        positions = np.repeat(have, tokens) + ramps(tokens)
        seen = np.minimum(np.arange(ends.max()), ends[:, None] - 1)
        host = [
            np.array(ids, dtype=np.int64),
            positions,
            at + tokens - 1,
            np.repeat(offset, tokens) + positions,
            at[:, None] + steps,
            np.repeat(np.arange(len(spans)) * length + first, tokens) + ramps(tokens),
            *([] if alone else [offset[:, None] + seen]),
            *([] if causal else [have[:, None] + steps]),
        ]
        moved = [places for beginnings in begin for places in _moves(beginnings)]
        there, at_position, last, places, queries, back, *more = self.to_device(*host, *moved)
        keys, reach = (more.pop(0) if there_is else None for there_is in (not alone, not causal))
        _copy(begin, cache, more)
        packing = Prompts(cache, places, queries, back, keys, reach)
        return Pass(there, at_position, last, len(spans), packing)

    def writing(
        self, cache: Cache, reads: Sequence[int], offsets: Sequence[int], rooms: Sequence[int]
    ) -> SideBySide:
        return SideBySide(self, cache, reads, offsets, rooms)


class SideBySide:
    """Reads under way; see ``attention.Writing``. Rows of reads that have ended stay until they are many."""

    def __init__(
        self,
        layout: InRows,
        cache: Cache,
        reads: Sequence[int],
        offsets: Sequence[int],
        rooms: Sequence[int],
    ) -> None:
        self._layout = layout
        self._cache = cache
        self.reads = list(reads)
        self._buckets = list(_buckets(offsets, rooms))
        self._kept: list[int] | None = None

    def keep(self, rows: Sequence[int]) -> None:
        if len(rows) <= (1 - ENDED) * len(self.reads):
            self._kept = list(rows)
            self.reads = [self.reads[row] for row in rows]

    def step(self, ids: Sequence[int], have: Sequence[int]) -> Pass:
        kept = self._kept
        old, self._kept = self._buckets, None
        if kept is not None:
            self._buckets = _without_others(old, kept)
        starts = np.concatenate(
            [bucket.offset + bucket.room * np.arange(bucket.rows) for bucket in self._buckets]
        )
        positions = np.array(have, dtype=np.int64)
        there, at, places, every, *moved = self._layout.to_device(
            np.array(ids, dtype=np.int64),
            positions,
            starts + positions,
            np.arange(len(ids)),
            *([] if kept is None else [np.array(kept, dtype=np.int64)]),
        )
        if moved:
            self._close_up(old, moved[0])
        return Pass(there, at, every, len(ids), Step(self._cache, self._buckets, places, at))

    def _close_up(self, old: Sequence[Bucket], kept: torch.Tensor) -> None:
        """Let the rows that are kept stand side by side, in a smaller cache."""
        counts = {bucket.room: bucket.rows for bucket in self._buckets}
        parts = kept.split([counts.get(bucket.room, 0) for bucket in old])
        for tables in (self._cache.keys, self._cache.values):
            for layer, table in enumerate(tables):
                left = []
                for bucket, part in zip(old, parts, strict=True):
                    if not len(part):
                        continue
                    own = table[bucket.offset : bucket.offset + bucket.rows * bucket.room]
                    of_rows = own.view(bucket.rows, -1).index_select(0, part - bucket.first)
                    left.append(of_rows.view(-1, *table.shape[1:]))
                tables[layer] = torch.cat(left) if len(left) > 1 else left[0]


def _moves(of: Beginnings) -> tuple[Numbers, Numbers]:
    """Where each token that is copied is in the source, and where it goes."""
    origins, goals, sizes = np.array(of.moves, dtype=np.int64).T
    return np.repeat(origins, sizes) + ramps(sizes), np.repeat(goals, sizes) + ramps(sizes)


def _copy(begin: Sequence[Beginnings], cache: Cache, moved: Sequence[torch.Tensor]) -> None:
    """Copy beginnings into a cache; ``moved`` has what ``_moves`` gives of each."""
    for beginnings, there, here in zip(begin, moved[::2], moved[1::2], strict=True):
        source = beginnings.source
        for mine, theirs in zip(
            (*cache.keys, *cache.values), (*source.keys, *source.values), strict=True
        ):
            mine.index_copy_(0, here, theirs.index_select(0, there))


def _buckets(offsets: Sequence[int], rooms: Sequence[int]) -> Iterator[Bucket]:
    """Rows side by side, by the room that they take; in order of their offsets."""
    first = 0
    for size, group in groupby(range(len(rooms)), key=rooms.__getitem__):
        rows = len(list(group))
        yield Bucket(offsets[first], rows, size, first)
        first += rows


def _without_others(buckets: Sequence[Bucket], kept: Sequence[int]) -> list[Bucket]:
    left: list[Bucket] = []
    first = offset = 0
    for bucket in buckets:
        rows = sum(bucket.first <= row < bucket.first + bucket.rows for row in kept)
        if rows:
            left.append(Bucket(offset, rows, bucket.room, first))
            first, offset = first + rows, offset + rows * bucket.room
    return left
