"""Cutting long prompts, with words as tokens."""

import pytest

from engine.reading.prompting.truncation import fit

TEXT = "answer briefly p1 p2 p3 p4 question who wins"
IDS = {word: i for i, word in enumerate(TEXT.split())}


def encode(text):
    return [IDS[word] for word in text.split()]


def fitted(limit, head="answer briefly", tail_marker=" question"):
    return fit(
        encode(TEXT),
        TEXT,
        head=encode(head),
        limit=limit,
        tail_marker=tail_marker,
        encode=encode,
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
