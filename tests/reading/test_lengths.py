"""Tokens of prompts before they are read; of passages: ``tests/evaluation/test_plan.py``."""

import polars as pl
import pytest

from engine.reading.lengths import prompt_tokens
from engine.reading.readers import specify


@pytest.fixture
def spec(tiny_t5):
    return specify(str(tiny_t5), augmentation="fid", task="short-answer")[0]


def test_passages_are_counted_with_their_end_and_cut_where_the_reader_cuts_them(spec):
    # 250 of 401, and two words and the end.
    assert prompt_tokens(spec, pl.Series([["w1 " * 400, "w2 w3"]])) == 253
    assert prompt_tokens(spec, pl.Series([], dtype=pl.List(pl.String))) == 0


def test_many_prompts_are_counted_by_some_of_them(spec):
    """Of 4,000 with 3 or 5 tokens, in an order that every fourth would miss."""
    inputs = pl.Series([["w1 " * 2], ["w1 " * 2], ["w1 " * 4], ["w1 " * 4]] * 1000)
    assert prompt_tokens(spec, inputs) == pytest.approx(16_000, rel=0.03)
