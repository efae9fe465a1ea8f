import pytest

from engine.messages.errors import InputError
from engine.sources.io.yaml_text import read_settings

TEXT = """
# a comment
k: 10
n: ["no", 5, -0.25, 0.90, "x", null]
time: '1:30'
empty:
name: bm25
quoted: "yes"
end_to_end: false
block: |
  two
  lines
"""


def test_values_are_given_as_they_are_written():
    values, lines = read_settings(TEXT, "o.yaml")
    assert values == {
        "k": "10",
        "n": ["no", "5", "-0.25", "0.90", "x", None],
        "time": "1:30",
        "empty": None,
        "name": "bm25",
        "quoted": "yes",
        "end_to_end": "false",
        "block": "two\nlines\n",
    }
    assert [lines[key] for key in ("k", "n", "block")] == [3, 4, 10]


CHANGED = "010 1e3 yes no On off 1:30 0x10 0o17 1_000 1. .5 +1 2026-01-01 2026-99-99 .inf nan True"


@pytest.mark.parametrize("text", [*CHANGED.split(), "!!binary aGk=", "!own x"])
def test_a_value_that_yaml_would_change_is_to_be_put_in_quotes(text):
    shown = text.split()[-1]
    for yaml, line in ((f"a: {text}", 2), (f"b: 1\na: [x,\n {text}]", 4)):
        with pytest.raises(InputError) as caught:
            read_settings(yaml, "o.yaml", first_line=2)
        said = (
            f"o.yaml:{line}: 'a' is {shown}, which YAML takes for something else; put it in quotes"
        )
        assert str(caught.value) == said
    assert read_settings(f"a: '{shown}'", "o.yaml")[0] == {"a": shown}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: [1, [2]]", "o.yaml:2: 'a' is neither a value nor a list of values"),
        ("b: 1\na: 1\na: 2", "o.yaml:4: the key 'a' is given twice .see line 3."),
        ("[a]: 1", "o.yaml:2: a key that is not a text"),
        ("a: 1\nb: \0", "o.yaml:3: broken YAML"),
        ("a: 1\n\tb: 2", "o.yaml:3: broken YAML"),
        ("- a", "o.yaml:2: holds no keys"),
    ],
)
def test_what_is_no_list_of_settings_is_refused_with_its_line(text, words):
    with pytest.raises(InputError, match=words):
        read_settings(text, "o.yaml", first_line=2)


def test_an_empty_text_has_no_settings():
    for text in ("", "# only this\n", "null"):
        assert read_settings(text, "o.yaml") == ({}, {})
