"""What a reader knows without passages is taken out of correlations."""

import numpy as np
import polars as pl
import pytest

from benchmarks import closed_book as benchmark
from benchmarks._single import correlate
from benchmarks.closed_book import partial, take_out
from engine.reading.protocol import ReadOutput
from engine.statistics.cells import Cell
from engine.statistics.correlation import Bootstrap
from tests.tables import QUERIES

BOOTSTRAP = Bootstrap(resamples=300)


def test_partial_correlations_are_those_of_the_inverse_matrix():
    # Whittaker (1990), as the package ppcor has it for Kendall's tau, too
    for seed in range(20):
        matrix = np.corrcoef(np.random.default_rng(seed).normal(size=(3, 12)))
        inverse = np.linalg.inv(matrix)
        expected = -inverse[0, 1] / np.sqrt(inverse[0, 0] * inverse[1, 1])
        assert partial(matrix[0, 1], matrix[0, 2], matrix[1, 2]) == pytest.approx(expected)


def cell(x, y):
    ids = tuple(str(number) for number in range(len(x)))
    return Cell("bm25", "erag", "RR@10", 10, ids, np.array(x, float), np.array(y, float))


def test_what_is_known_anyway_leaves_nothing_of_a_correlation_that_it_makes():
    rng = np.random.default_rng(1)
    known = rng.integers(0, 2, 400)
    # Either score is what is known, but for chance of its own.
    x, y = (np.where(rng.random(400) < 0.8, known, rng.integers(0, 2, 400)) for _ in range(2))
    one = cell(x, y)
    found = take_out(one, dict(zip(one.query_ids, known, strict=True)), BOOTSTRAP)
    assert correlate(one.x, one.y, BOOTSTRAP).tau_low > 0.5
    assert found.low < 0 < found.high
    assert found.low < found.value < found.high


def test_no_interval_where_data_are_too_thin_to_resample():
    rng = np.random.default_rng(3)
    x, y = rng.integers(0, 2, 400), rng.integers(0, 2, 400)
    known = dict.fromkeys(map(str, range(400)), 0.0) | {"7": 1.0, "8": 1.0}  # two of 400
    found = take_out(cell(x, y), known, BOOTSTRAP)
    assert np.isfinite(found.value)
    assert np.isnan([found.low, found.high]).all()


def test_where_nothing_is_known_nothing_is_taken_out():
    rng = np.random.default_rng(2)
    one = cell(rng.integers(0, 2, 50), rng.integers(0, 2, 50))
    found = take_out(one, dict.fromkeys(one.query_ids, 0.0), BOOTSTRAP)
    assert np.isnan(found).all()


def test_questions_are_read_without_passages(monkeypatch):
    asked = []

    class Knowing:
        def read(self, inputs):
            asked.extend(inputs)
            return [ReadOutput("Ann", 1, 1, False) for _ in inputs]

    monkeypatch.setattr(benchmark, "load", lambda spec: Knowing())
    found = benchmark.closed_book(QUERIES, "bundled", "in-prompt", "em")
    assert set(found) == set(QUERIES["query_id"])
    assert len(asked) == QUERIES.height
    answered = QUERIES.filter(pl.col("answers").list.contains("Ann"))["query_id"]
    assert {query_id for query_id, value in found.items() if value} == set(answered)
