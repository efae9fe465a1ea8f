"""Attention over texts of different lengths, in two equivalent ways.

The rest of a T5 works token by token, so texts stand end to end in a matrix without padding. Only attention
must separate them. The first way takes the texts in turn, with plain matrix products: no padding, and bits that depend on
the text alone (the fused kernel of torch splits its sums by the size of the whole batch, and is slower on a CPU). The
second way pads the texts to a common length for few large kernels, as GPUs need; it has not run on a GPU yet.

Cross-attention keys and values of an encoder input depend on the input alone: they are computed once per distinct
input for all layers of a decoder, and kept (``Encodings``) for all reads with this input, alone or fused.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.nn.functional import scaled_dot_product_attention

from engine.reading.models.decoding import Numbers, padded_length


@dataclass(frozen=True)
class Slot:
    """The place of an input in the table of its padded length."""

    padded: int
    place: int
    length: int


@dataclass(frozen=True)
class Part:
    """An input of a read: its slot, and the number of the read's tokens before it."""

    slot: Slot
    offset: int


class Encodings:
    """Keys and values of encoder inputs, in one table per padded length, so that a product serves many inputs.

    Args:
        options: ``dtype`` and ``device`` of the tables.

    Attributes:
        slots: places of the inputs, in the order of ``lengths``.
        tables: by padded length, (layers, 2, inputs, heads, padded length, width of a head): keys,
            then values; zeros behind an input's own tokens. Uninitialized before ``put``.
    """

    def __init__(
        self, lengths: Sequence[int], layers: int, heads: int, head_width: int, **options: Any
    ) -> None:
        self.slots: list[Slot] = []
        filled: Counter[int] = Counter()
        for length in lengths:
            padded = padded_length(length)
            self.slots.append(Slot(padded, filled[padded], length))
            filled[padded] += 1
        self.tables = {
            padded: torch.empty((layers, 2, inputs, heads, padded, head_width), **options)
            for padded, inputs in filled.items()
        }

    @cached_property
    def masks(self) -> dict[int, torch.Tensor]:
        """By padded length, (inputs, 1, 1, padded length): 0 on an input's own tokens, minus infinity behind them."""
        masks = {}
        for padded, table in self.tables.items():
            own = torch.tensor([slot.length for slot in self.slots if slot.padded == padded])
            mask = torch.zeros((len(own), padded), dtype=table.dtype)
            mask.masked_fill_(torch.arange(padded) >= own[:, None], float("-inf"))
            masks[padded] = mask[:, None, None].to(table.device)
        return masks

    def put(self, slot: Slot, states: torch.Tensor) -> None:
        """Keep an input's keys and values: (layers, 2, its tokens, heads, width of a head)."""
        own = self.tables[slot.padded][:, :, slot.place]
        own[:, :, :, : slot.length] = states.transpose(2, 3)
        own[:, :, :, slot.length :] = 0


_OUTSIDE = float("-inf")
# Scores that a CPU computes at once: all scores of a passage; for a long list, blocks of queries that fit its
# caches, which is faster than all at once and takes a fraction of the memory.
SCORES = 2**22


def softmax(scores: torch.Tensor) -> torch.Tensor:
    """Over the last axis, in fp32: on a CPU that is nearly twice as fast as in bf16."""
    return torch.softmax(scores, -1, dtype=torch.float32).to(scores.dtype)


class _OnHost:
    """Attention that sends no numbers to the device: lengths stay on the host."""

    numbers: Sequence[Numbers] = ()  # arrays for ``begin``, which travel with the tokens

    def begin(self, numbers: Sequence[torch.Tensor]) -> None:
        """Do nothing."""


class TextByText(_OnHost):
    """Encoder attention, one text after the other: inside each of several texts that stand end to end.

    Its call has the shapes: query, key, value and result (tokens, heads * width), bias (heads, 2 L - 1) with L at least
    the longest length: entry L - 1 + d is added to the score of a key d tokens behind the query.
    """

    def __init__(self, lengths: Sequence[int], heads: int) -> None:
        self._lengths = lengths
        self._heads = heads

    def __call__(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, bias: torch.Tensor
    ) -> torch.Tensor:
        out = torch.empty_like(query)
        first = 0
        for length in self._lengths:
            own = slice(first, first + length)
            q, k, v = (
                states[own].view(length, self._heads, -1).transpose(0, 1)
                for states in (query, key, value)
            )
            # In reverse order, each query's biases begin a place further on in the row of all biases:
            # the table is a view of this row, and would otherwise be the largest tensor here.
            q, table = q.flip(1), _distances(bias, length)
            size = max(1, SCORES // (self._heads * length))
            mixed = torch.empty_like(q)
            for at in range(0, length, size):
                some = slice(at, at + size)
                scores = torch.baddbmm(table[:, some], q[:, some], k.transpose(1, 2))
                mixed[:, some] = torch.bmm(softmax(scores), v)
            out[own].view(length, self._heads, -1).copy_(mixed.flip(1).transpose(0, 1))
            first += length
        return out


def _distances(bias: torch.Tensor, length: int) -> torch.Tensor:
    """A text's biases, (heads, length, length), as a view: queries run from the last to the first."""
    middle = bias.shape[1] // 2
    return bias[:, middle + 1 - length : middle + length].unfold(1, length, 1)


def _ramps(sizes: Numbers) -> Numbers:
    """Concatenated ranges from 0 to each size, exclusive."""
    return np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes)


class PaddedTexts:
    """Encoder attention, all texts at once, padded to the longest."""

    def __init__(self, lengths: Sequence[int], heads: int) -> None:
        sizes = np.array(lengths)
        self._shape = (len(lengths), -(-max(lengths) // 8) * 8, heads)  # kernels want eighths
        self._places = self._inside = torch.empty(0)
        self._bias: torch.Tensor | None = None
        self._mask: torch.Tensor | None = None
        rows, length, _ = self._shape
        begins = np.repeat(np.arange(rows) * length, sizes)
        # Lengths of the texts, and positions of all tokens in the flattened padded texts.
        self.numbers = [sizes, begins + _ramps(sizes)]

    def begin(self, numbers: Sequence[torch.Tensor]) -> None:
        lengths, self._places = numbers
        inside = torch.arange(self._shape[1], device=lengths.device) < lengths[:, None]
        self._inside = inside[:, None, None]

    def __call__(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, bias: torch.Tensor
    ) -> torch.Tensor:
        rows, length, heads = self._shape
        if bias is not self._bias:
            self._bias = bias
            wide = bias.new_zeros((heads, length, length))
            size = min(length, bias.shape[1] // 2 + 1)
            wide[:, :size, :size] = _distances(bias, size).flip(1)
            self._mask = torch.where(self._inside, wide, _OUTSIDE)
        q, k, v = (
            states.new_zeros((rows * length, states.shape[-1]))
            .index_copy_(0, self._places, states)
            .view(rows, length, heads, -1)
            .transpose(1, 2)
            for states in (query, key, value)
        )
        out = scaled_dot_product_attention(q, k, v, attn_mask=self._mask, scale=1.0)
        return out.transpose(1, 2).reshape(rows * length, -1)[self._places]


EncoderAttention = TextByText | PaddedTexts


class _Run(NamedTuple):
    """Neighbours in a table of encodings: places ``first`` to ``last`` at one padded length."""

    padded: int
    first: int
    last: int


class ReadByRead(_OnHost):
    """Cross-attention to encodings in place, without a copy.

    Reads of a single input that are neighbours, both here and in the table, share a product. The inputs of a fused read
    count as separate reads, in the given order, and a softmax over all inputs merges them.

    A call handles a position per read: query and result (reads, heads * width), bias (heads, n), added
    to the scores of only the first n tokens of every read.
    """

    def __init__(self, encodings: Encodings, reads: Sequence[Sequence[Part]], heads: int) -> None:
        self._encodings = encodings
        self._heads = heads
        self._reads = list(reads)
        self._plan()

    def keep(self, rows: Sequence[int], chosen: torch.Tensor) -> None:
        """Continue with these reads only, in this order; ``chosen`` has the same numbers on the device."""
        self._reads = [self._reads[row] for row in rows]
        self._plan()

    def _plan(self) -> None:
        self._alone: list[tuple[int, _Run]] = []  # with the row of the run's first read
        self._fused: list[tuple[int, list[_Run]]] = []
        row = 0
        while row < len(self._reads):
            if len(self._reads[row]) > 1:
                self._fused.append((row, _runs(self._reads[row])))
                row += 1
                continue
            end = row
            while end < len(self._reads) and len(self._reads[end]) == 1:
                end += 1
            for run in _runs([read[0] for read in self._reads[row:end]]):
                self._alone.append((row, run))
                row += run.last - run.first

    def __call__(self, layer: int, query: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        query = query.view(query.shape[0], self._heads, 1, -1)
        out = torch.empty_like(query)
        for row, run in self._alone:
            rows = slice(row, row + run.last - run.first)
            keys, values = self._at(layer, run)
            scores = torch.matmul(query[rows], keys.transpose(2, 3))
            scores += self._mask(run)
            if bias is not None:
                first = bias[:, None, : run.padded]
                scores[..., : first.shape[2]] += first
            out[rows] = torch.matmul(softmax(scores), values)
        for row, runs in self._fused:
            keys, values = zip(*(self._at(layer, run) for run in runs), strict=True)
            each = [  # (inputs, heads, 1, tokens)
                torch.matmul(query[row], own.transpose(2, 3)) + self._mask(run)
                for run, own in zip(runs, keys, strict=True)
            ]
            scores = torch.cat([own.transpose(0, 1).reshape(self._heads, -1) for own in each], 1)
            if bias is not None:
                column = 0
                for part in self._reads[row]:
                    some = bias[:, part.offset : part.offset + part.slot.length]
                    scores[:, column : column + some.shape[1]] += some
                    column += part.slot.padded
            sizes = [run.padded * (run.last - run.first) for run in runs]
            mixed = [
                torch.matmul(part.view(self._heads, -1, 1, run.padded).transpose(0, 1), own)
                for run, part, own in zip(
                    runs, softmax(scores).split(sizes, 1), values, strict=True
                )
            ]
            # A sum over all inputs, so that runs do not matter.
            out[row] = torch.cat(mixed).sum(0, dtype=torch.float32)
        return out.view(out.shape[0], -1)

    def _at(self, layer: int, run: _Run) -> torch.Tensor:
        return self._encodings.tables[run.padded][layer, :, run.first : run.last]

    def _mask(self, run: _Run) -> torch.Tensor:
        return self._encodings.masks[run.padded][run.first : run.last]


def _runs(parts: Sequence[Part]) -> list[_Run]:
    """Runs of neighbouring slots, in the order of ``parts``."""
    runs: list[_Run] = []
    for slot in (part.slot for part in parts):
        if runs and (runs[-1].padded, runs[-1].last) == (slot.padded, slot.place):
            runs[-1] = _Run(slot.padded, runs[-1].first, slot.place + 1)
        else:
            runs.append(_Run(slot.padded, slot.place, slot.place + 1))
    return runs


class PaddedReads:
    """Cross-attention of all reads at once, to copies of their encodings padded to the longest read.

    The copies put a read's keys together, as a kernel needs them; they are made anew as reads leave the batch.
    """

    def __init__(self, encodings: Encodings, reads: Sequence[Sequence[Part]], heads: int) -> None:
        self._heads = heads
        self._encodings = encodings
        self._longest = -(-max(map(_tokens, reads)) // 8) * 8  # kernels want eighths
        self._states = self._mask = torch.empty(0)
        # Lengths of the reads; then by table (4, tokens): input, place in the input, read, and place in the read.
        self.numbers = [np.array([_tokens(read) for read in reads])]
        for padded in encodings.tables:
            parts = [
                (part.slot.place, row, part.offset, part.slot.length)
                for row, read in enumerate(reads)
                for part in read
                if part.slot.padded == padded
            ]
            inputs, rows, offsets, sizes = np.array(parts, dtype=np.int64).reshape(-1, 4).T
            within = _ramps(sizes)
            from_to = (np.repeat(inputs, sizes), within, np.repeat(rows, sizes))
            self.numbers.append(np.stack([*from_to, np.repeat(offsets, sizes) + within]))

    def begin(self, numbers: Sequence[torch.Tensor]) -> None:
        totals, *moves = numbers
        example = next(iter(self._encodings.tables.values()))
        layers, _, _, _, _, width = example.shape
        rows = len(totals)
        self._states = example.new_zeros((layers, 2, rows, self._heads, self._longest, width))
        for table, places in zip(self._encodings.tables.values(), moves, strict=True):
            if places.shape[1]:
                inputs, there, reads, here = places
                self._states[:, :, reads, :, here] = table[:, :, inputs, :, there]
        outside = torch.arange(self._longest, device=example.device) >= totals[:, None]
        mask = torch.zeros(outside.shape, dtype=example.dtype, device=example.device)
        self._mask = mask.masked_fill_(outside, _OUTSIDE)[:, None, None]

    def keep(self, rows: Sequence[int], chosen: torch.Tensor) -> None:
        self._states = self._states.index_select(2, chosen)
        self._mask = self._mask[chosen]

    def __call__(self, layer: int, query: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        query = query.view(query.shape[0], self._heads, 1, -1)
        mask = self._mask
        if bias is not None:
            mask = mask.repeat(1, self._heads, 1, 1)
            first = bias[:, None, : mask.shape[3]]
            mask[..., : first.shape[2]] += first
        keys, values = self._states[layer]
        out = scaled_dot_product_attention(query, keys, values, attn_mask=mask, scale=1.0)
        return out.reshape(out.shape[0], -1)


CrossAttention = ReadByRead | PaddedReads


def _tokens(read: Sequence[Part]) -> int:
    return sum(part.slot.length for part in read)
