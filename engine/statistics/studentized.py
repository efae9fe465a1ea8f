"""Studentized intervals of tau-b and rho: for sides whose rarer values are too few to resample."""

from __future__ import annotations

import math

import numpy as np
import scipy as sp

from engine.statistics.arrays import Floats, Mask

# Queries' worth of spread that is added to that of the rarer ones. Three of them may by chance have
# almost the same score, which says little about how far others would lie; without it intervals of
# three to five right answers hold in 90% to 93% of samples.
_AS_THE_OTHERS = 0.1


def studentized(
    estimate: float, without: Floats, rarer: Mask, *, confidence: float
) -> tuple[float, float, float]:
    """The interval and the test, from the leave-one-out values of a correlation.

    The standard error is the jackknife's, summed over three sources: the queries of the rarer kind
    (and a tenth of a query that is spread as the others are), the others, and how many there are of
    each. Where few queries are of the rarer kind, so is the
    error itself uncertain: quantiles are of Student's t, with Satterthwaite's (1946) degrees of
    freedom, as in the test of Brunner & Munzel (2000). They are taken on Fisher's scale artanh(tau),
    whose slope is 1 / (1 - tau^2), so that bounds lie within -1 and 1.

    Args:
        without: shape (n,), the correlation without each query; finite.
        rarer: shape (n,), queries of the rarer kind: those that have not the most frequent value of
            the sparser side. Where they are half of the queries or more, all count as one kind.

    Returns:
        the interval, and the p-value of the hypothesis of 0: 1 less the confidence at which it just reaches 0;
        NaN where the estimate is -1 or 1: no query tells how far it would vary.
    """
    n = len(without)
    if abs(estimate) > 1 - 1e-9:
        return math.nan, math.nan, math.nan
    influence = (n - 1) / n * (without.mean() - without)
    added = _AS_THE_OTHERS / (np.count_nonzero(rarer) - 1)
    error, freedom = standard_error(influence, rarer, as_the_others=added)
    error /= 1 - estimate**2
    quantile = float(sp.special.stdtrit(freedom, (1 + confidence) / 2))
    middle, reach = math.atanh(estimate), quantile * error
    p = 2 * float(sp.special.stdtr(freedom, -abs(middle) / error)) if error else float(middle == 0)
    return math.tanh(middle - reach), math.tanh(middle + reach), p


def standard_error(influence: Floats, rarer: Mask, *, as_the_others: float) -> tuple[float, float]:
    """The standard error of a statistic by kinds of queries, and its degrees of freedom (Satterthwaite 1946).

    Args:
        influence: shape (n,), how the statistic changes with the weight of each query; sum 0.
        rarer: shape (n,), two or more. Where they are half of the queries or more, all count as one kind.
        as_the_others: share of the others' variance that is added to theirs.
    """
    n = len(influence)
    kinds = [influence[rarer], influence[~rarer]]
    # Sums of squares by source, and their degrees of freedom.
    sources = [(float(influence.var(ddof=1)) * n, n - 1)]
    if 2 * len(kinds[0]) < n:
        few, many = (len(kind) for kind in kinds)
        own, others = (float(kind.var(ddof=1)) for kind in kinds)
        # Were they spread as the others are, influences of the few would be many / few times as large.
        own += as_the_others * others * (many / few) ** 2
        apart = float(kinds[0].mean() - kinds[1].mean())
        sources = [(own * few, few - 1), (others * many, many - 1)]
        sources.append((few * many / n * apart**2, n - 1))
    total = sum(square for square, _ in sources)
    squares = sum(square**2 / degrees for square, degrees in sources)
    return math.sqrt(total), total**2 / squares if squares else float(n - 1)
