"""Judged texts as labels of the passages that cover them, by hand."""

import json
from difflib import SequenceMatcher
from pathlib import Path

import polars as pl
import pytest

from engine.evaluation.corpora import split_runs
from engine.evaluation.evaluate import evaluate
from engine.evaluation.inputs import InputFiles, read_inputs
from engine.evaluation.settings import Settings
from engine.labels.qrels import covered

# 27 characters, six words.
JUDGED = "one two three four five six"


@pytest.mark.parametrize(
    ("passage", "share"),
    [
        ("Before it. one  two three\nfour five six and after it", 1),
        ("two three four five six", 23 / 27),
        ("other words, one two three four five", 23 / 27),
        # Four words in a row may be chance; in two pieces none is long enough.
        ("one two three four", 0),
        ("one two three and then four five six", 0),
        ("", 0),
    ],
)
def test_a_passage_covers_the_characters_of_its_longest_run_of_words(passage, share):
    assert len(JUDGED) == 27
    found = covered(JUDGED.split(), SequenceMatcher(None, (), passage.split(), autojunk=False))
    assert found == pytest.approx(share)


def test_a_short_text_is_covered_as_a_whole_or_not_at_all():
    for passage, share in (("in Lima today", 1), ("in Peru today", 0)):
        matcher = SequenceMatcher(None, (), passage.split(), autojunk=False)
        assert covered(["Lima"], matcher) == share


def test_judged_texts_label_the_passages_of_every_cut(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("q.jsonl").write_text(
        '{"query_id": "a", "query": "how many"}\n{"query_id": "b", "query": "who"}\n'
    )
    cuts = {
        "whole": {"1": JUDGED, "2": "nothing of the kind stands here at all"},
        "halves": {"1": "zero one two three four five", "2": "six seven"},
    }
    for name, texts in cuts.items():
        rows = [json.dumps({"id": one, "text": text}) for one, text in texts.items()]
        Path(f"{name}.jsonl").write_text("\n".join(rows))
        Path(f"{name}.trec").write_text(
            "".join(f"{q} Q0 {d} {d} -{d} mine\n" for q in "ab" for d in "12")
        )
    judged = {
        "queries": [
            {"id": 7, "text": "how many", "relevant_docs": [{"doc": JUDGED, "relevance": 3}]}
        ]
    }
    Path("judged.json").write_text(json.dumps(judged, indent=1))
    runs, corpora = split_runs(
        ["whole.trec@whole", "halves.trec@halves"], ["whole.jsonl", "halves.jsonl"]
    )
    files = InputFiles(
        queries="q.jsonl",
        run=runs,
        corpora=corpora,
        tables={"qrels": "judged.json"},
        need_answers=False,
    )
    settings = Settings.of(
        annotators=("qrels",), end_to_end=False, k=2, measures="DCG@2 Success(rel=2)@2", resamples=0
    )
    result = evaluate(read_inputs(files, k=2), settings, store=tmp_path / "store")
    traces = {row["doc_id"]: (row["label"], row["carried"]) for row in result.traces.to_dicts()}
    # "one two three four five" has 23 of the 27 characters; b is not judged, and has no scores.
    assert traces == {
        "whole:1": (3, False), "whole:2": (0, False),
        "halves:1": (pytest.approx(3 * 23 / 27), True), "halves:2": (0, False),
    }  # fmt: skip
    scores = {
        (run, measure): value for run, _, measure, _, value in result.query_scores.iter_rows()
    }
    assert scores["mine@whole", "DCG@2"] == 3
    assert scores["mine@halves", "Success(rel=2)@2"] == 1
    assert set(result.query_scores["query_id"]) == {"a"}
    notes = {note.code: note.amount for note in result.notes if isinstance(note.amount, int)}
    assert (notes["carried_judgments"], notes["queries_without_judgments"]) == (1, 1)
    assert result.traces.schema["carried"] == pl.Boolean
