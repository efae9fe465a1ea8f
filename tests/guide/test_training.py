"""The guide of training: its commands and its code as they stand there, on the made-up facts."""

import re
import shlex
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest

from tests.commands import erag
from tests.training.facts import facts, save_start, write_files

PAGE = Path(__file__).parents[2] / "docs" / "guide" / "training.md"


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder with the files that the page names."""
    train, dev = facts(640, 1), facts(100, 2)
    both = replace(train, corpus=pl.concat([train.corpus, dev.corpus]))
    for name, readings in (("dev", dev), ("train", both)):
        paths = write_files(readings, tmp_path, name)
        paths["queries"].rename(tmp_path / f"{name}.queries.jsonl")
        paths["run"].rename(tmp_path / f"{name}.trec")
        paths["corpus"].rename(tmp_path / "passages.jsonl")
        (tmp_path / f"{name}.queries.jsonl").rename(tmp_path / f"{name}.jsonl")
    save_start(tmp_path / "start")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def words(command):
    """The words behind the program's name, as a shell takes them."""
    return shlex.split(command.replace("\\\n", " "))[1:]


@pytest.mark.slow
def test_the_commands_of_the_page_train_and_evaluate(place, capsys):
    text = PAGE.read_text(encoding="utf-8")
    shown = re.search(r"```\n(erag train .*?)\n\n(.*?)```", text, re.S)
    evaluating = re.search(r"```\n(erag evaluate .*?)\n```", text, re.S)
    assert erag(*words(shown[1])) == 0
    said = capsys.readouterr()
    steps = re.findall(r"^start .*$", shown[2], re.M)
    assert steps[0] in said.out
    best = re.search(r"queries: 0\.0000 [^,]*, (1|0)\.\d+", said.out)
    assert best, said.out
    assert "model -> facts/model" in said.out
    assert erag(*words(evaluating[1]), "--actors", 0, "--store", place / "store") == 0


@pytest.mark.slow
def test_the_code_of_the_page_trains(place, capsys):
    page = PAGE.parents[1] / "reference" / "stages.md"
    code = page.read_text(encoding="utf-8").split("## Training")[1]
    (code,) = re.findall(r"```python\n(.*?)```", code, re.S)
    exec(compile(code, str(page), "exec"), {})
    best, loss = map(float, capsys.readouterr().out.split())
    assert best > 0.9
    assert loss < 0.5
    assert (place / "facts-model" / "model.safetensors").exists()
