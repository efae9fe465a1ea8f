"""Whatever an evaluation has in it, shards of a few queries give what one shard gives."""

import gc
import json
import weakref
from dataclasses import replace

import polars as pl
import pytest
from polars.testing import assert_frame_equal

from engine.evaluation.evaluate import evaluate_shards
from engine.evaluation.jobs import Context
from engine.evaluation.study import Sweep, study_of, vary
from engine.inputs.files import InputFiles
from engine.inputs.partition import partition
from engine.inputs.read import read_inputs
from engine.inputs.shards import InMemoryInputs
from engine.labels import from_function
from engine.messages.errors import InputError, ReadError
from engine.reading import readers
from engine.reading.function import ReaderFunction
from engine.scoring.own import metric_from_function
from engine.sources.io.folders import folder_at
from tests.conftest import ScriptedReader
from tests.evaluation.test_stream import Scripted, made, scripted, settings, told
from tests.evaluation.test_stream import assert_same as same_figures
from tests.reading.remote.server import Behaviour, Said, prompt_of, serving

__all__ = ["scripted"]  # a fixture
FEW = {"annotators": ("erag",), "measures": "P@3"}
PAIRS = 24  # of a shard, by rank: three shards


def studied(shards, conditions, context, folder=None):
    return study_of(conditions, evaluate_shards(shards, list(conditions.values()), context, folder))


def both(tmp_path, files, conditions, **more):
    """A study of one shard, and of at least three."""
    k = max(condition.k for condition in conditions)
    held = studied(
        InMemoryInputs(read_inputs(files, k=k)),
        conditions,
        Context(store=tmp_path / "held-store", **more),
    )
    cut = partition(files, folder_at(tmp_path / "inputs"), k=k, pairs_per_shard=PAIRS * k)
    assert len(cut.shards) >= 3
    parts = studied(
        cut, conditions,
        Context(store=tmp_path / "store", **more), folder_at(tmp_path / "shards"),
    )  # fmt: skip
    return held, parts


def cut_of(tmp_path, k=6, pairs=None):
    """The usual inputs in shards."""
    inputs = folder_at(tmp_path / "inputs")
    return partition(made(tmp_path), inputs, k=k, pairs_per_shard=pairs or PAIRS * k)


def evaluated(tmp_path, shards, asked, store="store"):
    context, folder = Context(store=tmp_path / store), folder_at(tmp_path / "shards")
    (evaluation,) = evaluate_shards(shards, [asked], context, folder).evaluations
    return evaluation


def compared(tmp_path, asked, files=None, **more):
    """A study of one condition, of one shard and of several, whose figures are the same."""
    held, parts = both(tmp_path, files or made(tmp_path), vary(asked, Sweep()), **more)
    assert_same(held, parts, tmp_path)
    return held, parts


def assert_same(held, parts, tmp_path):
    for condition, whole in held.evaluations.items():
        part, folder = parts.evaluations[condition], tmp_path / "shards"
        # What requests took is never the same twice.
        same_figures(whole, part, folder, costs=("wanted", "failed"), drop=("seconds",))
        for name in ("labels", "reads"):
            assert len(list((folder / part.parts.name / name).iterdir())) >= 3
        assert whole.passages == part.passages
        assert part.further.keys() <= whole.further.keys()
    assert told(held.notes) == told(parts.notes)
    assert [(c.wanted, c.done) for c in held.costs.values()] == [
        (c.wanted, c.done) for c in parts.costs.values()
    ]
    for name in ("conditions", "readers", "reader_comparisons"):
        assert_frame_equal(getattr(held, name), getattr(parts, name))


def test_a_study_of_readers_and_cutoffs(tmp_path, tiny_t5):
    asked = settings(**{**FEW, "k": 4, "measures": "P@2 nDCG@4"})
    conditions = vary(asked, Sweep(readers=("bundled", str(tiny_t5)), k_sweep=(4, 2)))
    held, parts = both(tmp_path, made(tmp_path), conditions)
    assert len(held.evaluations) == 4
    assert_same(held, parts, tmp_path)
    asked_before = len(Scripted.asked)
    context, folder = Context(store=tmp_path / "store"), folder_at(tmp_path / "shards")
    again = studied(cut_of(tmp_path, k=4), conditions, context, folder)
    assert len(Scripted.asked) == asked_before
    assert_frame_equal(again.conditions, parts.conditions)


def test_runs_that_carry_their_texts(tmp_path):
    files = made(tmp_path)
    texts = pl.read_parquet(files.corpus).select("doc_id", "text")
    paths = []
    for path in files.run:
        rows = pl.read_parquet(path).join(texts, on="doc_id", maintain_order="left")
        paths.append(path.with_suffix(".jsonl"))
        paths[-1].write_text("".join(json.dumps(row) + "\n" for row in rows.to_dicts()))
    files = InputFiles(queries=files.queries, run=tuple(paths))
    held, _ = compared(tmp_path, settings(**FEW), files)
    assert held.evaluations[held.main].passages > 20


def test_a_reader_behind_an_api_whose_requests_are_counted_over_all_shards(tmp_path):
    behaviour = Behaviour(lambda body: Said(f"a{len(prompt_of(body)) % 4}", prompt_tokens=10))
    with serving(behaviour) as url:
        asked = settings(**FEW, dtype=None, actors=None, reader="openai:m", base_url=url)
        studies = compared(tmp_path, asked)
    costs = [study.evaluations[study.main].readings["reader"].costs for study in studies]
    assert costs[0].computed_tokens == costs[1].computed_tokens == 10 * costs[0].done > 0


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
def test_a_bound_on_tokens_holds_for_all_shards_together(tmp_path, bound, raised, prompts):
    behaviour = Behaviour(lambda body: Said("a1", prompt_tokens=40))
    with serving(behaviour) as url:
        asked = settings(
            **FEW, dtype=None, actors=None, reader="openai:m", base_url=url, max_tokens=bound
        )
        inputs, cut = read_inputs(made(tmp_path), k=6), cut_of(tmp_path, pairs=60)
        assert len(cut.shards) >= 6
        asked_for = []
        for shards, folder in (
            (InMemoryInputs(inputs), None),
            (cut, folder_at(tmp_path / "shards")),
        ):
            before = len(behaviour.prompts)
            with pytest.raises(raised, match=f"`max_tokens` is {bound:,}"):
                evaluate_shards(shards, [asked], Context(store=tmp_path / f"{folder}"), folder)
            asked_for.append(len(behaviour.prompts) - before)
    assert all(count in prompts for count in asked_for), asked_for


def test_reads_that_fail_alike_end_an_evaluation_before_any_was_done_alone(tmp_path):
    """All of one shard's reads fail, of which there are more than sixteen; others were done before."""
    asked = settings(**FEW, dtype=None, actors=None, reader="openai:m", failed_reads="zero")
    cut = cut_of(tmp_path, pairs=60)
    bad = tuple(f"Question: {query}" for query in cut.read(1).queries["query"])

    def refuse(body):
        return "no" if prompt_of(body).endswith(bad) else None

    with serving(Behaviour(lambda body: Said("a1"), refuse=refuse)) as url:
        evaluation = evaluated(tmp_path, cut, asked.but(base_url=url))
        costs = evaluation.readings["reader"].costs
        assert 16 < costs.failed < costs.wanted


def test_a_metric_of_the_users(tmp_path):
    metric = metric_from_function(lambda output, answers: float(len(output) == 2) / 2)
    compared(tmp_path, settings(**FEW, metric=metric))


def test_an_annotator_of_the_users(tmp_path):
    def short(query, answers, title, text):
        return 1 / len(text)

    asked = settings(annotators=("erag", from_function("short", short)), measures="nDCG@6")
    _, parts = compared(tmp_path, asked)
    # Nobody knows whether a function does what it did: nothing that it made is taken up.
    again = evaluated(tmp_path, cut_of(tmp_path), asked)
    assert again.parts.name != parts.evaluations[parts.main].parts.name


def test_a_reader_without_a_version(tmp_path, monkeypatch):
    monkeypatch.undo()
    calls = []

    def answer(prompts):
        calls.extend(prompts)
        return [f"a{len(prompt) % 4}" for prompt in prompts]

    reader = ReaderFunction(answer, "mine")
    asked = settings(**FEW, dtype=None, reader="mine")
    asked = replace(asked, reader=replace(asked.reader, functions=(reader,)))
    held, _ = compared(tmp_path, asked)
    assert len(calls) == 2 * held.evaluations[held.main].readings["reader"].costs.wanted
    assert not list((tmp_path / "store").rglob("*.parquet"))
    assert not list((tmp_path / "shards").rglob("unkept/**/*.parquet"))


def test_a_program_of_the_users(tmp_path):
    executor = ScriptedReader(lambda prompt: f"a{len(prompt) % 4}")
    compared(tmp_path, settings(**FEW), executor=executor)


def test_readers_of_a_model_are_let_go_before_the_next_are_loaded(tmp_path, monkeypatch, tiny_t5):
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
    asked = settings(**FEW)
    conditions = vary(asked, Sweep(readers=("bundled", str(tiny_t5))))
    held, parts = both(tmp_path, made(tmp_path), conditions)
    assert_same(held, parts, tmp_path)


def test_shards_that_a_study_scored_are_taken_up_by_one_of_its_readers(tmp_path, tiny_t5):
    files, asked = made(tmp_path), settings(**FEW)
    conditions = vary(asked, Sweep(readers=("bundled", str(tiny_t5))))
    _, parts = both(tmp_path, files, conditions)
    read = len(Scripted.asked)
    for condition, of_one in conditions.items():
        alone = evaluated(tmp_path, cut_of(tmp_path), of_one, "another")
        assert alone.parts.name == parts.evaluations[condition].parts.name
        expected = parts.evaluations[condition].readings["reader"].costs
        assert alone.readings["reader"].costs.wanted == expected.wanted
    assert len(Scripted.asked) == read
