"""The grid of ``benchmarks.efficiency``: models by their shapes, cells, and the order of the cells.

Pure: this module uses neither torch nor files.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Literal

from engine.machine.device import Dtype
from engine.reading.protocol import Augmentation

Kind = Literal["check", "time", "memory", "saving"]
Method = Literal["end-to-end", "erag"]
METHODS: tuple[Method, ...] = ("end-to-end", "erag")
# Ways to read: the engine's own readers with all their sharing; or transformers' ``generate``, which
# shares nothing, as the paper measured it, with fused attention (torch's kernel) or without.
Way = Literal["engine", "generate-sdpa", "generate-eager"]
WAYS: tuple[Way, ...] = ("engine", "generate-sdpa", "generate-eager")


@dataclass(frozen=True, kw_only=True)
class Shape:
    """The sizes of a model, from its configuration.

    Attributes:
        hidden: width of the states.
        inner, key_inner: width of all heads of the queries, and of the keys (fewer if heads share them).
        feed_forward, gates: width of the feed-forward layer, and its projections into that width.
        layers: of the encoder and of the decoder each, or of the decoder alone.
        positions: the longest text that the model can take; 0 without a limit.
        template, passage: approximate number of tokens in a prompt beside its passages (the question, worked
            examples), and beside a passage's text. For predictions; results have tokens as counted.
        reads: whether its weights were trained, so that its answers mean something.
        path, counted: of a model of the user's own: the place of its weights, and their number.
    """

    name: str
    architecture: Literal["causal", "encoder-decoder"]
    hidden: int
    inner: int
    key_inner: int
    feed_forward: int
    gates: int
    layers: int
    heads: int
    vocabulary: int
    positions: int
    template: int
    passage: int
    reads: bool = False
    path: str = ""
    counted: int = 0

    @property
    def layer_weights(self) -> int:
        """Weights of a layer of the encoder, or of a decoder-only model."""
        attention = 2 * self.hidden * (self.inner + self.key_inner)
        return attention + (self.gates + 1) * self.hidden * self.feed_forward

    @property
    def parameters(self) -> int:
        """Number of the model's parameters: as counted, or without layer norms and position tables."""
        encoder_decoder = self.architecture == "encoder-decoder"
        cross = 4 * self.hidden * self.inner * encoder_decoder
        layers = self.layers * (self.layer_weights * (1 + encoder_decoder) + cross)
        return self.counted or layers + self.hidden * self.vocabulary


def _t5(name: str, *, hidden: int, heads: int, feed_forward: int, layers: int) -> Shape:
    return Shape(
        name=name,
        architecture="encoder-decoder",
        hidden=hidden,
        inner=64 * heads,
        key_inner=64 * heads,
        feed_forward=feed_forward,
        gates=1,
        layers=layers,
        heads=heads,
        vocabulary=32128,
        positions=0,
        template=20,
        passage=4,
    )


# The first two have the sizes in the configurations of google-t5/t5-small and google-t5/t5-base, and random
# weights; the others are the bundled readers with their own: SmolLM2-135M, and the small T5 that does
# Fusion-in-Decoder. The user's own models are added by name (``own.add_models``).
SHAPES: dict[str, Shape] = {
    shape.name: shape
    for shape in (
        _t5("t5-small", hidden=512, heads=8, feed_forward=2048, layers=6),
        _t5("t5-base", hidden=768, heads=12, feed_forward=3072, layers=12),
        Shape(
            name="bundled",
            architecture="causal",
            hidden=576,
            inner=576,
            key_inner=192,
            feed_forward=1536,
            gates=2,
            layers=30,
            heads=9,
            vocabulary=49152,
            positions=8192,
            template=110,
            passage=6,
            reads=True,
        ),
        Shape(
            name="bundled-fid",
            architecture="encoder-decoder",
            hidden=192,
            inner=192,
            key_inner=192,
            feed_forward=768,
            gates=1,
            layers=5,  # of the encoder; the decoder has two
            heads=8,
            vocabulary=8192,
            positions=0,
            template=20,
            passage=4,
            reads=True,
        ),
    )
}
# Methods whose times and memory are measured.
TIMED = ("t5-small", "t5-base", "bundled")


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One measurement, made in a process of its own.

    Attributes:
        k: passages of a list.
        length: tokens of a passage's text.
        answer_tokens: of every answer, since models with random weights never end one.
        method: whose peak is measured; empty if both methods are (times are measured in turn).
        batch: reads of a batch; 0 for as many as the memory budget allows.
        change: of savings, the change between two evaluations (``benchmarks.efficiency.savings``).
    """

    kind: Kind
    model: str
    augmentation: Augmentation
    way: Way = "engine"
    k: int
    length: int
    answer_tokens: int = 5
    method: Method | Literal[""] = ""
    batch: int = 0
    change: str = ""

    @property
    def name(self) -> str:
        """Name of the cell in lines of progress and lists of cells left out."""
        parts = [self.kind, self.model, self.augmentation, self.way, f"k={self.k}"]
        parts += [f"{self.length} tokens", f"answers of {self.answer_tokens}"]
        parts += [self.method, self.change]
        parts += [f"batch {self.batch}"] if self.batch else []
        return " ".join(part for part in parts if part)


@dataclass(frozen=True, kw_only=True)
class Conditions:
    """Conditions common to all cells of a run; figures of different conditions are not combined.

    Attributes:
        dtype, threads: of the models.
        memory: bytes that a process may use, its weights included.
        tokens: of passages that each method reads in a round, at least one query's.
        rounds: number of measurements per side, in turn.
    """

    dtype: Dtype
    threads: int
    memory: int
    tokens: int
    rounds: int


# Models for savings: a model, its augmentation, and passages of a list. With trained readers, an
# evaluation is done in up to eight ways, and so has fewer.
_SAVINGS: tuple[tuple[str, Augmentation, int], ...] = (
    ("t5-small", "fid", 10),
    ("bundled-fid", "fid", 5),
    ("bundled", "in-prompt", 5),
)
KS = (1, 5, 10, 20, 50, 100)
LENGTHS = (50, 100, 200, 400)
# Short answers have about 5 tokens, the claims and dialogues of the paper's tasks up to some 64.
ANSWERS = (5, 64)
# The paper's lists have 50 passages of 100 words, some 150 to 200 tokens.
PAPER_K, PAPER_LENGTH = 50, 200


def augmentations(shape: Shape) -> tuple[Augmentation, ...]:
    """Augmentations that a model supports; decoder-only models cannot do Fusion-in-Decoder."""
    return ("in-prompt", "fid") if shape.architecture == "encoder-decoder" else ("in-prompt",)


def memory_cells(cell: Cell) -> dict[str, Cell]:
    """The peaks that belong to a time: of a list, of k passages in a batch, and of a single passage.

    A passage alone is the same read for any list and, with an encoder-decoder model, for any
    augmentation; such cells are equal, and measured once.
    """
    one = replace(cell, kind="memory", augmentation="in-prompt", method="erag", batch=1, k=1)
    return {
        "list": replace(cell, kind="memory", method="end-to-end", batch=1),
        "k passages": replace(one, k=cell.k, batch=cell.k),
        "passage": one,
    }


def _with_memory(cells: Sequence[Cell]) -> Iterator[Cell]:
    for cell in cells:
        yield cell
        yield from memory_cells(cell).values()


def paper_length(shape: Shape) -> int:
    """Tokens of a passage in the paper's setting; half as many if its list exceeds a model's positions."""
    needed = shape.template + PAPER_K * (PAPER_LENGTH + shape.passage) + max(ANSWERS)
    return PAPER_LENGTH // 2 if 0 < shape.positions < needed else PAPER_LENGTH


def full_grid(
    changes: Sequence[str],
    *,
    models: Sequence[str] = (),
    k: Sequence[int] = (),
    lengths: Sequence[int] = (),
) -> list[Cell]:
    """All cells, the most interesting first: each once, with further models of the user's own, k and lengths.

    First checks that all ways give the same outputs; the paper's setting with every model; savings; times and
    peaks against k at the paper's length of passages, and against that length at its k; then the rest. Each
    with short answers, then with long ones; savings, of such changes, with short ones.
    """
    kinds = [
        Cell(
            kind="time",
            model=shape.name,
            augmentation=how,
            k=PAPER_K,
            length=paper_length(shape),
        )
        for shape in map(
            SHAPES.__getitem__, [*TIMED, *(name for name in models if SHAPES[name].path)]
        )
        for how in augmentations(shape)
    ]
    long = [replace(cell, answer_tokens=most) for most in ANSWERS for cell in kinds]
    checks = [replace(cell, kind="check", k=3, length=50) for cell in long]
    ways = [
        replace(cell, way=way, answer_tokens=most)
        for most in ANSWERS
        for way in WAYS
        for cell in kinds
    ]

    def at(ks: Sequence[int], lengths: Sequence[int]) -> list[Cell]:
        places = sorted(product(ks, lengths), key=lambda place: place[0] * place[1])
        return [replace(cell, k=own, length=length) for own, length in places for cell in ways]

    savings = [
        Cell(kind="saving", model=model, augmentation=how, k=k, length=100, change=change)
        for model, how, k in _SAVINGS
        for change in changes
    ]
    ordered = [
        *checks,
        *_with_memory(ways),
        *savings,
        *_with_memory(at([*KS, *k], [PAPER_LENGTH])),
        *_with_memory(at([10, PAPER_K], [*LENGTHS, *lengths])),
        *_with_memory(at([*KS, *k], [*LENGTHS, *lengths])),
    ]
    return list(dict.fromkeys(ordered))


def quick_grid(
    changes: Sequence[str],
    *,
    models: Sequence[str] = ("t5-small",),
    k: Sequence[int] = (20,),
    lengths: Sequence[int] = (50,),
) -> list[Cell]:
    """The smallest grid with every kind of cell: one model, short passages, one length of lists."""
    found = []
    for model, own, length in product(models, k, lengths):
        cell = Cell(kind="time", model=model, augmentation="in-prompt", k=own, length=length)
        found.append(replace(cell, kind="check", k=3, length=50))
        ways = [replace(cell, augmentation=how) for how in augmentations(SHAPES[model])]
        for one in (*ways, replace(cell, way="generate-eager")):
            found += [one, *memory_cells(one).values()]
    model, how, _ = _SAVINGS[0]
    saving = Cell(kind="saving", model=model, augmentation=how, k=5, length=50, change=changes[0])
    return list(dict.fromkeys([*found, *[saving] * (model in models)]))
