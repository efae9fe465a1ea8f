"""The folder ``exported`` of an evaluation as a data set of Hugging Face's ``datasets``, and in ir_measures."""

import datasets
import ir_measures
import own_llm
from ir_measures import P

import erag_engine

run = {key: [own_llm.TEXTS[place], own_llm.TEXTS[3]] for place, key in enumerate(own_llm.QUESTIONS)}
result = own_llm.evaluate({"good": run, "a+b": {key: texts[::-1] for key, texts in run.items()}})
result.save("results")
labels = datasets.load_dataset("results/exported", split="train")
assert labels.column_names == ["query_id", "doc_id", "annotator", "label"]
rows = [tuple(row.values()) for row in labels]
assert rows == erag_engine.load_labels("results/exported").rows() == result.labels.rows()
runs = datasets.load_dataset("results/exported", "runs", split="train")
assert {row["run"] for row in runs if row["rank"] == 1} == {"good", "a+b"}
qrels = [ir_measures.Qrel(row["query_id"], row["doc_id"], int(row["label"])) for row in labels]
for name, mean in (("good", 1.0), ("a+b", 0.0)):
    listed = [
        ir_measures.ScoredDoc(row["query_id"], row["doc_id"], -row["rank"])
        for row in runs
        if row["run"] == name
    ]
    assert ir_measures.calc_aggregate([P @ 1], qrels, listed) == {P @ 1: mean}
    files = "results/exported/qrels/erag.txt", f"results/exported/runs/{name}.trec"
    judged, ranked = ir_measures.read_trec_qrels(files[0]), ir_measures.read_trec_run(files[1])
    assert ir_measures.calc_aggregate([P @ 1], judged, ranked) == {P @ 1: mean}
