"""The queries that a difference needs: by hand, by exact power, and by simulation of the test in use."""

import math

import numpy as np
import pytest
import scipy.stats

from engine.statistics.leads import paired_intervals
from engine.statistics.power import QueriesNeeded, queries_for, queries_needed


def differences(wins, losses, n):
    return np.array([1.0] * wins + [-1.0] * losses + [0.0] * (n - wins - losses))


def for_binary(wins, losses, comparisons=1):
    """With shares of 100,000 queries, so that the two added ones do not count."""
    n = 10**5
    found = differences(int(wins * n), int(losses * n), n)
    return queries_for(found, wins - losses, 1.0, confidence=0.95, comparisons=comparisons)


def exact_power(n, wins, losses, alpha=0.05):
    """Of the exact sign test, which the randomization test is for differences of -1, 0 and 1."""
    differing = np.arange(n + 1)
    chances = scipy.stats.binom.pmf(differing, n, wins + losses)
    differing, chances = differing[chances > 1e-12], chances[chances > 1e-12]
    # the most wins whose p-value is not below alpha
    most = scipy.stats.binom.isf(alpha / 2, differing, 0.5)
    return chances @ scipy.stats.binom.sf(most, differing, wins / (wins + losses))


@pytest.mark.parametrize(
    ("wins", "losses"),
    [(0.08, 0.02), (0.05, 0), (0.15, 0.1), (0.3, 0.1), (0.03, 0.01), (0.1, 0.05)],
)
def test_few_discordant_queries_are_found_with_80_percent(wins, losses):
    n = for_binary(wins, losses)
    # power over neighbouring n: the exact test moves in steps
    powers = [exact_power(m, wins, losses) for m in range(n - 5, n + 6)]
    assert 0.78 <= float(np.mean(powers)) <= 0.83


@pytest.mark.parametrize("effect", [0.15, 0.3, 0.5])
def test_continuous_differences_are_found_with_80_percent(effect):
    found = effect + scipy.stats.norm.ppf((np.arange(2000) + 0.5) / 2000)
    scale = effect + 2.5  # about the largest of a hundred
    n = queries_for(found, effect, scale, confidence=0.95, comparisons=1)
    drawn = np.random.default_rng(n).normal(effect, 1, (3000, n))
    low, _ = paired_intervals(drawn, np.abs(drawn).max(axis=1), confidence=0.95, comparisons=1)
    # a t-test, which the randomization test is nearly
    hits = (low > 0) & (scipy.stats.ttest_1samp(drawn, 0, axis=1).pvalue < 0.05)
    assert 0.78 <= hits.mean() <= 0.83  # standard error 0.007


def test_normal_approximation_by_hand():
    # Many queries with h = 0 and small effects: (1.960 + 0.8416)^2 (s / d)^2, s = 1, d = 0.01 is 78,490;
    # the two added queries, of scale 3, and the skew matter in the fourth digit.
    found = 0.01 + scipy.stats.norm.ppf((np.arange(20_000) + 0.5) / 20_000)
    n = queries_for(found, 0.01, 3.0, confidence=0.95, comparisons=1)
    assert n == pytest.approx((1.96 + 0.8416) ** 2 / 0.01**2, rel=0.005)
    # three comparisons: the quantile at 1 - 0.05 / 6 is 2.394
    more = queries_for(found, 0.01, 3.0, confidence=0.95, comparisons=3)
    assert more == pytest.approx((2.394 + 0.8416) ** 2 / 0.01**2, rel=0.005)


def test_all_queries_alike_need_six():
    # six coins fall alike with 2 / 2^6 = 0.031, five with 0.0625; the interval takes no more
    assert queries_for(np.ones(3), 1.0, 1.0, confidence=0.95, comparisons=1) in (6, 7)
    assert queries_for(np.ones(3), 5.0, 1.0, confidence=0.95, comparisons=1) in (6, 7)


def test_the_range_is_that_of_the_ends_of_the_interval():
    found = differences(30, 12, 200)
    (low,), (high,) = paired_intervals(found[None], 1.0, confidence=0.95, comparisons=1)
    assert low > 0
    settings = {"confidence": 0.95, "comparisons": 6}
    expected = [queries_for(found, end, 1.0, **settings) for end in (high, low)]
    needed = queries_needed(found, 1.0, **settings)
    assert [needed.low, needed.high] == expected
    assert needed.low < for_binary(0.15, 0.06, comparisons=6) < needed.high
    # the same whichever run comes first
    assert queries_needed(-found, 1.0, **settings) == needed


def test_no_number_is_enough_where_the_interval_holds_0():
    needed = queries_needed(differences(5, 0, 64), 1.0, confidence=0.95)
    assert needed.high is None
    assert needed == QueriesNeeded(low=needed.low, high=None)
    # its upper end, 0.152, by its own distribution: fewer than the 64 there are
    assert needed.low < 64


def test_no_difference_needs_no_number():
    for nothing in (differences(4, 4, 30), np.zeros(9), np.ones(1)):
        assert queries_needed(nothing, 1.0, confidence=0.95) is None


def test_a_unit_that_all_differences_share_is_corrected_for_and_rounding_is_none():
    # thirds, at 12 decimals; then the same spread over many values
    rng = np.random.default_rng(1)
    thirds = np.round(rng.integers(-3, 5, 3000) / 3, 12)
    spread = thirds + rng.uniform(-1e-3, 1e-3, 3000)
    mean = float(thirds.mean())
    coarse, fine = (
        queries_for(found, mean, 4 / 3, confidence=0.95, comparisons=1)
        for found in (thirds, spread)
    )
    # n d - 1/3 instead of n d: about 2 / (3 d) queries more, where the test and not the interval decides
    assert coarse >= fine
    halves, ones = differences(300, 200, 2000), differences(300, 200, 2000) * 0.1
    assert for_scale(halves, 1.0) == for_scale(ones, 0.1)


def for_scale(found, scale):
    return queries_for(found, float(found.mean()), scale, confidence=0.95, comparisons=1)


def test_tiny_differences_need_very_many():
    n = queries_for(differences(20, 10, 100), 1e-6, 1.0, confidence=0.95, comparisons=1)
    assert math.log10(n) == pytest.approx(math.log10(7.85 * 0.31 / 1e-12), abs=0.02)
