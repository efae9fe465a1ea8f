"""An LLM of your own and a metric of your own.

Run it with ``python docs/examples/own_llm_and_metric.py``. The LLM here is a stand-in of a few lines: put a
call of yours into ``answer``.
"""

import re
from concurrent.futures import ThreadPoolExecutor

import erag_engine


def answer(messages):
    """One chat: ``client.chat.completions.create(model=…, messages=messages)`` in earnest."""
    text = messages[-1]["content"]
    capitalized = re.findall(
        r"(?:[A-Z]\w+ ?)+", text.split("Passage:", 1)[-1].split("Question:")[0]
    )
    asked = text.rsplit("Question:", 1)[-1].lower()
    names = [name.strip() for name in capitalized if name.strip().lower() not in asked]
    return f"The answer is {names[0]}." if names else "I do not know."


def ask(chats):
    """All chats of a batch, eight at a time."""
    with ThreadPoolExecutor(8) as threads:
        return list(threads.map(answer, chats))


def contains(output, references):
    """1 if the output holds an answer, less a little for each word too many."""
    if not any(reference.lower() in output.lower() for reference in references):
        return 0.0
    return max(0.5, 1 - 0.1 * (len(output.split()) - 1))


def is_short(query, answers, title, text):
    """A label that needs no LLM."""
    return len(text.split()) <= 8


queries = [
    {"query_id": "a", "query": "what is the capital of Aruba", "answers": ["Oranjestad"]},
    {"query_id": "b", "query": "who wrote Animal Farm", "answers": ["George Orwell"]},
    {"query_id": "c", "query": "who discovered radium", "answers": ["Marie Curie"]},
]
passages = [
    {"doc_id": "1", "text": "the capital of Aruba is Oranjestad"},
    {"doc_id": "2", "text": "Animal Farm was written by George Orwell during the war"},
    {"doc_id": "3", "text": "Marie Curie discovered radium"},
    {"doc_id": "4", "text": "Radium glows in the dark"},
]
run = {"a": {"1": 2.5, "4": 0.1}, "b": {"4": 1.1, "2": 0.9}, "c": {"3": 3.0, "4": 2.0}}

# Reads are stored under name and version: change the version when the model, its settings or ``ask`` change.
reader = erag_engine.Reader(ask, name="my-llm", version="2026-11", messages=True)
result = erag_engine.evaluate(
    queries, passages, run, reader=reader, metric=contains, annotators=["erag", is_short], k=2
)
print(result)
print(result.table("traces").select("query_id", "doc_id", "annotator", "label", "output"))
