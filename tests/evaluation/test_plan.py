"""Lists that are read of some queries, or within a budget of tokens: figures by hand, and what they say."""

import io
import json
import pickle
from dataclasses import replace
from functools import partial

import numpy as np
import polars as pl
import pytest

from engine.evaluation import plan as plans
from engine.evaluation import read
from engine.evaluation.evaluate import evaluate
from engine.evaluation.jobs import Run, specify_jobs
from engine.evaluation.kept import ShardFolder
from engine.evaluation.settings import Settings, cut_for
from engine.inputs.partition import partition
from engine.machine.nodes import Needs
from engine.machine.pool import Pool
from engine.reading import plan as reading_plan
from engine.reading import protocol, store
from engine.reading.backends import NamedExecutor
from engine.reading.lengths import passage_tokens
from engine.reading.local import Local
from engine.reading.plan import PlansInMemory
from engine.reading.reader_settings import ReaderSettings
from engine.reading.stream_on_ray import unit_rows
from engine.report.printed import answer_parts
from engine.report.results import write_results
from engine.report.verdict import summarize_verdict
from engine.sources.io.folders import folder_at
from engine.sources.queries.buckets import BUCKETS
from engine.statistics.runs import is_drawn
from engine.tables import END_TO_END, difference_of
from tests.adaptive.test_queries import LABELS_ALONE, in_order, made, says
from tests.conftest import ScriptedReader
from tests.evaluation.in_shards import made as files_of
from tests.evaluation.in_shards import scripted, settings
from tests.expected import as_expected, refused
from tests.tables import amount, inputs, say_last

__all__ = ["scripted"]  # a fixture
HALF = {"k": 3, "lists": 0.5, "actors": 0, "dtype": "float32"}


def run(tmp_path, inputs, reader=None, **options):
    executor = NamedExecutor("scripted", reader or ScriptedReader(says))
    settings = Settings.of(**{**HALF, **options})
    return evaluate(inputs, settings, store=tmp_path, executor=executor)


def notes_of(found):
    return [part for part in answer_parts(found, "out") if str(part).startswith("note: ")]


def test_lists_of_the_queries_drawn_are_read_and_stand_for_all(tmp_path):
    inputs = made(queries=120)
    ids = inputs.queries["query_id"]
    drawn = set(ids.filter(is_drawn(ids, 0, 0.5)))
    assert 40 < len(drawn) < 80
    reader, everything = ScriptedReader(says), ScriptedReader(says)
    result = run(tmp_path / "half", inputs, reader)
    full = run(tmp_path / "full", inputs, everything, lists=None)
    for name in ("good", "poor"):
        of_run = result.downstream.filter(run=name)["query_id"]
        assert set(of_run) == drawn
    assert len(everything.asked) - len(reader.asked) == 2 * (120 - len(drawn))
    # All labels are read, and the lists here are right just where a passage is useful.
    assert result.query_scores.equals(full.query_scores)
    good, poor = result.end_to_end.sort("run").rows(named=True)
    assert (good["n"], good["of"]) == (len(drawn), 120)
    assert good["value"] == pytest.approx(full.end_to_end.sort("run")["value"][0], abs=0.02)
    assert good["rho"] > 0.95
    alone = result.downstream.filter(run="good")["value"].mean()
    assert abs(good["value"] - full.end_to_end.sort("run")["value"][0]) < abs(alone - good["value"])
    assert poor["value"] == pytest.approx(0)
    assert good["value_low"] < good["low_these_queries"] < good["high_these_queries"]
    lead = result.statistics.choice.leads[0]
    assert (result.statistics.choice.best, lead.significant) == ("good", True)
    assert lead.difference == pytest.approx(good["value"] - poor["value"], abs=1e-12)
    of_runs = result.statistics.run_pairs[difference_of(END_TO_END)]
    assert of_runs.to_list() == [pytest.approx(lead.difference, abs=1e-12)] * len(of_runs)
    assert 0 < lead.low < lead.difference < lead.high
    assert lead.p < 0.05
    # What the labels prefer is known of all queries.
    assert result.statistics.choice.opinions == full.statistics.choice.opinions


def test_the_answer_and_the_summary_say_how_many_lists_were_read(tmp_path):
    result = run(tmp_path / "reads", made(queries=60))
    n = result.end_to_end["n"][0]
    assert amount(result, "sampled_lists") == n
    as_expected(summarize_verdict(result)["sentences"])
    found = write_results(result, {}, tmp_path / "out")
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summary[END_TO_END] == result.end_to_end.to_dicts()
    # The printed answer and the page have the estimates and not the means of the lists that were read.
    as_expected(notes_of(found))
    good = found.end_to_end("good")
    row = result.end_to_end.row(by_predicate=pl.col("run") == "good", named=True)
    assert (good.value, good.low, good.n) == (row["value"], row["value_low"], n)


def test_a_number_of_lists_is_read_exactly(tmp_path):
    inputs = made(queries=60)
    few, more = (run(tmp_path / "reads", inputs, lists=number) for number in (1, 23))
    ids = [set(result.downstream["query_id"]) for result in (few, more)]
    assert [len(drawn) for drawn in ids] == [1, 23]
    assert ids[0] < ids[1]
    summary = write_results(more, {}, tmp_path / "out").summary
    assert summary["configuration"]["lists"] == 23
    assert amount(more, "sampled_lists") == 23


def test_a_width_is_reached_with_some_of_the_lists(tmp_path):
    inputs, reader = made(queries=400), ScriptedReader(says)
    result = run(tmp_path / "reads", inputs, reader, lists=None, width=0.1)
    n = amount(result, "width_reached")
    lead = result.statistics.choice.leads[0]
    assert 20 <= n == result.end_to_end["n"][0] < 200
    assert (lead.high - lead.low) / 2 <= 0.1
    # As with so many lists, and only what these need was read: each once.
    fixed = run(tmp_path / "fixed", inputs, fresh := ScriptedReader(says), lists=n)
    assert result.end_to_end.equals(fixed.end_to_end)
    assert result.statistics.choice == fixed.statistics.choice
    assert sorted(reader.asked) == sorted(fresh.asked)
    assert result.readings["reader"].costs.done == fixed.readings["reader"].costs.done
    again = run(tmp_path / "reads", inputs, none := ScriptedReader(says), lists=None, width=0.1)
    assert not none.asked
    assert again.end_to_end.equals(result.end_to_end)
    found = write_results(result, {}, tmp_path / "out")
    as_expected(notes_of(found))
    assert any(f" {(lead.high - lead.low) / 2:.3f}" in note for note in notes_of(found))
    assert (found.configuration["width"], found.configuration["lists"]) == (0.1, None)


def test_a_width_of_one_run_is_that_of_its_mean(tmp_path):
    inputs = made(queries=300)
    alone = replace(inputs, runs=inputs.runs.filter(pl.col("run") == "good"), names=("good",))
    result = run(tmp_path, alone, lists=None, width=0.12, measures="P@3", lazy=True)
    row = result.end_to_end.row(0, named=True)
    assert row["n"] < 200
    assert (row["value_high"] - row["value_low"]) / 2 <= 0.12


@pytest.mark.parametrize("queries", [30, 90])
def test_a_width_out_of_reach_is_the_full_evaluation(tmp_path, queries):
    inputs = made(queries=queries)
    found = run(tmp_path / "width", inputs, lists=None, width=0.02)
    full = run(tmp_path / "full", inputs, lists=None)
    assert amount(found, "width_reached") == queries
    assert found.downstream.equals(full.downstream)
    assert found.end_to_end.equals(full.end_to_end)
    assert summarize_verdict(found) == summarize_verdict(full)


@pytest.mark.parametrize(
    ("lists", "problem"),
    [(0.001, "settings.lists"), (20, "settings.lists"), (1e6, "settings.lists")],
)
def test_lists_of_no_query_or_of_all_are_refused_before_anything_is_read(tmp_path, lists, problem):
    reader = ScriptedReader(says)
    with refused(problem):
        run(tmp_path, made(queries=20), reader, lists=lists)
    assert not reader.asked


def test_a_run_without_a_list_that_is_read_has_no_mean(tmp_path):
    inputs = made(queries=60)
    ids = inputs.queries["query_id"]
    drawn = pl.col("query_id").is_in(ids.filter(is_drawn(ids, 0, 0.5)).implode())
    left = replace(inputs, runs=inputs.runs.filter(~(drawn & (pl.col("run") == "poor"))))
    result = run(tmp_path / "reads", left, missing="skip")
    assert result.end_to_end["run"].to_list() == ["good"]
    found = write_results(result, {}, tmp_path / "out")
    assert any("good" in str(part) for part in answer_parts(found, "out"))


def test_few_lists_have_no_interval(tmp_path):
    result = run(tmp_path, made(queries=20))
    assert result.end_to_end["value_low"].is_nan().all()
    assert np.isnan(result.statistics.choice.leads[0].low)
    assert not result.statistics.choice.leads[0].significant


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (LABELS_ALONE, "settings.listless"),
        ({"until": "verdict"}, "settings.conflict"),
        ({"cluster": "article"}, "settings.conflict"),
        ({"resamples": 0}, "settings.conflict"),
        ({"width": 0.1}, "settings.conflict"),
        ({"lists": None, "width": 0.1, "cluster": "article"}, "settings.conflict"),
        ({"lists": None, "width": 1.0}, "settings.value"),
        ({"lists": 1.5}, "settings.lists"),
    ],
)
def test_what_sampled_lists_cannot_serve_is_refused(options, problem):
    with refused(problem):
        Settings.of(**{**HALF, **options})


@pytest.mark.parametrize("apart", [True, False])
def test_a_width_waits_until_every_run_has_scores(tmp_path, apart):
    """Runs that share no query have no lead; a run that lists nothing for the first queries has none yet."""
    inputs = made()
    ids = inputs.queries["query_id"].to_list()
    first = set(in_order(ids)[:40])
    of_poor = pl.col("query_id").is_in(ids[:100])
    halves = pl.col("run") == pl.when(of_poor).then(pl.lit("poor")).otherwise(pl.lit("good"))
    late = (pl.col("run") == "good") | ~pl.col("query_id").is_in(first)
    runs = inputs.runs.filter(halves if apart else late)
    result = run(tmp_path, replace(inputs, runs=runs), lists=None, width=0.1, missing="skip")
    assert set(result.downstream["run"]) == {"good", "poor"}
    assert amount(result, "width_reached") == 200 if apart else amount(result, "width_reached") > 40


def answer(prompt):
    return say_last(prompt) if "Passage: " in prompt else "no idea"


def run_evaluation(tmp_path, **options):
    # A model behind an API, whose tokenizer is elsewhere: "A1 says nothing" (d4) has 15 characters, so 4 tokens, and
    # all other passages have 10 or 11, so 3.
    settings = Settings.of(
        k=3, reader="openai:model", base_url="http://127.0.0.1:9/v1", resamples=0, **options
    )
    executor = NamedExecutor("scripted", ScriptedReader(answer))
    return evaluate(inputs(), settings, store=tmp_path, executor=executor)


def test_the_reader_gets_the_passages_that_the_measures_count(tmp_path):
    result = run_evaluation(tmp_path, end_to_end_k="7tok", measures="P@7tok Success@3tok")
    lists = result.reads.filter(pl.col("doc_ids").list.len() != 1)
    # q1 lists d4, d1 and d2 (4 + 3 + 3), q2 and q3 d2 and d3 (3 + 3).
    assert set(lists.select("query_id", "doc_ids").explode("doc_ids").rows()) == {
        ("q1", "d4"), ("q1", "d1"), ("q2", "d2"), ("q2", "d3"), ("q3", "d2"), ("q3", "d3")
    }  # fmt: skip
    scores = {(m, q): v for _, _, m, q, v in result.query_scores.iter_rows()}
    # Useful are d1 for q1, d2 for q2, d3 for q3; of q1 not even d4 fits into 3 tokens.
    assert scores == pytest.approx(
        {("P@7tok", q): 3 / 7 for q in ("q1", "q2", "q3")}
        | {("Success@3tok", "q1"): 0, ("Success@3tok", "q2"): 1, ("Success@3tok", "q3"): 0}
    )
    assert result.downstream["k"].unique().to_list() == [3]
    as_expected([(note.code, note.text) for note in result.notes if note.is_shown])


def test_each_condition_has_the_inputs_at_its_k_with_tokens_where_it_has_a_budget():
    first = Settings.of(k=3, reader="openai:a", measures="P@7tok")
    conditions = [first, first.but(k=1), first.but(k=2, end_to_end_k="9tok", measures="P@1")]
    given = inputs()
    whole, *cut, plain = cut_for(given, [*conditions, first.but(k=2, measures="P@1")])
    # A quarter of the characters of title and text, rounded up: "A1 says nothing" has 15.
    assert dict(whole.runs.select("doc_id", "tokens").iter_rows())["d4"] == 4
    assert [(one.k, "tokens" in one.runs.columns) for one in cut] == [(1, True), (2, True)]
    for one in (*cut, plain):
        known = whole.runs if "tokens" in one.runs.columns else given.runs
        assert one.runs.equals(known.filter(pl.col("rank") <= one.k))
        assert set(one.corpus["doc_id"]) == set(one.runs["doc_id"])
    assert plain.sha256 == cut_for(given, [conditions[2]])[0].sha256


def test_a_budget_of_lists_that_are_not_read_needs_no_measure_at_one(tmp_path):
    result = run_evaluation(tmp_path, end_to_end_k="7tok", end_to_end=False, measures="P@2")
    assert result.downstream.is_empty()
    assert result.query_scores.height == 3
    assert not amount(result, "nothing_in_budget")


def test_lists_that_end_before_the_budget_is_filled_are_counted(tmp_path):
    result = run_evaluation(tmp_path, measures="Success@99tok", end_to_end=False)
    # q2 and q3 list two passages, and would list no more at a larger k.
    assert amount(result, "budget_not_filled") == 1
    assert amount(run_evaluation(tmp_path, measures="Success@3"), "estimated_tokens") == 0


def test_a_list_without_a_passage_that_fits_is_read_without_passages_and_stays(tmp_path):
    result = run_evaluation(tmp_path, end_to_end_k="3tok", measures="Success@3tok", missing="skip")
    assert (
        set(result.downstream["query_id"])
        == set(result.query_scores["query_id"])
        == {"q1", "q2", "q3"}
    )
    assert result.reads.filter(pl.col("doc_ids").list.len() == 0)["query_id"].to_list() == ["q1"]


def test_tokens_are_those_of_the_readers_tokenizer():
    from transformers import AutoTokenizer

    from engine.sources.bundled import fid_reader_directory

    tokenizer = AutoTokenizer.from_pretrained(fid_reader_directory())
    texts = [("Aruba", "The capital of  Aruba\nis Oranjestad."), ("", "An abacus."), ("", "")]
    shown = ["Aruba The capital of Aruba is Oranjestad.", "An abacus.", ""]
    expected = [len(tokenizer(text, add_special_tokens=False)["input_ids"]) for text in shown]
    assert passage_tokens(ReaderSettings(reader="bundled-fid"), texts) == expected
    assert expected[0] > 5


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"end_to_end_k": "0tok"}, "settings.lengths"),
        ({"end_to_end_k": "12"}, "settings.lengths"),
        ({"measures": "P@9tok", "lazy": True}, "settings.lazy"),
        ({"measures": "F1@9tok"}, "measure.tokens"),
    ],
)  # fmt: skip
def test_budgets_that_cannot_be_are_refused(options, message):
    with refused(message):
        Settings.of(**options)


def work_of(tmp_path, place, pairs):
    """An evaluation of one job in shards, as its workers get it."""
    asked, folder = settings(), folder_at(tmp_path / "inputs")
    whole = partition(files_of(tmp_path), folder, k=6, pairs_per_shard=pairs)
    (job,) = specify_jobs(asked.resolved.roles, asked)
    work = Run(
        shards=whole,
        conditions=(asked,),
        roles=({job.ask.role.name: job},),
        jobs=(job,),
        parts=(ShardFolder(folder_at(tmp_path / "shards")),),
        store=place,
        unkept=place,
        is_held=False,
    )
    return work, job


def plans_of(work, job, shards, **how):
    """The plans of the job, which know what the store has now."""
    listing = store.listing(work.store, job.spec.fingerprint)
    return plans.ShardPlans(work, (0,), (listing,), tuple(shards), ({},), **how)


def test_a_worker_with_another_reading_version_plans_and_scores_nothing(tmp_path, monkeypatch):
    place = folder_at(tmp_path / "store")
    work, job = work_of(tmp_path, place, 30)
    content = pickle.dumps((plans_of(work, job, [0]), work))
    now = work.versions["READING_VERSION"]
    monkeypatch.setattr(protocol, "READING_VERSION", 99)
    planner, work = pickle.loads(content)
    for job in (partial(planner, 0, 0), partial(read.score_shard, work, 0, {}, {})):
        with refused("machine.versions", text=False) as caught:
            job()
        assert caught.value.problem.endswith(f" READING_VERSION 99, the driver {now}")


def test_a_shard_that_is_planned_again_has_the_units_that_it_had(tmp_path, monkeypatch):
    """Though a merged file of the store now has some of the reads."""
    monkeypatch.setattr(reading_plan, "CPU_BATCH_TOKENS", 200)
    place = folder_at(tmp_path / "store")
    work, job = work_of(tmp_path, place, 10_000)

    def planned(planner, pace=None):
        return list(unit_rows(planner(0, 0), 0, lambda number, role: pace))

    def do_first(rows):
        next(Local([job.spec], [place]).read(PlansInMemory([planned_again(rows[0])])))

    def planned_again(row):
        reads = pl.read_ipc_stream(io.BytesIO(row[3])).with_columns(size=1, group=0)
        return replace(row[0], reads=reads)

    do_first(planned(plans_of(work, job, [0])))
    planner = plans_of(work, job, [0])
    first = planned(planner)
    do_first(first)
    names = store.listing(place, job.spec.fingerprint).names
    store.compact(place, job.spec.fingerprint, names, (0, BUCKETS))
    assert len(names) == 2
    assert [row[1:] for row in planned(planner)] == [row[1:] for row in first]  # without heads
    # Another pass over the shards plans anew: fewer and larger units, without the reads of two.
    later = planned(plans_of(work, job, [0]), 1e9)
    assert 1 <= len(later) < len(first) - 1
    assert later[0][0].reused == first[0][0].reused + planned_again(first[0]).reads.height


def test_the_tail_is_cut_over_the_shards_that_are_left_for_the_pool_as_it_may_become(tmp_path):
    place = folder_at(tmp_path / "store")
    work, job = work_of(tmp_path, place, 10)
    whole = work.shards
    assert len(whole.shards) > 2
    # Nodes may join a pool that began on one.
    pool = Pool(1, 16, 1, Needs(0, 1, 0, None))
    planner = plans_of(work, job, [0, 1], actors=pool.foreseen)  # the others are done
    made = [planner(shard, 0) for shard in (0, 1)]
    assert [plan.sharing for plan in made] == [16, 16]
    of_reads = made[0].size * whole.shards[1].pairs // whole.shards[0].pairs
    assert [plan.behind for plan in made] == [of_reads, 0]
    assert of_reads > 0
