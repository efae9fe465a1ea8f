"""Plans of evaluations with readers of known cost, against the evaluations themselves."""

from dataclasses import replace
from types import MappingProxyType

import polars as pl
import pytest

from engine import tables
from engine.evaluation.evaluate import evaluate
from engine.evaluation.inputs import EvaluationInputs
from engine.evaluation.settings import Settings
from engine.evaluation.study import Sweep, study, vary
from engine.messages.errors import InputError
from engine.planning.counts import Sample
from engine.planning.forecast import PlanSettings
from engine.planning.planner import plan_evaluation
from engine.reading.execute import UnitResult
from engine.reading.executors import NamedExecutor
from engine.reading.plan import INPUTS
from engine.reading.protocol import ReadOutput
from engine.sources.queries.buckets import BUCKETS
from engine.statistics.runs import is_drawn
from tests.conftest import make_run
from tests.tables import RUN, inputs

FIXED, OF_A_CHARACTER = 0.5, 0.002


def read(plan, units, spec):
    """A reader that says what its time is: some for any unit, and some for each character."""
    for unit in units:
        texts = ["".join(one) for one in plan[INPUTS].slice(unit.offset, unit.length).to_list()]
        characters = sum(len(text) - len(spec.shared_prefix) for text in texts)
        sure = 0.5 if spec.choices or spec.scores else None
        outputs = [ReadOutput("Ann", len(text) // 4, 2, False, confidence=sure) for text in texts]
        stats = dict.fromkeys(("padded_tokens", "prompt_tokens", "memory_halvings"), 0)
        stats["peak_memory"] = 2**30
        yield UnitResult(unit, outputs, "one", FIXED + OF_A_CHARACTER * characters, stats)


READER = NamedExecutor("known cost", read)


def wide(queries=60, k=8, runs=2):
    """Queries with passages of differing length; the lists of two runs overlap by half."""
    passages = [
        (f"d{i}", f"T{i}", f"passage {i} " + "word " * (20 + 7 * i % 90), f"A{i}")
        for i in range(200)
    ]
    listed = [
        make_run(
            [
                (f"q{q}", f"d{(3 * q + r * k // 2 + rank) % 200}", rank + 1)
                for q in range(queries)
                for rank in range(k)
            ],
            f"run{r}",
        )
        for r in range(runs)
    ]
    rows = [(f"q{q}", f"question {q}", ["Ann"], []) for q in range(queries)]
    return EvaluationInputs(
        queries=pl.DataFrame(rows, schema=tables.QUERIES, orient="row"),
        corpus=pl.DataFrame(passages, schema=tables.CORPUS, orient="row"),
        runs=pl.concat(listed),
    )


SETTINGS = Settings.of(
    k=8, end_to_end_k=4, annotators=("erag",), resamples=0, actors=0, dtype="float32"
)


def kinds(plan):
    return {kind.name: (kind.asked, kind.shared, kind.stored, kind.left) for kind in plan.kinds}


def test_texts_that_are_scored_and_queries_without_passages_are_counted(tmp_path):
    """Of two answers, each is scored behind each of 15 passages and behind none."""
    made = wide(queries=3, k=5, runs=1)
    two = made.queries.with_columns(answers=pl.lit(["Ann", "Bo"]))
    asked = SETTINGS.but(annotators=("gain", "dig", "pmi"), k=5)
    plan = plan_evaluation(
        replace(made, queries=two),
        [asked],
        PlanSettings(probe_reads=0),
        store=tmp_path,
        executor=READER,
    )
    assert {name: (asked, left) for name, (asked, _, _, left) in kinds(plan).items()} == {
        "single passages": (18, 18),
        "whole lists": (3, 3),
        "reader that scores answers": (36, 36),
        "reader that scores questions": (18, 18),
    }
    done = evaluate(replace(made, queries=two), asked, store=tmp_path, executor=READER)
    assert sum(reading.costs.done for reading in done.readings.values()) == 75


def test_reads_are_counted_by_kind_as_the_evaluation_does_them(tmp_path):
    """q1 lists three passages; q2 and q3 have equal texts and lists, so what they ask is one."""
    settings = Settings.of(
        k=3, annotators=("erag", "judge"), judge="bundled", actors=0, resamples=0
    )
    asked = PlanSettings(probe_reads=0)
    plan = plan_evaluation(inputs(), [settings], asked, store=tmp_path, executor=READER)
    assert kinds(plan) == {
        "single passages": (7, 2, 0, 5),
        "whole lists": (3, 1, 0, 2),
        "judge": (7, 2, 0, 5),
    }
    assert plan.probe is None
    assert plan.reading.value == 0
    assert not any(tmp_path.iterdir())
    evaluate(inputs(), settings, store=tmp_path, executor=READER)
    plan = plan_evaluation(inputs(), [settings], asked, store=tmp_path, executor=READER)
    assert kinds(plan) == {
        "single passages": (7, 2, 5, 0),
        "whole lists": (3, 1, 2, 0),
        "judge": (7, 2, 5, 0),
    }


@pytest.mark.parametrize("probe_reads", [0, 16])
def test_sampled_lists_are_counted_as_the_evaluation_reads_them(tmp_path, probe_reads):
    given = wide()
    # One text and one list, of queries of which one is drawn: the read is needed.
    seed, share = SETTINGS.bootstrap.seed, 0.4
    drawn = is_drawn(given.queries["query_id"], seed, share)
    out, inside = (given.queries.filter(which)["query_id"][0] for which in (~drawn, drawn))
    alike = pl.col("query_id") == inside
    texts = pl.when(alike).then(pl.lit(f"question {out[1:]}")).otherwise("query")
    runs = given.runs.filter(pl.col("query_id") != inside)
    same = given.runs.filter(pl.col("query_id") == out).with_columns(query_id=pl.lit(inside))
    given = replace(
        given, queries=given.queries.with_columns(query=texts), runs=pl.concat([runs, same])
    )
    asked = PlanSettings(probe_reads=probe_reads)
    settings = SETTINGS.but(resamples=200)
    plan = plan_evaluation(given, [settings], asked, store=tmp_path, executor=READER)
    (way,) = (way for way in plan.ways if way.known)
    lists = next(kind for kind in plan.kinds if kind.name == "whole lists")
    none = PlanSettings(probe_reads=0)
    some = plan_evaluation(
        given, [settings.but(lists=share)], none, store=tmp_path, executor=READER
    )
    counted = next(kind for kind in some.kinds if kind.name == "whole lists")
    assert 0 < counted.left < lists.left
    assert way.lists * lists.left == pytest.approx(counted.left)
    some = plan_evaluation(given, [settings.but(lists=2)], none, store=tmp_path, executor=READER)
    counted = next(kind for kind in some.kinds if kind.name == "whole lists")
    assert counted.asked == 2 * given.runs["run"].n_unique()


def test_passages_that_several_runs_list_are_asked_for_by_each():
    twice = pl.concat([RUN, RUN.with_columns(pl.lit("other").alias(tables.RUN))])
    settings = Settings.of(k=3, annotators=("erag",), end_to_end=False, actors=0)
    plan = plan_evaluation(
        inputs(runs=twice),
        [settings],
        PlanSettings(probe_reads=0),
        store="memory://none",
        executor=READER,
    )
    assert kinds(plan) == {"single passages": (14, 9, 0, 5)}


def test_a_list_of_one_passage_is_the_read_of_the_passage(tmp_path):
    settings = Settings.of(k=1, annotators=("erag",), actors=0)
    plan = plan_evaluation(
        inputs(), [settings], PlanSettings(probe_reads=0), store=tmp_path, executor=READER
    )
    # q1: d4; q2 and q3, of one text: d2.
    assert kinds(plan) == {"single passages": (3, 1, 0, 2), "whole lists": (3, 3, 0, 0)}


def test_the_forecast_is_what_the_evaluation_takes(tmp_path):
    whole = wide()
    plan = plan_evaluation(
        whole, [SETTINGS], PlanSettings(probe_reads=64), store=tmp_path, executor=READER
    )
    assert 50 <= plan.probe.reads <= 90
    result = evaluate(whole, SETTINGS, store=tmp_path, executor=READER)
    costs = result.readings["reader"].costs
    assert costs.reused == plan.probe.reads  # they are not done again
    assert costs.done == plan.left
    assert costs.wanted == sum(kind.stored + kind.left for kind in plan.kinds)
    assert plan.reading.value == pytest.approx(costs.reader_seconds, rel=0.05)
    assert plan.reading.low <= costs.reader_seconds <= plan.reading.high
    assert sum(kind.seconds for kind in plan.kinds) == pytest.approx(plan.reading.value)
    tokens = sum(kind.prompt_tokens for kind in plan.kinds)
    assert tokens == pytest.approx(costs.prompt_tokens, rel=0.05)
    assert sum(kind.output_tokens for kind in plan.kinds) == costs.output_tokens
    assert plan.peak == 2**30


def test_a_plan_of_a_study_counts_the_reads_of_all_conditions_once(tmp_path):
    conditions = vary(SETTINGS.but(k=4, end_to_end_k=None), Sweep(k_sweep=(2, 4)))
    plan = plan_evaluation(
        wide(), conditions.values(), PlanSettings(), store=tmp_path, executor=READER
    )
    done = study(wide(), conditions, store=tmp_path, executor=READER)
    (costs,) = done.costs.values()
    assert costs.done == plan.left
    assert costs.reused == plan.probe.reads


def test_everything_stored_needs_no_probe(tmp_path):
    evaluate(inputs(), SETTINGS, store=tmp_path, executor=READER)

    def fails(plan, units, spec):
        raise AssertionError("nothing is left to read")

    reader = NamedExecutor(READER.name, fails)
    plan = plan_evaluation(inputs(), [SETTINGS], PlanSettings(), store=tmp_path, executor=reader)
    assert plan.probe is None
    assert plan.left == 0


def test_a_store_that_cannot_be_written_leaves_the_reads_of_the_probe_to_be_done(tmp_path):
    (tmp_path / "store").write_text("a file")
    plan = plan_evaluation(
        wide(), [SETTINGS], PlanSettings(), store=tmp_path / "store", executor=READER
    )
    assert plan.probe.unstored
    free = plan_evaluation(
        wide(), [SETTINGS], PlanSettings(), store=tmp_path / "s", executor=READER
    )
    assert plan.left == free.left + free.probe.reads
    assert plan.reading.value > free.reading.value


def test_reads_of_a_function_without_a_name_are_not_kept(tmp_path):
    plan = plan_evaluation(wide(), [SETTINGS], PlanSettings(), store=tmp_path, executor=read)
    assert plan.probe.unstored == "a function without a name makes them"
    assert not any(tmp_path.iterdir())


def test_reads_that_fail_are_told_and_stay_left(tmp_path):
    def fail_some(plan, units, spec):
        for result in read(plan, units, spec):
            result.outputs[0] = ReadOutput.failed("no room")
            yield result

    reader = NamedExecutor("fails", fail_some)
    plan = plan_evaluation(wide(), [SETTINGS], PlanSettings(), store=tmp_path, executor=reader)
    assert plan.probe.failed > 3
    assert plan.probe.failure == "no room"
    distinct = sum(kind.stored + kind.left for kind in plan.kinds)
    assert plan.left == distinct - (plan.probe.reads - plan.probe.failed)


def test_a_sample_stands_for_the_whole(tmp_path):
    """Half of the queries, each counted for two."""
    half = wide(queries=30)
    sample = Sample(
        inputs=half,
        spans=(((0, BUCKETS), frozenset(half.queries[tables.QUERY_ID])),),
        queries=60,
        pairs=2.0,
        lists=2.0,
    )
    store = tmp_path / "a"
    counts = plan_evaluation(
        half, [SETTINGS], PlanSettings(probe_reads=0), store=store, sample=sample, executor=READER
    )
    alone = plan_evaluation(
        half, [SETTINGS], PlanSettings(probe_reads=0), store=store, executor=READER
    )
    for of_sample, of_half in zip(counts.kinds, alone.kinds, strict=True):
        assert (of_sample.asked, of_sample.left) == (2 * of_half.asked, 2 * of_half.left)
    plan = plan_evaluation(
        half, [SETTINGS], PlanSettings(), store=store, sample=sample, executor=READER
    )
    assert plan.left == counts.left - plan.probe.reads
    assert (plan.queries, plan.sampled) == (60, 30)
    again = plan_evaluation(
        half, [SETTINGS], PlanSettings(probe_reads=0), store=store, sample=sample, executor=READER
    )
    # What is stored of the sample is taken for as much of the whole.
    assert again.left == counts.left - 2 * plan.probe.reads


def test_a_wanted_time_gives_the_number_of_actors(tmp_path, monkeypatch):
    settings = SETTINGS.but(actors=None)
    hours = 0.02
    plan = plan_evaluation(
        wide(), [settings], PlanSettings(finish_in=hours), store=tmp_path, executor=READER
    )
    assert plan.actors > 1
    assert plan.seconds(plan.actors).most <= 3600 * hours < plan.seconds(plan.actors - 1).most
    with pytest.raises(InputError, match="`actors` 0 beside `finish_in` 1"):
        plan_evaluation(
            wide(), [SETTINGS], PlanSettings(finish_in=1.0), store=tmp_path, executor=READER
        )


def test_what_the_evaluation_refuses_the_plan_refuses(tmp_path):
    settings = MappingProxyType({"annotators": ("provenance",), "end_to_end": False, "actors": 0})
    no_gold = inputs(
        queries=inputs().queries.with_columns(pl.lit([], pl.List(pl.String)).alias("provenance"))
    )
    with pytest.raises(InputError, match="no query has provenance"):
        plan_evaluation(no_gold, [Settings.of(k=3, **settings)], PlanSettings(), store=tmp_path)
