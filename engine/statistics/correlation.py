"""Kendall's tau-b and Spearman's rho of two scores, with intervals over queries."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Literal

from engine.messages.checked import Checked, Natural, Positive, Within
from engine.messages.errors import InputError
from engine.statistics.arrays import Floats, Ints
from engine.statistics.clustered import from_jackknife, independent_queries, method_by_cluster
from engine.statistics.intervals import around, interval
from engine.statistics.inversion import inverted
from engine.statistics.methods import Method, Side, method_for, side
from engine.statistics.resampling import Replicates

# Decimals at which scores are compared: sums of the same labels in another order differ in the last
# bits, and must not rank.
DECIMALS = 12
# Fewer cannot hold the tails of an interval.
LEAST_RESAMPLES = 100


@dataclass(frozen=True)
class Bootstrap(Checked):
    """How intervals and p-values are made.

    Attributes:
        resamples: Bootstrap resamples of each interval, 100 or more; 0 for no intervals.
        confidence: Level of the intervals, between 0 and 1.
        seed: Seed of the resamples, and of all other random draws; 0 or more.
        threads: that resample; None for all cores. Changes no figure.
        cluster: What queries are clustered by, where they are not independent: a column of the queries file,
            or article for the gold article. By default queries are taken as independent.
        until: Read queries in an order drawn by the seed, and stop at what is named: verdict, as soon as every two runs
            are told apart. Differences of runs then have confidence sequences, other figures no intervals
            (docs/guide/fewer-reads.md).
        lists: Share of the queries whose whole lists are read, or how many these are, drawn by the seed; end-to-end means
            are estimated for all queries from these and the labels of all (docs/guide/fewer-reads.md).
        width: In the place of lists: as many as it takes until the interval of every difference of two runs, or of the mean
            of one run, reaches so far to either side at most; between 0 and 1 (docs/guide/fewer-reads.md).

    Raises:
        InputError: a value out of range.
    """

    resamples: Natural = 10_000
    confidence: Annotated[float, Within(0, 1, is_open=True)] = 0.95
    seed: Natural = 0
    threads: Positive | None = None
    cluster: str | None = None
    until: Literal["verdict"] | None = None
    lists: Annotated[float, Within(0, is_open=True)] | None = None
    width: Annotated[float, Within(0, 1, is_open=True)] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if 0 < self.resamples < LEAST_RESAMPLES:
            raise InputError(
                f"`resamples` is {self.resamples}",
                f"use {LEAST_RESAMPLES} or more, or 0 for no intervals",
            )
        if self.until and not self.resamples:
            raise InputError("`until` with `resamples` 0, which it cannot have", "leave one out")
        if self.lists and self.lists >= 1 and self.lists % 1:
            remedy = "use a share below 1, or a whole number of lists"
            raise InputError(f"`lists` is {self.lists:g}", remedy)
        others = {"until": self.until, "cluster": self.cluster, "resamples": not self.resamples}
        others["width"] = bool(self.lists and self.width)
        if self.samples and (other := next((n for n, given in others.items() if given), "")):
            name = "lists" if self.lists else "width"
            raise InputError(f"`{name}` with `{other}`, which it cannot have", "leave one out")

    @property
    def samples(self) -> bool:
        """Whether whole lists may be read of some queries alone."""
        return bool(self.lists or self.width)

    @property
    def of_fixed_n(self) -> Bootstrap:
        """For figures whose intervals do not hold where the figures themselves decide how many queries there are."""
        return replace(self, resamples=0, until=None) if self.until else self


@dataclass(frozen=True, kw_only=True)
class Correlation:
    """A correlation with its interval.

    ``tau``, ``rho`` in [-1, 1]; NaN where undefined, and then ``note`` says why. Interval bounds are
    NaN where none was asked for or none holds (``note``). ``method`` made them
    (``methods``), empty where there are none.
    """

    n: int
    tau: float = math.nan
    tau_low: float = math.nan
    tau_high: float = math.nan
    rho: float = math.nan
    rho_low: float = math.nan
    rho_high: float = math.nan
    method: str = ""
    note: str = ""


def describe(
    x: Floats,
    y: Floats,
    result: Replicates,
    pair: int,
    bootstrap: Bootstrap,
    clusters: Ints | None = None,
) -> Correlation:
    """The correlation of one pair of columns, from their replicates; of queries, or of clusters of these."""
    n = len(x)
    if note := undefined(x, y):
        return Correlation(n=n, note=note)
    values = float(result.tau[pair]), float(result.rho[pair])
    plain = Correlation(n=n, tau=values[0], rho=values[1])
    if bootstrap.resamples == 0:
        return plain
    method, note = method_of(side(x), side(y), clusters)
    if method is None:
        return replace(plain, note=note)
    assert result.without is not None
    without = result.without[pair]
    bounds: Sequence[tuple[float, float]]
    if method == "inverted":
        size, level, draws = None, bootstrap.confidence, bootstrap.resamples
        if clusters is not None:
            size = independent_queries(x, y, clusters, confidence=level)
        bounds = inverted(x, y, confidence=level, draws=draws, seed=bootstrap.seed, size=size)
    elif method == "studentized":
        tests = (
            from_jackknife(value, left, (x, y), clusters, confidence=bootstrap.confidence)
            for value, left in zip(values, without, strict=True)
        )
        bounds = [(test.low, test.high) for test in tests]
    else:
        replicates = result.taus[pair], result.rhos[pair]
        made = [interval(resampled, bootstrap.confidence) for resampled in replicates]
        # tau and rho are undefined on the same resamples, so one note serves both.
        bounds, note = (made[0][:2], made[1][:2]), made[0][2]
    if math.isnan(bounds[0][0]):
        method, note = None, note or f"no interval: the correlation is {values[0]:g}"
    (tau_low, tau_high), (rho_low, rho_high) = (
        around(value, low, high) for value, (low, high) in zip(values, bounds, strict=True)
    )
    found = replace(plain, method=method or "", note=note)
    return replace(found, tau_low=tau_low, tau_high=tau_high, rho_low=rho_low, rho_high=rho_high)


def method_of(x: Side, y: Side, clusters: Ints | None) -> tuple[Method | None, str]:
    return method_for(x, y) if clusters is None else method_by_cluster(x, y, clusters)


def undefined(x: Floats, y: Floats) -> str:
    """Why no correlation of x (the measure) and y (the end-to-end score) is defined; or nothing."""
    if len(x) < 2:
        return "undefined: fewer than two queries"
    constant = [
        f"the {what} is {values[0]:g} for every query"
        for what, values in (("measure", x), ("end-to-end score", y))
        if (values == values[0]).all()
    ]
    return f"undefined: {' and '.join(constant)}" if constant else ""
