"""Scores of runs made so that their differences are known."""

from engine import tables
from tests.tables import framed


def by_query(run, values):
    return [(run, f"q{i:03}", float(v)) for i, v in enumerate(values)]


def scored(rows):
    """Rows (annotator, measure, {run: values})."""
    return framed(
        [
            (run, annotator, measure, query_id, value)
            for annotator, measure, runs in rows
            for name, values in runs.items()
            for run, query_id, value in by_query(name, values)
        ],
        tables.QUERY_SCORES,
    )


def read_whole(runs):
    return framed(
        [(r, q, 3, "", v) for name, values in runs.items() for r, q, v in by_query(name, values)],
        tables.DOWNSTREAM,
    )


def first(ones, n=60):
    """1 for the first so many queries of n, else 0."""
    return [1] * ones + [0] * (n - ones)


ALIKE = {"s": first(20), "t": first(20), "u": first(20)}
WHOLE = {"s": first(25), "t": first(50), "u": first(47)}
