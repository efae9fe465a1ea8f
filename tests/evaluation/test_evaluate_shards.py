"""Shards have the figures of what is held, whatever an evaluation has in it, and go on where they were stopped.

What a shard leaves is taken for its own evaluation's, whole, or not at all. What cannot work is refused before anything
is read.
"""

import gc
import shutil
import weakref
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from itertools import product

import polars as pl
import pytest
from polars.testing import assert_frame_equal

from engine.evaluation import plan as plans
from engine.evaluation.evaluate import evaluate
from engine.evaluation.study import Sweep, study_of, vary
from engine.inputs.files import InputFiles
from engine.inputs.partition import partition
from engine.inputs.read import read_inputs
from engine.labels import annotator, from_function
from engine.messages.errors import BoundError, InputError, ReadError
from engine.reading import readers
from engine.reading.function import ReaderFunction
from engine.scoring.metrics import metric_from_function
from engine.sources.io.folders import folder_at
from engine.tables import END_TO_END
from tests.conftest import ScriptedReader
from tests.evaluation.in_shards import (
    GRADES,
    Scripted,
    assert_same,
    compared,
    edit,
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
    texts = pl.read_parquet(files.corpus).select("doc_id", "text")
    for path in files.run:
        edit(path, lambda rows: rows.join(texts, on="doc_id", maintain_order="left"))
    return InputFiles(queries=files.queries, run=files.run)


def case(pairs=150, *codes, files=lambda files: files, executor=None, **more):
    """Pairs of a shard, codes of notes, other files, who reads in the reader's place, and settings."""
    return pairs, {*codes}, files, executor, more


MINE = ReaderFunction(lambda prompts: [f"a{len(prompt) % 4}" for prompt in prompts], "mine")
SHORT = from_function("short", lambda q, a, title, text: 1 / len(text))
MANY = {
    "annotators": ("erag", "containment", "provenance", "qrels", "judge", "utility"),
    "measures": "P@3 nDCG@6 UDCG@6",
}
NO_READS = {"annotators": ("containment",), "end_to_end": False}
JUDGED, BOTH = ("erag", "judge"), ("erag", "dual")
CASES = {
    "one shard": case(10_000, **MANY),
    "several": case(150, "tied_scores", "queries_judged_below_0", **MANY),
    "a shard for every query": case(1, **MANY),
    "skip, clusters": case(30, annotators=BOTH, missing="skip", cluster="article"),
    "no reads": case(**NO_READS, measures="nDCG@6"),
    "real-valued": case(annotators=("erag", "preference"), measures="nDCG@6 P@3", metric="f1"),
    "qrels": case(annotators=("qrels",), measures="R@6", relevant="qrels"),
    "cut": case(50, measures="RR Judged@2", k=2, end_to_end_k=1),
    "budget": case(measures="P@12tok Success@6tok", end_to_end_k="12tok"),
    "lazy": case(150, "labels_not_needed", annotators=JUDGED, measures="RR@6", lazy=True),
    "lists": case(150, "sampled_lists", lists=0.5),
    "until": case(annotators=JUDGED, until="verdict"),
    "width": case(150, "width_reached", width=0.3),
    "fused": case(reader="bundled-fid", augmentation="fid"),
    "models": case(annotators=JUDGED, reader="bundled-fid", erag_reader="bundled", judge="bundled"),
    "texts in runs": case(files=with_texts),
    # At which every shard has to be looked.
    "graded qrels": case(
        1,
        files=edited("qrels", label=GRADES),
        annotators=("qrels",),
        measures="P(rel=1)@3 P@3 nDCG@6",
    ),
    "metric": case(metric=metric_from_function(lambda a, b: len(a) / 9)),
    "annotator": case(annotators=("erag", SHORT), measures="nDCG@6"),
    "reader": case(dtype=None, reader="mine", functions=(MINE,)),
    "program": case(executor=ScriptedReader(lambda prompt: f"a{len(prompt) % 4}")),
}
OWN = {"metric", "annotator", "reader", "program"}


@pytest.mark.parametrize("name", CASES)
def test_shards_have_the_figures_of_the_whole_and_are_taken_up(tmp_path, monkeypatch, name):
    """Unless they are made by the user's functions, of which nobody knows whether they do what they did."""
    monkeypatch.setattr(plans, "CPU_BATCH_TOKENS", 2)  # lazy labels rank by rank
    pairs, codes, change, executor, more = CASES[name]
    asked = settings(**more)
    files = change(made(tmp_path, 10 if pairs == 1 else 40, cluster=asked.bootstrap.cluster))
    held, parts = compared(tmp_path, [asked], pairs, files, executor=executor)
    (held,), (parts,) = held[0], parts[0]
    assert codes <= {note.code for note in parts.notes if note.is_shown}
    assert (shards_of(tmp_path, parts) >= 3) == (pairs < 1000)
    stored = list((tmp_path / "shards-store").rglob("*.parquet"))
    assert bool(stored) == bool(parts.readings and name not in ("reader", "program"))
    assert not list((tmp_path / "shards").rglob("unkept/**/*.parquet"))
    count = len(Scripted.asked)
    if name not in OWN and not asked.draws_queries:
        monkeypatch.setattr(plans, "shard_reads", None)
        monkeypatch.setattr("engine.evaluation.read.score_shard", None)
    again = in_shards(tmp_path, asked, pairs, files, executor=executor)
    assert len(Scripted.asked) == count
    assert (again.parts.name == parts.parts.name) == (name not in OWN)
    assert_same(held, again, tmp_path / "shards", costs=("wanted", "failed"))


@pytest.mark.parametrize("cluster", [None, "article"])
def test_clusters_are_kept_in_any_case_and_used_where_they_are_asked_for(tmp_path, cluster):
    asked, given = settings(**NO_READS), read_inputs(made(tmp_path, cluster=cluster), k=6)
    without = replace(given, queries=given.queries.drop("cluster"))
    found = evaluate(given, asked.but(cluster=cluster), store=tmp_path / "store")
    plain = evaluate(without, asked, store=tmp_path / "store")
    assert found.clusters.equals(given.queries.select("query_id", "cluster"))
    assert found.statistics.run_pairs.equals(plain.statistics.run_pairs) == (cluster is None)


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
    sweep = Sweep(readers=("bundled", str(tiny_t5)), k_sweep=(4, 2))
    conditions = vary(settings(k=4, measures="P@2 nDCG@4"), sweep)
    both = compared(tmp_path, list(conditions.values()), 96)
    count = len(Scripted.asked)
    again = evaluated(tmp_path, list(conditions.values()), 96)
    whole, *parts = (study_of(conditions, *found) for found in (*both, again))
    for study, name in product(parts, ("conditions", "readers", "reader_comparisons")):
        assert_frame_equal(getattr(whole, name), getattr(study, name))
    largest = [name for name, asked in conditions.items() if asked.ranking.k == 4]
    assert len(largest) == 2
    for name in largest:
        alone, of_study = in_shards(tmp_path, conditions[name], 96), parts[0].evaluations[name]
        assert alone.parts.name == of_study.parts.name
        assert_frame_equal(alone.query_scores, of_study.query_scores)
    assert len(Scripted.asked) == count


COST = {"max_cost": 0.0, "price_per_hour": 1.0}
HOURS = {"max_hours": 1e-9}  # fewer than those of the first unit, which is read all the same


@pytest.mark.parametrize("how", [the_whole, in_shards])
@pytest.mark.parametrize(
    ("bound", "until"), [({}, None), (HOURS, None), (HOURS, "verdict"), (COST, None)]
)
def test_an_evaluation_goes_on_from_where_it_was_stopped(tmp_path, monkeypatch, how, bound, until):
    """At its bound, or interrupted."""
    asked, run = settings(annotators=JUDGED, until=until), partial(how, tmp_path)
    whole = the_whole(tmp_path / "free", asked)
    total, Scripted.asked, stops = len(Scripted.asked), [], [] if bound else [400, 200]

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
    asked, said = settings(failed_reads=failed_reads), r"\(query 'q\d+': ValueError: "
    with monkeypatch.context() as patched:
        patched.setattr(readers, "load", lambda spec: Scripted(spec, fails=(fails,)))
        with pytest.raises(ReadError, match=said) if refused else nullcontext():
            (evaluated if refused else compared)(tmp_path, [asked])
    Scripted.asked = []
    mended = in_shards(tmp_path, asked)
    costs = mended.readings["reader"].costs
    assert 0 < costs.done == len(Scripted.asked) < costs.wanted / 5
    assert all(fails in text for text in Scripted.asked)
    whole = the_whole(tmp_path, asked, store="another")
    assert_same(whole, mended, tmp_path / "shards", costs=("wanted", "failed"))


def test_stored_reads_are_found_without_shards_and_damaged_files_of_the_store_are_told(tmp_path):
    first, count = in_shards(tmp_path, settings()), len(Scripted.asked)
    shutil.rmtree(tmp_path / "shards")
    path, *_ = sorted((tmp_path / "shards-store").rglob("*.parquet"))
    lost, content = pl.read_parquet(path).height, bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    again = in_shards(tmp_path, settings())
    assert len(Scripted.asked) == count + lost
    (note,) = (note for note in again.notes if note.code == "damaged_store_files")
    assert (note.amount, len(note.about)) == (1, 1)
    assert_frame_equal(again.query_scores, first.query_scores)


def by_server(url, **more):
    return settings(dtype=None, actors=None, reader="openai:m", base_url=url, **more)


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


def test_requests_to_a_server_are_counted_and_fail_alone_over_all_shards(tmp_path):
    """All of one shard's reads fail alike, of which there are more than sixteen; others were done before."""
    cut = partition(made(tmp_path), folder_at(tmp_path / "inputs"), k=6, pairs_per_shard=60)
    bad = tuple(f"Question: {query}" for query in cut.read(1).queries["query"])

    def refuse(body):
        return "no" if prompt_of(body).endswith(bad) else None

    behaviour = Behaviour(lambda body: Said("a1", prompt_tokens=10), refuse=refuse)
    with serving(behaviour) as url:
        both = compared(tmp_path, [by_server(url, failed_reads="zero")], 60)
    whole, parts = (one[0][0].readings["reader"].costs for one in both)
    assert 16 < parts.failed < parts.wanted
    assert whole.computed_tokens == parts.computed_tokens == 10 * (whole.done - whole.failed)


PLACE = {"gpus_per_actor": 1, "cpus_per_actor": 2, "memory": 2**40, "accelerator_type": "L4"}


def test_shards_are_taken_up_where_their_scores_would_be_equal_and_reads_in_any_case(
    tmp_path, monkeypatch
):
    """Whatever was evaluated before under other settings, with the figures of the whole under these."""
    files = made(tmp_path)
    few = {"annotators": ("erag",)}
    names = [in_shards(tmp_path, settings(annotators=BOTH), 30).parts.name]
    # As an evaluation leaves it that was killed when all was scored.
    left = tmp_path / "shards" / names[0] / "plans/reader/000000.parquet"
    for place, more in (
        (0, {"seed": 5, "confidence": 0.9, **PLACE}),
        # Probabilities of the whole, whose intervals are of no shard.
        (0, {"resamples": 0}),
        (3, {"metric": "f1"}),
        (4, {"lists": 0.5}),
        (5, {"lists": 0.5, "seed": 1}),
        (6, few),
        (7, {**few, "until": "verdict"}),
        (8, {**few, "files": replace(files, limit=9)}),
        (4, {"lists": 0.5}),
    ):
        own = {"files": files, "annotators": BOTH, **more}
        given, asked = own.pop("files"), settings(**own)
        whole, count = the_whole(tmp_path, asked, given), len(Scripted.asked)
        left.touch()
        with monkeypatch.context() as patched:
            if place < len(names) and "lists" not in own:
                patched.setattr(plans, "shard_reads", None)
                patched.setattr("engine.evaluation.read.score_shard", None)
            found = in_shards(tmp_path, asked, 30, given)
        assert (len(Scripted.asked), found.readings["reader"].costs.done) == (count, 0)
        assert_same(whole, found, tmp_path / "shards", costs=("wanted", "failed"))
        names.append(found.parts.name)
        assert names.index(names[-1]) == place
        assert left.exists() == (place > 0)


def test_files_that_another_evaluation_takes_away_are_one_line(tmp_path, monkeypatch):
    def removed(self, text, one=Scripted.one):
        for folder in (tmp_path / "shards").glob("*/plans"):
            shutil.rmtree(folder)
        return one(self, text)

    monkeypatch.setattr(Scripted, "one", removed)
    with refused("results.damaged", text=False) as caught:  # whose path has a digest
        in_shards(tmp_path, settings())
    as_expected(caught.value.problem)


NO_PROVENANCE = edited("queries", provenance=pl.lit([], pl.List(pl.String)))
# Answers that no output can match, of so many queries in the middle of the file that not all are named.
UNSCORABLE = pl.when(pl.col("query_id").str.contains("^q[12]")).then(pl.lit(["the"]))
UNSCORABLE = edited("queries", answers=UNSCORABLE.otherwise("answers"))
QRELS = {"annotators": ("erag", "qrels")}


@pytest.mark.parametrize(
    ("change", "more", "code"),
    [
        (NO_PROVENANCE, {"annotators": ("erag", "provenance")}, "queries.provenance"),
        (UNSCORABLE, {"metric": "f1"}, "metric.answers"),
        (replace, {"missing": "error"}, "runs.unlisted"),
        (partial(replace, tables={}), QRELS, "settings.table"),
        (edited("qrels", label=pl.lit(-1.0)), QRELS, "qrels.unjudged"),
        (edited("qrels", label=GRADES), QRELS, "measure.threshold"),
        (lambda own: replace(own, run=own.run[:1]), {"measures": "Judged@2"}, "measure.trivial"),
    ],
)
def test_what_cannot_work_is_refused_before_reading(tmp_path, change, more, code):
    files = change(made(tmp_path))
    asked = settings(**{"measures": "P@3 nDCG@6", **more})
    with refused(code) as of_the_whole:
        the_whole(tmp_path, asked, files)
    with refused(code) as of_shards:
        in_shards(tmp_path, asked, 40, files)
    assert len(list((tmp_path / "inputs").rglob("shard-*.zip"))) > 2
    assert str(of_shards.value) == str(of_the_whole.value)
    assert not Scripted.asked


def rare(material):
    """Labels by how many of all passages the corpus has."""
    labels = annotator.labels_of("rare", material.pairs, pl.lit(material.corpus.height / 60))
    return annotator.AnnotatorResult(labels, annotator.complete(labels))


@pytest.mark.parametrize("role", [None, annotator.READER])
@pytest.mark.parametrize("more", [{}, {"until": "verdict"}], ids=str)
def test_statistics_of_the_corpus_are_those_of_all_queries_or_refused(tmp_path, role, more):
    own = annotator.Annotator(
        name="rare",
        label=rare,
        asks=lambda settings: annotator.ask_reader(settings.reader) if role else None,
        role=role,
        scale=lambda settings: annotator.Scale(graded="shares"),
    )
    more = {"measures": "P(rel=0.5)@3", END_TO_END: bool(more), **more}
    asked = settings(annotators=("containment", own), **more)
    for how in (in_shards, the_whole)[: 1 + more[END_TO_END]]:
        with refused("annotator.corpus"):
            how(tmp_path, asked)
        assert not Scripted.asked
    if not more[END_TO_END]:
        whole, one = the_whole(tmp_path, asked), in_shards(tmp_path / "one", asked, 10_000)
        assert whole.means.rows() == one.means.rows()
