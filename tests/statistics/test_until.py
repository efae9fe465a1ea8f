"""Leads decided at any time: the capital by hand and by confseq's own code, errors and stops by simulation."""

import itertools
import math

import numpy as np
import pytest

from engine.statistics import until
from engine.statistics.until import decided


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
