"""Names that are gone answer with their replacement, at every door."""

import pytest

import engine
from engine.evaluation.settings import Settings
from engine.messages import gone
from tests.commands import erag
from tests.expected import as_expected, refused

ROWS = {
    ("command", "weigh"): "use erag measure",
    ("option", "old_way"): "write it as a run",
    ("annotator", "oracle"): "use erag",
    ("name", "engine.weighing"): "use engine.evaluate",
}


@pytest.fixture(autouse=True)
def _rows(monkeypatch):
    for key, instead in ROWS.items():
        monkeypatch.setitem(gone.GONE, key, instead)


def test_a_command_that_is_gone(capsys):
    assert erag("weigh", "--queries", "q.jsonl") == 2
    assert capsys.readouterr().err == "erag: the command weigh is gone: use erag measure\n"


@pytest.mark.parametrize("written", ["--old-way", "--old-way=3"])
def test_an_option_that_is_gone(written, capsys):
    assert erag("fuse", written) == 2
    as_expected(capsys.readouterr().err)


def test_an_option_that_is_gone_in_a_file(tmp_path, capsys):
    config = tmp_path / "options.yaml"
    config.write_text("k: 5\nold-way: 3\n")
    assert erag("fuse", "--config", config) == 2
    as_expected(capsys.readouterr().err)


def test_a_variable_of_an_option_that_is_gone(monkeypatch, capsys):
    monkeypatch.setenv("ERAG_OLD_WAY", "3")
    assert erag("fuse", "a.trec", "b.trec") == 2
    as_expected(capsys.readouterr().err)


def test_an_option_that_another_command_still_has(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(gone.GONE, ("option", "name"), "use labels")
    monkeypatch.setenv("ERAG_NAME", "mine")
    config = tmp_path / "options.yaml"
    config.write_text("name: mine\n")
    erag("fuse", tmp_path / "none.trec", "--config", config)
    assert "gone" not in capsys.readouterr().err


def test_names_that_are_gone_in_python():
    with pytest.raises(TypeError) as caught:
        Settings.of(old_way=3)
    as_expected(str(caught.value))
    with refused("annotator.gone"):
        Settings.of(annotators=("oracle",))
    with pytest.raises(AttributeError) as caught:
        _ = engine.weighing
    as_expected(str(caught.value))
