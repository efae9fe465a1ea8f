"""What an evaluation will take: reads counted, and time, memory and cost foreseen from a probe.

Pure functions of counts and of the batches that were timed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, NamedTuple

import numpy as np
import numpy.typing as npt
import scipy as sp

from engine.messages.checked import Amount, Checked, Natural, Within
from engine.messages.errors import InputError
from engine.messages.wording import quoted

# The share of any batch is told from that of its reads where batches differ in size by this factor, and
# there are so many of them.
_CONTRAST, _BATCHES = 2.0, 3
# Relative error that a probe of a minute cannot show: the same work done again takes another time (6%, of four
# equal evaluations), and other groups are drawn. Seven plans of Fusion-in-Decoder missed by 10%, the root
# of the mean square (docs/benchmarks.md).
_UNSEEN = 0.1
_HOUR = 3600.0
BUDGET = re.compile(r"(\d+(?:\.\d+)?)(reads|h|)")
SINGLE_PASSAGES, WHOLE_LISTS = "single passages", "whole lists"


@dataclass(frozen=True, kw_only=True)
class PlanSettings(Checked):
    """What a plan is asked.

    Attributes:
        price_per_hour: Price of one actor for an hour, in any currency: that of the machine, or of the part
            of it that one actor takes.
        finish_in: Hours in which the LLM calls should end; the plan says how many actors that takes.
        probe_reads: About how many LLM calls are made for the estimate; 0 only counts. By
            default 64, or 32 for each actor if that is more; 8 times as many on GPUs.
        budget: Most that the evaluation may take: LLM calls, hours or money, as in 20000reads, 2h or 5.00. The plan
            says which way of reading keeps to it.

    Raises:
        InputError: a value out of range.
    """

    price_per_hour: Amount | None = None
    finish_in: Annotated[float, Within(0, is_open=True)] | None = None
    probe_reads: Natural | None = None
    budget: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.budget and not BUDGET.fullmatch(self.budget):
            raise InputError(f"`budget` is {quoted(self.budget)}", "use 20000reads, 2h or 5.00")
        if self.probe_reads == 0:
            for name in ("price_per_hour", "finish_in"):
                if getattr(self, name) is not None:
                    raise InputError(
                        f"`{name}` with `probe_reads` 0, which counts LLM calls and times none",
                        "leave one of them out",
                    )


class Batch(NamedTuple):
    """A batch that was timed: its size, in the plan's sizes, and the seconds of its reader."""

    size: float
    seconds: float


@dataclass(frozen=True)
class Pace:
    """Seconds of batches as a line: ``fixed`` for any, and ``rate`` for each of its size.

    Attributes:
        spread: squared differences of the batches from the line, each by the variance that a relative
            error of 1 would give it, which grows with the size of the batch.
        freedom: batches less what was estimated from them.
        covariance: of ``fixed`` and ``rate``, for a relative error of 1.
        unit: variance of a batch of size 1 for that error.
    """

    fixed: float
    rate: float
    spread: float
    freedom: int
    covariance: npt.NDArray[np.float64]
    unit: float


def pace_of(batches: Sequence[Batch]) -> Pace:
    """The line through batches that were timed, by least squares weighted by their sizes.

    Where they are few or alike in size, or the line would go below 0, seconds are in proportion to size.
    """
    sizes = np.array([max(1.0, batch.size) for batch in batches])
    seconds = np.array([batch.seconds for batch in batches])
    rate = float(seconds.sum() / sizes.sum())
    unit = rate**2 * float(sizes.mean())
    design = np.stack([np.zeros_like(sizes), sizes], axis=1)
    fixed = 0.0
    if len(batches) >= _BATCHES and sizes.max() >= _CONTRAST * sizes.min():
        both = np.stack([np.ones_like(sizes), sizes], axis=1)
        root = np.sqrt(sizes)
        (a, b), *_ = np.linalg.lstsq(both / root[:, None], seconds / root, rcond=None)
        if a >= 0 and b > 0:
            fixed, rate, design = float(a), float(b), both
    estimated = int(design.any(axis=0).sum())
    spread = float((((seconds - fixed - rate * sizes) ** 2) / sizes).sum())
    return Pace(
        fixed,
        rate,
        spread / unit if unit else 0.0,
        len(batches) - estimated,
        unit * np.linalg.pinv(design.T @ (design / sizes[:, None])),
        unit,
    )


@dataclass(frozen=True)
class Left:
    """What is left of reads of like cost.

    Attributes:
        size: of all of them, in the plan's sizes.
        groups: of reads that are not divided.
        batch: the size of a batch, as the evaluation cuts it.
        batch_seconds: what a batch takes at most, where it is cut by that; None where it is not.
    """

    size: float
    groups: float
    batch: float
    batch_seconds: float | None = None

    def batches(self, pace: Pace) -> float:
        """About how many batches they are done in."""
        size = self.batch
        if self.batch_seconds is not None and pace.rate:
            size = min(size, max(1.0, self.batch_seconds / pace.rate))
        return max(min(1.0, self.groups), min(self.groups, self.size / size))

    def size_of_batch(self, pace: Pace) -> float:
        """The size of one of them; 0 where nothing is left."""
        return self.size / self.batches(pace) if self.groups else 0.0


@dataclass(frozen=True)
class Span:
    """A figure and its interval; without one, the bounds are NaN."""

    value: float
    low: float = math.nan
    high: float = math.nan

    def plus(self, value: float) -> Span:
        """The same with something added that is known."""
        return Span(self.value + value, self.low + value, self.high + value)

    def times(self, factor: float) -> Span:
        """The same, so many times."""
        return Span(self.value * factor, self.low * factor, self.high * factor)

    @property
    def most(self) -> float:
        """The upper bound; the figure where there is none."""
        return self.value if math.isnan(self.high) else self.high


def reading_seconds(left: Left, pace: Pace) -> float:
    """Seconds of readers, for what is left of one stratum."""
    return pace.fixed * left.batches(pace) + pace.rate * left.size


def total_seconds(work: Sequence[tuple[Left, Pace]], *, confidence: float) -> Span:
    """Seconds of readers, for what is left of all strata.

    The interval holds what the choice of the reads and the timing of the probe leave uncertain (Student's t,
    by how far its batches lie from their lines: one relative error, of all strata together), and the 10%
    that a probe cannot show (normal; ``_UNSEEN``), as the root of both squared. It cannot hold other jobs that
    come or go.
    """
    value = sum(reading_seconds(left, pace) for left, pace in work)
    freedom = sum(pace.freedom for _, pace in work)
    if not work or freedom < 1:
        return Span(value)
    relative = sum(pace.spread for _, pace in work) / freedom
    variance = 0.0
    for left, pace in work:
        at = np.array([left.batches(pace), left.size])
        variance += relative * (float(at @ pace.covariance @ at) + pace.unit * left.size)
    tail = (1 + confidence) / 2
    reach = math.hypot(
        float(sp.special.stdtrit(freedom, tail)) * math.sqrt(variance),
        float(sp.special.ndtri(tail)) * _UNSEEN * value,
    )
    return Span(value, max(0.0, value - reach), value + reach)


@dataclass(frozen=True, kw_only=True)
class Kind:
    """Reads of one kind: what a line of the plan says.

    Attributes:
        reader: the model's name.
        name: "single passages", "whole lists", or who reads.
        asked: reads that the evaluation asks for, of every run, with those that are equal.
        stored: distinct reads that the store has, those of the probe among them.
        left: distinct reads that are to be done.
        prompt_tokens, output_tokens: of these, as far as they are known.
        seconds: of the reader, for these; 0 without a probe.
        token_price: of their tokens, which are asked of a server; None where no price is known.
    """

    reader: str
    name: str
    asked: int
    stored: int
    left: int
    prompt_tokens: int = 0
    output_tokens: int = 0
    seconds: float = 0.0
    token_price: float | None = None

    @property
    def shared(self) -> int:
        """Those that are equal to others, and so are done once."""
        return self.asked - self.stored - self.left


class Way(NamedTuple):
    """A way to evaluate: the least share of passages and of lists that it reads, and whether it reads no more."""

    name: str
    singles: float = 1
    lists: float = 1
    known: bool = False


@dataclass(frozen=True, kw_only=True)
class Probe:
    """What the probe was.

    Attributes:
        reads: how many were done.
        failed: how many of them failed.
        failure: why the first of them did.
        actors: that did them.
        share: what each of these takes of a machine, in words.
        room: actors that there is room for now.
        seconds: that it took, from its beginning.
        unstored: why the reads are not in the store; empty where they are.
    """

    reads: int
    actors: int
    share: str
    room: int
    seconds: float
    failed: int = 0
    failure: str = ""
    unstored: str = ""


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """What an evaluation will take.

    Attributes:
        kinds: the reads, by kind.
        queries: how many are evaluated.
        sampled: how many of these the counts are taken from, where not from all.
        probe: None where none was made.
        reading: seconds of readers for what is left, of all actors together.
        start: seconds until the actors read, and in which they load further models; of each actor.
        peak: memory of an actor in bytes; 0 where it is not known.
        actors: how many the evaluation has.
        settings: what was asked.
        confidence: level of the intervals.
        certified: reads that are repeated for a certificate, and not counted.
        ways: to read less, down to their shares, and at most all.
    """

    kinds: tuple[Kind, ...]
    queries: int
    sampled: int | None = None
    probe: Probe | None = None
    reading: Span = field(default_factory=lambda: Span(0.0))
    start: float = 0.0
    peak: int = 0
    actors: int = 1
    settings: PlanSettings = field(default_factory=PlanSettings)
    confidence: float = 0.95
    certified: int = 0
    ways: tuple[Way, ...] = ()

    @property
    def left(self) -> int:
        """Reads that are to be done."""
        return sum(kind.left for kind in self.kinds)

    @property
    def token_price(self) -> float | None:
        """Of the tokens of what is left to ask of servers; None where no price is known."""
        prices = [kind.token_price for kind in self.kinds if kind.token_price is not None]
        return sum(prices) if prices else None

    @property
    def is_priced(self) -> bool:
        """Whether a price is known, of an actor or of tokens."""
        return self.settings.price_per_hour is not None or self.token_price is not None

    def money(self, seconds: float, tokens: float | None) -> float:
        """The price of an actor's seconds and of tokens, where prices are known."""
        return seconds * (self.settings.price_per_hour or 0.0) / _HOUR + (tokens or 0.0)

    def seconds(self, actors: int) -> Span:
        """Wall-clock seconds of reading with so many actors, each like those of the probe."""
        return self.reading.times(1 / actors).plus(self.start)

    def cost(self, actors: int) -> Span | None:
        """The price of the actors, from their start to the end; None where no price is known."""
        price = self.settings.price_per_hour
        if price is None:
            return None
        return self.seconds(actors).times(actors * price / _HOUR)


def actors_to_finish(reading: Span, start: float, hours: float) -> int:
    """How many actors finish in so many hours, by the upper end of the interval where there is one.

    Raises:
        InputError: none do, since their start takes longer.
    """
    seconds = hours * _HOUR - start
    if seconds <= 0:
        raise InputError(
            f"`finish_in` is {hours:g} hours, and the start of the actors alone takes {start:.0f} s",
            f"give more than {start / _HOUR:.2g} hours",
        )
    return max(1, math.ceil(reading.most / seconds))
