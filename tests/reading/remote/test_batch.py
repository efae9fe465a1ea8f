"""Requests in a file that a provider answers later."""

import json
import re

import pytest

from engine.evaluation.evaluate import evaluate
from engine.evaluation.settings import Settings
from engine.machine.remote import limits
from engine.messages.errors import LaterError, ReadError
from tests.expected import as_expected, refused
from tests.reading.remote.server import Behaviour, Said, answer, prompt_of, serving
from tests.tables import inputs, say_last


def asked(url, **options):
    return Settings.of(
        k=2,
        annotators=("erag",),
        resamples=0,
        measures="P@2",
        reader="openai:m",
        base_url=url,
        **options,
    )


def say(body):
    prompt = prompt_of(body)
    return Said(say_last(prompt) if "Passage: " in prompt else "OK")


def answered(requests, status=200):
    """What a provider writes for a file of requests."""
    for number, line in enumerate(requests.read_text().splitlines()):
        request = json.loads(line)
        body = answer(request["body"], say(request["body"]), "fp", usage=True)
        response = {"status_code": status, "request_id": f"r{number}", "body": body}
        told = {"id": f"b{number}", "custom_id": request["custom_id"]}
        yield json.dumps(told | {"response": response, "error": None})


def test_a_batch_gives_what_requests_give(tmp_path):
    out, back = tmp_path / "requests.jsonl", tmp_path / "answers.jsonl"
    behaviour = Behaviour(say)
    with serving(behaviour) as url:
        whole = evaluate(inputs(), asked(url), store=tmp_path / "whole")
        live = len(behaviour.prompts)
        with pytest.raises(LaterError) as caught:
            evaluate(inputs(), asked(url, batch_out=out), store=tmp_path / "store")
        as_expected(str(caught.value))
        requests = [json.loads(line) for line in out.read_text().splitlines()]
        lines = [*answered(out)]
        back.write_text("\n".join(reversed(lines[:-1])))
        with pytest.raises(ReadError) as caught:
            evaluate(inputs(), asked(url, batch_in=back), store=tmp_path / "store")
        # The server's port is in the keys of reads, by which a file of requests is ordered.
        as_expected(re.sub(r"'q\d'", "'q'", str(caught.value)))
        # The rest may be asked for.
        result = evaluate(inputs(), asked(url), store=tmp_path / "store")
    assert len(behaviour.prompts) == live + 1
    # A file tells nothing of the time that its answers took: of all reads, only the last one was asked for by itself.
    assert whole.reads["seconds"].null_count() == 0
    assert result.reads.unique("read_key")["seconds"].count() == 1
    assert result.labels.equals(whole.labels)
    assert result.end_to_end.equals(whole.end_to_end)
    # The published schema: https://platform.openai.com/docs/guides/batch
    assert len({request["custom_id"] for request in requests}) == live
    for request in requests:
        assert request.keys() == {"custom_id", "method", "url", "body"}
        assert (request["method"], request["url"]) == ("POST", "/v1/chat/completions")
        assert re.fullmatch(r"[\w-]{1,64}", request["custom_id"])
        assert {"model", "messages", "max_tokens"} <= request["body"].keys()


def test_what_a_batch_lacks_is_written_anew(tmp_path):
    out, back = tmp_path / "requests.jsonl", tmp_path / "answers.jsonl"
    with serving(Behaviour(lambda body: Said("x"))) as url:
        with pytest.raises(LaterError):
            evaluate(inputs(), asked(url, batch_out=out), store=tmp_path)
        first = out.read_text().splitlines()
        good, bad = [*answered(out)], [*answered(out, status=500)]
        expired = {"custom_id": "erag-other", "response": None, "error": {"code": "batch_expired"}}
        back.write_text("\n".join([*good[2:], *bad[:3], json.dumps(expired)]))
        with refused("files.exists"):
            evaluate(inputs(), asked(url, batch_in=back, batch_out=out), store=tmp_path)
        out.unlink()
        with pytest.raises(LaterError, match="2 requests"):
            evaluate(inputs(), asked(url, batch_in=back, batch_out=out), store=tmp_path)
        assert sorted(out.read_text().splitlines()) == sorted(first[:2])


@pytest.mark.parametrize("most", ["MOST_REQUESTS", "MOST_BYTES"])
def test_requests_beyond_what_a_file_may_have_become_several_files(tmp_path, monkeypatch, most):
    out, size = tmp_path / "requests.jsonl", 0
    with serving(Behaviour(say)) as url:
        whole = evaluate(inputs(), asked(url), store=tmp_path / "whole")
        with pytest.raises(LaterError):
            evaluate(inputs(), asked(url, batch_out=out), store=tmp_path / "store")
        lines = sorted(out.read_text().splitlines())
        size = max(map(len, lines))
        monkeypatch.setattr(limits, most, 2 if most == "MOST_REQUESTS" else 2 * size + 2)
        out.unlink()
        with pytest.raises(LaterError) as caught:
            evaluate(inputs(), asked(url, batch_out=out), store=tmp_path / "store")
        as_expected(str(caught.value))
        parts = [*tmp_path.glob("requests-*.jsonl")]
        found = [part.read_text().splitlines() for part in parts]
        assert max(map(len, found)) == 2
        assert sorted(line for part in found for line in part) == lines
        with refused("files.exists"):
            evaluate(inputs(), asked(url, batch_out=out), store=tmp_path / "store")
        backs = [part.with_suffix(".answers") for part in parts]
        for part, back in zip(parts, backs, strict=True):
            back.write_text("\n".join(answered(part)))
        result = evaluate(inputs(), asked(url, batch_in=backs), store=tmp_path / "store")
    assert result.labels.equals(whole.labels)


def test_requests_to_two_models_are_not_in_one_file(tmp_path):
    out = tmp_path / "requests.jsonl"
    answers = Behaviour(lambda body: Said("Yes", {"Yes": -0.1, "No": -2.0}))
    with serving(answers) as url:
        settings = asked(url, batch_out=out).but(annotators=("erag", "judge"), judge="openai:other")
        with pytest.raises(LaterError):
            evaluate(inputs(), settings, store=tmp_path / "store")
    models = [
        {json.loads(line)["body"]["model"] for line in path.read_text().splitlines()}
        for path in (tmp_path / "requests-1.jsonl", tmp_path / "requests-2.jsonl")
    ]
    assert models == [{"m"}, {"other"}]


def test_a_file_that_is_no_batch_is_named_with_its_line(tmp_path):
    back = tmp_path / "answers.jsonl"
    back.write_text('{"custom_id": "a", "response": {}}\n{"question": "b"}\n')
    with serving(Behaviour(lambda body: Said("x"))) as url:
        with refused("server.batch", path=back, line=1):
            evaluate(inputs(), asked(url, batch_in=back), store=tmp_path)
        with refused("settings.failures"):
            evaluate(inputs(), asked(url, batch_in=back, failed_reads="skip"), store=tmp_path)


def test_the_key_is_that_of_the_variable_that_was_named(tmp_path, monkeypatch):
    monkeypatch.setenv("MY_KEY", "sk-mine")
    behaviour = Behaviour(lambda body: Said("x"), key="sk-mine")
    with serving(behaviour) as url:
        evaluate(inputs(), asked(url, api_key_env="MY_KEY"), store=tmp_path)
        monkeypatch.delenv("MY_KEY")
        with refused("server.keyless"):
            evaluate(inputs(), asked(url, api_key_env="MY_KEY"), store=tmp_path)
    with refused("server.variable") as caught:
        asked(url, api_key_env="sk-secret-1")
    assert "sk-secret" not in str(caught.value)
