"""Plans of evaluations with readers of known pace, against the evaluations themselves."""

from __future__ import annotations

import json
from dataclasses import replace
from types import MappingProxyType

import fsspec
import polars as pl
import pytest

from engine import tables
from engine.evaluation.evaluate import evaluate
from engine.evaluation.settings import Settings
from engine.evaluation.study import Sweep, study, vary
from engine.inputs.files import EvaluationInputs
from engine.reading.backends import NamedExecutor
from engine.reading.costs import UnitResult
from engine.reading.function import ReaderFunction
from engine.reading.plan import INPUTS
from engine.reading.protocol import ReadOutput
from engine.report.planning.forecast import PlanSettings
from engine.report.planning.planner import Sample, pace_of, plan_evaluation, read_pace
from engine.report.summary import summarize
from engine.sources.queries.buckets import BUCKETS
from engine.statistics.runs import is_drawn
from tests.conftest import make_run
from tests.expected import as_expected, refused
from tests.tables import RUN, inputs

# 30 calls on single passages of 100 tokens each in 60 s, by two actors that took 40 s with their start.
COSTS = {
    "done": 30,
    "seconds": 40.0,
    "reader_seconds": 60.0,
    "workers": {"a": 5, "b": 7},
    "kinds": {"single": {"done": 30, "prompt_tokens": 3000, "reader_seconds": 60.0}},
}
SUMMARY = {"configuration": {}, "reader": {"name": "r"}, "reading": COSTS}


def test_the_start_of_an_actor_is_when_it_did_not_read():
    ((role, pace),) = pace_of(SUMMARY).roles
    assert role == "reader"
    assert (pace.actors, pace.start) == (2, 10.0)


def test_a_study_has_a_pace_for_each_of_its_readers():
    rows = [
        {"reader": name, "augmentation": "fid", "role": "reader", **COSTS} for name in ("a", "b")
    ]
    found = pace_of(SUMMARY | {"reading": {}, "study": {"costs": rows}})
    assert [pace.reader["name"] for _, pace in found.roles] == ["a", "b"]


@pytest.mark.parametrize("place", ["{}", "{}/summary.json"])
@pytest.mark.parametrize("at", ["folder", "address"])
def test_results_are_named_by_folder_or_summary_here_or_at_an_address(tmp_path, place, at):
    folder = str(tmp_path) if at == "folder" else "memory://of-a-pace"
    with fsspec.open(f"{folder}/summary.json", "w") as file:
        json.dump(SUMMARY, file)
    assert read_pace(place.format(folder)).actors == 2


@pytest.mark.parametrize(
    "content", [None, "{", "{}", json.dumps(SUMMARY | {"reading": {"reused": 3}})]
)
def test_what_tells_no_pace_is_refused(tmp_path, content):
    if content is not None:
        (tmp_path / "summary.json").write_text(content)
    with refused("plan.pace"):
        read_pace(tmp_path)


SECONDS = 0.25


def read(plan, units, spec):
    """A reader that says what its time is: a quarter of a second for each read."""
    for unit in units:
        texts = ["".join(one) for one in plan[INPUTS].slice(unit.offset, unit.length).to_list()]
        sure = 0.5 if spec.choices or spec.scores else None
        outputs = [ReadOutput("Ann", len(text) // 4, 2, False, confidence=sure) for text in texts]
        stats = dict.fromkeys(("padded_tokens", "prompt_tokens", "memory_halvings"), 0)
        stats["peak_memory"] = 2**30
        yield UnitResult(unit, outputs, "one", SECONDS * unit.length, stats)


READER = NamedExecutor("known pace", read)


def planned(store, given, *conditions, executor=READER, sample=None, **asked):
    """The plan of an evaluation, or of a study, by a reader of known pace."""
    asked = PlanSettings(**asked)
    return plan_evaluation(given, conditions, asked, store=store, sample=sample, executor=executor)


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
    plan = planned(tmp_path, replace(made, queries=two), asked)
    counts = {name: (asked, left) for name, (asked, _, _, left) in kinds(plan).items()}
    assert list(counts.values()) == [(18, 18), (3, 3), (36, 36), (18, 18)]
    as_expected(list(counts))
    done = evaluate(replace(made, queries=two), asked, store=tmp_path, executor=READER)
    assert sum(reading.costs.done for reading in done.readings.values()) == 75


def test_reads_are_counted_by_kind_as_the_evaluation_does_them(tmp_path):
    """q1 lists three passages; q2 and q3 have equal texts and lists, so what they ask is one."""
    settings = Settings.of(
        k=3, annotators=("erag", "judge"), judge="bundled", actors=0, resamples=0
    )
    plan = planned(tmp_path, inputs(), settings)
    assert kinds(plan) == {
        "single passages": (7, 2, 0, 5),
        "lists": (3, 1, 0, 2),
        "judge": (7, 2, 0, 5),
    }
    assert plan.pace is None
    assert plan.all.seconds is None
    assert not any(tmp_path.iterdir())
    evaluate(inputs(), settings, store=tmp_path, executor=READER)
    assert kinds(planned(tmp_path, inputs(), settings)) == {
        "single passages": (7, 2, 5, 0),
        "lists": (3, 1, 2, 0),
        "judge": (7, 2, 5, 0),
    }


def test_sampled_lists_are_counted_as_the_evaluation_reads_them(tmp_path):
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
    settings = SETTINGS.but(resamples=200)
    plan = planned(tmp_path, given, settings)
    (way,) = (way for way in plan.ways if way.known)
    lists = next(kind for kind in plan.kinds if kind.name == "lists")
    some = planned(tmp_path, given, settings.but(lists=share))
    counted = next(kind for kind in some.kinds if kind.name == "lists")
    assert 0 < counted.left < lists.left
    assert way.lists * lists.left == pytest.approx(counted.left)
    some = planned(tmp_path, given, settings.but(lists=2))
    counted = next(kind for kind in some.kinds if kind.name == "lists")
    assert counted.asked == 2 * given.runs["run"].n_unique()


def test_passages_that_several_runs_list_are_asked_for_by_each():
    twice = pl.concat([RUN, RUN.with_columns(pl.lit("other").alias(tables.RUN))])
    settings = Settings.of(k=3, annotators=("erag",), end_to_end=False, actors=0)
    plan = planned("memory://none", inputs(runs=twice), settings)
    assert kinds(plan) == {"single passages": (14, 9, 0, 5)}


def test_a_list_of_one_passage_is_the_read_of_the_passage(tmp_path):
    settings = Settings.of(k=1, annotators=("erag",), actors=0)
    plan = planned(tmp_path, inputs(), settings)
    # q1: d4; q2 and q3, of one text: d2.
    assert kinds(plan) == {"single passages": (3, 1, 0, 2), "lists": (3, 3, 0, 0)}


def results_of(evaluation, folder, start=0.0):
    """The folder of the summary of an evaluation, whose actors started in so many seconds."""
    summary = summarize(evaluation, {})
    summary["reading"]["seconds"] = start + summary["reading"]["reader_seconds"]
    folder.mkdir()
    (folder / "summary.json").write_text(json.dumps(summary))
    return folder


def test_an_earlier_evaluation_says_the_time(tmp_path):
    """Of 5 queries it made 5 times 12 calls on single passages (two lists of 8, of which 4 are in both) in 15 s, and of
    60 queries 720 calls take 720 quarters of a second.
    """
    settings = SETTINGS.but(end_to_end=False, end_to_end_k=None)
    done = evaluate(wide(queries=5), settings, store=tmp_path / "a", executor=READER)
    assert done.readings["reader"].costs.reader_seconds == pytest.approx(15)
    pace = results_of(done, tmp_path / "out", start=9)
    plan = planned(tmp_path / "b", wide(), settings, pace=pace)
    assert kinds(plan) == {"single passages": (960, 240, 0, 720)}
    assert plan.all.seconds == pytest.approx(180)
    assert plan.seconds(4) == pytest.approx(9 + 45)
    assert (plan.peak, plan.actors, plan.notes) == (2**30, 1, ())


def test_what_is_foretold_is_what_the_evaluation_does(tmp_path):
    early = evaluate(wide(queries=20), SETTINGS, store=tmp_path / "a", executor=READER)
    plan = planned(tmp_path / "a", wide(), SETTINGS, pace=results_of(early, tmp_path / "out"))
    done = evaluate(wide(), SETTINGS, store=tmp_path / "a", executor=READER)
    costs = done.readings["reader"].costs
    assert costs.done == plan.all.left
    assert costs.wanted == sum(kind.stored + kind.left for kind in plan.kinds)
    assert plan.all.seconds == pytest.approx(costs.reader_seconds, rel=0.05)


def test_a_pace_of_another_reader_is_noted(tmp_path):
    done = evaluate(wide(queries=5), SETTINGS, store=tmp_path, executor=READER)
    pace = results_of(done, tmp_path / "out")
    other = SETTINGS.but(dtype="bfloat16", actors=3, annotators=("erag", "judge"), judge="bundled")
    reader = NamedExecutor("another", read)
    plan = planned(tmp_path, wide(), other, executor=reader, pace=pace)
    as_expected(plan.notes)
    assert plan.all.seconds is None  # of all is known what is known of each
    with refused("plan.pace"):
        free = other.but(actors=None)
        planned(tmp_path, wide(), free, executor=reader, pace=pace, finish_in=1.0)


def test_nothing_is_said_of_the_time_and_tokens_of_a_function(tmp_path):
    reader = ReaderFunction(lambda prompts: ["Ann"] * len(prompts), "mine")
    usual = Settings.of(k=3, annotators=("erag",), reader="mine")
    settings = replace(usual, reader=replace(usual.reader, functions=(reader,)))
    plan = planned(tmp_path, inputs(), settings, executor=None)
    for kind in (*plan.kinds, plan.all):
        assert kind.left
        assert (kind.prompt_tokens, kind.output_tokens, kind.seconds) == (None, None, None)
    assert plan.peak == 0


def test_a_plan_of_a_study_counts_the_reads_of_all_conditions_once(tmp_path):
    conditions = vary(SETTINGS.but(k=4, end_to_end_k=None), Sweep(k_sweep=(2, 4)))
    plan = planned(tmp_path, wide(), *conditions.values())
    done = study(wide(), conditions, store=tmp_path, executor=READER)
    (costs,) = done.costs.values()
    assert costs.done == plan.all.left


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
    counts = planned(store, half, SETTINGS, sample=sample)
    alone = planned(store, half, SETTINGS)
    for of_sample, of_half in zip(counts.kinds, alone.kinds, strict=True):
        assert (of_sample.asked, of_sample.left) == (2 * of_half.asked, 2 * of_half.left)
    assert counts.all.prompt_tokens == pytest.approx(2 * alone.all.prompt_tokens, abs=2)
    assert (counts.queries, counts.sampled) == (60, 30)
    done = evaluate(wide(queries=10), SETTINGS, store=store, executor=READER)
    stored = done.readings["reader"].costs.done
    again = planned(store, half, SETTINGS, sample=sample)
    # What is stored of the sample is taken for as much of the whole.
    assert again.all.left == counts.all.left - 2 * stored


def test_a_wanted_time_gives_the_number_of_actors(tmp_path):
    done = evaluate(wide(queries=5), SETTINGS, store=tmp_path, executor=READER)
    results, settings = results_of(done, tmp_path / "out", start=60), SETTINGS.but(actors=None)
    hours = 0.03
    plan = planned(tmp_path, wide(), settings, pace=results, finish_in=hours)
    assert plan.actors > 1
    assert plan.seconds(plan.actors) <= 3600 * hours < plan.seconds(plan.actors - 1)
    for given, asked, words in (
        (SETTINGS, 1.0, "plan.actors"),
        (settings, 0.01, "plan.deadline"),
    ):
        with refused(words):
            planned(tmp_path, wide(), given, pace=results, finish_in=asked)


def test_what_the_evaluation_refuses_the_plan_refuses(tmp_path):
    settings = MappingProxyType({"annotators": ("provenance",), "end_to_end": False, "actors": 0})
    no_gold = inputs(
        queries=inputs().queries.with_columns(pl.lit([], pl.List(pl.String)).alias("provenance"))
    )
    with refused("queries.provenance"):
        planned(tmp_path, no_gold, Settings.of(k=3, **settings), executor=None)
