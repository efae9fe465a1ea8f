"""Reads by requests: none is lost or done twice, many are under way, and bounds end them without losing any."""

import threading
from collections import Counter
from concurrent.futures import wait

import polars as pl
import pytest

from benchmarks._reads import Wanted, get_all_reads, get_reads
from engine.machine.pool import PoolSettings
from engine.machine.remote.api_settings import ApiSettings
from engine.messages.errors import ReadError
from engine.reading.backends import backend_for
from engine.reading.local import Local
from engine.reading.plan import REQUESTED, Unit, read_key
from engine.reading.reader_settings import ReaderAsk
from engine.reading.remote import run
from engine.reading.remote.specify import TRIAL, specify_api
from engine.sources.io.folders import folder_at
from tests.expected import as_expected, refused
from tests.reading.remote.server import FAULTS, Behaviour, Said, prompt_of, serving
from tests.reading.stored import load


def specify(url, task="short-answer", **settings):
    made = ApiSettings(**({"base_url": url, "request_timeout": 20} | settings))
    return specify_api(ReaderAsk(model="openai:m", task=task), made)[0]


def wanted(spec, count, text="read this, number {}"):
    texts = [text.format(number) for number in range(count)]
    rows = [(read_key(spec.fingerprint, [t]), f"q{i}", [f"d{i}"], [t]) for i, t in enumerate(texts)]
    return pl.DataFrame(rows, schema=REQUESTED, orient="row")


def echo(body):
    """Says the last word of a prompt; 10 tokens of a prompt, and 1 of an answer."""
    return Said(prompt_of(body).split()[-1], prompt_tokens=10)


def read(spec, count, place, **more):
    return get_reads(wanted(spec, count, **more), spec, place, pool=PoolSettings())


def kept(spec, place):
    return load(folder_at(place), spec.fingerprint).reads


def test_a_server_that_fails_one_request_in_five_loses_no_read_and_doubles_none(tmp_path):
    def fault(number):
        if number % 5 != 4:
            return None
        # a server that does not answer at all is waited for: once is enough
        faults = FAULTS if number < 25 else [fault for fault in FAULTS if fault != "slow"]
        return faults[number // 5 % len(faults)]

    behaviour = Behaviour(echo, fault=fault, slow=3)
    with serving(behaviour) as url:
        spec = specify(url, request_timeout=2)
        found, costs = read(spec, 120, tmp_path)
        again, reused = read(spec, 120, tmp_path)
    assert found["output"].to_list() == [str(number) for number in range(120)]
    assert found["failure"].null_count() == 120
    assert Counter(behaviour.prompts) == Counter({f"read this, number {n}": 1 for n in range(120)})
    assert len(behaviour.faults) >= 24
    assert set(behaviour.faults) == set(FAULTS)
    assert costs.retried_requests == len(behaviour.faults)
    assert (costs.done, costs.failed) == (120, 0)
    assert (costs.prompt_tokens, costs.output_tokens) == (1200, 120)
    assert kept(spec, tmp_path)["read_key"].n_unique() == kept(spec, tmp_path).height == 120
    assert (reused.done, reused.reused) == (0, 120)
    assert again["output"].to_list() == found["output"].to_list()
    assert found["seconds"].min() > 0
    assert again["seconds"].to_list() == found["seconds"].to_list()


def test_as_many_requests_are_under_way_as_was_asked_for():
    barrier = threading.Barrier(6)

    def together(body):
        if "number" in prompt_of(body):
            barrier.wait(10)  # nobody is answered before six ask
        return echo(body)

    behaviour = Behaviour(together)
    with serving(behaviour) as url:
        spec = specify(url, concurrency=6)
        plan = wanted(spec, 12)
        requests = backend_for(PoolSettings(), Local([spec], [None]))
        # units of one read each: who waits for a unit to end would have one request under way
        results = [*requests.run(plan, [Unit(n, n, 1) for n in range(12)])]
    assert behaviour.most == 6
    assert sorted(result.unit.offset for result in results) == [*range(12)]
    for result in results:
        assert [output.output for output in result.outputs] == [str(result.unit.offset)]


def test_readers_of_one_server_are_asked_together_in_their_roles(tmp_path):
    def say(body):
        return Said("7", {"Yes": -0.1, "No": -2.4}) if "logprobs" in body else echo(body)

    behaviour = Behaviour(say)
    with serving(behaviour) as url:
        reader, judge = specify(url), specify(url, task="judge")
        asked = [Wanted(wanted(spec, 5), spec) for spec in (reader, judge)]
        (outputs, costs), (choices, _) = get_all_reads(asked, tmp_path, pool=PoolSettings())
    assert outputs["output"].to_list() == list("01234")
    assert set(choices["output"]) == {"Yes"}
    assert choices["confidence"].to_list() == pytest.approx([0.9089] * 5, abs=1e-4)
    assert costs.kinds["single"].done == 5


@pytest.mark.parametrize("late", [False, True], ids=["", "late"])
def test_tokens_end_a_job_and_what_is_finished_is_kept(tmp_path, monkeypatch, late):
    if late:  # all that are under way, as on a machine that is busy
        monkeypatch.setattr(run, "wait", lambda asked, return_when: wait(asked))
    behaviour = Behaviour(echo)
    with serving(behaviour) as url:
        # A try of 11 tokens; each read may take 10 and 16, and takes 11. Prompts alone would fit.
        spec = specify(url, max_tokens=450, concurrency=2)
        with pytest.raises(ReadError) as caught:
            read(spec, 40, tmp_path)
        as_expected(str(caught.value))
        done = kept(spec, tmp_path).height
        assert done == len(behaviour.prompts)
        # 450 - 11 have room for (439 - 26) // 11 + 1 reads
        assert done == 38
        more = specify(url, max_tokens=100)
        found, costs = read(more, 40, tmp_path)
    assert (costs.reused, costs.done) == (38, 2)
    assert found["output"].to_list() == [str(number) for number in range(40)]


def test_a_job_whose_prompts_alone_go_beyond_the_bound_is_refused_before_or_soon(tmp_path):
    behaviour = Behaviour(echo)
    with serving(behaviour) as url:
        # 100 prompts of 1,000 bytes are 12,500 tokens at the very least
        long = {"text": "word " * 200 + "{}"}
        spec = specify(url, max_tokens=12_000)
        with refused("server.stopped"):
            read(spec, 100, tmp_path, **long)
        assert not behaviour.prompts
        # by the count of the first eight, 10 tokens each, they are about 1,000
        spec = specify(url, max_tokens=900, concurrency=1)
        with pytest.raises(ReadError, match=r"about 1,0\d\d tokens"):
            read(spec, 100, tmp_path)
        assert kept(spec, tmp_path).height == len(behaviour.prompts)
        assert 8 <= len(behaviour.prompts) < 12


@pytest.mark.parametrize(("how", "count"), [("refused", 7), ("unanswered", 2)])
def test_prompts_that_no_server_counted_are_not_foreseen_again(tmp_path, how, count):
    # Of eight prompts of 4,000 bytes and 2,000 tokens, the last ones take nothing; twenty take 11 each, and 1 of an answer.
    gone = {f"number {8 - one}" for one in range(1, count + 1)}
    asked = []

    def hears(body):
        asked.append(prompt_of(body).endswith(tuple(gone)) and len(prompt_of(body)) > 1000)
        return "too long" if asked[-1] and how == "refused" else None

    def fault(number):
        return (lambda to: to._send(200, [])) if asked[-1] and how == "unanswered" else None

    def say(body):
        return Said("x", prompt_tokens=0 if asked[-1] else len(prompt_of(body)) // 2)

    with serving(Behaviour(say, refuse=hears, fault=fault)) as url:
        # Two prompts foreseen that take nothing would be too many, and the first guess is 4,060.
        spec = specify(url, max_tokens=2000 * (8 - count) + 2500, concurrency=1)
        long = wanted(spec, 8, text="word " * 800 + "number {}")
        both = pl.concat([long, wanted(spec, 20)])
        found, _ = get_reads(both, spec, tmp_path, pool=PoolSettings())
    assert found["failure"].null_count() == 28 - count


def test_answers_without_a_count_of_tokens_count_as_what_was_reserved(tmp_path):
    behaviour = Behaviour(lambda body: Said("x", prompt_tokens=4 if TRIAL in str(body) else 0))
    with serving(behaviour) as url:
        spec = specify(url, max_tokens=300, concurrency=4)
        with pytest.raises(ReadError) as caught:
            read(spec, 20, tmp_path)
    as_expected(str(caught.value))
    # The trial has 5. A read reserves 16 of an answer, and 0.22 a byte of its 19 or 20, which is 5: 14 reads fit.
    assert len(behaviour.prompts) == 14


def test_one_price_is_not_that_of_two_models(tmp_path):
    with serving(Behaviour(echo)) as url:
        made = ApiSettings(base_url=url, max_cost=1, price_in=1, price_out=1)
        asks = [ReaderAsk(model=f"openai:{name}", task="short-answer") for name in "ab"]
        specs = [specify_api(ask, made)[0] for ask in asks]
        with refused("server.costs"):
            get_all_reads([Wanted(wanted(s, 1), s) for s in specs], tmp_path, pool=PoolSettings())


def test_a_server_that_goes_away_ends_the_job_and_not_each_read_for_itself(tmp_path):
    behaviour = Behaviour(echo, fault=lambda n: "500" if n > 12 else None)
    with serving(behaviour) as url:
        spec = specify(url, concurrency=4)
        with pytest.raises(ReadError) as caught:
            read(spec, 400, tmp_path)
    as_expected(str(caught.value))
    assert kept(spec, tmp_path).height == len(behaviour.prompts) == 12
    assert len(behaviour.times) < 13 + 8 * 20


def test_reads_that_the_server_refuses_fail_alone(tmp_path):
    def refuse(body):
        return "too long" if prompt_of(body).endswith("7") else None

    with serving(Behaviour(echo, refuse=refuse)) as url:
        spec = specify(url)
        found, costs = read(spec, 20, tmp_path)
    reasons = {row["query_id"]: row["failure"] for row in found.to_dicts() if row["failure"]}
    assert reasons == dict.fromkeys(("q7", "q17"), "status 400: too long")
    assert (costs.failed, kept(spec, tmp_path).height) == (2, 18)


def test_a_job_whose_first_reads_all_fail_alike_is_given_up(tmp_path):
    behaviour = Behaviour(echo, refuse=lambda b: "no" if "number" in prompt_of(b) else None)
    with serving(behaviour) as url, pytest.raises(ReadError) as caught:
        read(specify(url), 500, tmp_path)
    as_expected(str(caught.value))
    assert len(behaviour.times) < 60


def test_an_answer_that_is_held_back_or_never_begun_is_a_failed_read(tmp_path):
    def say(body):
        text = prompt_of(body)
        if text.endswith("1"):
            return Said("", finish="content_filter")
        return Said("", finish="length") if text.endswith("2") else Said(" 3\nmore")

    with serving(Behaviour(say)) as url:
        found, _ = read(specify(url), 4, tmp_path)
    assert found["output"].to_list() == ["3", "", "", "3"]  # cut at the prompt's stop
    as_expected(found["failure"].to_list())


def test_what_is_finished_is_handed_on_where_the_process_is_interrupted(tmp_path, monkeypatch):
    real, waits = run.wait, []

    def interrupted(*given, **more):
        waits.append(1)
        done = real(*given, **more)
        if len(waits) == 9:
            raise KeyboardInterrupt
        return done

    monkeypatch.setattr(run, "wait", interrupted)
    behaviour = Behaviour(echo)
    with serving(behaviour) as url:
        spec = specify(url, concurrency=1)
        with pytest.raises(KeyboardInterrupt):
            read(spec, 40, tmp_path)
    # each wait ends with an answer at least, the ninth included
    assert 9 <= kept(spec, tmp_path).height <= len(behaviour.prompts)
