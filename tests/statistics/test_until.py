"""Leads decided at any time: the capital by hand and by confseq's own code, errors and stops by simulation."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import scipy.stats

from engine.statistics import until
from engine.statistics.leads import p_values
from engine.statistics.until import (
    MOST_QUERIES,
    as_small_as_likely,
    decided,
    least_enough,
    queries_needed,
)


def one(differences, confidence=0.95, **options):
    (found,) = decided([np.asarray(differences, float)], confidence=confidence, **options)
    return found


def drawn(rng, shape, lead, differing):
    """Differences of 1 and -1 on a share of the questions, with a mean of ``lead``."""
    u = rng.random(shape)
    return np.where(u < (differing + lead) / 2, 1.0, np.where(u < differing, -1.0, 0.0))


def test_no_bet_gains_if_the_mean_is_what_it_is_bet_against():
    """All sequences of five questions, weighted by their probability under a mean of 0.1."""
    chances = {1.0: 0.3, 0.0: 0.5, -1.0: 0.2}
    expected = sum(
        math.prod(map(chances.get, turn)) * math.exp(until._log_capital(np.array(turn), 0.1)[-1])
        for turn in itertools.product(chances, repeat=5)
    )
    assert expected == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize(
    ("mean", "capital"),
    # confseq 0.0.10, diversified_betting_mart with the bets c / m of x = (1 + d) / 2, trunc_scale 1
    [(-0.1, 2711752115.898), (0.0, 181.467851916748), (0.05, 2.24633837542822)],
)
def test_the_capital_is_that_of_confseq(mean, capital):
    rng = np.random.default_rng(7)
    differences = rng.choice([-1.0, 0, 1], 300, p=[0.05, 0.8, 0.15])
    assert math.exp(until._log_capital(differences, mean)[-1]) == pytest.approx(capital, rel=1e-9)


def test_questions_that_do_not_differ_change_no_p_value_and_narrow_the_interval():
    won = one([1.0] * 10)
    among = one([0.0] * 40 + [1.0] * 10 + [0.0] * 50)
    assert among.p == won.p < 0.05
    assert (won.decided_at, among.decided_at) == (10, 50)
    assert 0 < among.high - among.low < won.high - won.low
    assert among.leads == won.leads == 1
    assert one([-1.0] * 10).leads == -1


def test_a_decision_stays_while_the_lead_does_and_the_estimate_lies_in_its_interval():
    rng = np.random.default_rng(1)
    first = drawn(rng, 200, 0.2, 0.3)
    early = one(first)
    late = one(np.append(first, -first[:100]))
    assert early.decided_at == late.decided_at is not None
    assert late.leads == early.leads == 1
    assert late.needed is None
    assert late.low >= early.low - 1e-6
    # An estimate beyond an earlier bound; and bounds that crossed, which is 0 from both sides.
    gone, crossed = one(np.append(first, -first)), one([1.0] * 10 + [-1.0] * 100)
    assert (gone.low, gone.value) == (0.0, 0.0)
    for found in (gone, crossed):
        assert found.low <= found.value <= found.high
        assert found.low <= 0 <= found.high
        assert (found.leads, found.decided_at) == (0, None)
        assert found.p >= 0.05 - 1e-12
    assert crossed.needed > 110


def clustered(rng, samples, clusters, sizes, *, lead=0.0, within=1.0, differing=0.5):
    """Questions of clusters by their codes, and for each sample their differences; a share ``within`` has its cluster's."""
    codes = np.repeat(np.arange(clusters), rng.choice(sizes, clusters))
    shared = drawn(rng, (samples, clusters), lead, differing)[:, codes]
    own = drawn(rng, (samples, len(codes)), lead, differing)
    return codes, np.where(rng.random(own.shape) < within, shared, own)


def test_no_bet_by_cluster_gains_if_the_mean_over_questions_is_what_it_is_bet_against():
    """All sequences of three clusters: half of one question, which is won; half of three, of which 0, 2 or 3 are lost.

    A cluster has 2 questions and a sum of 1/2 - 5/6 on average: -1/6 a question, although 2/9 a cluster.
    """
    chances = {(1.0, 1): 1 / 2, (0.0, 3): 1 / 6, (-2 / 3, 3): 1 / 6, (-1.0, 3): 1 / 6}
    expected = 0.0
    for turn in itertools.product(chances, repeat=3):
        means, sizes = np.array(turn).T
        capital = math.exp(until._log_capital(means, -1 / 6, sizes / 3)[-1])
        expected += math.prod(map(chances.get, turn)) * capital
    assert expected == pytest.approx(1, abs=1e-12)


def test_clusters_of_one_are_questions_and_those_of_equal_size_are_bet_on_as_one():
    rng = np.random.default_rng(2)
    values = drawn(rng, 60, 0.4, 0.5)
    alone = one(values)
    assert one(values, clusters=np.arange(60)[::-1]) == alone
    fives = one(np.repeat(values, 5), clusters=np.arange(300) // 5, most=5)
    assert (fives.low, fives.high, fives.p) == pytest.approx((alone.low, alone.high, alone.p))
    assert (fives.n, fives.decided_at) == (300, 5 * alone.decided_at)
    with pytest.raises(ValueError, match="largest"):
        one(values, clusters=np.arange(60) // 5, most=4)


def test_questions_in_clusters_are_told_apart_falsely_no_more_often_than_others():
    rng = np.random.default_rng(4)
    codes, rows = clustered(rng, 200, 60, (1, 5, 10))
    by_question = [one(row).leads != 0 for row in rows]
    found = [one(row, clusters=codes, most=10) for row in rows]
    assert np.mean(by_question) > 0.15
    assert np.mean([each.leads != 0 for each in found]) <= 0.05
    codes, rows = clustered(rng, 100, 200, (2, 3), lead=0.25)
    found = [one(row, clusters=codes, most=3) for row in rows]
    assert np.mean([each.leads == 1 for each in found]) > 0.8
    assert np.mean([each.low <= 0.25 <= each.high for each in found]) >= 0.95


def test_pairs_share_the_error_and_differences_are_in_units_of_the_largest():
    differences = np.array([1.0] * 10)
    assert decided([differences] * 3, confidence=0.95)[0].p == pytest.approx(
        min(1, 3 * one(differences).p)
    )
    half, whole = one(differences / 2, largest=0.5), one(differences)
    assert half.p == whole.p
    assert half.low == pytest.approx(whole.low / 2)
    with pytest.raises(ValueError, match="largest"):
        one([0.0, 1.1])
    assert one([math.nan, *differences, math.nan]) == whole  # of which the pair lacks some


def test_nothing_read_and_no_lead_say_so():
    nothing, even = one([]), one([1.0, -1.0])
    assert (nothing.low, nothing.high, nothing.needed, nothing.leads) == (-1, 1, None, 0)
    assert math.isnan(nothing.value)
    assert (even.needed, even.p, even.leads) == (None, 1.0, 0)
    assert one([1e-9, 0.0, 0.0]).needed == until.MOST_QUERIES
    assert decided([], confidence=0.95) == ()


def test_equal_runs_are_seldom_told_apart_and_a_clear_lead_soon():
    """Looked at after every question; a share of 300 at 5% has a standard error of 1.3 points."""
    rng = np.random.default_rng(3)
    equal = [one(row) for row in drawn(rng, (300, 100), 0.0, 0.5)]
    assert 0 < np.mean([found.leads != 0 for found in equal]) <= 0.05
    clear = [one(row) for row in drawn(rng, (100, 250), 0.2, 0.3)]
    assert np.mean([found.leads == 1 for found in clear]) > 0.95
    assert np.mean([found.decided_at or 250 for found in clear]) < 0.5 * 250
    assert np.mean([found.low <= 0.2 <= found.high for found in clear]) >= 0.95


def test_the_questions_needed_decide_in_about_four_of_five():
    rng = np.random.default_rng(5)
    few = rng.permutation([1.0] * 13 + [-1.0] * 7 + [0.0] * 80)
    needed = one(few).needed
    found = [one(row).leads == 1 for row in drawn(rng, (150, needed), 0.06, 0.2)]
    assert 0.7 <= np.mean(found) <= 0.92


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
