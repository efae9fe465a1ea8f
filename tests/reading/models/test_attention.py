"""Attention of packed tokens against one sequence at a time."""

from dataclasses import replace

import pytest
import torch

from engine.reading.models import attention
from engine.reading.models.attention import (
    Cache,
    KeysAreKept,
    PackedPass,
    Span,
    attend,
)
from engine.reading.models.decoding import padded_length
from tests.expected import as_expected

HEADS, GROUPS, WIDTH = 6, 2, 8


class Layer(torch.nn.Module):
    layer_idx = 0


class Sequences:
    """Random sequences, the first ``have`` tokens of each cached beforehand, and what torch gives for each.

    In the cache they stand behind each other; what stands between them is nobody's, and large.
    """

    def __init__(self, lengths, have):
        torch.manual_seed(0)
        rooms = [padded_length(length) for length in lengths]
        self.offsets = [sum(rooms[:i]) for i in range(len(lengths))]
        self.cache = Cache.empty(
            sum(rooms), layers=1, groups=GROUPS, width=WIDTH, dtype=torch.float32
        )
        self.cache.layers[0].fill_(9.0)
        self.queries = [torch.randn(HEADS, length, WIDTH) for length in lengths]
        self.keys, self.values = (
            [torch.randn(GROUPS, length, WIDTH) for length in lengths] for _ in "kv"
        )
        for key, value, offset, known in zip(
            self.keys, self.values, self.offsets, have, strict=True
        ):
            for table, states in zip(self.cache.layers[0], (key, value), strict=True):
                own = slice(offset, offset + known)
                table[:, own] = states[:, :known]

    def whole(self, i):
        """Attention of a sequence: (tokens, heads, width)."""
        return torch.nn.functional.scaled_dot_product_attention(
            self.queries[i][None],
            *(s[i][None].repeat_interleave(HEADS // GROUPS, 1) for s in (self.keys, self.values)),
            is_causal=True,
        )[0].transpose(0, 1)

    def attend(self, packing, parts):
        """What ``attend`` gives for parts of the sequences: (i, from, to) each."""
        new = (
            torch.cat([states[i][:, first:last] for i, first, last in parts], 1)[None]
            for states in (self.queries, self.keys, self.values)
        )
        return attend(Layer(), *new, None, packing=packing)[0][0]


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize(
    ("lengths", "have", "writing"),
    [
        ([5], [0], False),
        ([5, 1, 9], [0, 0, 0], False),
        ([5, 1, 9], [0, 0, 4], False),
        ([7, 3, 4], [6, 2, 3], False),
        ([7, 3, 4], [6, 2, 3], True),  # one token each
        ([7], [6], True),
        ([20, 600], [19, 0], False),  # more queries than attend at once
        ([1100, 9], [1024, 0], False),  # so far behind that the flash kernel attends
    ],
)
def test_each_sequence_sees_itself_and_what_it_has(lengths, have, writing, fused):
    made = Sequences(lengths, have)
    parts = [
        (i, known, length) for i, (length, known) in enumerate(zip(lengths, have, strict=True))
    ]
    spans, at = [], 0
    for i, first, last in parts:
        spans.append(Span(at, last - first, made.offsets[i], first, writing=writing))
        at += last - first
    of_pass = PackedPass(made.cache, spans, fused=fused)
    if at == 1:  # a single token is made two, which attention takes for one
        parts *= 2
    expected = torch.cat([made.whole(i)[first:] for i, first, _ in parts])
    torch.testing.assert_close(made.attend(of_pass, parts), expected)


def test_of_the_last_layer_only_the_tokens_that_are_asked_for_attend():
    made = Sequences([70, 9, 5], [3, 0, 4])
    parts = [(0, 3, 70), (1, 0, 9), (2, 4, 5)]
    spans = [
        Span(0, 67, made.offsets[0], 3),
        Span(67, 9, made.offsets[1], 0),
        Span(76, 1, made.offsets[2], 4, writing=True),
    ]
    of_pass = PackedPass(made.cache, spans, rows=[66, 76])
    assert [spans[0].last, spans[2].last] == [66, 76]
    with pytest.raises(KeysAreKept):
        made.attend(replace(of_pass, attends=False), parts)
    ends = [(0, 69, 70), (2, 4, 5)]
    expected = torch.cat([made.whole(i)[first:] for i, first, _ in ends])
    kept = made.cache.layers[0].clone()
    torch.testing.assert_close(made.attend(of_pass.narrow, ends), expected)
    assert torch.equal(made.cache.layers[0], kept)
    # A single one is made two, which attention takes for one.
    one = replace(of_pass, rows=[66])
    expected = made.whole(0)[[69, 69]]
    torch.testing.assert_close(made.attend(one.narrow, [(0, 69, 70)] * 2), expected)


def test_a_sequence_begins_with_what_another_has_kept_in_the_same_pass():
    made = Sequences([40, 45], [0, 0])
    for states in (made.queries, made.keys, made.values):
        states[1][:, :33] = states[0][:, :33]
    spans = [Span(0, 40, made.offsets[0], 0), Span(40, 12, made.offsets[1], 33)]
    copies = [(made.offsets[0], made.offsets[1], 33)]
    of_pass = PackedPass(made.cache, spans, copies=copies)
    expected = torch.cat([made.whole(0), made.whole(1)[33:]])
    attended = made.attend(of_pass, [(0, 0, 40), (1, 33, 45)])
    torch.testing.assert_close(attended, expected)


@pytest.mark.parametrize("fresh", [False, True])
@pytest.mark.parametrize("room", [64, 128, 256])
def test_what_is_kept_moves_to_the_front_of_a_cache(room, fresh):
    cache = Cache.empty(128, layers=2, groups=GROUPS, width=WIDTH, dtype=torch.float32)
    for table in cache.layers:
        table.copy_(torch.randn(table.shape))
    before = [table.clone() for table in cache.layers]
    cache.gather([(10, 0, 20), (40, 24, 30)], room, fresh=fresh)
    for table, old in zip(cache.layers, before, strict=True):
        assert table.shape[2] == (room if fresh else max(128, room))
        assert torch.equal(table[:, :, :20], old[:, :, 10:30])
        assert torch.equal(table[:, :, 24:54], old[:, :, 40:70])
        assert table.isfinite().all()


@pytest.mark.parametrize(
    ("dtype", "have", "fused", "expected"),
    [
        (torch.float32, 1024, False, 1),
        (torch.float32, 1023, False, 0),
        (torch.bfloat16, 1024, False, 0),  # written out, rows do not depend on the cut
        (torch.bfloat16, 0, True, 1),
    ],
)
def test_prompts_go_through_the_flash_kernel_where_it_is_faster(
    dtype, have, fused, expected, monkeypatch
):
    calls = []
    flash = attention._flash
    monkeypatch.setattr(attention, "_flash", lambda *given: calls.append(1) or flash(*given))
    cache = Cache.empty(have + 3, layers=1, groups=GROUPS, width=WIDTH, dtype=dtype)
    packing = PackedPass(cache, [Span(0, 3, 0, have)], fused=fused)
    new = [torch.randn(1, many, 3, WIDTH, dtype=dtype) for many in (HEADS, GROUPS, GROUPS)]
    attend(Layer(), *new, None, packing=packing)
    assert len(calls) == expected


def test_attention_that_is_not_plain_is_refused():
    tensor = torch.zeros(1, 2, 1, 4)
    packing = PackedPass(Cache([]), [])
    with pytest.raises(ValueError, match="position_bias"):
        attend(Layer(), tensor, tensor, tensor, None, packing=packing, position_bias=tensor)
    packing = PackedPass(Cache([]), [Span(0, 1, 0, have=7)])
    with pytest.raises(ValueError) as caught:
        attend(Layer(), tensor, tensor, tensor, None, packing=packing, sliding_window=7)
    as_expected(str(caught.value))
    with pytest.raises(ValueError) as caught:
        attend(Layer(), tensor, tensor, tensor, None)
    as_expected(str(caught.value))
