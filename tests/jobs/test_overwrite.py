"""A folder of results is only written again by the same evaluation, unless --overwrite says otherwise."""

import json

import pytest

from tests.commands import CONTAINMENT, erag, evaluate
from tests.expected import as_expected

ALONE = (*CONTAINMENT, "--k", 2, "--resamples", 0)


@pytest.fixture(autouse=True)
def pageless(monkeypatch):
    monkeypatch.setattr(
        "engine.report.page.remake.make_page", lambda *_, **__: None
    )  # takes seconds


@pytest.fixture
def other_run(files):
    other = files["run"].with_name("other.trec")
    other.write_text("1 Q0 b 1 2 other\n")
    return other


def refuse(files, capsys, *options):
    """Have an evaluation refused in one line; the folder stays as it is."""
    before = {path: path.read_bytes() for path in files["out"].glob("*.json")}
    capsys.readouterr()
    assert evaluate(files, *options) == 2
    (line,) = capsys.readouterr().err.splitlines()
    as_expected(line)
    after = {path: path.read_bytes() for path in files["out"].glob("*.json")}
    assert after == before


def test_the_same_evaluation_is_repeated_and_another_one_is_refused(files, capsys, other_run):
    assert evaluate(files, *ALONE) == 0
    # Neither what changes no figure nor another name of the same files makes it another one.
    renamed = files["queries"].rename(files["queries"].with_name("renamed.jsonl"))
    files |= {"queries": renamed}
    assert evaluate(files, *ALONE, "--actors", 1) == 0
    # Nor does what merely analyses the same scores again.
    again = ("--seed", 7, "--confidence", 0.9, "--cluster", "article")
    assert evaluate(files, *ALONE, *again) == 0
    assert json.loads((files["out"] / "summary.json").read_text())["configuration"]["seed"] == 7
    refuse(files, capsys, *ALONE, "--seed", 8, "--measures", "P@1")
    refuse(files, capsys, *ALONE, "--k-sweep", "1,2")
    several = (*ALONE, "--relevant", "list", "--run", other_run)
    refuse(files, capsys, *several)
    refuse(files, capsys, *ALONE, "--limit", 1)
    assert evaluate(files, *several, "--overwrite") == 0
    assert (
        len(json.loads((files["out"] / "summary.json").read_text())["configuration"]["runs"]) == 2
    )


def test_inputs_are_compared_before_anything_is_read(files, capsys, tiny_t5, tmp_path, other_run):
    options = ("--reader", tiny_t5, "--actors", 0, "--k", 2, "--resamples", 0)
    assert evaluate(files, *options, "--store", tmp_path / "first") == 0
    second = (*options, "--store", tmp_path / "second")
    refuse(files | {"run": other_run}, capsys, *second)
    assert not list((tmp_path / "second").rglob("*.parquet"))


@pytest.mark.parametrize("content", ["{", "[]", '{"configuration": {}}'])
def test_what_is_not_of_an_evaluation_is_not_replaced(files, capsys, content):
    files["out"].mkdir()
    (files["out"] / "summary.json").write_text(content)
    refuse(files, capsys, *ALONE)
    assert evaluate(files, *ALONE, "--overwrite") == 0


def test_a_demo_of_other_questions_is_refused_before_it_begins(files, capsys):
    assert evaluate(files, *ALONE) == 0
    before = sorted(files["out"].iterdir())
    capsys.readouterr()
    assert erag("demo", "--out", files["out"]) == 2
    as_expected(capsys.readouterr().err)
    assert sorted(files["out"].iterdir()) == before
