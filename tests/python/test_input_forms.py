import json
import re

import pandas as pd
import polars as pl
import pytest

from engine.evaluation.settings import Settings
from engine.inputs.files import InputFiles, inputs_sha256
from engine.inputs.read import read_inputs
from engine.messages.errors import InputError
from engine.python.input_forms import Given, inputs_of

QUERIES = [
    {"id": "1", "question": "what is the capital of aruba", "answers": ["Oranjestad"], "provenance": ["Aruba"]},
    {"id": "2", "question": "who wrote animal farm", "answers": ["George Orwell", "Orwell"], "provenance": ["Animal Farm"]},
]  # fmt: skip
PASSAGES = [
    {"doc_id": "a", "title": "Aruba", "text": "The capital of Aruba is Oranjestad."},
    {"doc_id": "b", "title": "Animal Farm", "text": "Animal Farm is a novella by George Orwell."},
    {"doc_id": "c", "title": "Abacus", "text": "The abacus is a calculating tool."},
    {"doc_id": "d", "title": "Nobody", "text": "Nobody lists this."},
]
RUN = {"1": ["a", "c"], "2": ["c", "b"]}
SETTINGS = Settings.of(k=2, annotators=("containment",))


def datasets_of(rows):
    return pytest.importorskip("datasets").Dataset.from_list(rows)


@pytest.fixture
def paths(tmp_path):
    for name, rows in (("q", QUERIES), ("c", PASSAGES)):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "run.json").write_text(json.dumps(RUN))
    return {"q": tmp_path / "q.jsonl", "c": tmp_path / "c.jsonl", "r": tmp_path / "run.json"}


@pytest.fixture
def of_files(paths):
    return read_inputs(InputFiles(queries=paths["q"], corpus=paths["c"], run=(paths["r"],)), k=2)


@pytest.mark.parametrize(
    "queries",
    [
        QUERIES,
        tuple(QUERIES),
        (row for row in QUERIES),
        {row["id"]: {"query": row["question"], "answers": row["answers"], "article_id": row["provenance"][0]} for row in QUERIES},
        pl.DataFrame(QUERIES),
        pl.DataFrame(QUERIES).to_arrow(),
        pd.DataFrame(QUERIES),
        pd.DataFrame(QUERIES).set_index("id"),
        [{"id": q["id"], "input": q["question"], "output": [{"answer": a} for a in q["answers"]] + [{"provenance": [{"wikipedia_id": p} for p in q["provenance"]]}]} for q in QUERIES],
    ],
    ids=["list", "tuple", "generator", "dictionary", "polars", "arrow", "pandas", "pandas, indexed", "kilt"],
)  # fmt: skip
def test_every_form_of_queries_is_what_a_file_of_them_is(queries, of_files, paths):
    inputs = inputs_of(Given(queries, paths["c"], RUN), SETTINGS)
    assert inputs.queries.equals(of_files.queries)


@pytest.mark.parametrize(
    "passages",
    [
        PASSAGES,
        {row["doc_id"]: {"title": row["title"], "text": row["text"]} for row in PASSAGES},
        pl.DataFrame(PASSAGES),
        pd.DataFrame(PASSAGES),
        pl.DataFrame(PASSAGES).rename({"doc_id": "_id", "text": "contents"}),
    ],
    ids=["list", "dictionary (BEIR)", "polars", "pandas", "other names"],
)
def test_every_form_of_passages_is_what_a_file_of_them_is(passages, of_files):
    inputs = inputs_of(Given(QUERIES, passages, {"run": RUN}), SETTINGS)
    # Whatever the form: the same queries, the same listed passages, the same ranks.
    assert inputs_sha256(inputs) == inputs_sha256(of_files)
    assert sorted(inputs.corpus["doc_id"]) == ["a", "b", "c"]


def test_data_sets_of_hugging_face_are_tables_like_others(of_files):
    ranked = [
        {"query_id": q, "doc_id": d, "rank": r} for q, ds in RUN.items() for r, d in enumerate(ds)
    ]
    given = Given(*map(datasets_of, (QUERIES, PASSAGES, ranked)))
    assert inputs_sha256(inputs_of(given, SETTINGS)) == inputs_sha256(of_files)


def test_files_are_read_as_the_command_reads_them(of_files, paths):
    for runs in (paths["r"], [str(paths["r"])], (paths["r"],)):
        inputs = inputs_of(Given(paths["q"], paths["c"], runs), SETTINGS)
        assert inputs_sha256(inputs) == inputs_sha256(of_files)
        assert inputs.queries_file == paths["q"]


def test_queries_may_be_texts_with_answers_and_runs_lists_of_texts():
    queries = {row["question"]: row["answers"] for row in QUERIES}
    text = {row["doc_id"]: row["text"] for row in PASSAGES}
    runs = {row["question"]: [text[d] for d in RUN[row["id"]]] for row in QUERIES}
    inputs = inputs_of(Given(queries, None, runs), SETTINGS)
    assert inputs.queries["query_id"].to_list() == ["1", "2"]
    assert inputs.queries["answers"].to_list() == [row["answers"] for row in QUERIES]
    texts = dict(inputs.corpus.select("doc_id", "text").iter_rows())
    listed = inputs.runs.select("query_id", "rank", "doc_id").rows()
    assert [(q, r, texts[d]) for q, r, d in listed] == [
        ("1", 1, text["a"]), ("1", 2, text["c"]), ("2", 1, text["c"]), ("2", 2, text["b"]),
    ]  # fmt: skip


def test_answers_may_come_apart_by_id_or_by_text():
    answers = {"1": "Oranjestad", "who wrote animal farm": ["George Orwell", " Orwell "]}
    texts = {row["id"]: row["question"] for row in QUERIES}
    inputs = inputs_of(Given(texts, PASSAGES, RUN, answers=answers), SETTINGS)
    assert inputs.queries["answers"].to_list() == [["Oranjestad"], ["George Orwell", "Orwell"]]


def test_answers_may_be_a_file(tmp_path, paths):
    answers = tmp_path / "answers.json"
    answers.write_text(json.dumps([{"id": "1", "answers": ["O"]}, {"id": "2", "answers": ["G"]}]))
    texts = {row["id"]: row["question"] for row in QUERIES}
    for queries, passages, runs in ((texts, PASSAGES, RUN), (paths["q"], paths["c"], paths["r"])):
        inputs = inputs_of(Given(queries, passages, runs, answers=answers), SETTINGS)
        assert inputs.queries["answers"].to_list() == [["O"], ["G"]]


def test_questions_that_are_marked_as_unanswerable_are_left_out_and_counted():
    # Rows of SQuAD 2.0, as Hugging Face has them.
    none = {"id": "3", "question": "who", "answers": {"text": [], "answer_start": []}}
    inputs = inputs_of(Given([*QUERIES, none], PASSAGES, RUN), SETTINGS)
    assert inputs.queries["query_id"].to_list() == ["1", "2"]
    assert [note.amount for note in inputs.notes if note.code == "unanswerable_queries"] == [1]


def test_files_of_runs_that_carry_texts_need_no_passages(tmp_path, paths):
    run = tmp_path / "texts.json"
    run.write_text(json.dumps({"1": ["Oranjestad is there"], "2": ["nothing here"]}))
    of_file = inputs_of(Given(paths["q"], None, run), SETTINGS)
    in_memory = inputs_of(Given(QUERIES, None, {"texts": json.loads(run.read_text())}), SETTINGS)
    beside = inputs_of(Given(QUERIES, None, run), SETTINGS)
    assert inputs_sha256(of_file) == inputs_sha256(in_memory) == inputs_sha256(beside)


def test_answers_are_needed_only_where_something_is_held_against_them(paths):
    texts = {row["id"]: row["question"] for row in QUERIES}
    quiet = Settings.of(k=2, annotators=("provenance",), end_to_end=False)
    assert inputs_of(Given(texts, PASSAGES, RUN), quiet).queries["answers"].to_list() == [[], []]
    with pytest.raises(InputError, match="query '1' has no answers; add at least one"):
        inputs_of(Given(texts, PASSAGES, RUN), SETTINGS)


def test_documents_may_be_the_texts_of_passages():
    of_ids = inputs_of(Given(QUERIES, PASSAGES, RUN), SETTINGS)
    texts = {one["doc_id"]: one["text"] for one in PASSAGES}
    by_text = {query: [texts[doc] for doc in docs] for query, docs in RUN.items()}
    found = inputs_of(Given(QUERIES, PASSAGES, by_text), SETTINGS)
    assert found.runs.equals(of_ids.runs)


def test_what_is_left_out_is_counted():
    passages = [*PASSAGES[:2], {"doc_id": "c", "text": " "}]
    runs = {**RUN, "9": ["a"]}
    inputs = inputs_of(
        Given(QUERIES, passages, runs), Settings.of(k=2, annotators=("containment",))
    )
    assert {note.code: note.amount for note in inputs.notes if note.amount} == {
        "empty_passages": 1,
        "corpus_passages": 3,
        "ignored_queries": 1,
    }
    assert inputs.cut_runs == ()
    cut = inputs_of(
        Given(QUERIES, passages, runs),
        Settings.of(k=1, annotators=("containment",), measures="P@1"),
    )
    assert cut.cut_runs == ("run",)
    assert cut.corpus["doc_id"].to_list() == ["a", "c"]


def test_judgments_may_be_a_dictionary_a_table_or_a_file(tmp_path):
    judged = {"1": {"a": 1, "c": 0}, "7": {"a": 1}}
    settings = Settings.of(k=2, annotators=("qrels",), end_to_end=False)
    path = tmp_path / "qrels.json"
    path.write_text(json.dumps(judged))
    table = [
        {"query_id": q, "doc_id": d, "label": v} for q, of in judged.items() for d, v in of.items()
    ]
    renamed = {"query_id": "query-id", "doc_id": "corpus-id", "label": "score"}
    frame = pd.DataFrame(table)
    for given in (judged, path, table, pl.DataFrame(table), frame, frame.rename(columns=renamed)):
        inputs = inputs_of(Given(QUERIES, PASSAGES, RUN, tables={"qrels": given}), settings)
        assert inputs.tables["qrels"].rows() == [("1", "a", 1, 1), ("1", "c", 0, 1)]


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"queries": []}, "queries: there is no query"),
        ({"queries": 3}, "queries: is of the type int; give a path, a Polars or pandas frame"),
        ({"queries": [QUERIES[0], 7]}, "queries:2: is a row of the type int"),
        ({"queries": [QUERIES[0], QUERIES[0]]}, "queries:2: duplicate query id '1' (see line 1)"),
        ({"queries": [{"id": "1", "answers": ["a"]}]}, "queries:1: query '1' has no text"),
        ({"queries": {"1": {"query": " ", "answers": ["a"]}}}, "queries:1: query '1' is empty"),
        ({"queries": [{**QUERIES[0], "answers": [3]}]}, "queries:1: answers of query '1' are not strings"),
        ({"answers": ["Oranjestad"]}, "answers: is of the type list; give {query_id: [answer, …]}"),
        ({"passages": [{"doc_id": "a"}]}, "passages:1: passage 'a' has no text"),
        ({"passages": [{"text": "a"}]}, "passages:1: a passage without an id"),
        ({"passages": [*PASSAGES, PASSAGES[1]]}, "passages:5: document id 'b' already occurs in record 2"),
        ({"passages": PASSAGES[:1]}, "run: document 'c' of query '1' and 1 more not in the corpus `passages`"),
        ({"passages": None, "runs": {"1": {"a": 1.0}}}, "run: document 'a' of query '1' without a text in any run; give `passages`"),
        ({"runs": {"x": RUN, "y": {"9": ["a"]}}}, "y: lists none of the 2 queries of `queries` (it has '9', they have '1')"),
        ({"tables": {"qrels": {"9": {"a": 1}}}}, "qrels: judges none of the 2 queries"),
        ({"tables": {"qrels": [{"query_id": "1"}]}}, "qrels:1: the id None of a judgment; give query_id, doc_id and label"),
    ],
)  # fmt: skip
def test_what_cannot_be_used_is_refused_in_a_line(changed, words):
    given = Given(QUERIES, PASSAGES, RUN)._replace(**changed)
    with pytest.raises(InputError, match=re.escape(words)) as raised:
        inputs_of(given, SETTINGS)
    assert "\n" not in str(raised.value)


def test_judgments_of_one_of_several_corpora_name_it_as_runs_do(paths, tmp_path):
    (tmp_path / "old.jsonl").write_text('{"id": "a", "text": "Oranjestad, Aruba"}')
    (tmp_path / "old.txt").write_text("1 0 a 2")
    corpora = [str(paths["c"]), str(tmp_path / "old.jsonl")]
    judged = {"qrels": f"{tmp_path}/old.txt@old"}
    given = Given(str(paths["q"]), corpora, [f"{paths['r']}@c"], tables=judged)
    settings = Settings.of(k=2, annotators=("qrels",))
    assert inputs_of(given, settings).tables["qrels"].rows() == [
        ("1", "Oranjestad, Aruba", 2.0, False, 2.0)
    ]
