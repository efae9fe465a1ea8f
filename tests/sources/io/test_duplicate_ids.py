import polars as pl
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.sources.io.duplicate_ids import IdHashes, hash_ids


@settings(deadline=None)
@given(st.lists(st.lists(st.integers(0, 60), max_size=30), max_size=12))
def test_exactly_the_ids_seen_before_are_suspected(batches):
    hashes, before = IdHashes(), set()
    for batch in batches:
        again = {x for i, x in enumerate(batch) if x in before or x in batch[:i]}
        found = hashes.add(pl.Series([str(x) for x in batch], dtype=pl.String))
        expected = hash_ids(pl.Series(sorted(map(str, again)), dtype=pl.String))
        assert sorted(found.tolist()) == sorted(expected.to_list())
        before |= set(batch)
