"""Whatever an evaluation has in it, shards of a few queries give what one shard gives."""

import gc
import json
import weakref
from dataclasses import replace

import polars as pl
import pytest
from polars.testing import assert_frame_equal

from engine.evaluation.context import Context
from engine.evaluation.evaluate import evaluate, evaluate_shards
from engine.evaluation.inputs import InputFiles, read_inputs
from engine.evaluation.partition import partition
from engine.evaluation.shards import Held
from engine.evaluation.study import Sweep, study_shards, vary
from engine.labels import from_function
from engine.messages.errors import InputError, ReadError
from engine.reading import readers
from engine.reading.function import ReaderFunction
from engine.scoring.own import metric_from_function
from engine.sources.io.folders import folder_at
from tests.evaluation.test_stream import (
    Scripted,
    made,
    scripted,
    settings,
    sorted_rows,
)
from tests.reading.remote.server import Behaviour, Said, prompt_of, serving

__all__ = ["scripted"]  # a fixture
FEW = {"annotators": ("erag",), "measures": "P@3"}
PAIRS = 24  # of a shard, by rank: three shards


def both(tmp_path, files, conditions, **more):
    """A study of one shard, and of at least three."""
    k = max(condition.k for condition in conditions)
    held = study_shards(
        Held(read_inputs(files, k=k)), conditions, Context(store=tmp_path / "held-store", **more)
    )
    cut = partition(files, folder_at(tmp_path / "inputs"), k=k, pairs_per_shard=PAIRS * k)
    assert len(cut.shards) >= 3
    parts = study_shards(
        cut, conditions,
        Context(store=tmp_path / "store", **more), folder_at(tmp_path / "shards"),
    )  # fmt: skip
    return held, parts


def told(notes):
    return [(note.code, note.amount, note.text, note.about) for note in notes]


def assert_same(held, parts, tmp_path):
    for condition, whole in held.evaluations.items():
        part = parts.evaluations[condition]
        for name in ("query_scores", "downstream", "means", "end_to_end", "undefined"):
            assert_frame_equal(sorted_rows(getattr(whole, name)), sorted_rows(getattr(part, name)))
        folder = tmp_path / "shards" / part.parts.name
        for name in ("labels", "reads"):
            tables = [pl.read_parquet(path) for path in sorted((folder / name).iterdir())]
            assert len(tables) >= 3
            # What requests took is never the same twice.
            compared = [
                sorted_rows(table.drop("seconds", strict=False).unique())
                for table in (getattr(whole, name), pl.concat(tables))
            ]
            assert_frame_equal(*compared)
        for name in ("correlations", "comparisons", "systems", "run_pairs"):
            assert_frame_equal(getattr(whole.statistics, name), getattr(part.statistics, name))
        assert whole.statistics.choice == part.statistics.choice
        assert told(whole.notes) == told(part.notes)
        assert whole.passages == part.passages
        assert part.further.keys() <= whole.further.keys()
        for role, reading in whole.readings.items():
            of_part = part.readings[role].costs
            assert (of_part.wanted, of_part.failed) == (reading.costs.wanted, reading.costs.failed)
    assert told(held.notes) == told(parts.notes)
    assert [(c.wanted, c.done) for c in held.costs.values()] == [
        (c.wanted, c.done) for c in parts.costs.values()
    ]
    for name in ("conditions", "readers", "reader_comparisons"):
        assert_frame_equal(getattr(held, name), getattr(parts, name))


def one(asked):
    return vary(asked, Sweep())


def test_a_study_of_readers_and_cutoffs(tmp_path, tiny_t5):
    asked = settings(**{**FEW, "k": 4, "measures": "P@2 nDCG@4"})
    conditions = vary(asked, Sweep(readers=("bundled", str(tiny_t5)), k_sweep=(4, 2)))
    held, parts = both(tmp_path, made(tmp_path), conditions)
    assert len(held.evaluations) == 4
    assert_same(held, parts, tmp_path)
    asked_before = len(Scripted.asked)
    again = study_shards(
        partition(made(tmp_path), folder_at(tmp_path / "inputs"), k=4, pairs_per_shard=PAIRS * 4),
        conditions,
        Context(store=tmp_path / "store"),
        folder_at(tmp_path / "shards"),
    )
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
    held, parts = both(tmp_path, files, one(settings(**FEW)))
    assert held.evaluations[held.main].passages > 20
    assert_same(held, parts, tmp_path)


def test_a_repeatability_check(tmp_path):
    asked = settings(**FEW, certify=30)
    held, parts = both(tmp_path, made(tmp_path), one(asked))
    assert_same(held, parts, tmp_path)
    for study in (held, parts):
        (certificate,) = study.evaluations[study.main].certificates.values()
        assert (certificate.repeated, certificate.changed_outputs) == (30, 0)
    assert "shards" in certificate.sha256


def test_a_reader_behind_an_api(tmp_path):
    behaviour = Behaviour(lambda body: Said(f"a{len(prompt_of(body)) % 4}", prompt_tokens=10))
    with serving(behaviour) as url:
        asked = settings(**FEW, dtype=None, actors=None, reader="openai:m", base_url=url)
        held, parts = both(tmp_path, made(tmp_path), one(asked))
    assert_same(held, parts, tmp_path)


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
        inputs = read_inputs(made(tmp_path), k=6)
        cut = partition(made(tmp_path), folder_at(tmp_path / "inputs"), k=6, pairs_per_shard=60)
        assert len(cut.shards) >= 6
        asked_for = []
        for shards, folder in ((Held(inputs), None), (cut, folder_at(tmp_path / "shards"))):
            before = len(behaviour.prompts)
            with pytest.raises(raised, match=f"`max_tokens` is {bound:,}"):
                evaluate_shards(shards, [asked], Context(store=tmp_path / f"{folder}"), folder)
            asked_for.append(len(behaviour.prompts) - before)
    assert all(count in prompts for count in asked_for), asked_for


def test_reads_that_fail_alike_end_an_evaluation_before_any_was_done_alone(tmp_path):
    """All of one shard's reads fail, of which there are more than sixteen; others were done before."""
    asked = settings(**FEW, dtype=None, actors=None, reader="openai:m", failed_reads="zero")
    cut = partition(made(tmp_path), folder_at(tmp_path / "inputs"), k=6, pairs_per_shard=60)
    bad = tuple(f"Question: {query}" for query in cut.read(1).queries["query"])

    def refuse(body):
        return "no" if prompt_of(body).endswith(bad) else None

    with serving(Behaviour(lambda body: Said("a1"), refuse=refuse)) as url:
        (evaluation,) = evaluate_shards(
            cut, [asked.but(base_url=url)], Context(store=tmp_path / "store"),
            folder_at(tmp_path / "shards"),
        ).evaluations  # fmt: skip
        costs = evaluation.readings["reader"].costs
        assert 16 < costs.failed < costs.wanted


def test_a_metric_of_the_users(tmp_path):
    metric = metric_from_function(lambda output, answers: float(len(output) == 2) / 2)
    held, parts = both(tmp_path, made(tmp_path), one(settings(**FEW, metric=metric)))
    assert_same(held, parts, tmp_path)


def test_an_annotator_of_the_users(tmp_path):
    def short(query, answers, title, text):
        return 1 / len(text)

    asked = settings(annotators=("erag", from_function("short", short)), measures="nDCG@6")
    held, parts = both(tmp_path, made(tmp_path), one(asked))
    assert_same(held, parts, tmp_path)
    # Nobody knows whether a function does what it did: nothing that it made is taken up.
    again = evaluate_shards(
        partition(made(tmp_path), folder_at(tmp_path / "inputs"), k=6, pairs_per_shard=PAIRS * 6),
        [asked],
        Context(store=tmp_path / "store"),
        folder_at(tmp_path / "shards"),
    )
    assert again.evaluations[0].parts.name != parts.evaluations[parts.main].parts.name


def test_a_reader_without_a_version(tmp_path, monkeypatch):
    monkeypatch.undo()
    calls = []

    def answer(prompts):
        calls.extend(prompts)
        return [f"a{len(prompt) % 4}" for prompt in prompts]

    reader = ReaderFunction(answer, "mine")
    asked = settings(**FEW, dtype=None, reader="mine")
    asked = replace(asked, reader=replace(asked.reader, functions=(reader,)))
    held, parts = both(tmp_path, made(tmp_path), one(asked))
    assert_same(held, parts, tmp_path)
    assert len(calls) == 2 * held.evaluations[held.main].readings["reader"].costs.wanted
    assert not list((tmp_path / "store").rglob("*.parquet"))
    assert not list((tmp_path / "shards").rglob("unkept/**/*.parquet"))


def test_a_program_of_the_users(tmp_path):
    from tests.conftest import ScriptedReader

    executor = ScriptedReader(lambda prompt: f"a{len(prompt) % 4}")
    held, parts = both(tmp_path, made(tmp_path), one(settings(**FEW)), executor=executor)
    assert_same(held, parts, tmp_path)


def test_figures_over_all_queries(tmp_path):
    asked = settings(annotators=("dual", "erag"), measures="nDCG@6")
    held, parts = both(tmp_path, made(tmp_path), one(asked))
    assert_same(held, parts, tmp_path)
    whole, part = (study.evaluations[study.main].further_table("dual") for study in (held, parts))
    assert_frame_equal(whole, part)


def test_one_shard_in_a_folder_is_what_is_held(tmp_path):
    files, asked = made(tmp_path), settings(**FEW)
    whole = evaluate(read_inputs(files, k=6), asked, store=tmp_path / "one")
    cut = partition(files, folder_at(tmp_path / "inputs"), k=6)
    assert len(cut.shards) == 1
    (part,) = evaluate_shards(
        cut, [asked], Context(store=tmp_path / "two"), folder_at(tmp_path / "shards")
    ).evaluations
    assert_frame_equal(whole.query_scores, part.query_scores)
    assert readers.load is Scripted


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
        cut = partition(files, folder_at(tmp_path / "inputs"), k=6, pairs_per_shard=PAIRS * 6)
        context = Context(store=tmp_path / "another")
        shards = folder_at(tmp_path / "shards")
        (alone,) = evaluate_shards(cut, [of_one], context, shards).evaluations
        assert alone.parts.name == parts.evaluations[condition].parts.name
        expected = parts.evaluations[condition].readings["reader"].costs
        assert alone.readings["reader"].costs.wanted == expected.wanted
    assert len(Scripted.asked) == read


def test_a_repeatability_check_needs_no_store_of_shards_that_are_scored(tmp_path):
    asked = settings(**FEW)
    both(tmp_path, made(tmp_path), one(asked))
    cut = partition(made(tmp_path), folder_at(tmp_path / "inputs"), k=6, pairs_per_shard=PAIRS * 6)
    context = Context(store=tmp_path / "another")
    (evaluation,) = evaluate_shards(
        cut, [asked.but(certify=10)], context, folder_at(tmp_path / "shards")
    ).evaluations
    assert evaluation.certificates["reader"].repeated == 10


def test_requests_are_counted_over_all_shards(tmp_path):
    behaviour = Behaviour(lambda body: Said("a1", prompt_tokens=10))
    with serving(behaviour) as url:
        asked = settings(**FEW, dtype=None, actors=None, reader="openai:m", base_url=url)
        held, parts = both(tmp_path, made(tmp_path), one(asked))
    costs = [study.evaluations[study.main].readings["reader"].costs for study in (held, parts)]
    assert costs[0].computed_tokens == costs[1].computed_tokens == 10 * costs[0].done > 0
