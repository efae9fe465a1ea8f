"""Settings of readers behind an API: which fit, what they come to in an evaluation, and what results say."""

import json
from dataclasses import replace

import pytest

from engine.evaluation.evaluate import evaluate
from engine.evaluation.settings import Settings, refuse_unfit
from engine.evaluation.study import Sweep, study, vary
from engine.messages.errors import ReadError
from engine.reading.backends import NamedExecutor
from engine.report.planning.forecast import PlanSettings
from engine.report.planning.planner import plan_evaluation
from engine.report.printed import full_lines
from engine.report.summary import summarize
from tests.conftest import ScriptedReader
from tests.expected import as_expected, refused
from tests.reading.remote.server import Behaviour, Said, prompt_of, serving
from tests.tables import amount, findings_of, inputs, label_rows, say_last


@pytest.fixture(autouse=True)
def _no_key(monkeypatch):
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL"):
        monkeypatch.delenv(name, raising=False)


def say(body):
    text = prompt_of(body)
    if "logprobs" in body:
        return Said("Yes", {"Yes": -0.1, "No": -2.4} if "says Ann" in text else {"No": -0.1})
    return Said(say_last(text) if "Passage: " in text else "OK", prompt_tokens=len(text) // 4)


def settings(**options):
    given = {"k": 3, "resamples": 0, "measures": "P@3", "reader": "openai:m"} | options
    return Settings.of(**given)


def read(tmp_path, behaviour, **options):
    with serving(behaviour) as url:
        return evaluate(inputs(), settings(base_url=url, **options), store=tmp_path)


@pytest.mark.parametrize(
    ("given", "code"),
    [
        ({"dtype": "float32"}, "settings.served"),
        ({"engine": "vllm"}, "settings.served"),
        ({"memory": 2**30}, "settings.served"),
        ({"trust_remote_code": True}, "settings.served"),
        ({"gpus_per_actor": 1}, "settings.served"),
        ({"cpus_per_actor": 1}, "settings.served"),
        ({"accelerator_type": "L4"}, "settings.served"),
        ({"actors": 2}, "settings.served"),
        ({"reader": "bundled", "base_url": "http://h/v1"}, "settings.server"),
        ({"reader": "bundled", "concurrency": 4}, "settings.server"),
    ],
)
def test_settings_that_fit_no_reader_are_refused(given, code, tmp_path):
    with refused(code):
        evaluate(inputs(), settings(**given), store=tmp_path)
    with refused(code):
        vary(settings(**given), Sweep())


def test_settings_of_machines_fit_where_some_reader_runs_on_one():
    beside = {"annotators": ("erag", "judge"), "dtype": "float32", "actors": 2, "concurrency": 3}
    refuse_unfit([settings(judge="bundled", **beside)])
    readers = Sweep(readers=("openai:m", "bundled"))
    assert len(vary(settings(dtype="float32", concurrency=3), readers)) == 2
    refuse_unfit([settings(actors=0)])


def test_lazy_labels_ask_a_server_rank_by_rank(tmp_path):
    """One request at a time, within a bound on cost."""
    bounds = {"concurrency": 1, "price_in": 1.0, "price_out": 1.0, "max_cost": 1.0}
    full = read(tmp_path / "full", Behaviour(say), measures="RR@3")
    lazy = read(tmp_path / "lazy", Behaviour(say), measures="RR@3", lazy=True, **bounds)
    assert lazy.query_scores.equals(full.query_scores)
    # d1 answers q1 at rank 2, and d2 answers q2 at rank 1: what stands below is not asked for.
    unread = lazy.labels.filter(lazy.labels["label"].is_null())
    assert unread.select("query_id", "doc_id").rows() == [("q1", "d2"), ("q2", "d3")]


def test_results_say_that_reads_are_not_reproducible_and_whose_they_are(tmp_path):
    prices = {"price_in": 1.0, "price_out": 10.0}
    with serving(Behaviour(say)) as url:
        address = url.replace("http://", "http://me:s3cret@")
        asked = settings(base_url=address, **prices)
        result = evaluate(inputs(), asked, store=tmp_path)
    summary = summarize(result, {})
    reader = summary["reader"]
    assert (reader["reproducible"], reader["engine"]) == (False, "openai")
    assert reader["weights_sha256"] is reader["dtype"] is reader["parameters"] is None
    costs = result.readings["reader"].costs
    price = (costs.prompt_tokens + 10 * costs.output_tokens) / 1e6
    host, sent = url.split("/")[2], {"max_tokens": 16, "seed": 0, "temperature": 0}
    assert reader["api"] == {
        "host": host, "endpoint": "chat", "model": "m", "server_fingerprint": "fp-1",
        "sent": sent, "refused": [], "cost": pytest.approx(price),
    }  # fmt: skip
    assert "s3cret" not in json.dumps(summary)
    assert summary["configuration"]["base_url"] == url.replace("http://", "http://***@")
    printed = full_lines(findings_of(result))
    assert any(line.startswith("price") and f": {price:.4g} (" in line for line in printed)
    assert amount(result, "not_reproducible") == 1


def test_answers_without_a_count_of_tokens_have_no_price(tmp_path):
    # One of 7 has none, after the trial, which has one.
    silent = {"n": 0}

    def sometimes(body):
        silent["n"] += 1
        return replace(say(body), prompt_tokens=0 if silent["n"] == 3 else None)

    result = read(tmp_path, Behaviour(sometimes), price_in=1.0, price_out=10.0)
    assert result.readings["reader"].costs.unreported_answers == 1
    assert amount(result, "unreported_answers") == 1
    findings = findings_of(result)
    assert findings.summary["reader"]["api"]["cost"] is None
    assert not [line for line in full_lines(findings) if line.startswith("price")]
    as_expected([(note.code, note.text) for note in result.notes if note.is_shown])


def test_answers_of_another_server_are_counted(tmp_path):
    behaviour = Behaviour(say, fingerprint=lambda n: "fp-1" if n < 4 else "fp-2")
    result = read(tmp_path, behaviour)
    # the first one tries the server; of 7 reads 3 are of the same one
    assert result.readings["reader"].costs.changed_servers == 4
    assert amount(result, "changed_servers") == 4
    again = read(tmp_path, Behaviour(say))
    assert again.readings["reader"].costs.reused == 0  # at another port is another server


def test_reads_are_found_again_at_the_same_address_whatever_fingerprint_its_server_has(tmp_path):
    now, counts = {}, []
    with serving(Behaviour(say, fingerprint=lambda n: now["server"])) as url:
        for now["server"] in ("fp-1", "fp-1", "fp-2", "fp-1"):
            result = evaluate(inputs(), settings(base_url=url), store=tmp_path)
            costs = result.readings["reader"].costs
            counts.append((costs.reused, costs.done))
    assert counts == [(0, 7), (7, 0), (7, 0), (7, 0)]


def test_a_judge_behind_an_api_labels_by_its_log_probabilities(tmp_path):
    result = read(tmp_path, Behaviour(say), annotators=("judge",), end_to_end=False)
    labels = {(q, d): v for q, d, _, v in label_rows(result.labels)}
    assert {pair for pair, label in labels.items() if label} == {("q1", "d1")}
    with refused("server.scores"):
        read(tmp_path, Behaviour(lambda body: Said("Yes")), annotators=("judge",))


def test_utility_rests_on_the_probability_of_declining(tmp_path):
    def decline(body):
        if "logprobs" not in body:
            return say(body)
        return Said("NO", {"NO": -0.6931472} if "says Ann" in prompt_of(body) else {"Ann": -0.1})

    result = read(
        tmp_path, Behaviour(decline), annotators=("utility",), measures="UDCG@3", end_to_end=False
    )
    labels = {(q, d): v for q, d, _, v in label_rows(result.labels)}
    # It helps, and half of the time the reader declines; the others do not help, and it never does.
    assert labels["q1", "d1"] == pytest.approx(0.5, abs=1e-6)
    assert labels["q1", "d4"] == pytest.approx(-1 / 3)


def test_a_bound_holds_for_an_evaluation_and_not_for_the_next(tmp_path):
    with serving(Behaviour(say)) as url:
        bounded = settings(base_url=url, max_tokens=180, concurrency=1)
        with pytest.raises(ReadError, match="`max_tokens` .* 180"):
            evaluate(inputs(), bounded, store=tmp_path)
        result = evaluate(inputs(), bounded, store=tmp_path)
    costs = result.readings["reader"].costs
    assert costs.reused > 0
    assert costs.reused + costs.done == 7


def test_a_study_compares_models_of_a_server(tmp_path):
    def by_model(body):
        return say(body) if body["model"] == "good" else Said("nothing")

    with serving(Behaviour(by_model)) as url:
        base = settings(base_url=url, reader="openai:good")
        conditions = vary(base, Sweep(readers=("openai:good", "openai:bad")))
        done = study(inputs(), conditions, store=tmp_path)
    means = {c.reader: e.end_to_end["value"].mean() for c, e in done.evaluations.items()}
    assert means["openai:bad"] == 0 < means["openai:good"]


def test_a_plan_bounds_the_price_and_asks_for_no_read(tmp_path):
    behaviour = Behaviour(say)
    with serving(behaviour) as url:
        asked = settings(base_url=url, price_in=1.0, price_out=10.0)
        plan = plan_evaluation(inputs(), [asked], PlanSettings(), store=tmp_path)
        done = evaluate(inputs(), asked, store=tmp_path).readings["reader"]
    assert plan.all.left == done.costs.done == 7
    assert plan.all.output_tokens == 7 * done.spec.most_new_tokens >= done.costs.output_tokens
    price = (plan.all.prompt_tokens + 10 * plan.all.output_tokens) / 1e6
    assert plan.all.token_price == pytest.approx(price)
    assert plan.all.prompt_tokens == pytest.approx(done.costs.prompt_tokens, rel=0.3)


def test_a_plan_says_no_number_of_actors_where_a_server_reads(tmp_path):
    with refused("plan.actorless"):
        asked = PlanSettings(pace="out", finish_in=1)
        plan_evaluation(inputs(), [settings()], asked, store=tmp_path)


def test_a_plan_counts_what_a_batch_would_ask(tmp_path):
    with serving(Behaviour(say)) as url:
        asked = settings(base_url=url, batch_out=tmp_path / "requests")
        assert plan_evaluation(inputs(), [asked], PlanSettings(), store=tmp_path).all.left == 7
    assert not (tmp_path / "requests").exists()


def test_a_judge_behind_an_api_stands_beside_a_reader_of_this_machine(tmp_path, tiny_t5):
    beside = {
        "reader": str(tiny_t5), "judge": "openai:m", "annotators": ("erag", "judge"),
        "actors": 0, "dtype": "float32",
    }  # fmt: skip
    result = read(tmp_path, Behaviour(say), **beside)
    summary = summarize(result, {})
    assert summary["judge"]["api"]["model"] == "m"
    assert "api" not in summary["reader"]
    assert result.readings["judge"].costs.done == 5
    assert result.readings["reader"].costs.done == 7


def test_a_program_of_ones_own_in_its_place_needs_no_server(tmp_path):
    reader = ScriptedReader(say_last)
    result = evaluate(inputs(), settings(), store=tmp_path, executor=NamedExecutor("own", reader))
    assert len(reader.asked) == 7
    assert result.readings["reader"].spec.executor == "own"
