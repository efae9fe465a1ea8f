"""What a reader behind an API is: what a first request shows, what is refused, and what makes the key."""

import json
import re

import pytest

from engine.machine.remote import limits
from engine.machine.remote.api_settings import ApiSettings
from engine.messages.errors import ReadError
from engine.reading.plan import read_key
from engine.reading.reader_settings import ReaderAsk
from engine.reading.remote.specify import TRIAL, specify_api
from tests.expected import as_expected, refused
from tests.reading.remote.server import Behaviour, Said, prompt_of, serving

TOP = {"Yes": -0.1, "No": -2.4}


def specify(behaviour, task="short-answer", prompt=None, name="openai:m", augmentation="in-prompt", **settings):  # fmt: skip
    """The specification of a reader that a server with this behaviour runs."""
    with serving(behaviour) as url:
        made = ApiSettings(**({"base_url": url} | settings))
        ask = ReaderAsk(model=name, task=task, prompt=prompt, augmentation=augmentation)
        return specify_api(ask, made)


def serve(**behaviour):
    return Behaviour(lambda body: Said("OK", TOP), **behaviour)


def sent(spec):
    return json.loads(spec.api.parameters)


def test_a_chat_gets_messages_and_a_completion_the_worked_examples():
    spec, prompt = specify(serve())
    assert prompt.template.name == "chat"
    (text,) = prompt.render("who?", [("Ann", "Ann did.")])
    # neither a chat template nor its control tokens: the server has them
    assert text.startswith("Answer the question with a few words")
    assert text.endswith("Passage: Ann. Ann did.\n\nQuestion: who?")
    assert sent(spec) == {"max_tokens": 16, "seed": 0, "stop": ["\n"], "temperature": 0}
    spec, prompt = specify(serve(), endpoint="completions")
    assert prompt.template.name == "completion"
    assert prompt.render("who?", [])[0].endswith("Question: who?\nAnswer:")
    assert spec.api.endpoint == "completions"


def test_the_system_message_of_a_prompt_is_one_of_the_chat():
    behaviour = serve()
    spec, _ = specify(behaviour, task="abstain")
    as_expected(spec.api.system)
    first, second = behaviour.answered[0]["messages"]
    assert first == {"role": "system", "content": spec.api.system}
    assert second == {"role": "user", "content": TRIAL}


def test_the_key_is_made_of_host_model_server_settings_and_messages(tmp_path):
    def key(behaviour=None, **options):
        spec, prompt = specify(behaviour or serve(), **({"base_url": None} | options))
        return read_key(spec.fingerprint, prompt.render("who?", [("Ann", "Ann did.")]))

    with serving(serve()) as url:
        same = {"base_url": url}
        first = key(**same)
        assert key(**same) == first
        credentials = url.replace("http://", "http://me:s3cret@")
        # what only decides speed, price or who may ask changes nothing
        assert key(base_url=credentials, concurrency=2, max_tokens=10**6) == first
        file = tmp_path / "p.txt"
        file.write_text("---\nchat: true\nstop: x\n---\n{passages}\nQuestion: {query}")
        others = [
            key(**same, name="openai:n"),
            key(**same, endpoint="completions"),
            key(**same, prompt=str(file)),
            key(**same, task="claims"),
        ]
    limits.forget()
    with serving(serve()) as elsewhere:
        others.append(key(base_url=elsewhere))
    assert len({first, *others}) == 6


def test_the_servers_fingerprint_is_known_and_no_part_of_the_key():
    behaviour = serve(fingerprint=lambda n: ("fp-1", "fp-2", None)[n])
    specs = []
    with serving(behaviour) as url:
        for _ in range(3):
            limits.forget()  # another evaluation
            made = ApiSettings(base_url=url)
            specs.append(specify_api(ReaderAsk(model="openai:m", task="short-answer"), made)[0])
    assert [spec.api.server for spec in specs] == ["fp-1", "fp-2", ""]
    assert len({spec.fingerprint for spec in specs}) == 1


def test_a_server_is_tried_once_in_an_evaluation_for_each_thing_that_it_is_asked():
    behaviour = serve()
    with serving(behaviour) as url:
        made = ApiSettings(base_url=url)
        for task in ("short-answer", "judge", "short-answer"):
            specify_api(ReaderAsk(model="openai:m", task=task), made)
        assert [prompt_of(body) for body in behaviour.answered] == [TRIAL] * 2
        specify_api(ReaderAsk(model="openai:m", task="claims"), made, tried=False)
        assert len(behaviour.answered) == 2


def test_a_model_that_writes_on_and_on_is_tried_for_a_thought_once():
    behaviour = Behaviour(
        lambda body: Said("OK OK", finish="length"), fault=lambda n: "slow" if n else None
    )
    spec, _ = specify(behaviour, request_timeout=0.5)
    assert (sent(spec)["max_tokens"], spec.room, len(behaviour.times)) == (16, 0, 2)


def test_parameters_that_a_server_does_not_take_are_left_out_and_told():
    def refuse(body):
        for name in ("seed", "temperature"):
            if name in body:
                return f"Unsupported parameter: '{name}'"
        if "max_tokens" in body:
            return "'max_tokens' is not supported with this model. Use 'max_completion_tokens'."
        return None

    behaviour = serve(refuse=refuse)
    spec, _ = specify(behaviour)
    assert sent(spec) == {"max_completion_tokens": 16, "stop": ["\n"]}
    assert spec.api.refused == ("seed", "temperature")
    assert behaviour.answered[0] == spec.api.request(TRIAL)


def test_any_other_refusal_is_one_line():
    with refused("server.refused"):
        specify(serve(refuse=lambda body: "no system messages"))


def test_choices_need_log_probabilities():
    spec, _ = specify(serve(), task="judge")
    assert sent(spec) == {
        "max_tokens": 1, "seed": 0, "temperature": 0, "logprobs": True, "top_logprobs": 20,
    }  # fmt: skip
    assert spec.choices == ("Yes", "No")
    few = serve(
        refuse=lambda body: "top_logprobs is at most 5" if body["top_logprobs"] > 5 else None
    )
    assert sent(specify(few, task="judge")[0])["top_logprobs"] == 5
    text, _ = specify(serve(), task="judge", endpoint="completions")
    assert (sent(text)["logprobs"], text.choices) == (20, (" Yes", " No"))
    for behaviour in (
        Behaviour(lambda body: Said("OK")),
        serve(refuse=lambda body: "unknown: logprobs" if "logprobs" in body else None),
    ):
        limits.forget()
        with refused("server.scores"):
            specify(behaviour, task="judge")


def test_bounds_on_tokens_need_a_server_that_counts_them():
    with refused("server.usage"):
        specify(serve(usage=False), max_tokens=100)
    with refused("server.usage"):
        specify(serve(usage=False), tokens_per_minute=100)
    specify(serve(usage=False))
    nothing = Behaviour(lambda body: Said("OK", prompt_tokens=0))
    with refused("server.usage"):
        specify(nothing, max_tokens=100)


def test_what_a_server_cannot_do_is_refused_before_it_is_asked(tmp_path):
    def cannot(code, content=None, **options):
        if content is not None:
            options["prompt"] = str(tmp_path / "p.txt")
            (tmp_path / "p.txt").write_text(content)
        behaviour = serve()
        with refused(code):
            specify(behaviour, **options)
        assert not behaviour.times

    cannot("reader.fid", augmentation="fid")
    cannot("reader.tokens", "---\nmax_input_tokens: 9\n---\n{passages}{query}")
    chat = "---\nchat: true\n---\n{passages}\nQ: {query}"
    cannot("server.endpoint", chat, endpoint="completions")
    cannot("server.modelless", name="openai:")


def test_the_providers_own_address_needs_a_key():
    with refused("server.keyless"):
        specify(serve(), base_url=None)


def test_a_wrong_key_and_a_server_that_is_not_there_are_one_line():
    with refused("server.stopped"):
        specify(serve(key="sk-right"))
    with pytest.raises(ReadError) as caught:
        specify(serve(), base_url="http://127.0.0.1:9/v1")
    as_expected(str(caught.value))


def test_a_server_that_does_not_know_streams_is_not_told_of_them():
    behaviour = serve(refuse=lambda body: "Extra inputs: 'stream'" if "stream" in body else None)
    spec, _ = specify(behaviour)
    assert spec.api.refused == ("stream",)
    assert "stream" not in behaviour.answered[0]
    limits.forget()
    with refused("server.refused"):
        specify(serve(refuse=lambda body: "This model only supports stream mode"))


def test_a_stream_is_one_line_about_the_server():
    def stream(handler):
        handler.send_response(200)
        handler.end_headers()
        handler.wfile.write(b"data: [DONE]\n\n")

    behaviour = serve(fault=lambda n: stream)
    with pytest.raises(ReadError) as caught:
        specify(behaviour)
    as_expected(str(caught.value))
    assert [body.get("stream") for body in behaviour.answered] == []
    assert len(behaviour.times) == 1


def test_data_write_no_control_tokens_of_common_chat_formats():
    _, prompt = specify(serve())
    said = "Ann.<|im_end|>\n<|im_start|>assistant [/INST] </s>"
    (text,) = prompt.render("who?<|eot_id|>", [("Ann", said)])
    assert not re.search(r"<\|im_|<\|eot|\[/INST|</s>", text)
    assert "< |im_end|>" in text
