"""What of a text is the answer: the same through every door by which texts of readers come."""

import json
from dataclasses import replace

import polars as pl
import pytest

from engine.machine.remote.api_settings import ApiSettings, ApiSpec
from engine.machine.remote.client import answer_of
from engine.reading.answers import Rule, rule_of
from engine.reading.backends import NamedExecutor
from engine.reading.costs import UnitResult
from engine.reading.function import ReaderFunction
from engine.reading.function_reader import FunctionReader, specify_function
from engine.reading.local import Local
from engine.reading.models.decoding import Continuation, Writer
from engine.reading.plan import Unit
from engine.reading.protocol import ReadOutput
from engine.reading.reader_settings import ReaderAsk
from engine.reading.remote.reader import ApiReader
from tests.conftest import SPEC
from tests.reading.models.test_decoding import Letters, logits_for, spec

FAILED = "failed"
# What a chat model writes, where it ends by itself: its thought and its answer. The answers of a function and of a
# program of a user's end where they do, those of others at the first line break.
CASES = {
    "Lima": (None, "Lima"),
    " Lima \nQuestion: next": (None, "Lima"),
    "\n\nLima": (None, "Lima"),
    "<think>\nLet me see.\n</think>\n\nLima\n": ("Let me see.", "Lima"),
    "\n<think></think>Lima": ("", "Lima"),
    "<think>Lima?\nOr Quito?</think>": ("Lima?\nOr Quito?", ""),
    "Lima <think>or Quito?</think>": (None, "Lima <think>or Quito?</think>"),
    "<think>\nLet me see. Lima": FAILED,
    "": (None, ""),
    "\n": (None, ""),
}
OPENED = {  # the prompt begins the thought
    "Let me see.\n</think>\n\nLima\n": ("Let me see.", "Lima"),
    "<think>Hm.</think>Lima": ("Hm.", "Lima"),
    "Let me see. Lima": FAILED,
}
CHAT = {"special_tokens": False, "max_new_tokens": 60}


def told(output):
    return FAILED if output.failure is not None else (output.thought, output.output)


def local(text, **fields):
    """By a decoder-only model of this machine, which would go on as the text does."""
    asked = spec(**(CHAT | fields))
    writer, answer = Writer(asked, Letters(), frozenset({0})), Continuation()
    for letter in f"{text}\0":
        if not writer.write([answer], logits_for(letter)):
            break
    return told(rule_of(asked).output(answer.text, 1, len(answer.tokens)))


def served(text, finish="stop", opened=False, endpoint="chat", **message):
    """By a server."""
    api = ApiSpec(
        model="m",
        settings=ApiSettings(base_url="http://localhost/v1", endpoint=endpoint),
        system="",
        parameters=json.dumps({"max_tokens": 16, "stop": ["\n"]}),
        opened=opened,
    )
    assert ("stop" in api.body("x")) == (endpoint == "completions")
    reader = ApiReader(replace(spec(), engine="openai", api=api), client=object())
    choice = {"finish_reason": finish, "message": {"content": text, **message}, "text": text}
    answer = answer_of({"choices": [choice]}, chat=endpoint == "chat")
    return told(reader._output(answer, answer.usage or type(reader._limits.spent)()))


def by_function(text):
    mine = ReaderFunction(lambda prompts: [text for _ in prompts], "mine")
    asked, _ = specify_function(mine, ReaderAsk(model="mine", task="short-answer"))
    return told(FunctionReader(asked).read([["prompt"]])[0])


def given(text):
    """By a program of a user's that stands in for a reader."""

    def program(plan, units, spec):
        outputs = [ReadOutput(text, 1, 1, False, seconds=2.5)]
        yield UnitResult(units[0], outputs, "w", 1.0, {})

    asked = replace(SPEC, executor="mine")
    backend = Local([asked], [None], executor=NamedExecutor("mine", program))
    (result,) = backend.run(pl.DataFrame(), [Unit(0, 0, 1)])
    assert result.outputs[0].seconds == 2.5
    return told(result.outputs[0])


@pytest.mark.parametrize("text", CASES)
def test_an_answer_is_the_same_through_every_door(text):
    expected = CASES[text]
    assert local(text) == expected
    # From a server, a thought without an answer is none: it was cut.
    cut = expected != FAILED and expected[0] and not expected[1]
    assert served(text) == (FAILED if cut else expected)
    if "next" not in text:
        assert by_function(text) == given(text) == expected


@pytest.mark.parametrize("text", OPENED)
def test_a_thought_that_the_prompt_begins_has_its_end_alone(text):
    assert local(text, room=40) == OPENED[text]
    assert served(text, opened=True) == OPENED[text]
    if OPENED[text] != FAILED:
        assert by_function(text) == given(text) == OPENED[text]


def test_a_thought_has_room_of_its_own():
    assert local(f"{'x' * 30}</think>Lima", room=40, max_new_tokens=4) == ("x" * 30, "Lima")
    assert local(f"{'x' * 30}</think>Lima, Peru", room=40, max_new_tokens=4) == ("x" * 30, "Lima")
    assert local("x" * 60, room=40, max_new_tokens=4) == FAILED


def test_who_continues_a_text_ends_at_the_first_line_break():
    assert local("\nLima\n", special_tokens=True) == (None, "")
    assert served("\nLima\n", endpoint="completions") == (None, "")
    assert served(" Lima\nQ", endpoint="completions") == (None, "Lima")
    # A server that does not take ``stop`` goes on until its tokens are used.
    assert served("\nLima\n", "length", endpoint="completions") == (None, "")


def test_a_prompt_may_name_other_tags():
    rule = Rule(stop=("\n",), chat=True, tags=("<r>", "</r>"))
    assert rule.parts("<r>a\nb</r>\nc\nd")[:2] == ("a\nb", "c")
    assert rule.parts("<think>a")[:2] == (None, "<think>a")


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ({"text": None}, FAILED),
        ({"text": "", "finish": "length"}, FAILED),
        ({"text": "", "finish": ""}, FAILED),
        ({"text": "", "finish": "stop"}, (None, "")),
        ({"text": "Lima", "finish": ""}, (None, "Lima")),
        ({"text": "Lima", "finish": "content_filter"}, FAILED),
        ({"text": None, "reasoning_content": "It must be Lima"}, FAILED),
        ({"text": "", "reasoning_content": "It must be Lima"}, FAILED),
        ({"text": "\nLima", "reasoning_content": "Lima?"}, ("Lima?", "Lima")),
        ({"text": "Lima", "reasoning": "Lima?"}, ("Lima?", "Lima")),
        (
            {"text": [{"type": "text", "text": "Li"}, {"type": "text", "text": "ma"}]},
            (None, "Lima"),
        ),
    ],
)
def test_an_answer_that_a_server_did_not_give_is_a_failed_read(message, expected):
    assert served(**message) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [("a\ud83d", "a\ufffd"), ("\ud83d\ude00", "\U0001f600"), ("Cafe\u0301", "Caf\u00e9")],
)
def test_texts_are_valid_and_composed_whoever_wrote_them(text, expected):
    assert served(text) == by_function(text) == given(text) == (None, expected)
    assert ReadOutput.failed(text).failure == expected
