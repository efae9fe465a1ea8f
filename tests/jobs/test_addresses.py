"""Results and read stores at addresses: in memory, and in an S3 server that the test starts."""

import json
import os
import re
import subprocess
import sys
import tempfile
from typing import ClassVar
from unittest.mock import patch

import polars as pl
import pytest

from engine.evaluation import read
from engine.reading import readers
from engine.reading.protocol import ReaderStats, ReadOutput
from engine.sources.io.folders import Folder, folder_at
from tests.commands import erag, evaluate
from tests.conftest import ScriptedReader
from tests.expected import as_expected
from tests.s3_server import KEY, SECRET

READING = ["--dtype", "float32", "--k", 2, "--resamples", 100]
MORE = ["--actors", 0, *READING]
# The tables of scores.
SCORES = ("query_scores.parquet", "downstream.parquet")


@pytest.fixture
def files(files, tiny_t5):
    """With a reader whose weights are loaded nowhere: all that read here are scripted."""
    return files | {"reader": tiny_t5}


@pytest.fixture(params=["memory", pytest.param("s3", marks=pytest.mark.slow)])
def root(request, tmp_path):
    """The address of an empty folder."""
    if request.param == "memory":
        return f"memory://{tmp_path.name}"
    request.getfixturevalue("s3")
    return "s3://bucket/a folder"


def run(files, reader, *more):
    """Run ``erag evaluate`` with a scripted reader; its exit status."""

    def programmed(_, local, **__):
        local.executor = reader
        return local

    with patch.object(read, "backend_for", programmed):
        return evaluate(files, *MORE, *more)


def answering():
    return ScriptedReader(lambda text: "Oranjestad" if "Oranjestad" in text else "no")


def everything(folder):
    """Names and contents of all files in a folder, and in those inside."""
    found = {name: folder.read(name) for name in folder.names()}
    for inner in folder.folders():
        found |= {f"{inner}/{name}": c for name, c in everything(folder / inner).items()}
    return found


def one_line(capsys, *words):
    """A refusal in one line without secrets, with these words of another library."""
    captured = capsys.readouterr()
    lines = [
        line
        for line in captured.err.splitlines()
        if not line.startswith(("reading: ", "erag: no heartbeat: "))
    ]
    assert len(lines) == 1, captured.err
    assert all(word in lines[0] for word in words)
    as_expected(re.sub(r" \(.*\)", "", lines[0]))
    assert SECRET not in captured.out + captured.err


def test_a_whole_evaluation_at_an_address(files, root, tmp_path, capsys):
    there = files | {"out": f"{root}/out", "store": f"{root}/store/"}
    reader = answering()
    assert run(there, reader) == 0
    assert f"results -> {root}/out" in " ".join(capsys.readouterr().out.split())
    assert len(reader.asked) == 6
    assert run(files | {"store": tmp_path / "store"}, answering()) == 0
    here, at_address = everything(folder_at(files["out"])), everything(folder_at(f"{root}/out"))
    assert sorted(here) == sorted(at_address)
    assert "exported/runs/mine.trec" in here
    for name in here:
        if name.endswith(".parquet"):
            assert pl.read_parquet(at_address[name]).equals(pl.read_parquet(here[name])), name
        elif not name.startswith(("summary.json", "progress.json", "report")):  # these hold times
            assert at_address[name] == here[name]
    summary = json.loads(at_address["summary.json"])
    assert (summary["reading"]["done"], summary["reading"]["reused"]) == (6, 0)
    # Again: nothing is read.
    assert run(there, answering()) == 0
    again = json.loads(folder_at(f"{root}/out").read("summary.json"))
    assert (again["reading"]["done"], again["reading"]["reused"]) == (0, 6)
    assert again["correlations"] == summary["correlations"]
    for content in everything(folder_at(root)).values():
        assert SECRET.encode() not in content
        assert KEY.encode() not in content
    assert not (tmp_path / f"{root.split(':')[0]}:").exists()


def test_an_earlier_evaluation_at_an_address_is_replaced_and_nothing_else(files, root):
    there = files | {"out": f"{root}/out", "store": f"{root}/store"}
    assert run(there, answering(), "--k-sweep", "1,2") == 0
    out = folder_at(f"{root}/out")
    assert "conditions/k1/summary.json" in everything(out)
    out.write("notes.txt", b"a user's")
    out.write("conditions/notes.txt", b"a user's")
    assert run(there, answering(), "--overwrite") == 0
    found = everything(out)
    assert {name for name in found if name.startswith("conditions")} == {"conditions/notes.txt"}
    assert "conditions.parquet" not in found
    assert found["notes.txt"] == b"a user's"
    files["out"] = out.at
    assert run(files | {"corpus": out.place("labels.parquet"), "store": f"{root}/s"}, None) == 2


@pytest.mark.slow
def test_a_connection_lost_at_any_time_is_one_line(files, s3, capsys):
    there = files | {"out": "s3://bucket/out", "store": "s3://bucket/store"}

    class Losing(ScriptedReader):
        def __call__(self, plan, units, spec):
            for result in super().__call__(plan, units, spec):
                yield result
                s3.stop()

    reader = Losing(str.upper)
    with patch("engine.reading.plan.unit_tokens", lambda *_, **__: 1):
        assert run(there, reader) == 1
    assert len(reader.asked) < 6
    one_line(capsys)
    assert run(there, reader := answering()) == 2
    assert reader.asked == []
    one_line(capsys)


@pytest.mark.slow
def test_results_are_whole_or_without_a_summary_where_the_connection_is_lost(
    files, s3, capsys, monkeypatch
):
    there = files | {"out": "s3://bucket/out", "store": "s3://bucket/store"}
    assert run(there, answering()) == 0
    capsys.readouterr()
    put = Folder.put
    uploaded = []

    def losing(self, name, file):
        if len(uploaded) == 3:
            s3.stop()
        put(self, name, file)
        uploaded.append(name)

    monkeypatch.setattr(Folder, "put", losing)
    assert run(there, answering()) == 1
    one_line(capsys)
    assert len(uploaded) == 3
    s3.start()
    assert "summary.json" not in folder_at("s3://bucket/out").names()
    monkeypatch.setattr(Folder, "put", put)
    assert run(there, reader := answering()) == 0
    assert reader.asked == []
    assert "summary.json" in folder_at("s3://bucket/out").names()


@pytest.mark.slow
def test_wrong_credentials_are_one_line_before_anything_is_read(files, s3, capsys):
    s3.demand_credentials()
    for option in ("store", "out"):
        reader = answering()
        assert run(files | {option: "s3://bucket/x"}, reader) == 2
        assert reader.asked == []
        one_line(capsys, "Access Key")


@pytest.mark.slow
@pytest.mark.usefixtures("s3")
@pytest.mark.parametrize("option", ["store", "out"])
def test_a_bucket_that_is_not_there_is_one_line_before_anything_is_read(files, option, capsys):
    reader = answering()
    assert run(files | {option: "s3://nowhere/x"}, reader) == 2
    assert reader.asked == []
    one_line(capsys, "bucket does not exist")


@pytest.mark.slow
@pytest.mark.usefixtures("s3")
def test_credentials_in_an_address_are_not_shown(files, capsys):
    assert run(files | {"store": f"s3://{KEY}:{SECRET}@bucket/x"}, None) == 2
    one_line(capsys)


@pytest.mark.parametrize(
    "command",
    [
        "demo --out {address}",
        "index bm25 --corpus {corpus} --out {address}",
        "index dense --corpus {corpus} --out {address}",
        "passages {corpus} --out {address}",
    ],
)
def test_what_makes_no_sense_at_an_address_is_refused_in_one_line(
    files, command, capsys, monkeypatch, tmp_path
):
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.iterdir())
    words = command.format(corpus=files["corpus"], address="s3://bucket/x").split()
    assert erag(*words) == 2
    one_line(capsys)
    assert sorted(tmp_path.iterdir()) == before


def test_single_files_are_written_to_an_address(files, root, tmp_path, capsys):
    assert erag("passages", files["corpus"], "--out", f"{root}/c.parquet", "--words", 3) == 0
    assert erag("passages", files["corpus"], "--out", tmp_path / "c.parquet", "--words", 3) == 0
    folder = folder_at(root)
    assert folder.read("c.parquet") == (tmp_path / "c.parquet").read_bytes()
    other = tmp_path / "other.trec"
    other.write_text(files["run"].read_text().replace("mine", "other"))
    runs = ["--run", files["run"], other]
    assert erag("fuse", *runs, "--out", f"{root}/f.trec") == 0
    assert erag("fuse", *runs, "--out", tmp_path / "f.trec") == 0
    assert folder.read("f.trec") == (tmp_path / "f.trec").read_bytes()
    assert f"-> {root}/f.trec" in " ".join(capsys.readouterr().out.split())
    # One that is read is not written over, by whatever name.
    twice = ["--run", f"{root}/f.trec", files["run"]]
    assert erag("fuse", *twice, "--out", f"{root}//f.trec") == 2
    one_line(capsys)
    assert folder.names() == ["c.parquet", "f.trec"]


@pytest.mark.parametrize("option", ["store", "out"])
@pytest.mark.parametrize(
    "address", ["gs://bucket/x", "nothing://bucket/x", "zip://x::file:///nowhere.zip"]
)
def test_an_address_that_cannot_be_written_is_one_line_and_no_folder(
    files, option, address, capsys, monkeypatch, tmp_path
):
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.iterdir())
    assert run(files | {option: address}, None) == 2
    one_line(capsys)
    assert sorted(tmp_path.iterdir()) == before


class InProcess:
    """A reader that a process hosts, and counts what all of its kind are asked."""

    asked: ClassVar[list[str]] = []

    def __init__(self, spec):
        self.stats = ReaderStats()

    def read(self, inputs):
        texts = ["".join(pieces) for pieces in inputs]
        InProcess.asked += texts
        return [ReadOutput("Oranjestad" if "Oranjestad" in t else "no", 5, 1, False) for t in texts]


def test_an_evaluation_in_shards_at_an_address(files, root, tmp_path, monkeypatch, capsys):
    """Shards, manifests, plans and the store are there; a second start finds everything done."""
    monkeypatch.setattr(readers, "load", InProcess)
    monkeypatch.setattr(InProcess, "asked", [])
    shards = [*MORE, "--shard-pairs", 2]
    there = files | {"out": f"{root}/out", "store": f"{root}/store"}
    assert evaluate(there, *shards) == 0
    read = len(InProcess.asked)
    assert read == 6
    assert evaluate(files | {"store": tmp_path / "store"}, *shards) == 0
    here, at_address = everything(folder_at(files["out"])), everything(folder_at(f"{root}/out"))
    assert any("/labels/" in name for name in here)
    for name in here:
        if "labels/" in name or name in SCORES:
            assert pl.read_parquet(at_address[name]).equals(pl.read_parquet(here[name])), name
    InProcess.asked.clear()
    assert evaluate(there, *shards) == 0
    assert InProcess.asked == []
    summaries = [
        json.loads(content["summary.json"])
        for content in (here, at_address, everything(folder_at(f"{root}/out")))
    ]
    assert len({json.dumps(one["correlations"]) for one in summaries}) == 1
    assert [one["reading"]["done"] for one in summaries] == [6, 6, 0]
    assert not (tmp_path / f"{root.split(':')[0]}:").exists()


@pytest.mark.slow
@pytest.mark.usefixtures("s3")
def test_workers_of_ray_plan_read_and_judge_in_shards_at_an_address(files, tmp_path):
    """They take the index of passages and the store from there and commit there, as one process does here."""
    there = files | {"out": "s3://bucket/out", "store": "s3://bucket/store"}
    options = [part for name, value in there.items() for part in (f"--{name}", value)]
    options += [*READING, "--actors", 1, "--shard-pairs", 2]
    command = [sys.executable, "-m", "jobs.evaluate", *map(str, options)]
    scratch = tmp_path / "tmp"
    scratch.mkdir()
    # A Ray of its own, whose workers know the server; their own temporary files are told from others'.
    own = os.environ | {"TMPDIR": str(scratch), "RAY_TMPDIR": tempfile.gettempdir()}
    done = subprocess.run(command, env=own, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
    assert SECRET not in done.stdout + done.stderr
    found = everything(folder_at("s3://bucket/out"))
    reading = json.loads(found["summary.json"])["reading"]
    assert (reading["done"], reading["reused"]) == (6, 0)
    (index,) = scratch.glob("erag-passages-*/*.sqlite")
    assert index.stat().st_size
    assert evaluate(files | {"store": tmp_path / "store"}, *MORE, "--shard-pairs", 2) == 0
    here = everything(folder_at(files["out"]))
    compared = [name for name in here if "/labels/" in name or name in SCORES]
    assert len([name for name in compared if "/labels/" in name]) > 1
    for name in compared:
        assert pl.read_parquet(found[name]).equals(pl.read_parquet(here[name])), name
