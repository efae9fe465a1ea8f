"""Attention of packed tokens against one sequence at a time."""

import pytest
import torch

from engine.reading.models.attention import KEYS, Cache, Packing, Span, attend, round_up

HEADS, GROUPS, WIDTH = 6, 2, 8


class Layer(torch.nn.Module):
    layer_idx = 0


def packed(lengths, have, *, padded, dtype=torch.float32):
    """Attention of several sequences, the first ``have`` tokens of each cached beforehand.

    Returns what ``attend`` gives and what torch gives for each sequence as a whole.
    """
    torch.manual_seed(0)
    room, offsets = 0, []
    for length in lengths:
        offsets.append(room)
        room += round_up(length) + KEYS  # what stands between is nobody's
    cache = Cache(
        [torch.full((GROUPS, room, WIDTH), 9.0, dtype=dtype)],
        [torch.full((GROUPS, room, WIDTH), 9.0, dtype=dtype)],
    )
    queries, keys, values, spans, expected = [], [], [], [], []
    at = 0
    for length, known, offset in zip(lengths, have, offsets, strict=True):
        q = torch.randn(HEADS, length, WIDTH, dtype=dtype)
        k, v = (torch.randn(GROUPS, length, WIDTH, dtype=dtype) for _ in "kv")
        cache.keys[0][:, offset : offset + known] = k[:, :known]
        cache.values[0][:, offset : offset + known] = v[:, :known]
        whole = torch.nn.functional.scaled_dot_product_attention(
            q[None],
            k[None].repeat_interleave(3, 1),
            v[None].repeat_interleave(3, 1),
            is_causal=True,
        )
        expected.append(whole[0, :, known:].transpose(0, 1))
        spans.append(Span(at, length - known, offset, known))
        at += length - known
        queries.append(q[:, known:])
        keys.append(k[:, known:])
        values.append(v[:, known:])
    out, _ = attend(
        Layer(),
        *(torch.cat(parts, 1)[None] for parts in (queries, keys, values)),
        None,
        packing=Packing(cache, spans, padded, torch.device("cpu")),
    )
    return out[0], torch.cat(expected)


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize(
    ("lengths", "have"),
    [
        ([5], [0]),
        ([5, 1, 9], [0, 0, 4]),
        ([7, 3, 4], [6, 2, 3]),  # one token each, as when answers are written
        ([600, 20], [0, 19]),  # more queries than attend at once
    ],
)
def test_each_sequence_sees_itself_and_what_it_has(lengths, have, padded):
    out, expected = packed(lengths, have, padded=padded)
    torch.testing.assert_close(out, expected)


def test_attention_that_is_not_plain_is_refused():
    tensor = torch.zeros(1, 2, 1, 4)
    packing = Packing(Cache([], []), [], False, torch.device("cpu"))
    with pytest.raises(ValueError, match="softcap"):
        attend(Layer(), tensor, tensor, tensor, None, packing=packing, softcap=50.0)
    with pytest.raises(ValueError, match="packed tokens only"):
        attend(Layer(), tensor, tensor, tensor, None)
