"""Intervals of leads: by hand, their agreement with p-values, and how often they hold where that is hardest."""

import math

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.statistics.leads import p_values, paired_intervals


def differing(wins, losses, n):
    return np.array([[1.0] * wins + [-1.0] * losses + [0.0] * (n - wins - losses)])


def test_differences_of_one_have_the_p_value_of_the_sign_test_for_two_runs():
    for wins, losses in ((5, 0), (6, 0), (8, 1), (20, 9), (33, 33)):
        found = paired_intervals(differing(wins, losses, 100), 1.0, confidence=0.95, comparisons=1)
        exact = scipy.stats.binomtest(wins, wins + losses).pvalue
        assert found.p[0] == pytest.approx(exact, rel=1e-6)
        assert (found.low[0] > 0) == (exact < 0.05)


def test_one_pair_of_clustered_runs_has_bonett_and_prices_interval():
    # Clusters of one query are queries: 7 of 400, and one more for either run.
    paired, clusters = differing(7, 0, 400), np.arange(400)
    found = paired_intervals(paired, 1.0, confidence=0.95, comparisons=1, clusters=clusters)
    error = math.sqrt(9 - 49 / 402) / 402
    assert found.p[0] == pytest.approx(2 * scipy.stats.t.sf(7 / 402 / error, 399))
    assert found.low[0] == pytest.approx(7 / 402 - scipy.stats.t.ppf(0.975, 399) * error)
    # Of several pairs, and of independent queries, Gaffke's is taken.
    alone = paired_intervals(paired, 1.0, confidence=0.95, comparisons=3)
    several = paired_intervals(paired, 1.0, confidence=0.95, comparisons=3, clusters=clusters)
    assert np.allclose(alone, several)


@settings(max_examples=40)
@given(
    st.lists(st.sampled_from([-1, -0.5, -0.1, 0, 0.1, 0.3, 1]), min_size=2, max_size=25),
    st.sampled_from([1.0, 1.5, 4.0]),
    st.sampled_from([1, 3, 45]),
    st.sampled_from([0.8, 0.95]),
    st.integers(0, 5),
)
def test_an_interval_lies_in_its_range_holds_its_mean_and_leaves_0_out_where_p_is_small(
    values, largest, comparisons, confidence, per_cluster
):
    paired = np.array([values])
    clusters = np.arange(len(values)) // per_cluster if per_cluster else None
    if clusters is not None and clusters.max() == 0:
        clusters = None
    options = {"confidence": confidence, "comparisons": comparisons, "clusters": clusters}
    (found,) = zip(*paired_intervals(paired, largest, **options), strict=True)
    value, low, high, p = found
    assert -largest <= low <= value <= high <= largest
    assert 0 < p <= 1
    if abs(p - (1 - confidence)) > 1e-9:
        assert (low > 0 or high < 0) == (p < 1 - confidence)
    turned = paired_intervals(-paired, largest, **options)
    assert (-turned.high[0], -turned.low[0]) == pytest.approx((low, high), abs=1e-9)
    if clusters is None and high < largest:
        at_bound = p_values(paired, largest, np.array([high]), comparisons=comparisons)
        assert at_bound[0] == pytest.approx(1 - confidence, abs=1e-6)


def test_queries_that_are_repeated_as_clusters_count_once():
    paired = differing(14, 3, 60)
    settings = {"confidence": 0.95, "comparisons": 3}
    once = paired_intervals(paired, 1.0, **settings)
    five = paired_intervals(
        np.repeat(paired, 5, axis=1), 1.0, clusters=np.repeat(np.arange(60), 5), **settings
    )
    assert np.allclose(once[:4], five[:4])
    assert paired_intervals(np.repeat(paired, 5, axis=1), 1.0, **settings).p[0] < five.p[0]


def test_a_difference_beyond_its_range_is_an_error():
    with pytest.raises(ValueError, match="exceeds the largest"):
        paired_intervals(np.array([[0.5, 1.2]]), 1.0, confidence=0.95, comparisons=1)


def alike(rng, n, rare):
    kind, sign = rng.random(n), rng.choice([-1.0, 1.0], n)
    return np.where(kind < rare, sign, np.where(kind < rare + 0.3, 0.1 * sign, 0.0))


def equal_means(rng, n, rare):
    kind, often = rng.random(n), min(10 * rare, 1 - rare)
    return np.where(kind < rare, 1.0, np.where(kind < rare + often, -rare / often, 0.0))


@pytest.mark.parametrize("draw", [alike, equal_means])
@pytest.mark.parametrize(("n", "rare"), [(30, 0.03), (100, 0.06), (300, 0.02)])
def test_runs_that_are_nearly_alike_are_rarely_called_different(draw, n, rare):
    rng = np.random.default_rng([n, 5])
    drawn = np.array([draw(rng, n, rare) for _ in range(300)])
    called = p_values(drawn, 1.0, np.zeros(300), comparisons=1) < 0.05
    # 5%, and three standard errors of 300 samples
    assert called.mean() <= 0.088


def test_intervals_of_nested_runs_hold_together():
    """Every run is right where the first is, and now and then elsewhere: all differences of one sign."""
    rng, shares, held = np.random.default_rng(6), np.linspace(0, 0.08, 4), 0
    first, second = np.triu_indices(4, 1)
    for _ in range(150):
        scores = ((rng.random(64) < 0.3) | (rng.random((4, 64)) < shares[:, None])).astype(float)
        true = 0.7 * (shares[first] - shares[second])
        held += (p_values(scores[first] - scores[second], 1.0, true, comparisons=6) >= 0.05).all()
    assert held / 150 >= 0.9
