"""Judged texts as labels of the passages that cover them, by hand."""

import json
from difflib import SequenceMatcher
from pathlib import Path

import polars as pl
import pytest

from engine.evaluation.evaluate import evaluate
from engine.evaluation.settings import Settings
from engine.inputs.files import InputFiles, TableFile
from engine.inputs.read import read_inputs
from engine.labels.qrels import INPUT, covered
from engine.sources.runs.read import split_runs

# 27 characters, six words.
JUDGED = "one two three four five six"


@pytest.mark.parametrize(
    ("judged", "passage", "share"),
    [
        (JUDGED, "Before it. one  two three\nfour five six and after it", 1),
        (JUDGED, "two three four five six", 23 / 27),
        (JUDGED, "other words, one two three four five", 23 / 27),
        # Four words in a row may be chance; in two pieces none is long enough.
        (JUDGED, "one two three four", 0),
        (JUDGED, "one two three and then four five six", 0),
        (JUDGED, "", 0),
        # A short text is covered as a whole or not at all.
        ("Lima", "in Lima today", 1),
        ("Lima", "in Peru today", 0),
    ],
)
def test_a_passage_covers_the_characters_of_its_longest_run_of_words(judged, passage, share):
    found = covered(judged.split(), SequenceMatcher(None, (), passage.split(), autojunk=False))
    assert found == pytest.approx(share)


def evaluated(cuts, content, corpus=None):
    """The labels of all passages of every cut, and the result."""
    queries = {"a": ("how many", "Lima"), "b": ("who", "nobody")}
    rows = [
        {"query_id": name, "query": text, "answers": [answer]}
        for name, (text, answer) in queries.items()
    ]
    Path("q.jsonl").write_text("\n".join(map(json.dumps, rows)))
    for name, texts in cuts.items():
        rows = [json.dumps({"id": one, "text": text}) for one, text in texts.items()]
        Path(f"{name}.jsonl").write_text("\n".join(rows))
        Path(f"{name}.trec").write_text(
            "".join(f"{q} Q0 {d} {d} -{d} mine\n" for q in "ab" for d in "12")
        )
    Path("judged").write_text(content)
    runs, corpora = split_runs(
        [f"{name}.trec@{name}" for name in cuts], [f"{name}.jsonl" for name in cuts]
    )
    tables = {"qrels": TableFile("judged", INPUT, corpus)}
    files = InputFiles(queries="q.jsonl", run=runs, corpora=corpora, tables=tables)
    settings = Settings.of(
        annotators=("qrels",), end_to_end=False, k=2, measures="DCG@2 Success(rel=2)@2", resamples=0
    )
    result = evaluate(read_inputs(files, k=2), settings, store=Path("store"))
    labels = {}
    for row in result.traces.to_dicts():
        labels.setdefault(row["query_id"], {})[row["doc_id"]] = row["label"], row["carried"]
    return labels, result


def test_judged_texts_label_the_passages_of_every_cut(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    judged = {
        "queries": [
            {"id": 7, "text": "how many", "relevant_docs": [{"doc": JUDGED, "relevance": 3}]}
        ]
    }
    cuts = {
        "whole": {"1": JUDGED, "2": "nothing of the kind stands here at all"},
        "halves": {"1": "zero one two three four five", "2": "six seven"},
    }
    labels, result = evaluated(cuts, json.dumps(judged, indent=1))
    # "one two three four five" has 23 of the 27 characters; b is not judged, and has no scores.
    assert labels == {"a": {
        "whole:1": (3, False), "whole:2": (0, False),
        "halves:1": (pytest.approx(3 * 23 / 27), True), "halves:2": (0, False),
    }}  # fmt: skip
    scores = {
        (run, measure): value for run, _, measure, _, value in result.query_scores.iter_rows()
    }
    assert scores["mine@whole", "DCG@2"] == 3
    assert scores["mine@halves", "Success(rel=2)@2"] == 1
    assert set(result.query_scores["query_id"]) == {"a"}
    notes = {note.code: note.amount for note in result.notes if isinstance(note.amount, int)}
    assert (notes["carried_judgments"], notes["queries_without_judgments"]) == (1, 1)
    assert result.traces.schema["carried"] == pl.Boolean


def test_judgments_of_an_old_cut_are_carried_by_the_sentences_with_an_answer(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    # The e with its accent is two characters in both files; passages are composed when they are read.
    bearing = "The cafe\u0301 of that name is in Lima."
    cuts = {
        "old": {"1": f"It rains here in summer. {bearing}", "2": "no word of it is in here"},
        "new": {"1": f"It is old. {bearing}", "2": "It rains here in summer. no word of it is in"},
    }
    judged = "a 0 1 2\nb 0 2 1\na 0 2 0\n"
    labels, result = evaluated(cuts, judged, "old.jsonl")
    # Of the text that is judged for b, which holds no answer, 19 of 24 characters are in another passage.
    assert labels == {
        "a": {"old:1": (2, False), "old:2": (0, False), "new:1": (2, True), "new:2": (0, False)},
        "b": {
            "old:1": (0, False), "old:2": (1, False),
            "new:1": (0, False), "new:2": (pytest.approx(19 / 24), True),
        },
    }  # fmt: skip
    assert next(n.amount for n in result.notes if n.code == "carried_judgments") == 2
