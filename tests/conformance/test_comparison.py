import math

import pytest

from engine.conformance.comparison import THE_MEAN, compare


def test_the_largest_difference_and_its_query():
    ours = {"a": 0.5, "b": 0.25, "c": 1.0}
    row = compare("P@4", "P_4", ours, {"a": 0.5, "b": 0.5, "c": 0.9}, ["a", "b", "c"])
    assert (row.difference, row.at, row.n) == (0.25, "b", 3)
    assert (row.our_mean, row.their_mean) == pytest.approx((1.75 / 3, 1.9 / 3))
    assert row.remaining == row.difference
    assert not row.conforms(0.2)
    assert row.conforms(0.25)


def test_only_the_ids_that_the_reference_has_are_compared():
    row = compare("P@1", "P_1", {"a": 1.0, "b": 0.0}, {"a": 1.0}, ["a"])
    assert (row.difference, row.at, row.n) == (0, "", 1)
    assert (row.their_mean, row.our_mean) == (1, 0.5)


@pytest.mark.parametrize("theirs", [{}, {"a": math.nan}, {"a": math.inf}])
def test_a_value_that_is_missing_or_nan_is_an_infinite_difference(theirs):
    row = compare("AP", "map", {"a": 1.0}, theirs, ["a"])
    assert row.difference == math.inf
    assert not row.conforms(1e300)


def test_nan_of_ours_is_a_difference():
    assert compare("AP", "map", {"a": math.nan}, {"a": 0.0}, ["a"]).difference == math.inf


def test_means_are_compared_where_the_reference_gives_one():
    # Equal query by query, and a mean that leaves a query out.
    same = {"a": 1.0, "b": 0.0}
    row = compare("P@1", "P@1", same, same, ["a", "b"], their_mean=1.0)
    assert (row.difference, row.at) == (0.5, THE_MEAN)


def test_values_above_1_are_compared_relative_to_them():
    row = compare("DCG", "dcg", {"a": 1000.001}, {"a": 1000.0}, ["a"])
    assert row.difference == pytest.approx(1e-6)


def test_a_rule_excuses_only_what_it_explains():
    ours, theirs, ids = {"a": 0.5, "b": 0.5}, {"a": 1.0, "b": 1.0}, ["a", "b"]
    explained = compare("RR", "rr", ours, theirs, ids, by_rule=theirs, rule="ties")
    assert (explained.rule, explained.remaining) == ("ties", 0)
    assert not explained.agrees(1e-12)
    assert explained.conforms(1e-12)
    half = compare("RR", "rr", ours, theirs, ids, by_rule={"a": 1.0, "b": 0.75}, rule="ties")
    assert half.remaining == 0.25
    assert not half.conforms(1e-12)
    moot = compare("RR", "rr", ours, theirs, ids, by_rule=ours, rule="ties")
    assert (moot.rule, moot.remaining) == ("", 0.5)
