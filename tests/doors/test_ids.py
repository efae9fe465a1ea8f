"""Ids of queries: a position never stands for one, whatever door the queries and the other inputs come by."""

import json

import pandas as pd
import polars as pl
import pytest

from engine.evaluation.settings import Settings
from engine.python.input_forms import UserInputs, inputs_of
from engine.sources.queries.read import read_query_set
from tests.expected import as_expected, refused

TOWNS = {"Aruba": "Oranjestad", "Peru": "Lima", "Chile": "Santiago", "Ecuador": "Quito"}
PASSAGES = {
    f"d{number}": f"{town} is the capital." for number, town in enumerate(TOWNS.values(), 1)
}
SETTINGS = Settings.of(annotators=("containment",), end_to_end=False, resamples=0)


def asked(*order, **columns):
    """Records of questions, the n-th of which passage ``dn`` answers, in another order, with further columns."""
    towns = [*TOWNS.items()]
    return [
        {**{name: values[at] for name, values in columns.items()},
         "question": f"capital of {towns[n - 1][0]}?", "answers": towns[n - 1][1]}
        for at, n in enumerate(order)
    ]  # fmt: skip


def run_of(*ids):
    """A list for each id: the first id is that of the question about the first passage."""
    return {one: {f"d{number}": 1.0} for number, one in enumerate(ids, 1)}


def written(path, records):
    if path.suffix == ".csv":
        pd.DataFrame(records).to_csv(path, index=False)
    elif path.suffix == ".parquet":
        pl.DataFrame(records).write_parquet(path)
    elif path.suffix == ".json":
        path.write_text(json.dumps({"version": 1, "queries": records}, indent=2))
    else:
        path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


class Rows(list):
    """As a Hugging Face data set: something that gives dictionaries."""


DOORS = {
    "CSV": lambda folder, records, name="q": written(folder / f"{name}.csv", records),
    "JSONL": lambda folder, records, name="q": written(folder / f"{name}.jsonl", records),
    "Parquet": lambda folder, records, name="q": written(folder / f"{name}.parquet", records),
    "document": lambda folder, records, name="q": written(folder / f"{name}.json", records),
    "pandas": lambda folder, records, name="q": pd.DataFrame(records),
    "pandas, named index": lambda folder, records, name="q": pd.DataFrame(records).set_index(next(iter(records[0]))),
    "Polars": lambda folder, records, name="q": pl.DataFrame(records),
    "Arrow": lambda folder, records, name="q": pl.DataFrame(records).to_arrow(),
    "document in memory": lambda folder, records, name="q": {"queries": records},
    "records": lambda folder, records, name="q": records,
    "rows": lambda folder, records, name="q": Rows(records),
}  # fmt: skip


def trec(folder, run):
    (folder / "r.trec").write_text(
        "".join(f"{q} Q0 {d} 1 1.0 mine\n" for q, docs in run.items() for d in docs)
    )
    return folder / "r.trec"


def right(inputs):
    """Whether each query has the passage that answers it, and the note on numbers."""
    rows = inputs.runs.join(inputs.queries, on="query_id").join(inputs.corpus, on="doc_id")
    held = [row["answers"][0] in row["text"] for row in rows.to_dicts()]
    noted = {note.code: note.text for note in inputs.notes if note.is_shown}
    return len(held), all(held), noted.get("numbered_queries")


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("file", [True, False])
@pytest.mark.parametrize(
    ("records", "run", "named"),
    [
        (asked(1, 2, 3, 4, about=[*"abcd"]), run_of(*"1234"), ""),
        (asked(1, 2, 3, 4, rank=[4, 2, 1, 3]), run_of(*"1234"), ""),
        (asked(1, 2, 3, 4, ID=[1, 2, 3, 4]), run_of(*"1234"), ""),
        (asked(1, 2, 3, 4, idx=[0, 1, 2, 3]), run_of(*"1234"), ""),
        (asked(1, 2, 3, 4, article_id=[*"3214"]), run_of(*"1234"), ""),
        (asked(1, 2, 3, 4, about=[*"abcd"]), run_of(*"0123"), "'0'"),
        (asked(1, 2, 3, 4, idx=[0, 1, 2, 3]), run_of(*"0123"), "'idx'"),
        (asked(3, 1, 4, 2, ID=[3, 1, 4, 2]), run_of(*"1234"), "'ID'"),
        (asked(3, 1, 4, 2, number=[3, 1, 4, 2]), run_of(*"1234"), "'number'"),
        (asked(3, 1, 4, 2, Id=[3, 1, 4, 2], queryNo=[2, 1, 3, 4]), run_of(*"1234"), "'Id' or 'queryNo'"),
        (asked(3, 1, example_id=["c", "a"]), run_of(*"abcd"), "'example_id'"),
        (asked(3, 1, qId=["x7", "2"]), run_of("2", "x5", "x7"), "'qId'"),
        (asked(1, 2, what=["u-1", "u-2"]), run_of("u-1", "u-2"), "'what'"),
        (asked(2, 4, about=[*"ab"]), run_of(*"1234"), "'"),  # filtered after it was retrieved
    ],
)  # fmt: skip
def test_queries_without_ids_beside_runs(tmp_path, door, file, records, run, named):
    queries = DOORS[door](tmp_path, records)
    given = UserInputs(queries, PASSAGES, trec(tmp_path, run) if file else run)
    if named:
        with refused("queries.unidentified", text=door == "JSONL") as caught:
            inputs_of(given, SETTINGS)
        assert named in str(caught.value)
    else:
        number, held, note = right(inputs_of(given, SETTINGS))
        assert (number, held) == (4, True)
        assert "(as '1')" in note
        if door == "JSONL":
            as_expected(note)


@pytest.mark.parametrize("door", DOORS)
def test_known_ids_and_texts_of_queries_stay_as_they_are(tmp_path, door):
    named = asked(3, 1, 4, 2, qid=[3, 1, 4, 2])
    assert right(inputs_of(UserInputs(DOORS[door](tmp_path, named), PASSAGES, run_of(*"1234")), SETTINGS)) == (4, True, None)  # fmt: skip
    by_text = run_of(*(f"capital of {country}?" for country in TOWNS))
    queries = DOORS[door](tmp_path, asked(3, 1, 4, 2, ID=[*"abcd"]))
    assert right(inputs_of(UserInputs(queries, PASSAGES, by_text), SETTINGS)) == (4, True, None)


def test_runs_of_retrievers_have_the_engines_own_numbers():
    def search(text):
        return [f"d{1 + [*TOWNS].index(text[11:-1])}"]

    queries = asked(3, 1, 4, 2, ID=[3, 1, 4, 2])
    assert right(inputs_of(UserInputs(queries, PASSAGES, search), SETTINGS)) == (4, True, None)
    assert right(inputs_of(UserInputs(queries, PASSAGES, {"a": search, "b": search}), SETTINGS))[1]


@pytest.mark.parametrize("table", ["qrels", "preferences"])
@pytest.mark.parametrize(("judged", "fits"), [("1", True), ("0", False), ("x", False)])
def test_judgments_beside_queries_without_ids(table, judged, fits):
    given = {
        "qrels": {judged: {"d1": 1}, "2": {"d1": 0}},
        "preferences": [
            {"query_id": one, "shown": ["d1", "d2"], "best": "d1"} for one in (judged, "2")
        ],
    }
    by_text = {f"capital of {country}?": {"d1": 1.0, "d2": 0.5} for country in TOWNS}
    annotator = {"qrels": "qrels", "preferences": "preference"}[table]
    settings = Settings.of(annotators=(annotator,), end_to_end=False, resamples=0)
    queries = asked(1, 2, 3, 4, key=[*"xyzw"])
    given = UserInputs(queries, PASSAGES, by_text, None, {table: given[table]})
    if fits:
        (note,) = (n for n in inputs_of(given, settings).notes if n.code == "numbered_queries")
        assert note.amount == 4
        as_expected(note.text)
    else:
        with refused("queries.unidentified"):
            inputs_of(given, settings)


def without(records, *names):
    return [{key: value for key, value in one.items() if key not in names} for one in records]


@pytest.mark.parametrize("door", ["CSV", "JSONL", "Parquet", "document"])
@pytest.mark.parametrize(
    ("queries", "answers", "found"),
    [
        # Known by their texts, in whatever order; by ids where both have these.
        (asked(1, 2, 3, id=[*"abc"]), asked(3, 1, 2), [1, 2, 3]),
        (asked(1, 2, 3), asked(3, 1, 2), [1, 2, 3]),
        (asked(1, 2, 3), asked(3, 1, 2, id=[*"cab"]), [1, 2, 3]),
        (asked(1, 2, 3, id=[*"abc"]), asked(3, 1, 2, id=[*"xyz"]), [1, 2, 3]),
        (asked(1, 2, 3, id=[*"abc"]), asked(1, 2, 3, id=[*"cab"]), [2, 3, 1]),
        (asked(1, 1), [*asked(1), *asked(1)[:0]], [1, 1]),
        (asked(1, 1, 2), [asked(1)[0], asked(1)[0] | {"answers": "Lima"}], [1, 2, None]),
        # Without texts, by numbers: a list beside a list.
        (asked(1, 2, 3), without(asked(2, 1, 3), "question"), [2, 1, 3]),
        (asked(1, 2), without(asked(2, 1, id=[1, 2]), "question"), [2, 1]),
        (asked(1, 2, uid=[*"ab"]), without(asked(2, 1, id=[*"ba"]), "question"), "queries.unidentified"),
        (asked(1, 2), without(asked(2, 1, id=[0, 1]), "question"), "queries.unidentified"),
        (asked(1, 2), without(asked(1, 2, 3), "question"), "queries.unidentified"),
        (asked(1, 2, id=[*"12"]), without(asked(2, 1), "question"), "queries.unnumbered"),
        (asked(1), [asked(1)[0], asked(1)[0] | {"answers": "x"}, *asked(2)], "queries.differ"),
        (asked(1, 2), asked(3), "inputs.strangers"),
    ],
)  # fmt: skip
def test_answers_are_joined_by_texts_where_ids_lack(tmp_path, door, queries, answers, found):
    queries = DOORS[door](tmp_path, without(queries, "answers"))
    answers = DOORS["JSONL" if door == "document" else door](tmp_path, answers, "a")
    if isinstance(found, str):
        with refused(found):
            read_query_set(queries, answers=answers)
        return
    table = read_query_set(queries, answers=answers, need_answers=False).table
    towns = [None, *TOWNS.values()]
    assert table["answers"].to_list() == [[towns[n]] if n else [] for n in found]


@pytest.mark.parametrize("door", [door for door in DOORS if "index" not in door])
@pytest.mark.parametrize(
    "name", ["ground_truth", "ground_truths", "expected_output", "reference", "golden_answers"]
)
def test_an_answer_beside_a_reference_is_a_response(tmp_path, door, name):
    texts = ["Lima", "Quito"]
    gold = [[text] if name.endswith("s") and door != "CSV" else text for text in texts]
    records = [{"question": q, "answer": "Oslo", name: g} for q, g in zip("ab", gold, strict=True)]
    answered = inputs_of(
        UserInputs(DOORS[door](tmp_path, records), PASSAGES, run_of("a", "b")), SETTINGS
    )
    assert answered.queries["answers"].to_list() == [["Lima"], ["Quito"]]
    records[1][name] = None  # nor is it one where the reference lacks
    with refused("queries.no-answers", text=door == "JSONL") as caught:
        inputs_of(UserInputs(DOORS[door](tmp_path, records), PASSAGES, run_of("a", "b")), SETTINGS)
    assert f"answer, {name};" in str(caught.value)


@pytest.mark.parametrize("indent", [None, 2])
def test_one_document_with_queries_is_read(tmp_path, indent):
    own = [
        {"text": q, "relevant_docs": [{"doc": "x", "relevance": 3}], "answers": [a]}
        for q, a in ("ab", "cd")
    ]
    path = tmp_path / "golden.json"
    path.write_text(json.dumps({"name": "blog", "queries": own}, indent=indent))
    assert read_query_set(path).table.rows() == [("1", "a", ["b"], []), ("2", "c", ["d"], [])]
    path.write_text(json.dumps({"queries": [own[0] | {"id": "q7"}]}, indent=indent))
    assert read_query_set(path).table["query_id"].to_list() == ["q7"]
    path.write_text(json.dumps({"id": 1, "query": "a", "queries": own, "answers": ["b"]}))
    assert read_query_set(path).table.height == 1  # a line with parts
