"""``erag repeat`` as a user runs it: a sample of stored reads of a results folder, asked again."""

import json
import shutil

import polars as pl
import pytest

import engine
from engine.reading.function import ReaderFunction
from jobs import repeat
from tests.commands import CONTAINMENT, erag, evaluate
from tests.conftest import save_tiny_t5
from tests.expected import as_expected
from tests.reading.remote.server import Behaviour, Said, prompt_of, serving

OPTIONS = ("--k", 2, "--actors", 0, "--resamples", 0, "--seed", 5)


@pytest.fixture
def files(tmp_path):
    """Two queries, three passages, and lists of two of these."""
    (tmp_path / "q.jsonl").write_text(
        '{"id": "1", "input": "w1 w2", "output": [{"answer": "w3"}]}\n'
        '{"id": "2", "input": "w4", "output": [{"answer": "w5"}]}\n'
    )
    passages = [{"id": f"d{i}", "title": f"w{i}", "text": f"w{i} w{i + 3}"} for i in range(3)]
    (tmp_path / "c.jsonl").write_text("".join(f"{json.dumps(one)}\n" for one in passages))
    rows = [f"{q} Q0 d{(q + r) % 3} {r} {9 - r} mine\n" for q in (1, 2) for r in (1, 2)]
    (tmp_path / "r.trec").write_text("".join(rows))
    names = {"queries": "q.jsonl", "corpus": "c.jsonl", "run": "r.trec", "out": "out"}
    return {option: tmp_path / name for option, name in names.items()}


@pytest.fixture(scope="module")
def chooser(tmp_path_factory):
    """A tiny reader that can choose between yes and no."""
    return save_tiny_t5(tmp_path_factory.mktemp("reader"), "Yes", "No")


@pytest.fixture
def results(files, chooser, any_mass, tmp_path):
    """Results of a reader and a judge in fp32, with a store."""
    more = ("--annotators", "erag judge", "--dtype", "float32", "--store", tmp_path / "store")
    assert evaluate(files, *OPTIONS, "--reader", chooser, *more) == 0
    return files["out"]


def lines_of(capsys):
    """The lines of repeatability checks on standard output, and the last line on standard error."""
    printed = capsys.readouterr()
    lines = [line for line in printed.out.splitlines() if line.startswith("repeatability check")]
    return lines, (printed.err.splitlines() or [""])[-1]


def with_other_outputs(results):
    """The same results as another machine might have left them: every output is another."""
    summary = json.loads((results / "summary.json").read_text())
    del summary["audit"]["results_sha256"]
    (results / "summary.json").write_text(json.dumps(summary))
    reads = pl.read_parquet(results / "reads.parquet")
    reads.with_columns(output=pl.lit("w3")).write_parquet(results / "reads.parquet")
    return reads


def test_it_repeats_the_calls_of_every_role_and_writes_what_changed(results, capsys, tmp_path):
    shutil.rmtree(tmp_path / "store")  # the results say all that is needed
    before = (results / "summary.json").read_bytes()
    capsys.readouterr()
    assert erag("repeat", results) == 0
    lines, _ = lines_of(capsys)
    # 4 passages alone and 2 lists; the judge reads passages alone
    # Query 1 is answered by w3: two passages and a list have other labels.
    assert lines == [
        "repeatability check: 6 LLM calls repeated, 0 outputs and 0 labels changed",
        "repeatability check of the judge: 4 LLM calls repeated, 0 outputs and 0 labels changed",
    ]
    repeated = json.loads((results / "repeated.json").read_text())
    assert list(repeated) == ["reader", "judge"]
    reader, summary = repeated["reader"], json.loads(before)
    assert (reader["repeated"], reader["alone"], reader["seed"]) == (6, 3, 5)
    assert (reader["dtype"], reader["changes"], reader["reproducible"]) == ("float32", [], True)
    assert reader["sha256"]["reader"] == summary["reader"]["fingerprint"]
    assert reader["sha256"]["prompt"] == summary["reader"]["prompt_sha256"]
    assert summary["audit"]["tables_sha256"].items() <= reader["sha256"].items()
    assert reader["versions"]["torch"].startswith("2.")
    assert (results / "summary.json").read_bytes() == before
    assert erag("repeat", results, "--reads", 1, "--seed", 3, "--json") == 0
    printed = json.loads(capsys.readouterr().out)
    assert {(one["repeated"], one["seed"]) for one in printed.values()} == {(1, 3)}


def test_outputs_that_change_are_counted_and_listed(results, capsys):
    reads = with_other_outputs(results)
    capsys.readouterr()
    assert erag("repeat", results) == 0
    (line, _), _ = lines_of(capsys)
    reader = json.loads((results / "repeated.json").read_text())["reader"]
    changed = (reads["output"].head(6) != "w3").sum()
    assert changed == reader["changed_outputs"] == len(reader["changes"]) > 0
    assert f"{changed} outputs" in line
    assert {(one["output"]) for one in reader["changes"]} == {"w3"}
    there = {(r["query_id"], *r["doc_ids"], r["output"]) for r in reads.to_dicts()}
    assert {(c["query_id"], *c["doc_ids"], c["repeated"]) for c in reader["changes"]} <= there
    # Query 1 is answered by w3, and 2 is not.
    assert reader["changed_labels"] == sum(one["query_id"] == "1" for one in reader["changes"])


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("corpus", "w1 w4", "w1 w9"),
        ("corpus", '"d2"', '"d7"'),
        ("queries", "w1 w2", "w2 w1"),
        ("queries", '"2"', '"3"'),
    ],
)
def test_inputs_that_changed_since_are_refused(results, files, capsys, name, old, new):
    text = files[name].read_text()
    assert old in text
    files[name].write_text(text.replace(old, new))
    capsys.readouterr()
    assert erag("repeat", results) == 2
    lines, refused = lines_of(capsys)
    assert lines == []
    as_expected(refused)
    assert not (results / "repeated.json").exists()


def test_a_reader_or_a_prompt_that_changed_since_is_refused(
    files, chooser, any_mass, tmp_path, capsys
):
    prompt, reader = tmp_path / "judge.txt", tmp_path / "model"
    prompt.write_text(template := "---\nchoices: ['Yes', 'No']\n---\n{query} {passages} w7")
    shutil.copytree(chooser, reader)
    more = ("--annotators", "judge", "--judge-prompt", prompt, "--dtype", "float32")
    assert evaluate(files, *OPTIONS, "--reader", reader, *more, "--store", tmp_path / "s") == 0
    prompt.write_text(template.replace("w7", "w8"))
    capsys.readouterr()
    assert erag("repeat", files["out"]) == 2
    lines, refused = lines_of(capsys)
    as_expected(refused)
    save_tiny_t5(reader, "Yes", "No", "Perhaps")
    assert erag("repeat", files["out"]) == 2
    as_expected(lines_of(capsys)[1])
    assert lines == []


FUNCTIONS = """
import itertools
calls = itertools.count()

def wavering(prompts):
    return [f"w3 {next(calls)}" for _ in prompts]
wavering.version = "1"

def first(output, answers):
    return float(int(output.split()[-1]) % 2)

def short(query, answers, title, text):
    return float(len(text) < 6)
"""


def test_functions_are_named_again(files, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("engine.machine.cluster.start_ray", lambda *_: pytest.fail("Ray starts"))
    mine = tmp_path / "mine.py"
    mine.write_text(FUNCTIONS)
    reader, metric = f"{mine}:wavering", f"{mine}:first"
    more = ("--annotators", f"{mine}:short", "--metric", metric, "--store", tmp_path / "s")
    assert evaluate(files, "--k", 2, "--resamples", 0, "--reader", reader, *more) == 0
    for given in ((), (metric,)):
        options = ("--functions", *given) if given else ()
        assert erag("repeat", files["out"], *options) == 2
        as_expected(lines_of(capsys)[1])
    assert erag("repeat", files["out"], "--functions", reader, metric) == 0
    # The calls were numbered on: 0 and 1 before, 2 and 3 now, so every output changes and no label.
    as_expected(lines_of(capsys)[0])
    reader = json.loads((files["out"] / "repeated.json").read_text())["reader"]
    assert (reader["reproducible"], reader["dtype"]) == (False, "unknown")


def test_a_server_is_asked_again(files, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    seen = set()

    def fickle(body):
        said = Said("other" if prompt_of(body) in seen else "w3")
        seen.add(prompt_of(body))
        return said

    behaviour = Behaviour(fickle)
    asked = ("--k", 2, "--resamples", 0, "--reader", "openai:m", "--store", tmp_path / "s")
    with serving(behaviour) as url:
        hidden = url.replace("http://", "http://me:s3cret@")
        assert evaluate(files, *asked, "--base-url", hidden) == 0
        monkeypatch.setenv("OPENAI_BASE_URL", hidden)
        assert erag("repeat", files["out"]) == 0
        lines, _ = lines_of(capsys)
    with serving(behaviour) as other:
        monkeypatch.setenv("OPENAI_BASE_URL", other)
        assert erag("repeat", files["out"]) == 2
        as_expected(lines_of(capsys)[1])
    # Query 1 is answered by w3: two passages and a list have other labels.
    as_expected(lines)
    text = (files["out"] / "repeated.json").read_text()
    assert json.loads(text)["reader"]["device"] == url.split("/")[2]
    assert "s3cret" not in text


def test_only_as_many_shards_are_looked_at_as_have_enough_reads(
    files, tiny_t5, tmp_path, capsys, monkeypatch
):
    more = ("--reader", tiny_t5, "--dtype", "float32", "--store", tmp_path / "store")
    assert evaluate(files, *OPTIONS, *more, "--shard-pairs", 2, "--lazy", "--measures", "RR") == 0
    shutil.rmtree(files["out"] / "shards")
    parts = sorted((files["out"] / "reads.parquet").iterdir())
    assert len(parts) == 2
    looked_at = []
    monkeypatch.setattr(
        repeat, "read_parquet", lambda path: looked_at.append(path.name) or pl.read_parquet(path)
    )
    for reads, files_read in (("2", 1), ("64", 2)):
        looked_at.clear()
        assert erag("repeat", files["out"], "--reads", reads) == 0
        assert looked_at == [part.name for part in parts[:files_read]]
    repeated = json.loads((files["out"] / "repeated.json").read_text())["reader"]
    assert repeated["repeated"] == sum(
        pl.read_parquet(part)["read_key"].n_unique() for part in parts
    )
    assert "shards" in repeated["sha256"]


def test_reads_that_failed_are_not_repeated(files, tmp_path, capsys):
    mine = tmp_path / "mine.py"
    mine.write_text(
        "def few(prompts):\n    return [None if 'w1 w4' in p and 'w4' in p else 'w3' for p in prompts]\n"
        "few.version = '1'\n"
    )
    more = ("--reader", f"{mine}:few", "--store", tmp_path / "s", "--failed-reads", "zero")
    assert evaluate(files, "--k", 2, "--resamples", 0, *more) == 0
    failed = json.loads((files["out"] / "summary.json").read_text())["reading"]["failed"]
    assert failed > 0
    assert erag("repeat", files["out"], "--functions", f"{mine}:few") == 0
    reader = json.loads((files["out"] / "repeated.json").read_text())["reader"]
    assert (reader["repeated"], reader["failed"], reader["changed_outputs"]) == (6 - failed, 0, 0)


def test_results_that_cannot_be_repeated_are_refused(files, tiny_t5, tmp_path, capsys):
    alone = (*CONTAINMENT, "--k", 2)
    assert evaluate(files, *alone) == 0
    for asked in ([files["out"]], [files["out"], "--reads", 0], [tmp_path / "nowhere"]):
        assert erag("repeat", *asked) == 2
        as_expected(lines_of(capsys)[1])
    assert evaluate(files, *alone, "--certify") == 2
    as_expected(lines_of(capsys)[1])


def test_tables_from_python_are_refused(tmp_path, capsys):
    reader = ReaderFunction(lambda prompts: ["w3"] * len(prompts), "mine", "1")
    how = {"reader": reader, "progress": False, "store": tmp_path / "s"}
    result = engine.evaluate({"w1 w2": ["w3"]}, {"d": "w4"}, {"w1 w2": ["d"]}, **how)
    result.save(tmp_path / "out")
    mine = tmp_path / "mine.py"
    mine.write_text("def mine(prompts):\n    return ['w3'] * len(prompts)\nmine.version = '1'\n")
    assert erag("repeat", tmp_path / "out", "--functions", f"{mine}:mine") == 2
    as_expected(lines_of(capsys)[1])


def test_the_next_evaluation_removes_it_and_older_results_are_read(
    results, files, chooser, tmp_path
):
    summary = json.loads((results / "summary.json").read_text())
    del summary["audit"]["results_sha256"]
    older = {**summary, "certificates": {"reader": {"repeated": 6}}}
    older["configuration"]["certify"] = 64
    (results / "summary.json").write_text(json.dumps(older))
    assert erag("repeat", results) == 0
    assert erag("report", results) == 0
    more = ("--annotators", "erag judge", "--dtype", "float32", "--store", tmp_path / "store")
    assert (results / "repeated.json").exists()
    assert evaluate(files, *OPTIONS, "--reader", chooser, *more) == 0
    assert not (results / "repeated.json").exists()
    assert "certificates" not in json.loads((results / "summary.json").read_text())
