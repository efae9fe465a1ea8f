"""Attention of packed tokens against one sequence at a time."""

import pytest
import torch

from engine.reading.models.attention import Cache, Span, attend
from engine.reading.models.in_rows import InRows
from engine.reading.models.in_turn import InTurn, Turns

HEADS, GROUPS, WIDTH = 6, 2, 8


class Layer(torch.nn.Module):
    layer_idx = 0


LAYOUTS = {"in turn": InTurn, "in rows": InRows}


def layout(name):
    shape = {"layers": 1, "groups": GROUPS, "width": WIDTH, "dtype": torch.float32}
    if name == "in rows":
        shape["device"] = torch.device("cpu")
    return LAYOUTS[name](**shape)


class Sequences:
    """Random sequences, the first ``have`` tokens of each cached beforehand, and what torch gives for each.

    In the cache they stand behind each other, in the order of their room; what stands between them is
    nobody's, and large.
    """

    def __init__(self, name, lengths, have):
        torch.manual_seed(0)
        self.layout, self.have, self.lengths = layout(name), have, lengths
        self.rooms = [self.layout.room(length) for length in lengths]
        self.offsets = [sum(self.rooms[:i]) for i in range(len(lengths))]
        self.cache = self.layout.new_cache(sum(self.rooms))
        for table in (self.cache.keys[0], self.cache.values[0]):
            table.fill_(9.0)
        self.queries = [torch.randn(HEADS, length, WIDTH) for length in lengths]
        self.keys, self.values = (
            [torch.randn(GROUPS, length, WIDTH) for length in lengths] for _ in "kv"
        )
        for key, value, offset, known in zip(
            self.keys, self.values, self.offsets, have, strict=True
        ):
            for table, states in ((self.cache.keys[0], key), (self.cache.values[0], value)):
                own = slice(offset, offset + known)
                if name == "in turn":
                    table[:, own] = states[:, :known]
                else:
                    table[own] = states[:, :known].transpose(0, 1)

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


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize(
    ("lengths", "have"),
    [
        ([5], [0]),
        ([5, 1, 9], [0, 0, 0]),
        ([5, 1, 9], [0, 0, 4]),
        ([7, 3, 4], [6, 2, 3]),  # one token each, as when answers are written
        ([20, 600], [19, 0]),  # more queries than attend at once
    ],
)
def test_each_sequence_sees_itself_and_what_it_has(lengths, have, name):
    made = Sequences(name, lengths, have)
    parts = [
        (i, known, length) for i, (length, known) in enumerate(zip(lengths, have, strict=True))
    ]
    spans, at = [], 0
    for i, first, last in parts:
        spans.append(Span(at, last - first, made.offsets[i], first))
        at += last - first
    of_pass = made.layout.prompts([0] * at, spans, made.cache)
    assert of_pass.asked == len(spans)
    assert of_pass.last.tolist()[: len(spans)] == [s.at + s.tokens - 1 for s in spans]
    positions = [position for _, first, last in parts for position in range(first, last)]
    assert of_pass.positions.tolist()[:at] == positions
    if at > 1:  # of a single token a layout may make two
        expected = torch.cat([made.whole(i)[first:] for i, first, _ in parts])
        torch.testing.assert_close(made.attend(of_pass.packing, parts), expected)


@pytest.mark.parametrize("name", LAYOUTS)
def test_reads_leave_while_others_are_written(name):
    lengths, have = [40, 50, 60, 90, 95, 200], [30, 32, 40, 70, 80, 150]
    made = Sequences(name, lengths, have)
    writing = made.layout.writing(made.cache, list(range(6)), made.offsets, made.rooms)
    leaving = {2: {0, 3}, 4: {4}, 5: {5}, 7: {1}}
    alive = set(range(6))
    for step in range(9):
        alive -= leaving.get(step, set())
        writing.keep([row for row, i in enumerate(writing.reads) if i in alive])
        reads = list(writing.reads)
        assert alive <= set(reads)
        known = [have[i] + step for i in reads]
        of_pass = writing.step([7] * len(reads), known)
        assert of_pass.positions.tolist()[: len(reads)] == known
        parts = [(i, have[i] + step, have[i] + step + 1) for i in reads]
        if len(of_pass.ids) > len(reads):
            parts *= 2
        out = made.attend(of_pass.packing, parts)
        for row, i in enumerate(reads):
            torch.testing.assert_close(out[row], made.whole(i)[have[i] + step])
    assert set(writing.reads) == {2}


def test_rooms_are_few_and_hold_their_tokens():
    rooms = [layout("in rows").room(tokens) for tokens in range(1, 5000)]
    assert sorted(set(rooms))[:8] == [32, 64, 96, 128, 192, 256, 384, 512]
    assert all(room >= tokens for tokens, room in enumerate(rooms, 1))
    assert all(room <= max(64, 1.5 * tokens) for tokens, room in enumerate(rooms, 1))


def test_attention_that_is_not_plain_is_refused():
    tensor = torch.zeros(1, 2, 1, 4)
    packing = Turns(Cache([], []), [])
    with pytest.raises(ValueError, match="softcap"):
        attend(Layer(), tensor, tensor, tensor, None, packing=packing, softcap=50.0)
    with pytest.raises(ValueError, match="packed tokens only"):
        attend(Layer(), tensor, tensor, tensor, None)
