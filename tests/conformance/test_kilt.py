import json
import sys

import pytest

from engine.conformance import kilt
from engine.conformance.kilt import compare_kilt
from engine.messages.errors import InputError

# The names that KILT's script gives its functions; the bodies are ours, by its definitions.
SCRIPT = """
from collections import Counter
import re, string
from rouge import Rouge

def get_gold_answers(gold):
    return {o["answer"].strip() for o in gold["output"] if (o.get("answer") or "").strip()}

def _words(text):
    kept = "".join(c for c in text.lower() if c not in string.punctuation)
    return re.sub(r"\\b(a|an|the)\\b", " ", kept).split()

def _metric_max_over_ground_truths(function, guess, answers):
    return max(function(guess, answer) for answer in answers)

def _exact_match_score(guess, answer):
    return _words(guess) == _words(answer)

def _f1_score(guess, answer):
    a, b = _words(guess), _words(answer)
    same = sum((Counter(a) & Counter(b)).values())
    return 2 * same / (len(a) + len(b)) if same else 0

def _rougel_score(guess, answer):
    return Rouge().get_scores(guess, answer, avg=True)["rouge-l"]["f"]
"""


@pytest.fixture
def script(tmp_path, monkeypatch):
    """A package ``kilt`` that can be imported."""
    package = tmp_path / "site" / "kilt"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "eval_downstream.py").write_text(SCRIPT)
    for name in ("kilt", "kilt.eval_downstream"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.syspath_prepend(tmp_path / "site")
    yield
    for name in ("kilt", "kilt.eval_downstream"):
        sys.modules.pop(name, None)


@pytest.fixture
def check(tmp_path):
    """Compare (id, answers, guess): rows by package and our name."""

    def compare(items):
        gold = [
            {"id": i, "input": "x", "output": [{"answer": a} for a in answers]}
            for i, answers, _ in items
        ]
        guess = [{"id": i, "output": [{"answer": g, "provenance": []}]} for i, _, g in items]
        for name, rows in (("gold", gold), ("guess", guess)):
            (tmp_path / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
        found = compare_kilt(tmp_path / "gold", tmp_path / "guess")
        return found, {(r.package, row.measure): row for r in found.references for row in r.rows}

    return compare


ITEMS = [
    ("1", ["Paris", "City of Paris"], "the city of paris."),
    ("2", ["George Orwell"], "Orwell"),
    ("3", ["SUPPORTS"], "SUPPORTS"),
    ("4", ["SUPPORTS"], "supports"),
    ("5", ["café", "4 August 1961"], "August 4, 1961"),
    ("6", ["Madrid, Spain", " "], "Madrid"),
    ("7", ["x . y z"], "z y x"),
]


def test_all_references_agree(check, script):
    found, rows = check(ITEMS)
    assert [(r.package, r.version is None) for r in found.references] == [
        ("kilt", False),
        ("transformers", False),
        ("rouge", False),
    ]
    assert set(rows) == {
        *(("kilt", name) for name in ("em", "f1", "accuracy", "rouge-l-kilt")),
        ("transformers", "em"),
        ("transformers", "f1"),
        ("rouge", "rouge-l-kilt"),
    }
    assert [key for key, row in rows.items() if not row.agrees(1e-12)] == []
    assert {row.n for row in rows.values()} == {7}
    # em: items 1, 3 and 4; accuracy: item 3 alone
    assert rows["kilt", "em"].our_mean == rows["transformers", "em"].their_mean == 3 / 7
    assert rows["kilt", "accuracy"].their_mean == 1 / 7


def test_answers_that_normalize_to_nothing_differ_by_declared_rules(check, script):
    items = [*ITEMS, ("8", ["The Who", "The"], "a"), ("9", ["!"], "The"), ("10", ["A"], "b")]
    found, rows = check(items)
    # KILT: items 8 and 9 are exact matches; SQuAD passes over "The", and counts item 9 only.
    em, exact, f1 = rows["kilt", "em"], rows["transformers", "em"], rows["transformers", "f1"]
    assert (em.our_mean, em.their_mean, exact.their_mean) == (0.3, 0.5, 0.4)
    for row, at in ((em, "8"), (exact, "9"), (f1, "9")):
        assert (row.difference, row.at, row.rule, row.remaining) == (1, at, "empty answers", 0)
    assert rows["kilt", "f1"].agrees(1e-12)
    assert found.notes[0].startswith(
        "10 items; 3 of them have an answer that normalizes to nothing"
    )


def test_texts_that_rouge_fails_on_are_left_out_and_counted(check, script):
    items = [*ITEMS, ("8", ["."], "yes"), ("9", ["v"], "w " * 1200)]
    found, rows = check(items)
    for package, name in (("kilt", "rougel"), ("rouge", "rouge-l f")):
        assert rows[package, "rouge-l-kilt"].n == 7
        assert rows[package, "rouge-l-kilt"].agrees(1e-12)
        rules = next(r.rules for r in found.references if r.package == package)
        assert rules[-1] == f"2 items that {name} fails on are left out of it"
    assert rows["kilt", "em"].n == 9


def test_a_wrong_value_of_the_engine_is_found(check, script, monkeypatch):
    right = kilt.get_metric
    wrong = {"f1": lambda guess, answers: right("f1")(guess, answers) + (guess == "Orwell") / 10}
    monkeypatch.setattr(kilt, "get_metric", lambda name: wrong.get(name, right(name)))
    _, rows = check(ITEMS)
    for package in ("kilt", "transformers"):
        assert rows[package, "f1"].difference == pytest.approx(0.1)
        assert rows[package, "f1"].at == "2"
        assert not rows[package, "f1"].conforms(1e-12)
        assert rows[package, "em"].agrees(0)


def test_references_that_are_not_installed_are_listed(check, monkeypatch):
    monkeypatch.setitem(sys.modules, "kilt", None)
    found, rows = check(ITEMS[:2])
    assert {package for package, _ in rows} == {"transformers", "rouge"}
    assert found.references[0].version is None
    assert found.references[0].install == "pip install git+https://github.com/facebookresearch/KILT"


def line(**fields):
    return json.dumps({"id": "1", "input": "x", "output": [{"answer": "y"}], **fields}) + "\n"


@pytest.mark.parametrize(
    ("gold", "guess", "words"),
    [
        (line() + line(id="2"), line(), "gold:2: no prediction for item '2'"),
        (line(), line() + "\n" + line(id="z"), "guess:3: item 'z' is not in"),
        (line(), line() + line(), "guess:2: item '1' is predicted twice"),
        (line() + line(id=2, output=[{"answer": " "}]), line() + line(id=2), "gold:2: item '2' has no answers"),
        (line(), line(output=[]), "guess:1: the prediction of item '1' is not exactly one output"),
        (line(), line(output=[{"answer": "a"}, {"answer": "b"}]), "guess:1: the prediction"),
        (line(), line(output=[{"answer": " "}]), "guess:1: the prediction of item '1'"),
        (line(), line(output=[{"provenance": []}]), "guess:1: the prediction of item '1'"),
        (line(), line(output="y"), "guess:1: the prediction of item '1'"),
        (line(), line(output=[{"answer": "\ud800"}]), "guess:1: item '1' holds half a surrogate"),
        (line(), '{"id": "1"', "guess:1: broken JSON"),
        (line(), "[1]\n", "guess:1: a JSON list, not an object"),
        (line(input=""), line(), "query '1' is empty"),
        (line() * 2, line(), "gold:2: duplicate query id '1'"),
        ("", line(), "gold: no queries"),
        (line(), "", "gold:1: no prediction for item '1'"),
    ],
)  # fmt: skip
def test_bad_input_names_file_and_line(tmp_path, gold, guess, words):
    (tmp_path / "gold").write_text(gold)
    (tmp_path / "guess").write_text(guess)
    with pytest.raises(InputError) as error:
        compare_kilt(tmp_path / "gold", tmp_path / "guess")
    assert words in str(error.value)


def test_gold_in_parquet_is_refused(tmp_path):
    (tmp_path / "gold.parquet").write_bytes(b"")
    with pytest.raises(InputError, match=r"gold\.parquet: is Parquet"):
        compare_kilt(tmp_path / "gold.parquet", tmp_path / "guess")
