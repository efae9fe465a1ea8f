"""The examples of the documentation run, and say what they are there to say."""

import json
import re
import runpy
import subprocess
from pathlib import Path

import pytest

from tests.commands import erag

ROOT = Path(__file__).parent.parent
EXAMPLES = ROOT / "docs" / "examples"


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Run an example in an empty folder, with a store of its own; its variables."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ERAG_CACHE", str(tmp_path / "cache"))
    return lambda name: runpy.run_path(str(EXAMPLES / f"{name}.py"))


def test_the_readme_shows_what_its_example_prints(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ERAG_CACHE", str(tmp_path / "cache"))
    code, printed = re.search(
        r"```python\n(.*?)```\n\n```\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL
    ).groups()
    Path("example.py").write_text(code)
    runpy.run_path("example.py")
    assert printed in capsys.readouterr().out


def test_three_retrievers(run, capsys):
    result = run("three_retrievers")["result"]
    assert result.verdict.startswith("Choose tf-idf.\n")
    assert "Choose tf-idf." in capsys.readouterr().out
    assert "Oranjestad is the capital of Aruba." in Path("three_retrievers.html").read_text()


def test_which_chunking(run):
    result = run("which_chunking")["result"]
    assert result.verdict.startswith("Choose two@two.\n")
    # A sentence with a capital names no country; four sentences mention another capital every other time.
    whole = {row["run"]: row["value"] for row in result.summary["end_to_end"]}
    assert whole == {"one@one": 0, "two@two": 1, "four@four": 0.5}


def test_asking(run, capsys, monkeypatch):
    real = subprocess.run

    def here(words, **more):  # another process would import all of it again
        return erag(*words[1:]) if words[0] == "erag" else real(words, **more)

    monkeypatch.setattr(subprocess, "run", here)
    found = run("asking")["found"]
    # Five of six differ, and the person prefers the capital in each.
    assert (found["run"], found["n"], found["of"]) == ("capitals", 5, 6)
    assert found["difference"] == pytest.approx(5 / 6)
    assert "people prefer capitals to names by 0.83 [" in capsys.readouterr().out


def test_api_embeddings(run):
    names = run("api_embeddings")
    assert names["run"].select("query_id", "doc_id").rows() == [("a", "1"), ("b", "3")]
    # Six requests tried the server, with the same text; passages and queries were sent once.
    assert len(names["asked"]) == 6 + 3 + 2
    assert len(set(names["asked"])) == 1 + 3 + 2


def test_own_llm_and_metric(run):
    names = run("own_llm_and_metric")
    labels = names["result"].labels.filter(annotator="erag").sort("query_id", "doc_id")
    # "The answer is Oranjestad." is right and has three words too many; George Orwell and Marie Curie have
    # four. Nothing is answered from the passage on radium's glow.
    assert labels["label"].to_list() == pytest.approx([0.7, 0, 0.6, 0, 0.6, 0])
    assert names["result"].summary["reader"]["version"] == "2026-11"


def test_labels_as_qrels(run, capsys):
    names = run("labels_as_qrels")
    assert names["judgments"] == {
        "a": {"1": 1, "4": 0},
        "b": {"4": 0, "2": 1},
        "c": {"3": 1, "4": 0},
    }
    own = sorted(round(value, 9) for value in names["result"].means["value"])
    theirs = capsys.readouterr().out.splitlines()[-1]
    assert sorted(round(float(v), 9) for v in re.findall(r"0\.\d{5,}", theirs)) == own


def test_notebook(tmp_path, monkeypatch):
    """Its cells run, as a script, and find what its outputs show; these are small and say nothing of a machine."""
    text = (EXAMPLES / "notebook.ipynb").read_text(encoding="utf-8")
    cells = [cell for cell in json.loads(text)["cells"] if cell["cell_type"] == "code"]
    code = "\n".join("".join(cell["source"]) for cell in cells)
    monkeypatch.setenv("ERAG_CACHE", str(tmp_path))
    names: dict[str, object] = {}
    exec(compile(re.sub(r"^%.*$", "", code, flags=re.M), "notebook", "exec"), names)
    shown = [line for cell in cells for one in cell["outputs"] for line in one.get("text", ())]
    assert [line.rstrip("\n") for line in shown] == names["result"].verdict.splitlines()
    assert all(cell["execution_count"] and cell["outputs"] for cell in cells[1:])
    assert len(text) < 30_000
    assert not re.search(r"/(home|root|tmp|work)/", text)


def test_every_example_is_run_here_and_named_in_the_guide():
    names = {path.stem for path in EXAMPLES.iterdir()}
    guide = (ROOT / "docs" / "guide" / "python.md").read_text()
    assert names == set(re.findall(r"examples/(\w+)\.(?:py|ipynb)\)", guide))
    assert names == {
        name.removeprefix("test_") for name in globals() if name.removeprefix("test_") in names
    }


def test_the_toy_task_of_the_guide_takes_at_most_13_lines(tmp_path, monkeypatch, capsys):
    guide = (ROOT / "docs" / "guide" / "python.md").read_text()
    code, shown = re.findall(r"```(?:python)?\n(.*?)```", guide, re.S)[:2]
    assert len([line for line in code.splitlines() if line.strip()]) <= 13
    assert max(map(len, code.splitlines())) <= 120
    monkeypatch.setenv("ERAG_CACHE", str(tmp_path))
    names: dict[str, object] = {}
    exec(compile(code, "python.md", "exec"), names)
    # What the guide shows is what it prints.
    assert capsys.readouterr().out.strip() == shown.strip()
    assert not list(tmp_path.iterdir())
