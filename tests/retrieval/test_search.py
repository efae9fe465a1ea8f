"""Options of searching an index of either kind."""

import pytest

from engine.messages.errors import InputError
from engine.retrieval.search import SearchOptions


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"k": 0}, "`k` is 0; use 1 or more"),
        ({"threads": 0}, "`threads` is 0; use 1 or more"),
        ({"k1": -0.1}, "`k1` is -0.1; use 0 or more"),
        ({"b": 1.1}, "`b` is 1.1; use a number from 0 to 1"),
    ],
)
def test_options_out_of_range_are_refused_by_their_field(options, words):
    with pytest.raises(InputError) as refused:
        SearchOptions(**options)
    assert str(refused.value) == words
