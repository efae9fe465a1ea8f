"""Layouts of queries beside KILT's: plain JSONL, BEIR, CSV and TSV, SQuAD and its kin."""

import gzip
import json

import polars as pl
import pytest

from engine.sources.articles.read import read_source
from engine.sources.passages.cut import passages
from engine.sources.queries.layouts import layout_of
from engine.sources.queries.read import read_queries, read_query_set
from tests.expected import refused


def lines(path, *records):
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return path


def test_the_layout_follows_from_the_content(tmp_path):
    for name, text, layout in (
        ("a", '{"id": "1", "input": "x", "output": []}\n', "kilt"),
        ("b", '{"id": "1", "question": "x", "answer": ["y"]}\n', "plain"),
        ("c", '{"_id": "1", "text": "x", "metadata": {}}\n', "plain"),
        ("d", "query,answers\nx,y\n", "table"),
        ("e", "id\tquestion\tanswer\n", "table"),
        ("f", '{"version": "1", "data": []}', "squad"),
        ("g", '{\n "data": []}', "squad"),
        ("h.parquet", "", "parquet"),
        ("i.json", '[\n {"id": "1", "question": "x"}]', "plain"),
        ("j.json", '[{"id": "1", "input": "x"}]', "kilt"),
        ("k.json", '{\n    "Data": [], "Version": 1.0}', "triviaqa"),
    ):
        (tmp_path / name).write_text(text)
        assert layout_of(tmp_path / name) == layout, name


def test_plain_records(tmp_path):
    path = lines(
        tmp_path / "q.jsonl",
        {"query_id": "a", "query": "who", "answers": ["Ann", "Bo "], "provenance": ["P"]},
        {"id": 7, "question": "what", "answer": "it", "article_id": "Q"},
        {"_id": "c", "text": "where", "golden_answers": ["here", "here"]},
    )
    assert read_queries(path).rows() == [
        ("a", "who", ["Ann", "Bo"], ["P"]),
        ("7", "what", ["it"], ["Q"]),
        ("c", "where", ["here"], []),
    ]


# Rows as other projects write them: none in two forms of the same thing.
ROWS = {
    "SQuAD's rows": (
        {"id": "1", "title": "T", "context": "c", "question": "who"}
        | {"answers": {"text": ["Ann", "Bo"], "answer_start": [0, 4]}},
        ("1", "who", ["Ann", "Bo"], []),
    ),
    "TriviaQA's rows": (
        {"question": "who", "question_id": "tc_1"}
        | {"answer": {"aliases": ["Annie", "Ann"], "normalized_aliases": ["ann"], "value": "Ann"}},
        ("tc_1", "who", ["Ann", "Annie"], []),
    ),
    "BEIR's with an answer": (
        {"_id": "1", "text": "who", "metadata": {"answer": "Ann"}},
        ("1", "who", ["Ann"], []),
    ),
    "FlashRAG's": (
        {"id": "nq_1", "question": "who", "golden_answers": ["Ann", "Bo"], "metadata": {}},
        ("nq_1", "who", ["Ann", "Bo"], []),
    ),
    "ragas's": (
        {"user_input": "who", "reference": "Ann", "retrieved_contexts": ["Ann did."]},
        ("1", "who", ["Ann"], []),
    ),
    "KLUE's rows": (
        {"guid": "g1", "question": "누가", "is_impossible": False}
        | {"answers": {"answer_start": [4], "text": ["제주도"]}},
        ("g1", "누가", ["제주도"], []),
    ),
}


@pytest.mark.parametrize("name", ROWS)
def test_rows_of_other_projects_mean_the_same_in_every_layout(tmp_path, name):
    record, expected = ROWS[name]
    lines(tmp_path / "q.jsonl", record)
    (tmp_path / "q.json").write_text(json.dumps([record], indent=1, ensure_ascii=False))
    # A struct needs a field in Parquet.
    without_empty = {key: value for key, value in record.items() if value != {}}
    pl.DataFrame([without_empty]).write_parquet(tmp_path / "q.parquet")
    for file in ("q.jsonl", "q.json", "q.parquet"):
        assert read_queries(tmp_path / file).rows() == [expected], file


def test_triviaqa_documents(tmp_path):
    answer = {"Aliases": ["Annie"], "Value": "Ann", "HumanAnswers": ["A."], "Type": "FreeForm"}
    entry = {"Answer": answer, "EntityPages": [{"Title": "Bo"}], "Question": "who"}
    document = {"Data": [entry | {"QuestionId": "tc_1"}], "Domain": "Web", "Version": 1.0}
    for indent in (None, 4):
        (tmp_path / "q.json").write_text(json.dumps(document, indent=indent))
        # Its pages are where answers were looked for, and are not gold.
        expected = [("tc_1", "who", ["Ann", "Annie", "A."], [])]
        assert read_queries(tmp_path / "q.json").rows() == expected


def test_rows_that_are_marked_as_unanswerable_are_counted(tmp_path):
    path = lines(
        tmp_path / "q.jsonl",
        {"id": "1", "question": "who", "answers": {"text": ["Ann"], "answer_start": [0]}},
        {"id": "2", "question": "who", "answers": {"text": [], "answer_start": []}},
        {"id": "3", "question": "who", "answers": ["plausible"], "is_impossible": True},
    )
    found = read_query_set(path)
    assert found.table["query_id"].to_list() == ["1"]
    assert found.unanswerable == 2
    # A list that is empty marks nothing: it may have been forgotten.
    lines(path, {"id": "1", "question": "who", "answers": []})
    with refused("queries.no-answers"):
        read_queries(path)


def test_kilt_in_an_array(tmp_path):
    record = {"id": "1", "input": "who", "output": [{"answer": "Ann"}]}
    (tmp_path / "q.json").write_text(json.dumps([record, record | {"id": "2"}], indent=1))
    assert read_queries(tmp_path / "q.json")["query_id"].to_list() == ["1", "2"]
    (tmp_path / "q.json").write_text(json.dumps([record, record], indent=1))
    lines_of_each = len(json.dumps([record], indent=1).splitlines()) - 2
    with refused("queries.twice") as caught:
        read_queries(tmp_path / "q.json")
    assert caught.value.line == 2 + lines_of_each


def test_parquet_needs_no_provenance_and_no_ids(tmp_path):
    path = tmp_path / "q.parquet"
    pl.DataFrame({"query_id": ["a"], "query": ["who"], "answers": [["Ann"]]}).write_parquet(path)
    assert read_queries(path).rows() == [("a", "who", ["Ann"], [])]
    pl.DataFrame({"question": ["who", "what"], "answer": ["Ann", "it"]}).write_parquet(path)
    assert read_queries(path)["query_id"].to_list() == ["1", "2"]
    pl.DataFrame({"id": [1.0], "question": ["who"], "answer": ["Ann"]}).write_parquet(path)
    with refused("queries.unnamed"):
        read_queries(path)


def answer_files(folder):
    """The answers of query b in every layout, beside those of a query that nobody asks."""
    records = [{"id": "b", "answers": ["Bo", "B."]}, {"id": "z", "answers": ["?"]}]
    lines(folder / "a.jsonl", *records)
    (folder / "a.json").write_text(json.dumps(records))
    pl.DataFrame(records).write_parquet(folder / "a.parquet")
    (folder / "a.csv").write_text("id,answers\nb,Bo|B.\nz,?\n")
    kilt = [{"answer": "Bo"}, {"answer": "B."}]
    lines(folder / "a.kilt.jsonl", {"id": "b", "input": "who", "output": kilt})
    return ("a.jsonl", "a.json", "a.parquet", "a.csv", "a.kilt.jsonl")


def test_answers_from_a_second_file_are_joined_by_id(tmp_path):
    queries = lines(tmp_path / "q.jsonl", {"_id": "b", "text": "who", "metadata": {}})
    for name in answer_files(tmp_path):
        joined = read_query_set(queries, answers=tmp_path / name).table
        assert joined.rows() == [("b", "who", ["Bo", "B."], [])], name
    # They take the place of those that the queries have, and only of these queries.
    lines(queries, *({"id": i, "query": "who", "answers": ["old"]} for i in "ab"))
    joined = read_query_set(queries, answers=tmp_path / "a.jsonl").table
    assert joined["answers"].to_list() == [["old"], ["Bo", "B."]]


def test_answers_that_do_not_fit_are_refused(tmp_path):
    queries = lines(tmp_path / "q.jsonl", *({"_id": i, "text": "who"} for i in "ab"))
    given = lines(tmp_path / "a.jsonl", {"id": "b", "answers": ["Bo"]})
    with refused("queries.no-answers"):
        read_query_set(queries, answers=given)
    lines(given, {"id": "1", "answers": ["Bo"]})
    with refused("inputs.strangers"):
        read_query_set(queries, answers=given)
    lines(given, {"id": "b", "answers": ["Bo"]}, {"id": "b", "answers": ["B."]})
    with refused("queries.twice"):
        read_query_set(queries, answers=given)


def test_records_without_ids_are_numbered_and_may_not_be_mixed(tmp_path):
    one, two = {"query": "a", "answers": ["x"]}, {"query": "b", "answers": ["y"]}
    path = tmp_path / "q.jsonl"
    path.write_text(f"{json.dumps(one)}\n\n{json.dumps(two)}\n")
    assert read_queries(path)["query_id"].to_list() == ["1", "2"]
    with refused("queries.unnamed"):
        read_queries(lines(path, one, two | {"id": "9"}))
    with refused("queries.unnamed"):
        read_queries(lines(path, one | {"id": "9"}, two))


def test_beir_directories_have_queries_without_answers(tmp_path):
    lines(tmp_path / "queries.jsonl", {"_id": "q1", "text": "x", "metadata": {}})
    lines(tmp_path / "corpus.jsonl", {"_id": "d1", "text": "x"})
    assert read_queries(tmp_path, need_answers=False).rows() == [("q1", "x", [], [])]
    with refused("queries.no-answers"):
        read_queries(tmp_path)


@pytest.mark.parametrize("packed", [False, True])
def test_csv_and_tsv(tmp_path, packed):
    text = 'id,question,answers,provenance\n1,"who, really",Ann|Bo,A|B\n\n2,"two\n\nlines","[""a|b"", ""c""]",\n'
    expected = [
        ("1", "who, really", ["Ann", "Bo"], ["A", "B"]),
        ("2", "two\n\nlines", ["a|b", "c"], []),
    ]
    path = tmp_path / ("q.csv.gz" if packed else "q.csv")
    path.write_bytes(gzip.compress(text.encode()) if packed else text.encode())
    assert read_queries(path).rows() == expected
    (tmp_path / "q.tsv").write_text("query\tanswer\nwho, really\tAnn|Bo\n")
    assert read_queries(tmp_path / "q.tsv").rows() == [("1", "who, really", ["Ann", "Bo"], [])]


@pytest.mark.parametrize(
    ("text", "line", "code"),
    [
        ("who,Ann\n", 1, "table.header"),
        ("query,answers\na,b\nc\n", 3, "table.fields"),
        ('query,answers\na,"b\n', 2, "table.quotes"),
        ("query,answers\na,['b]\n", 2, "queries.answers"),
        ('query,answers\na,"[{}]"\n', 2, "queries.answers"),
        ("query,answers\na,\n", 2, "queries.no-answers"),
        ("query,answers\n,b\n", 2, "queries.text"),
        ("id,query,answers\nx,a,b\n\nx,c,d\n", 4, "queries.twice"),
        ('{"query": "a", "answers": [3]}\n', 1, "queries.answers"),
        ('{"answers": ["a"]}\n', 1, "queries.text"),
        ('{"id": 1.5, "query": "a", "answers": ["a"]}\n', 1, "queries.unnamed"),
        ('{"id": true, "query": "a", "answers": ["a"]}\n', 1, "queries.unnamed"),
    ],
)
def test_bad_plain_queries_are_refused_with_their_line(tmp_path, text, line, code):
    path = tmp_path / "q"
    path.write_text(text)
    with refused(code, path=path, line=line):
        read_queries(path)


def document(title, context, *questions, **more):
    entry = {"title": title, **more, "paragraphs": [{"context": context, "qas": questions}]}
    return {"version": "1", "data": [entry]}


def question(name, text, answer, start, **more):
    return {"question": text, "answers": [{"text": answer, "answer_start": start}], **more} | name


SQUAD = document(
    "Normans",
    "The Normans gave their name to Normandy.",
    question({"id": "56dd"}, "What region?", "Normandy", 31, is_impossible=False),
    question({"id": "5ad3"}, "Who won?", "Normans", 4, is_impossible=True)
    | {"answers": [], "plausible_answers": [{"text": "Normans", "answer_start": 4}]},
)
KLUE = document(
    "제주도 장마",
    "장마가 제주도에서 시작됐다.",
    question({"guid": "v1_train_1"}, "장마는 어디서 시작됐나?", "제주도", 4, is_impossible=False),
    source="hankyung",
)
KORQUAD = document(
    "임종석",
    "임종석은 1989년 2월 15일에 수배되었다.",
    question({"id": "6548850-0-0"}, "언제 수배되었나?", "1989년 2월 15일", 5),
)


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize(
    ("document", "row", "unanswerable"),
    [
        (SQUAD, ("56dd", "What region?", ["Normandy"], ["Normans"]), 1),
        (KLUE, ("v1_train_1", "장마는 어디서 시작됐나?", ["제주도"], ["제주도 장마"]), 0),
        (KORQUAD, ("6548850-0-0", "언제 수배되었나?", ["1989년 2월 15일"], ["임종석"]), 0),
    ],
)
def test_squad_questions_and_their_gold_passages(tmp_path, document, row, unanswerable, indent):
    path = tmp_path / "s.json"
    path.write_text(json.dumps(document, ensure_ascii=False, indent=indent))
    found = read_query_set(path)
    assert found.table.rows() == [row]
    assert found.unanswerable == unanswerable
    # The passages of the same document go by the article that the question names as gold.
    assert passages(read_source(path))["article_id"].to_list() == row[3]


def test_bad_squad_questions_are_refused(tmp_path):
    path = tmp_path / "s.json"
    for asked, words in (
        ({"id": True, "question": "x"}, "queries.unnamed"),
        ({"id": "1"}, "queries.text"),
        ({"id": "1", "question": "x", "answers": [{"answer": "a"}]}, "queries.answers"),
        ({"id": "1", "question": "x", "is_impossible": True}, "queries.unanswerable"),
    ):
        path.write_text(json.dumps(document("T", "c", asked)))
        with refused(words):
            read_queries(path)
