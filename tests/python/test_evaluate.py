import asyncio
import dataclasses
import gc
import logging
import runpy
import subprocess
import sys
import threading
import typing
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import polars as pl
import pytest

import engine
from engine import Reader, ReadError, Result, from_function
from engine.evaluation import evaluate as evaluation
from engine.evaluation.settings import Settings
from engine.inputs.files import InputFiles
from engine.inputs.read import read_inputs
from engine.labels.registry import input_tables, option_classes
from engine.python.options import EvaluateOptions
from engine.reading.function import reader_function
from tests.expected import as_expected, refused

ROOT = Path(__file__).parent.parent.parent
QUERIES = {f"q{i}": {"query": f"question {i}", "answers": ["Ann"]} for i in range(12)}
# d says the answer, but not to every fourth question; e never does.
PASSAGES = {
    **{f"d{i}": {"title": f"D{i}", "text": f"says {'Bo' if i % 4 == 0 else 'Ann'}"} for i in range(12)},
    **{f"e{i}": f"says nothing {i}" for i in range(12)},
}  # fmt: skip
RUNS = {
    "good": {f"q{i}": {f"d{i}": 2.0, f"e{i}": 1.0} for i in range(12)},
    "poor": {f"q{i}": [f"e{i}", f"d{(i + 4) % 12}"] for i in range(12)},
}
OPTIONS = {"k": 2, "measures": "P@1 P@2", "resamples": 0, "progress": False}


def last_word(prompt):
    return prompt.split("\nQuestion")[0].split("says ")[-1].split("\n")[0].strip()


class Counting:
    """A reader that says the last word of the passage next to the question, and counts its prompts."""

    def __init__(self):
        self.prompts = []

    def __call__(self, prompts):
        self.prompts += prompts
        return [last_word(prompt) for prompt in prompts]


def evaluate(tmp_path, reader=None, **options):
    given = {"reader": reader or Counting(), "store": tmp_path / "store", "qrels": None} | OPTIONS
    given |= options
    return engine.evaluate(QUERIES, PASSAGES, RUNS, **given)


def test_figures_are_those_of_the_engine_called_with_tables(tmp_path):
    result = evaluate(tmp_path, annotators=["erag", "containment"])
    # By hand: of "good", d stands first and is useful to 9 of 12 queries; of "poor", it stands second.
    means = {tuple(row[:3]): row[3] for row in result.means.rows()}
    assert means["good", "erag", "P@1"] == pytest.approx(9 / 12)
    assert means["poor", "erag", "P@1"] == 0
    assert means["poor", "erag", "P@2"] == pytest.approx(9 / 24)
    assert means["good", "containment", "P@1"] == pytest.approx(9 / 12)
    assert result.leaderboard()["run"].to_list() == ["good", "poor"]
    # The best passage stands next to the question: where lists are read whole, it is the last one.
    assert result.leaderboard()["end_to_end"].to_list() == [pytest.approx(9 / 12), 0]


def test_the_same_is_found_by_the_functions_below(tmp_path):
    result = evaluate(tmp_path)
    queries = tmp_path / "q.jsonl"
    pl.DataFrame([{"query_id": i, **q} for i, q in QUERIES.items()]).write_ndjson(queries)
    corpus = tmp_path / "c.jsonl"
    rows = [
        {"doc_id": i, **(p if isinstance(p, dict) else {"text": p})} for i, p in PASSAGES.items()
    ]
    pl.DataFrame(rows).fill_null("").write_ndjson(corpus)
    paths = []
    for name in RUNS:
        paths.append(tmp_path / f"{name}.parquet")
        result.evaluation.inputs.runs.filter(run=name).write_parquet(paths[-1])
    files = InputFiles(queries=queries, corpus=corpus, run=tuple(paths))
    reader = reader_function(Counting())
    options = {key: OPTIONS[key] for key in ("k", "measures", "resamples")}
    settings = Settings.of(**options, reader="Counting", functions=(reader,))
    below = evaluation.evaluate(read_inputs(files, k=2), settings, store=tmp_path / "other")
    assert result.labels.equals(below.labels)
    assert result.scores.equals(below.query_scores)
    assert result.correlations.equals(below.statistics.correlations)
    # And from Python, of the same files.
    of_files = engine.evaluate(
        queries, corpus, paths, reader=Counting(), store=tmp_path / "store", **OPTIONS
    )
    assert of_files.labels.equals(result.labels)
    assert of_files.summary["configuration"]["queries"] == str(queries)
    assert result.summary["configuration"]["queries"] is None


def test_reads_are_kept_under_name_and_version_and_else_nowhere(tmp_path):
    asked = []
    for options in (
        {"name": "x", "version": "1"}, {"name": "x", "version": "1"}, {"name": "x", "version": "2"}, {"name": "x"}, {"name": "x"},
    ):  # fmt: skip
        function = Counting()
        evaluate(tmp_path, Reader(function, **options))
        asked.append(len(function.prompts))
    # 12 queries with two passages each, of which "poor" adds none to eight... at most 12 · 4 + 24.
    assert asked[0] == asked[2] == asked[3] == asked[4] > 0
    assert asked[1] == 0


def test_a_note_says_whether_reads_are_kept(tmp_path):
    (note,) = evaluate(tmp_path, Reader(Counting(), name="x")).summary["notes"]["own_readers"]
    as_expected(note["text"])
    summary = evaluate(tmp_path, Reader(Counting(), name="x", version="7")).summary
    (note,) = summary["notes"]["own_readers"]
    as_expected(note["text"])
    reader = summary["reader"]
    assert (reader["name"], reader["version"], reader["reproducible"]) == ("x", "7", False)
    assert [reader[key] for key in ("weights_sha256", "architecture", "dtype")] == [None] * 3


def test_messages_reach_a_function_that_takes_them(tmp_path):
    seen = []

    def chat(chats):
        seen.extend(chats)
        return [last_word(messages[-1]["content"]) for messages in chats]

    result = evaluate(tmp_path, Reader(chat, messages=True))
    assert {message["role"] for messages in seen for message in messages} == {"user"}
    assert result.labels.equals(evaluate(tmp_path).labels)


def test_a_reader_may_be_asynchronous_also_where_an_event_loop_runs(tmp_path):
    loops = set()

    async def ask(prompts):
        loops.add(asyncio.get_running_loop())
        return await asyncio.gather(*(asyncio.sleep(0, last_word(prompt)) for prompt in prompts))

    async def as_in_a_notebook():
        return evaluate(tmp_path, ask)

    plain = evaluate(tmp_path, lambda prompts: [last_word(prompt) for prompt in prompts])
    for result in (evaluate(tmp_path, ask), asyncio.run(as_in_a_notebook())):
        assert result.labels.equals(plain.labels)
    # Clients belong to the loop that they were first used in.
    assert len(loops) == 1

    async def fail(prompts):
        raise OSError("no route")

    with pytest.raises(ReadError, match="no route"):
        evaluate(tmp_path, fail)


def test_metrics_and_annotators_may_be_functions(tmp_path):
    def half(output, references):
        return 0.5 if output in references else 0.25

    def long(query, answers, title, text):
        assert query.startswith("question")
        assert answers == ["Ann"]
        return len(text) > 9

    result = evaluate(tmp_path, metric=half, annotators=("erag", long, from_function("b", long)))
    labels = dict(result.labels.group_by("annotator").agg(pl.col("label").unique().sort()).rows())
    assert labels == {"erag": [0.25, 0.5], "long": [0.0, 1.0], "b": [0.0, 1.0]}
    assert result.summary["configuration"]["metric"] == "half"
    assert evaluate(tmp_path, annotators=long).labels["annotator"].unique().to_list() == ["long"]


def test_another_model_may_be_a_function(tmp_path):
    small, large = Counting(), Counting()
    evaluate(tmp_path, Reader(large, name="large"), erag_reader=Reader(small, name="small"))
    assert len(small.prompts) > 0
    assert all(prompt.count("Passage: ") == 1 for prompt in small.prompts)
    assert all(prompt.count("Passage: ") == 2 for prompt in large.prompts)


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"metric": lambda output, references: 2}, "metric.value"),
        ({"metric": "exact"}, "metric.unknown"),
        ({"annotators": lambda *_: 7}, "annotator.value"),
        ({"annotators": []}, "settings.annotators"),
        ({"reader": lambda prompts: prompts[1:]}, "reader.count"),
        ({"dtype": "float32"}, "settings.function"),
        ({"base_url": "http://localhost"}, "settings.server"),
        ({"qrels": {"q0": {"d0": 1}}}, "settings.annotator"),
        ({"annotators": "qrels"}, "settings.table"),
        ({"annotators": "judge"}, "reader.choices"),
        ({"shard_pairs": -1}, "settings.value"),
        ({"shard_pairs": 9}, "python.tables"),
    ],
)
def test_errors_are_one_line_and_name_what_was_given(tmp_path, options, code):
    with refused(code) as raised:
        evaluate(tmp_path, **options)
    assert "\n" not in str(raised.value)


def in_shards(files, tmp_path, **options):
    given = (files["queries"], files["corpus"], files["run"])
    usual = {"k": 2, "end_to_end": False, "progress": False, "shard_pairs": 2}
    return engine.evaluate(*given, **usual | options, store=tmp_path / "store")


def test_files_are_cut_into_shards_by_the_rule_of_the_command(files, tmp_path):
    held = in_shards(files, tmp_path, annotators="containment", shard_pairs=None)
    cut = in_shards(files, tmp_path, annotators="containment")
    assert "shards" not in held.summary
    assert len(list((tmp_path / "store" / "shards").glob("*/labels/*"))) > 1
    assert sorted(cut.labels.rows()) == sorted(held.labels.rows())
    assert cut.scores.sort(cut.scores.columns).equals(held.scores.sort(held.scores.columns))
    cut.save(tmp_path / "out")
    loaded = engine.Result.load(tmp_path / "out")
    assert sorted(loaded.labels.rows()) == sorted(held.labels.rows())


def test_two_evaluations_at_once_share_no_plans(files, tmp_path):
    """The same one is refused, and another one of the same shards is not."""
    asked = []

    def read(prompts):
        if not asked:
            asked.append(None)
            with refused("files.locked", text=False):
                in_shards(files, tmp_path, reader=reader)
            in_shards(files, tmp_path, reader=reader, measures="P@1")
        return [last_word(prompt) for prompt in prompts]

    reader = engine.Reader(read, "mine", version="1")
    result = in_shards(files, tmp_path, reader=reader)
    assert asked
    assert result.labels.height == 4


def test_shards_of_a_function_are_in_the_store_for_as_long_as_the_result_is(files, tmp_path):
    def length(query, answers, title, text):
        return 1 / len(text)

    def tables():
        store = tmp_path / "store" / "shards"
        return [p for p in store.rglob("*.parquet") if "inputs" not in p.parts]

    result = in_shards(files, tmp_path, annotators=length)
    assert result.labels.height == 4
    assert tables()
    del result
    gc.collect()
    assert not tables()
    assert [path.name for path in (tmp_path / "store" / "shards").iterdir()] == ["inputs"]


def test_the_first_queries_alone_may_be_evaluated(tmp_path):
    result = evaluate(tmp_path, limit=5)
    assert result.summary["counts"]["queries"] == 5
    assert result.summary["counts"]["ignored_queries"] == 0
    assert set(result.labels["query_id"]) == {f"q{i}" for i in range(5)}


def test_an_unknown_option_is_an_error_of_types(tmp_path):
    for option in ({"speed": 3}, {"mesures": "P@1"}):
        with pytest.raises(TypeError) as caught:
            evaluate(tmp_path, **option)
        as_expected(str(caught.value))


def test_editors_know_every_option():
    generator = runpy.run_path(str(ROOT / ".ci/options"))
    assert generator["PLACE"].read_text(encoding="utf-8") == generator["content"](), (
        "run .ci/options"
    )
    hints = typing.get_type_hints(EvaluateOptions)
    given = {"reader", "metric", "annotators", "k"}
    assert hints.keys() - set(input_tables()) == (Settings().flat().keys() - given) | {
        "answers", "outputs", "ignore_identical_ids", "limit", "progress", "store",
        *(field.name for kind in option_classes() for field in dataclasses.fields(kind)),
    }  # fmt: skip
    assert hints["measures"] == str | Sequence[str]
    assert hints["failed_reads"] == Literal["error", "zero", "skip"] | None


def test_a_function_that_actors_cannot_be_given_is_refused_before_any_starts(tmp_path):
    lock = threading.Lock()

    def locked(prompts):
        with lock:
            return [last_word(prompt) for prompt in prompts]

    assert evaluate(tmp_path, locked).labels.height > 0
    with refused("function.unpicklable"):
        evaluate(tmp_path, locked, actors=2)


def test_functions_of_one_name_are_refused(tmp_path):
    with refused("reader.ambiguous"):
        evaluate(tmp_path, Counting(), erag_reader=Counting())


def test_importing_is_quick_and_loads_nothing_heavy():
    code = (
        "import sys; import engine;"
        "print([m for m in ('polars', 'numpy', 'torch', 'ray', 'rich') if m in sys.modules]);"
        "print(all(getattr(engine, name) for name in engine.__all__));"
        "print([m for m in ('torch', 'ray', 'transformers', 'openai', 'matplotlib') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    light, found, heavy = done.stdout.splitlines()
    # Nothing beyond the standard library: what takes time is imported when it is first used.
    assert (light, found, heavy) == ("[]", "True", "[]")


def test_the_face_is_declared_once():
    assert set(engine.__all__) == set(engine._PLACES)
    assert set(engine.__all__) <= set(dir(engine))
    with pytest.raises(AttributeError) as caught:
        engine.evaluat  # noqa: B018
    as_expected(str(caught.value))
    assert engine.Result is Result


def test_nothing_is_printed_or_written_unless_asked(tmp_path, monkeypatch, capfd, caplog):
    monkeypatch.chdir(tmp_path)
    caplog.set_level(logging.INFO, "engine")
    evaluate(tmp_path)
    assert capfd.readouterr() == ("", "")
    assert list(tmp_path.iterdir()) == []
