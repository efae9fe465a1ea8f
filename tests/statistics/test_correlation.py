import math
from dataclasses import replace

import numpy as np
import pytest
import scipy.stats

from benchmarks._single import correlate
from engine.messages.errors import InputError
from engine.statistics.correlation import Bootstrap


def sample(n=120):
    rng = np.random.default_rng(0)
    x = rng.integers(0, 5, n).astype(float)
    return x, (x + rng.normal(size=n) > 2).astype(float)


def test_values_and_interval():
    x, y = sample()
    bootstrap = Bootstrap(resamples=4000, seed=1)
    result = correlate(x, y, bootstrap)
    assert result.method == "percentile"
    assert result.tau == pytest.approx(scipy.stats.kendalltau(x, y).statistic, abs=1e-12)
    assert result.rho == pytest.approx(scipy.stats.spearmanr(x, y).statistic, abs=1e-12)
    # SciPy's own bootstrap, other draws: bounds agree to Monte Carlo error
    for name, peer in (("tau", scipy.stats.kendalltau), ("rho", scipy.stats.spearmanr)):
        bounds = scipy.stats.bootstrap(
            (x, y), lambda a, b, f=peer: f(a, b).statistic, paired=True, vectorized=False,
            n_resamples=1000, method="percentile", rng=2,
        ).confidence_interval  # fmt: skip
        assert getattr(result, f"{name}_low") == pytest.approx(bounds.low, abs=0.02)
        assert getattr(result, f"{name}_high") == pytest.approx(bounds.high, abs=0.02)
    assert correlate(x, y, bootstrap) == result
    assert correlate(x, y, replace(bootstrap, seed=2)) != result
    narrow = correlate(x, y, replace(bootstrap, confidence=0.5))
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
    result = correlate(np.array(x, float), np.array(y, float), Bootstrap())
    assert math.isnan(result.tau)
    assert math.isnan(result.rho)
    assert result.note == note


def test_thin_data_are_not_resampled():
    bootstrap = Bootstrap(resamples=1000)
    x, y = sample(60)
    studentized = correlate(x, y, bootstrap)
    assert studentized.method == "studentized"
    assert studentized.tau_low < studentized.tau < studentized.tau_high
    assert studentized.rho_low < studentized.rho < studentized.rho_high
    inverted = correlate((x > 0).astype(float), y, bootstrap)
    assert inverted.method == "inverted"
    assert inverted.tau_low < inverted.tau < inverted.tau_high
    one_right = correlate(x, (np.arange(60) == np.argmax(x)).astype(float), bootstrap)
    assert one_right.method == "inverted"
    assert one_right.tau_low < 0 < one_right.tau < one_right.tau_high
    none = correlate(x[:10], y[:10], bootstrap)
    assert (none.method, none.note) == ("", "no interval: 10 queries are too few")
    assert math.isnan(none.tau_low)


def test_perfect_agreement_over_many_values_has_no_interval():
    x = np.arange(40.0)
    result = correlate(x, -x, Bootstrap(resamples=1000))
    assert (result.tau, result.method) == (-1, "")
    assert result.note == "no interval: the correlation is -1"


def test_without_resamples_there_is_no_interval():
    x, y = np.array([0.0, 1, 2]), np.array([0.0, 1, 1])
    result = correlate(x, y, Bootstrap(resamples=0))
    assert math.isnan(result.tau_low)
    assert result.tau > 0
    assert result.note == ""


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"resamples": 99}, "`resamples` is 99; use 100 or more, or 0"),
        ({"resamples": -1}, "`resamples` is -1"),
        ({"confidence": 95}, "`confidence` is 95"),
        ({"confidence": float("nan")}, "`confidence` is nan"),
        ({"confidence": 0.0}, "`confidence` is 0; use a number between 0 and 1"),
        ({"seed": -1}, "`seed` is -1"),
    ],
)
def test_a_bootstrap_out_of_range_is_refused(options, problem):
    with pytest.raises(InputError, match=problem):
        Bootstrap(**options)
