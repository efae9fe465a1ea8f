"""Choices by first tokens, whoever makes them: where the reader means none, the read fails, for one reason."""

import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from engine.machine.remote.api_settings import ApiSettings, ApiSpec
from engine.machine.remote.client import Answer
from engine.machine.remote.limits import Usage
from engine.reading.answers import NOT_MEANT, rule_of, without_thought
from engine.reading.models import decoding
from engine.reading.models.causal import CausalReader
from engine.reading.models.encoder_decoder import EncoderDecoderReader
from engine.reading.models.tokenizing import PromptRead
from engine.reading.protocol import ReadOutput
from engine.reading.remote.reader import ApiReader
from tests.reading.models.test_decoding import spec
from tests.reading.models.test_generation import models, spec_of  # noqa: F401
from tests.reading.models.test_vllm_support import on_vllm, vllm  # noqa: F401

# Probabilities of the choices and of another token, and what is to come of them: text, mass, failure.
KINDS = {
    "meant": ((0.6, 0.2, 0.2), ("w5", 0.8, None)),
    "seldom": ((0.001, 0.003, 0.996), ("w6", 0.004, None)),
    "never": ((1e-6, 2e-6, 1 - 3e-6), ("", 3e-6, NOT_MEANT)),
    # A single one is an event that may be rare: its probability is the answer.
    "single": ((1e-6, 1 - 1e-6), ("", None, None)),
}


def choices_of(probabilities):
    return ("w5", "w6")[: len(probabilities) - 1]


def told(output):
    mass = output.mass if output.mass is None else pytest.approx(output.mass, rel=1e-4)
    return output.output, mass, output.failure


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("architecture", ["causal", "encoder-decoder"])
def test_own_loops(kind, architecture, models, monkeypatch):  # noqa: F811
    probabilities, expected = KINDS[kind]
    logits = torch.full((1, 100), -math.inf)
    tokens = (8, 9)[: len(probabilities) - 1]  # of w5 and w6
    for token, probability in zip((*tokens, 50), probabilities, strict=True):
        logits[0, token] = math.log(probability)
    choose = decoding.choose
    monkeypatch.setattr(decoding, "choose", lambda _, *more: choose(logits, *more))
    reader = CausalReader if architecture == "causal" else EncoderDecoderReader
    asked = spec_of(models[architecture], architecture=architecture)
    asked = replace(asked, choices=choices_of(probabilities))
    (output,) = reader(asked).read([["w1 w2"]])
    assert told(output) == expected


@pytest.mark.parametrize("kind", KINDS)
def test_vllm(kind, vllm, on_vllm):  # noqa: F811
    probabilities, expected = KINDS[kind]
    words = dict(zip(("w5", "w6"), (" no", " yes"), strict=True))
    choices = tuple(words[one] for one in choices_of(probabilities))
    reader = vllm[0].VllmReader(replace(on_vllm, choices=choices))
    first = zip(reader._first, probabilities, strict=False)
    logs = {token: SimpleNamespace(logprob=math.log(p)) for token, p in first}
    completion = SimpleNamespace(token_ids=[0], logprobs=[logs], stop_reason=None, finish_reason="length")  # fmt: skip
    read = PromptRead([1])
    output = reader._output(read, SimpleNamespace(outputs=[completion]))
    text, *rest = told(output)
    assert (text, *rest) == (words.get(expected[0], "").strip(), *expected[1:])


@pytest.mark.parametrize("kind", KINDS)
def test_servers(kind):
    probabilities, expected = KINDS[kind]
    settings = ApiSettings(base_url="http://server/v1")
    api = ApiSpec(model="m", settings=settings, system="", parameters="{}")
    choices = choices_of(probabilities)
    reader = ApiReader(spec(api=api, engine="openai", choices=choices), client=SimpleNamespace())
    tokens = zip((*choices, "x"), probabilities, strict=True)
    likeliest = {token: math.log(p) for token, p in tokens}
    answer = Answer("x", Usage(5, 1), "length", likeliest, "")
    assert told(reader._output(answer, Usage(5, 1))) == expected


@pytest.mark.parametrize("kind", ["meant", "seldom", "never"])
def test_programs_that_tell_the_mass(kind):
    probabilities, (text, mass, failure) = KINDS[kind]
    made = ReadOutput("w5", 9, 0, False, confidence=0.5, mass=math.fsum(probabilities[:-1]))
    output = without_thought(made, rule_of(spec(executor="mine")))
    assert told(output)[1:] == (mass, failure)
    assert output.output == ("w5" if text else "")
    untold = replace(made, mass=None)
    assert without_thought(untold, rule_of(spec(executor="mine"))) == untold
