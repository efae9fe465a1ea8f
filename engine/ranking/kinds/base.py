"""Base of ranking measures, which combine sums down the ranks of lists into a value per list.

A measure is one subclass of ``Measure``, registered in ``engine.ranking.measures``. A sum is a generator function of
``Lists`` that yields the sums so far, rank by rank, in one array: one vector operation, or a few, over the lists of a
block. It runs once for all measures and cutoffs that read it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any, ClassVar, Literal, NamedTuple, Self

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
# Default label of a relevant passage (trec_eval's relevance_level).
DEFAULT_REL = 1.0
Running = Callable[..., Iterator[Floats]]
# A sum over the lists' judged sets: a method of ``Lists`` and its arguments.
SetSums = Callable[[tuple[Any, ...]], Floats]


class Lists:
    """A block of lists side by side, with their judged sets.

    Attributes:
        labels: (ranks, lists), best rank first; 0 for unjudged passages, and beyond a list's end.
        lengths: (lists,).
        real_valued: whether some label of the table is not a whole number.
        cutoffs: ranks at which sums may be read off.
        grades: the highest label, if judged sets are short and labels few whole numbers; else 0.
    """

    def __init__(
        self,
        labels: Floats,
        lengths: Ints,
        real_valued: bool,
        cutoffs: frozenset[int],
        grades: int = 0,
        set_sums: SetSums | None = None,
    ) -> None:
        self.lengths, self.real_valued, self.cutoffs = lengths, real_valued, cutoffs
        self._unfilled, self._grades, self._set_sums = labels, grades, set_sums
        self.labels = np.nan_to_num(labels, nan=0.0) if np.isnan(labels).any() else labels
        self._sums: dict[Any, dict[int | None, Floats]] = {}
        self._relevant: dict[float, Floats] = {}

    def at(self, cutoff: int | None, running: Running, *args: Any) -> Floats:
        """Sums over the lists' first passages; over all passages without a cutoff."""
        if (running, args) not in self._sums:
            total, sums = np.zeros(len(self.lengths)), self._sums.setdefault((running, args), {})
            for rank, total in enumerate(running(self, *args), 1):
                if rank in self.cutoffs:
                    sums[rank] = total.copy()
            sums.update({k: total for k in (None, *self.cutoffs) if k not in sums})
        return self._sums[running, args][cutoff]

    def judged(self, running: Running, *args: Any) -> Floats:
        """Sums over the lists' judged sets, which have no order."""
        key = (Lists.at, None, running, *args)
        return self.at(*key[1:]) if self._set_sums is None else self._set_sums(key)

    def best(self, cutoff: int | None, running: Running, *args: Any) -> Floats:
        """Sums over the first of the lists' judged sets, the largest labels first."""
        if self._set_sums is not None:
            return self._set_sums((Lists.best, cutoff, running, *args))
        lists, places = self._best_first
        return lists.at(cutoff, running, *args)[places]

    @cached_property
    def _best_first(self) -> tuple[Lists, Ints | slice]:
        """These lists in their best order, and their places."""
        matrix = self.labels
        places: Ints | slice = slice(None)
        if self._grades:
            # Sets with equal counts of all grades have the same best order: sort one per kind.
            key = np.zeros(matrix.shape[1], dtype=np.int64)
            for grade in range(1, self._grades + 1):
                at_least = (matrix >= grade).view(np.uint8)
                key = key * (len(matrix) + 1) + np.add.reduce(at_least, axis=0, dtype=np.uint32)
            _, firsts, places = np.unique(key, return_index=True, return_inverse=True)
            matrix = matrix[:, firsts]
        # Sorting by list is faster if its labels are adjacent.
        ordered = np.ascontiguousarray(np.sort(np.ascontiguousarray(matrix.T))[:, ::-1].T)
        lengths = np.full(ordered.shape[1], len(ordered))
        return Lists(ordered, lengths, self.real_valued, self.cutoffs), places

    @cached_property
    def known(self) -> npt.NDArray[np.bool_]:
        """(ranks, lists) whether a passage is judged; padding is not."""
        return ~np.isnan(self._unfilled) & (np.arange(len(self.labels))[:, None] < self.lengths)

    def relevant(self, threshold: float) -> Floats:
        """(ranks, lists) 1 for a label of at least the threshold, else 0."""
        if threshold not in self._relevant:
            self._relevant[threshold] = (self.labels >= threshold).astype(np.float64)
        return self._relevant[threshold]

    def depth(self, cutoff: int | None) -> Ints | int:
        return self.lengths if cutoff is None else cutoff


def added(of: Lists, rows: Iterable[npt.NDArray[Any]]) -> Iterator[Floats]:
    """The sums of the ranks' rows so far."""
    total = np.zeros(len(of.lengths))
    for row in rows:
        total += row
        yield total


def hits(of: Lists, threshold: float) -> Iterator[Floats]:
    """The number of relevant passages."""
    return added(of, of.relevant(threshold))


def mass(of: Lists) -> Iterator[Floats]:
    """The sum of the labels, in any order, with a correction for rounding (Knuth's two-sum)."""
    total, lost = np.zeros((2, len(of.lengths)))
    for labels in of.labels:
        before = total.copy()
        total += labels
        gained = total - before
        lost += (before - (total - gained)) + (labels - gained)
        yield total + lost


def ratio(numerator: Floats, denominator: Floats | Ints | int) -> Floats:
    """The quotient; 0 if the denominator is, as the numerator then is 0 too."""
    return np.asarray(numerator / np.where(np.greater(denominator, 0), denominator, 1))


def equal_labels(label: float, ranks: int) -> Lists:
    """One list of equal labels."""
    return Lists(np.full((ranks, 1), label), np.array([ranks]), label % 1 > 0, frozenset([ranks]))


class Option(NamedTuple):
    """A parameter of a measure that its name may set, ``rel`` in ``AP(rel=2)``."""

    help: str  # its meaning, a noun
    example: str  # as a name writes it
    read: Callable[[str], Any]  # parses a text; ValueError if invalid
    problem: str  # of a refused value, which follows
    remedy: str


def option(default: Any, *parts: Any) -> Any:
    """A field of a measure that its name may set; ``parts`` are the fields of ``Option``."""
    return field(default=default, metadata={"option": Option(*parts)})


def number_in(least: float, most: float) -> Callable[[str], float]:
    """Reads a number strictly between two others."""

    def read(text: str) -> float:
        if not least < (number := float(text)) < most:
            raise ValueError(text)
        return number

    return read


class Names(NamedTuple):
    """A measure's names in other tools, "" without one: in trec_eval also with a cutoff (``{}``); ours in ir_measures."""

    trec_eval: str = ""
    trec_eval_cut: str = ""
    ranx: str = ""
    ir_measures: bool = True


@dataclass(frozen=True)
class Measure(ABC):
    """A ranking measure of a list whose passage at rank i has the label l_i.

    The class declares names, labels and needs:

    - ``kind``: its name, as ir_measures writes it. ``synonyms``: exact other names, in lower case. ``variants``: names
      that also set options.
    - ``citation``, ``references``: its source, and its names in other tools.
    - ``labels``: the labels that it takes. ``relevance``: whether a label reaches ``rel``; ``shares``: the same, but
      real-valued labels up to 1 unchanged if there is no ``rel``; ``gains``: labels unchanged; ``presence``:
      whether there is a label; ``utilities``: labels that may be negative.
    - ``reads``: the labels that decide it (``engine.adaptive.labels``): ``none``; the ranks to the first useful
      passage (``first``; ``found`` if a useful passage at any rank suffices); the ranks within the cutoff (``cutoff``);
      all judged passages once a passage within the cutoff is useful, 0 without (``judged``; ``recall`` if a list that
      holds all judged passages needs only one useful passage); else ``all``.
    - ``of_one_list``: whether labels of passages outside the list do not matter.
    - ``trivial_on_list``: whether it carries no information if only the list's own passages are judged.
    - ``has_cutoff``, ``has_budget``: whether it may be cut at a rank, and at a number of tokens.
    - ``has_best``: whether its value is over that of the best order. ``counts_tokens``: whether its value at a
      budget is the share of the tokens in relevant passages.

    Attributes:
        cutoff: only this many passages count, from the first; None means the whole list.
        rel: passages with a label of at least this are relevant; None means 1, or, for a measure that takes shares,
            unchanged real-valued labels.
        tokens: the cutoff in tokens (``engine.ranking.kernel``); None if it is in passages.
    """

    kind: ClassVar[str]
    synonyms: ClassVar[str] = ""
    variants: ClassVar[tuple[tuple[str, str], ...]] = ()
    citation: ClassVar[str] = ""
    references: ClassVar[Names] = Names()
    labels: ClassVar[Literal["relevance", "shares", "gains", "presence", "utilities"]] = "relevance"
    reads: ClassVar[Literal["none", "first", "found", "cutoff", "judged", "recall", "all"]] = "all"
    of_one_list: ClassVar[bool] = False
    trivial_on_list: ClassVar[bool] = False
    has_cutoff: ClassVar[bool] = True
    has_budget: ClassVar[bool] = True
    has_best: ClassVar[bool] = False
    counts_tokens: ClassVar[bool] = False

    cutoff: int | None = None
    rel: float | None = option(
        None, "the least label of a relevant passage", "rel=…", number_in(0, float("inf")),
        "threshold", "use a number above 0, as in rel=0.5",
    )  # fmt: skip
    tokens: int | None = None

    @abstractmethod
    def value(self, of: Lists) -> Floats:
        """Values of the lists; only the measure and ``of.real_valued`` determine which sums it reads."""

    def largest(self, k: int, label: float) -> float:
        """The largest value of a list; the least is 0.

        Args:
            k: passages of a list, if the measure has no cutoff.
            label: the annotator's largest possible label, whether or not it occurs; at least 1.
        """
        return 1.0

    @property
    def largest_label(self) -> float:
        """The largest label that it takes; above the usual limit sums are no longer finite."""
        return 1e15

    @property
    def for_larger(self) -> str:
        """Another remedy for a larger label than correcting it."""
        return f", or leave {self} out" if self.largest_label < 1e15 else ""

    @classmethod
    def options(cls) -> dict[str, Option]:
        """The parameters that its name may set, besides the cutoff."""
        options = {field.name: field.metadata.get("option") for field in fields(cls)}
        if cls.labels not in ("relevance", "shares"):
            del options["rel"]
        return {name: option for name, option in options.items() if option}

    def __str__(self) -> str:
        values = {name: getattr(self, name) for name in self.options()}
        usual = {field.name: field.default for field in fields(self)}
        options = ",".join(f"{n}={_written(v)}" for n, v in values.items() if v != usual[n])
        cutoff = "" if self.cutoff is None else f"@{self.cutoff}"
        if self.tokens is not None:
            cutoff = f"@{self.tokens}tok"
        return f"{self.kind}{f'({options})' if options else ''}{cutoff}"

    @property
    def threshold(self) -> float:
        """The least label of a relevant passage."""
        return DEFAULT_REL if self.rel is None else self.rel

    def takes_labels(self, real_valued: bool) -> bool:
        """Whether labels count unchanged, rather than as relevant or not."""
        shares = self.labels == "shares" and real_valued and self.rel is None
        return shares or self.labels == "gains"

    def with_threshold(self, rel: float = DEFAULT_REL) -> Self:
        """The measure with a threshold; itself if it has one, or cannot have one."""
        return replace(self, rel=rel) if self.rel is None and "rel" in self.options() else self


def _written(value: float | str) -> str:
    if isinstance(value, str):
        return f"'{value}'"
    return str(int(value)) if value == int(value) else repr(value)
