import tracemalloc

import numpy as np
import pytest
import scipy.stats

from engine.statistics import pairs as pairs_module
from engine.statistics import resampling
from engine.statistics.resampling import Draws, distinct_rows, for_each_block, replicate


def drawn(columns, resamples, seed, threads=None):
    """The multiplicities of the distinct rows in every resample, and these rows."""
    rows, row_of = distinct_rows(columns)
    weights = np.zeros((resamples, len(rows)), dtype=int)

    def keep(first, block):
        weights[first : first + len(block)] = block

    for_each_block(row_of, len(rows), keep, Draws(resamples, seed, threads))
    return rows, weights


def columns_of(n, seed=0):
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 3, n) / 2
    return np.stack([labels, rng.random(n), (labels + rng.normal(size=n) > 1).astype(float)])


# 7 queries: some resamples leave a side constant; 400 with 2 columns of few values: multinomial
@pytest.mark.parametrize(("n", "kept"), [(7, [0, 1, 2]), (60, [0, 1, 2]), (400, [0, 2, 2])])
def test_every_replicate_equals_scipy_on_the_drawn_queries(n, kept):
    columns = columns_of(n)[kept]
    pairs = [(0, 2), (1, 2), (0, 1)]
    result = replicate(columns, pairs, Draws(40, 5))
    rows, weights = drawn(columns, 40, 5)
    assert set(weights.sum(axis=1)) == {n}
    for pair, (i, j) in enumerate(pairs):
        for b in range(40):
            x, y = (np.repeat(rows[:, column], weights[b]) for column in (i, j))
            if np.ptp(x) == 0 or np.ptp(y) == 0:
                assert np.isnan(result.taus[pair, b])
                assert np.isnan(result.rhos[pair, b])
                continue
            tau, rho = scipy.stats.kendalltau(x, y).statistic, scipy.stats.spearmanr(x, y).statistic
            assert result.taus[pair, b] == pytest.approx(tau, abs=1e-12)
            assert result.rhos[pair, b] == pytest.approx(rho, abs=1e-12)
        x, y = columns[i], columns[j]
        assert result.tau[pair] == pytest.approx(scipy.stats.kendalltau(x, y).statistic, abs=1e-12)
        assert result.rho[pair] == pytest.approx(scipy.stats.spearmanr(x, y).statistic, abs=1e-12)


@pytest.mark.parametrize("n", [50, 3000])
def test_the_same_bits_for_any_number_of_threads(n):
    columns = columns_of(n)
    one, two, five = (replicate(columns, [(1, 2), (0, 2)], Draws(150, 1, t)) for t in (1, 2, 5))
    for other in (two, five):
        np.testing.assert_array_equal(one.taus, other.taus)
        np.testing.assert_array_equal(one.rhos, other.rhos)


def test_more_resamples_begin_with_the_same():
    columns = columns_of(50)
    few, many = (replicate(columns, [(0, 2)], Draws(r, 1)) for r in (50, 150))
    np.testing.assert_array_equal(few.taus, many.taus[:, :50])
    other = replicate(columns, [(0, 2)], Draws(50, 2))
    assert (few.taus != other.taus).any()


def test_pairs_are_resampled_alike_in_whatever_groups_memory_allows():
    columns = columns_of(100)
    pairs = [(0, 2), (1, 2), (0, 1), (1, 2)]
    whole = replicate(columns, pairs, Draws(70, 1), leave_out=True)
    apart = replicate(columns, pairs, Draws(70, 1), leave_out=True, table_bytes=1)
    for name in ("tau", "rho", "taus", "rhos", "without"):
        np.testing.assert_array_equal(getattr(whole, name), getattr(apart, name))
    np.testing.assert_array_equal(whole.taus[1], whole.taus[3])


def test_other_columns_do_not_change_what_is_drawn():
    columns = columns_of(100)
    one = replicate(columns[[0, 2]], [(0, 1)], Draws(70, 1))
    among_others = replicate(columns, [(0, 2)], Draws(70, 1))
    np.testing.assert_array_equal(one.taus, among_others.taus)


# Multiplicities of 5 distinct rows are drawn directly where there are more than 100 queries.
@pytest.mark.parametrize("n", [100, 200])
def test_multiplicities_are_those_of_drawing_queries(n):
    counts = np.array([5, 10, 15, 20, 50], dtype=np.int32) * n // 100
    values = np.repeat(np.arange(5.0), counts)[None, :]
    _, weights = drawn(values, 20_000, 3)
    mean = weights.mean(axis=0)
    # standard error of a mean: sqrt(n p (1 - p) / 20,000) <= 0.05
    np.testing.assert_allclose(mean, counts, atol=0.25)
    np.testing.assert_allclose(weights.var(axis=0), counts * (1 - counts / n), rtol=0.05)
    covariance = np.cov(weights[:, 3], weights[:, 4])[0, 1]
    assert covariance == pytest.approx(-counts[3] * counts[4] / n, rel=0.1)


# Of ten clusters of 1 to 3,277 queries, ten of the largest have 32,770.
@pytest.mark.parametrize(
    ("n", "clusters", "bits"),
    [(2**15 - 1, None, 16), (2**15, None, 32), (3285, 9, 16), (3286, 9, 32)],
)
def test_multiplicities_have_16_bits_where_these_hold_every_total(n, clusters, bits):
    found = []
    of_cluster = None if clusters is None else np.minimum(np.arange(n), clusters)
    use = lambda first, block: found.append(block)  # noqa: E731
    for_each_block(np.arange(n), n, use, Draws(1, 0), of_cluster)
    assert [block.dtype.itemsize * 8 for block in found] == [bits]


def test_an_error_in_a_block_is_not_lost():
    def fail(first, weights):
        raise RuntimeError("broken")

    with pytest.raises(RuntimeError, match="broken"):
        for_each_block(np.arange(5), 5, fail, Draws(10, 0))


@pytest.mark.parametrize("n", [60, 3000])
def test_the_same_bits_however_much_is_done_at_a_time(n, monkeypatch):
    columns, pairs = columns_of(n), [(1, 2), (0, 1)]
    whole = replicate(columns, pairs, Draws(40, 1), leave_out=True)
    # One row is ranked, one block of pairs multiplied and one resample drawn at a time; signs are bytes.
    for name in ("_CELLS", "FEW_CELLS", "_SIGNS", "_HELD_SIGNS", "_PRODUCT"):
        monkeypatch.setattr(pairs_module, name, 1)
    for name in ("_DRAWN", "_BLOCKS_BYTES", "FEW_CELLS"):
        monkeypatch.setattr(resampling, name, 1)
    cut = replicate(columns, pairs, Draws(40, 1), leave_out=True, table_bytes=1)
    np.testing.assert_array_equal(whole.taus, cut.taus)
    np.testing.assert_array_equal(whole.rhos, cut.rhos)
    np.testing.assert_array_equal(whole.without, cut.without)


def test_resampling_many_queries_takes_little_more_than_their_multiplicities():
    n, draw = 30_000, np.random.default_rng(0)
    columns = draw.random((3, n))
    tracemalloc.start()
    try:
        replicate(columns, [(0, 1), (0, 2), (1, 2)], Draws(32, 0, 1))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    # In units of a block's multiplicities, 4 bytes each. Three tables whose signs are in single precision,
    # and ranks of a whole block in double precision, took 59 of them; this takes 22.
    assert peak < 30 * 32 * 4 * n
