"""Keep the cross-attention keys and values of encoder inputs, for all layers of a decoder.

They depend on the input alone. So they are computed once per distinct input and stand here for every
read that has it, alone or fused, instead of the encoder's states from which each read would have to
project them again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch

# Inputs of like lengths share a table, so that one product serves many of them. The length at which
# an input stands follows from its own length alone, and with it every sum over its tokens: a read
# gives the same bits whatever else is read. Kernels also like lengths that are multiples of 32.
STEP = 32


def padded_length(length: int) -> int:
    """The length at which an input of ``length`` tokens is kept."""
    return -(-length // STEP) * STEP


@dataclass(frozen=True)
class Slot:
    """Where an input is kept: its place in the table of its padded length."""

    padded: int
    place: int
    length: int


@dataclass(frozen=True)
class Part:
    """An input of a read: where it is kept, and how many of the read's tokens stand before it."""

    slot: Slot
    offset: int


class Encodings:
    """Keys and values of encoder inputs, in one table per padded length.

    Attributes:
        slots: where each input is kept, in the order of ``lengths``.
        tables: by padded length, (layers, 2, inputs, heads, padded length, width of a head): keys,
            then values; zeros behind an input's own tokens. Whatever was there, until it is put.
    """

    def __init__(
        self,
        lengths: Sequence[int],
        *,
        layers: int,
        heads: int,
        head_width: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.slots: list[Slot] = []
        filled: Counter[int] = Counter()
        for length in lengths:
            padded = padded_length(length)
            self.slots.append(Slot(padded, filled[padded], length))
            filled[padded] += 1
        self.tables = {
            padded: torch.empty(
                (layers, 2, inputs, heads, padded, head_width), dtype=dtype, device=device
            )
            for padded, inputs in filled.items()
        }

    @cached_property
    def masks(self) -> dict[int, torch.Tensor]:
        """By padded length, (inputs, 1, 1, padded length): 0 on an input's own tokens and minus infinity
        behind them.
        """
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

    def keys_values(self, layer: int, padded: int, first: int, last: int) -> torch.Tensor:
        """Keys and values of neighbours in a table: (2, inputs, heads, padded, width), no copy."""
        return self.tables[padded][layer, :, first:last]
