"""How large everything is: as on a GPU, or tiny, so that the same code runs on a CPU in seconds."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

MIB, GIB = 2**20, 2**30


class Shape(NamedTuple):
    """A model's sizes, by its family: llama (a decoder), t5, or bert (an encoder)."""

    family: str
    hidden: int
    feed_forward: int
    layers: int
    heads: int
    groups: int
    width: int
    words: int


@dataclass(frozen=True)
class Scale:
    """Sizes of everything that the stages do.

    Attributes:
        gpu: whether they run on a GPU; what only a GPU can be asked is left out without.
        small, large: decoders of the shapes of Llama 3.2 1B and 3.1 8B.
        base, big: encoder-decoders of the shapes of T5-base and T5-large.
        encoder: an encoder of BERT-base's shape.
        reads: for comparisons of outputs.
        many: numbers of reads whose pace is measured.
        new: tokens of an answer.
        large_budget, big_budget: of the large decoder and of the big encoder-decoder, in bytes.
        dimensions, vectors, block, queries, k: of exact search.
        served: reads of vLLM's comparison, and how many are in a unit.
        on_ray: reads of each trial on Ray, and how many are in a unit.
        lists: (queries, passages of each, words of a passage) of the paper's Table 2.
        product: rows and columns of the matrices whose products stage 0 times.
        rates: TFLOP/s of such products by precision, as stage 0 measured them on this machine.
    """

    gpu: bool
    small: Shape
    large: Shape
    base: Shape
    big: Shape
    encoder: Shape
    reads: int
    many: tuple[int, ...]
    new: int
    large_budget: int
    big_budget: int
    dimensions: tuple[int, ...]
    vectors: int
    block: int
    queries: int
    k: int
    served: tuple[int, int]
    on_ray: tuple[int, int]
    lists: tuple[int, int, int]
    product: int
    rates: dict[str, float] = field(default_factory=dict)


REAL = Scale(
    gpu=True,
    small=Shape("llama", 2048, 8192, 16, 32, 8, 64, 128_256),
    large=Shape("llama", 4096, 14_336, 32, 32, 8, 128, 128_256),
    base=Shape("t5", 768, 3072, 12, 12, 12, 64, 32_128),
    big=Shape("t5", 1024, 4096, 24, 16, 16, 64, 32_128),
    encoder=Shape("bert", 768, 3072, 12, 12, 12, 64, 30_522),
    reads=48,
    many=(1, 64, 1024),
    new=16,
    large_budget=24 * GIB,
    big_budget=8 * GIB,
    dimensions=(384, 768, 1024, 4096),
    vectors=250_000,
    block=65_536,
    queries=256,
    k=100,
    served=(4096, 512),
    on_ray=(2048, 64),
    lists=(8, 50, 100),
    product=8192,
)
# Heads of 64: narrower ones vLLM does not take on a CPU.
TINY = Scale(
    gpu=False,
    small=Shape("llama", 64, 128, 2, 4, 2, 64, 400),
    large=Shape("llama", 96, 160, 2, 4, 2, 24, 400),
    base=Shape("t5", 64, 96, 2, 4, 4, 16, 300),
    big=Shape("t5", 96, 128, 2, 4, 4, 24, 300),
    encoder=Shape("bert", 48, 96, 2, 4, 4, 12, 300),
    reads=6,
    many=(1, 6),
    new=4,
    large_budget=96 * MIB,
    big_budget=96 * MIB,
    dimensions=(24, 48),
    vectors=1500,
    block=400,
    queries=20,
    k=10,
    served=(12, 4),
    on_ray=(12, 2),
    lists=(2, 3, 6),
    product=128,
)
