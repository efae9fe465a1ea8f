"""One request to a server on this machine that fails in every way, and what is made of it."""

import contextlib
import email.utils
import functools
import gzip
import itertools
import json
import math
import os
import re
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest

from engine.machine.remote import client as clients
from engine.machine.remote.api_settings import KEY_VARIABLE, ApiSettings, ApiSpec
from engine.machine.remote.client import (
    Answer,
    Client,
    RefusedError,
    UnansweredError,
    answer_of,
    requested_wait,
)
from engine.machine.remote.limits import Limits, StoppedAskingError, Usage
from engine.messages.errors import InputError
from tests.expected import as_expected
from tests.reading.remote.server import FAULTS, Behaviour, Said, serving


def asked(behaviour, times, **settings):
    """Answers to some requests of a client, each with how often it was made again, and the limits."""
    with serving(behaviour) as url:
        made = ApiSettings(**({"base_url": url, "request_timeout": 20} | settings))
        spec = ApiSpec(model="m", settings=made, system="Be brief.", parameters='{"max_tokens": 4}')
        limits = Limits(made)
        with contextlib.closing(Client(made, limits)) as client:
            for _ in range(times):
                retries = itertools.count()
                again = functools.partial(next, retries)
                answer = client.ask(spec, "hello there", 4, on_retry=again)
                yield answer, next(retries), limits


def ask(behaviour, **settings):
    (once,) = asked(behaviour, 1, **settings)
    return once


def refusal(error, behaviour, **settings):
    with pytest.raises(error) as caught:
        ask(behaviour, **settings)
    said = caught.value
    return f"{said}; {said.remedy}" if isinstance(said, UnansweredError) else str(said)


def sends(body, headers=(), status=200):
    """Answers a request with these bytes, or those that a generator gives, as long as somebody takes them."""

    def answer(handler):
        handler.send_response(status)
        for name, value in headers:
            handler.send_header(name, value)
        handler.end_headers()
        with contextlib.suppress(OSError):
            for part in body if not isinstance(body, bytes) else [body]:
                handler.wfile.write(part)
                handler.wfile.flush()

    return answer


def drip():
    for _ in range(25):
        yield b" "
        time.sleep(0.2)


GOOD = json.dumps({"choices": [{"message": {"content": "Hi"}, "finish_reason": "stop"}]}).encode()
GZIP = [("Content-Encoding", "gzip")]


def test_a_chat_is_messages_and_a_completion_is_text():
    chat = Behaviour(lambda body: Said("Hi you"))
    answer, retries, limits = ask(chat)
    assert replace(answer, seconds=None) == Answer(
        "Hi you", Usage(3, 2), "stop", None, "fp-1", model="m"
    )
    assert (retries, limits.spent) == (0, Usage(3, 2))
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "hello there"},
    ]
    sent = {"model": "m", "max_tokens": 4, "stream": False}
    assert chat.answered == [sent | {"messages": messages}]
    text = Behaviour(lambda body: Said("Hi you"))
    answer, _, _ = ask(text, endpoint="completions")
    assert answer.text == "Hi you"
    assert text.answered == [sent | {"prompt": "hello there"}]


@pytest.mark.parametrize("fault", FAULTS)
def test_what_fails_for_a_while_is_asked_again(fault):
    times, timeout = (1, 2) if fault == "slow" else (2, 20)
    behaviour = Behaviour(
        lambda body: Said("Hi"), fault=lambda n: fault if n < times else None, slow=timeout + 1
    )
    answer, retries, limits = ask(behaviour, request_timeout=timeout)
    assert answer.text == "Hi"
    assert retries == times
    assert behaviour.faults == [fault] * times
    assert limits.spent == Usage(3, 1)  # that of the answer alone


def test_a_server_is_not_asked_before_the_time_that_it_names():
    behaviour = Behaviour(
        lambda body: Said("Hi"), fault=lambda n: "429" if n == 0 else None, retry_after=0.4
    )
    ask(behaviour)
    first, second = behaviour.times
    assert second - first >= 0.4


def test_the_seconds_of_an_answer_are_those_of_its_last_attempt(monkeypatch):
    # The attempt that fails begins at 0; the one that is answered begins at 50 and ends at 53.
    clock = iter([0.0, 50.0, 53.0])
    made = SimpleNamespace(perf_counter=lambda: next(clock), time=time.time)
    monkeypatch.setattr(clients, "time", made)
    monkeypatch.setattr(clients, "FIRST_WAIT", 0.01)
    behaviour = Behaviour(lambda body: Said("Hi"), fault=lambda n: "500" if n == 0 else None)
    answer, retries, _ = ask(behaviour)
    assert (answer.seconds, retries) == (3.0, 1)


def test_a_server_that_asks_for_too_long_a_wait_is_not_waited_for(monkeypatch):
    monkeypatch.setattr(clients, "LONGEST_ASKED", 5.0)
    behaviour = Behaviour(lambda body: Said("Hi"), fault=lambda n: "429", retry_after=3600)
    as_expected(refusal(StoppedAskingError, behaviour))
    assert len(behaviour.times) == 1


def test_a_request_is_given_up_after_some_attempts():
    behaviour = Behaviour(lambda body: Said("Hi"), fault=lambda n: "500")
    as_expected(refusal(UnansweredError, behaviour))
    assert len(behaviour.times) == 8


def test_a_server_that_is_not_there_is_given_up_sooner():
    nobody = Behaviour(lambda body: Said(""))
    as_expected(refusal(UnansweredError, nobody, base_url="http://127.0.0.1:9/v1"))


def test_without_credit_nothing_more_is_asked():
    behaviour = Behaviour(lambda body: Said("Hi"), fault=lambda n: "quota")
    as_expected(refusal(StoppedAskingError, behaviour))
    assert len(behaviour.times) == 1


def test_a_request_that_the_server_does_not_take_is_not_repeated():
    behaviour = Behaviour(lambda body: Said("Hi"), refuse=lambda body: "such a long prompt")
    as_expected(refusal(RefusedError, behaviour))
    assert len(behaviour.times) == 1


def test_the_key_comes_from_the_environment_and_is_in_no_message(monkeypatch):
    behaviour = Behaviour(lambda body: Said("Hi"), key="sk-right")
    as_expected(refusal(StoppedAskingError, behaviour))
    monkeypatch.setenv(KEY_VARIABLE, "sk-wrong-1234")
    said = refusal(StoppedAskingError, behaviour)  # the server says which key it was given
    assert "sk-wrong" not in said
    as_expected(said)
    monkeypatch.setenv(KEY_VARIABLE, "sk-right")
    assert ask(behaviour)[0].text == "Hi"


def test_user_and_password_of_an_address_are_sent_and_not_shown():
    behaviour = Behaviour(lambda body: Said("Hi"), refuse=lambda body: "not for me:s3cret")
    with serving(behaviour) as url:
        address = url.replace("http://", "http://me:s3cret@")
        said = refusal(RefusedError, behaviour, base_url=address)
    assert behaviour.keys == ["Basic bWU6czNjcmV0"]  # base64 of me:s3cret
    assert "s3cret" not in said


@pytest.mark.parametrize(
    "shown",
    [
        "sk-verysecret-12345",
        "b'Bearer sk-verysecret-12345'",
        "Incorrect API key provided: sk-ve*****345.",
        "your api key: ****2345 is invalid",
        "key=sk-veryse...",
        'got {"auth":"sk-verysecret-12345"}',
        "the end is secret-12345",
    ],
)
def test_no_part_of_a_key_is_in_a_message(monkeypatch, shown):
    key = "sk-verysecret-12345"
    monkeypatch.setenv(KEY_VARIABLE, f"{key}\n")  # as of a file's last line
    behaviour = Behaviour(lambda body: Said("Hi"), refuse=lambda body: shown)
    said = refusal(RefusedError, behaviour)
    assert behaviour.keys == [f"Bearer {key}"]
    assert "***" in said
    for part in ("very", "secret", "2345"):
        assert part not in said


EVENT = b'data: {"choices": [{"delta": {"content": "Hi"}}]}\n\n'


def forever(part):
    while True:
        yield part
        time.sleep(0.01)


@pytest.mark.parametrize(
    "body",
    [
        EVENT + b"data: [DONE]\n\n",
        b"event: message\n" + EVENT,
        b"\n: keep-alive\n\n" + EVENT,
        forever(b": ping\n\n"),  # no need to wait for its end
        GOOD + b"\n" + GOOD,
        b'{"choices": [{"delta": {"content": "Hi"}}]}',
    ],
)
def test_a_stream_is_said_to_be_one_at_once(body):
    behaviour = Behaviour(lambda body: Said("Hi"), fault=lambda n: sends(body))
    as_expected(refusal(UnansweredError, behaviour))
    assert len(behaviour.times) == 1


def test_an_answer_that_is_called_a_stream_and_is_whole_is_an_answer():
    whole = sends(GOOD, [("Content-Type", "text/event-stream")])
    assert ask(Behaviour(lambda body: Said(""), fault=lambda n: whole))[0].text == "Hi"
    # What is no answer is what its status says.
    busy = sends(EVENT, status=503)
    behaviour = Behaviour(lambda body: Said("Hi"), fault=lambda n: busy if n == 0 else None)
    assert ask(behaviour)[1] == 1


@pytest.fixture
def bare(monkeypatch):
    """An environment without proxies and certificates, to be filled."""
    for name in list(os.environ):
        if name.lower().endswith("_proxy") or name.startswith(("SSL_CERT", "OPENAI")):
            monkeypatch.delenv(name)
    return lambda given: [monkeypatch.setenv(*one) for one in given.items()]


NOWHERE = "http://127.0.0.1:9"


@pytest.mark.parametrize(
    ("given", "code"),
    [
        ({"ALL_PROXY": "socks5://me:s3cret@h:1"}, "server.socks"),
        ({"http_proxy": "socks5h://me:s3cret@h:1"}, "server.socks"),
        ({"HTTPS_PROXY": "foo://me:s3cret@h"}, "server.proxy"),
        ({"HTTP_PROXY": "http://me:s3cret/@h"}, "server.proxy"),
        ({"SSL_CERT_FILE": "/nonexistent.pem"}, "server.certificates"),
        ({"SSL_CERT_FILE": "/"}, "server.certificates"),
        ({"SSL_CERT_FILE": __file__}, "server.certificates"),
        ({"OPENAI_ORG_ID": "org\u00e9s3cret"}, "server.header"),
        ({"OPENAI_CUSTOM_HEADERS": "a: \u2013s3cret"}, "server.header"),
        ({KEY_VARIABLE: "sk-s3cret\u200b1"}, "server.key"),
        ({KEY_VARIABLE: "sk-s3cret\nsk-2"}, "server.key"),
        ({KEY_VARIABLE: "sk\u2011s3cret"}, "server.key"),
        ({KEY_VARIABLE: "sk-s3cret\t1"}, "server.key"),
        ({KEY_VARIABLE: "sk-s3cret\udcff"}, "server.key"),
        *(
            ({name: "http://me:s3cret@127.0.0.1:9"}, "")
            for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy", "Http_Proxy")
        ),
        ({"http_proxy": NOWHERE, "HTTP_PROXY": "http://127.0.0.1:10"}, ""),
        ({"HTTP_PROXY": "http://h:99999"}, ""),
    ],
)
def test_what_the_environment_has_wrong_is_named_by_its_variable(bare, given, code):
    bare(given)
    behaviour = Behaviour(lambda body: Said("Hi"))
    with pytest.raises(InputError if code else StoppedAskingError) as caught:
        ask(behaviour)
    assert getattr(caught.value, "code", "") == code
    assert "s3cret" not in str(caught.value)
    as_expected(re.sub(r"\(\[.*?\)", "()", str(caught.value).replace(__file__, "FILE")))
    assert behaviour.times == []


@pytest.mark.parametrize(
    "given",
    [
        {"HTTP_PROXY": NOWHERE, "NO_PROXY": "localhost,127.0.0.1"},
        {"ALL_PROXY": NOWHERE, "no_proxy": "::1/128, 127.0.0.1 "},
        {"HTTP_PROXY": "foo://x", "NO_PROXY": "*"},
        {"HTTPS_PROXY": NOWHERE, "REQUESTS_CA_BUNDLE": "/nonexistent", "SSL_CERT_DIR": "/none"},
        {KEY_VARIABLE: " sk-right \u00a0\r\n"},
    ],
)
def test_what_the_environment_has_and_a_request_does_not_use_is_no_fault(bare, given):
    bare(given)
    assert ask(Behaviour(lambda body: Said("Hi")))[0].text == "Hi"


@pytest.mark.parametrize("status", [407, 503])
def test_a_proxy_that_does_not_let_requests_through_is_named(bare, monkeypatch, status):
    monkeypatch.setattr(clients, "ATTEMPTS", 2)
    proxy = Behaviour(lambda body: Said(""), fault=lambda n: sends(b"no", status=status))
    with serving(proxy) as url:
        bare({"HTTP_PROXY": url.removesuffix("/v1")})
        given = {"base_url": "http://inside.example/v1"}
        errors = StoppedAskingError, UnansweredError
        as_expected(refusal(errors, Behaviour(lambda body: Said("Hi")), **given))


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (sends(itertools.repeat(b"x" * 65536)), UnansweredError),
        (sends(gzip.compress(bytes(32 << 20)), GZIP), UnansweredError),
        (sends(GOOD, [("Content-Encoding", "br")]), UnansweredError),
        (sends(b"<!doctype html><title>Sign in"), UnansweredError),
        (sends(b'{"choices": ' + b"[" * 100_000), UnansweredError),
        (sends(b"", [("Location", "http://localhost:9")], 307), StoppedAskingError),
        (sends(b"no gzip", GZIP), UnansweredError),
        (sends(b"", [("Location", "http://[::")], 307), UnansweredError),
        *(
            (sends(body), UnansweredError)
            for body in (*(b"null", b'"x"', b"[]", b"NaN", b'{"choices": ' + b"9" * 9999 + b"}"),)
        ),
        *(
            (sends(json.dumps({"choices": choices}).encode()), UnansweredError)
            for choices in (
                {"0": 1},
                "abc",
                [None],
                True,
                [{"message": "Hi"}],
                [{"message": {"content": 5}}],
                [{"message": {"content": ["a", None]}}],
                *(
                    [{"message": {"content": "Hi"}, "logprobs": {"content": [token]}}]
                    for token in ({"token": "a", "logprob": "x"}, None)
                ),
            )
        ),
        (sends(b'{"error": {"message": "\\ud83d"}}', status=400), RefusedError),
        (sends(b'{"error": ' + b"[" * 100_000, status=400), RefusedError),
        (sends(b'{"error": {"code": []}}', status=400), RefusedError),
    ],
)
def test_what_would_not_be_better_the_next_time_is_asked_once(answer, error):
    behaviour = Behaviour(lambda body: Said("Hi"), fault=lambda n: answer)
    as_expected(refusal(error, behaviour))
    assert len(behaviour.times) == 1


def drips_headers(handler):
    with contextlib.suppress(OSError):
        handler.wfile.write(b"HTTP/1.1 200 OK\r\nX-Slow: ")
        for part in drip():
            handler.wfile.write(part)


@pytest.mark.parametrize("answer", [sends(drip()), drips_headers])
def test_an_answer_must_come_in_full_in_time(monkeypatch, answer):
    monkeypatch.setattr(clients, "ATTEMPTS", 1)
    monkeypatch.setattr(clients, "_FIRST_ATTEMPTS", 1)
    behaviour = Behaviour(lambda body: Said("Hi"), fault=lambda n: answer)
    as_expected(refusal(UnansweredError, behaviour, request_timeout=0.5))


def test_an_answer_may_be_packed_although_none_was_asked_for():
    packed = sends(gzip.compress(GOOD), GZIP)
    assert ask(Behaviour(lambda body: Said(""), fault=lambda n: packed))[0].text == "Hi"


def test_a_good_answer_whose_usage_cannot_be_read_is_a_good_answer():
    numbers = ["NaN", "-1", "1e999", "1" + "0" * 30, "1" + "0" * 5000, '"a"', "{}"]
    usages = ["null", "NaN", "[]", *(f'{{"prompt_tokens": {number}}}' for number in numbers)]
    usages += [f'{{"prompt_tokens": 3, "completion_tokens": {number}}}' for number in numbers]
    usages += ['{"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": "a"}', "{}"]
    # Neither a prompt nor an answer has no tokens.
    zeros = ['{"prompt_tokens": 0, "completion_tokens": %s}', '{"prompt_tokens": %s}']
    usages += [usage % number for usage in zeros for number in (0, 5, "null")]
    usages += ['{"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}']
    bodies = [GOOD[:-1] + f', "usage": {usage}}}'.encode() for usage in usages]
    behaviour = Behaviour(lambda body: Said(""), fault=lambda n: sends(bodies[n]))
    for answer, retries, _ in asked(behaviour, len(bodies)):
        assert (answer.text, answer.usage, retries) == ("Hi", None, 0)
    # Bounds count what was reserved for it.
    _, _, limits = ask(Behaviour(lambda body: Said("Hi"), usage=False))
    assert limits.spent == Usage(5, 4)


@pytest.mark.parametrize("value", [math.nan, 3.0, math.inf])
def test_log_probabilities_that_are_none_are_no_label(value):
    top = [{"token": "No", "logprob": -0.1}, {"token": "Yes", "logprob": value}]
    choice = {"message": {"content": "No"}, "logprobs": {"content": [{"top_logprobs": top}]}}
    assert answer_of({"choices": [choice]}, chat=True).likeliest is None


def test_waits_are_read_from_seconds_milliseconds_and_dates():
    assert requested_wait({"retry-after": "2.5"}) == 2.5
    assert requested_wait({"retry-after-ms": "300", "retry-after": "9"}) == pytest.approx(0.3)
    soon = email.utils.formatdate(time.time() + 100, usegmt=True)
    assert 90 < requested_wait({"retry-after": soon}) <= 100
    assert requested_wait({"retry-after": "-3"}) == 0
    assert requested_wait({"retry-after": "soon"}) is None
    for never in ("nan", "inf", "1e999", "Mon, 01 Jan 99999 00:00:00 GMT"):
        assert requested_wait({"retry-after": never}) is None
    assert requested_wait({}) is None


def test_log_probabilities_are_read_as_every_server_writes_them():
    top = [{"token": "Yes", "logprob": -0.1}, {"token": " Yes", "logprob": -3.0}]
    chat = {
        "message": {"content": "Yes"},
        "logprobs": {"content": [top[0] | {"top_logprobs": top}]},
    }
    found = {"Yes": -0.1, " Yes": -3.0}
    assert answer_of({"choices": [chat]}, chat=True).likeliest == found
    text = {"text": "Yes", "logprobs": {"top_logprobs": [found, {"x": -1}]}}
    assert answer_of({"choices": [text]}, chat=False).likeliest == found
    # llama.cpp answers completions in the form of chats
    alike = {"text": "Yes", "logprobs": chat["logprobs"]}
    assert answer_of({"choices": [alike]}, chat=False).likeliest == found
    assert answer_of({"choices": [text | {"logprobs": None}]}, chat=False).likeliest is None


@pytest.mark.parametrize(
    ("usage", "counted"),
    [
        ({"prompt_tokens": 9, "completion_tokens": 2, "total_tokens": 11}, Usage(9, 2)),
        # xAI: thoughts beside completion_tokens, and in the total
        (
            {
                "prompt_tokens": 9,
                "completion_tokens": 1,
                "total_tokens": 410,
                "completion_tokens_details": {"reasoning_tokens": 400},
            },
            Usage(9, 401, thought=400, beside=400),
        ),
        # OpenAI: thoughts in completion_tokens
        (
            {
                "prompt_tokens": 9,
                "completion_tokens": 401,
                "total_tokens": 410,
                "completion_tokens_details": {"reasoning_tokens": 400},
            },
            Usage(9, 401, thought=400),
        ),
        # Gemini: in the total alone, and where nothing is left for an answer
        ({"prompt_tokens": 9, "total_tokens": 410}, Usage(9, 401, beside=401)),
        (
            {"prompt_tokens": 9, "completion_tokens": 0, "total_tokens": 410},
            Usage(9, 401, beside=401),
        ),
        # a total of less than its parts, or none, says nothing
        ({"prompt_tokens": 9, "completion_tokens": 2, "total_tokens": 5}, Usage(9, 2)),
        ({"prompt_tokens": 9, "completion_tokens": 2, "total_tokens": None}, Usage(9, 2)),
        # Anthropic's names
        ({"input_tokens": 9, "output_tokens": 2}, Usage(9, 2)),
        ({"input_tokens": 9, "output_tokens": 2, "prompt_tokens": 0}, Usage(9, 2)),
        ({"input_tokens": 9, "output_tokens": 0}, None),
    ],
)
def test_tokens_of_an_answer_are_all_that_are_paid_for(usage, counted):
    content = {"choices": [{"text": "a"}], "usage": usage}
    assert answer_of(content, chat=False).usage == counted


def test_an_answer_without_tokens_may_be_empty():
    content = {"choices": [{"text": ""}], "usage": {"prompt_tokens": 9, "completion_tokens": 0}}
    assert answer_of(content, chat=False).usage == Usage(9)


def test_what_the_server_kept_of_other_prompts_is_counted_apart():
    usage = {"prompt_tokens": 9, "completion_tokens": 2}
    usage["prompt_tokens_details"] = {"cached_tokens": 4}
    content = {"choices": [{"text": "a"}], "usage": usage}
    assert answer_of(content, chat=False).usage == Usage(9, 2, 4)
    assert answer_of(content | {"usage": None}, chat=False).usage is None
