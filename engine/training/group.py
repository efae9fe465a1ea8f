"""The workers that train together, each on its share of every batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch

# Numbers of gradients that are summed over the workers at once.
_AT_ONCE = 2**24


class Group(Protocol):
    """Workers, by number from 0.

    Attributes:
        rank: the number of this one.
        size: how many there are.
    """

    rank: int
    size: int

    def sum(self, tensors: Sequence[torch.Tensor]) -> None:
        """Put the sums over all workers in the place of tensors in float32, which all have in like shapes."""

    def gather(self, thing: Any) -> list[Any]:
        """What each worker gives, in their order; every worker gets all."""


class Alone:
    """A worker without others."""

    rank = 0
    size = 1

    def sum(self, tensors: Sequence[torch.Tensor]) -> None:
        return None

    def gather(self, thing: Any) -> list[Any]:
        return [thing]


class Processes:
    """The processes of torch's default group, which must have been set up."""

    def __init__(self) -> None:
        import torch.distributed as dist

        self._dist = dist
        self.rank: int = dist.get_rank()
        self.size: int = dist.get_world_size()

    def sum(self, tensors: Sequence[torch.Tensor]) -> None:
        """As in ``Group``: many small tensors travel as one."""
        waiting: list[torch.Tensor] = []
        numbers = 0
        for tensor in tensors:
            waiting.append(tensor)
            numbers += tensor.numel()
            if numbers >= _AT_ONCE:
                self._sum(waiting)
                waiting, numbers = [], 0
        if waiting:
            self._sum(waiting)

    def _sum(self, tensors: Sequence[torch.Tensor]) -> None:
        flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
        self._dist.all_reduce(flat)
        for tensor, summed in zip(
            tensors, flat.split([tensor.numel() for tensor in tensors]), strict=True
        ):
            tensor.copy_(summed.view_as(tensor))

    def gather(self, thing: Any) -> list[Any]:
        everything: list[Any] = [None] * self.size
        self._dist.all_gather_object(everything, thing)
        return everything
