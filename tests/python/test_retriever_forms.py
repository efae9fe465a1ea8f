"""Retrievers as runs: what they may return, how they are called, and what is said where they fail."""

import re
from types import SimpleNamespace as Thing

import numpy as np
import pytest

import engine
from engine.evaluation.settings import Settings
from engine.messages.errors import InputError
from engine.python.input_forms import Given, inputs_of
from engine.sources.runs.read import id_of

QUERIES = {"1": "capital of Aruba", "2": "capital of Peru"}
ANSWERS = {"1": ["Oranjestad"], "2": ["Lima"]}
TEXTS = {"a": "Oranjestad, in Aruba", "p": "Lima, in Peru", "x": "an abacus"}
SETTINGS = Settings.of(k=2, annotators=("containment",), end_to_end=False)


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
    given = Given(QUERIES, passages, runs, answers=ANSWERS, **more)
    rows = inputs_of(given, SETTINGS).runs
    return [rows.filter(query_id=query)["doc_id"].to_list() for query in QUERIES], rows


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
    ("retriever", "words"),
    [
        (broken, r"^mine: the retriever raises KeyError: 'key' \(.*test_retriever_forms.py:{line}\) for query '1'; correct it$"),
        (lambda question: "text", "^mine: the retriever returns str for query '1'; return a list of passages, the best first$"),
        (lambda question: [object()], "^mine: query '1' lists .*, which has neither an id nor a text"),
        (lambda question: [("a", "high")], "^mine: score 'high' of query '1' is not a number"),
        (lambda question: [], "^mine: the run is empty"),
        (lambda question: ["lost"], "^mine: document 'lost' of query '1' not in the corpus `passages`"),
    ],
)  # fmt: skip
def test_what_a_retriever_does_wrong_is_one_line_with_the_query(retriever, words):
    line = broken.__code__.co_firstlineno + 1
    with pytest.raises(InputError, match=words.format(line=line) if "{line}" in words else words) as raised:  # fmt: skip
        listed({"mine": retriever}, TEXTS)
    assert re.fullmatch(".*", str(raised.value))


def test_an_evaluation_takes_retrievers(tmp_path):
    result = engine.evaluate(
        QUERIES, TEXTS, {"mine": best, "poor": lambda question: ["x"]}, answers=ANSWERS, k=2,
        measures="P@1", annotators="containment", end_to_end=False, progress=False, store=tmp_path,
    )  # fmt: skip
    assert result.leaderboard()["containment P@1"].to_list() == [1.0, 0.0]
