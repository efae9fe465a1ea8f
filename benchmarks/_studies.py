"""Studies of intervals and tests on samples of a population, for ``intervals``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np
import polars as pl
from scipy.special import ndtr, ndtri

from benchmarks._simulated import (
    LOSSES,
    MEASURES,
    PLANNED,
    PREFERENCES,
    SEVERAL,
    Floats,
    Pair,
    alike,
    correlation_for,
    equal_means,
    graded,
    measure_of,
    true_values,
)
from benchmarks._single import correlate
from engine.labels.preference import preferred
from engine.report.page import asking
from engine.statistics.bounded import mean_interval
from engine.statistics.comparison import Cell as Scores
from engine.statistics.comparison import compare_cells, correlate_cells, with_intervals
from engine.statistics.correlation import Bootstrap, from_jackknife
from engine.statistics.difference_tests import (
    DifferenceTest,
    enough_for_jackknife,
    permutation_test,
    prepare,
    untestable,
)
from engine.statistics.leads import LEVEL as GATE_LEVEL
from engine.statistics.leads import p_values, paired_intervals
from engine.statistics.methods import side
from engine.statistics.resampling import Draws, replicate
from engine.statistics.single_labels import FIRST_LISTS, Estimate, estimate, half_width, next_lists
from engine.statistics.until import queries_needed
from engine.tables import LABEL, PROBABILITY, STRATUM, TAU, high_of, low_of

StudyFigures = dict[str, float]
Limits = Mapping[str, tuple[float, float]]
LEVEL, LEAST, MOST = 0.05, 0.93, 0.97
_SMALL_P = 0.015
SIZES, HITS = (19, 30, 64, 100, 300, 1000), ("hit 0.05", "hit 0.2", "hit 0.5")
KINDS = {"alike": alike, "equal means": equal_means}


@dataclass(frozen=True, kw_only=True)
class Study:
    """Fields common to cells; the fields of a study precede them, and form the name of a cell.

    Attributes:
        samples: their number, from number ``first`` on if each has seeds of its own.
        draws: number of resamples, permutations or tables, if the method draws any.
        limits: the least and the greatest value of shares.
        amounts: figures other than shares, each with its mean or median.
    """

    samples: int
    draws: int = 0
    first: int = 0
    limits: ClassVar[Limits]
    amounts: ClassVar[Mapping[str, Callable[[Floats], Any]]] = {"width": np.median}

    @property
    def name(self) -> str:
        """The study and its fields."""
        own = {
            key: value for key, value in vars(self).items() if key not in Study.__dataclass_fields__
        }
        told = [
            key if value is True else str(value) for key, value in own.items() if value is not False
        ]
        return " ".join([type(self).__name__.lower(), *told])

    @property
    def numbers(self) -> range:
        return range(self.first, self.first + self.samples)

    def each(self) -> Iterator[StudyFigures]:
        """The figures per sample, 1 and 0 for true and false; NaN for missing ones."""
        raise NotImplementedError

    def further(self, found: Mapping[str, float]) -> StudyFigures:
        """Amounts that follow from the figures of all samples."""
        return {}


def _held(low: float, value: float, high: float) -> float:
    """Whether an interval holds a value; NaN without an interval."""
    return float(low - 1e-12 <= value <= high + 1e-12) if low <= high else np.nan


@dataclass(frozen=True)
class Tau(Study):
    """``truth`` is 0, or the lesser of 0.3 and 60% of the maximum; ``outcome`` is right (0 or 1) or F1 (0 to 1)."""

    n: int
    share: float
    measure: str
    truth: str
    outcome: str = "right"

    limits: ClassVar[Limits] = {"tau": (LEAST, 1), "rho": (LEAST, 1), "not inverted": (LEAST, MOST), "lacks": (0, 0)}  # fmt: skip

    def draw(self, rng: np.random.Generator, r: float) -> tuple[Floats, Floats]:
        outcome, noise = rng.normal(size=(2, self.n))
        x = measure_of(self.measure, ndtr(r * outcome + np.sqrt(1 - r**2) * noise))
        y = graded(outcome, self.share)
        return x, (y > 0).astype(np.float64) if self.outcome == "right" else y

    def each(self) -> Iterator[StudyFigures]:
        r = correlation_for(self.measure, self.share, float(self.truth))
        tau, rho = true_values(self.measure, self.share, r, self.outcome)
        place = SIZES.index(self.n) if self.n in SIZES else self.n
        seeds = [place, round(1000 * self.share), (*MEASURES, *HITS).index(self.measure)]
        seeds += map(ord, self.truth[:3])
        for number in self.numbers:
            x, y = self.draw(np.random.default_rng([*seeds, number]), r)
            found = correlate(x, y, Bootstrap(resamples=self.draws, seed=number % 4, threads=1))
            holds = _held(found.tau_low, tau, found.tau_high)
            yield {
                "tau": holds,
                "rho": _held(found.rho_low, rho, found.rho_high),
                "not inverted": np.nan if found.method == "inverted" else holds,
                "lacks": float(not found.method and min(side(x).amount, side(y).amount) > 0),
                "width": found.tau_high - found.tau_low,
            }


@dataclass(frozen=True)
class Difference(Study):
    """Two measures with a common outcome."""

    pair: Pair

    amounts: ClassVar = {"tau width": np.median, "rho width": np.median}

    @property
    def limits(self) -> Limits:  # type: ignore[override]
        found = {f"{name} holds": (LEAST, 1.0) for name in ("tau", "rho")}
        for name, true in zip(("tau", "rho"), self.pair.differences, strict=True):
            if true == 0:
                found |= {f"{name} p<=0.05": (0.0, 0.06), f"{name} p<=0.002": (0.0, 0.004)}
        return found

    def each(self) -> Iterator[StudyFigures]:
        pair = self.pair
        seeds = [pair.n, round(pair.share * 1000), *map(ord, pair.seed)]
        drawn = pair.draw(np.random.default_rng(seeds), self.samples)
        for number, (x_a, x_b, y) in enumerate(zip(*drawn, strict=True)):
            tests = difference_tests(x_a, x_b, y, Bootstrap(resamples=self.draws, seed=number))
            found: StudyFigures = {}
            for name, test, true in zip(("tau", "rho"), tests, pair.differences, strict=True):
                for level in (0.05, 0.002):
                    found[f"{name} p<={level}"] = float(test.p <= level) if test.p >= 0 else np.nan
                found[f"{name} holds"] = _held(test.low, true, test.high)
                found[f"{name} width"] = test.high - test.low
            yield found


def difference_tests(
    x_a: Floats, x_b: Floats, y: Floats, bootstrap: Bootstrap
) -> Sequence[DifferenceTest]:
    """The tests of tau and rho between two measures with the same outcome, as in an evaluation; NaN without a test.

    The full number of draws follows only if the first fifth gives a small p-value.
    """
    scores = [(x_a, y), (x_b, y)]
    constant = min(np.ptp(one) for one in (x_a, x_b, y)) == 0
    if not constant and enough_for_jackknife(scores):
        made = replicate(np.stack([x_a, x_b, y]), [(0, 2), (1, 2)], Draws(0, 0), leave_out=True)
        assert made.without is not None
        values = np.array([made.tau, made.rho])
        without = made.without[0] - made.without[1]
        return [
            from_jackknife(first - second, left, (x_a, x_b, y), None, confidence=0.95, scale=2)
            for (first, second), left in zip(values.tolist(), without, strict=True)
        ]
    if constant or untestable(scores):
        return (DifferenceTest(np.nan),) * 2
    found: Sequence[DifferenceTest] = ()
    for draws in (bootstrap.resamples // 5, bootstrap.resamples):
        first, second = ((prepare(x), prepare(y)) for x, y in scores)
        found = permutation_test(
            first, second, permutations=draws, confidence=0.95, seed=bootstrap.seed, threads=1
        )
        if min(one.p for one in found) > _SMALL_P:
            break
    return with_intervals(scores, found, bootstrap)[0]


@dataclass(frozen=True)
class Clusters(Study):
    """Clusters of a size whose queries' variables have an intraclass correlation (``within``); 30% are right."""

    clusters: int
    size: int
    within: float
    measure: str
    outcome: str
    truth: float

    share: ClassVar[float] = 0.3

    @property
    def limits(self) -> Limits:  # type: ignore[override]
        # With few clusters, no interval that holds if whole clusters flip is near its level in other cases.
        most = 0.98 if self.clusters >= 30 else 1
        of_correlations = dict.fromkeys(("tau", "rho", "difference"), (LEAST, most))
        return of_correlations | dict.fromkeys(("mean", "lead"), (LEAST, 1))

    def draw(self, rng: np.random.Generator, r: float) -> tuple[Floats, Floats, Floats]:
        """Two measures, equally good, and an outcome."""
        own, shared = np.sqrt(1 - self.within), np.sqrt(self.within)
        of_clusters = np.repeat(rng.normal(size=(4, self.clusters)), self.size, axis=1)
        outcome, common, *apart = own * rng.normal(size=of_clusters.shape) + shared * of_clusters
        # Conditional on the outcome, the two measures share 60% of their variance.
        noises = [np.sqrt(0.6) * common + np.sqrt(0.4) * noise for noise in apart]
        first, second = (
            measure_of(self.measure, ndtr(r * outcome + np.sqrt(1 - r**2) * noise))
            for noise in noises
        )
        y = graded(outcome, self.share)
        return first, second, (y > 0).astype(np.float64) if self.outcome == "right" else y

    def each(self) -> Iterator[StudyFigures]:
        r = correlation_for(self.measure, self.share, self.truth)
        tau, rho = true_values(self.measure, self.share, r, self.outcome)
        mean = self.share if self.outcome == "right" else self.share / 2
        clusters = np.repeat(np.arange(self.clusters), self.size)
        ids = tuple(map(str, range(len(clusters))))
        for number in self.numbers:
            seeds = [self.clusters, self.size, round(10 * self.within), number]
            first, second, y = self.draw(np.random.default_rng(seeds), r)
            bootstrap = Bootstrap(resamples=self.draws, seed=number % 4, threads=1)
            scores = [
                Scores("run", name, "M", 1, ids, x, y, clusters)
                for name, x in (("a", first), ("b", second))
            ]
            results = correlate_cells(scores, bootstrap)
            found, alone = results[0].correlation, correlate(first, y, bootstrap)
            (row,) = compare_cells(scores, results, bootstrap).to_dicts()
            # Two equally good runs, scored by the measure; or right if it is above its median.
            both = np.stack([first, second])
            better, worse = both if self.outcome == "F1" else (both > 0.5).astype(np.float64)
            apart = better - worse
            lead = paired_intervals(
                apart[None], 1.0, confidence=1 - LEVEL, comparisons=1, clusters=clusters
            )
            low, high = mean_interval(y, 1 - LEVEL, clusters)
            yield {
                "tau": _held(found.tau_low, tau, found.tau_high),
                "rho": _held(found.rho_low, rho, found.rho_high),
                "difference": _held(row[low_of(TAU)], 0.0, row[high_of(TAU)]),
                "mean": _held(low, mean, high),
                "lead": _held(lead.low[0], 0.0, lead.high[0]),
                "alone": _held(alone.tau_low, tau, alone.tau_high),
                "width": found.tau_high - found.tau_low,
            }


@dataclass(frozen=True)
class Alike(Study):
    """Two runs with one mean, by the ``kind`` of their differences and the share that is large."""

    kind: str
    rare: float
    n: int

    limits: ClassVar[Limits] = {"holds": (0.95, 1), "first": (0, 0.025), "second": (0, 0.025)}

    def each(self) -> Iterator[StudyFigures]:
        place, draw = list(KINDS).index(self.kind), KINDS[self.kind](self.rare)
        for number in self.numbers:
            scores, _ = draw(np.random.default_rng([place, self.n, number]), self.n)
            differences = scores[0] - scores[1]
            (p,) = p_values(differences[None], 1.0, np.zeros(1), comparisons=1)
            ahead = np.sign(differences.sum()) * (p < LEVEL)
            yield {"holds": float(p >= LEVEL), "first": float(ahead > 0), "second": float(ahead < 0)}  # fmt: skip


@dataclass(frozen=True)
class Several(Study):
    """Runs by the name of their true state."""

    runs: str
    n: int

    limits: ClassVar[Limits] = {"all": (0.95, 1)}

    def each(self) -> Iterator[StudyFigures]:
        for number in self.numbers:
            rng = np.random.default_rng([list(SEVERAL).index(self.runs), self.n, number])
            scores, means = SEVERAL[self.runs](rng, self.n)
            first, second = np.triu_indices(len(scores), 1)
            paired, true = scores[first] - scores[second], means[first] - means[second]
            p = p_values(paired, 1.0, true, comparisons=len(paired))
            best = scores.mean(axis=1).argmax()
            drawn = rng.multinomial(self.n, np.full(self.n, 1 / self.n), 400) / self.n
            leads = drawn @ (scores[best] - np.delete(scores, best, axis=0)).T
            lows = np.quantile(leads, LEVEL / 2, axis=0)
            yield {"all": float((p >= LEVEL).all()), "unadjusted": float((lows > 0).any())}


@dataclass(frozen=True)
class Gate(Study):
    """Three pairs that lose the margin, by the name of their differences."""

    loss: str
    margin: float
    n: int

    limits: ClassVar[Limits] = dict.fromkeys(
        ("not worse", "worse", "family not worse", "family worse"), (0, GATE_LEVEL)
    )
    family: ClassVar[int] = 3

    def each(self) -> Iterator[StudyFigures]:
        for number in self.numbers:
            rng = np.random.default_rng([list(LOSSES).index(self.loss), self.n, number])
            rows = np.stack(
                [LOSSES[self.loss](rng, self.n, self.margin) for _ in range(self.family)]
            )
            p = p_values(rows, 1.0, np.full(self.family, -self.margin), comparisons=1)
            above, sure = rows.mean(axis=1) > -self.margin, p < 2 * GATE_LEVEL
            yield {
                "not worse": float((above & sure).mean()),
                "worse": float((~above & sure).mean()),
                "family not worse": float((above & sure).all()),
                "family worse": float((~above & (p < 2 * GATE_LEVEL / self.family)).any()),
            }


@dataclass(frozen=True)
class Plan(Study):
    """A lead of the first run over the second, by name."""

    runs: str

    limits: ClassVar[Limits] = {"power": (0.78, 0.83)}
    amounts: ClassVar = {"n": np.mean}

    def each(self) -> Iterator[StudyFigures]:
        place, draw = list(PLANNED).index(self.runs), PLANNED[self.runs]
        # Enough for the true mean: with 100,000 it is off by 3% for small leads, and n by 6%.
        scores, _ = draw(np.random.default_rng(place), 4_000_000)
        comparisons = len(scores) * (len(scores) - 1) // 2
        lead = scores[0] - scores[1]
        n = queries_needed(lead, 1.0, confidence=1 - LEVEL, comparisons=comparisons, as_here=True)
        assert n is not None
        for number in self.numbers:
            scores, _ = draw(np.random.default_rng([place, n, number]), n)
            drawn = (scores[0] - scores[1])[None]
            (p,) = p_values(drawn, 1.0, np.zeros(1), comparisons=comparisons)
            yield {"power": float(p < LEVEL), "n": n}


def _near(variable: Floats, correlation: float, rng: np.random.Generator) -> Floats:
    noise = np.sqrt(1 - correlation**2) * rng.normal(size=len(variable))
    return np.asarray(correlation * variable + noise)


@dataclass(frozen=True)
class Width(Study):
    """A mean, or the lead of the first of two runs nearly alike.

    Attributes:
        share: share of right answers, by exact match or ``graded``.
        pair: whether it is a lead.
        times: allowed width of the interval, as a multiple of the width with all lists.
        know: correlation of the variables behind a list's score and behind the labels of its first three passages.
    """

    share: float
    graded: bool
    pair: bool
    queries: int
    times: float
    know: float

    limits: ClassVar[Limits] = {"held": (LEAST, 1)}
    amounts: ClassVar = {"lists": np.mean}
    # Graded scores: full and half scores, as shares of the number of right answers.
    wholly: ClassVar[float] = 0.8
    half: ClassVar[float] = 0.3
    # Ratio of the second run's right answers to the first's; correlation of the qualities of their lists.
    second: ClassVar[float] = 0.8
    alike: ClassVar[float] = 0.9

    @property
    def mean(self) -> float:
        """The true mean, or the true lead."""
        right = self.share * (1 - self.second if self.pair else 1)
        return right * (self.wholly + self.half / 2) if self.graded else right

    def draw(self, rng: np.random.Generator) -> list[tuple[Floats, Floats]]:
        """By run, the scores of whole lists and the features from their labels."""
        common, runs = rng.normal(size=self.queries), []
        for share in (self.share, self.second * self.share)[: 1 + self.pair]:
            quality = _near(common, self.alike, rng)
            scored = _near(quality, self.know, rng)
            both = (self.wholly * share, (self.wholly + self.half) * share)
            parts = both if self.graded else (share,)
            y = np.mean([scored > ndtri(1 - part) for part in parts], axis=0)
            # The second and the third passage are less useful than the first, and labels are noisy.
            noise = rng.normal(0, 0.45, (self.queries, 3))
            useful = quality[:, None] - np.array([0.0, 0.8, 1.2]) + noise > ndtri(1 - share)
            found = useful.any(axis=1)
            rank = 1 + useful.argmax(axis=1)
            runs.append((y, np.stack([useful[:, 0], found / rank, found], axis=1) * 1.0))
        return runs

    def read(self, runs: list[tuple[Floats, Floats]], width: float) -> tuple[int, Floats]:
        """Number of lists read, in rounds like ``--width``'s, and the final interval."""
        order, labelled, n = np.arange(self.queries), False, min(FIRST_LISTS, self.queries)
        while n < self.queries:
            found = _of_lists(runs, order if labelled else order[:n], n)
            further = next_lists([found], width, LEVEL, self.queries, labelled=labelled)
            if labelled and n == further[0]:
                return n, np.array(found.interval(LEVEL))
            n, labelled = further
        if not self.pair:
            return n, np.array(mean_interval(runs[0][0], 1 - LEVEL))
        apart = (runs[0][0] - runs[1][0])[None]
        lead = paired_intervals(apart, 1.0, confidence=1 - LEVEL, comparisons=1)
        return n, np.array([lead.low[0], lead.high[0]])

    def each(self) -> Iterator[StudyFigures]:
        seed = [int(1000 * self.share), self.graded, self.pair, self.queries, int(100 * self.know)]
        rng, count = np.random.default_rng([*seed, int(10 * self.times)]), self.queries
        pilots = [_of_lists(self.draw(rng), np.arange(count), count) for _ in range(8)]
        halves = [half_width([one], LEVEL, count, count) for one in pilots]
        for _ in range(self.samples):
            n, (low, high) = self.read(self.draw(rng), self.times * float(np.mean(halves)))
            held = _held(low, self.mean, high)
            yield {"held": held, "low": float(self.mean < low), "high": float(self.mean > high), "all": float(n == count), "lists": n}  # fmt: skip


@dataclass(frozen=True)
class Lists(Study):
    """A mean from sampled lists, of which ``right`` are expected to be right, with labels of correlation ``know``."""

    lists: int
    right: float
    queries: int
    know: float

    limits: ClassVar[Limits] = {"held": (0.95, 1)}
    amounts: ClassVar = {"width": np.median}

    def each(self) -> Iterator[StudyFigures]:
        share = self.right / self.lists
        drawn_by = Width(share, False, False, self.queries, 1.0, self.know, samples=0)
        for number in self.numbers:
            rng = np.random.default_rng(
                [self.lists, int(10 * self.right), self.queries, int(100 * self.know), number]
            )
            made = _of_lists(drawn_by.draw(rng), np.arange(self.queries), self.lists)
            low, high = made.interval(LEVEL)
            yield {"held": _held(low, share, high), "low": float(share < low), "high": float(share > high), "width": high - low}  # fmt: skip


def _of_lists(runs: list[tuple[Floats, Floats]], known: Any, n: int) -> Estimate:
    """Estimate from the labels of some queries, and the lists of the first n queries."""
    unread = np.arange(len(known)) >= n
    first, *other = (
        estimate(np.where(unread, np.nan, y[known]), features[known]) for y, features in runs
    )
    return first.less(other[0]) if other else first


@dataclass(frozen=True)
class Ask(Study):
    """Two runs by the name of their true state (``PREFERENCES``), and a number of tasks."""

    runs: str
    tasks: int
    limits: ClassVar[Limits] = {"holds": (LEAST, 1)}
    amounts: ClassVar = {"bias": np.mean, "width": np.mean}
    queries: ClassVar[int] = 600

    def at_random(
        self, tasks: int, rng: np.random.Generator, queries: pl.DataFrame
    ) -> tuple[float, float]:
        """The interval of tasks drawn from all queries."""
        drawn = _unlabelled(queries[rng.permutation(queries.height)[:tasks]])
        return preferred(drawn, differing=self.queries, queries=self.queries, level=LEVEL)[1:]

    def each(self) -> Iterator[StudyFigures]:
        true = PREFERENCES[self.runs]
        for number in self.numbers:
            rng = np.random.default_rng([self.tasks, number, 1])
            queries = true.draw(rng, self.queries)
            differing = queries.drop_nulls(STRATUM)
            drawn = asking.draw_tasks(differing, self.tasks, rng)
            of_all = partial(
                preferred, differing=differing.height, queries=self.queries, level=LEVEL
            )
            value, low, high = of_all(drawn)
            found = {"holds": (low, high), "alone": of_all(_unlabelled(drawn.filter("random")))[1:]}
            found["at random"] = self.at_random(self.tasks, rng, queries)
            holds = {kind: _held(below, true.mean, above) for kind, (below, above) in found.items()}
            yield holds | {"bias": value - true.mean, "width": high - low}

    def further(self, found: Mapping[str, float]) -> StudyFigures:
        times = (0.5, 0.75, 1, 1.4, 2, 3, 4.5, 7)
        sizes = [n for one in times if (n := round(one * self.tasks)) <= self.queries]
        draw, widths = PREFERENCES[self.runs].draw, []
        for n in sizes:
            rngs = [np.random.default_rng([n, i]) for i in range(max(1, self.samples // 8))]
            bounds = [self.at_random(n, rng, draw(rng, self.queries)) for rng in rngs]
            widths.append(np.mean([high - low for low, high in bounds]))
        logs, amounts, wanted = np.log(widths), np.log(sizes), np.log(found["width"])
        # Extrapolated beyond the largest number.
        slope, start = np.polyfit(logs[-3:], amounts[-3:], 1)
        inside = np.interp(wanted, logs[::-1], amounts[::-1])
        as_many = np.exp(start + slope * wanted if wanted < logs[-1] else inside)
        return {"of random": float(self.tasks / as_many)}


def _unlabelled(drawn: pl.DataFrame) -> pl.DataFrame:
    return drawn.with_columns(pl.lit(0.0).alias(LABEL), pl.lit(1.0).alias(PROBABILITY))
