import unicodedata

from engine.messages.errors import InputError
from engine.messages.wording import quoted
from tests.expected import as_expected


def test_ids_that_look_equal_are_shown_differently():
    one, other = "café", unicodedata.normalize("NFD", "café")
    assert quoted(one) == "'café'"
    assert quoted(other) == "'cafe\\u0301'"
    assert quoted("검색") == "'검색'"
    assert quoted(unicodedata.normalize("NFD", "검")) == "'\\u1100\\u1165\\u11b7'"


def test_long_values_are_cut():
    assert quoted("x" * 81) == "'" + "x" * 80 + "…'"
    as_expected(quoted(10**5000))
    assert quoted(["a", 1, None, 2]) == "['a', 1, None, …]"
    assert quoted(["x" * 100] * 3) == "a list"
    assert quoted({"a": 1}) == "an object"
    assert quoted(1.0) == "1.0"


def test_a_message_keeps_its_place_and_remedy_whatever_it_quotes():
    message = str(InputError("x" * 10**6, "mend it", path="f", line=3))
    assert message.startswith("f:3: xxx")
    assert message.endswith("xxx; mend it")
    assert len(message) < 1100
