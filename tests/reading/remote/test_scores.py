"""Texts scored by a server that echoes a prompt's tokens, and answers weighed by one that gives log-probabilities."""

import math
import re
from dataclasses import replace

import pytest

from engine.machine.remote.api_settings import ApiSettings
from engine.reading.reader_settings import ReaderAsk
from engine.reading.remote.reader import ApiReader, following
from engine.reading.remote.specify import specify_api
from tests.expected import as_expected, refused
from tests.reading.remote.server import Behaviour, Said, prompt_of, serving


def words(text):
    """The tokens of a text, words with the blank before them; none but the first has no log-probability."""
    parts = re.findall(r"\s?\S+|\s", text)
    return tuple((part, -0.1 * len(part) if i else None) for i, part in enumerate(parts))


def echo(body):
    asked = prompt_of(body)
    said = words(asked)[-1][0]
    echoed = words(asked) if body.get("echo") else ()
    return Said(
        said, prompt_tokens=len(echoed) or 9, finish="length", tokens=(*echoed, (" x", -0.5))
    )


def scored(scores, inputs, behaviour=None, endpoint="completions"):
    """The outputs of a reader that scores, whose server has this behaviour, and what the server was sent."""
    behaviour = behaviour or Behaviour(echo)
    with serving(behaviour) as url:
        settings = ApiSettings(base_url=url, endpoint=endpoint)
        ask = ReaderAsk(model="openai:m", task="short-answer", scores=scores)
        spec, _ = specify_api(ask, settings)
        reader = ApiReader(replace(spec, scores=scores))
        return reader.read(inputs), behaviour.answered[-1]


def test_a_target_is_scored_by_the_echo_of_its_tokens():
    (output,), sent = scored("target", [["Question: who?\nAnswer:", " Ann Lee"]])
    assert (output.output, output.output_tokens, output.failure) == ("Ann Lee", 2, None)
    assert math.log(output.confidence) == pytest.approx(-0.1 * (4 + 4) / 2)
    assert (sent["echo"], sent["logprobs"], sent["max_tokens"]) == (True, 1, 1)
    assert sent["prompt"] == "Question: who?\nAnswer: Ann Lee"
    assert "stop" not in sent


def test_a_target_whose_tokens_begin_elsewhere_fails():
    (output,), _ = scored("target", [["Question: who?\nAnswer", ": Ann"]])
    as_expected(output.failure)


@pytest.mark.parametrize("endpoint", ["completions", "chat"])
def test_what_a_server_writes_is_weighed_by_the_tokens_that_it_lists(endpoint):
    (output,), sent = scored("own", [["Question: who?\nAnswer:"]], endpoint=endpoint)
    assert output.confidence == pytest.approx(math.exp(-0.5))
    assert sent["logprobs"] == (1 if endpoint == "completions" else True)


def test_a_server_that_echoes_nothing_or_gives_no_log_probabilities_is_refused():
    silent = Behaviour(lambda body: Said("OK"))
    deaf = Behaviour(lambda body: Said("OK", tokens=(("OK", -0.1),)))
    refusing = Behaviour(
        echo, refuse=lambda body: "unknown parameter echo" if "echo" in body else None
    )
    for behaviour in (silent, deaf, refusing):
        with refused("server.scores"):
            scored("target", [["a", " b"]], behaviour)
    with refused("server.scores"):
        scored("target", [["a", " b"]], endpoint="chat")
    with refused("server.scores"):
        scored("own", [["a"]], silent)


def test_tokens_of_a_target_may_be_followed_by_one_that_was_generated():
    tokens = [("A", math.nan), (":", -1.0), (" b", -2.0), ("c", -3.0)]
    assert following(tokens, " bc") == [-2.0, -3.0]
    assert following([*tokens, (" d", -9.0)], " bc") == [-2.0, -3.0]
    assert following(tokens, "bc") is None
    assert following(tokens[:1], "A") is None
    assert following([], "A") is None
