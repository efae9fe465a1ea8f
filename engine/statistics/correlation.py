"""Kendall's tau-b and Spearman's rho, with percentile bootstrap intervals over queries."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import scipy.stats

Floats = npt.NDArray[np.float64]

# Replicates are computed in blocks of about this many bytes.
_BLOCK_BYTES = 64 * 2**20


@dataclass(frozen=True)
class Correlation:
    """A correlation with its interval.

    ``tau``, ``rho`` in [-1, 1]; NaN where undefined, and then ``note`` says why. Interval bounds are
    NaN where no interval was asked for or fewer than half of the resamples define the statistic.
    """

    n: int
    tau: float
    tau_low: float
    tau_high: float
    rho: float
    rho_low: float
    rho_high: float
    note: str


def correlate(
    x: Floats,
    y: Floats,
    *,
    resamples: int = 10_000,
    confidence: float = 0.95,
    seed: int = 0,
) -> Correlation:
    """Correlate two scores of the same n queries.

    tau-b (Kendall 1945) and rho are SciPy's ``kendalltau`` and ``spearmanr``. The interval is the
    percentile bootstrap (Efron 1979) over queries: each resample draws n queries with replacement.
    The same seed and n draw the same queries, so cells of one table are resampled alike.

    Args:
        x, y: shape (n,), finite.
        resamples: bootstrap resamples; 0 leaves the interval out (NaN).
        confidence: in (0, 1).
        seed: of ``numpy.random.default_rng``.
    """
    n = len(x)
    note = _undefined(x, y)
    if note:
        nan = float("nan")
        return Correlation(n, nan, nan, nan, nan, nan, nan, note)
    tau = float(scipy.stats.kendalltau(x, y).statistic)
    rho = float(scipy.stats.spearmanr(x, y).statistic)
    if resamples == 0:
        nan = float("nan")
        return Correlation(n, tau, nan, nan, rho, nan, nan, "")
    taus, rhos = bootstrap(x, y, resamples=resamples, seed=seed)
    defined = np.isfinite(taus)
    share = defined.mean()
    if share < 0.5:
        note = f"no interval: one side is constant in {1 - share:.0%} of the resamples"
        low = high = rho_low = rho_high = float("nan")
    else:
        if share < 1:
            note = f"one side is constant in {(1 - share) * 100:.2g}% of the resamples, left out"
        tails = [(1 - confidence) / 2, (1 + confidence) / 2]
        low, high = np.quantile(taus[defined], tails)
        rho_low, rho_high = np.quantile(rhos[defined], tails)
    return Correlation(n, tau, float(low), float(high), rho, float(rho_low), float(rho_high), note)


def _undefined(x: Floats, y: Floats) -> str:
    """Why no correlation of x (the measure) and y (the end-to-end score) is defined; or nothing."""
    if len(x) < 2:
        return "undefined: fewer than two queries"
    constant = [
        f"the {what} is {values[0]:g} for every query"
        for what, values in (("measure", x), ("end-to-end score", y))
        if (values == values[0]).all()
    ]
    return f"undefined: {' and '.join(constant)}" if constant else ""


def bootstrap(x: Floats, y: Floats, *, resamples: int, seed: int) -> tuple[Floats, Floats]:
    """tau-b and rho of bootstrap resamples: two arrays of shape (resamples,), NaN where undefined.

    Replicate b equals SciPy's value on the queries that it draws (tested). Instead of drawing
    queries one by one, the m distinct (x, y) pairs get their multiplicities: concordant less
    discordant pairs are a quadratic form in them, ties and mid-ranks sums of them, so a block of
    replicates is a matrix product of O(m^2) per replicate. All counts are exact in float64.
    """
    n = len(x)
    pairs, inverse = np.unique(np.column_stack([x, y]), axis=0, return_inverse=True)
    inverse = inverse.reshape(-1)
    m = len(pairs)
    x_codes = np.unique(pairs[:, 0], return_inverse=True)[1].reshape(-1)
    y_codes = np.unique(pairs[:, 1], return_inverse=True)[1].reshape(-1)
    rng = np.random.default_rng(seed)
    taus, rhos = np.empty(resamples), np.empty(resamples)
    rows = max(1, min(resamples, _BLOCK_BYTES // (8 * max(n, m))))
    for start in range(0, resamples, rows):
        size = min(rows, resamples - start)
        drawn = inverse[rng.integers(0, n, size=(size, n))]
        offsets = np.arange(size)[:, None] * m
        counts = np.bincount((drawn + offsets).ravel(), minlength=size * m)
        weights = counts.reshape(size, m).astype(np.float64)
        taus[start : start + size] = _tau_b(weights, x_codes, y_codes, n)
        rhos[start : start + size] = _rho(weights, x_codes, y_codes)
    return taus, rhos


def _tau_b(
    weights: Floats, x_codes: npt.NDArray[np.intp], y_codes: npt.NDArray[np.intp], n: int
) -> Floats:
    """tau-b of each row of multiplicities ``weights`` (B, m) of the pairs with these codes (m,)."""
    m = len(x_codes)
    score = np.zeros(len(weights))
    tile = max(1, _BLOCK_BYTES // (8 * m))  # the (m, m) matrix of signs in tiles of rows
    for start in range(0, m, tile):
        rows = slice(start, start + tile)
        signs = np.sign(x_codes[rows, None] - x_codes[None, :]) * np.sign(
            y_codes[rows, None] - y_codes[None, :]
        )
        score += np.einsum("bi,bi->b", weights[:, rows], weights @ signs.T.astype(np.float64))
    total = n * (n - 1) / 2
    free = [
        total - (count * (count - 1) / 2).sum(axis=1)
        for count in (_group(weights, codes) for codes in (x_codes, y_codes))
    ]
    with np.errstate(divide="ignore", invalid="ignore"):
        # Each unordered pair stands twice in the quadratic form.
        tau = score / 2 / np.sqrt(free[0]) / np.sqrt(free[1])
    return np.where((free[0] > 0) & (free[1] > 0), np.clip(tau, -1, 1), np.nan)


def _rho(weights: Floats, x_codes: npt.NDArray[np.intp], y_codes: npt.NDArray[np.intp]) -> Floats:
    """Spearman's rho of each row of multiplicities: Pearson's r of the mid-ranks."""
    n = weights.sum(axis=1, keepdims=True)
    centred: list[Floats] = []
    spread: list[Floats] = []
    for codes in (x_codes, y_codes):
        count = _group(weights, codes)
        midrank = np.cumsum(count, axis=1) - (count - 1) / 2
        ranks = midrank[:, codes] - (n + 1) / 2  # the mean rank is (n + 1) / 2 whatever the ties
        centred.append(ranks)
        spread.append((weights * ranks**2).sum(axis=1))
    with np.errstate(divide="ignore", invalid="ignore"):
        rho = (weights * centred[0] * centred[1]).sum(axis=1) / np.sqrt(spread[0] * spread[1])
    return np.where((spread[0] > 0) & (spread[1] > 0), np.clip(rho, -1, 1), np.nan)


def _group(weights: Floats, codes: npt.NDArray[np.intp]) -> Floats:
    """Sum the columns of ``weights`` (B, m) that share a code: (B, number of codes)."""
    order = np.argsort(codes, kind="stable")
    starts = np.flatnonzero(np.diff(codes[order], prepend=-1))
    return np.add.reduceat(weights[:, order], starts, axis=1)
