"""Populations with known truth, and samples from them, for ``intervals``.

Measure and outcome of a query are functions of standard normal variables with correlation r. An outcome is
right (1) for a given share of the queries. True tau-b and rho follow by numerical integration, and r from the
true tau.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
from scipy.optimize import brentq
from scipy.special import ndtr, ndtri

from benchmarks._single import correlate
from engine.statistics.correlation import Bootstrap
from engine.tables import LABEL, STRATUM, VALUE

Floats = npt.NDArray[np.float64]

MEASURES = ("Success", "R", "P@10", "nDCG")
# Queries without any relevant passage.
_MISSES = 0.06
# Highest true correlation, as a share of the strongest association that a measure and an outcome allow.
_MOST = 0.6
_POINTS = 20_000
# The true tau of a measure that agrees with the outcome; the correlation of two measures' noises; and the ratio of the
# spreads of right and wrong answers.
_TAU, _NOISE, _SPREAD = 0.3, 0.5, 2.0


def measure_of(name: str, quantiles: Floats) -> Floats:
    """Values of a measure at quantiles in (0, 1) of its variable.

    - Success: 0 for 6%, else 1.
    - R: 0 for 6%, 0.5 for 6%, else 1.
    - P@10: 0 for 30%, the other ten values up to 1 evenly over the normal variable's range.
    - nDCG: 0 for 6%, 1 for 25%, all different between.
    - hit 0.2: 1 for a fifth, else 0; any share.
    """
    if name.startswith("hit "):
        return (quantiles >= 1 - float(name.removeprefix("hit "))).astype(np.float64)
    if name == "Success":
        return (quantiles >= _MISSES).astype(np.float64)
    if name == "R":
        return np.searchsorted([_MISSES, 2 * _MISSES], quantiles, side="right") / 2.0
    if name == "P@10":
        return np.searchsorted(ndtri(np.linspace(0.3, 0.97, 10)), ndtri(quantiles)) / 10.0
    if name == "nDCG":
        return np.asarray(np.clip((quantiles - _MISSES) / (0.75 - _MISSES), 0, 1))
    raise ValueError(name)


def graded(outcome: Floats, share: float) -> Floats:
    """F1 by the variable of an outcome: 0, or evenly between 0 and 1 for the share of right answers."""
    return np.asarray(np.maximum(0.0, (ndtr(outcome) - (1 - share)) / share))


def of_table(shares: Floats) -> tuple[float, float]:
    """tau-b and rho of a (2, K) table of shares of queries, by outcome and by measure."""
    shares = shares / shares.sum()
    wrong, right = shares
    net = float(right @ (np.cumsum(wrong) - wrong) - wrong @ (np.cumsum(right) - right))
    by_value = wrong + right
    ranks = np.cumsum(by_value) - by_value / 2 - 0.5
    p = right.sum()
    free = (1 - (by_value**2).sum()) / 2
    return (
        net / np.sqrt(p * (1 - p) * free),
        float(right @ ranks) / np.sqrt(p * (1 - p) * (by_value @ ranks**2)),
    )


def _correlations(measure: str, right: Callable[[Floats], Floats]) -> tuple[float, float]:
    """tau-b and rho of all queries (error below 0.0002); ``right`` is the share of right answers at quantiles."""
    quantiles = (np.arange(_POINTS) + 0.5) / _POINTS
    shares = right(quantiles) / _POINTS
    _, value_of = np.unique(measure_of(measure, quantiles), return_inverse=True)
    return of_table(
        np.stack([np.bincount(value_of, 1 / _POINTS - shares), np.bincount(value_of, shares)])
    )


def true_correlations(measure: str, share: float, r: float) -> tuple[float, float]:
    """tau-b and rho of all queries, of a measure and an outcome whose variables correlate at r."""

    def right(quantiles: Floats) -> Floats:
        return np.asarray(ndtr((r * ndtri(quantiles) - ndtri(1 - share)) / np.sqrt(1 - r**2)))

    return _correlations(measure, right)


@cache
def true_values(measure: str, share: float, r: float, outcome: str) -> tuple[float, float]:
    """The same for an outcome that is ``right`` or F1, with values between 0 and 1, too; for F1 by a large sample."""
    if outcome == "right" or r == 0:
        return true_correlations(measure, share, r)
    y, noise = np.random.default_rng(99).normal(size=(2, 400_000))
    x = measure_of(measure, ndtr(r * y + np.sqrt(1 - r**2) * noise))
    found = correlate(x, graded(y, share), Bootstrap(resamples=0))
    return found.tau, found.rho


@cache
def correlation_for(measure: str, share: float, tau: float) -> float:
    """The r at which the true tau-b is ``tau``, or 60% of the greatest possible if that is less."""
    if tau == 0:
        return 0.0
    wanted = min(tau, _MOST * true_correlations(measure, share, 0.9999)[0])
    return float(brentq(lambda r: true_correlations(measure, share, r)[0] - wanted, 0, 0.9999))


@dataclass(frozen=True)
class Pair:
    """Two measures on the same queries with a common right-or-wrong outcome; their own noises correlate at 0.5.

    Attributes:
        n, share: queries, and the share of right answers, in (0, 1).
        first, second: the measures.
        truth: none: both true tau-b are 0. equal: both are 0.3, or the most that both margins allow if less. apart: the
            first is 0, the second 0.3 or the most that its margins allow. spread: as under equal, and the first measure's
            variable has twice the standard deviation among right answers that it has among wrong ones. spread none: the
            same, and both are 0.
        exact: whether every sample has exactly n times ``share`` right answers, the first of its queries.
    """

    n: int
    share: float
    first: str
    second: str
    truth: str
    exact: bool = False

    def __str__(self) -> str:
        right = f"{round(self.n * self.share)} right" if self.exact else self.share
        return f"{self.n} {right} {self.first} {self.second} {self.truth}"

    @property
    def seed(self) -> str:
        """A fixed seed, so that samples never change."""
        kind = "Exact" if self.exact else "Case"
        return f"{kind}(n={self.n}, share={self.share}, first={self.first!r}, second={self.second!r}, truth={self.truth!r})"

    @property
    def taus(self) -> tuple[float, float]:
        """The true tau-b of both measures."""
        if self.truth in ("none", "spread none"):
            return 0.0, 0.0
        allowed = [
            _MOST * true_correlations(name, self.share, 0.9999)[0]
            for name in (self.first, self.second)
        ]
        if self.truth == "apart":
            return 0.0, min(_TAU, allowed[1])
        return (min(_TAU, *allowed),) * 2

    @property
    def differences(self) -> tuple[float, float]:
        """The differences of true tau-b and rho, the first measure's less the second's."""
        (tau_a, rho_a), (tau_b, rho_b) = (
            _of_spread(name, self.share, _shift_for(name, self.share, tau, spread), spread)
            if self.truth.startswith("spread")
            else true_correlations(name, self.share, correlation_for(name, self.share, tau))
            for name, tau, spread in self._sides()
        )
        # Numerical integration leaves a small difference between equal measures.
        return round(tau_a - tau_b, 5), round(rho_a - rho_b, 5)

    def _sides(self) -> list[tuple[str, float, float]]:
        return list(zip((self.first, self.second), self.taus, (_SPREAD, 1.0), strict=True))

    def draw(self, rng: np.random.Generator, samples: int) -> tuple[Floats, Floats, Floats]:
        """Two measures and the outcome of ``samples`` samples: each (samples, n)."""
        shape = (samples, self.n)
        own = rng.normal(size=shape)
        noises = own, _NOISE * own + np.sqrt(1 - _NOISE**2) * rng.normal(size=shape)
        fixed = np.tile(np.arange(self.n) < round(self.share * self.n), (samples, 1))
        if self.truth.startswith("spread"):
            drawn = rng.random(shape) < self.share
            right = fixed if self.exact else drawn
            x_a, x_b = (
                _spread_measure(name, self.share, tau, spread, noise, right)
                for (name, tau, spread), noise in zip(self._sides(), noises, strict=True)
            )
            return x_a, x_b, right.astype(np.float64)
        outcome = rng.normal(size=shape)
        if self.exact:
            ranks = rng.random(shape) * np.where(fixed, self.share, 1 - self.share)
            outcome = ndtri(np.where(fixed, 1 - self.share, 0) + ranks)
        measures = []
        for (name, tau, _), noise in zip(self._sides(), noises, strict=True):
            r = correlation_for(name, self.share, tau)
            measures.append(measure_of(name, ndtr(r * outcome + np.sqrt(1 - r**2) * noise)))
        return measures[0], measures[1], (outcome > ndtri(1 - self.share)).astype(np.float64)


def _spread_measure(
    name: str, share: float, tau: float, spread: float, noise: Floats, right: npt.NDArray[np.bool_]
) -> Floats:
    shift = _shift_for(name, share, tau, spread)
    variable = np.where(right, shift + spread * noise, noise)
    return measure_of(name, np.clip(_quantiles(variable, share, shift, spread), 1e-12, 1 - 1e-12))


def _quantiles(variable: Floats, share: float, shift: float, spread: float) -> Floats:
    """Quantiles of a variable that is N(shift, spread^2) for right answers and N(0, 1) for wrong ones."""
    return np.asarray(share * ndtr((variable - shift) / spread) + (1 - share) * ndtr(variable))


def _of_spread(name: str, share: float, shift: float, spread: float) -> tuple[float, float]:
    grid = np.linspace(-8 * spread, 8 * spread + abs(shift), 40_001)

    def right(quantiles: Floats) -> Floats:
        variable = np.interp(quantiles, _quantiles(grid, share, shift, spread), grid)
        density = share * np.exp(-(((variable - shift) / spread) ** 2) / 2) / spread
        return np.asarray(density / (density + (1 - share) * np.exp(-(variable**2) / 2)))

    return _correlations(name, right)


@cache
def _shift_for(name: str, share: float, tau: float, spread: float) -> float:
    return float(brentq(lambda shift: _of_spread(name, share, shift, spread)[0] - tau, -4, 8))


# Scores of runs (runs, n), and their true means.
Draw = Callable[[np.random.Generator, int], tuple[Floats, Floats]]
_EXTRA = np.array([0, 0.01, 0.02, 0.03, 0.05, 0.08])


def signed(rng: np.random.Generator, n: int, steps: Sequence[tuple[float, float]]) -> Floats:
    """Differences with the given sizes and probabilities, else 0."""
    ends = np.array(list(accumulate(share for _, share in steps)))
    sizes = np.array([*(size for size, _ in steps), 0.0])
    return np.asarray(sizes[np.searchsorted(ends, rng.random(n), side="right")])


def _drawn(rng: np.random.Generator, n: int, share: float) -> Floats:
    return (rng.random(n) < share).astype(np.float64)


def alike(rare: float) -> Draw:
    """Differences of 0.1 either way on 30% of the queries, of 1 either way on few."""

    def draw(rng: np.random.Generator, n: int) -> tuple[Floats, Floats]:
        kind, sign = rng.random(n), rng.choice([-1.0, 1.0], n)
        differences = np.where(kind < rare, sign, np.where(kind < rare + 0.3, 0.1 * sign, 0.0))
        return np.stack([differences, np.zeros(n)]), np.zeros(2)

    return draw


def equal_means(rare: float) -> Draw:
    """The first run is ahead by 1 on few queries, the second by 0.1 or so on ten times as many."""
    often = min(10 * rare, 1 - rare)

    def draw(rng: np.random.Generator, n: int) -> tuple[Floats, Floats]:
        differences = signed(rng, n, [(1.0, rare), (-rare / often, often)])
        return np.stack([differences, np.zeros(n)]), np.zeros(2)

    return draw


def _equal(runs: int, share: float, common: float = 0.0) -> Draw:
    """Runs of the same quality; each takes a share ``common`` of its answers from a common run."""

    def draw(rng: np.random.Generator, n: int) -> tuple[Floats, Floats]:
        own, shared = rng.random((runs, n)) < share, rng.random(n) < share
        scores = np.where(rng.random((runs, n)) < common, shared, own)
        return scores.astype(np.float64), np.full(runs, share)

    return draw


def _unequal(shares: Floats) -> Draw:
    def draw(rng: np.random.Generator, n: int) -> tuple[Floats, Floats]:
        return (rng.random((len(shares), n)) < shares[:, None]).astype(np.float64), shares

    return draw


def _nested(extra: Floats, *, graded: bool) -> Draw:
    """Runs that are right on a common set of queries, and now and then elsewhere: differences of one sign."""

    def draw(rng: np.random.Generator, n: int) -> tuple[Floats, Floats]:
        base = np.where(rng.random(n) < 0.3, rng.random(n) if graded else 1.0, 0.0)
        more = (rng.random((len(extra), n)) < extra[:, None]) & (base == 0)
        gains = rng.random((len(extra), n)) if graded else np.ones((len(extra), n))
        return base + more * gains, 0.7 * extra * (0.5 if graded else 1)

    return draw


def _continuous(means: Floats) -> Draw:
    """Scores in [0, 1] around a common score of all runs for a query."""

    def draw(rng: np.random.Generator, n: int) -> tuple[Floats, Floats]:
        shared = rng.random(n) * 0.4 + 0.3
        apart = rng.uniform(-0.2, 0.2, (len(means), n))
        return means[:, None] + shared + apart, means

    return draw


SEVERAL: dict[str, Draw] = {
    "2 equal runs, 5% right": _equal(2, 0.05),
    "10 equal runs, 5% right": _equal(10, 0.05),
    "10 equal runs, 30% right, 9 of 10 answers shared": _equal(10, 0.3, 0.9),
    "10 runs, 2% to 30% right": _unequal(np.linspace(0.02, 0.3, 10)),
    "6 runs, one 10% right, the others 1%": _unequal(np.array([0.1, *[0.01] * 5])),
    "6 nested runs, up to 8% more right": _nested(_EXTRA, graded=False),
    "6 nested runs, graded scores": _nested(_EXTRA, graded=True),
    "5 equal runs, continuous scores": _continuous(np.zeros(5)),
}
PLANNED: dict[str, Draw] = {
    "5% differ, all for one": _nested(np.array([0.05 / 0.7, 0]), graded=False),
    "8% for one, 2% for the other": _unequal(np.array([0.08 / 0.98, 0.02 / 0.92])),
    "30% and 20% right": _unequal(np.array([0.3, 0.2])),
    "graded, 10% differ for one": _nested(np.array([0.1 / 0.7, 0]), graded=True),
    "continuous, 0.02 in the mean": _continuous(np.array([0.02, 0])),
    "the best of four, 30%, others 20% right": _unequal(np.array([0.3, 0.2, 0.2, 0.2])),
}
# Differences of n queries, candidate less baseline, whose true mean is minus the margin m.
LOSSES: dict[str, Callable[[np.random.Generator, int, float], Floats]] = {
    "ties, and the candidate wrong alone": lambda rng, n, m: signed(rng, n, [(-1, m)]),
    "5% right alone, and 5% and the margin": lambda rng, n, m: signed(
        rng, n, [(1, 0.05), (-1, 0.05 + m)]
    ),
    "3% right, of the baseline the margin more": lambda rng, n, m: (
        _drawn(rng, n, 0.03) - _drawn(rng, n, 0.03 + m)
    ),
    "50% right, of the baseline the margin more": lambda rng, n, m: (
        _drawn(rng, n, 0.5) - _drawn(rng, n, 0.5 + m)
    ),
    "F1, by 5 margins either way on 30%": lambda rng, n, m: signed(
        rng, n, [(5 * m, 0.05), (-5 * m, 0.25)]
    ),
    "F1, often a little ahead, rarely 1 behind": lambda rng, n, m: signed(
        rng, n, [(-1, 2 * m), (m / 0.4, 0.4)]
    ),
    "F1, often a little behind, rarely 1 ahead": lambda rng, n, m: signed(
        rng, n, [(1, m / 2), (-1.5 * m / 0.4, 0.4)]
    ),
    "F1, up to 0.2 either way": lambda rng, n, m: rng.uniform(-0.2, 0.2, n) - m,
}


@dataclass(frozen=True)
class Preferences:
    """Preferences of people between two runs, and two labels that predict them.

    Attributes:
        differ: the share of queries on which the runs differ.
        prefer: the share of differing queries on which people prefer a run.
        first: the share of preferences for the first run.
        right: the probability that a label equals the preference, apart from chance.
    """

    differ: float
    prefer: float
    first: float
    right: float

    @property
    def mean(self) -> float:
        """The true mean."""
        return self.differ * self.prefer * (2 * self.first - 1)

    def draw(self, rng: np.random.Generator, n: int) -> pl.DataFrame:
        """Queries with ``value``, the preference, and ``stratum`` and ``label``; without queries on which runs agree."""

        def preferences() -> Any:
            sign = np.where(rng.random(n) < self.first, 1.0, -1.0)
            return np.where(rng.random(n) < self.prefer, sign, 0.0)

        value = preferences()
        labels = [np.where(rng.random(n) < self.right, value, preferences()) for _ in range(2)]
        return _with_strata(value, rng.random(n) < self.differ, *labels)


@dataclass(frozen=True)
class Replay:
    """Two runs of a real evaluation (``benchmarks/replays``), whose queries are drawn with replacement.

    A person would prefer the run whose answer has the higher F1; labels are the gains of right passages and the mean F1 of
    single passages.
    """

    evaluation: str
    runs: tuple[str, str]

    @property
    def mean(self) -> float:
        """The true mean."""
        return float(_replayed(self)[VALUE].mean())  # type: ignore[arg-type]

    def draw(self, rng: np.random.Generator, n: int) -> pl.DataFrame:
        """As ``Preferences.draw``."""
        every = _replayed(self)
        label = pl.col(LABEL) - pl.col(LABEL).filter(pl.col(STRATUM).is_not_null()).mean()
        return every[rng.integers(0, every.height, n)].with_columns(label)


@cache
def _replayed(replay: Replay) -> pl.DataFrame:
    """All queries of the evaluation."""
    rows = pl.read_parquet(Path(__file__).parent / "replays" / f"{replay.evaluation}.parquet")
    gain = (pl.col("label") / (pl.col("rank") + 1).log(2)).sum().round(6)
    # F1 is the quality of a list's answer; the order of passages counts, for the reader and for the gain.
    lists = rows.sort("rank").group_by("run", "query", maintain_order=True)
    found = lists.agg(
        "doc", gain.alias("gain"), pl.col("label_f1").mean(), pl.col("list_f1").first()
    )
    first, second = (found.filter(pl.col("run").cast(pl.String) == run) for run in replay.runs)
    both = first.join(second, on="query", suffix="_b").sort("query")
    signs = [(both[n] - both[f"{n}_b"]).sign().to_numpy() for n in ("gain", "label_f1")]
    value = (both["list_f1"].cast(pl.Float64) - both["list_f1_b"].cast(pl.Float64)).sign()
    return _with_strata(value.to_numpy(), (both["doc"] != both["doc_b"]).to_numpy(), *signs)


_STRATA = pl.Series(["b", "a and b", "a", "b, disputed", "a and b, disputed", "a, disputed", None])


def _with_strata(value: Any, differs: Any, first: Any, second: Any) -> pl.DataFrame:
    places = np.where(differs, first + 1 + 3 * (first != second), len(_STRATA) - 1)
    label = (first + second) / 2
    return pl.DataFrame(
        {
            VALUE: np.where(differs, value, 0.0),
            STRATUM: _STRATA[places.astype(int)],
            LABEL: np.where(differs, label - label[differs].mean(), 0.0),
        }
    )


PREFERENCES: dict[str, Preferences | Replay] = {
    "nearly alike, labels right in 70%": Preferences(0.15, 0.5, 0.5, 0.7),
    "nearly alike, labels know nothing": Preferences(0.15, 0.5, 0.5, 0.0),
    "half differ, labels right in 70%": Preferences(0.5, 0.5, 0.6, 0.7),
    "half differ, labels know nothing": Preferences(0.5, 0.5, 0.6, 0.0),
    "most differ, labels right in 70%": Preferences(0.9, 0.6, 0.6, 0.7),
    "most differ, labels right in 40%": Preferences(0.9, 0.6, 0.6, 0.4),
    "most differ, one is better, right in 70%": Preferences(0.9, 0.7, 0.8, 0.7),
    "all differ, labels right in 90%": Preferences(1.0, 0.5, 0.55, 0.9),
    "all differ, labels right in 40%": Preferences(1.0, 0.5, 0.55, 0.4),
    "all differ, labels know nothing": Preferences(1.0, 0.5, 0.55, 0.0),
    "all differ, people rarely prefer one": Preferences(1.0, 0.1, 0.5, 0.7),
    "all differ, 97% prefer one, know nothing": Preferences(1.0, 1.0, 0.97, 0.0),
    "all differ, 97% prefer one, right in 70%": Preferences(1.0, 1.0, 0.97, 0.7),
    "replay of NQ, bm25 and dense": Replay("nq", ("bm25", "dense")),
    "replay of FiD, bm25 and noise30": Replay("fid10", ("bm25", "noise30")),
}
