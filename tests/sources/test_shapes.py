"""Values of the wrong shape: one rule, whatever door they come by."""

import csv
import json

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from engine.evaluation.settings import Settings
from engine.inputs.read import WRITTEN_PASSAGES
from engine.messages.extras import is_installed
from engine.python.input_forms import UserInputs, inputs_of
from engine.sources.fields import texts_of, written
from engine.sources.queries.read import read_query_set
from engine.sources.runs.read import read_run
from tests.expected import refused

PASSAGES = {"d1": {"text": "Lima", "article_id": "a1"}}


def by_python(table):
    """The queries table, and the notes, of what is given from Python."""
    settings = Settings.of(annotators=("containment",), resamples=0)
    inputs = inputs_of(UserInputs(table, PASSAGES, {"q": ["d1"]}), settings)
    return inputs.queries, inputs.notes


def by_file(write):
    def read(tmp_path, answers, provenance):
        path = write(tmp_path, answers, provenance)
        found = read_query_set(path)
        return found.table, found.notes

    return read


def _json_lines(tmp_path, answers, provenance):
    record = {"id": "q", "query": "x", "answers": answers, "provenance": provenance}
    (tmp_path / "q.jsonl").write_text(json.dumps(record) + "\n")
    return tmp_path / "q.jsonl"


def _kilt(tmp_path, answers, provenance):
    output = [{"answer": answers, "provenance": [{"wikipedia_id": provenance}]}]
    (tmp_path / "k.jsonl").write_text(json.dumps({"id": "q", "input": "x", "output": output}))
    return tmp_path / "k.jsonl"


def _squad(tmp_path, answers, provenance):
    question = {"id": "q", "question": "x", "answers": [{"text": answers}]}
    paragraphs = [{"context": "c", "qas": [question]}]
    content = {"data": [{"title": provenance, "paragraphs": paragraphs}]}
    (tmp_path / "s.json").write_text(json.dumps(content))
    return tmp_path / "s.json"


def _csv(tmp_path, answers, provenance):
    with (tmp_path / "q.csv").open("w", newline="") as file:
        rows = [["id", "query", "answers", "provenance"], ["q", "x", answers, provenance]]
        csv.writer(file).writerows(rows)
    return tmp_path / "q.csv"


def _parquet(tmp_path, answers, provenance):
    table = pl.DataFrame(
        {"query_id": ["q"], "query": "x", "answers": answers, "provenance": provenance}
    )
    table.write_parquet(tmp_path / "q.parquet")
    return tmp_path / "q.parquet"


def _own_parquet(tmp_path, answers, provenance):
    return _parquet(tmp_path, [[answers]], [[provenance]])


def _record(answers, provenance):
    return {"query_id": "q", "query": "x", "answers": answers, "provenance": provenance}


DOORS = {
    "JSON lines": by_file(_json_lines),
    "KILT": by_file(_kilt),
    "SQuAD": by_file(_squad),
    "CSV": by_file(_csv),
    "Parquet of texts": by_file(_parquet),
    "Parquet of lists": by_file(_own_parquet),
    "dictionary": lambda _, a, p: by_python({"q": _record(a, p)}),
    "records": lambda _, a, p: by_python([_record([a], [p])]),
    "pandas": lambda _, a, p: by_python(pd.DataFrame([_record(a, p)])),
    "Polars": lambda _, a, p: by_python(pl.DataFrame([_record(a, p)])),
    "Arrow": lambda _, a, p: by_python(pa.Table.from_pylist([_record(a, p)])),
}


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize(
    ("written", "items"),
    [
        ("['Lima']", ["Lima"]),
        ('["Lima"]', ["Lima"]),
        (str(["Lima", "Ciudad de \"los Reyes'"]), ["Lima", "Ciudad de \"los Reyes'"]),
        ("['Lima'\n 'Callao']", ["Lima", "Callao"]),  # as NumPy prints an array
        ("['Per\\xfa', None, nan, 1899]", ["Perú", "1899"]),
        (json.dumps(["Perú", None, 2.5]), ["Perú", "2.5"]),
    ],
)
def test_a_text_that_is_a_list_of_texts_is_that_list_whatever_the_door(
    tmp_path, door, written, items
):
    table, notes = DOORS[door](tmp_path, written, "['a1', 'a2']")
    assert table.select("answers", "provenance").row(0) == (items, ["a1", "a2"])
    noted = {note.code: note.amount for note in notes}
    # In CSV a list is written so, and nothing else is there to be noted.
    assert noted["written_lists"] == (0 if door == "CSV" else 2)


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("text", ["[sic]", "[1899]", "[a", "[Verse 1] a"])
def test_brackets_alone_make_no_list_whatever_the_door(tmp_path, door, text):
    table, _ = DOORS[door](tmp_path, text, "a1")
    assert table["answers"].to_list() == [[text]]


@pytest.mark.parametrize("door", DOORS)
def test_what_only_looks_like_a_list_or_like_nothing_stays_a_text(tmp_path, door):
    table, notes = DOORS[door](tmp_path, "NaN", "a[1]")
    assert table.select("answers", "provenance").row(0) == (["NaN"], ["a[1]"])
    noted = {note.code: note.amount for note in notes}
    assert (noted["written_lists"], noted["answers_like_nothing"]) == (0, 1)


@pytest.mark.parametrize(
    "text",
    ["", "[", "[sic]", "['a'", "['a'] b", "[['a']]", "[{}]", "['a' b]", "['\\N{DIGIT ONE}']",
     "['a\nb']", "[" * 10_000 + "]" * 10_000, "[" + "9" * 9000 + "]", "[007]", "['a'; 'b']",
     "[1899]", "[0, 1]", "[true]", "[2.5 1e3]", "(a, b)"],
)  # fmt: skip
def test_other_texts_in_brackets_are_no_lists(text):
    assert (found := written(text)) is None or texts_of(found) is None


@pytest.mark.parametrize("value", [1899, True, 2.5, [1899], {"x": 1}, [["Lima"]]])
def test_numbers_are_no_answers_and_the_message_shows_them(tmp_path, value):
    for door in ("JSON lines", "dictionary", "pandas", "KILT"):
        with refused("queries.answers"):
            DOORS[door](tmp_path, value, "a1")


@pytest.mark.parametrize("value", [None, float("nan"), pd.NA, np.nan, [None], [float("nan")], []])
def test_a_missing_value_is_no_answer(tmp_path, value):
    for door in ("dictionary", "pandas"):
        with refused("queries.no-answers"):
            DOORS[door](tmp_path, value, "a1")


@pytest.mark.parametrize("key", ["contexts", "retrieved_contexts", "results"])
def test_a_written_list_of_passages_is_that_list(tmp_path, key):
    record = {"query_id": "q", key: "['a passage', 'another one']"}
    (tmp_path / "r.jsonl").write_text(json.dumps(record))
    pd.DataFrame([record]).to_parquet(tmp_path / "r.parquet")
    settings = Settings.of(annotators=("containment",), resamples=0)
    queries = [{"query_id": "q", "query": "x", "answers": "a"}]
    (tmp_path / "q.jsonl").write_text(json.dumps(queries[0]))
    files = [tmp_path / "r.jsonl", tmp_path / "r.parquet"]
    doors = [UserInputs(queries, None, runs) for runs in (pd.DataFrame([record]), [record], *files)]
    doors += [UserInputs(tmp_path / "q.jsonl", None, path) for path in files]
    (tmp_path / "c.jsonl").write_text(
        "".join(json.dumps({"id": t, "text": t}) + "\n" for t in ("a passage", "another one"))
    )
    doors += [UserInputs(tmp_path / "q.jsonl", tmp_path / "c.jsonl", path) for path in files]
    for door in doors:
        inputs = inputs_of(door, settings)
        assert inputs.corpus["text"].to_list() == ["a passage", "another one"]
        assert {n.code: n.amount for n in inputs.notes}[WRITTEN_PASSAGES] == 1


def test_a_text_where_a_list_of_passages_is_wanted_is_named(tmp_path):
    record = {"query_id": "q", "contexts": "a passage"}
    (tmp_path / "r.jsonl").write_text(json.dumps(record))
    settings = Settings.of(annotators=("containment",), resamples=0)
    queries = [{"query_id": "q", "query": "x", "answers": "a"}]
    for read in (
        lambda: read_run(tmp_path / "r.jsonl"),
        lambda: inputs_of(UserInputs(queries, None, [record]), settings),
    ):
        with refused("runs.passage"):
            read()


def test_the_folder_that_an_uninstalled_package_leaves_is_no_package(tmp_path, monkeypatch):
    (tmp_path / "left_behind").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    assert is_installed("json")
    assert not is_installed("left_behind")


@pytest.mark.parametrize(
    ("name", "given", "code"),
    [
        ("qrels", {"q": 5}, "qrels.labels"),
        ("qrels", {"q": {"d1": "good"}}, "qrels.label"),
        ("qrels", {"q": {"d1": None}}, "qrels.label"),
        ("qrels", pd.DataFrame([("q", "d1", 1), ("q", "d1", 0)], columns=["query_id", "doc_id", "label"]), "qrels.twice"),
        ("qrels", pd.DataFrame([("q", None, 1)], columns=["query_id", "doc_id", "label"]), "qrels.id"),
        ("qrels", pl.DataFrame({"query_id": ["q"], "doc_id": ["d1"]}), "qrels.label"),
        ("qrels", {}, "qrels.none"),
        ("preferences", [{"query_id": "q", "shown": "d1", "best": "d1"}], "qrels.shown"),
        ("preferences", [{"query_id": "q", "shown": ["d1", "d2"], "best": 5}], "qrels.unshown"),
        ("runs", {"q": {"d1": 10**400}}, "runs.dictionary"),
        ("runs", {"q": ["\ud800"]}, "runs.surrogate"),
        ("runs", [{"query_id": "q", "doc_id": "d1", "rank": 10**30}], "runs.rank"),
        ("runs", pd.DataFrame({"query_id": ["q"] * 2, "doc_id": ["d1", "d2"], "rank": pd.array([None, 1], dtype="Int64")}), "runs.mixed"),
        ("runs", pd.DataFrame({"query_id": ["q"], "doc_id": ["d1"], "rank": [1.5]}), "runs.rank"),
    ],
)  # fmt: skip
def test_judgments_and_runs_from_python_are_refused_as_files_are(name, given, code):
    annotator = {"preferences": "preference"}.get(name, "qrels")
    tables = {"qrels": {"q": {"d1": 1}}} if name == "runs" else {name: given}
    settings = Settings.of(annotators=(annotator,), end_to_end=False, resamples=0)
    queries, runs = {"q": _record("a", "a1")}, given if name == "runs" else {"q": ["d1"]}
    with refused(code):
        inputs_of(UserInputs(queries, PASSAGES | {"d2": "x"}, runs, None, tables), settings)
