import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engine.reading.models import t5_attention
from engine.reading.models.decoding import STEP, padded_length
from engine.reading.models.t5_attention import (
    Encodings,
    PaddedReads,
    PaddedTexts,
    Part,
    ReadByRead,
    TextByText,
)

HEADS, WIDTH = 4, 64
INNER = HEADS * WIDTH
LENGTHS = [5, 33, 33, 1, 64, 12]
# single, fused of neighbours, fused out of order, an input twice, one more single
READS = [[0], [1], [2], [1, 2, 4], [5, 0, 3], [3, 3], [4]]


def texts(dtype):
    torch.manual_seed(0)
    tokens = sum(LENGTHS)
    query, key, value = (torch.randn(tokens, INNER, dtype=dtype) for _ in range(3))
    return query, key, value, torch.randn(HEADS, 139, dtype=dtype)  # of up to 70 tokens


def in_full(bias, length):
    """The biases of a text, (heads, queries, keys), pair by pair."""
    positions = torch.arange(length)
    return bias[:, bias.shape[1] // 2 + positions[None, :] - positions[:, None]]


def begun(attention):
    """An attention that has its numbers on the device."""
    attention.begin([torch.from_numpy(numbers) for numbers in attention.numbers])
    return attention


def dense(query, key, value, bias):
    """Attention of (n, heads * width) to (m, heads * width) with bias (heads, n, m), in fp32."""
    q, k, v = (x.float().view(len(x), HEADS, WIDTH).transpose(0, 1) for x in (query, key, value))
    weights = (q @ k.transpose(1, 2) + bias.float()).softmax(-1)
    return (weights @ v).transpose(0, 1).reshape(len(query), INNER)


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize(("dtype", "error"), [(torch.float32, 1e-4), (torch.bfloat16, 0.1)])
def test_texts_attend_to_themselves_only(padded, dtype, error):
    query, key, value, bias = texts(dtype)
    attend = begun(PaddedTexts(LENGTHS, HEADS) if padded else TextByText(LENGTHS, HEADS))
    for table in (bias, bias.flip(0)):  # another layer's
        got = attend(query, key, value, table).float()
        parts = [x.split(LENGTHS) for x in (query, key, value)]
        expected = torch.cat(
            [dense(*own, in_full(table, len(own[0]))) for own in zip(*parts, strict=True)]
        )
        torch.testing.assert_close(got, expected, atol=error, rtol=error)


@pytest.mark.parametrize("rows", [1, 7, 16, 1000])
@pytest.mark.parametrize(("dtype", "error"), [(torch.float32, 1e-5), (torch.bfloat16, 0.02)])
def test_long_texts_attend_some_queries_at_a_time(rows, dtype, error, monkeypatch):
    query, key, value, bias = texts(dtype)
    whole = TextByText(LENGTHS, HEADS)(query, key, value, bias)
    monkeypatch.setattr(t5_attention, "SCORES", rows * HEADS * 33)
    in_parts = TextByText(LENGTHS, HEADS)(query, key, value, bias)
    torch.testing.assert_close(in_parts, whole, atol=error, rtol=error)


def test_no_more_scores_are_held_than_caches_take(monkeypatch):
    held, through = [], t5_attention.softmax
    monkeypatch.setattr(
        t5_attention, "softmax", lambda scores: held.append(scores.numel()) or through(scores)
    )
    length = 1500  # all pairs of its tokens would be twice as many
    states = torch.randn(length, INNER)
    TextByText([length], HEADS)(states, states, states, torch.randn(HEADS, 2 * length - 1))
    assert max(held) <= t5_attention.SCORES < HEADS * length**2 == sum(held)


def test_text_by_text_gives_the_same_bits_in_any_batch():
    query, key, value, bias = texts(torch.bfloat16)
    together = TextByText(LENGTHS, HEADS)(query, key, value, bias).split(LENGTHS)
    parts = zip(*(x.split(LENGTHS) for x in (query, key, value)), strict=True)
    for own, expected in zip(parts, together, strict=True):
        assert torch.equal(
            TextByText([len(own[0])], HEADS)(*own, bias[:, 69 - 63 : 69 + 64]), expected
        )


def encodings(dtype, order):
    """Encodings of all inputs, kept in some order; and where each is, by its number."""
    torch.manual_seed(1)
    states = [torch.randn(2, 2, length, HEADS, WIDTH, dtype=dtype) for length in LENGTHS]
    kept = Encodings(
        [LENGTHS[i] for i in order],
        layers=2,
        heads=HEADS,
        head_width=WIDTH,
        dtype=dtype,
        device=torch.device("cpu"),
    )
    for slot, i in zip(kept.slots, order, strict=True):
        kept.put(slot, states[i])
    return states, kept, dict(zip(order, kept.slots, strict=True))


def parts(slots, read):
    """Where a read's inputs are, the latest of the read first: sums may be taken in any order."""
    offsets = [sum(LENGTHS[i] for i in read[:at]) for at in range(len(read))]
    return [Part(slots[i], offset) for i, offset in zip(read, offsets, strict=True)][::-1]


@pytest.mark.parametrize("kind", [ReadByRead, PaddedReads])
@pytest.mark.parametrize(("dtype", "error"), [(torch.float32, 1e-4), (torch.bfloat16, 0.1)])
@pytest.mark.parametrize("biased", [0, 1, 3, 40])  # tokens; some inputs have fewer
def test_reads_attend_to_all_their_inputs(kind, dtype, error, biased):
    states, kept, slots = encodings(dtype, range(len(LENGTHS)))
    cross = begun(kind(kept, [parts(slots, read) for read in READS], HEADS))
    query = torch.randn(len(READS), INNER, dtype=dtype)
    bias = torch.randn(HEADS, biased, dtype=dtype) if biased else None
    expected = {}
    for layer in (0, 1):
        rows = []
        for row, read in zip(query, READS, strict=True):
            keys, values = (
                torch.cat([states[i][layer, j] for i in read]).flatten(1) for j in (0, 1)
            )
            added = torch.zeros(HEADS, 1, max(len(keys), biased))
            if bias is not None:
                added[:, 0, :biased] = bias
            rows.append(dense(row[None], keys, values, added[..., : len(keys)]))
        expected[layer] = torch.cat(rows)
        got = cross(layer, query, bias).float()
        torch.testing.assert_close(got, expected[layer], atol=error, rtol=error)
    for rows in ([0, 2, 3, 5, 6], [1, 3, 4], [0]):  # places among those that are left
        cross.keep(rows, torch.tensor(rows))
        query, expected[1] = query[rows], expected[1][rows]
        got = cross(1, query, bias).float()
        torch.testing.assert_close(got, expected[1], atol=error, rtol=error)


def test_read_by_read_gives_the_same_bits_in_any_batch_and_at_any_place():
    _, kept, slots = encodings(torch.bfloat16, range(len(LENGTHS)))
    query = torch.randn(len(READS), INNER, dtype=torch.bfloat16)
    together = ReadByRead(kept, [parts(slots, read) for read in READS], HEADS)(0, query, None)
    for row, read in enumerate(READS):
        # its inputs alone, once as they are and once the other way round in the tables
        for order in (sorted(set(read)), sorted(set(read), reverse=True)):
            _, few, places = encodings(torch.bfloat16, order)
            cross = ReadByRead(few, [parts(places, read)], HEADS)
            assert torch.equal(cross(0, query[row : row + 1], None)[0], together[row])


def test_neighbours_are_one_product_and_nothing_is_copied():
    _, kept, slots = encodings(torch.float32, range(len(LENGTHS)))
    reads = [parts(slots, read) for read in ([0], [3], [5], [2, 1])]
    cross = ReadByRead(kept, reads, HEADS)
    assert [row for row, _ in cross._alone] == [0]
    ((row, runs),) = cross._fused
    assert (row, len(runs)) == (3, 1)
    keys, _ = cross._at(1, runs[0])
    assert keys.data_ptr() == kept.tables[64][1].data_ptr()


def make(lengths):
    return Encodings(
        lengths, layers=1, heads=2, head_width=3, dtype=torch.bfloat16, device=torch.device("cpu")
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
