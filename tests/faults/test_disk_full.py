"""A full disk: one line, exit status 1, what was whole stays whole, and nothing half is left."""

import errno
import json
import os
import sqlite3
import subprocess

import polars as pl
import pytest

from engine.evaluation.evaluate import evaluate
from engine.evaluation.settings import Settings
from engine.inputs.files import InputFiles
from engine.inputs.read import read_inputs
from engine.messages.errors import WriteError
from engine.reading.models import weights
from engine.retrieval import bm25, lucene
from engine.sources.io import files as writing
from jobs._evaluating import write_results
from tests.commands import erag
from tests.conftest import ScriptedReader
from tests.expected import as_expected
from tests.reading.test_backends import SPEC, ask

FULL = OSError(errno.ENOSPC, "No space left on device")


def tree(directory):
    return {str(p): p.read_bytes() for p in sorted(directory.rglob("*")) if p.is_file()}


@pytest.fixture
def full(monkeypatch):
    """From now on nothing more fits on the disk: writes fail when their content is flushed."""

    def fill():
        def flush(path):
            raise FULL

        monkeypatch.setattr(writing, "flush", flush)

    return fill


@pytest.fixture
def full_at(monkeypatch):
    """From now on the disk is full when this file, counted from 1, is flushed."""
    flush = writing.flush

    def fill(number):
        written = []

        def fail(path):
            written.append(path)
            if len(written) == number:
                raise FULL
            flush(path)

        monkeypatch.setattr(writing, "flush", fail)

    return fill


def assert_one_line(capsys):
    lines = capsys.readouterr().err.splitlines(keepends=True)
    error = "".join(line for line in lines if not line.startswith("erag: no heartbeat: "))
    as_expected(error)


def fuse(files, out):
    other = files["run"].with_name("other.trec")
    other.write_text(files["run"].read_text().replace("mine", "other"))
    return erag("fuse", "--run", files["run"], other, "--out", out)


def evaluate_labels(files, out):
    more = ["--no-end-to-end", "--annotators", "containment", "--k", 2, "--resamples", 0]
    given = [p for name in ("queries", "corpus", "run") for p in (f"--{name}", files[name])]
    return erag("evaluate", *given, *more, "--measures", "P@2", "--out", out)


def passages(files, out):
    source = files["run"].with_name("a.jsonl")
    source.write_text(json.dumps({"id": "1", "title": "T", "text": "one two three"}) + "\n")
    return erag("passages", source, "--out", out)


COMMANDS = {"fuse": fuse, "evaluate": evaluate_labels, "passages": passages}
OUT = {"fuse": "f.trec", "evaluate": "results", "passages": "p.parquet"}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_on_a_full_disk_leaves_the_old_result_whole(files, tmp_path, full, capsys, name):
    out = tmp_path / "place" / OUT[name]
    assert COMMANDS[name](files, out) == 0
    before = tree(tmp_path / "place")
    capsys.readouterr()
    full()
    assert COMMANDS[name](files, out) == 1
    assert_one_line(capsys)
    assert tree(tmp_path / "place") == before


@pytest.mark.parametrize("name", COMMANDS)
def test_a_small_disk_is_filled(files, tmp_path, capsys, name):
    """As above, on a real file system of a few pages."""
    place = tmp_path / "place"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=8k,nr_inodes=64", "tmpfs", str(place)],
        capture_output=True,
    )
    if mounted.returncode:
        pytest.skip("file systems cannot be mounted here")
    try:
        (place / "ballast").write_bytes(bytes(8192))
        before = tree(place)
        assert COMMANDS[name](files, place / OUT[name]) == 1
        assert_one_line(capsys)
        assert tree(place) == before
    finally:
        subprocess.run(["umount", str(place)], check=True)


def test_a_full_disk_at_any_file_of_an_evaluation_leaves_the_earlier_one(files, tmp_path, full_at):
    given = InputFiles(queries=files["queries"], corpus=files["corpus"], run=(files["run"],))
    inputs = read_inputs(given, k=2)

    def result(annotators):
        settings = Settings.of(
            k=2, measures="P@2", annotators=annotators, end_to_end=False, resamples=0
        )
        return evaluate(inputs, settings, store=tmp_path / "store")

    out = files["out"]
    write_results(result(("provenance",)), {}, out)
    before, later = tree(out), result(("containment",))
    for failing in range(1, 40):
        full_at(failing)
        try:
            write_results(later, {}, out)
        except WriteError:
            assert tree(out) == before
        else:
            break
    assert failing == 22  # after 13 tables, six files of exports, their list, and the summary
    assert pl.read_parquet(out / "labels.parquet")["annotator"].unique().to_list() == [
        "containment"
    ]
    assert not (out / "exported/qrels/provenance.txt").exists()


def test_reads_before_a_full_disk_are_kept(tmp_path, full_at):
    full_at(3)
    with pytest.raises(WriteError) as caught:
        ask(list("abcd"), tmp_path, ScriptedReader(str.upper))
    as_expected(str(caught.value).partition(": ")[2])
    assert len(os.listdir(tmp_path / SPEC.fingerprint)) == 2
    again = ScriptedReader(str.upper)
    found, costs = ask(list("abcd"), tmp_path, again)
    assert (costs.reused, costs.done) == (2, 2)
    assert found["output"].to_list() == list("ABCD")


def test_a_full_disk_while_lucene_writes_leaves_the_old_index(tmp_path, monkeypatch):
    def fill(batches, directory, analysis, *, threads):
        (directory / "_0.cfs").write_text("half")
        raise FULL

    (tmp_path / "index").mkdir()
    monkeypatch.setattr(lucene, "index", fill)
    corpus = pl.DataFrame({"doc_id": ["a"], "title": ["t"], "text": ["x"], "article_id": ["t"]})
    with pytest.raises(WriteError) as caught:
        bm25.build_index(corpus, tmp_path / "index")
    as_expected(str(caught.value))
    assert [path.name for path in tmp_path.iterdir()] == ["index"]


def test_what_java_says_of_a_full_disk_is_understood(monkeypatch):
    class Process:
        returncode = 1

        def __init__(self, *_, stderr, **__):
            said = f"java.io.IOException: {FULL.strerror}\nException: an index writer is closed\n"
            stderr.write(said.encode())
            self.stdin = open(os.devnull, "wb")

        def wait(self):
            return 1

    monkeypatch.setattr(lucene.subprocess, "Popen", Process)
    with pytest.raises(OSError, match=FULL.strerror):
        lucene._run("index", lambda stream: None)


def test_a_killed_conversion_is_cleared_up_by_the_next(tmp_path, monkeypatch):
    monkeypatch.setenv("ERAG_CACHE", str(tmp_path))
    left = tmp_path / "readers" / f".{'0' * 20}.{writing._machine()}{'1' * 20}.erag"
    left.mkdir(parents=True)
    (left / "model.safetensors").write_bytes(b"half")
    target = weights._converted("0" * 64, lambda work: (work / "model").write_text("whole"))
    assert [path.name for path in (tmp_path / "readers").iterdir()] == [target.name]
    assert [path.name for path in target.iterdir()] == ["model"]


def test_a_full_disk_while_a_model_is_converted_leaves_nothing(tmp_path, monkeypatch):
    from safetensors import SafetensorError

    monkeypatch.setenv("ERAG_CACHE", str(tmp_path))

    def convert(target):
        (target / "model.safetensors").write_bytes(b"half")
        raise SafetensorError(f"I/O error: {FULL.strerror} (os error 28)")

    with pytest.raises(WriteError) as caught:
        weights._converted("0" * 64, convert)
    as_expected(str(caught.value).partition(": ")[2])
    assert list((tmp_path / "readers").iterdir()) == []


def test_a_disk_that_is_full_while_a_corpus_is_indexed_is_named(tmp_path, monkeypatch):
    from engine.sources.io.folders import folder_at
    from engine.sources.passages import index

    def build(*_):
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(index, "_build", build)
    with pytest.raises(WriteError) as caught:
        index.index_corpus(tmp_path / "c.jsonl", folder_at(tmp_path / "out"), "key")
    as_expected(str(caught.value))
