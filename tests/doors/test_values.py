"""One reading of a value through all doors: files of any layout, frames, records and dictionaries."""

import csv
import json
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pytest

from engine.evaluation.settings import Settings
from engine.inputs.files import InputFiles
from engine.inputs.read import read_inputs
from engine.messages.errors import InputError
from engine.python.input_forms import UserInputs, inputs_of
from engine.report.summary import input_files
from engine.sources.queries.read import read_query_set
from engine.sources.runs.read import read_run, read_runs
from tests.expected import as_expected, refused

SETTINGS = Settings.of(annotators=("containment",), resamples=0)
# Written by ``to_csv``, ``to_json`` and ``to_parquet`` of datasets 5.2.0 (pandas 3.1.1, NumPy 2.4.6), with the features of
# the data sets on the hub: rajpurkar/squad_v2, mandarjoshi/trivia_qa, google-research-datasets/nq_open, hotpotqa/hotpot_qa; and
# ``structs``, whose answers are a list of objects.
DATA_SETS = Path(__file__).parent / "data_sets"
PASSAGES = {"d1": "Lima", "d2": "Callao", "d3": "nothing"}
QUERIES = {"1": {"query": "x", "answers": ["Lima"]}, "2": {"query": "y", "answers": ["Callao"]}}


def by_python(queries=QUERIES, passages=PASSAGES, runs=None, **more):
    given = UserInputs(
        queries,
        passages,
        runs if runs is not None else {q: ["d1"] for q in ("1", "q0", "q1")},
        **more,
    )
    return inputs_of(given, SETTINGS)


def _file(name, write):
    def read(tmp_path, records):
        write(tmp_path / name, records)
        return read_query_set(tmp_path / name).table

    return read


def _separated(delimiter):
    def write(path, records):
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(records[0]), delimiter=delimiter)
            writer.writeheader()
            writer.writerows(records)

    return write


def _lines(path, records):
    path.write_text("".join(json.dumps(record) + "\n" for record in records))


QUERY_DOORS = {
    "CSV": _file("q.csv", _separated(",")),
    "TSV": _file("q.tsv", _separated("\t")),
    "JSONL": _file("q.jsonl", _lines),
    "JSON": _file("q.json", lambda path, records: path.write_text(json.dumps(records))),
    "Parquet": _file("q.parquet", lambda path, records: pl.DataFrame(records).write_parquet(path)),
    "pandas": lambda _, records: by_python(pd.DataFrame(records)).queries,
    "Polars": lambda _, records: by_python(pl.DataFrame(records)).queries,
    "records": lambda _, records: by_python(records).queries,
    "dictionary": lambda _, records: by_python({r["id"]: r for r in records}).queries,
    "answers": lambda _, records: by_python(
        {r["id"]: r["query"] for r in records}, answers={r["id"]: r["answers"] for r in records}
    ).queries,
}  # fmt: skip
WRITTEN = {
    "Lima|Callao": ["Lima", "Callao"],
    '["Lima", "Callao|b"]': ["Lima", "Callao|b"],
    "('Lima', 'Callao')": ["Lima", "Callao"],
    "{'Lima', \"O'Higgins\"}": ["Lima", "O'Higgins"],
    "frozenset({'Lima'})": ["Lima"],
    "array(['Lima', 'Callao'], dtype='<U6')": ["Lima", "Callao"],
    "{'text': array(['Lima',\n       'Callao'], dtype=object), 'answer_start': array([1, 2])}": ["Lima", "Callao"],
    "{'value': 'Lima', 'aliases': ('Callao',), 'score': nan}": ["Lima", "Callao"],
    '{"text": ["Lima"]}': ["Lima"],
    "[{'text': 'Lima', 'answer_start': 1}\n {'text': 'Callao', 'answer_start': -2}]": ["Lima", "Callao"],
    # These are texts.
    "('Lima')": ["('Lima')"],
    "(Lima, Callao)": ["(Lima, Callao)"],
    "[[1, 2], [3, 4]]": ["[[1, 2], [3, 4]]"],
    "{1, 2}": ["{1, 2}"],
    "f(['Lima'])": ["f(['Lima'])"],
}  # fmt: skip


@pytest.mark.parametrize("door", QUERY_DOORS)
def test_answers_that_are_written_as_a_text_are_read_alike(tmp_path, door):
    found = QUERY_DOORS[door](
        tmp_path,
        [{"id": f"q{n}", "query": "x", "answers": text} for n, text in enumerate(WRITTEN)],
    )
    assert found["answers"].to_list() == list(WRITTEN.values())


@pytest.mark.parametrize("door", QUERY_DOORS)
@pytest.mark.parametrize(
    "text", ["['Lima' 'Callao' ... 'x']", "{'text': array(['Lima'", "array([1899])", "{'a': 'b'}"]
)
def test_a_text_that_only_begins_as_a_collection_is_refused(tmp_path, door, text):
    with refused("queries.answers"):
        QUERY_DOORS[door](tmp_path, [{"id": "q1", "query": "x", "answers": text}])


@pytest.mark.parametrize("name", ["squad", "trivia_qa", "nq_open", "hotpot_qa", "structs"])
def test_data_sets_read_alike_as_datasets_writes_them(tmp_path, name):
    path = DATA_SETS / f"{name}.jsonl"
    records = [json.loads(line) for line in path.read_text().splitlines()]
    nested = read_query_set(path)
    fields = [r.get("answers", r.get("answer")) for r in records]
    texts = [
        [field] if isinstance(field, str)
        else [part["text"] for part in field if isinstance(part, dict)] or field if isinstance(field, list)
        else field["text"] if "text" in field
        else list(dict.fromkeys([field["value"], *field["aliases"]]))
        for field in fields
    ]  # fmt: skip
    assert nested.table["answers"].to_list() == [answers for answers in texts if answers]
    assert nested.unanswerable == (name == "squad")
    (tmp_path / "q.json").write_text(json.dumps(records))
    frame = pd.read_csv(DATA_SETS / f"{name}.csv", dtype=str)
    frame.to_csv(tmp_path / "q.tsv", sep="\t", index=False)
    files = [DATA_SETS / f"{name}.{kind}" for kind in ("csv", "parquet")]
    for file in (*files, tmp_path / "q.json", tmp_path / "q.tsv"):
        assert read_query_set(file).table.equals(nested.table), file
    ids = nested.table["query_id"].to_list()
    for given in (frame, pl.read_parquet(files[1]), pd.read_parquet(files[1]), records):
        table = by_python(given, runs={ids[0]: ["d1"]}).queries.drop("cluster")
        assert table.equals(nested.table), type(given)


PASSAGE_ROWS = [
    {"id": "d1", "text": "", "contents": "Lima"},
    {"id": "d2", "text": None, "contents": "Callao"},
    {"id": "d3", "text": "", "contents": ""},
]


def _corpus(name, write):
    def read(tmp_path):
        write(tmp_path / name)
        (tmp_path / "q.jsonl").write_text('{"id": "1", "query": "x", "answers": ["Lima"]}\n')
        (tmp_path / "r.json").write_text('{"1": ["d1", "d2", "d3"]}')
        files = InputFiles(
            queries=tmp_path / "q.jsonl", corpus=tmp_path / name, run=(tmp_path / "r.json",)
        )
        return read_inputs(files, k=3)

    return read


@pytest.mark.parametrize(
    "door",
    [
        _corpus("c.csv", lambda path: pd.DataFrame(PASSAGE_ROWS).to_csv(path, index=False)),
        _corpus("c.jsonl", lambda path: _lines(path, PASSAGE_ROWS)),
        _corpus("c.parquet", lambda path: pl.DataFrame(PASSAGE_ROWS).write_parquet(path)),
        lambda _: by_python(passages=PASSAGE_ROWS, runs={"1": ["d1", "d2", "d3"]}),
        lambda _: by_python(passages=pd.DataFrame(PASSAGE_ROWS), runs={"1": ["d1", "d2", "d3"]}),
        lambda _: by_python(passages={r["id"]: r for r in PASSAGE_ROWS}, runs={"1": ["d1", "d2", "d3"]}),
        lambda _: by_python(passages=None, runs={"1": PASSAGE_ROWS}),
    ],
)  # fmt: skip
def test_the_first_text_that_is_not_empty_counts(tmp_path, door):
    corpus = door(tmp_path).corpus
    assert dict(corpus.select("doc_id", "text").rows()) == {"d1": "Lima", "d2": "Callao", "d3": ""}


@pytest.mark.parametrize(
    "given",
    [
        {"queries": {1: QUERIES["1"], "1": QUERIES["2"]}},
        {"passages": {1: "Lima", "1": "x"}},
        {"runs": {1: ["d1"], "1": ["d2"]}},
        {"runs": {"1": {1: 9.0, "1": 1.0}}},
        {"runs": {"bm25": {"1": {True: 9.0, "True": 1.0}}}},
        {"runs": {1.0: {"d1": 9.0}, "1.0": {"d2": 1.0}}},
        {"queries": {"1": "x"}, "answers": {1: ["Lima"], "1": ["x"]}},
        {"tables": {"qrels": {1: {"d1": 1}, "1": {"d2": 1}}}},
        {"tables": {"qrels": {"1": {1: 1, "1": 0}}}},
        {"queries": pd.DataFrame([["1", "x"], ["2", "y"]], columns=[1, "1"])},
    ],
)
def test_two_keys_that_become_one_are_refused(given):
    with refused("table.key"):
        by_python(**given)


ROWS = [
    {"query_id": "1", "doc_id": "d3", "score": 1.0},
    {"query_id": "1", "doc_id": "d1", "score": 9.0},
    {"query_id": "2", "doc_id": "d3", "score": 1.0},
    {"query_id": "2", "doc_id": "d2", "score": 9.0},
]
BEST_FIRST = [("1", "d1"), ("1", "d3"), ("2", "d2"), ("2", "d3")]
AS_THEY_STAND = [("1", "d3"), ("1", "d1"), ("2", "d3"), ("2", "d2")]


def _by_file(name, write):
    def read(tmp_path, rows):
        write(tmp_path / name, rows)
        files = {"q.jsonl": [{"id": q, **r} for q, r in QUERIES.items()]}
        files["c.jsonl"] = [{"id": d, "text": text} for d, text in PASSAGES.items()]
        for file, records in files.items():
            _lines(tmp_path / file, records)
        paths = InputFiles(
            queries=tmp_path / "q.jsonl", corpus=tmp_path / "c.jsonl", run=(tmp_path / name,)
        )
        return read_inputs(paths, k=2)

    return read


ROW_DOORS = {
    "JSONL": _by_file("r.jsonl", _lines),
    "Parquet": _by_file("r.parquet", lambda path, rows: pl.DataFrame(rows).write_parquet(path)),
    "pandas": lambda _, rows: by_python(runs=pd.DataFrame(rows)),
    "Polars": lambda _, rows: by_python(runs=pl.DataFrame(rows)),
    "records": lambda _, rows: by_python(runs=rows),
    "groupby": lambda _, rows: by_python(runs=dict(list(pd.DataFrame(rows).groupby("query_id")))),
    "groupby of a list": lambda _, rows: by_python(runs=dict(list(pd.DataFrame(rows).groupby(["query_id"])))),
    "records of groupby": lambda _, rows: by_python(
        runs={q: of.to_dict("records") for q, of in pd.DataFrame(rows).groupby("query_id")}
    ),
    "JSON by query": _by_file(
        "r.json",
        lambda path, rows: path.write_text(
            json.dumps({q: [r for r in rows if r["query_id"] == q] for q in ("1", "2")})
        ),
    ),
}  # fmt: skip


@pytest.mark.parametrize("door", ROW_DOORS)
@pytest.mark.parametrize(
    "column", ["score", "Score", "similarity", "bm25_score", "relevance_score"]
)
def test_scores_are_used_whatever_their_column_is_called(tmp_path, door, column):
    rows = [{"query_id": r["query_id"], "doc_id": r["doc_id"], column: r["score"]} for r in ROWS]
    texts = [{name: str(value) for name, value in row.items()} for row in rows]
    for given in (rows, texts):
        inputs = ROW_DOORS[door](tmp_path, given)
        assert inputs.runs.select("query_id", "doc_id").rows() == BEST_FIRST
    assert len(inputs.run_names) == 1
    assert not [note for note in inputs.notes if note.code == "unranked_rows"]


@pytest.mark.parametrize("door", ROW_DOORS)
@pytest.mark.parametrize("columns", [("distance",), ("bm25_score", "dense_score"), ("weight",)])
def test_numbers_that_may_be_no_scores_are_named_and_rows_stay_as_they_stand(
    tmp_path, door, columns
):
    rows = [
        {"query_id": r["query_id"], "doc_id": r["doc_id"], **dict.fromkeys(columns, r["score"])}
        for r in ROWS
    ]
    inputs = ROW_DOORS[door](tmp_path, rows)
    assert inputs.runs.select("query_id", "doc_id").rows() == AS_THEY_STAND
    (note,) = (note for note in inputs.notes if note.code == "unranked_rows")
    assert note.amount == 4
    as_expected(note.text)


def test_rows_under_names_that_are_not_their_queries_are_runs():
    runs = by_python(runs={"1": ROWS, "2": ROWS}).runs
    assert runs["run"].unique(maintain_order=True).to_list() == ["1", "2"]
    frames = by_python(runs={"1": pd.DataFrame(ROWS), "b": pl.DataFrame(ROWS)}).runs
    assert frames["run"].unique(maintain_order=True).to_list() == ["1", "b"]


@pytest.mark.parametrize(
    "runs",
    [
        {"bm25.k1": {"1": {"d3": 1.0, "d1": 9.0}}, "dense": {"1": {"d2": 0.5}}},
        {"bm25.k1": {"1": ["d1", "d3"]}, "dense": {"1": ["d2"]}},
        {"bm25.k1": {"1": ROWS[:2]}, "dense": {"1": [{"id": "d2"}]}},
        {"dense": {"1": {"d2": 0.5}}},
    ],
)
def test_several_runs_in_a_json_file_are_read_as_from_python(tmp_path, runs):
    write = _by_file("runs.json", lambda path, given: path.write_text(json.dumps(given)))
    from_file, from_python = write(tmp_path, runs), by_python(runs=runs)
    assert from_file.run_names == from_python.run_names == tuple(runs)
    assert from_file.runs.equals(from_python.runs)
    assert by_python(runs=tmp_path / "runs.json").runs.equals(from_python.runs)
    assert read_runs([tmp_path / "runs.json"])["run"].unique(maintain_order=True).to_list() == list(
        runs
    )


def test_numpy_arrays_of_ids_are_lists_of_queries():
    assert by_python(runs={"1": np.array(["d1", "d2"])}).runs["doc_id"].to_list() == ["d1", "d2"]


@pytest.mark.parametrize("place", ["q.tsv", "c.tsv"])
def test_a_quoted_field_of_a_tsv_that_takes_in_rows_is_refused(tmp_path, place):
    (tmp_path / place).write_text('id\ttext\tanswers\n1\t"Open\tLima\n2\tclose"\tCallao\n3\tx\ty\n')
    read = read_query_set
    if place == "c.tsv":
        read = lambda path: by_python(passages=path)  # noqa: E731
    with pytest.raises(InputError) as caught:
        read(tmp_path / place)
    assert (str(caught.value.path), caught.value.line) == (str(tmp_path / place), 2)
    as_expected(str(caught.value))


def test_a_trec_run_may_begin_with_comments_and_the_audit_keeps_them(tmp_path):
    rows = "1 Q0 d1 1 2.0 m\n#2 Q0 d2 1 2.0 m\n"
    path = tmp_path / "r.trec"
    path.write_text(
        f"# ir_metadata.start\n# method: a b 1.0 d\n#\n#   k1: 0.9\n# ir_metadata.end\n\n{rows}"
    )
    assert read_run(path).select("query_id", "doc_id").rows() == [("#2", "d2"), ("1", "d1")]
    (file,) = input_files({"runs": [str(path)]})
    assert file["header"] == ["method: a b 1.0 d", "k1: 0.9"]
    path.write_text("\ufeff# a\n" + "1 Q0 d1 1 x m\n")
    with refused("runs.score"):
        read_run(path)
    path.write_text(rows + "# a comment below\n")
    with refused("runs.columns"):
        read_run(path)
    path.write_text("# k: v\n" + "".join(f"1 Q0 d{n} 1 {n}.0 m\n" for n in range(5000)))
    assert read_run(path).height == 5000
