"""The queries that a difference needs: by hand, by exact power, and by simulation of the method in use."""

import numpy as np
import pytest
import scipy.stats

from engine.statistics.leads import p_values
from engine.statistics.power import MOST_QUERIES, least_enough, queries_needed


def differences(wins, losses, n):
    return np.array([1.0] * wins + [-1.0] * losses + [0.0] * (n - wins - losses))


def needed_for(found, largest=1.0, comparisons=1):
    return queries_needed(found, largest, confidence=0.95, comparisons=comparisons)


def exact_power(n, wins, losses, alpha=0.05):
    """Of the exact sign test, which the method is for differences of -1, 0 and 1 of two runs."""
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
    n = needed_for(differences(int(wins * 10_000), int(losses * 10_000), 10_000))
    # power over neighbouring n: the exact test moves in steps
    powers = [exact_power(m, wins, losses) for m in range(n - 5, n + 6)]
    assert 0.77 <= float(np.mean(powers)) <= 0.83


@pytest.mark.parametrize(("rare", "comparisons"), [(0.05, 1), (0.02, 45)])
def test_runs_that_are_nearly_alike_are_found_with_80_percent(rare, comparisons):
    # 1 on a few queries, 0.1 either way on many
    alike = [1.0] * int(1000 * rare) + [0.1, -0.1] * 150
    found = np.array(alike + [0.0] * (1000 - len(alike)))
    n = needed_for(found, comparisons=comparisons)
    drawn = np.random.default_rng(n).choice(found, (400, n))
    p = p_values(drawn, 1.0, np.zeros(400), comparisons=1) * comparisons
    assert 0.73 <= (p < 0.05).mean() <= 0.87  # standard error 0.02


def test_normal_approximation_by_hand():
    # Small effects on many queries: (1.960 + 0.8416)² (s / d)² is 78,490 for s = 0.2, d = 0.002; the largest
    # difference of 1 adds 2 D / d = 1,000 or so.
    found = 0.002 + 0.2 * scipy.stats.norm.ppf((np.arange(20_000) + 0.5) / 20_000)
    assert needed_for(found) == pytest.approx((1.96 + 0.8416) ** 2 * 100**2, rel=0.02)
    # three comparisons: the quantile at 1 - 0.05 / 6 is 2.394
    more = needed_for(found, comparisons=3)
    assert more == pytest.approx((2.394 + 0.8416) ** 2 * 100**2, rel=0.02)


@pytest.mark.parametrize(("enough", "least"), [(3, 5), (5, 5), (8, 8), (9, 9), (20, 9)])
def test_the_least_that_is_enough_may_be_more_than_half_of_the_most(enough, least):
    assert least_enough(lambda n: n >= enough, 5, 9) == least


def test_all_queries_alike_need_six():
    # six coins fall alike with 2 / 2^6 = 0.031, five with 0.0625
    assert needed_for(np.ones(3)) in (6, 7)


def test_the_same_number_whichever_run_comes_first():
    found = differences(30, 12, 200)
    assert needed_for(-found) == needed_for(found) < needed_for(found, comparisons=6)


def test_no_difference_needs_no_number_and_a_tiny_one_more_than_a_number_says():
    for nothing in (differences(4, 4, 30), np.zeros(9), np.ones(1)):
        assert needed_for(nothing) is None
    assert needed_for(np.append(differences(2000, 2000, 5000), 0.001)) == MOST_QUERIES
