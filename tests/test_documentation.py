"""Every command that the documentation shows: it exists, its options do, and it runs."""

import bz2
import importlib.util
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import polars as pl
import pytest
from safetensors.torch import load_file, save_file

from engine import tables
from tests.commands import options_in
from tests.conftest import save_tiny_t5
from tests.reading.remote.server import Behaviour, Said, serving

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
_FENCED = re.compile(r"^```\w*\n(.*?)^```", re.M | re.S)
_INDENTED = re.compile(r"(?:^ {4}.*\n)+", re.M)
# A row or a line of what is printed may begin with the name of an annotator.
_OF_ERAG = "demo|passages|index|retrieve|fuse|plan|evaluate|train|report|repeat|coverage|doctor|ask"
_COMMAND = re.compile(
    rf"(?:(?:ERAG_\w+=\S+ )*erag (?:{_OF_ERAG})\b|python -m |make [a-z]|pip install |ray |kubectl )"
)
# What an ellipsis stands for where a command shows nothing but what a page is about.
_OF_AN_EVALUATION = "--queries questions.jsonl --corpus passages.jsonl --run mine.trec"


def shown():
    """Every command in a block of code: its page, and the command on one line."""
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        blocks = [*_FENCED.findall(text), *_INDENTED.findall(_FENCED.sub("", text))]
        for block in blocks:
            for line in re.sub(r"\\\n\s*", "", block).splitlines():
                command = re.sub(r"^\s*(\$ )?", "", line)
                if _COMMAND.match(command):
                    yield str(page.relative_to(ROOT)), command


def whole(command):
    """The words of a command of erag, with the files of an evaluation where it leaves these out; no variables."""
    words = shlex.split(command.replace("…", _OF_AN_EVALUATION), comments=True)
    words = words[words.index("erag") :]
    # What a shell does with its output is not its.
    ends = (words.index(sign) for sign in ("|", ">", "&&") if sign in words)
    words = words[: min(ends, default=len(words))]
    if "…" in command and "--out" not in words:
        words += ["--out", "results"]
    return words


SHOWN = list(dict.fromkeys(shown()))
OF_ERAG = [
    (page, command) for page, command in SHOWN if re.match(r"(ERAG_\w+=\S+ )*erag ", command)
]


def test_commands_are_found():
    assert len(OF_ERAG) > 15


@pytest.mark.parametrize(("page", "command"), OF_ERAG)
def test_every_option_that_is_shown_exists(page, command):
    from jobs.cli import app

    words = whole(command)[1:]
    app.parse_args(words, exit_on_error=False, print_error=False)


def test_commands_that_need_a_cluster_stand_on_its_page_which_says_so():
    pages = {page for page, command in SHOWN if re.match("ray |kubectl", command)}
    assert pages == {"docs/cluster.md"}  # its commands: tests/cluster/test_files.py
    assert (
        "never run" in (ROOT / "docs/index.md").read_text(encoding="utf-8").split("cluster.md")[1]
    )


def test_targets_of_make_exist():
    rules = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = {
        shlex.split(command, comments=True)[1]
        for _, command in SHOWN
        if command.startswith("make ")
    }
    assert {"demo", "test"} <= targets
    assert all(re.search(rf"^{target}:", rules, re.M) for target in targets), targets


def test_what_pip_installs_is_declared():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    pins = (ROOT / "constraints.txt").read_text(encoding="utf-8").lower().splitlines()
    for _, command in SHOWN:
        if not command.startswith("pip install "):
            continue
        for word in shlex.split(command, comments=True)[2:]:
            if named := re.search(r"erag[-_]engine.*\[([\w,-]+)\]", word):
                assert set(named[1].split(",")) <= extras.keys(), command
            elif "==" in word:
                assert word.lower() in pins, command


@pytest.mark.parametrize("command", [c for _, c in SHOWN if c.startswith("python -m benchmarks")])
def test_options_of_benchmarks_exist(command, tmp_path, monkeypatch, capsys):
    words = shlex.split(command, comments=True)
    assert importlib.util.find_spec(words[2]) is not None
    monkeypatch.chdir(tmp_path)
    module = importlib.import_module(
        f"{words[2]}.__main__"
        if words[2].count(".") == 1 and (ROOT / words[2].replace(".", "/")).is_dir()
        else words[2]
    )
    with pytest.raises(SystemExit) as stop:
        module.main([*words[3:], "--help"])
    assert not stop.value.code
    known = options_in(capsys.readouterr().out)
    assert {word for word in words[3:] if word.startswith("--")} <= known


def test_the_retriever_of_the_first_steps_writes_a_run(tmp_path, monkeypatch):
    from engine.sources.runs.read import read_runs

    page = (ROOT / "docs" / "getting-started.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", page, re.S)
    (tmp_path / "demo-out").mkdir()
    rows = [(*row, row[1]) for row in PASSAGES]
    corpus = pl.DataFrame(rows, schema=tables.CORPUS, orient="row")
    corpus.write_parquet(tmp_path / "demo-out" / "corpus.parquet")
    asked = [(one, text, [answer], [title]) for one, (text, answer, title) in QUESTIONS.items()]
    queries = pl.DataFrame(asked, schema=tables.QUERIES, orient="row")
    queries.write_parquet(tmp_path / "demo-out" / "queries.parquet")
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "getting-started.md", "exec"), {})
    run = read_runs([tmp_path / "mine.trec"])
    assert run.filter(rank=1)["doc_id"].to_list() == ["a", "b", "c"]
    assert run.height == 9


# Commands that other tests run, on what their pages show beside them; make demo is run by whoever builds.
ELSEWHERE = {
    "docs/guide/agents.md": "tests/guide/test_agents.py",
    "docs/guide/asking.md": "tests/report/page/test_asking.py",
    "docs/guide/recipes.md": "tests/guide/test_recipes.py",
    "docs/guide/korean.md": "tests/guide/test_korean.py",
    "docs/guide/training.md": "tests/guide/test_training.py",
}

# From here on: the commands run, on files of these names.

QUESTIONS = {
    "1": ("what is the capital of aruba", "Oranjestad", "Aruba"),
    "2": ("who wrote animal farm", "George Orwell", "Animal Farm"),
    "3": ("which animal purrs", "cat", "Cat"),
}
PASSAGES = [
    ("a", "Aruba", "The capital of Aruba is Oranjestad."),
    ("b", "Animal Farm", "Animal Farm is a novella by George Orwell."),
    ("c", "Cat", "A cat purrs when it is content."),
]


def _queries():
    return "".join(
        json.dumps(
            {
                "id": one,
                "input": text,
                "output": [{"answer": answer}, {"provenance": [{"wikipedia_id": title}]}],
            }
        )
        + "\n"
        for one, (text, answer, title) in QUESTIONS.items()
    )


def _run(name, docs):
    lines = (
        f"{one} Q0 {doc} {rank} {9 - rank} {name}\n"
        for one in QUESTIONS
        for rank, doc in enumerate(docs, 1)
    )
    return "".join(lines)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with every file that the documentation names, small."""
    from engine.sources.queries.read import read_query_set
    from engine.sources.runs.read import read_runs
    from tests.retrieval.tiny_encoder import save_tiny_qwen3

    folder = tmp_path_factory.mktemp("shown")
    questions = _queries()
    for name in ("questions", "queries", "triviaqa", "nq", "DATA/queries"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / f"{name}.jsonl").write_text(questions)
    passages = "".join(
        json.dumps(dict(zip(("id", "title", "text"), row, strict=True))) + "\n" for row in PASSAGES
    )
    corpus = pl.DataFrame([(*row, row[1]) for row in PASSAGES], schema=tables.CORPUS, orient="row")
    for name in ("passages", "c", "DATA/corpus"):
        (folder / f"{name}.jsonl").write_text(passages)
    corpus.select("doc_id", "title", "text").write_csv(folder / "passages.csv")
    for name in ("passages", "corpus", "demo-out/corpus"):
        (folder / name).parent.mkdir(exist_ok=True)
        corpus.write_parquet(folder / f"{name}.parquet")
    rows = "".join(f"{one}\t{text}\t{title}\n" for one, title, text in PASSAGES)
    (folder / "psgs_w100.tsv").write_text(f"id\ttext\ttitle\n{rows}")
    listed = {"mine": "abc", "other": "cba", "bm25": "acb", "nq-bm25": "abc", "dense": "bca"}
    listed |= {"main/bm25": "abc", "branch/bm25": "acb", "branch": "acb"}
    for name, docs in listed.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / f"{name}.trec").write_text(_run(Path(name).name, docs))
    read_runs([folder / "mine.trec"]).with_columns(run=pl.lit("dense")).write_parquet(
        folder / "dense.parquet"
    )
    (folder / "qrels.txt").write_text("1 0 a 1\n2 0 b 1\n3 0 c 1\n")
    (folder / "build" / "reader").mkdir(parents=True)
    asked = read_query_set(folder / "questions.jsonl").table
    for name in ("demo-out/queries", "build/reader/questions"):
        asked.write_parquet(folder / f"{name}.parquet")
    read_runs([folder / "bm25.trec"]).write_parquet(folder / "demo-out" / "run.parquet")
    pages = "".join(
        f"<page><title>{title}</title><ns>0</ns><id>{number}</id><revision><id>1</id><text>{text}</text></revision></page>\n"
        for number, (_, title, text) in enumerate(PASSAGES)
    )
    dump = f'<mediawiki xmlns="http://www.mediawiki.org/xml/export-0.10/">\n{pages}</mediawiki>'
    (folder / "wikipedia.xml.bz2").write_bytes(bz2.compress(dump.encode()))
    (folder / "options.yaml").write_text("reader: ./my-llm\nmetric: em\nk: 10\nend-to-end: true\n")
    (folder / "claims.jsonl").write_text(
        re.sub(r'"answer": "[^"]*"', '"answer": "SUPPORTS"', questions)
    )
    own = {"nq": "queries: nq.jsonl\n", "claims": "queries: claims.jsonl\ntask: claims\nmetric: accuracy\n"}  # fmt: skip
    for name, options in own.items():
        (folder / f"{name}.yaml").write_text(f"corpus: passages.jsonl\nrun: mine.trec\n{options}")
    (folder / "answers.jsonl").touch()  # commands before have stored what is asked
    (folder / "my_llm.py").write_text(
        "def ask(prompts):\n    return ['Oranjestad' for _ in prompts]\n\n"
        "def contains(output, references):\n    return float(any(r in output for r in references))\n\n"
        "def is_short(query, answers, title, text):\n    return float(len(text) < 40)\n"
    )
    save_tiny_qwen3(folder / "Qwen/Qwen3-Embedding-0.6B", size=512)
    for name in ("small", "large", "my-llm"):
        save_tiny_t5(folder / name, "Yes", "No", "NO-RESPONSE", name)
        _flatten(folder / name)
    return folder


def _flatten(reader):
    """Have a random reader mean all words alike, so that it means each choice it is given."""
    (weights,) = reader.glob("*.safetensors")
    tensors = load_file(weights)
    tensors["shared.weight"] *= 0.05
    save_file(tensors, weights, {"format": "pt"})


def _say(body):
    return Said("Oranjestad", {"yes": -0.1, "no": -2.0}, prompt_tokens=40)


@pytest.fixture(scope="module")
def server():
    with serving(Behaviour(_say)) as url:
        yield url


@pytest.mark.slow
def test_every_command_that_is_shown_runs(place, server, subtests):
    """One after the other, as they stand in the pages: some take what others wrote."""
    addresses = {
        "/models/": "./",
        "/shared/": "shared/",
        "s3://bucket/": f"{(place / 'bucket').as_uri()}/",
    }
    environment = os.environ | {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "ERAG_CACHE": str(place / "cache"),
        "OPENAI_API_KEY": "none",
        "OPENAI_BASE_URL": server,
        "LITELLM_MASTER_KEY": "none",
    }
    for page, command in OF_ERAG:
        if page in ELSEWHERE:
            assert Path(page).name in (ROOT / ELSEWHERE[page]).read_text(encoding="utf-8")
            continue
        if command.startswith("erag demo"):
            continue
        with subtests.test(page=page, command=command):
            words = whole(command)
            if "vllm" in words and importlib.util.find_spec("vllm") is None:
                pytest.skip("vLLM is not installed")
            if words[1] == "evaluate":  # pages give different evaluations the same name
                words.append("--overwrite")
            if words[1] == "report":
                shutil.copytree(place / "results", place / words[2], dirs_exist_ok=True)
            for old, new in addresses.items():
                words = [word.replace(old, new) for word in words]
            words = [server if re.match(r"http://localhost:\d+", word) else word for word in words]
            variables = dict(re.findall(r"(ERAG_\w+)=(\S+)", command))
            done = subprocess.run(
                words,
                cwd=place,
                env=environment | variables,
                capture_output=True,
                text=True,
                check=False,
            )
            assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]


def test_every_page_is_in_the_navigation_of_the_site():
    listed = set(re.findall(r"[\w./-]+\.md", (ROOT / "docs/site/mkdocs.yml").read_text()))
    docs = ROOT / "docs"
    pages = {path.relative_to(docs).as_posix() for path in docs.rglob("*.md")}
    assert sorted(pages - listed) == []
