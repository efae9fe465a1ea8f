"""Shards have the figures of what is held, whatever an evaluation has in it, and go on where they were stopped.

What a shard leaves is taken for its own evaluation's, whole, or not at all.
"""

import gc
import shutil
import weakref
from contextlib import nullcontext
from dataclasses import replace
from functools import partial

import polars as pl
import pytest
from polars.testing import assert_frame_equal

from engine.evaluation import plan as plans
from engine.evaluation.evaluate import evaluate
from engine.evaluation.study import Sweep, study_of, vary
from engine.inputs.files import InputFiles
from engine.inputs.partition import partition
from engine.inputs.read import read_inputs
from engine.labels import from_function
from engine.messages.errors import BoundError, InputError, ReadError
from engine.reading import readers
from engine.reading.backends import NamedExecutor
from engine.reading.costs import UnitResult
from engine.reading.function import ReaderFunction
from engine.reading.plan import INPUTS
from engine.scoring.metrics import metric_from_function
from engine.sources.io.folders import folder_at
from tests.conftest import STATS, ScriptedReader
from tests.evaluation.in_shards import (
    FEW,
    GRADES,
    Scripted,
    assert_same,
    compared,
    edited,
    evaluated,
    in_shards,
    made,
    scripted,
    settings,
    shards_of,
    sorted_rows,
    the_whole,
)
from tests.expected import as_expected, refused
from tests.reading.remote.server import Behaviour, Said, prompt_of, serving

__all__ = ["scripted"]  # a fixture


def with_texts(files):
    """Runs that carry the texts of their passages, without a corpus."""
    texts, paths = pl.read_parquet(files.corpus).select("doc_id", "text"), []
    for path in files.run:
        rows = pl.read_parquet(path).join(texts, on="doc_id", maintain_order="left")
        rows.write_ndjson(path := path.with_suffix(".jsonl"))
        paths.append(path)
    return InputFiles(queries=files.queries, run=tuple(paths))


def case(more=FEW, pairs=150, *codes, files=lambda files: files, executor=None):
    """Settings, pairs of a shard, codes of notes that they lead to, other files, and who reads in the reader's place."""
    return more, pairs, {*codes}, files, executor


MINE = ReaderFunction(lambda prompts: [f"a{len(prompt) % 4}" for prompt in prompts], "mine")
SHORT = from_function("short", lambda q, a, title, text: 1 / len(text))
NO_READS = {"annotators": ("containment",), "end_to_end": False}
JUDGED = ("erag", "judge")
SKIP = {"missing": "skip", "cluster": "article"}
CASES = {
    "one shard": case({}, 10_000),
    "several": case({}, 150, "tied_scores", "queries_judged_below_0"),
    "a shard for every query": case({}, 1),
    "skip, clusters": case({**FEW, **SKIP}),
    "no reads": case({**NO_READS, "measures": "nDCG@6"}),
    "real-valued": case(
        {"annotators": ("erag", "preference"), "measures": "nDCG@6 P@3", "metric": "f1"}
    ),
    "qrels": case({"annotators": ("qrels",), "measures": "R@6", "relevant": "qrels"}),
    "cut": case(
        {
            "annotators": ("containment", "erag"),
            "measures": "RR Judged@2",
            "k": 2,
            "end_to_end_k": 1,
        },
        50,
    ),
    "budget": case({**FEW, "measures": "P@12tok Success@6tok", "end_to_end_k": "12tok"}),
    "lazy": case(
        {"annotators": JUDGED, "measures": "RR@6", "lazy": True}, 150, "labels_not_needed"
    ),
    "lists": case({**FEW, "lists": 0.5}, 150, "sampled_lists"),
    "until": case({**FEW, "annotators": JUDGED, "until": "verdict"}),
    "width": case({**FEW, "width": 0.3}, 150, "width_reached"),
    "dual, skip, clusters": case({**FEW, "annotators": ("dual",), **SKIP}, 30),
    "texts in runs": case(files=with_texts),
    "graded qrels": case(
        {"annotators": ("qrels",), "measures": "P(rel=1)@3 P@3 nDCG@6", "end_to_end": False},
        1,
        files=edited("qrels", label=GRADES),  # at which every shard has to be looked
    ),
    "metric": case({**FEW, "metric": metric_from_function(lambda a, b: len(a) / 9)}),
    "annotator": case({"annotators": ("erag", SHORT), "measures": "nDCG@6"}),
    "reader": case({**FEW, "dtype": None, "reader": "mine", "functions": (MINE,)}),
    "program": case(executor=ScriptedReader(lambda prompt: f"a{len(prompt) % 4}")),
}
OWN = {"metric", "annotator", "reader", "program"}


@pytest.mark.parametrize("name", CASES)
def test_shards_have_the_figures_of_the_whole_and_are_taken_up(tmp_path, monkeypatch, name):
    """Unless they are made by the user's functions, of which nobody knows whether they do what they did."""
    monkeypatch.setattr(plans, "CPU_BATCH_TOKENS", 2)  # lazy labels rank by rank
    more, pairs, codes, edit, executor = CASES[name]
    asked = settings(**more)
    files = edit(made(tmp_path, 10 if pairs == 1 else 40, cluster=asked.bootstrap.cluster))
    held, parts = compared(tmp_path, [asked], pairs, files, executor=executor)
    (held,), (parts,) = held[0], parts[0]
    assert codes <= {note.code for note in parts.notes if note.is_shown}
    assert (shards_of(tmp_path, parts) >= 3) == (pairs < 1000)
    stored = list((tmp_path / "shards-store").rglob("*.parquet"))
    assert bool(stored) == bool(parts.readings and name not in ("reader", "program"))
    assert not list((tmp_path / "shards").rglob("unkept/**/*.parquet"))
    count = len(Scripted.asked)
    if name not in OWN and not asked.draws_queries:
        monkeypatch.setattr(plans, "wanted_of", None)
        monkeypatch.setattr("engine.evaluation.read.score_shard", None)
    again = in_shards(tmp_path, asked, pairs, files, executor=executor)
    assert len(Scripted.asked) == count
    assert (again.parts.name == parts.parts.name) == (name not in OWN)
    assert_same(held, again, tmp_path / "shards", costs=("wanted", "failed"))


@pytest.mark.parametrize("cluster", [None, "article"])
def test_clusters_are_kept_in_any_case_and_used_where_they_are_asked_for(tmp_path, cluster):
    asked = settings(**NO_READS, measures="P@3")
    given = read_inputs(made(tmp_path, cluster=cluster), k=6)
    found = evaluate(given, asked.but(cluster=cluster), store=tmp_path / "store")
    assert found.clusters["query_id"].to_list() == given.queries["query_id"].to_list()
    assert found.clusters["cluster"].max() < 20
    without = replace(given, queries=given.queries.drop("cluster"))
    plain = evaluate(without, asked, store=tmp_path / "store").statistics.run_pairs
    assert found.statistics.run_pairs.equals(plain) == (cluster is None)


def test_a_study_loads_one_model_at_a_time_and_leaves_shards_to_each_of_its_readers(
    tmp_path, tiny_t5, monkeypatch
):
    """In this process: one model at a time fits where two may not."""
    alive = weakref.WeakKeyDictionary()

    def load(spec):
        gc.collect()
        assert {*alive.values()} <= {spec.name}
        alive[reader := Scripted(spec)] = spec.name
        return reader

    monkeypatch.setattr(readers, "load", load)
    asked = settings(**{**FEW, "k": 4, "measures": "P@2 nDCG@4"})
    conditions = vary(asked, Sweep(readers=("bundled", str(tiny_t5)), k_sweep=(4, 2)))
    held, parts = compared(tmp_path, list(conditions.values()), 96)
    whole, study = study_of(conditions, *held), study_of(conditions, *parts)
    count = len(Scripted.asked)
    again = study_of(conditions, *evaluated(tmp_path, list(conditions.values()), 96))
    for name in ("conditions", "readers", "reader_comparisons"):
        assert_frame_equal(getattr(whole, name), getattr(study, name))
        assert_frame_equal(getattr(again, name), getattr(study, name))
    largest = [name for name, asked in conditions.items() if asked.ranking.k == 4]
    assert len(largest) == 2
    for name in largest:
        alone, of_study = in_shards(tmp_path, conditions[name], 96), study.evaluations[name]
        assert alone.parts.name == of_study.parts.name
        assert_frame_equal(alone.query_scores, of_study.query_scores)
    assert len(Scripted.asked) == count


@pytest.mark.parametrize("augmentation", [pytest.param("in-prompt", marks=pytest.mark.slow), "fid"])
def test_real_readers_of_several_models_and_fused_ones(
    tmp_path, tiny_t5, monkeypatch, augmentation
):
    """Whole lists by one model, eRAG's labels by another, and a judge."""
    monkeypatch.undo()
    more, roles = {"reader": str(tiny_t5), "augmentation": augmentation}, ["reader"]
    if augmentation == "in-prompt":
        more |= {"annotators": JUDGED, "erag_reader": "bundled", "judge": "bundled"}
        roles = ["erag", "reader", "judge"]
    asked = settings(**{**FEW, "measures": "nDCG@6", "metric": "f1", **more})
    _, parts = compared(tmp_path, [asked], 12, made(tmp_path, queries=4, runs=("one",)))
    assert list(parts[0][0].readings) == roles


COST = {"max_cost": 0.0, "price_per_hour": 1.0}
HOURS = {"max_hours": 1e-9}  # fewer than those of the first unit, which is read all the same


@pytest.mark.parametrize("how", [the_whole, in_shards])
@pytest.mark.parametrize(
    ("bound", "more", "is_program"),
    [
        ({}, {}, False),
        (HOURS, {}, False),
        (HOURS, {"until": "verdict"}, False),
        (COST, {}, False),
        (HOURS, {}, True),
    ],
)
def test_an_evaluation_goes_on_from_where_it_was_stopped(
    tmp_path, monkeypatch, how, bound, more, is_program
):
    """At its bound, or interrupted; a program of the user's is asked for no unit beyond."""
    begun, asked = [], settings(annotators=JUDGED, measures="P@3", **more)

    def program(plan, units, spec):
        for unit in units:
            begun.append(unit.number)
            texts = plan[INPUTS].slice(unit.offset, unit.length).to_list()
            yield UnitResult(unit, Scripted(spec).read(texts), "program", 1.0, STATS)

    run = partial(how, tmp_path, executor=NamedExecutor("own", program) if is_program else None)
    whole = the_whole(tmp_path / "free", asked, **run.keywords)
    total, Scripted.asked, stops = len(Scripted.asked), [], [] if bound else [400, 200]
    begun.clear()

    def interrupted(self, text, one=Scripted.one):
        if stops and len(Scripted.asked) == stops[-1]:
            raise SystemExit(stops.pop())
        return one(self, text)

    monkeypatch.setattr(Scripted, "one", interrupted)
    for _ in range(2):
        before = len(Scripted.asked)
        said = "|".join(f"`{name}` is " for name in bound)
        with pytest.raises(BoundError if bound else SystemExit, match=said or None):
            run(asked.but(**bound))
        assert len(Scripted.asked) > before
    assert begun == [0, 0] * is_program
    before = len(Scripted.asked)
    result = run(asked)
    costs, done = [one.costs for one in result.readings.values()], len(Scripted.asked) - before
    assert sum(one.done for one in costs) == done < total
    assert sum(one.reused for one in costs) == total - done
    # What is read twice is the units that were interrupted.
    assert len({*Scripted.asked}) == total
    assert (len(Scripted.asked) == total) == bool(bound)
    assert_frame_equal(sorted_rows(result.query_scores), sorted_rows(whole.query_scores))
    if how is in_shards:
        assert_same(whole, result, tmp_path / "shards", costs=("wanted", "failed"))


# One query of 40 is less than 5% of all reads, and more of its shard's.
@pytest.mark.parametrize(
    ("failed_reads", "fails", "refused"),
    [
        ("zero", "text 7 ", False),
        ("skip", "text 7 ", False),
        (None, "what is 7", False),
        (None, "what is 3", True),
        ("error", "what is 7", True),
    ],
)
def test_failed_reads_count_as_in_the_whole_or_are_an_error_and_are_tried_again(
    tmp_path, monkeypatch, failed_reads, fails, refused
):
    """An error after all others were read."""
    asked = settings(**FEW, failed_reads=failed_reads)
    with monkeypatch.context() as patched:
        patched.setattr(readers, "load", lambda spec: Scripted(spec, fails=(fails,)))
        said = r"\(query 'q\d+': ValueError: "
        with pytest.raises(ReadError, match=said) if refused else nullcontext():
            (in_shards if refused else compared)(tmp_path, asked if refused else [asked])
    Scripted.asked = []
    mended = in_shards(tmp_path, asked)
    costs = mended.readings["reader"].costs
    assert 0 < costs.done == len(Scripted.asked) < costs.wanted / 5
    assert all(fails in text for text in Scripted.asked)
    whole = the_whole(tmp_path, asked, store="another")
    assert_same(whole, mended, tmp_path / "shards", costs=("wanted", "failed"))


def test_stored_reads_are_found_without_shards_and_damaged_files_of_the_store_are_told(tmp_path):
    first = in_shards(tmp_path, settings(**FEW))
    count = len(Scripted.asked)
    shutil.rmtree(tmp_path / "shards")
    path, *_ = sorted((tmp_path / "shards-store").rglob("*.parquet"))
    lost, content = pl.read_parquet(path).height, bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    again = in_shards(tmp_path, settings(**FEW))
    assert len(Scripted.asked) == count + lost
    (note,) = (note for note in again.notes if note.code == "damaged_store_files")
    assert (note.amount, len(note.about)) == (1, 1)
    assert_frame_equal(again.query_scores, first.query_scores)


def by_server(url, **more):
    return settings(**FEW, dtype=None, actors=None, reader="openai:m", base_url=url, **more)


def test_requests_to_a_server_are_counted_over_all_shards(tmp_path):
    behaviour = Behaviour(lambda body: Said(f"a{len(prompt_of(body)) % 4}", prompt_tokens=10))
    with serving(behaviour) as url:
        both = compared(tmp_path, [by_server(url)])
    whole, parts = (one[0][0].readings["reader"].costs for one in both)
    assert whole.computed_tokens == parts.computed_tokens == 10 * whole.done > 0


@pytest.mark.parametrize("how", [the_whole, in_shards])
@pytest.mark.parametrize(
    ("bound", "raised", "prompts"),
    [
        # Of 459 prompts of 40 tokens and some 155 bytes, and answers of one token: found by the bytes of all
        # prompts, by the tokens of the first eight, and by what was used.
        (8000, InputError, range(2)),
        (9500, ReadError, range(8, 26)),
        (18600, ReadError, range(400, 459)),
    ],
)
def test_a_bound_on_tokens_holds_for_all_shards_together(tmp_path, how, bound, raised, prompts):
    behaviour = Behaviour(lambda body: Said("a1", prompt_tokens=40))
    with serving(behaviour) as url, pytest.raises(raised, match=f"`max_tokens` .*{bound:,}"):
        how(tmp_path, by_server(url, max_tokens=bound))
    assert len(behaviour.prompts) in prompts


def test_reads_that_fail_alike_end_an_evaluation_before_any_was_done_alone(tmp_path):
    """All of one shard's reads fail, of which there are more than sixteen; others were done before."""
    cut = partition(made(tmp_path), folder_at(tmp_path / "inputs"), k=6, pairs_per_shard=60)
    bad = tuple(f"Question: {query}" for query in cut.read(1).queries["query"])

    def refuse(body):
        return "no" if prompt_of(body).endswith(bad) else None

    with serving(Behaviour(lambda body: Said("a1"), refuse=refuse)) as url:
        found = in_shards(tmp_path, by_server(url, failed_reads="zero"), 60)
    costs = found.readings["reader"].costs
    assert 16 < costs.failed < costs.wanted


def test_what_was_scored_of_other_files_lists_or_queries_is_not_taken_up(tmp_path):
    files, names, half = made(tmp_path), [], {"lists": 0.5}
    fewer = replace(files, run=files.run[:1], limit=9)
    for more in (half, {**half, "seed": 1}, {"until": "verdict"}, {}, {"files": fewer}, half):
        own = more.get("files", files)
        asked = settings(**FEW, **{name: more[name] for name in more if name != "files"})
        _, parts = compared(tmp_path, [asked], 150, own)
        names.append(parts[0][0].parts.name)
    assert names.pop() == names[0]
    assert len(set(names)) == len(names)


PLACE = {"gpus_per_actor": 1, "cpus_per_actor": 2, "memory": 2**40}


@pytest.mark.parametrize(
    ("first", "more", "is_same"),
    [
        (FEW, {"seed": 5, "confidence": 0.9, **PLACE, "accelerator_type": "L4"}, True),
        (FEW, {"metric": "f1"}, False),
        # Probabilities of the whole, whose intervals are of no shard.
        ({"annotators": ("dual",), "measures": "P@3"}, {"resamples": 0}, True),
    ],
)
def test_settings_that_change_no_score_take_up_all_and_others_the_reads(
    tmp_path, monkeypatch, first, more, is_same
):
    """With the figures of the whole under these settings."""
    before = in_shards(tmp_path, settings(**first), 30)
    whole = the_whole(tmp_path, settings(**first, **more))
    count = len(Scripted.asked)
    # As an evaluation leaves it that was killed when all was scored.
    left = tmp_path / "shards" / before.parts.name / "plans/reader/000000.parquet"
    left.touch()
    if is_same:
        monkeypatch.setattr(plans, "wanted_of", None)
        monkeypatch.setattr("engine.evaluation.read.score_shard", None)
    again = in_shards(tmp_path, settings(**first, **more), 30)
    assert len(Scripted.asked) == count
    assert (again.parts.name == before.parts.name) == is_same != left.exists()
    assert_same(whole, again, tmp_path / "shards", costs=("wanted", "failed"))
    costs = again.readings["reader"].costs
    assert (costs.done, costs.reused) == (0, before.readings["reader"].costs.done)


def test_files_that_another_evaluation_takes_away_are_one_line(tmp_path, monkeypatch):
    def removed(self, text, one=Scripted.one):
        for folder in (tmp_path / "shards").glob("*/plans"):
            shutil.rmtree(folder)
        return one(self, text)

    monkeypatch.setattr(Scripted, "one", removed)
    with refused("results.damaged", text=False) as caught:  # whose path has a digest
        in_shards(tmp_path, settings(**FEW))
    as_expected(caught.value.problem)
