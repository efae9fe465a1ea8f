"""The LLM's labels as relevance judgments, in ir_measures.

Run it with ``python docs/examples/labels_as_qrels.py``; the extra ``all`` has ir_measures. ranx and pytrec_eval take the
same dictionaries.
"""

import ir_measures
from ir_measures import RR, P, nDCG

import erag_engine

queries = {
    "a": {"query": "what is the capital of Aruba", "answers": ["Oranjestad"]},
    "b": {"query": "who wrote Animal Farm", "answers": ["George Orwell"]},
    "c": {"query": "who discovered radium", "answers": ["Marie Curie"]},
}
passages = {
    "1": "The capital of Aruba is Oranjestad.",
    "2": "Animal Farm was written by George Orwell.",
    "3": "Marie Curie discovered radium.",
    "4": "Radium glows in the dark.",
}
run = {"a": {"1": 2.5, "4": 0.1}, "b": {"4": 1.1, "2": 0.9}, "c": {"3": 3.0, "4": 2.0}}


def read(prompts):
    """A stand-in for an LLM that answers from its passages."""
    names = ("Oranjestad", "George Orwell", "Marie Curie")
    return [next((name for name in names if name in prompt), "unknown") for prompt in prompts]


result = erag_engine.evaluate(
    queries, passages, {"mine": run}, reader=read, k=2, measures="nDCG@2 RR@2 P@1"
)
judgments = result.qrels("erag")  # {query_id: {doc_id: label}}

print(result.means.select("measure", "value"))
print(ir_measures.calc_aggregate([nDCG @ 2, RR @ 2, P @ 1], judgments, run))
