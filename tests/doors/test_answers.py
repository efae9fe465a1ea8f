"""What ended an answer, whether that was its end, and what is told where it was not: at every door."""

import json
from dataclasses import replace
from types import SimpleNamespace

import polars as pl
import pytest

from engine.evaluation.jobs import Job, tell_engines
from engine.evaluation.settings import Settings
from engine.labels.annotator import READER, Ask
from engine.machine.remote import client, limits
from engine.machine.remote.api_settings import ApiSettings, ApiSpec
from engine.machine.remote.client import answer_of
from engine.reading.answers import ended_by, rule_of
from engine.reading.models.decoding import Continuation, Writer
from engine.reading.models.tokenizing import PromptRead
from engine.reading.outputs import count_outputs, cut_notes, merge_outputs
from engine.reading.plan import REQUESTED, output_columns
from engine.reading.protocol import ReadOutput
from engine.reading.remote.reader import ApiReader
from engine.reading.remote.specify import TRIAL
from engine.scoring.metrics import get_metric
from tests.conftest import SPEC
from tests.doors.test_prompts import specified
from tests.expected import as_expected, refused
from tests.reading.models.test_decoding import Letters, logits_for, spec
from tests.reading.models.test_vllm_support import on_vllm, vllm  # noqa: F401
from tests.reading.remote.server import Behaviour, Said, prompt_of, serving
from tests.reading.test_answers import by_function

MOST = 8
FAILED = "failed"
ASK = Ask(role=READER, model="m", task="short-answer", prompt=None, augmentation=None, value=len)


@pytest.fixture(autouse=True)
def _alone(monkeypatch):
    monkeypatch.setattr(client, "FIRST_WAIT", 0.003)
    limits.forget()


def told(output):
    return FAILED if output.failure is not None else output.ended


def served(endpoint):
    def by_server(text, reason, tokens):
        api = ApiSpec(
            model="m",
            settings=ApiSettings(base_url="http://localhost/v1", endpoint=endpoint),
            system="",
            parameters=json.dumps({"max_tokens": MOST}),
        )
        reader = ApiReader(replace(spec(max_new_tokens=MOST), engine="openai", api=api), object())
        choice = {"finish_reason": reason, "message": {"content": text}, "text": text}
        usage = {} if tokens is None else {"prompt_tokens": 5, "completion_tokens": tokens}
        answer = answer_of({"choices": [choice], "usage": usage}, chat=endpoint == "chat")
        return told(reader._output(answer, answer.usage or limits.Usage()))

    return by_server


# What a server says, of how many of eight tokens: a model's end, a limit, or neither.
SAID = {
    **dict.fromkeys(("stop", "eos", "eos_token", "EOS", "stop_sequence", "end_turn", "endTurn", "COMPLETE"), "stop"),
    **dict.fromkeys(("tool_calls", "FINISH_REASON_STOP"), "stop"),
    **dict.fromkeys(("length", "max_tokens", "MAX_TOKENS", "model_length", "maxOutputTokens"), "length"),
    **dict.fromkeys(("error", "abort", "content_filter", "ERROR_LIMIT", "not_finished", "time_limit"), FAILED),
    **dict.fromkeys(("insufficient_system_resource", "cancelled", "recitation", "load", "?"), FAILED),
    "": None,
    None: None,
}  # fmt: skip


@pytest.mark.parametrize("endpoint", ["chat", "completions"])
@pytest.mark.parametrize("reason", SAID)
def test_a_server_says_what_ended_an_answer_in_its_own_words(endpoint, reason):
    assert served(endpoint)("Lima", reason, 3) == SAID[reason]


@pytest.mark.parametrize("endpoint", ["chat", "completions"])
@pytest.mark.parametrize(
    ("text", "reason", "tokens", "expected"),
    [
        ("Lima is a", "stop", MOST, "length"),  # some say stop whatever ended it
        ("Lima is a", "stop", None, "stop"),
        ("Lima is a", "stop", 300, "stop"),  # which counts something else
        ("Lima\nand more", "length", MOST, "stop"),  # cut here, at the prompt's own string
        ("Lima\nand more", "stop", MOST, "stop"),
    ],
)
def test_a_server_that_says_stop_at_the_limit_has_cut_the_answer(
    endpoint, text, reason, tokens, expected
):
    assert served(endpoint)(text, reason, tokens) == expected


@pytest.mark.parametrize(
    ("text", "expected"), [("Lima\0", "end"), ("Lima\n", "stop"), ("x" * 30, "length"), ("Limalim\n", "stop")]
)  # fmt: skip
def test_own_loops_know_what_ended_an_answer(text, expected):
    asked = spec(max_new_tokens=MOST)
    writer, answer = Writer(asked, Letters(), frozenset({0})), Continuation()
    for letter in text:
        if not writer.write([answer], logits_for(letter)):
            break
    read = PromptRead([1])
    assert told(answer.output(read, rule_of(asked))) == expected


@pytest.mark.parametrize(
    ("reason", "stop_reason", "text", "expected"),
    [
        ("stop", 0, "Lima", "end"),
        ("stop", "\n", "Lima\n", "stop"),
        ("length", None, "Lima is", "length"),
        ("length", None, "Lima\nis", "stop"),
        ("abort", None, "Li", FAILED),
        ("error", None, "Li", FAILED),
    ],
)
def test_vllm_says_what_ended_an_answer(vllm, on_vllm, reason, stop_reason, text, expected):  # noqa: F811
    reader = vllm[0].VllmReader(on_vllm)
    tokens = reader._tokenizer.encode(text, add_special_tokens=False)
    tokens += [0] * isinstance(stop_reason, int)
    completion = SimpleNamespace(token_ids=tokens, logprobs=None, finish_reason=reason, stop_reason=stop_reason)  # fmt: skip
    read = PromptRead([1])
    output = reader._output(read, SimpleNamespace(outputs=[completion]))
    assert told(output) == expected


def test_nobody_says_what_ended_a_functions_answer():
    assert by_function("Lima") == (None, "Lima")
    assert ended_by("") is None


@pytest.mark.parametrize("where", ["body", "text", "choice"])
@pytest.mark.parametrize("times", [1, 99])
def test_an_error_within_status_200_is_asked_again(where, times):
    error = {"message": "Rate limit exceeded", "code": 429}
    body = {"error": "overloaded" if where == "text" else error}
    if where == "choice":
        body = {
            "choices": [{"error": error, "finish_reason": "error", "message": {"content": "L"}}]
        }

    def fault(number):
        return (lambda handler: handler._send(200, body)) if 0 < number <= times else None

    with serving(Behaviour(lambda body: Said("Lima"), fault=fault)) as url:
        (output,) = ApiReader(specified(url)).read([["who?"]])
    assert (output.output, output.ended) == (("Lima", "stop") if times == 1 else ("", None))
    assert times == 1 or "was asked 8 times: status" in output.failure


# --- notes -------------------------------------------------------------------------------------------------------


def noted(outputs, asked=SPEC):
    """The notes on the outputs of a reader, in two shards."""
    counts = []
    for part in (outputs[::2], outputs[1::2]):
        rows = [(f"k{text}", text, [text], [text]) for text, *_ in part]
        reads = pl.DataFrame(rows, schema=REQUESTED, orient="row").hstack(
            output_columns(
                [ReadOutput(text, 1, tokens, False, ended=ended) for text, tokens, ended in part]
            )
        )
        queries = pl.DataFrame(schema={"query_id": pl.String, "answers": pl.List(pl.String)})
        counts.append(count_outputs({"reader": (asked, reads)}, None, queries, get_metric("em")))
    return [
        note.text
        for note in cut_notes(merge_outputs(counts), {"reader": (asked, "")})
        if note.is_shown
    ]


def outputs(cut, whole, ended="length"):
    return [(f"cut {n} ", 4, ended) for n in range(cut)] + [
        (f"ok{n}", 2, "end") for n in range(whole)
    ]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (outputs(9, 0), "9 of 9 outputs"),
        (outputs(2, 20), "2 of 22 outputs"),
        (outputs(1, 19), None),  # 5%
        (outputs(0, 20), None),
        (outputs(9, 0, None), "9 of 9"),  # stored before, as many tokens as there may be
        (
            [(f"{n}", 4, None) for n in range(9)],
            None,
        ),  # cut at a string, which is not known any more
        ([(f"long {n}", 3, None) for n in range(9)], None),
        ([(f"text {n}", 0, None) for n in range(9)], None),  # a function's
    ],
)
def test_a_note_says_how_many_outputs_were_cut(given, expected):
    found = noted(given)
    assert len(found) == (expected is not None)
    assert not found or found[0].startswith(expected)
    as_expected(found)


def test_the_trial_says_when_it_is_cut_and_how_much_it_would_have_taken():
    verbose = "If I look at these few old books for a long while , it must be Lima , OK"

    def say(body):
        words = verbose.split() if prompt_of(body) == TRIAL else ["Lima"]
        most = body["max_tokens"]
        return Said(" ".join(words[:most]), finish="length" if len(words) > most else "stop")

    with serving(Behaviour(say)) as url:
        asked = specified(url)
    assert asked.api.cut == 19 > asked.max_new_tokens
    said = []
    tell_engines([Job(ASK, asked, None)], Settings(), said.append)
    as_expected(said[0].rpartition("; ")[2])
    as_expected(noted(outputs(9, 0), asked))


# --- thoughts ----------------------------------------------------------------------------------------------------

THOUGHTS = {
    "harmony": "<|channel|>analysis<|message|>{}<|end|><|start|>assistant<|channel|>final<|message|>{}",
    "harmony begun": "<|start|>assistant<|channel|>analysis<|message|>{}<|end|><|channel|>final<|message|>{}",
    "harmony without tokens": "analysis{}assistantfinal{}",
    "magistral": "[THINK]{}[/THINK]{}",
    "kimi": "◁think▷{}◁/think▷{}",
    "kimi opened": "{}◁/think▷{}",
    "cohere": "<|START_THINKING|>{}<|END_THINKING|><|START_RESPONSE|>{}<|END_RESPONSE|>",
    "sky": "<|begin_of_thought|>\n{}<|end_of_thought|>\n\n<|begin_of_solution|>{}<|end_of_solution|>",
    "gemma": "<|channel>thought\n{}<channel|>{}",
    "seed": "<seed:think>{}</seed:think>{}",
    **{tag: f"<{tag}>{{}}</{tag}>{{}}" for tag in ("think", "thinking", "reasoning", "thought")},
}


@pytest.mark.parametrize("kind", THOUGHTS)
def test_the_trial_finds_the_tags_of_a_thought(kind):
    def say(body):
        trial, most = prompt_of(body) == TRIAL, body["max_tokens"]
        thought = " ".join(["the passages say it , and so do I"] * 3)
        words = THOUGHTS[kind].format(thought, "OK" if trial else "Lima").split(" ")
        return Said(" ".join(words[:most]), finish="length" if len(words) > most else "stop")

    with serving(Behaviour(say)) as url:
        asked = specified(url)
        (output,) = ApiReader(asked).read([["who?"]])
    assert (output.output, output.ended, asked.room) == ("Lima", output.ended, 4096)
    assert "do I" in output.thought
    assert (asked.thought == ("<think>", "</think>")) == (kind == "think")


@pytest.mark.parametrize(
    "text", ["OK", "analysis of texts", "I [think] so", "<b>OK</b>", "A thought."]
)
def test_other_answers_have_no_thought(text):
    with serving(Behaviour(lambda body: Said(text))) as url:
        asked = specified(url)
    assert (asked.thought, asked.stop, asked.room) == (("<think>", "</think>"), ("\n",), 0)


@pytest.mark.parametrize("rising", [True, False])
def test_a_refusal_for_want_of_tokens_is_asked_again_with_room_for_a_thought(rising):
    def refuse(body):
        most = body.get("max_completion_tokens", 0)
        if "max_tokens" in body:
            return "Unsupported parameter: use 'max_completion_tokens' instead of 'max_tokens'"
        if most < 200 or not rising:
            return (
                "Could not finish the message because max_tokens or model output limit was reached"
            )
        return None

    with serving(Behaviour(lambda body: Said("OK"), refuse=refuse)) as url:
        if rising:
            assert specified(url).room == 4096
        else:
            with refused("server.refused"):
                specified(url)
