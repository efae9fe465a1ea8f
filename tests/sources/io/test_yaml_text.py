import pytest

from engine.errors import InputError
from engine.sources.io.yaml_text import read_settings

TEXT = """
# a comment
k: 010
n: [no, 5, "x", null]
time: 1:30
date: 2026-99-99
empty:
under_score: 1_000
quoted: "yes"
block: |
  two
  lines
"""


def test_values_are_given_as_they_are_written():
    settings = read_settings(TEXT, "o.yaml")
    assert {key: setting.as_written() for key, setting in settings.items()} == {
        "k": "010",
        "n": ["no", "5", "x", None],
        "time": "1:30",
        "date": "2026-99-99",
        "empty": None,
        "under_score": "1_000",
        "quoted": "yes",
        "block": "two\nlines\n",
    }
    assert [settings[key].line for key in ("k", "n", "block")] == [3, 4, 10]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("12", 12), ("-3", -3), ("+4", 4), ("0", 0), ("0.5", 0.5), ("1.", 1.0), ("1.5e+3", 1500.0),
        ("true", True), ("No", False), ("off", False), ("~", None), ("", None), ("text", "text"),
        ("'12'", "12"), ("2026-01-02", "2026-01-02"), ("=", "="), ("[1, a, [], ]", None),
        ("1e3", "1e3"), ("[1, two]", [1, "two"]), ("&x 5", 5),
    ],
)  # fmt: skip
def test_plain_values_are_what_they_look_like(text, value):
    if text == "[1, a, [], ]":
        with pytest.raises(InputError, match="neither a value nor a list of values"):
            read_settings(f"a: {text}", "o.yaml")
        return
    found = read_settings(f"a: {text}", "o.yaml")["a"].value()
    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize("text", ["010", "1:30", "1:30.5", "1_000", "0x10", "0b1", "1_0.5", ".inf",
                                  ".nan", "!!int x", "!!float x", "!!bool x", "9" * 5000])  # fmt: skip
def test_numbers_that_may_not_be_what_they_look_like_are_refused(text):
    with pytest.raises(InputError, match="o.yaml:2: .* is not a plain decimal number"):
        read_settings(f"\na: {text}", "o.yaml")["a"].value()


def test_an_empty_text_has_no_settings():
    assert read_settings("", "o.yaml") == read_settings("# only this\n", "o.yaml") == {}
    assert read_settings("null", "o.yaml") == {}
