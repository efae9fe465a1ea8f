"""Outputs that are decided before their end: against every continuation, and against the metrics themselves."""

from itertools import product

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from engine.scoring.decided import goal_of, is_decidable
from engine.scoring.metrics import METRICS, get_metric

DECIDABLE = ("em", "em-char", "accuracy")
# Letters of articles and others, a capital whose lower case depends on what follows, one whose lower case
# is two characters, a combining mark, punctuation of ASCII and not, and white space of several kinds.
LETTERS = "atheTHExΣσςİé\u0301 -.'’–1\n\u00a0\x1c《"


def can_score(metric, text, *references):
    return goal_of(metric, references).can_score(text)


@pytest.mark.parametrize(
    ("metric", "text", "references", "expected"),
    [
        ("em", "", ["Paris"], True),
        ("em", " Par", ["Paris"], True),
        ("em", "Paris", ["Paris"], True),
        ("em", "Paris.", ["Paris"], True),
        ("em", "Paris,", ["Paris"], True),
        ("em", "Paris i", ["Paris"], False),
        ("em", "Paris th", ["Paris"], True),  # "Paris the" is "paris"
        ("em", "Paris ther", ["Paris"], False),
        ("em", "Lon", ["Paris"], False),
        ("em", "Lon", ["Paris", "London"], True),
        ("em", "The", ["Paris"], True),
        ("em", "They", ["Paris"], False),
        ("em", "t", ["Paris"], True),
        ("em", "the", ["theory"], True),
        ("em", "the ", ["theory"], True),
        ("em", "the the", ["theory"], True),
        ("em", "th ", ["theory"], False),
        ("em", "th-e", ["theory"], True),  # punctuation leaves no gap
        ("em", "twenty-", ["twentyone"], True),
        ("em", "twenty ", ["twentyone"], False),
        ("em", "New a ", ["New York"], True),
        ("em", "New  \n", ["New York"], True),
        ("em", "New", ["York"], False),
        ("em", "x–a", ["x– y"], True),  # behind a mark that stays, "a" is an article
        ("em", "xa ", ["x y"], False),
        ("em", "ΟΔΟΣ", ["οδοσ"], True),  # a sigma at the end now, inside a word if it goes on
        ("em", "ΟΔΟΣ", ["οδοσα"], True),
        ("em", "ΟΔΟΣ", ["οδος"], True),
        ("em", "İ", ["İstanbul"], True),
        ("em", "The", ["the"], False),  # normalizes to nothing, and is passed over
        ("em", "x", [], False),
        ("em-char", "서", ["서울"], True),
        ("em-char", "서 ", ["서울"], False),
        ("em-char", "《서", ["서울"], True),
        ("em-char", "the", ["서울"], False),
        ("em-char", "서'", ["서 울"], True),  # a mark that becomes a space
        ("em-char", "서-", ["서울"], True),  # a mark that is deleted
        ("accuracy", "SUPP", ["SUPPORTS"], True),
        ("accuracy", " \nSUPPORTS \n", ["SUPPORTS"], True),
        ("accuracy", "SUPPORTS.", ["SUPPORTS"], False),
        ("accuracy", "supp", ["SUPPORTS"], False),
        ("accuracy", "R", ["SUPPORTS"], False),
        ("accuracy", "A ", ["A B"], True),
        ("accuracy", "A  ", ["A B"], False),
        ("accuracy", "S", [" S"], False),
        ("accuracy", " ", [""], True),
        ("accuracy", "S", [""], False),
    ],
)
def test_beginnings_by_hand(metric, text, references, expected):
    assert can_score(metric, text, *references) is expected


def test_metrics_that_value_parts_of_an_output_decide_nothing():
    assert [name for name in METRICS if is_decidable(name)] == ["em", "accuracy", "em-char"]


@pytest.mark.parametrize("metric", DECIDABLE)
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.filter_too_much])
@given(
    output=st.text(LETTERS, max_size=12),
    others=st.lists(st.text(LETTERS, max_size=8), max_size=2),
    near=st.booleans(),
    data=st.data(),
)
def test_no_beginning_of_an_output_that_scores_is_given_up(metric, output, others, near, data):
    """References are written anew, in another case, with articles and marks, so that outputs meet them."""
    references = list(others)
    if near:
        references.append(
            data.draw(st.sampled_from([output, output.upper(), output.lower(), output.swapcase()]))
            if metric == "em"
            else output
        )
    stripped = output.strip()
    assume(get_metric(metric)(stripped, references) > 0)
    for end in range(len(output) + 1):
        assert can_score(metric, output[:end], *references), output[:end]


@pytest.mark.parametrize("metric", DECIDABLE)
@pytest.mark.parametrize(
    "references", [("ax", "the x"), ("xt h", "x a-t"), ("x–",), ("Σx",), ("",)], ids=repr
)
def test_beginnings_against_all_that_can_follow(metric, references):
    """Of every short text: it can score if, and only if, one of its continuations does."""
    letters = "athex –Σ"
    score = get_metric(metric)
    every = ["".join(text) for size in range(6) for text in product(letters, repeat=size)]
    scoring = [text for text in every if score(text.strip(), references) > 0]
    beginnings = {text[:end] for text in scoring for end in range(len(text) + 1)}
    assert beginnings or references == ("",)
    for text in every:
        found = can_score(metric, text, *references)
        assert found or text not in beginnings, text
        if found and text not in beginnings and len(text) < 4 and "Σ" not in text:
            # What makes it score is longer: the rest of an article, and the rest of a reference.
            rests = {r[at:] for r in references for at in range(len(r) + 1)}
            tries = (f"{text}{gap}{rest}" for rest in rests for gap in ("", " ", "e ", "he ", "n "))
            assert any(score(one.strip(), references) > 0 for one in tries), text
