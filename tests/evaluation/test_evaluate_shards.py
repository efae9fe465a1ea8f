"""Shards have the figures of what is held, whatever an evaluation has in it, and go on where they were stopped."""

import gc
import json
import shutil
import weakref
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

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
    Scripted,
    answering,
    assert_same,
    compared,
    evaluated,
    in_shards,
    made,
    scripted,
    settings,
    shards_of,
    sorted_rows,
    the_whole,
)
from tests.reading.remote.server import Behaviour, Said, prompt_of, serving

__all__ = ["scripted"]  # a fixture


def length(prompts):
    return [f"a{len(prompt) % 4}" for prompt in prompts]


def by_function(**more):
    """Settings whose reader is a function without a version."""
    asked = settings(**FEW, dtype=None, reader="mine", **more)
    functions = (ReaderFunction(length, "mine"),)
    return replace(asked, reader=replace(asked.reader, functions=functions))


def with_texts(files):
    """Runs that carry the texts of their passages, without a corpus."""
    texts, paths = pl.read_parquet(files.corpus).select("doc_id", "text"), []
    for path in files.run:
        rows = pl.read_parquet(path).join(texts, on="doc_id", maintain_order="left")
        paths.append(path.with_suffix(".jsonl"))
        paths[-1].write_text("".join(json.dumps(row) + "\n" for row in rows.to_dicts()))
    return InputFiles(queries=files.queries, run=tuple(paths))


class Case(NamedTuple):
    """Settings, pairs of a shard, codes of notes that they lead to, other files, and who reads in the reader's place."""

    asked: Mapping[str, Any] | Callable[[], Any] = FEW
    pairs: int = 150
    codes: frozenset[str] = frozenset()
    files: Callable[[InputFiles], InputFiles] = lambda files: files
    executor: Any = None


def case(pairs=150, codes=(), **more):
    return Case({**FEW, **more}, pairs, frozenset(codes))


NO_READS = {"annotators": ("containment",), "end_to_end": False}
JUDGED = ("erag", "judge")
CASES = {
    "one shard": Case({}, 10_000),
    "several": Case({}, 150, frozenset({"tied_scores", "queries_judged_below_0"})),
    "a shard for every query": Case({}, 1),
    "skip": case(missing="skip"),
    "no reads": case(**NO_READS, measures="nDCG@6"),
    "real-valued": case(annotators=("erag", "preference"), measures="nDCG@6 P@3", metric="f1"),
    "qrels": case(annotators=("qrels",), measures="R@6", relevant="qrels"),
    "cut": case(
        50, annotators=("containment", "erag"), k=2, end_to_end_k=1, measures="RR Judged@2"
    ),
    "clusters": case(cluster="article"),
    "budget": case(end_to_end_k="12tok", measures="P@12tok Success@6tok"),
    "lazy": case(codes={"labels_not_needed"}, annotators=JUDGED, measures="RR@6", lazy=True),
    "lists": case(codes={"sampled_lists"}, lists=0.5),
    "until": case(until="verdict", annotators=JUDGED),
    "width": case(codes={"width_reached"}, width=0.3),
    "dual": case(pairs=30, annotators=("dual",)),
    "dual, skip, clusters": case(30, annotators=("dual",), missing="skip", cluster="article"),
    "texts in runs": Case(files=with_texts),
    "metric": Case(lambda: settings(**FEW, metric=metric_from_function(lambda a, b: len(a) / 9))),
    "annotator": Case(
        lambda: settings(
            annotators=("erag", from_function("short", lambda q, a, title, text: 1 / len(text))),
            measures="nDCG@6",
        )
    ),
    "reader": Case(by_function),
    "program": Case(executor=ScriptedReader(lambda prompt: f"a{len(prompt) % 4}")),
}
OWN = {"metric", "annotator", "reader", "program"}


@pytest.mark.parametrize("name", CASES)
def test_shards_have_the_figures_of_the_whole_and_are_taken_up(tmp_path, monkeypatch, name):
    """Unless they are made by the user's functions, of which nobody knows whether they do what they did."""
    monkeypatch.setattr(plans, "CPU_BATCH_TOKENS", 2)  # lazy labels rank by rank
    asked, pairs, codes, files_of, executor = CASES[name]
    asked = asked() if callable(asked) else settings(**asked)
    files = made(tmp_path, queries=10 if pairs == 1 else 40, cluster=asked.bootstrap.cluster)
    files = files_of(files)
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


def test_probabilities_are_of_all_queries_and_intervals_made_anew(tmp_path):
    asked = settings(annotators=("dual",), measures="P@3")
    parts = in_shards(tmp_path, asked, 30)
    assert parts.further["dual"]["low"].is_not_nan().all()
    paths = (tmp_path / "shards" / parts.parts.name / "dual").iterdir()
    listed = [pl.read_parquet(path).group_by("run").agg(pl.count("word_label")) for path in paths]
    # A run that lists nothing for any query of a shard.
    assert any((table["word_label"] == 0).any() for table in listed)
    assert {table.height for table in listed} == {3}
    again = in_shards(tmp_path, asked.but(resamples=0), 30)
    assert again.parts.name == parts.parts.name
    assert again.further["dual"]["value"].equals(parts.further["dual"]["value"])
    assert again.further["dual"]["low"].is_nan().all()


@pytest.mark.parametrize("cluster", [None, "article"])
def test_clusters_are_kept_in_any_case_and_used_where_they_are_asked_for(tmp_path, cluster):
    asked = settings(**NO_READS, measures="P@3")
    kept = read_inputs(made(tmp_path, cluster=cluster), k=6)
    found = evaluate(kept, asked.but(cluster=cluster), store=tmp_path / "store")
    assert found.clusters["query_id"].to_list() == kept.queries["query_id"].to_list()
    assert found.clusters["cluster"].max() < 20
    without = replace(kept, queries=kept.queries.drop("cluster"))
    plain = evaluate(without, asked, store=tmp_path / "store").statistics.run_pairs
    assert found.statistics.run_pairs.equals(plain) == (cluster is None)


def test_a_study_loads_one_model_at_a_time_and_leaves_shards_to_each_of_its_readers(
    tmp_path, tiny_t5, monkeypatch
):
    """In this process: one model at a time fits where two may not."""
    alive = weakref.WeakSet()

    def load(spec):
        gc.collect()
        assert {reader.name for reader in alive} <= {spec.name}
        reader = Scripted(spec)
        reader.name = spec.name
        alive.add(reader)
        return reader

    monkeypatch.setattr(readers, "load", load)
    asked = settings(**{**FEW, "k": 4, "measures": "P@2 nDCG@4"})
    conditions = vary(asked, Sweep(readers=("bundled", str(tiny_t5)), k_sweep=(4, 2)))
    held, parts = compared(tmp_path, list(conditions.values()), 96)
    whole, study = study_of(conditions, *held), study_of(conditions, *parts)
    for name in ("conditions", "readers", "reader_comparisons"):
        assert_frame_equal(getattr(whole, name), getattr(study, name))
    count = len(Scripted.asked)
    again = study_of(conditions, *evaluated(tmp_path, list(conditions.values()), 96))
    assert_frame_equal(again.conditions, study.conditions)
    largest = {one: asked for one, asked in conditions.items() if asked.ranking.k == 4}
    assert len(largest) == 2
    for condition, asked in largest.items():
        alone = in_shards(tmp_path, asked, 96, store="another")
        assert alone.parts.name == study.evaluations[condition].parts.name
        assert_frame_equal(alone.query_scores, study.evaluations[condition].query_scores)
    assert len(Scripted.asked) == count


@pytest.mark.parametrize("augmentation", [pytest.param("in-prompt", marks=pytest.mark.slow), "fid"])
def test_real_readers_of_several_models_and_fused_ones(
    tmp_path, tiny_t5, monkeypatch, augmentation
):
    """Whole lists by one model, eRAG's labels by another, and a judge."""
    monkeypatch.undo()
    more = {"reader": str(tiny_t5), "augmentation": augmentation, "metric": "f1"}
    if augmentation == "in-prompt":
        more |= {"annotators": JUDGED, "erag_reader": "bundled", "judge": "bundled"}
    asked = settings(**{**FEW, "measures": "nDCG@6", **more})
    _, parts = compared(tmp_path, [asked], 12, made(tmp_path, queries=4, runs=("one",)))
    roles = ["reader"] if augmentation == "fid" else ["erag", "reader", "judge"]
    assert list(parts[0][0].readings) == roles


class Interrupted(BaseException):
    pass


def test_an_interrupted_evaluation_goes_on_where_it_was(tmp_path, monkeypatch):
    whole = the_whole(tmp_path, settings(**FEW))
    total, Scripted.asked = len(Scripted.asked), []

    def stop(self, text, one=Scripted.one):
        if len(Scripted.asked) == total // 2:
            raise Interrupted
        return one(self, text)

    with monkeypatch.context() as patched, pytest.raises(Interrupted):
        patched.setattr(Scripted, "one", stop)
        in_shards(tmp_path, settings(**FEW))
    before, Scripted.asked = Scripted.asked, []
    parts = in_shards(tmp_path, settings(**FEW))
    costs = parts.readings["reader"].costs
    # What was read twice is the unit under way.
    assert len({*before, *Scripted.asked}) == total
    assert costs.done == len(Scripted.asked)
    assert 0 < costs.reused == total - costs.done
    assert_same(whole, parts, tmp_path / "shards", costs=("wanted", "failed"))


# Smaller than the first unit, which is read all the same.
BOUNDS = {"max_hours": 1e-9}, {"max_cost": 0.0, "price_per_hour": 1.0}


@pytest.mark.parametrize("how", [the_whole, in_shards])
@pytest.mark.parametrize(
    ("bound", "more"), [(BOUNDS[0], {}), (BOUNDS[1], {}), (BOUNDS[0], {"until": "verdict"})]
)
def test_an_evaluation_goes_on_from_its_bound_and_reads_nothing_again(tmp_path, how, bound, more):
    asked = settings(annotators=JUDGED, measures="P@3", **more)
    expected = how(tmp_path / "free", asked).query_scores
    Scripted.asked = []
    for _ in range(2):
        before = len(Scripted.asked)
        said = f"`{next(iter(bound))}` is .*, which the next LLM calls"
        with pytest.raises(BoundError, match=said):
            how(tmp_path, asked.but(**bound))
        assert len(Scripted.asked) > before
    assert_frame_equal(sorted_rows(how(tmp_path, asked).query_scores), sorted_rows(expected))
    assert len(set(Scripted.asked)) == len(Scripted.asked)


def test_a_program_of_the_users_is_asked_for_no_unit_beyond_a_bound(tmp_path):
    begun = []

    def program(plan, units, spec):
        for unit in units:
            begun.append(unit.number)
            texts = plan[INPUTS].slice(unit.offset, unit.length).to_list()
            outputs = [answering()("".join(text), ()) for text in texts]
            yield UnitResult(unit, outputs, "program", 1.0, STATS)

    own, asked = NamedExecutor("own", program), settings(**FEW)
    with pytest.raises(BoundError, match="`max_hours` is 0.0001"):
        the_whole(tmp_path, asked.but(max_hours=1e-4), executor=own)
    assert begun == [0]
    costs = the_whole(tmp_path, asked, executor=own).readings["reader"].costs
    assert 0 < costs.reused < costs.wanted


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
        if refused:
            said = r"of \d+ LLM calls failed \(query 'q\d+': ValueError: no such"
            with pytest.raises(ReadError, match=said):
                in_shards(tmp_path, asked)
        else:
            compared(tmp_path, [asked])
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
    assert in_shards(tmp_path, settings(**FEW)).readings["reader"].costs.reused == count
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
    with serving(behaviour) as url, pytest.raises(raised, match=f"`max_tokens` is {bound:,}"):
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
