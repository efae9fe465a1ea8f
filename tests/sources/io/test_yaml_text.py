import pytest

from engine.messages.errors import InputError
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
    assert {key: setting.value for key, setting in settings.items()} == {
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
    ("text", "words"),
    [
        ("a: [1, [2]]", "o.yaml:2: 'a' is neither a value nor a list of values"),
        ("a: !!binary aGk=", "o.yaml:2: 'a' has a value with the tag tag:yaml.org,2002:binary"),
        ("a: [!own 1]", "o.yaml:2: 'a' has a value with the tag !own"),
        ("b: 1\na: 1\na: 2", "o.yaml:4: the key 'a' is given twice .see line 3."),
        ("[a]: 1", "o.yaml:2: a key that is not a text"),
        ("a: 1\nb: \0", "o.yaml:3: broken YAML .the character U.0000 is not allowed"),
        ("a: 1\n\tb: 2", "o.yaml:3: broken YAML"),
        ("- a", "o.yaml:2: holds no keys"),
    ],
)
def test_what_is_no_list_of_settings_is_refused_with_its_line(text, words):
    with pytest.raises(InputError, match=words):
        read_settings(text, "o.yaml", first_line=2)


def test_an_empty_text_has_no_settings():
    assert read_settings("", "o.yaml") == read_settings("# only this\n", "o.yaml") == {}
    assert read_settings("null", "o.yaml") == {}
