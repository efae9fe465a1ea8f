"""Inputs and runs in every form that a Python user has, retrievers among them, and how other forms are refused."""

from __future__ import annotations

import json
from types import SimpleNamespace as Thing

import numpy as np
import pandas as pd
import polars as pl
import pytest

import engine
from engine.evaluation.settings import Settings
from engine.inputs.files import InputFiles
from engine.inputs.read import read_inputs
from engine.python.input_forms import UserInputs, inputs_of, runs_of
from engine.sources.runs.read import id_of
from tests.conftest import make_run
from tests.expected import as_expected, refused

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
    inputs = inputs_of(UserInputs(queries, paths["c"], RUN), SETTINGS)
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
    inputs = inputs_of(UserInputs(QUERIES, passages, {"run": RUN}), SETTINGS)
    # Whatever the form: the same queries, the same listed passages, the same ranks.
    assert inputs.sha256 == of_files.sha256
    assert sorted(inputs.corpus["doc_id"]) == ["a", "b", "c"]


def test_data_sets_of_hugging_face_are_tables_like_others(of_files):
    ranked = [
        {"query_id": q, "doc_id": d, "rank": r} for q, ds in RUN.items() for r, d in enumerate(ds)
    ]
    given = UserInputs(*map(datasets_of, (QUERIES, PASSAGES, ranked)))
    assert inputs_of(given, SETTINGS).sha256 == of_files.sha256


def test_files_are_read_as_the_command_reads_them(of_files, paths):
    for runs in (paths["r"], [str(paths["r"])], (paths["r"],)):
        inputs = inputs_of(UserInputs(paths["q"], paths["c"], runs), SETTINGS)
        assert inputs.sha256 == of_files.sha256
        assert inputs.queries_file == paths["q"]


def test_queries_may_be_texts_with_answers_and_runs_lists_of_texts():
    queries = {row["question"]: row["answers"] for row in QUERIES}
    text = {row["doc_id"]: row["text"] for row in PASSAGES}
    runs = {row["question"]: [text[d] for d in RUN[row["id"]]] for row in QUERIES}
    inputs = inputs_of(UserInputs(queries, None, runs), SETTINGS)
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
    inputs = inputs_of(UserInputs(texts, PASSAGES, RUN, answers=answers), SETTINGS)
    assert inputs.queries["answers"].to_list() == [["Oranjestad"], ["George Orwell", "Orwell"]]


def test_answers_may_be_a_file(tmp_path, paths):
    answers = tmp_path / "answers.json"
    answers.write_text(json.dumps([{"id": "1", "answers": ["O"]}, {"id": "2", "answers": ["G"]}]))
    texts = {row["id"]: row["question"] for row in QUERIES}
    for queries, passages, runs in ((texts, PASSAGES, RUN), (paths["q"], paths["c"], paths["r"])):
        inputs = inputs_of(UserInputs(queries, passages, runs, answers=answers), SETTINGS)
        assert inputs.queries["answers"].to_list() == [["O"], ["G"]]


def test_questions_that_are_marked_as_unanswerable_are_left_out_and_counted():
    # Rows of SQuAD 2.0, as Hugging Face has them.
    none = {"id": "3", "question": "who", "answers": {"text": [], "answer_start": []}}
    inputs = inputs_of(UserInputs([*QUERIES, none], PASSAGES, RUN), SETTINGS)
    assert inputs.queries["query_id"].to_list() == ["1", "2"]
    assert [note.amount for note in inputs.notes if note.code == "unanswerable_queries"] == [1]


def test_files_of_runs_that_carry_texts_need_no_passages(tmp_path, paths):
    run = tmp_path / "texts.json"
    run.write_text(json.dumps({"1": ["Oranjestad is there"], "2": ["nothing here"]}))
    of_file = inputs_of(UserInputs(paths["q"], None, run), SETTINGS)
    in_memory = inputs_of(
        UserInputs(QUERIES, None, {"texts": json.loads(run.read_text())}), SETTINGS
    )
    beside = inputs_of(UserInputs(QUERIES, None, run), SETTINGS)
    assert of_file.sha256 == in_memory.sha256 == beside.sha256


def test_answers_are_needed_only_where_something_is_held_against_them(paths):
    texts = {row["id"]: row["question"] for row in QUERIES}
    quiet = Settings.of(k=2, annotators=("provenance",), end_to_end=False)
    assert inputs_of(UserInputs(texts, PASSAGES, RUN), quiet).queries["answers"].to_list() == [
        [],
        [],
    ]
    with refused("queries.no-answers"):
        inputs_of(UserInputs(texts, PASSAGES, RUN), SETTINGS)


def test_documents_may_be_the_texts_of_passages():
    of_ids = inputs_of(UserInputs(QUERIES, PASSAGES, RUN), SETTINGS)
    texts = {one["doc_id"]: one["text"] for one in PASSAGES}
    by_text = {query: [texts[doc] for doc in docs] for query, docs in RUN.items()}
    found = inputs_of(UserInputs(QUERIES, PASSAGES, by_text), SETTINGS)
    assert found.runs.equals(of_ids.runs)


def test_what_is_left_out_is_counted():
    passages = [*PASSAGES[:2], {"doc_id": "c", "text": " "}]
    runs = {**RUN, "9": ["a"]}
    inputs = inputs_of(
        UserInputs(QUERIES, passages, runs), Settings.of(k=2, annotators=("containment",))
    )
    assert {note.code: note.amount for note in inputs.notes if note.amount} == {
        "empty_passages": 1,
        "corpus_passages": 3,
        "ignored_queries": 1,
    }
    assert inputs.cut_runs == ()
    cut = inputs_of(
        UserInputs(QUERIES, passages, runs),
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
        inputs = inputs_of(UserInputs(QUERIES, PASSAGES, RUN, tables={"qrels": given}), settings)
        assert inputs.tables["qrels"].rows() == [("1", "a", 1, 1), ("1", "c", 0, 1)]


@pytest.mark.parametrize(
    ("changed", "code"),
    [
        ({"queries": []}, "queries.none"),
        ({"queries": 3}, "python.type"),
        ({"queries": [QUERIES[0], 7]}, "table.row"),
        ({"queries": [QUERIES[0], QUERIES[0]]}, "queries.twice"),
        ({"queries": [{"id": "1", "answers": ["a"]}]}, "queries.text"),
        ({"queries": {"1": {"query": " ", "answers": ["a"]}}}, "queries.empty"),
        ({"queries": [{**QUERIES[0], "answers": [3]}]}, "queries.answers"),
        ({"answers": ["Oranjestad"]}, "queries.answers"),
        ({"passages": [{"doc_id": "a"}]}, "corpus.text"),
        ({"passages": [{"text": "a"}]}, "corpus.unnamed"),
        ({"passages": [*PASSAGES, PASSAGES[1]]}, "corpus.twice"),
        ({"passages": PASSAGES[:1]}, "inputs.passage"),
        ({"passages": None, "runs": {"1": {"a": 1.0}}}, "inputs.passage"),
        ({"runs": {"x": RUN, "y": {"9": ["a"]}}}, "inputs.unrelated"),
        ({"tables": {"qrels": {"9": {"a": 1}}}}, "inputs.strangers"),
        ({"tables": {"qrels": [{"query_id": "1"}]}}, "qrels.id"),
    ],
)  # fmt: skip
def test_what_cannot_be_used_is_refused_in_a_line(changed, code):
    given = UserInputs(QUERIES, PASSAGES, RUN)._replace(**changed)
    with refused(code) as raised:
        inputs_of(given, SETTINGS)
    assert "\n" not in str(raised.value)


def test_judgments_of_one_of_several_corpora_name_it_as_runs_do(paths, tmp_path):
    (tmp_path / "old.jsonl").write_text('{"id": "a", "text": "Oranjestad, Aruba"}')
    (tmp_path / "old.txt").write_text("1 0 a 2")
    corpora = [str(paths["c"]), str(tmp_path / "old.jsonl")]
    judged = {"qrels": f"{tmp_path}/old.txt@old"}
    given = UserInputs(str(paths["q"]), corpora, [f"{paths['r']}@c"], tables=judged)
    settings = Settings.of(k=2, annotators=("qrels",))
    assert inputs_of(given, settings).tables["qrels"].rows() == [
        ("1", "Oranjestad, Aruba", 2.0, False, 2.0)
    ]


ROWS = [("q1", "a", 1), ("q1", "b", 2), ("q2", "c", 1)]


def ranks(frame):
    return frame.select("query_id", "doc_id", "rank").rows()


@pytest.fixture
def trec(tmp_path):
    path = tmp_path / "of-file.trec"
    path.write_text("q1 Q0 a 9 2 of-file\nq1 Q0 b 9 1 of-file\nq2 Q0 c 9 1 of-file\n")
    return path


SCORED = {"q1": {"b": 1, "a": 2.5}, "q2": {"c": 0.5}}
FRAME = pl.DataFrame(
    {"query_id": ["q1", "q1", "q2"], "doc_id": ["b", "a", "c"], "score": [1.0, 2.0, 1.0]}
)


@pytest.mark.parametrize(
    "given",
    [
        SCORED,
        {"q1": ["a", "b"], "q2": ["c"]},
        {"q1": np.array(["a", "b"]), "q2": np.array(["c"])},
        {"q1": [{"doc_id": "a", "score": 0.1}, {"docid": "b", "score": 0.9}], "q2": [{"id": "c"}]},
        FRAME,
        FRAME.lazy(),
        FRAME.to_pandas(),
        FRAME.to_pandas().set_index("query_id"),
        FRAME.to_arrow(),
        FRAME.to_dicts(),
        # PyTerrier's: ranks from 0.
        pd.DataFrame({"qid": ["q1", "q1", "q2"], "docno": ["b", "a", "c"], "rank": [1, 0, 0]}),
        make_run(ROWS, "run").select("query_id", "doc_id", "rank", "score", "run"),
        FRAME.sort("score", descending=True).drop("score"),
        [{"query_id": "q2", "doc_id": "c"}, *({"query_id": "q1", "doc_id": d} for d in "ab")],
        # As results of LangChain, Haystack and FlashRAG are written.
        [
            {"query_id": "q1", "results": [{"id": "a"}, {"id": "b"}]},
            {"query_id": "q2", "documents": ["c"]},
        ],
        {"run": SCORED},
        {"run": FRAME},
        [SCORED],
    ],
)
def test_every_form_of_one_run_gives_the_same_ranks(given):
    frame = runs_of(given, carried=False)[0]
    assert ranks(frame) == ROWS
    assert frame["run"].unique().to_list() == ["run"]


def test_scores_are_kept_and_those_of_lists_count_down_to_1():
    assert runs_of(SCORED, carried=False)[0]["score"].to_list() == [2.5, 1.0, 0.5]
    assert runs_of({"q": ["a", "b", "c"]}, carried=False)[0]["score"].to_list() == [3.0, 2.0, 1.0]


def test_equal_scores_are_ordered_as_trec_eval_orders_them(tmp_path):
    scored = {"q1": {"a": 1, "c": 1, "b": 1}}
    path = tmp_path / "r.trec"
    path.write_text("".join(f"q1 Q0 {d} 0 1 run\n" for d in "acb"))
    of_file = runs_of({"run": path}, carried=False)[0].drop("stated_rank")
    assert runs_of(scored, carried=False)[0].drop("stated_rank").equals(of_file)
    assert ranks(runs_of(scored, carried=False)[0]) == [
        ("q1", "c", 1),
        ("q1", "b", 2),
        ("q1", "a", 3),
    ]


def test_a_rank_counts_more_than_a_score():
    frame = FRAME.with_columns(pl.Series("rank", [1, 2, 1]))
    assert ranks(runs_of(frame, carried=False)[0]) == [
        ("q1", "b", 1),
        ("q1", "a", 2),
        ("q2", "c", 1),
    ]


def test_whole_numbers_are_ids(trec):
    frame = runs_of({1: {2: 0.5}}, carried=False)[0]
    assert ranks(frame) == [("1", "2", 1)]
    numbers = pl.DataFrame({"query_id": [1], "doc_id": [2], "score": [0.5]})
    assert ranks(runs_of(numbers, carried=False)[0]) == [("1", "2", 1)]


def test_several_runs_have_the_names_that_they_are_given_or_have(trec):
    def names(given):
        return runs_of(given, carried=False)[0]["run"].unique(maintain_order=True).to_list()

    assert names({"x": SCORED, "y": trec, "z": FRAME}) == ["x", "y", "z"]
    assert names([trec, SCORED]) == ["of-file", "run-2"]
    assert names([SCORED, SCORED]) == ["run-1", "run-2"]
    assert names(str(trec)) == ["of-file"]
    both = pl.concat([make_run(ROWS, "one"), make_run(ROWS, "two")])
    assert names(both) == ["one", "two"]


def test_texts_become_passages_with_an_id_for_each():
    given = {"x": {"q1": ["one", "two"], "q2": ["two"]}, "y": {"q1": ["two", "three"]}}
    frame, corpus, _ = runs_of(given, carried=True)
    ids = dict(corpus.select("text", "doc_id").iter_rows())
    assert list(ids) == ["one", "two", "three"]
    assert frame.select("run", "query_id", "doc_id").rows() == [
        ("x", "q1", ids["one"]), ("x", "q1", ids["two"]), ("x", "q2", ids["two"]),
        ("y", "q1", ids["two"]), ("y", "q1", ids["three"]),
    ]  # fmt: skip


def test_rows_with_texts_keep_their_ids_and_titles():
    rows = [
        {"qid": "q", "docno": "d7", "text": "one", "title": "T", "score": 3.0},
        {"qid": "q", "page_content": "two", "score": 4.0},
    ]
    # The first 16 digits of the SHA-256 of "two", as for files.
    frame, corpus, _ = runs_of(rows, carried=True)
    assert ranks(frame) == [("q", "3fc4ccfe745870e2", 1), ("q", "d7", 2)]
    assert ("d7", "T", "one", "T") in corpus.rows()


@pytest.mark.parametrize(
    ("given", "code"),
    [
        ({}, "runs.empty"),
        ([], "runs.none"),
        (7, "python.type"),
        ({"q": 3}, "python.type"),
        ({"q": {"a": "high"}}, "runs.dictionary"),
        ({"q": {"a": True}}, "runs.dictionary"),
        ({"q": {"a": 1e300}}, "runs.score"),
        ({"q": ["a", "a"]}, "runs.duplicate"),
        ({"q": [["a"]]}, "runs.passageless"),
        ([{"query_id": "q", "score": 1}], "runs.passageless"),
        ([{"results": ["a", "b"]}], "runs.queryless"),
        ([{"doc_id": "d", "query_id": "q"}, {"doc_id": "d"}], "runs.queryless"),
        ([{"doc_id": 1.5, "query_id": "q"}], "runs.id"),
        ({"x": [{"query_id": "q", "doc_id": "d"}], "y": ["no.trec"]}, "table.row"),
        ([{"query_id": "q", "doc_id": d, "score": s} for d, s in (("a", 1), ("b", None))], "runs.mixed"),
        ([make_run(ROWS, "one"), make_run(ROWS, "one")], "runs.name"),
        ({"q": []}, "runs.empty"),
        ({"\ud800": SCORED}, "runs.name"),
        (pd.DataFrame([["q", "a", "b"]], columns=["query_id", "doc_id", "doc_id"]), "table.duplicate"),
    ],
)  # fmt: skip
def test_what_is_no_run_is_refused_in_a_line(given, code):
    with refused(code):
        runs_of(given, carried=False)[0]


def test_two_texts_under_one_id_are_refused():
    rows = [{"query_id": q, "doc_id": "d", "text": t} for q, t in (("1", "one"), ("2", "two"))]
    with refused("runs.conflict"):
        runs_of(rows, carried=True)


ASKED = {"1": "capital of Aruba", "2": "capital of Peru"}
ANSWERS = {"1": ["Oranjestad"], "2": ["Lima"]}
TEXTS = {"a": "Oranjestad, in Aruba", "p": "Lima, in Peru", "x": "an abacus"}
CONTAINED = Settings.of(k=2, annotators=("containment",), end_to_end=False)


def best(question):
    return ["a", "x"] if "Aruba" in question else ["p", "a"]


def documents(question, **more):
    """As LangChain's store gives them: with an id that it made."""
    return [
        Thing(page_content=TEXTS[doc], metadata={"title": doc}, id=f"made-{doc}", **more)
        for doc in best(question)
    ]


async def waits(question):
    return best(question)


def nodes(question):
    return [
        Thing(node=Thing(text=TEXTS[doc], metadata={}, node_id=f"made-{doc}"), score=np.float32(9 - place))
        for place, doc in enumerate(best(question))
    ]  # fmt: skip


def listed(runs, passages, **more):
    given = UserInputs(ASKED, passages, runs, answers=ANSWERS, **more)
    rows = inputs_of(given, CONTAINED).runs
    return [rows.filter(query_id=query)["doc_id"].to_list() for query in ASKED], rows


@pytest.mark.parametrize(
    "retriever",
    [
        best,
        waits,
        Thing(invoke=best),
        lambda question: iter(best(question)),
        lambda question: [TEXTS[doc] for doc in best(question)],
        lambda question: [(doc, 9 - place) for place, doc in enumerate(best(question))],
        lambda question: {doc: 9 - place for place, doc in enumerate(best(question))},
        lambda question: [{"id": doc, "text": TEXTS[doc]} for doc in best(question)],
        lambda question: [Thing(text="any", metadata={"doc_id": doc}, id="7") for doc in best(question)],
        lambda question: [Thing(content="any", meta=None, id=doc) for doc in best(question)],
    ],
)  # fmt: skip
def test_passages_of_a_corpus_go_by_id_or_text(retriever):
    found, rows = listed({"mine": retriever}, TEXTS)
    assert found == [["a", "x"], ["p", "a"]]
    assert rows["run"].unique().to_list() == ["mine"]


@pytest.mark.parametrize(
    "retriever",
    [
        lambda question: [TEXTS[doc] for doc in best(question)],
        lambda question: [(TEXTS[doc], 0.5) for doc in best(question)],
        Thing(invoke=documents),
        Thing(retrieve=nodes),
        Thing(run=lambda query: {"documents": documents(query, score=1.0)}),
        lambda question: [(one, place) for place, one in enumerate(documents(question))],
    ],
)
def test_without_a_corpus_stores_own_ids_give_way_to_texts(retriever):
    found, rows = listed(retriever, None)
    assert found == [[id_of(TEXTS[doc]) for doc in docs] for docs in (["a", "x"], ["p", "a"])]
    # Scores that do not fall, as distances, do not turn a list round.
    assert all(part["score"].is_sorted(descending=True) for part in rows.partition_by("query_id"))


def test_each_evaluated_query_is_asked_once_with_k_and_beside_other_runs():
    asked = []

    def mine(question, top_k=9):
        asked.append((question, top_k))
        return best(question)

    runs = {"mine": mine, "plain": {"1": ["x", "a"]}, "other": Thing(retrieve=best)}
    _, rows = listed(runs, TEXTS, limit=1)
    assert asked == [("capital of Aruba", 2)]
    assert rows.filter(run="plain")["doc_id"].to_list() == ["x", "a"]
    assert rows["run"].unique(maintain_order=True).to_list() == ["mine", "plain", "other"]


def broken(question):
    return {}["key"]


@pytest.mark.parametrize(
    ("retriever", "code"),
    [
        (broken, "retriever.raises"),
        (lambda question: "text", "retriever.value"),
        (lambda question: [object()], "runs.passageless"),
        (lambda question: [("a", "high")], "runs.score"),
        (lambda question: [], "runs.empty"),
        (lambda question: ["lost"], "inputs.passage"),
    ],
)  # fmt: skip
def test_what_a_retriever_does_wrong_is_one_line_with_the_query(retriever, code):
    with refused(code, text=retriever is not broken) as raised:
        listed({"mine": retriever}, TEXTS)
    if retriever is broken:
        line = broken.__code__.co_firstlineno + 1
        as_expected(str(raised.value).replace(f".py:{line}", ".py:LINE"))


def test_an_evaluation_takes_retrievers(tmp_path):
    result = engine.evaluate(
        ASKED, TEXTS, {"mine": best, "poor": lambda question: ["x"]}, answers=ANSWERS, k=2,
        measures="P@1", annotators="containment", end_to_end=False, progress=False, store=tmp_path,
    )  # fmt: skip
    assert result.leaderboard()["containment P@1"].to_list() == [1.0, 0.0]
