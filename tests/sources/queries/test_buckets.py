import hashlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.sources.queries.buckets import BUCKETS, buckets_of, halved


def test_the_bucket_is_the_first_sixteen_bits_of_the_hash_of_the_text():
    # sha256("abc") is ba7816bf…, FIPS 180-2's example; that of nothing is e3b0c442….
    assert buckets_of(["abc", "", "abc"]).tolist() == [0xBA78, 0xE3B0, 0xBA78]
    digest = hashlib.sha256("Ä漢".encode()).hexdigest()
    assert buckets_of(["Ä漢"]).tolist() == [int(digest[:4], 16)]


def test_buckets_of_many_queries_are_spread_evenly():
    found = buckets_of(f"question {i}" for i in range(20_000))
    assert (found.min() >= 0, found.max() < BUCKETS) == (True, True)
    # Of 20,000 even draws, 2,500 ± 47 fall into each eighth; six deviations leave room.
    eighths = [((found * 8 // BUCKETS) == eighth).sum() for eighth in range(8)]
    assert all(abs(count - 2500) < 280 for count in eighths)


def counts(*values):
    return np.array(values, dtype=np.int64)


def test_a_range_with_too_much_is_halved_until_it_fits():
    # 9 of 16 are left of the middle; of them 8 lie in the second quarter, in one bucket.
    pairs = counts(1, 0, 8, 0, 1, 2, 2, 2)
    queries = counts(1, 0, 1, 1, 1, 1, 1, 1)
    assert halved(pairs, queries, 16) == [(0, 8)]
    assert halved(pairs, queries, 9) == [(0, 4), (4, 8)]
    assert halved(pairs, queries, 7) == [(0, 2), (2, 3), (3, 4), (4, 8)]
    assert halved(pairs, queries, 3) == [(0, 2), (2, 3), (3, 4), (4, 6), (6, 7), (7, 8)]


def test_ranges_without_queries_are_left_out_and_queries_without_pairs_count():
    none = counts(0, 0, 0, 0)
    assert halved(none, none, 5) == []
    assert halved(none, counts(0, 0, 3, 3), 3) == [(2, 3), (3, 4)]


@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 3)), min_size=16, max_size=16),
    st.integers(1, 40),
)
def test_every_query_is_in_one_range_that_is_as_large_as_may_be(buckets, most):
    pairs, queries = (counts(*column) for column in zip(*buckets, strict=True))
    pairs = pairs * (queries > 0)
    found = halved(pairs, queries, most)
    assert found == sorted(found)
    covered = [bucket for low, high in found for bucket in range(low, high)]
    assert len(covered) == len(set(covered))
    assert set(np.flatnonzero(queries)) <= set(covered)
    for low, high in found:
        width = high - low
        assert low % width == 0
        assert max(pairs[low:high].sum(), queries[low:high].sum()) <= most or width == 1
        if width < 16:  # the range around it has too much
            start = low - low % (2 * width)
            around = slice(start, start + 2 * width)
            assert max(pairs[around].sum(), queries[around].sum()) > most


@pytest.mark.parametrize("most", [1, 2])
def test_one_bucket_is_never_cut(most):
    assert halved(counts(0, 9), counts(0, 1), most) in ([(1, 2)], [(0, 2)])
