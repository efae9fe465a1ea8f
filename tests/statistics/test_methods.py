"""Which method makes an interval, from counts alone."""

import numpy as np
import pytest

from engine.statistics.methods import method_for, side


def scores(amounts):
    """So many queries with each value 0, 1, ... / (number - 1)."""
    return np.repeat(np.arange(len(amounts), dtype=float), amounts)


def chosen(x, y, seed=0):
    rng = np.random.default_rng(seed)
    return method_for(side(rng.permutation(x)), side(rng.permutation(y)))


SPREAD = np.arange(400.0)


@pytest.mark.parametrize(
    ("x", "y", "method"),
    [
        (scores([4, 60]), scores([45, 19]), "inverted"),  # two binary sides, however thin
        (scores([1, 299]), scores([200, 100]), "inverted"),
        (scores([500, 500]), scores([500, 500]), "inverted"),
        (scores([8, 4, 88]), scores([90, 10]), "inverted"),  # 1.2 queries expected in the corner
        (scores([8, 4, 288]), scores([200, 100]), "inverted"),
        (SPREAD[:64], scores([45, 19]), "studentized"),
        (SPREAD[:64], scores([54, 10]), "studentized"),
        (
            SPREAD[:64],
            scores([55, 9]),
            "inverted",
        ),  # however few are right, and of however many queries
        (SPREAD[:20], scores([14, 6]), "inverted"),
        (SPREAD[:300], scores([299, 1]), "inverted"),
        (scores([5, 4, 55]), scores([45, 19]), "inverted"),
        (SPREAD[:30], SPREAD[:30], "studentized"),
        (SPREAD[:100], scores([51, 49]), "studentized"),
        (SPREAD[:100], scores([50, 50]), "percentile"),
        (SPREAD, SPREAD, "percentile"),
        (scores([100, 30, 270]), scores([200, 200]), "percentile"),
    ],
)
def test_the_method_follows_from_the_counts(x, y, method):
    assert chosen(x, y) == (method, "")
    assert chosen(y, x) == (method, "")


def test_too_few_queries_have_none():
    assert chosen(SPREAD[:10], SPREAD[:10]) == (None, "no interval: 10 queries are too few")
    assert chosen(scores([5, 5]), scores([5, 5]))[0] is None


def test_an_empty_corner_of_two_sides_that_are_mostly_one_value_is_thin():
    """Independent sides would leave 25 queries there; the sample has none."""
    x, y = np.zeros((2, 400))
    x[:100] = np.arange(100) % 3 + 1
    y[100:200] = 1
    assert method_for(side(x), side(y)) == ("inverted", "")
    assert chosen(x, y) == ("percentile", "")


def test_what_is_too_large_to_draw_is_studentized_or_refused():
    def mostly_one(amount, n):
        return np.concatenate([np.zeros(n - amount), np.arange(1, amount + 1)])

    assert chosen(mostly_one(100, 900), mostly_one(100, 900)) == ("percentile", "")
    method, reason = chosen(mostly_one(80, 9000), mostly_one(80, 9000))
    assert method is None
    assert "hardly meet" in reason
    assert chosen(np.arange(3000.0), mostly_one(3, 3000)) == ("studentized", "")
    assert chosen(np.arange(3000.0), mostly_one(2, 3000)) == (
        None,
        "no interval: the end-to-end score is 0 for 2998 of 3000 queries, and anything else for fewer than 3",
    )
    assert chosen(mostly_one(700, 3000), mostly_one(9, 3000))[1].endswith("fewer than 10")
