"""Judgments, gold articles and titles that fit queries and corpus or not, and clusters of queries."""

import json
import re

import polars as pl
import pytest

from engine.evaluation import score
from engine.evaluation.evaluate import check
from engine.evaluation.settings import Settings
from engine.inputs.files import InputFiles
from engine.inputs.partition import partition
from engine.inputs.read import read_inputs, with_clusters
from engine.inputs.shards import InMemoryInputs
from engine.labels.registry import ANNOTATORS
from engine.python.input_forms import UserInputs, inputs_of
from engine.sources.io.files import write_parquet
from engine.sources.io.folders import folder_at
from engine.sources.queries.read import read_query_set
from tests.commands import evaluate as run_command
from tests.expected import as_expected, refused
from tests.tables import read_files, table_files

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
        tables=table_files(qrels=write("qrels.json", [given["qrels"]])),
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
    inputs = inputs_of(UserInputs(*every, ignore_identical_ids=ignored), settings)
    return inputs.runs, inputs.notes


@pytest.fixture(params=[by_files, by_shards, by_python])
def door(request):
    return request.param


GOOD = {"queries": QUERIES, "passages": PASSAGES, "runs": RUN, "qrels": QRELS}


def amounts(notes):
    return {note.code: note.amount for note in notes if note.amount}


@pytest.mark.parametrize(
    ("changed", "code"),
    [
        ({"qrels": {"x": {"c1": 1}}}, "inputs.strangers"),
        ({"qrels": {"q1": {"x": 1, "y": 0}}}, "inputs.strangers"),
        ({"runs": {"x": {"c1": 1.0}}}, "inputs.unrelated"),
        ({"answers": {"x": ["yes"]}}, "inputs.strangers"),
        ({"queries": [{**QUERIES[0], "provenance": ["690"]}, QUERIES[1]]}, "inputs.strangers"),
    ],
    ids=["queries judged", "documents judged", "queries of a run", "answers", "provenance"],
)
def test_two_inputs_without_a_common_id_are_refused_with_an_example_of_both(
    tmp_path, door, changed, code
):
    with refused(code):
        door(tmp_path, GOOD | changed)


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
    with refused("inputs.unrelated"):
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


PROVENANCE = Settings.of(k=3, annotators=("provenance",), end_to_end=False, measures="P@3")


@pytest.fixture
def gold(tmp_path):
    """Provenance labels of the listed passages, by document id, given its entries and the corpus."""

    def label(provenance, *passages):
        output = [{"answer": "x"}, {"provenance": provenance}]
        lines = {"q": [{"id": "1", "input": "who", "output": output}], "c": passages}
        for name, records in lines.items():
            text = "".join(json.dumps(record) + "\n" for record in records)
            (tmp_path / name).write_text(text)
        names = [passage["id"] for passage in passages]
        (tmp_path / "r").write_text("".join(f"1 Q0 {d} 1 {-i} s\n" for i, d in enumerate(names)))
        given = read_files(tmp_path / "q", tmp_path / "c", [tmp_path / "r"], k=3)
        check(InMemoryInputs(given), PROVENANCE)
        made = score.label(
            ANNOTATORS["provenance"], given, PROVENANCE, score.pairs_to_label(given), {}
        )
        labels = dict(made.labels.select("doc_id", "label").iter_rows())
        traced = dict(made.traces.select("doc_id", "article_id").iter_rows())
        assert {d for d in traced if traced[d]} == {d for d in labels if labels[d]}
        return labels

    return label


def titled(name, title, **article):
    return {"id": name, "title": title, "text": "some text"} | article


ARUBA = titled("a", "Aruba", wikipedia_id="690")
NOVEL = titled("b", "1984", wikipedia_id="23454753")


def test_a_title_without_an_id_is_matched_with_the_passages_title(gold):
    # The corpus names its articles by page ids, which the question does not give.
    assert gold([{"title": "Aruba"}], ARUBA, NOVEL) == {"a": 1, "b": 0}
    both = [{"title": " Aruba "}, {"wikipedia_id": "23454753"}]
    assert gold(both, ARUBA, NOVEL) == {"a": 1, "b": 1}
    # Titles are not unique: both are gold.
    other = titled("c", "Aruba", wikipedia_id="7")
    assert gold([{"title": "Aruba"}], ARUBA, other) == {"a": 1, "c": 1}


def test_an_id_is_matched_as_an_id_whatever_the_title(gold):
    assert gold([{"wikipedia_id": "690", "title": "1984"}], ARUBA, NOVEL) == {"a": 1, "b": 0}


def test_a_title_of_digits_is_not_a_page_id(gold):
    page = titled("d", "Aruba", wikipedia_id="1984")
    assert gold([{"title": "1984"}], page, NOVEL) == {"d": 0, "b": 1}
    # The gold article is not listed, and page 1984 is another.
    assert gold([{"title": "1984"}, {"wikipedia_id": "690"}], page, ARUBA) == {"d": 0, "a": 1}


def test_a_title_is_matched_with_an_article_that_is_called_so(gold):
    section = titled("a", "Aruba: history", article_id="Aruba")
    assert gold([{"title": "Aruba"}], section, NOVEL) == {"a": 1, "b": 0}
    untitled = titled("a", "", article_id="Aruba")
    assert gold([{"title": "Aruba"}], untitled) == {"a": 1}


def test_titles_without_any_title_in_the_corpus_are_refused(gold, tmp_path):
    bare = titled("a", "", wikipedia_id="690")
    with refused("queries.titles", path=tmp_path / "q", line=1):
        gold([{"title": "Aruba"}], bare)


def test_titles_do_not_matter_where_provenance_does_not(files, capsys):
    """Containment needs no gold articles."""
    text = re.sub('"wikipedia_id": "[^"]*"', '"title": "Aruba"', files["queries"].read_text())
    files["queries"].write_text(text)
    text = re.sub('"title": "[^"]*"', '"title": "", "article_id": "7"', files["corpus"].read_text())
    files["corpus"].write_text(text)
    options = ["--no-end-to-end", "--resamples", 0, "--annotators"]
    assert run_command(files, *options, "containment") == 0
    assert run_command(files, *options, "containment,provenance", "--overwrite") != 0
    as_expected(capsys.readouterr().err.splitlines()[-1])


def query_table(*rows):
    frame = pl.DataFrame(rows, ["query_id", "query", "provenance"], orient="row")
    return frame.with_columns(pl.col("provenance").cast(pl.List(pl.String)))


def test_queries_that_share_an_article_a_context_or_a_text_are_a_cluster():
    table = query_table(
        ("1", "a", ["X"]),
        ("2", "b", ["Y", "X"]),  # X has three queries, Y two
        ("3", "c", ["X"]),
        ("4", "d", ["Y"]),  # the only one left for Y, and still named by another
        ("5", "e", ["Z"]),  # nobody else names Z
        ("6", "f", []),  # the context of 5
        ("7", "g", []),
        ("8", "g", []),  # the text of 7
    )
    clustered, note = with_clusters(table, {"5": "P", "6": "P", "7": "Q"}, "article")
    assert clustered["cluster"].to_list() == [0, 0, 0, 1, 2, 2, 3, 3]
    as_expected(note.text)
    # Not asked for: found, kept, and said.
    found, note = with_clusters(table, {}, None)
    assert found["cluster"].to_list() == [0, 0, 0, 1, 2, 3, 4, 4]
    assert (note.code, note.amount, note.is_shown) == ("queries_share_articles", 5, True)


def test_few_that_share_are_not_worth_a_note():
    rows = [(str(i), f"q{i}", ["X"] if i < 2 else [f"A{i}"]) for i in range(10)]
    assert not with_clusters(query_table(*rows), {}, None)[
        1
    ].is_shown  # two of ten are not more than a fifth
    rows[2] = ("2", "q2", ["X"])
    assert with_clusters(query_table(*rows), {}, None)[1].amount == 8


def test_a_column_of_any_layout_clusters_and_an_unknown_one_is_one_line(tmp_path):
    records = [
        {"id": "1", "query": "a", "answers": ["x"], "topic": 7},
        {"id": "2", "query": "b", "answers": ["x"], "topic": 7},
        {"id": "3", "query": "c", "answers": ["x"], "topic": None},
    ]
    lines = tmp_path / "q.jsonl"
    lines.write_text("".join(json.dumps(record) + "\n" for record in records))
    table = tmp_path / "q.csv"
    table.write_text("id,query,answers,topic\n1,a,x,7\n2,b,x,7\n3,c,x,\n")
    parquet = tmp_path / "q.parquet"
    frame = pl.DataFrame(records).rename({"id": "query_id"})
    write_parquet(frame.with_columns(pl.Series("provenance", [["A"]] * 3)), parquet)
    for path in (lines, table, parquet):
        assert read_query_set(path, column="topic").groups == {"1": "7", "2": "7"}
        with refused("queries.column") as caught:
            read_query_set(path, column="theme")
        assert "\n" not in str(caught.value)
    found = read_query_set(lines, column="topic")
    clustered, _ = with_clusters(found.table, found.groups, "topic")
    assert clustered["cluster"].to_list() == [0, 0, 1]


def test_paragraphs_of_squad_are_contexts(tmp_path):
    def paragraph(text, *ids):
        qas = [{"id": i, "question": i, "answers": [{"text": "x"}]} for i in ids]
        return {"context": text, "qas": qas}

    path = tmp_path / "squad.json"
    paragraphs = [paragraph("one", "a", "b"), paragraph("two", "c")]
    path.write_text(json.dumps({"data": [{"title": "T", "paragraphs": paragraphs}]}))
    groups = read_query_set(path).groups
    assert groups["a"] == groups["b"] != groups["c"]
    assert read_query_set(path, column="title").groups == dict.fromkeys("abc", "T")
