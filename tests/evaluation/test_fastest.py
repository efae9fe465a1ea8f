"""Which of two engines reads on a CPU: the store, a record or a trial decides, for a whole evaluation.

The pair of engines is pretended: how long each takes, and what it answers, is scripted.
"""

import json
from dataclasses import replace
from functools import partial

import polars as pl
import pytest

from engine.evaluation import fastest
from engine.evaluation.context import Context
from engine.evaluation.evaluate import evaluate, evaluate_shards
from engine.evaluation.partition import partition
from engine.evaluation.read_jobs import asks_of, specify_jobs
from engine.evaluation.settings import Settings
from engine.machine.nodes import Needs
from engine.machine.pool import Pool
from engine.messages.errors import InputError
from engine.planning.forecast import PlanSettings
from engine.planning.planner import plan_evaluation
from engine.reading import readers, store
from engine.reading.protocol import Chosen, ReaderStats, ReadOutput
from engine.report.summary import summarize
from engine.sources.io.folders import folder_at
from tests.evaluation.test_stream import made
from tests.planning.test_planner import wide
from tests.tables import inputs as few

RATES = {"transformers": 4.0, "vllm": 8.0}  # reads a second
SETTINGS = {"k": 8, "annotators": ("erag",), "resamples": 0, "dtype": "float32", "actors": 0}
BY_TRIAL = (
    "reader bundled runs on vLLM: 8.00 reads on vLLM and 4.00 on the engine's own loops "
    "a second of a processor, in a trial of 33 reads"
)


class Pretended:
    """A reader that answers with the name of its engine."""

    def __init__(self, spec):
        self.stats, self.engine = ReaderStats(), spec.engine

    def read(self, inputs):
        return [ReadOutput(self.engine, 5, 1, False) for _ in inputs]


@pytest.fixture
def pair(monkeypatch, tmp_path, bundled_spec):
    """Both engines on this CPU; gives the reads a second of each, and what was timed."""
    timed, rates, read_unit = [], dict(RATES), fastest.read_unit

    def unit(spec, reads, backend, context):
        timed.append(spec.engine)
        if isinstance(rate := rates[spec.engine], BaseException):
            raise rate
        done = read_unit(spec, reads, fastest.Backend(), context)
        return replace(done, seconds=reads.height / rate)

    monkeypatch.setattr(fastest, "either_engine_reads", lambda pool: True)
    monkeypatch.setattr(fastest, "reads_here", lambda pool, specs: False)
    monkeypatch.setattr(fastest, "pool_for", lambda *a, **k: Pool(1, 1, 1, Needs(1, 0, 0, None)))
    monkeypatch.setattr(fastest, "cache_directory", lambda: tmp_path / "cache")
    monkeypatch.setattr(fastest, "read_unit", unit)
    monkeypatch.setattr(readers, "load", Pretended)
    return rates, timed


def evaluated(tmp_path, place="store", given=None, **options):
    told = []
    settings = Settings.of(**SETTINGS | options)
    evaluation = evaluate(given or wide(), settings, store=tmp_path / place, on_event=told.append)
    return evaluation, told


def stored(tmp_path, evaluation, place="store"):
    """How many reads of the reader a store has, by engine."""
    spec = evaluation.readings["reader"].spec
    return {
        engine: store.load(
            folder_at(tmp_path / place), replace(spec, engine=engine).fingerprint
        ).reads.height
        for engine in RATES
    }


def test_the_faster_of_a_trial_does_all_reads_and_the_reads_of_both_are_kept(pair, tmp_path):
    evaluation, told = evaluated(tmp_path)
    reads = evaluation.readings["reader"].reads
    assert set(reads["output"]) == {"vllm"}
    assert pair[1] == ["transformers", "vllm"]
    assert told[:2] == [
        "reader bundled: 33 reads are timed on the engine's own loops and on vLLM",
        BY_TRIAL,
    ]
    assert stored(tmp_path, evaluation) == {"transformers": 33, "vllm": reads.height}
    described = summarize(evaluation, {})["reader"]
    assert described["engine"] == "vllm"
    assert described["engine_choice"] == {
        "by": "trial",
        "reads": 33,
        "reads_per_processor_second": {"transformers": 4.0, "vllm": 8.0},
    }


def test_a_trial_is_made_once_and_a_store_goes_before_its_record(pair, tmp_path):
    rates, timed = pair
    evaluated(tmp_path)
    rates["transformers"] = 32.0  # a later trial would say otherwise
    _, told = evaluated(tmp_path, "another store")
    assert told[0] == BY_TRIAL.replace("in a", "in an earlier")
    own, _ = evaluated(tmp_path, "third store", engine="transformers")
    assert own.readings["reader"].spec.chosen is None
    again, told = evaluated(tmp_path, "third store")
    assert set(again.readings["reader"].reads["output"]) == {"transformers"}
    assert again.readings["reader"].costs.done == 0
    assert told[0] == (
        "reader bundled runs on the engine's own loops, as its reads in the store did; `engine` names the other"
    )
    assert timed == ["transformers", "vllm"]
    # After a trial both have some: what is resumed is what the record says.
    first, _ = evaluated(tmp_path)
    assert set(first.readings["reader"].reads["output"]) == {"vllm"}
    (record,) = (tmp_path / "cache" / "engines").iterdir()
    record.write_text("[1]")
    evaluated(tmp_path, "fourth store")
    assert json.loads(record.read_text())["own"] == 32.0


def test_a_killed_trial_leaves_nothing_in_the_store_that_would_decide(pair, tmp_path):
    rates, _ = pair
    rates["vllm"] = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        evaluated(tmp_path)
    assert not (tmp_path / "store").exists()
    rates["vllm"] = 8.0
    evaluation, _ = evaluated(tmp_path)
    assert evaluation.readings["reader"].spec.engine == "vllm"


def test_where_vllm_cannot_read_the_own_loops_do_and_the_reason_is_told(pair, tmp_path):
    pair[0]["vllm"] = InputError("cannot be loaded (OSError: libnuma.so.1)", "install it")
    evaluation, told = evaluated(tmp_path)
    assert evaluation.readings["reader"].spec.engine == "transformers"
    assert told[1] == "vLLM cannot read here: cannot be loaded (OSError: libnuma.so.1); install it"
    assert not (tmp_path / "cache").exists()


def test_few_reads_are_not_worth_a_trial(pair, tmp_path):
    evaluation, told = evaluated(tmp_path, given=few(), k=3)
    assert evaluation.readings["reader"].spec.chosen == Chosen("untimed")
    assert told[0].endswith("the engine's own loops; vLLM was not timed, `engine` vllm asks for it")
    assert pair[1] == []


@pytest.mark.parametrize(
    "change", [{"engine": "transformers"}, {"actors": 0}, {"memory": 1400 * 2**20}]
)
def test_what_leaves_no_choice_asks_for_no_trial(pair, tmp_path, monkeypatch, change):
    monkeypatch.setattr(fastest, "reads_here", lambda pool, specs: pool.actors == 0)
    evaluation, _ = evaluated(tmp_path, **change)
    assert evaluation.readings["reader"].spec.engine == "transformers"
    assert pair[1] == []


def test_a_plan_and_an_evaluation_in_shards_take_the_same_engine(pair, tmp_path):
    settings = Settings.of(**SETTINGS)
    planned = partial(plan_evaluation, wide(), [settings], store=tmp_path / "plan")
    told = []
    planned(PlanSettings(probe_reads=0), on_event=told.append)
    assert pair[1] == []  # nothing may be read
    planned(PlanSettings(probe_reads=8), on_event=told.append)
    assert told[-1] == BY_TRIAL
    context = Context(store=tmp_path / "store", on_event=told.append)
    place = folder_at(tmp_path / "shards")
    shards = partition(made(tmp_path), folder_at(tmp_path / "inputs"), k=8, pairs_per_shard=80)
    assert len(shards.shards) > 1
    evaluate_shards(shards, [settings, settings.but(k=4)], context, place)
    assert told[-1] == BY_TRIAL.replace("in a", "in an earlier")
    jobs = specify_jobs(asks_of(settings), settings)
    theirs = replace(jobs[0].spec, engine="vllm")
    reads = store.load(context.place, theirs.fingerprint).reads
    assert set(reads["output"]) == {"vllm"}
    assert context.place.names() == []
    assert {path.name for path in (tmp_path / "store").iterdir()} == {theirs.fingerprint}
    assert pair[1] == ["transformers", "vllm"]


def test_reads_of_a_trial_stand_for_all_sizes():
    sizes = pl.DataFrame({"group": [f"g{i}" for i in range(100)], "size": range(100, 0, -1)})
    some = fastest._some_of(sizes)
    assert some.height == 32
    assert some["size"].mean() == pytest.approx(50.5, abs=2)
