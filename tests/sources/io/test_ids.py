import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.sources.io import ids as module
from engine.sources.io.ids import IdHashes, Places, hash_ids


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


@pytest.mark.parametrize("count", [0, 1, 2, 5000])
def test_texts_are_found_at_their_places_and_others_nowhere(count):
    held = [f"d{number}" for number in range(count)]
    asked = ["d1", "", "d4999", "other", "d0", "d1", "漢字", *reversed(held)]
    places = {text: place for place, text in enumerate(held)}
    found = Places(pl.Series(held, dtype=pl.String)).of(pl.Series(asked))
    assert found.dtype == pl.Int64
    assert found.to_list() == [places.get(text) for text in asked]
    assert len(Places(pl.Series(held, dtype=pl.String)).of(pl.Series([], dtype=pl.String))) == 0


def test_texts_whose_hashes_agree_in_all_but_the_last_bits_are_told_apart(monkeypatch):
    class Close(pl.Series):
        """Texts whose hashes are their lengths, so that all of them begin with the same bits."""

        def hash(self, seed=0):
            return self.str.len_bytes().cast(pl.UInt64)

        def rechunk(self):
            return self

    held = Close(["aaa", "a", "aaaa", "aa"])
    asked = Close(["aa", "b", "aaaa", "a", "aaaaaa", "aaa", ""])
    assert Places(held).of(asked).to_list() == [3, None, 2, 1, None, 0, None]


def test_a_text_that_is_given_twice_is_refused(monkeypatch):
    monkeypatch.setattr(module, "_SEEDS", range(2))
    with pytest.raises(ValueError, match="twice"):
        Places(pl.Series(["a", "b", "a"]))
