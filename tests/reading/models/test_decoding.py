"""When an answer ends, and choices."""

import pytest
import torch

from engine.messages.errors import InputError
from engine.reading.answers import rule_of
from engine.reading.models.decoding import Writer, Written
from engine.reading.protocol import ReaderSpec


class Letters:
    """A tokenizer whose tokens are characters."""

    def decode(self, tokens, *, skip_special_tokens):
        return "".join(map(chr, tokens))

    def encode(self, text, *, add_special_tokens):
        return list(map(ord, text))


def spec(**fields):
    base = {
        "weights": "w", "architecture": "causal", "dtype": "float32", "max_new_tokens": 20,
        "stop": ("\n",), "max_input_tokens": 0, "path": "p", "parameters": 1, "name": "n",
    }  # fmt: skip
    return ReaderSpec(**(base | fields))


def logits_for(text):
    rows = torch.zeros(len(text), 128)
    for row, letter in enumerate(text):
        rows[row, ord(letter)] = 1.0
    return rows


def written(text, **fields):
    """What becomes of an answer to which the model would add ``text``, and how many tokens it took."""
    writer = Writer(spec(**fields), Letters(), frozenset({0}))
    answer = Written()
    for letter in text:
        if not writer.write([answer], logits_for(letter)):
            break
    return rule_of(spec(**fields)).parts(answer.text).answer, len(answer.tokens)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (" Paris\nQuestion", (" Paris", 7)),
        ("\nParis\n", ("", 1)),  # a line that ends at once is an empty answer
        ("Paris", ("Paris", 5)),
        ("Par\0is", ("Par", 3)),  # the end token is not part of the answer
        ("\0", ("", 0)),
        ("a" * 30, ("a" * 20, 20)),
    ],
)
def test_answers_end_at_an_end_token_or_a_stop_string(text, expected):
    assert written(text) == expected


def test_the_first_of_several_stop_strings_ends_an_answer():
    assert written("one two. three", stop=(". ", " t")) == ("one", 5)
    assert written("ab\0", stop=()) == ("ab", 2)


def test_only_answers_that_go_on_are_named():
    writer = Writer(spec(), Letters(), frozenset({0}))
    answers = [Written() for _ in range(4)]
    assert writer.write(answers, logits_for("a\n\0b")) == [0, 3]
    assert [answer.text for answer in answers] == ["a", "\n", "", "b"]


def test_choices_compare_first_tokens_only():
    writer = Writer(spec(choices=("yes", "no")), Letters(), frozenset({0}))
    logits = torch.full((2, 128), 50.0)  # whatever else the model would say
    logits[:, ord("y")] = torch.tensor([1.0, -1.0])
    logits[:, ord("n")] = 0.0
    answers = [Written(), Written()]
    assert writer.write(answers, logits) == []
    assert [answer.text for answer in answers] == ["yes", "no"]
    assert [answer.confidence for answer in answers] == pytest.approx([0.7310586, 0.2689414])
    assert writer.most == 0


def test_a_single_choice_is_weighed_against_all_tokens():
    writer = Writer(spec(choices=("no",)), Letters(), frozenset({0}))
    logits = torch.zeros(2, 128)
    logits[0, ord("n")] = 10.0
    logits[1, ord("x")] = 10.0
    answers = [Written(), Written()]
    assert writer.write(answers, logits) == []
    assert [answer.text for answer in answers] == ["no", ""]
    most, other = torch.tensor([10.0, 0.0]).exp()
    below = most + 127 * other
    assert [a.confidence for a in answers] == pytest.approx([float(most / below), float(1 / below)])


@pytest.mark.parametrize("choices", [("yes", "yesterday"), ("yes", "")])
def test_choices_that_first_tokens_do_not_tell_apart_are_refused(choices):
    with pytest.raises(InputError, match="same token, or one with none"):
        Writer(spec(choices=choices), Letters(), frozenset({0}))


@pytest.mark.parametrize("choices", [(), ("yes", "no")])
def test_logits_that_are_not_numbers_are_an_error(choices):
    writer = Writer(spec(choices=choices), Letters(), frozenset({0}))
    logits = torch.zeros(2, 128)
    logits[1, 5] = torch.nan
    with pytest.raises(ArithmeticError, match="not numbers"):
        writer.write([Written(), Written()], logits)
