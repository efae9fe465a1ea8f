import math

import numpy as np
import polars as pl
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from engine import tables
from engine.statistics.correlation import bootstrap, correlate
from engine.statistics.table import correlations


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 2)), min_size=2, max_size=25),
    st.integers(0, 10),
)
def test_every_replicate_equals_scipy_on_the_drawn_queries(pairs, seed):
    x, y = (np.array(side, dtype=float) / 3 for side in zip(*pairs, strict=True))
    taus, rhos = bootstrap(x, y, resamples=20, seed=seed)
    drawn = np.random.default_rng(seed).integers(0, len(x), size=(20, len(x)))
    for rows, tau, rho in zip(drawn, taus, rhos, strict=True):
        if np.ptp(x[rows]) == 0 or np.ptp(y[rows]) == 0:
            assert math.isnan(tau)
            assert math.isnan(rho)
        else:
            assert tau == pytest.approx(scipy.stats.kendalltau(x[rows], y[rows])[0], abs=1e-12)
            assert rho == pytest.approx(scipy.stats.spearmanr(x[rows], y[rows])[0], abs=1e-12)


def test_blocks_do_not_change_the_replicates(monkeypatch):
    rng = np.random.default_rng(1)
    x, y = rng.random(40), rng.integers(0, 2, 40).astype(float)
    whole = bootstrap(x, y, resamples=50, seed=3)
    monkeypatch.setattr("engine.statistics.correlation._BLOCK_BYTES", 8 * 40 * 7)
    for a, b in zip(whole, bootstrap(x, y, resamples=50, seed=3), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-12)


def test_values_and_interval():
    rng = np.random.default_rng(0)
    x = rng.integers(0, 5, 80).astype(float)
    y = (x + rng.normal(size=80) > 2).astype(float)
    result = correlate(x, y, resamples=2000, seed=1)
    assert result.tau == pytest.approx(scipy.stats.kendalltau(x, y).statistic, abs=1e-12)
    assert result.rho == pytest.approx(scipy.stats.spearmanr(x, y).statistic, abs=1e-12)
    # SciPy's own percentile bootstrap, other draws: bounds agree to Monte Carlo error
    peer = scipy.stats.bootstrap(
        (x, y), lambda a, b: scipy.stats.kendalltau(a, b).statistic, paired=True,
        vectorized=False, n_resamples=2000, method="percentile", rng=2,
    ).confidence_interval  # fmt: skip
    assert result.tau_low == pytest.approx(peer.low, abs=0.02)
    assert result.tau_high == pytest.approx(peer.high, abs=0.02)
    assert correlate(x, y, resamples=2000, seed=1) == result
    assert correlate(x, y, resamples=2000, seed=2) != result
    narrow = correlate(x, y, resamples=2000, seed=1, confidence=0.5)
    assert result.tau_low < narrow.tau_low < narrow.tau_high < result.tau_high


@pytest.mark.parametrize(
    ("x", "y", "note"),
    [
        ([1, 1, 1], [0, 1, 0], "undefined: the measure is 1 for every query"),
        ([0, 1, 2], [0, 0, 0], "undefined: the end-to-end score is 0 for every query"),
        ([1], [1], "undefined: fewer than two queries"),
        ([], [], "undefined: fewer than two queries"),
    ],
)
def test_undefined_correlations_say_why(x, y, note):
    result = correlate(np.array(x, float), np.array(y, float))
    assert math.isnan(result.tau)
    assert math.isnan(result.rho)
    assert result.note == note


def test_resamples_that_are_constant_are_counted():
    x = np.array([0.0] * 9 + [1.0])
    y = np.array([0.0] * 9 + [1.0])
    result = correlate(x, y, resamples=1000)
    assert result.tau == pytest.approx(1)
    # a resample misses the one different query with probability 0.9 ** 10 = 0.35
    assert "left out" in result.note
    assert result.tau_low == pytest.approx(1)


def test_without_resamples_there_is_no_interval():
    result = correlate(np.array([0.0, 1, 2]), np.array([0.0, 1, 1]), resamples=0)
    assert math.isnan(result.tau_low)
    assert result.tau > 0


def test_the_table_joins_by_query_id_and_not_by_order():
    scores = pl.DataFrame(
        [("s", "a", "P@1", q, v) for q, v in (("1", 0.0), ("2", 0.5), ("3", 1.0))],
        schema=tables.QUERY_SCORES,
        orient="row",
    )
    downstream = pl.DataFrame(
        [("s", q, 5, "", v) for q, v in (("3", 1.0), ("1", 0.0), ("2", 0.4))],
        schema=tables.DOWNSTREAM,
        orient="row",
    )
    (row,) = correlations(scores, downstream, resamples=0).to_dicts()
    assert (row["tau"], row["k"], row["n"]) == (pytest.approx(1), 5, 3)
    assert correlations(scores, tables.empty(tables.DOWNSTREAM)).is_empty()


def test_sums_in_another_order_do_not_rank():
    values = [(0.1 + 0.2) + 0.3, 0.1 + (0.2 + 0.3), 0.9]
    assert values[0] != values[1]
    scores = pl.DataFrame(
        [("s", "a", "P@3", str(i), v) for i, v in enumerate(values)],
        schema=tables.QUERY_SCORES,
        orient="row",
    )
    downstream = pl.DataFrame(
        [("s", str(i), 3, "", v) for i, v in enumerate([0.5, 0.2, 1.0])],
        schema=tables.DOWNSTREAM,
        orient="row",
    )
    (row,) = correlations(scores, downstream, resamples=0).to_dicts()
    expected = scipy.stats.kendalltau([0.6, 0.6, 0.9], [0.5, 0.2, 1.0]).statistic
    assert row["tau"] == pytest.approx(expected)
