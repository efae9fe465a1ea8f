"""Functions of one's own as annotators, alone, in an evaluation, and as the README shows it."""

import json
import math
import re
from pathlib import Path

import pytest

from engine import tables
from engine.evaluation.evaluate import evaluate
from engine.evaluation.settings import Settings
from engine.inputs.files import EvaluationInputs
from engine.labels.annotator import Material
from engine.labels.user_function import from_function
from tests.conftest import make_run
from tests.expected import refused
from tests.tables import framed, label_rows

QUERIES = framed([("1", "red fox", ["Ann"], ["A"]), ("2", "blue", ["Bo"], [])], tables.QUERIES)
CORPUS = framed([("x", "Fox", "a red one", "A"), ("y", "", "Bo knows", "B")], tables.CORPUS)
RUN = make_run([("1", "x", 1), ("1", "y", 2), ("2", "y", 1)])
INPUTS = EvaluationInputs(queries=QUERIES, corpus=CORPUS, runs=RUN)
READING_NOTHING = Settings.of(
    k=2, measures="P@2", annotators=("containment",), end_to_end=False, resamples=0
)

MATERIAL = Material(
    queries=QUERIES,
    passages=CORPUS,
    runs=RUN,
    run_names=["sys"],
    pairs=RUN.select("query_id", "doc_id"),
    settings=READING_NOTHING,
)


def test_a_function_is_given_query_answers_title_and_text():
    asked = []

    def half(*given):
        asked.append(given)
        return 0.5

    labels = from_function("mine", half).label(MATERIAL).labels
    assert label_rows(labels) == [(q, d, "mine", 0.5) for q, d in ("1x", "1y", "2y")]
    assert asked == [
        ("red fox", ["Ann"], "Fox", "a red one"),
        ("red fox", ["Ann"], "", "Bo knows"),
        ("blue", ["Bo"], "", "Bo knows"),
    ]


@pytest.mark.parametrize("value", [1.01, -0.1, math.nan, math.inf, None, "good", "0.5"])
def test_values_that_are_no_labels_are_refused_with_their_pair(value):
    mine = from_function("mine", lambda query, *_: value if query == "blue" else 1)
    with refused("annotator.value"):
        mine.label(MATERIAL)


def test_an_annotator_has_a_name():
    with refused("annotator.nameless"):
        from_function(" ", lambda *_: 1.0)


def test_own_annotators_stand_beside_the_engines(tmp_path):
    red = from_function("red", lambda query, answers, title, text: "red" in text)
    settings = READING_NOTHING.but(annotators=("containment", red))
    result = evaluate(INPUTS, settings, store=tmp_path)
    values = {(a, q): v for _, a, _, q, v in result.query_scores.iter_rows()}
    # of two passages: x is red; y says Bo, the answer of 2
    assert values == {
        ("containment", "1"): 0, ("containment", "2"): 0.5, ("red", "1"): 0.5, ("red", "2"): 0,
    }  # fmt: skip
    assert set(result.traces["annotator"]) == {"containment", "red"}


MINE = from_function("mine", lambda *_: 1.0)


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (("containment", from_function("erag", len)), "annotator.ambiguous"),
        (("erag", MINE, from_function("mine", len)), "annotator.ambiguous"),
        (("containment", "erag", "containment"), "annotator.twice"),
        ((MINE, MINE), "annotator.twice"),
    ],
)
def test_a_name_stands_for_one_annotator_which_is_given_once(given, problem):
    with refused(problem):
        Settings.of(annotators=given)


def test_the_example_in_the_guide_runs(tmp_path, monkeypatch, capsys):
    guide = Path(__file__).parents[2] / "docs" / "guide" / "python.md"
    found = re.findall(r"```python\n(.*?)```", guide.read_text(encoding="utf-8"), re.S)
    (code,) = (c for c in found if "from_function" in c)
    monkeypatch.chdir(tmp_path)
    question = {"id": "1", "input": "red fox", "output": [{"answer": "Ann"}]}
    Path("questions.jsonl").write_text(json.dumps(question) + "\n")
    Path("passages.jsonl").write_text(
        json.dumps({"id": "x", "title": "", "text": "a red one"}) + "\n"
    )
    Path("mine.trec").write_text("1 Q0 x 1 1.0 mine\n")
    names = {}
    exec(compile(code, "python.md", "exec"), names)
    shared = names["result"].labels.filter(annotator="shared")
    assert shared["label"].to_list() == [0.5]
    assert "shared" in capsys.readouterr().out
