"""What sequences begin with in common is there once, and long prompts are cut, with words as tokens."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.reading.models.tokenizing import common_length, fit, segments

TOKENS = st.lists(st.integers(0, 2), min_size=1, max_size=12)


@given(st.lists(TOKENS, min_size=1, max_size=12), st.integers(1, 4), st.data())
def test_segments_make_up_every_sequence(sequences, least, data):
    done = [data.draw(st.integers(0, len(tokens) - 1)) for tokens in sequences]
    parts = segments(sequences, done, least)
    whole = [part for part in parts if part.whole]
    assert sorted(part.sample for part in whole) == list(range(len(sequences)))
    for place, part in enumerate(parts):
        assert part.start < part.end
        assert part.whole or part.end - part.start >= least
        if part.parent < 0:
            assert part.start == done[part.sample]
            continue
        before = parts[part.parent]
        assert part.parent < place
        assert not before.whole
        assert before.end == part.start
        # The parent's tokens are this sequence's own.
        assert sequences[before.sample][: before.end] == sequences[part.sample][: before.end]
    for part in whole:
        assert part.end == len(sequences[part.sample])


def test_two_sequences_share_their_common_beginning():
    parts = segments([[1, 2, 3, 4, 5], [1, 2, 3, 9], [7, 7]], [0, 0, 0], least=2)
    shared = [(part.start, part.end) for part in parts if not part.whole]
    assert shared == [(0, 3)]
    assert sum(part.end - part.start for part in parts) == 3 + 2 + 1 + 2


def test_sharing_nests():
    a, b, c = [0] * 10 + [1] * 10 + [2], [0] * 10 + [1] * 10 + [3], [0] * 10 + [4]
    parts = segments([a, b, c], [0, 0, 0], least=8)
    assert [part.parent for part in parts if not part.whole] == [-1, 0]
    assert sum(part.end - part.start for part in parts) == 10 + 10 + 3


def test_the_last_token_is_never_shared():
    twins = [[1] * 20, [1] * 20]
    parts = segments(twins, [0, 0])
    assert [(part.start, part.end, part.whole) for part in parts] == [
        (0, 19, False),
        (19, 20, True),
        (19, 20, True),
    ]


def test_tokens_that_are_done_are_not_in_segments():
    parts = segments([[1] * 30 + [2], [1] * 30 + [3]], [30, 30])
    assert [(part.start, part.end, part.parent) for part in parts] == [(30, 31, -1), (30, 31, -1)]


def test_common_length():
    assert common_length([1, 2, 3], [1, 2, 4]) == 2
    assert common_length([1, 2], [1, 2, 4]) == 2
    assert common_length([], [1]) == 0


TEXT = "answer briefly p1 p2 p3 p4 question who wins"
IDS = {word: i for i, word in enumerate(TEXT.split())}


def encode(text):
    return [IDS[word] for word in text.split()]


def fitted(limit, head="answer briefly", tail_marker=" question"):
    return fit(
        encode(TEXT), TEXT, head=encode(head), limit=limit, tail_marker=tail_marker, encode=encode
    )


@pytest.mark.parametrize("limit", [9, 10])
def test_prompts_that_fit_are_not_cut(limit):
    assert fitted(limit) == encode(TEXT)


@pytest.mark.parametrize(
    ("limit", "kept"),
    [
        (8, "answer briefly p2 p3 p4 question who wins"),
        (6, "answer briefly p4 question who wins"),
        (5, "answer briefly question who wins"),
    ],
)
def test_passages_go_first_to_last_and_the_head_stays(limit, kept):
    assert fitted(limit) == encode(kept)


@pytest.mark.parametrize("limit", [4, 2, 1])
def test_a_question_is_never_cut(limit):
    assert fitted(limit) == []


def test_a_head_is_kept_up_to_the_length_of_the_prompt():
    assert fitted(6, head="answer p1") == encode("answer p3 p4 question who wins")
    assert fitted(6, head="") == encode("p2 p3 p4 question who wins")


def test_without_a_marker_one_token_is_kept():
    assert fitted(3, tail_marker="") == encode("answer briefly wins")
    assert fitted(2, tail_marker="") == []
    assert fitted(3, tail_marker="nowhere") == encode("answer briefly wins")
