"""Spans that can be asked for."""

import itertools

import pytest

from jobs.bundled_reader.spans import sentences, spans


@pytest.mark.parametrize(
    ("sentence", "found"),
    [
        (
            "The Hatch Act of 1887 set off a revolution.",
            [("Hatch Act", "name"), ("1887", "year")],
        ),
        (
            "He was born on 12 May 1820 in Florence.",
            [("12 May 1820", "date"), ("Florence", "name")],
        ),
        ("It left on January 1, 1986.", [("January 1, 1986", "date")]),
        ("There are 8,350 rivers in Azerbaijan.", [("8,350", "number"), ("Azerbaijan", "name")]),
        ("About 96% of it is 0.5 m deep.", [("96%", "number"), ("0.5", "number")]),
        # A year before a comma is one, and what stands behind is another number.
        ("In 2006, 225,744 lived in the city.", [("2006", "year"), ("225,744", "number")]),
        # Ranges, exponents and parts of words are not numbers.
        ("From 1939–1945 it was 10−3 of the b12 at most.", []),
        ("This is what Ludwig van Beethoven wrote.", [("Ludwig van Beethoven", "name")]),
        ("Angola is large, and Angola is old.", [("Angola", "name"), ("Angola", "name")]),
        ("However, nothing happened at all.", []),
    ],
)
def test_names_dates_and_numbers_are_found(sentence: str, found: list[tuple[str, str]]) -> None:
    assert [(span.of(sentence), span.kind) for span in spans(sentence)] == found


def test_spans_do_not_overlap() -> None:
    sentence = "On 4 July 1776 the Congress of 13 States met in Philadelphia at Independence Hall."
    found = spans(sentence)
    assert len(found) >= 4
    assert all(one.end <= other.start for one, other in itertools.pairwise(found))


def test_only_whole_sentences_are_taken() -> None:
    text = (
        "end of one that began before. Albert Einstein was born in the city of Ulm. Too short. "
        "The U.S. Congress met in the year 1789 in New York. And this one is cut off before"
    )
    assert sentences(text) == [
        "Albert Einstein was born in the city of Ulm.",
        "The U.S. Congress met in the year 1789 in New York.",
    ]
