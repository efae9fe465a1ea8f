"""Ids of two inputs that do not fit: said by every door, in one line where nothing fits, else as a count."""

import json

import polars as pl
import pytest

from engine.evaluation.inputs import InputFiles, read_inputs
from engine.evaluation.partition import partition
from engine.evaluation.settings import Settings
from engine.messages.errors import InputError
from engine.python.input_forms import Given, inputs_of
from engine.sources.io.folders import folder_at

QUERIES = [
    {"query_id": "q1", "query": "Zoos help", "answers": ["yes"], "provenance": ["z1", "z9"]},
    {"query_id": "q2", "query": "Taxes help", "answers": ["no"], "provenance": []},
]
PASSAGES = [
    {"doc_id": "q1", "title": "", "text": "Zoos help ", "article_id": "z1"},
    {"doc_id": "q2", "title": "Taxes", "text": "help", "article_id": "t"},
    {"doc_id": "c1", "title": "", "text": "Zoos harm", "article_id": "z1"},
    {"doc_id": "c2", "title": "", "text": "Taxes harm", "article_id": "t"},
    {"doc_id": "c3", "title": "", "text": "nobody lists it", "article_id": "n"},
]
RUN = {"q1": {"q1": 3.0, "c1": 2.0, "c2": 1.0}, "q2": {"q2": 2.0, "c2": 1.0}}
QRELS = {"q1": {"c1": 1, "c3": 0}, "q2": {"c2": 1}}


def files_of(folder, given, k=2):
    """The same inputs as files."""

    def write(name, rows):
        if rows is None:
            return None
        (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
        return folder / name

    run, answers = given["runs"], given.get("answers")
    if given["passages"] is None:
        run = {q: [{"id": d, "text": t} for d, t in listed.items()] for q, listed in run.items()}
    return InputFiles(
        queries=write("queries.jsonl", given["queries"]),
        corpus=write("corpus.jsonl", given["passages"]),
        run=(write("run.json", [run]),),
        tables={"qrels": write("qrels.json", [given["qrels"]])},
        answers=write("a.jsonl", answers and [{"id": q, "answers": a} for q, a in answers.items()]),
        ignore_identical_ids=given.get("ignore", False),
        need_provenance=True,
    )


def by_files(folder, given, k=2):
    inputs = read_inputs(files_of(folder, given), k=k)
    return inputs.runs, inputs.notes


def by_shards(folder, given, k=2):
    cut = partition(files_of(folder, given), folder_at(folder / "cut"), k=k, pairs_per_shard=1)
    runs = pl.concat([cut.read(shard.number).runs for shard in cut.shards])
    return runs, cut.notes


def by_python(folder, given, k=2):
    settings = Settings.of(k=k, annotators=("qrels", "provenance"), resamples=0, end_to_end=False)
    runs = given["runs"]
    if given["passages"] is None:
        runs = [
            {"query_id": q, "doc_id": d, "text": t}
            for q, listed in runs.items()
            for d, t in listed.items()
        ]
    tables, ignored = {"qrels": given["qrels"]}, given.get("ignore", False)
    every = (given["queries"], given["passages"], runs, given.get("answers"), tables)
    inputs = inputs_of(Given(*every, ignore_identical_ids=ignored), settings)
    return inputs.runs, inputs.notes


@pytest.fixture(params=[by_files, by_shards, by_python])
def door(request):
    return request.param


GOOD = {"queries": QUERIES, "passages": PASSAGES, "runs": RUN, "qrels": QRELS}


def amounts(notes):
    return {note.code: note.amount for note in notes if note.amount}


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"qrels": {"x": {"c1": 1}}}, ["judges none of the 2 queries", "(it has 'x', they have 'q1')"]),
        ({"qrels": {"q1": {"x": 1, "y": 0}}}, ["judges no document of ", "(it has 'x', they have 'q1')"]),
        ({"runs": {"x": {"c1": 1.0}}}, ["lists none of the 2 queries", "(it has 'x', they have 'q1')"]),
        ({"answers": {"x": ["yes"]}}, ["has answers to none of the 2 queries", "'x', they have 'q1'"]),
        (
            {"queries": [{**QUERIES[0], "provenance": ["690"]}, QUERIES[1]]},
            ["no gold article is in ", "(it has '690', they have 'z1')"],
        ),
    ],
    ids=["queries judged", "documents judged", "queries of a run", "answers", "provenance"],
)  # fmt: skip
def test_two_inputs_without_a_common_id_are_refused_with_an_example_of_both(
    tmp_path, door, changed, words
):
    with pytest.raises(InputError) as raised:
        door(tmp_path, GOOD | changed)
    assert all(word in str(raised.value) for word in words), raised.value


def test_ids_of_which_some_fit_are_counted(tmp_path, door):
    qrels = QRELS | {"q1": {"c1": 1, "x": 1, "y": 1}, "x": {"c1": 0}}
    runs = RUN | {"z": {"c1": 1.0}}
    answers = {"q1": ["yes"], "x": ["no"]}
    _, notes = door(tmp_path, GOOD | {"qrels": qrels, "runs": runs, "answers": answers})
    assert amounts(notes) == {
        "judged_other_queries": 1,
        "judged_other_documents": 2,  # c3 is in the corpus, and no run lists it
        "ignored_queries": 1,
        "answers_of_others": 1,
        "gold_not_in_corpus": 1,  # z9
        "identical_ids": 2,
        "corpus_passages": 5,
    }


def test_runs_that_list_nothing_but_their_queries_are_empty(tmp_path, door):
    runs, notes = door(
        tmp_path, GOOD | {"runs": {"q1": {"q1": 1.0}, "q2": {"q2": 1.0}}, "ignore": True}
    )
    assert runs.is_empty()
    assert amounts(notes).get("identical_ids") is None
    # A run of other queries is refused all the same.
    with pytest.raises(InputError, match="lists none of the 2 queries"):
        door(tmp_path, GOOD | {"runs": {"x": {"x": 1.0}}, "ignore": True})


def test_without_a_corpus_what_no_run_lists_is_counted_and_never_refused(tmp_path, door):
    runs = {"q1": {"c1": "Zoos harm"}, "q2": {"c2": "Taxes harm"}}
    _, notes = door(tmp_path, GOOD | {"passages": None, "runs": runs, "qrels": {"q1": {"x": 1}}})
    found = amounts(notes)
    assert (found["judged_other_documents"], found["gold_not_in_corpus"]) == (1, 2)


def test_the_querys_own_document_is_counted_or_left_out_before_the_cut(tmp_path, door):
    rows, notes = door(tmp_path, GOOD)
    assert rows.sort("query_id", "rank")["doc_id"].to_list() == ["q1", "c1", "q2", "c2"]
    assert amounts(notes)["identical_ids"] == 2
    (tmp_path / "without").mkdir()
    rows, notes = door(tmp_path / "without", GOOD | {"ignore": True})
    found = rows.sort("query_id", "rank").select("query_id", "doc_id", "rank").rows()
    assert found == [("q1", "c1", 1), ("q1", "c2", 2), ("q2", "c2", 1)]
    assert "identical_ids" not in amounts(notes)


def test_an_equal_id_of_another_text_is_no_query(tmp_path, door):
    passages = [{**row, "text": row["text"] + " not"} for row in PASSAGES]
    _, notes = door(tmp_path, GOOD | {"passages": passages})
    assert "identical_ids" not in amounts(notes)
