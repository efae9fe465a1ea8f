"""The queries that a difference needs: by hand, by exact power, and by simulation of the method in use."""

import numpy as np
import pytest
import scipy.stats

from engine.statistics.leads import p_values
from engine.statistics.power import (
    MOST_QUERIES,
    as_small_as_likely,
    least_enough,
    queries_needed,
)


def differences(wins, losses, n):
    return np.array([1.0] * wins + [-1.0] * losses + [0.0] * (n - wins - losses))


def needed_for(found, largest=1.0, comparisons=1):
    """Of differences such as these."""
    return queries_needed(found, largest, confidence=0.95, comparisons=comparisons, as_here=True)


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


def test_the_true_mean_is_nearer_to_0_than_the_planned_one_with_10_percent():
    # Of a normal variable around 0 the square is above 0.1257² with 90%; far from 0 the quantile is 1.2816 below it.
    found = differences(10, 10, 64)
    error = found.std(ddof=1) / 8
    assert as_small_as_likely(found).mean() == pytest.approx(0.12566 * error, rel=1e-4)
    for shift in (2 * error, 30 * error):
        for side in (1, -1):
            moved = as_small_as_likely(side * (found + shift)).mean()
            # from both tails: scipy's folded normal
            nearest = scipy.stats.foldnorm.ppf(0.1, shift / error) * error
            assert side * moved == pytest.approx(nearest, rel=1e-6)
    for sure in (np.ones(3), np.ones(1), np.zeros(0)):
        assert as_small_as_likely(sure).tolist() == sure.tolist()


@pytest.mark.parametrize(("wins", "losses"), [(0.15, 0.1), (0.1, 0.05), (0.05, 0.01)])
def test_most_plans_of_64_queries_are_enough(wins, losses):
    enough = needed_for(differences(int(1e4 * wins), int(1e4 * losses), 10_000))
    rng, plans = np.random.default_rng(7), []
    while len(plans) < 60:
        found = differences(*rng.multinomial(64, [wins, losses, 1 - wins - losses])[:2], 64)
        if found.any() and p_values(found[None], 1.0, np.zeros(1), comparisons=1)[0] >= 0.05:
            both = (queries_needed(found, 1.0, confidence=0.95, as_here=here) for here in (0, 1))
            plans.append(tuple(both))
    shown, as_here = (
        np.array([n or np.inf for n in column]) for column in zip(*plans, strict=True)
    )
    assert (shown >= enough).mean() >= 0.9
    # As large as here is too few in about half.
    assert 0.25 <= (as_here >= enough).mean() <= 0.75


def test_clusters_are_moved_as_one():
    found = np.repeat(differences(5, 3, 16), 4)
    clusters = np.repeat(np.arange(16), 4)
    plan = {"confidence": 0.95, "comparisons": 3}  # of one pair the interval of clusters is another
    of_clusters = queries_needed(found, 1.0, clusters=clusters, **plan)
    assert of_clusters == 4 * queries_needed(differences(5, 3, 16), 1.0, **plan)
