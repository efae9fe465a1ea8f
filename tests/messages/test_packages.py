"""An installed package of a few lines adds parts, which are used by name."""

import json
import os
import subprocess
import sys

import polars as pl
import pytest

import engine
from engine.messages.extras import provided
from engine.python.parts import metric_of, reader_of
from engine.ranking import measures
from tests.commands import erag, scores_of
from tests.expected import as_expected, refused

PACKAGE = '''
from engine.ranking.kinds.base import Measure, hits

class Any(Measure):
    """Whether a passage is relevant."""
    kind = "Any"

    def value(self, of):
        return (of.at(self.cutoff, hits, self.threshold) > 0) * 1.0

def read(prompts):
    return ["Oranjestad" if "Oranjestad" in prompt else "none" for prompt in prompts]

def half(output, references):
    return 0.5 * (output in references)

def titled(query, answers, title, text):
    return float(title in text)

def count(*, numbers: int = 3):
    """Count numbers."""
    print(list(range(numbers)))
'''
PARTS = {
    "readers": "parrot = more:read",
    "metrics": "half = more:half",
    "annotators": "by-title = more:titled",
    "measures": "Any = more:Any",
    "commands": "count = more:count",
}


def install(folder, module, parts):
    """A package as pip leaves it: its code, and its entry points."""
    (folder / f"{module}.py").write_text(PACKAGE)
    info = folder / f"{module}-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1\n")
    lines = [f"[erag.{kind}]\n{entry}\n" for kind, entry in parts.items()]
    (info / "entry_points.txt").write_text("".join(lines))


@pytest.fixture
def package(tmp_path, monkeypatch):
    folder = tmp_path / "installed"
    folder.mkdir()
    install(folder, "more", PARTS)
    monkeypatch.syspath_prepend(folder)
    for name in ("KINDS", "SYNONYMS"):
        monkeypatch.setattr(measures, name, dict(getattr(measures, name)))
    yield folder
    sys.modules.pop("more", None)


def test_a_command_takes_parts_of_a_package_by_their_names(package, files, tmp_path):
    given = [
        part for name in ("queries", "corpus", "run", "out") for part in (f"--{name}", files[name])
    ]
    more = (
        "--reader",
        "parrot",
        "--metric",
        "half",
        "--annotators",
        "erag,by-title",
        "--k",
        2,
        "--measures",
        "Any(rel=0.5)@1",
    )
    assert erag("evaluate", *given, *more, "--resamples", 0, "--store", tmp_path / "store") == 0
    labels = pl.read_parquet(files["out"] / "labels.parquet").sort(
        "annotator", "query_id", "doc_id"
    )
    assert labels["label"].to_list() == [1, 0, 1, 0, 0.5, 0, 0, 0]
    scores = scores_of(files["out"])
    assert scores.filter(measure="Any(rel=0.5)@1")["value"].mean() == 0.5
    settings = json.loads((files["out"] / "summary.json").read_text())["configuration"]
    assert [settings[key] for key in ("reader", "metric", "own_annotators")] == [
        "parrot",
        "half",
        ["by-title"],
    ]


def test_python_takes_parts_of_a_package_by_their_names(package, tmp_path):
    result = engine.evaluate(
        {"capital of Aruba": ["Oranjestad"]},
        {"a": "Oranjestad", "b": "Paris"},
        {"capital of Aruba": ["b", "a"]},
        reader="parrot", metric="half", annotators=["erag", "by-title"],
        progress=False, store=tmp_path, k=2, resamples=0,
    )  # fmt: skip
    assert result.labels.sort("annotator", "doc_id")["label"].to_list() == [1, 1, 0.5, 0]


def test_a_command_of_a_package_is_one_of_erag_and_is_loaded_when_it_runs(package):
    (package / "more.py").write_text(PACKAGE + "print('loaded')\n")
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(package), *sys.path])}

    def run(*words):
        command = [sys.executable, "-m", "jobs.cli", *words]
        return subprocess.run(command, capture_output=True, text=True, check=True, env=env).stdout

    assert run("count", "--numbers", "2").splitlines() == ["loaded", "[0, 1]"]
    listed = run("--help")
    assert "Count numbers." in listed
    assert "loaded" not in listed


def test_packages_that_clash_or_are_broken_leave_the_other_commands(package, tmp_path):
    install(tmp_path, "elsewhere", {"commands": "count = elsewhere:count"})
    install(tmp_path, "broken", {"commands": "lost = no_such_package.below:main"})
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(package), str(tmp_path), *sys.path])}

    def run(*words):
        command = [sys.executable, "-m", "jobs.cli", *words]
        return subprocess.run(command, capture_output=True, text=True, env=env)

    listed = run("--help")
    assert listed.returncode == 0
    assert {"elsewhere:count,", "more:count."} <= {*listed.stdout.split()}
    assert run("plan", "--help").returncode == run("train", "--help").returncode == 0
    twice = run("count")
    assert twice.returncode == 2
    as_expected(twice.stderr)


def test_a_name_of_the_engine_is_not_taken_over(package, monkeypatch):
    install_as = package / "other"
    install_as.mkdir()
    parts = {"metrics": "em = em_of_others:half", "readers": "bundled = em_of_others:read"}
    install(install_as, "em_of_others", parts)
    monkeypatch.syspath_prepend(install_as)
    assert (metric_of("em"), reader_of("bundled")) == ("em", "bundled")


def test_a_part_that_is_no_measure_is_refused(package, monkeypatch, tmp_path):
    install(tmp_path, "wrong", {"measures": "Half = wrong:half"})
    monkeypatch.syspath_prepend(tmp_path)
    with refused("measure.unusable"):
        measures.parse_measure("Half@3")


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        ("half = elsewhere:half", "package.twice"),
        ("broken = elsewhere:no_such_part", "package.unloadable"),
    ],
)
def test_parts_that_cannot_be_used_are_refused(package, monkeypatch, tmp_path, entry, problem):
    install(tmp_path, "elsewhere", {"metrics": entry})
    monkeypatch.syspath_prepend(tmp_path)
    with refused(problem):
        provided("metrics", entry.split(" = ")[0])
    sys.modules.pop("elsewhere", None)


def test_names_that_no_package_adds_stay_what_they_are(package):
    assert provided("metrics", "no-such-part") is None
