"""What sequences begin with in common is there once, and every sequence can be put together again."""

from hypothesis import given
from hypothesis import strategies as st

from engine.reading.models.sharing import common_length, segments

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
