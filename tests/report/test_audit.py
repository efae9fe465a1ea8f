"""How a result came about, as summary.json has it."""

import json
import os
import subprocess
from datetime import UTC, datetime, timedelta

import pytest

import engine
from engine.evaluation.evaluate import evaluate
from engine.evaluation.settings import Settings
from engine.report import summary
from engine.report.summary import code_in, input_files, place, summarize
from engine.sources.io.folders import require_folder
from tests.expected import refused
from tests.tables import inputs

SETTINGS = Settings.of(k=2, annotators=("containment",), end_to_end=False, resamples=0)


def git(directory, *arguments):
    who = ["-c", "user.name=a", "-c", "user.email=a@b"]
    done = subprocess.run(
        ["git", *who, *arguments], cwd=directory, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def test_a_summary_says_when_where_and_from_what_it_came(tmp_path):
    result = evaluate(inputs(), SETTINGS, store=tmp_path)
    start = datetime.now(UTC) - timedelta(seconds=1)
    found = json.loads(json.dumps(summarize(result, {})))["audit"]
    date = datetime.fromisoformat(found["date"])
    assert date.utcoffset() == timedelta(0)
    assert start <= date <= datetime.now(UTC)
    assert found["command"] is None  # of Python
    assert found["files"] == []
    assert found["machine"]["host"]
    assert found["machine"]["processor"]
    assert found["machine"]["cpus"] >= 1
    assert found["code"]["version"] == engine.__version__
    # of what was evaluated, not of what was read at a larger cutoff
    assert found["tables_sha256"] == result.inputs.sha256
    assert found["tables_sha256"]["runs"] != inputs().sha256["runs"]


def test_but_for_the_audit_the_same_evaluation_has_the_same_summary(tmp_path):
    def figures():
        content = summarize(evaluate(inputs(), SETTINGS, store=tmp_path), {})
        tables = content.pop("audit")["tables_sha256"]
        return content | {"seconds": None}, tables

    assert figures() == figures()


def test_files_are_named_with_size_and_digest_where_they_are_files(tmp_path, monkeypatch):
    (tmp_path / "abc").write_bytes(b"abc")
    named = {
        "queries": str(tmp_path / "abc"),
        "corpus": str(tmp_path),
        "runs": [str(tmp_path / "abc"), "s3://***@bucket/r.trec"],
    }
    # FIPS 180-2, appendix B.1
    digest = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    found = [(f["role"], f["bytes"], f["sha256"]) for f in input_files(named)]
    assert found == [
        ("queries", 3, digest),
        ("corpus", None, None),
        ("runs", 3, digest),
        ("runs", None, None),
    ]
    monkeypatch.setattr(summary, "MOST_BYTES", 2)
    (file,) = input_files({"queries": named["queries"]})
    assert (file["bytes"], file["sha256"]) == (3, None)


def test_the_commit_of_a_checkout_and_whether_it_was_changed(tmp_path, monkeypatch):

    def code(root):
        assert code_in(root)["version"] == engine.__version__
        return code_in(root)["commit"], code_in(root)["modified"]

    assert code(tmp_path) == (None, None)
    git(tmp_path, "init", "-q")
    assert code(tmp_path) == (None, None)  # nothing is committed
    (tmp_path / "a.py").write_text("1")
    git(tmp_path, "add", "a.py")
    git(tmp_path, "commit", "-qm", "a")
    git(tmp_path, "tag", "v9")
    commit = git(tmp_path, "rev-parse", "HEAD")
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere"))  # as in a hook of another repository
    assert code(tmp_path) == (commit, False)
    (tmp_path / "new.txt").write_text("not tracked")
    assert code(tmp_path) == (commit, False)
    (tmp_path / "a.py").write_text("2")
    assert code(tmp_path) == (commit, True)
    # installed inside another project's checkout, it is not that project's code
    (tmp_path / "site-packages").mkdir()
    assert code(tmp_path / "site-packages") == (None, None)
    monkeypatch.setenv("PATH", "")
    assert code(tmp_path) == (None, None)


@pytest.mark.parametrize("refuse", [place, require_folder])
def test_a_name_that_results_cannot_hold_is_refused(refuse, tmp_path):
    name = os.fsdecode(b"\xff.trec")
    with refused("files.encoding"):
        refuse(tmp_path / name)
