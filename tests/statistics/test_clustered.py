import numpy as np
import pytest
import scipy.stats

from benchmarks._single import correlate
from benchmarks._studies import Clusters
from benchmarks.intervals import faults, figures
from engine.statistics.bounded import mean_interval
from engine.statistics.clustered import (
    from_jackknife,
    independent_queries,
    intraclass,
)
from engine.statistics.correlation import Bootstrap
from engine.statistics.intervals import binomial_interval
from engine.statistics.resampling import for_each_block, replicate

CELL = Clusters(30, 4, 0.5, "nDCG", "F1", 0.3, samples=0)
CLUSTERS = np.repeat(np.arange(30), 4)


def sample(seed=0):
    first, _, y = CELL.draw(np.random.default_rng(seed), 0.5)
    return first, y


def test_whole_clusters_are_left_out_and_resampled():
    x, y = sample()
    clusters = np.where(CLUSTERS < 29, CLUSTERS, 29 + np.arange(120) % 4)  # the last four are alone
    found = replicate(
        np.stack([x, y]), [(0, 1)], resamples=40, seed=3, leave_out=True, clusters=clusters
    )
    for cluster in range(33):
        kept = clusters != cluster
        tau = scipy.stats.kendalltau(x[kept], y[kept]).statistic
        assert found.without[0, 0, cluster] == pytest.approx(tau, abs=1e-12)
    drawn = []
    for_each_block(
        np.arange(120),
        120,
        lambda first, weights: drawn.extend(weights),
        clusters,
        resamples=40,
        seed=3,
        threads=1,  # in their order
    )
    counts = np.array(drawn)
    for cluster in range(33):
        of_cluster = counts[:, clusters == cluster]
        assert (of_cluster == of_cluster[:, :1]).all()
    assert (counts[:, [0, *range(4, 120, 4), 117, 118, 119]].sum(axis=1) == 33).all()
    tau = scipy.stats.kendalltau(np.repeat(x, counts[0]), np.repeat(y, counts[0])).statistic
    assert found.taus[0, 0] == pytest.approx(tau, abs=1e-12)


def test_clusters_of_one_query_are_queries():
    x, y = sample()
    alone = np.arange(120)
    assert independent_queries(x, y, alone, confidence=0.95) == 120
    settings = {"resamples": 40, "seed": 1, "leave_out": True}
    by_query = replicate(np.stack([x, y]), [(0, 1)], **settings)
    by_cluster = replicate(np.stack([x, y]), [(0, 1)], **settings, clusters=alone)
    assert (by_query.without == by_cluster.without).all()


def test_copies_of_a_query_say_no_more_than_the_query():
    x, y = sample()
    clusters = np.repeat(np.arange(40), 3)
    x, y = np.repeat(x[:40], 3), np.repeat(y[:40], 3)
    assert intraclass(x, clusters) == pytest.approx(1)
    # 40 times the square of t's quantile of 119 degrees of freedom over that of 39: (1.980 / 2.023)²
    assert independent_queries(x, y, clusters, confidence=0.95) == 38
    bootstrap = Bootstrap(resamples=200)
    wide, narrow = correlate(x, y, bootstrap, clusters), correlate(x, y, bootstrap)
    assert wide.method == "studentized"
    assert wide.tau_high - wide.tau_low > 1.5 * (narrow.tau_high - narrow.tau_low)
    right = (y > 0).astype(float)
    assert mean_interval(right, 0.95, clusters) == pytest.approx(
        binomial_interval(right[::3].sum(), 40, 0.95), abs=1e-9
    )


def test_the_test_is_the_level_at_which_its_interval_reaches_0():
    x, y = sample()
    without = replicate(
        np.stack([x, y]), [(0, 1)], resamples=0, seed=0, leave_out=True, clusters=CLUSTERS
    ).without[0, 0]
    tau = scipy.stats.kendalltau(x, y).statistic
    test = from_jackknife(tau, without, (x, y), CLUSTERS, confidence=0.95)
    at_p = from_jackknife(tau, without, (x, y), CLUSTERS, confidence=1 - test.p)
    assert at_p.low == pytest.approx(0, abs=1e-9)
    assert (test.p < 0.05) == (test.low > 0)


@pytest.mark.parametrize(
    ("count", "note"), [(10, "10 clusters are too few"), (12, "fewer than 3 of 12 clusters")]
)
def test_what_clusters_cannot_show_has_no_interval(count, note):
    rng = np.random.default_rng(1)
    clusters = np.repeat(np.arange(count), 100)
    x, y = rng.normal(size=(2, len(clusters)))
    y[clusters > 1] = 0
    found = correlate(x, y, Bootstrap(resamples=100), clusters)
    assert not found.method
    assert note in found.note


def test_a_mean_without_any_spread_counts_as_many_queries_as_clusters():
    for value, wins in ((0.0, 0), (1.0, 12)):
        found = mean_interval(np.full(60, value), 0.95, np.repeat(np.arange(12), 5))
        assert found == pytest.approx(binomial_interval(wins, 12, 0.95), abs=1e-9)


def test_intervals_hold_where_independent_queries_would_not():
    cell = Clusters(40, 5, 0.9, "P@10", "right", 0.3, samples=30, draws=100)
    found = figures(cell)
    assert all(found[kind][0] >= 0.85 for kind in ("tau", "difference", "mean", "lead"))
    assert found["alone"][0] < 0.85
    assert not faults(cell, found)
