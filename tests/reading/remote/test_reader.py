"""Choosing by the likeliest first tokens: probabilities by hand."""

import math

import pytest

from engine.reading.remote.reader import choose


def logs(**tokens):
    return {token.replace("_", " "): math.log(p) for token, p in tokens.items()}


def test_several_choices_are_weighed_among_each_other():
    # 0.6 of 0.6 + 0.2
    chosen = choose([" Yes", " No"], logs(_Yes=0.6, _No=0.2, _The=0.1))
    assert chosen == (" Yes", pytest.approx(0.75), pytest.approx(0.8))
    chosen = choose([" Yes", " No"], logs(_No=0.6, _Yes=0.2))
    assert chosen == (" No", pytest.approx(0.25), pytest.approx(0.8))


def test_a_choice_begins_with_the_longest_token_that_fits_no_other():
    # "N" begins both; of the first, "NO" is longer than what else it begins with
    listed = logs(N=0.5, NO=0.3, NOT=0.1, NE=0.05)
    assert choose(["NO-RESPONSE", "NEVER"], listed) == (
        "NO-RESPONSE",
        pytest.approx(0.3 / 0.35),
        pytest.approx(0.35),
    )


def test_blanks_before_a_token_matter_only_where_it_is_not_listed_as_it_is_written():
    assert choose(["Yes", "No"], logs(_Yes=0.5, Yes=0.1, No=0.1))[1] == pytest.approx(0.5)
    assert choose(["Yes", "No"], logs(_Yes=0.6, No=0.2))[1] == pytest.approx(0.75)


def test_an_unlisted_choice_counts_as_nothing_and_none_at_all_is_told():
    assert choose(["Yes", "No"], logs(No=0.2, Maybe=0.5)) == ("No", 0.0, pytest.approx(0.2))
    assert choose(["Yes", "No"], logs(Maybe=0.5)) is None


def test_a_single_choice_is_taken_among_all_tokens():
    assert choose(["NO-RESPONSE"], logs(NO=0.6, Ann=0.3)) == (
        "NO-RESPONSE",
        pytest.approx(0.6),
        None,
    )
    assert choose(["NO-RESPONSE"], logs(NO=0.4)) == ("", pytest.approx(0.4), None)
    assert choose(["NO-RESPONSE"], logs(Ann=0.9)) == ("", 0.0, None)
