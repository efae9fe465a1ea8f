"""An evaluation in shards gives the figures of one that is held by one process."""

import hashlib
import io
import json
import pickle
import random
import shutil
from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import ClassVar

import polars as pl
import pytest
from polars.testing import assert_frame_equal

from engine import tables
from engine.evaluation import plan as plans
from engine.evaluation import read
from engine.evaluation.evaluate import evaluate, evaluate_shards
from engine.evaluation.jobs import Context, Run, specify_jobs
from engine.evaluation.kept import ShardFolder
from engine.evaluation.read import check_readers
from engine.evaluation.settings import Settings
from engine.inputs.files import InputFiles
from engine.inputs.partition import partition
from engine.inputs.read import read_inputs
from engine.inputs.shards import InMemoryInputs
from engine.machine import cluster, device
from engine.machine.nodes import Needs
from engine.machine.pool import Pool
from engine.messages.errors import BoundError, InputError, ReadError
from engine.reading import plan as reading_plan
from engine.reading import protocol, readers, store
from engine.reading.backends import NamedExecutor
from engine.reading.costs import UnitResult
from engine.reading.function import ReaderFunction
from engine.reading.local import Local
from engine.reading.plan import INPUTS, MadePlans, ReadPlan
from engine.reading.protocol import ReaderStats, ReadOutput
from engine.reading.stream_on_ray import ShardRole, unit_rows
from engine.sources.io.folders import Folder, folder_at
from engine.sources.queries.buckets import BUCKETS
from tests.conftest import STATS


def answering():
    """What answers, within a function: by value, since workers lack this module."""

    def answer(text, choices):
        digest = hashlib.sha256(text.encode()).digest()
        if choices:
            return ReadOutput(choices[0], 5, 1, False, confidence=digest[0] / 255)
        return ReadOutput(f"a{digest[0] % 4}", 5, 1, digest[1] < 20)

    return answer


answer = answering()


class Scripted:
    """Answers, chooses and fails by what it is given alone."""

    asked: ClassVar[list[str]] = []

    def __init__(self, spec, fails=()):
        self.stats = ReaderStats()
        self.choices, self.fails = spec.choices, fails

    def read(self, inputs):
        return [self.one("\n".join(texts)) for texts in inputs]

    def one(self, text):
        Scripted.asked.append(text)
        if any(part in text for part in self.fails):
            raise ValueError("no such token")
        return answer(text, self.choices)


@pytest.fixture(autouse=True)
def scripted(monkeypatch):
    Scripted.asked = []
    monkeypatch.setattr(readers, "load", Scripted)


ASKED = {
    "runs": [["one"], ["three"]],
    "drawn": {"probability": 0.5, "design": {"strata": {"all": 30}, "queries": 40}},
}


def made(tmp_path, queries=40, runs=("one", "two", "three"), seed=1, cluster=None):
    """Files with equal queries, queries without results, judgments of some, and shared passages."""
    chance = random.Random(seed)
    corpus = [(f"d{d}", f"T{d % 9}", f"text {d} a{d % 4}", f"A{d % 9}") for d in range(60)]
    asked = [
        (f"q{q}", f"what is {q % 35}", [f"a{q % 4}"], [f"A{q % 9}"] if q % 3 else [])
        for q in range(queries)
    ]
    listed = [
        # Every second score equals the one before.
        (query_id, f"d{d}", rank, float(-rank // 2), run)
        for run in runs
        for query_id, *_ in asked
        if chance.random() < 0.9
        for rank, d in enumerate(chance.sample(range(60), chance.randint(1, 6)), start=1)
    ]
    judged = [
        # of q1 nothing was judged
        (query_id, doc_id, float(min(chance.randint(-1, 1), 1 if query_id != "q1" else -1)))
        for query_id, doc_id in dict.fromkeys((row[0], row[1]) for row in listed)
        if int(query_id[1:]) % 4
    ]
    folder = tmp_path / "files"
    folder.mkdir(exist_ok=True, parents=True)

    def write(name, rows, schema):
        path = folder / f"{name}.parquet"
        if not path.exists():
            pl.DataFrame(rows, schema=schema, orient="row").write_parquet(path)
        return path

    preferences = folder / "preferences.jsonl"
    preferences.write_text(
        '{"query_id": "q1", "shown": ["d1", "d2"], "best": "d1"}\n'
        '{"query_id": "q5", "shown": ["d1", "d3"], "best": null}\n'
        + "".join(
            json.dumps({"query_id": f"q{n}", "answers": ["a", "b"], "best": best, **ASKED}) + "\n"
            for n, best in enumerate(["a", None, "b", "a", ["a", "b"]])
        )
    )
    return InputFiles(
        queries=write("queries", asked, tables.QUERIES),
        corpus=write("corpus", corpus, tables.CORPUS),
        run=tuple(
            write(run, [row for row in listed if row[-1] == run], tables.RUNS) for run in runs
        ),
        tables={"qrels": write("qrels", judged, tables.QRELS), "preferences": preferences},
        cluster=cluster,
    )


def settings(**more):
    return Settings.of(
        **{
            "k": 6,
            "annotators": ("erag", "containment", "provenance", "qrels", "judge", "utility"),
            "measures": "P@3 nDCG@6 UDCG@6",
            "resamples": 100,
            "dtype": "float32",
            "actors": 0,
            **more,
        }
    )


def the_whole(tmp_path, asked, store="store", **more):
    files = made(tmp_path, cluster=asked.bootstrap.cluster, **more)
    inputs = read_inputs(files, k=asked.ranking.k)
    return evaluate(inputs, asked, store=tmp_path / store)


def in_shards(tmp_path, asked, pairs=120, files=None, **more):
    inputs = folder_at(tmp_path / "inputs")
    files = files or made(tmp_path, cluster=asked.bootstrap.cluster)
    (evaluation,) = evaluate_shards(
        partition(files, inputs, k=asked.ranking.k, pairs_per_shard=pairs),
        [asked],
        Context(store=tmp_path / "store-of-shards", **more),
        folder_at(tmp_path / "shards"),
    ).evaluations
    return evaluation


def work_of(tmp_path, place, pairs):
    """An evaluation of one job in shards, as its workers get it."""
    asked, folder = settings(**FEW), folder_at(tmp_path / "inputs")
    whole = partition(made(tmp_path), folder, k=6, pairs_per_shard=pairs)
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
    said = f"^node .* has READING_VERSION 99, the driver {now}; start all nodes with"
    with pytest.raises(InputError, match=said):
        planner(0, 0)
    with pytest.raises(InputError, match=said):
        read.score_shard(work, 0, {}, {})


def sorted_rows(frame):
    """A table in an order of its own, lists as text."""
    flat = frame.with_columns(
        pl.col(name).list.join("\x00") for name, kind in frame.schema.items() if kind == pl.List
    )
    return flat.sort(flat.columns)


def all_shards(folder, result, name):
    return pl.concat(
        [pl.read_parquet(path) for path in sorted(folder.glob(f"{result.parts.name}/{name}/*"))],
        how="diagonal",
    )


def assert_same(whole, parts, folder, costs=("wanted", "done", "failed"), drop=()):
    exact = partial(assert_frame_equal, check_exact=True)
    for name in ("query_scores", "downstream", "means", "end_to_end", "undefined"):
        exact(sorted_rows(getattr(whole, name)), sorted_rows(getattr(parts, name)))
    for name in ("labels", "traces", "reads"):
        table = getattr(whole, name).drop(drop, strict=False).unique()
        of_parts = all_shards(folder, parts, name).select(table.columns).unique()
        assert_frame_equal(sorted_rows(table), sorted_rows(of_parts))
    for name in ("correlations", "comparisons", "systems", "run_pairs"):
        exact(getattr(whole.statistics, name), getattr(parts.statistics, name))
    exact(whole.clusters, parts.clusters)
    for name, table in whole.further.items():
        if name in parts.further:
            exact(table, parts.further[name])
        else:
            assert_frame_equal(sorted_rows(table), sorted_rows(all_shards(folder, parts, name)))
    assert whole.statistics.choice == parts.statistics.choice
    assert told(whole.notes) == told(parts.notes)
    for role, reading in whole.readings.items():
        for cost in costs:
            assert getattr(parts.readings[role].costs, cost) == getattr(reading.costs, cost)
    assert (whole.queries, whole.relevant) == (parts.queries, parts.relevant)


@pytest.mark.parametrize("cluster", [None, "article"])
def test_clusters_are_kept_in_any_case_and_used_where_they_are_asked_for(tmp_path, cluster):
    asked = settings(annotators=("containment",), end_to_end=False, measures="P@3")
    kept = read_inputs(made(tmp_path, cluster=cluster), k=6)
    found = evaluate(kept, asked.but(cluster=cluster), store=tmp_path / "store")
    assert found.clusters["query_id"].to_list() == kept.queries["query_id"].to_list()
    assert found.clusters["cluster"].max() < 20
    without = replace(kept, queries=kept.queries.drop("cluster"))
    plain = evaluate(without, asked, store=tmp_path / "store").statistics.run_pairs
    assert found.statistics.run_pairs.equals(plain) == (cluster is None)


def told(notes):
    return [(note.code, note.amount, note.text, note.about) for note in notes]


def compared(tmp_path, asked, pairs=120):
    """An evaluation in shards, which gives the figures of the whole."""
    whole, parts = the_whole(tmp_path, asked), in_shards(tmp_path, asked, pairs)
    assert_same(whole, parts, tmp_path / "shards")
    return parts


@pytest.mark.parametrize("pairs", [10_000, 150, 1])
def test_shards_give_the_figures_of_the_whole(tmp_path, pairs):
    made(tmp_path, queries=10 if pairs == 1 else 40)  # what is there stays: a shard for every query
    parts = compared(tmp_path, settings(), pairs)
    noted = {note.code for note in parts.notes if note.is_shown}
    assert {"tied_scores", "queries_judged_below_0"} <= noted


@pytest.mark.parametrize(
    "more",
    [
        {"missing": "skip", "annotators": ("erag",), "measures": "P@3"},
        {"annotators": ("containment",), "end_to_end": False, "measures": "nDCG@6"},
        {"annotators": ("erag", "preference"), "measures": "nDCG@6 P@3", "metric": "f1"},
        {"annotators": ("qrels",), "measures": "R@6", "relevant": "qrels"},
        {
            "annotators": ("containment", "erag"),
            "k": 2,
            "end_to_end_k": 1,
            "measures": "RR Judged@2",
        },
        {"annotators": ("erag",), "measures": "P@3", "cluster": "article"},
    ],
    ids=["skip", "no reads", "real-valued", "qrels", "cut", "clusters"],
)
def test_shards_give_the_figures_of_the_whole_under(tmp_path, more):
    compared(tmp_path, settings(**more), pairs=150)


def test_lazy_labels_in_shards_are_those_of_the_whole(tmp_path, monkeypatch):
    monkeypatch.setattr(plans, "CPU_BATCH_TOKENS", 2)  # rank by rank
    asked = settings(annotators=("erag", "judge"), measures="RR@6 Success@3", lazy=True)
    parts = compared(tmp_path, asked)
    noted = {note.about[0]: note.amount for note in parts.notes if note.code == "labels_not_needed"}
    assert min(noted["erag"], noted["judge"]) > 20


@pytest.mark.parametrize("more", [{}, {"missing": "skip"}, {"cluster": "article"}])
def test_probabilities_over_all_queries_are_those_of_the_whole(tmp_path, more):
    asked = settings(annotators=("dual",), measures="P@3", **more)
    parts = compared(tmp_path, asked, pairs=30)
    assert parts.further["dual"]["low"].is_not_nan().all()
    events = sorted((tmp_path / "shards" / parts.parts.name / "dual").iterdir())
    assert len(events) >= 6
    # A run that lists nothing for any query of a shard.
    listed = [
        pl.read_parquet(path).group_by("run").agg(pl.col("word_label").count()) for path in events
    ]
    assert any((table["word_label"] == 0).any() for table in listed)
    assert all(table.height == 3 for table in listed)
    again = in_shards(tmp_path, asked.but(resamples=0), pairs=30)
    assert again.parts.name == parts.parts.name
    assert again.further["dual"]["value"].equals(parts.further["dual"]["value"])
    assert again.further["dual"]["low"].is_nan().all()


FEW = {"annotators": ("erag",), "measures": "P@3"}


def test_a_second_evaluation_does_nothing_again_not_even_plan(tmp_path, monkeypatch):
    first = in_shards(tmp_path, settings(**FEW))
    count = len(Scripted.asked)
    monkeypatch.setattr(plans, "wanted_of", None)
    again = in_shards(tmp_path, settings(**FEW, seed=5, confidence=0.9))
    assert len(Scripted.asked) == count
    assert again.parts.name == first.parts.name
    assert_frame_equal(again.query_scores, first.query_scores)
    costs = again.readings["reader"].costs
    assert (costs.done, costs.reused) == (0, first.readings["reader"].costs.done)


def test_another_metric_reads_nothing_again_and_has_a_folder_of_its_own(tmp_path):
    first = in_shards(tmp_path, settings(**FEW))
    count = len(Scripted.asked)
    again = in_shards(tmp_path, settings(**FEW, metric="f1"))
    assert len(Scripted.asked) == count
    assert again.parts.name != first.parts.name


def test_without_manifests_keys_are_rendered_and_found(tmp_path):
    in_shards(tmp_path, settings(**FEW))
    count = len(Scripted.asked)
    shutil.rmtree(tmp_path / "shards")
    again = in_shards(tmp_path, settings(**FEW))
    assert len(Scripted.asked) == count
    assert again.readings["reader"].costs.reused == count


def test_a_shard_that_is_planned_again_has_the_units_that_it_had(tmp_path, monkeypatch):
    """Though a merged file of the store now has some of the reads."""
    monkeypatch.setattr(reading_plan, "CPU_BATCH_TOKENS", 200)
    place = folder_at(tmp_path / "store")
    work, job = work_of(tmp_path, place, 10_000)

    def planned(planner, pace=None):
        return list(unit_rows(ShardRole(0, 0, 1), planner(0, 0), lambda _: pace))

    def do_first(rows):
        next(Local([job.spec], [place]).read(MadePlans([planned_again(rows[0])])))

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
    assert planned(planner) == first
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


def test_a_unit_travels_with_its_own_prompts_alone():
    reads = 1000
    plan = pl.DataFrame(
        {
            "read_key": [f"{i:064}" for i in range(reads)],
            "query_id": [f"q{i}" for i in range(reads)],
            "doc_ids": [[f"d{i}"] for i in range(reads)],
            "inputs": [["prompt " * 100 + str(i)] for i in range(reads)],
            "size": 1,
            "group": range(reads),
        }
    )
    shard_plan = ReadPlan(reads=plan, wanted=reads, first=10, most=10, span=(0, 1))
    rows = list(unit_rows(ShardRole(0, 0, 1), shard_plan, lambda _: None))
    assert len(rows) == 100
    # 10 prompts of 700 characters, their keys, and what the formats add.
    assert max(len(pickle.dumps(row)) for row in rows) < 13_000
    whole = pl.concat(pl.read_ipc_stream(io.BytesIO(row[3])) for row in rows)
    assert whole.equals(plan.select(whole.columns))


def test_a_scored_shard_has_one_file_in_the_store(tmp_path, monkeypatch):
    monkeypatch.setattr(reading_plan, "CPU_BATCH_TOKENS", 200)
    written = []
    add = store.add

    def added(*of, **more):
        written.append(add(*of, **more))
        return written[-1]

    monkeypatch.setattr(store, "add", added)
    asked = settings(**FEW)
    result = in_shards(tmp_path, asked)
    shards = len(list((tmp_path / "shards" / result.parts.name / "manifests").iterdir()))
    files = list((tmp_path / "store-of-shards").rglob("*.parquet"))
    assert len(written) > len(files) == shards > 1
    assert_same(the_whole(tmp_path, asked), result, tmp_path / "shards")


def test_a_pass_lists_the_store_of_each_reader_once_whatever_the_shards(tmp_path, monkeypatch):
    listed, sizes = Counter(), Folder.sizes

    def counted(folder):
        listed[str(folder)] += 1
        return sizes(folder)

    monkeypatch.setattr(Folder, "sizes", counted)
    asked = settings(annotators=("erag", "judge"), measures="nDCG@6")
    seen = []
    for pairs in (30, 240):
        folder = tmp_path / str(pairs)
        folder.mkdir()
        listed.clear()
        result = in_shards(folder, asked, pairs=pairs)
        shards = len(list((folder / "shards" / result.parts.name / "manifests").iterdir()))
        of_readers = sorted(listed[name] for name in listed if "/store-of-shards/" in name)
        seen.append((shards, of_readers))
    (many, of_many), (few, of_few) = seen
    assert many > 4 * few
    assert of_many == of_few
    assert len(of_many) == 2


def test_damaged_files_of_the_store_are_told_and_their_reads_done_again(tmp_path):
    first = in_shards(tmp_path, settings(**FEW))
    count = len(Scripted.asked)
    shutil.rmtree(tmp_path / "shards")
    path, *_ = sorted((tmp_path / "store-of-shards").rglob("*.parquet"))
    lost = pl.read_parquet(path).height
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    again = in_shards(tmp_path, settings(**FEW))
    assert len(Scripted.asked) == count + lost
    (note,) = (note for note in again.notes if note.code == "damaged_store_files")
    assert (note.amount, len(note.about)) == (1, 1)
    assert_frame_equal(again.query_scores, first.query_scores)


def test_roles_that_share_a_model_read_shard_after_shard_together(tmp_path, monkeypatch):
    """A shard is scored when all of its roles are read, while others are not begun."""
    begun = []
    score = read.score_shard

    def scored(*of):
        begun.append(len(Scripted.asked))
        score(*of)

    monkeypatch.setattr(read, "score_shard", scored)
    asked = settings(annotators=("erag", "judge"), measures="nDCG@6")
    result = in_shards(tmp_path, asked)
    assert len(begun) > 2
    assert 0 < begun[0] < begun[1] < begun[-1] == len(Scripted.asked)
    # The reader alone has more than half of all reads: one role after the other would be past them here.
    assert begun[0] < len(Scripted.asked) / 2
    costs = [reading.costs for reading in result.readings.values()]
    assert len(costs) == 2
    assert sum(one.seconds for one in costs) < result.seconds
    assert_same(the_whole(tmp_path, asked), result, tmp_path / "shards")


@pytest.mark.parametrize("augmentation", [pytest.param("in-prompt", marks=pytest.mark.slow), "fid"])
def test_readers_of_several_models_and_fused_ones_give_the_figures_of_the_whole(
    tmp_path, tiny_t5, monkeypatch, augmentation
):
    """Real ones: whole lists by one model, eRAG's labels by another, and a judge."""
    monkeypatch.undo()
    asked = settings(
        reader=str(tiny_t5),
        augmentation=augmentation,
        annotators=("erag",),
        measures="nDCG@6",
        metric="f1",
    )
    if augmentation == "in-prompt":
        asked = asked.but(annotators=("erag", "judge"), erag_reader="bundled", judge="bundled")
    few = {"queries": 4, "runs": ("one",)}
    whole = the_whole(tmp_path, asked, **few)
    parts = in_shards(tmp_path, asked, pairs=12, files=made(tmp_path, **few))
    assert list(parts.readings) == (
        ["reader"] if augmentation == "fid" else ["erag", "reader", "judge"]
    )
    assert_same(whole, parts, tmp_path / "shards")


class Interrupted(BaseException):
    pass


def test_an_interrupted_evaluation_goes_on_where_it_was(tmp_path, monkeypatch):
    whole = the_whole(tmp_path, settings(**FEW), "store")
    total, Scripted.asked = len(Scripted.asked), []
    one = Scripted.one

    def stop(self, text):
        if len(Scripted.asked) == total // 2:
            raise Interrupted
        return one(self, text)

    monkeypatch.setattr(Scripted, "one", stop)
    with pytest.raises(Interrupted):
        in_shards(tmp_path, settings(**FEW))
    monkeypatch.setattr(Scripted, "one", one)
    before, Scripted.asked = Scripted.asked, []
    parts = in_shards(tmp_path, settings(**FEW))
    costs = parts.readings["reader"].costs
    # What was read twice is the unit under way.
    assert set(before) | set(Scripted.asked) == {*before, *Scripted.asked}
    assert costs.done == len(Scripted.asked)
    assert 0 < costs.reused == total - costs.done
    costs.done = total
    assert_same(whole, parts, tmp_path / "shards")


# Smaller than the first unit, which is read all the same.
BOUNDS = {"max_hours": 1e-9}, {"max_cost": 0.0, "price_per_hour": 1.0}


@pytest.mark.parametrize("how", [the_whole, in_shards], ids=["whole", "shards"])
@pytest.mark.parametrize("bound", BOUNDS)
@pytest.mark.parametrize("more", [{}, {"until": "verdict"}])
def test_an_evaluation_goes_on_from_its_bound_and_reads_nothing_again(tmp_path, how, bound, more):
    asked = settings(annotators=("erag", "judge"), measures="P@3", **more)
    expected = how(tmp_path / "free", asked).query_scores
    Scripted.asked = []
    for _ in range(2):
        before = len(Scripted.asked)
        with pytest.raises(
            BoundError, match=f"`{next(iter(bound))}` is .*, which the next LLM calls"
        ):
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
            outputs = [answer("".join(text), ()) for text in texts]
            yield UnitResult(unit, outputs, "program", 1.0, STATS)

    inputs, own = read_inputs(made(tmp_path), k=6), NamedExecutor("own", program)
    asked = settings(**FEW)
    with pytest.raises(BoundError, match="`max_hours` is 0.0001"):
        evaluate(inputs, asked.but(max_hours=1e-4), store=tmp_path / "store", executor=own)
    assert begun == [0]
    costs = evaluate(inputs, asked, store=tmp_path / "store", executor=own).readings["reader"].costs
    assert 0 < costs.reused < costs.wanted


# One query of 40 is less than 5% of all reads, and more of its shard's.
@pytest.mark.parametrize(
    ("failed_reads", "fails"), [("zero", "text 7 "), ("skip", "text 7 "), (None, "what is 7")]
)
def test_failed_reads_count_as_in_the_whole_and_are_tried_again(
    tmp_path, monkeypatch, failed_reads, fails
):
    asked = settings(**FEW, failed_reads=failed_reads)
    monkeypatch.setattr(readers, "load", lambda spec: Scripted(spec, fails=(fails,)))
    whole = the_whole(tmp_path, asked, "store")
    assert whole.readings["reader"].costs.failed
    assert_same(whole, in_shards(tmp_path, asked), tmp_path / "shards")
    monkeypatch.setattr(readers, "load", Scripted)
    Scripted.asked = []
    mended = in_shards(tmp_path, asked)
    assert len(Scripted.asked) == mended.readings["reader"].costs.done
    assert mended.readings["reader"].costs.done == whole.readings["reader"].costs.failed
    mended.readings["reader"].costs.done = mended.readings["reader"].costs.wanted
    assert_same(the_whole(tmp_path, asked, "another"), mended, tmp_path / "shards")


@pytest.mark.parametrize(("failed_reads", "fails"), [("error", "what is 7"), (None, "what is 3")])
def test_failed_reads_are_an_error_after_all_others_were_read(
    tmp_path, monkeypatch, failed_reads, fails
):
    asked = settings(**FEW, failed_reads=failed_reads)
    monkeypatch.setattr(readers, "load", lambda spec: Scripted(spec, fails=(fails,)))
    with pytest.raises(
        ReadError, match=r"of \d+ LLM calls failed \(query 'q\d+': ValueError: no such"
    ):
        in_shards(tmp_path, asked)
    monkeypatch.setattr(readers, "load", Scripted)
    Scripted.asked = []
    mended = in_shards(tmp_path, asked)
    assert 0 < len(Scripted.asked) < mended.readings["reader"].costs.wanted / 5


def test_progress_counts_every_read_once_and_ends_at_the_total(tmp_path):
    told = []
    result = in_shards(
        tmp_path,
        settings(annotators=("erag", "judge"), measures="nDCG@6"),
        on_progress=lambda done, total: told.append((done, total)),
    )
    wanted = sum(reading.costs.wanted for reading in result.readings.values())
    assert told[-1] == (wanted, wanted)
    assert [done for done, _ in told] == sorted(done for done, _ in told)
    assert [total for _, total in told] == sorted((total for _, total in told), reverse=True)


def host_of():
    """What hosts a reader that answers alike on actors; by value, too."""

    class Reader:
        def __init__(self, spec):
            self.stats, self.choices = ReaderStats(), spec.choices

        def read(self, inputs):
            return [answer("\n".join(texts), self.choices) for texts in inputs]

    class OnActor(Local):
        def load(self, spec):
            return Reader(spec)

    return OnActor


@pytest.mark.usefixtures("ray_session")
@pytest.mark.skipif(device.machine_has_gpu(), reason="this machine has the GPU")
def test_readers_and_pools_that_cannot_be_are_refused_without_any_inputs():
    asked = settings(actors=2)
    check_readers([asked])
    with pytest.raises(InputError, match="no node can host an actor with 1 GPU"):
        check_readers([asked.but(gpus_per_actor=1, dtype="float32")])
    with pytest.raises(InputError, match="no-such-reader"):
        check_readers([asked.but(reader="no-such-reader")])


def test_nodes_are_asked_for_the_folders_that_they_are_to_write_to_and_for_no_others(
    tmp_path, monkeypatch
):
    """While inputs are cut, and before shards are planned; held inputs, and readers here, need no shared folder."""

    class Asked(BaseException):
        pass

    def ask(folders):
        raise Asked([str(folder) for folder in folders])

    monkeypatch.setattr(cluster, "start_ray", lambda plan_bytes=0: None)
    monkeypatch.setattr(cluster, "require_shared", ask)
    asked, out = settings(**FEW, actors=2), folder_at(tmp_path / "out")
    with pytest.raises(Asked) as while_cut:
        check_readers([asked], folders=(out,))
    assert while_cut.value.args == ([str(out)],)
    with pytest.raises(Asked) as before_planned:
        in_shards(tmp_path, asked)
    ((at_work, store),) = before_planned.value.args
    assert Path(at_work).parent.parent == tmp_path / "shards"
    assert store == str(tmp_path / "store-of-shards")
    with pytest.raises(Asked) as held:
        the_whole(tmp_path, asked)
    assert held.value.args == ([],)
    check_readers([asked.but(actors=0)], folders=(out,))


@pytest.mark.usefixtures("ray_session")
@pytest.mark.parametrize("actors", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_shards_on_ray_give_the_figures_of_the_whole(tmp_path, actors):
    """Two CPUs, which the actors could take whole: planning and judging still go on beside them."""
    asked = settings(annotators=("erag", "containment", "judge"), measures="nDCG@6", actors=actors)
    whole = the_whole(tmp_path, asked.but(actors=0))
    assert_same(whole, in_shards(tmp_path, asked, host=host_of()), tmp_path / "shards")


@pytest.mark.usefixtures("ray_session")
@pytest.mark.parametrize("how", [the_whole, in_shards], ids=["whole", "shards"])
def test_an_evaluation_on_ray_keeps_all_that_was_begun_when_it_ends_at_a_bound(tmp_path, how):
    """What two actors were at is in the store, of what none was at there is nothing, and the rest is read later."""
    log = tmp_path / "log"

    class Logging(host_of()):
        def load(self, spec):
            reader = super().load(spec)
            answers = reader.read

            def logged(inputs):
                outputs = answers(inputs)
                with log.open("a") as file:
                    file.write(f"{len(inputs)}\n")
                return outputs

            reader.read = logged
            return reader

    asked = settings(**FEW, actors=2)
    whole = the_whole(tmp_path / "free", asked.but(actors=0))
    run = partial(evaluation_on, how, tmp_path, Logging)
    with pytest.raises(BoundError, match="`max_cost` is 0, which the next LLM calls would pass"):
        run(asked.but(**BOUNDS[1]))
    done = sum(map(int, log.read_text().split()))
    total = whole.readings["reader"].costs.wanted
    assert 0 < done < total
    found = run(asked)
    costs = found.readings["reader"].costs
    assert (costs.reused, costs.done) == (done, total - done)
    assert_frame_equal(sorted_rows(found.query_scores), sorted_rows(whole.query_scores))


def evaluation_on(how, tmp_path, host, asked):
    """An evaluation by readers on the actors of a host, held by this process or in shards."""
    if how is in_shards:
        return in_shards(tmp_path, asked, pairs=40, host=host)
    held, context = (
        InMemoryInputs(read_inputs(made(tmp_path), k=6)),
        Context(store=tmp_path / "s", host=host),
    )
    return evaluate_shards(held, [asked], context).evaluations[0]


@pytest.mark.usefixtures("ray_session")
def test_a_reader_that_is_a_function_reads_shards_on_ray(tmp_path, monkeypatch):
    """It travels by value within what travels by value."""
    monkeypatch.undo()
    reader = ReaderFunction(lambda prompts: [f"a{len(one) % 4}" for one in prompts], "mine")
    asked = settings(**FEW, dtype=None, reader="mine").but(actors=1)
    asked = replace(asked, reader=replace(asked.reader, functions=(reader,)))
    parts = in_shards(tmp_path, asked)
    whole = the_whole(tmp_path, asked.but(actors=0))
    assert_same(whole, parts, tmp_path / "shards")
    assert not list((tmp_path / "shards").rglob("unkept/*/*.parquet"))
