"""Evaluations of the same files, held in this process and cut into shards, and what makes their figures the same."""

import hashlib
import json
import random
from dataclasses import replace
from functools import partial
from typing import ClassVar

import polars as pl
import pytest
from polars.testing import assert_frame_equal

from engine import tables
from engine.evaluation.evaluate import evaluate_shards
from engine.evaluation.jobs import Context
from engine.evaluation.settings import Settings
from engine.inputs.files import InputFiles
from engine.inputs.partition import partition
from engine.inputs.read import read_inputs
from engine.inputs.shards import InMemoryInputs
from engine.reading import readers
from engine.reading.protocol import ReaderStats, ReadOutput
from engine.sources.io.folders import folder_at
from tests.tables import table_files


def answering():
    """What answers, within a function: by value, since workers lack this module."""

    def answer(text, choices):
        digest = hashlib.sha256(text.encode()).digest()
        if choices:
            return ReadOutput(choices[0], 5, 1, False, confidence=digest[0] / 255)
        return ReadOutput(f"a{digest[0] % 4}", 5, 1, digest[1] < 20)

    return answer


class Scripted:
    """Answers, chooses and fails by what it is given alone."""

    asked: ClassVar[list[str]] = []

    def __init__(self, spec, fails=()):
        self.stats, self.choices, self.fails = ReaderStats(), spec.choices, fails

    def read(self, inputs):
        return [self.one("\n".join(texts)) for texts in inputs]

    def one(self, text):
        Scripted.asked.append(text)
        if any(part in text for part in self.fails):
            raise ValueError("no such token")
        return answering()(text, self.choices)


@pytest.fixture(autouse=True)
def scripted(monkeypatch):
    load, Scripted.asked = readers.load, []
    monkeypatch.setattr(readers, "load", lambda spec: (load if spec.function else Scripted)(spec))


DRAWN = {"probability": 0.5, "design": {"strata": {"all": 30}, "queries": 40}}
ASKED = {"answers": ["a", "b"], "runs": [["one"], ["three"]], "drawn": DRAWN}


def made(
    tmp_path, queries=40, runs=("one", "two", "three"), cluster=None, *, passages=60, chance=None
):
    """Files with equal queries, queries without results, judgments of some, and shared passages; what is there stays."""
    chance = chance or random.Random(1)
    corpus = [(f"d{d}", f"T{d % 9}", f"text {d} a{d % 4}", f"A{d % 9}") for d in range(passages)]
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
        for rank, d in enumerate(chance.sample(range(passages), chance.randint(1, 6)), start=1)
    ]
    judged = [
        # Of q1 nothing was judged.
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
    shown = [("q1", ["d1", "d2"], "d1"), ("q5", ["d1", "d3"], None)]
    rows = [dict(zip(("query_id", "shown", "best"), row, strict=True)) for row in shown]
    for n, best in enumerate(["a", None, "b", "a", ["a", "b"]]):
        rows.append({"query_id": f"q{n}", "best": best, **ASKED})
    preferences.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return InputFiles(
        queries=write("queries", asked, tables.QUERIES),
        corpus=write("corpus", corpus, tables.CORPUS),
        run=tuple(write(run, [r for r in listed if r[-1] == run], tables.RUNS) for run in runs),
        tables=table_files(qrels=write("qrels", judged, tables.QRELS), preferences=preferences),
        cluster=cluster,
    )


def edit(path, change):
    """Write a table again, changed by a function."""
    change(pl.read_parquet(path)).write_parquet(path)


def edited(name, *every, **columns):
    """A function that gives the files with other columns in one of them, of runs in the first."""

    def change(files):
        path = getattr(files, name, None) or files.tables[name].path
        path = path[0] if name == "run" else path
        edit(path, lambda table: table.with_columns(*every, **columns))
        return files

    return change


# Judgments of two queries: one between whole numbers, the other above 1.
GRADES = pl.when(query_id="q1").then(0.5).when(query_id="q2").then(2.0).otherwise(0.0)


def settings(functions=(), **more):
    usual = {"k": 6, "measures": "P@3", "resamples": 100, "dtype": "float32", "actors": 0}
    asked = Settings.of(**{**usual, **more})
    return replace(asked, reader=replace(asked.reader, functions=functions))


def evaluated(
    tmp_path, conditions, pairs=120, files=None, *, store="shards-store", inputs="inputs", **context
):
    """Files evaluated under some conditions, in shards of so many pairs; held where these are 0."""
    k, how = max(one.ranking.k for one in conditions), Context(store=tmp_path / store, **context)
    files = files or made(tmp_path, cluster=conditions[0].bootstrap.cluster)
    if not pairs:
        return evaluate_shards(InMemoryInputs(read_inputs(files, k=k)), conditions, how)
    cut = partition(files, folder_at(tmp_path / inputs), k=k, pairs_per_shard=pairs)
    return evaluate_shards(cut, conditions, how, folder_at(tmp_path / "shards"))


def the_whole(tmp_path, asked, files=None, *, store="store", **context):
    return evaluated(tmp_path, [asked], 0, files, store=store, **context)[0][0]


def in_shards(tmp_path, asked, pairs=120, files=None, **more):
    return evaluated(tmp_path, [asked], pairs, files, **more)[0][0]


def compared(tmp_path, conditions, pairs=120, files=None, **context):
    """What is evaluated in this process, and in shards, which have the figures of the former."""
    held = evaluated(tmp_path, conditions, 0, files, store="store", **context)
    parts = evaluated(tmp_path, conditions, pairs, files, **context)
    for whole, part in zip(held[0], parts[0], strict=True):
        assert_same(whole, part, tmp_path / "shards")
    counts = [[(job.costs.wanted, job.costs.done) for job in one[1]] for one in (held, parts)]
    assert counts[0] == counts[1]
    return held, parts


def sorted_rows(frame):
    """A table in an order of its own, lists as text."""
    lists = [name for name, kind in frame.schema.items() if kind == pl.List]
    flat = frame.with_columns(pl.col(name).list.join("\x00") for name in lists)
    return flat.sort(flat.columns)


def all_shards(folder, result, name):
    paths = sorted(folder.glob(f"{result.parts.name}/{name}/*"))
    return pl.concat([pl.read_parquet(path) for path in paths], how="diagonal")


def assert_same(whole, parts, folder, costs=("wanted", "done", "failed")):
    exact = partial(assert_frame_equal, check_exact=True)
    for name in ("query_scores", "downstream", "means", "end_to_end", "undefined"):
        exact(sorted_rows(getattr(whole, name)), sorted_rows(getattr(parts, name)))
    for name in ("labels", "traces", "reads"):
        # What requests took is never the same twice.
        table = getattr(whole, name).drop("seconds", strict=False).unique()
        of_parts = all_shards(folder, parts, name).select(table.columns).unique()
        assert_frame_equal(sorted_rows(table), sorted_rows(of_parts))
    for name in ("correlations", "comparisons", "systems", "run_pairs"):
        exact(getattr(whole.statistics, name), getattr(parts.statistics, name))
    exact(whole.clusters, parts.clusters)
    assert parts.further.keys() <= whole.further.keys()
    for name, table in whole.further.items():
        if name in parts.further:
            exact(table, parts.further[name])
        else:
            assert_frame_equal(sorted_rows(table), sorted_rows(all_shards(folder, parts, name)))
    assert repr(whole.statistics.choice) == repr(parts.statistics.choice)  # NaN is no NaN
    assert told(whole.notes) == told(parts.notes)
    for role, reading in whole.readings.items():
        for cost in costs:
            assert getattr(parts.readings[role].costs, cost) == getattr(reading.costs, cost)
    for name in ("queries", "passages", "relevant"):
        assert getattr(whole, name) == getattr(parts, name)


def shards_of(tmp_path, result):
    return len(list((tmp_path / "shards" / result.parts.name / "manifests").iterdir()))


def told(notes):
    return [(note.code, note.amount, note.text, note.about) for note in notes]
