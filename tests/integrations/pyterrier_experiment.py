"""PyTerrier's part of docs/guide/recipes.md: labels of one's own reader in an experiment, on results that need no Java."""

import sys

import own_llm
import pandas as pd
import pyterrier as pt
from pyterrier.measures import P, nDCG  # noqa: F401 - the guide's measure

import erag_engine

TEXTS = dict(zip(("aruba", "farm", "radium", "abacus"), own_llm.TEXTS, strict=True))
ORDERS = {
    "bm25": {"q1": "aruba abacus", "q2": "abacus farm", "q3": "radium abacus"},
    "dense": {"q1": "abacus aruba", "q2": "aruba radium"},  # nothing for q3
}


def retriever(lists):
    rows = [
        {"qid": query, "docno": name, "text": TEXTS[name], "rank": rank, "score": -rank}
        for query, names in lists.items()
        for rank, name in enumerate(names.split())
    ]
    return pt.Transformer.from_df(pd.DataFrame(rows))


topics = pd.DataFrame(own_llm.QUESTIONS.items(), columns=["qid", "query"])
bm25, dense = map(retriever, ORDERS.values())
answers, read = own_llm.ANSWERS, own_llm.ask
exec(own_llm.recipe(sys.argv[1], "PyTerrier"))
table, qrels = globals()["table"], globals()["qrels"]
# The engine's own figures for both runs, judged by the passages of both.
runs = {name: {q: own.split() for q, own in lists.items()} for name, lists in ORDERS.items()}
queries = {q: {"query": text, "answers": answers[q]} for q, text in own_llm.QUESTIONS.items()}
result = erag_engine.evaluate(queries, TEXTS, runs, reader=read, k=10, measures="nDCG@10")
means = dict(result.means.select("run", "value").iter_rows())
theirs = dict(zip(table["name"], table["nDCG@10"], strict=True))
assert all(abs(theirs[run] - means[run]) < 1e-12 for run in means), (theirs, means)
assert sorted(map(tuple, qrels.to_numpy())) == sorted(
    (q, name, int(own)) for q, found in result.qrels("erag").items() for name, own in found.items()
)
# Existing labels are the same judgments, and join results.
made = pt.erag.qrels(result.labels)
assert (
    made.sort_values(["qid", "docno"]).to_numpy().tolist()
    == qrels.sort_values(["qid", "docno"]).to_numpy().tolist()
)
joined = (bm25 >> pt.erag.Labels(labels=made))(topics)
assert joined["label"].tolist() == [1, 0, 0, 1, 1, 0], joined
# End-to-end scores beside the measures of labels, in pipelines that PyTerrier checks.
whole = pt.erag.Labels(answers, reader=read, end_to_end=True)
systems = {"bm25": bm25 >> whole, "dense": dense >> whole}
both = pt.Experiment(systems, topics, qrels, [P @ 1, pt.erag.downstream], validate="error")
board = {row["run"]: row["end_to_end"] for row in result.leaderboard().iter_rows(named=True)}
assert dict(zip(both["name"], both["downstream"], strict=True)) == board
assert board == {"bm25": 1, "dense": 1 / 3}
assert both["P@1"].tolist() == [2 / 3, 0]
# Labels that are not whole numbers.
graded = pt.erag.Labels(answers, reader=lambda p: ["old Oranjestad"] * len(p), metric="f1")
found = graded(bm25(topics))
code = ""
try:
    pt.erag.qrels(found)
except erag_engine.InputError as error:
    code = error.code
assert code == "qrels.fraction"
assert pt.erag.qrels(found, scale=100)["label"].tolist() == [66, 66, 0, 0, 0, 0]
