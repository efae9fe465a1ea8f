import torch
from hypothesis import given
from hypothesis import strategies as st

from engine.reading.models.encodings import STEP, Encodings, padded_length


def make(lengths):
    return Encodings(
        lengths,
        layers=1,
        heads=2,
        head_width=3,
        dtype=torch.bfloat16,
        device=torch.device("cpu"),
    )


@given(st.lists(st.integers(1, 100), min_size=1, max_size=12))
def test_each_input_has_a_place_of_its_own_with_zeros_and_a_mask_behind_it(lengths):
    kept = make(lengths)
    places = [(slot.padded, slot.place) for slot in kept.slots]
    assert len(set(places)) == len(lengths)
    for i, slot in enumerate(kept.slots):
        kept.put(slot, torch.full((1, 2, slot.length, 2, 3), i + 1.0, dtype=torch.bfloat16))
    for i, (slot, length) in enumerate(zip(kept.slots, lengths, strict=True)):
        assert slot.length == length
        assert slot.padded == padded_length(length)
        table, mask = kept.tables[slot.padded], kept.masks[slot.padded]
        own = table[0, :, slot.place]
        assert (own[:, :, :length] == i + 1).all()
        assert (own[:, :, length:] == 0).all()
        assert (mask[slot.place, 0, 0, :length] == 0).all()
        assert torch.isneginf(mask[slot.place, 0, 0, length:]).all()
    assert sum(len(mask) for mask in kept.masks.values()) == len(lengths)


def test_lengths_are_padded_to_the_next_step():
    assert [padded_length(n) for n in (0, 1, STEP, STEP + 1)] == [0, STEP, STEP, 2 * STEP]
