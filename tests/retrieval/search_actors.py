"""Actors of a search without any GPU, which play what one would do and what goes wrong.

In a module of their own: a process of Ray's imports it, and little else.
"""

import os
import time

import numpy as np

from engine.retrieval import distribute, flat

TEXTS = [f"query {i}" for i in range(50)]


def vectors_of(texts, dimensions=32):
    """Made-up vectors of a part of the queries, which depend on what else is in the part."""
    draw = np.random.default_rng(list("".join(texts).encode()))
    return draw.standard_normal((len(texts), dimensions)).astype(np.float32)


class Actor(distribute.SearchActor):
    """Has no GPU; rounds like one with ten bits of a number."""

    def nearest(self):
        def rounded(numbers):
            bits = np.ascontiguousarray(numbers).view(np.uint32) & np.uint32(0xFFFFE000)
            return bits.view(np.float32)

        return lambda q, v, k: flat.nearest_on_cpu(rounded(q), rounded(v), k)

    def encode(self, texts):
        return vectors_of(texts)


class DyingActor(Actor):
    """Its process dies once in the third of the blocks, and once in the first part of the queries."""

    def candidates(self, block):
        self.die(self._spec.folder / "searching", block.doc_ids[0] == self._spec.deadly)
        return super().candidates(block)

    def encode(self, texts):
        self.die(self._spec.folder / "encoding", texts[0] == TEXTS[0])
        return super().encode(texts)

    def die(self, marker, here):
        if here and not marker.exists():
            marker.touch()
            os._exit(9)


class DeadlyActor(Actor):
    def candidates(self, block):
        os._exit(9)


class SlowActor(Actor):
    """The one that gets the first block is done with it when the other has begun four."""

    def candidates(self, block):
        begun = self._spec.folder
        (begun / f"{block.doc_ids[0]}").touch()
        while block.doc_ids[0] == self._spec.first and len(list(begun.iterdir())) < 5:
            time.sleep(0.01)
        return super().candidates(block)
