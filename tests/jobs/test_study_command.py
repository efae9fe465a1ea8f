"""A study as a user asks for it."""

import json
import re

import polars as pl
import pydantic  # noqa: F401 - Ray imports it, and from then on cyclopts checks defaults by their types
import pytest

from engine import tables
from engine.reading import readers
from engine.reading.protocol import ReaderStats, ReadOutput
from jobs._options import with_options
from tests.commands import CONTAINMENT, erag, evaluate
from tests.expected import as_expected


class Declining:
    """A reader that a process hosts: what it may say instead of an answer, it says with probability 0.25."""

    def __init__(self, spec):
        self.stats = ReaderStats()
        self.choices = spec.choices

    def read(self, inputs, references=None):
        text = "" if self.choices else "Oranjestad"
        return [ReadOutput(text, 5, 1, False, None, 0.25 if self.choices else None) for _ in inputs]


def test_a_sweep_of_k_is_written_and_printed(files, tiny_t5, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(readers, "load", Declining)
    config = tmp_path / "c.yaml"
    config.write_text(
        f"reader: {tiny_t5}\nk-sweep: 1,2\nactors: 0\nresamples: 100\ndtype: float32\n"
        f"annotators: erag,utility\nhelpful: containment\nfull: true\nstore: {tmp_path / 's'}\n"
    )
    assert evaluate(files, "--config", config) == 0
    out = files["out"]
    summary = json.loads((out / "summary.json").read_text())
    assert summary["configuration"]["k"] == 2  # the largest
    assert summary["configuration"]["reader"] == str(tiny_t5)
    main, other = summary["study"]["conditions"]
    assert (main["k"], other["k"], other["directory"]) == (2, 1, "conditions/k1")
    (reading,) = [c for c in summary["study"]["costs"] if c["role"] == "reader"]
    assert reading["done"] == 6  # four passages alone, which are the lists of one, and two of two
    beside = json.loads((out / other["directory"] / "summary.json").read_text())
    for key in ("command", "files", "code"):
        assert beside["audit"][key] == summary["audit"][key]
    runs = [one["audit"]["tables_sha256"]["runs"] for one in (summary, beside)]
    assert runs[0] != runs[1]  # at another cutoff
    assert beside["configuration"]["k"] == 1
    assert beside["configuration"]["measures"] == [
        "nDCG@1", "P@1", "AP@1", "RR@1", "R@1", "Success@1", "UDCG@1"
    ]  # fmt: skip
    found = pl.read_parquet(out / "conditions.parquet")
    assert dict(found.schema) == tables.CONDITIONS
    assert set(found["k"]) == {1, 2}
    exported = (out / "conditions/k1/exported/runs/mine.trec").read_text()
    assert len(exported.splitlines()) == 2
    printed = " ".join(capsys.readouterr().out.split())  # titles wrap over narrow tables
    assert "UDCG@k" in printed
    told = re.findall(
        r"Kendall's \S+ with .*? \[95%\]|note: at k.*?list|calls of the study, .*? new", printed
    )
    as_expected([line.replace(tiny_t5.name, "READER") for line in told])


def data_file(tmp_path, name, files, *more):
    lines = [f"{option}: {files[option]}" for option in ("queries", "corpus", "run")]
    path = tmp_path / f"{name}.yaml"
    path.write_text("\n".join([*lines, *more, ""]))
    return path


def test_several_data_sets_make_one_table(files, tiny_t5, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(readers, "load", Declining)
    claims = tmp_path / "claims.jsonl"
    claims.write_text(
        files["queries"].read_text().replace("Oranjestad", "SUPPORTS").replace("George Orwell", "REFUTES")
    )  # fmt: skip
    nq = data_file(tmp_path, "nq", files)
    of_claims = files | {"queries": claims}
    fever = data_file(tmp_path, "fever", of_claims, "task: claims", "metric: accuracy")
    common = ["--reader", tiny_t5, "--actors", 0, "--dtype", "float32", "--store", tmp_path / "s"]
    common += ["--annotators", "erag,containment", "--k", 2, "--resamples", 0]
    asked = ["evaluate", "--data", nq, fever, *common, "--out", files["out"]]
    assert erag(*asked) == 0
    out = files["out"]
    printed = capsys.readouterr().out
    as_expected(re.findall("note: fever, containment.*", printed))
    content = json.loads((out / "data_sets.json").read_text())
    assert content["queries"] == {"nq": 2, "fever": 2}
    found = pl.read_parquet(out / "data_sets.parquet")
    assert dict(found.schema) == tables.DATA_SETS
    assert found.group_by("data_set").agg(pl.col("annotator").unique().sort()).sort("data_set").rows() == [
        ("fever", ["erag"]), ("nq", ["containment", "erag"])
    ]  # fmt: skip
    own = json.loads((out / "fever" / "summary.json").read_text())
    assert own["configuration"]["metric"] == "accuracy"
    assert own["configuration"]["annotators"] == ["erag"]
    head = (out / "report" / "tables" / "tau.csv").read_text().splitlines()[0]
    assert head == "run,annotator,measure,nq (n = 2),fever (n = 2)"
    # The same command again, as JSON; then a folder of the other kind.
    assert erag(*asked, "--json") == 0
    assert json.loads(capsys.readouterr().out) == content
    assert evaluate(files, *common) == 2
    as_expected(capsys.readouterr().err.splitlines()[-1])


@pytest.mark.parametrize(
    "lines",
    [
        ["out: elsewhere"],
        ["k: two"],
        ["annotators: containment", "task: claims"],
        ["no-such-option: 1"],
    ],
)
def test_a_file_of_a_data_set_that_cannot_work_is_one_line(files, tmp_path, capsys, lines):
    given = data_file(tmp_path, "x", files, *lines)
    assert erag("evaluate", "--data", given, "--out", files["out"]) == 2
    as_expected(capsys.readouterr().err.splitlines()[-1])
    assert not files["out"].exists()


def test_data_sets_have_names_of_their_own_and_need_queries(files, tmp_path, capsys):
    one = data_file(tmp_path, "x", files)
    assert erag("evaluate", "--data", one, one, "--out", files["out"]) == 2
    as_expected(capsys.readouterr().err)
    one.write_text(f"run: {files['run']}\n")
    assert erag("evaluate", "--data", one, "--out", files["out"]) == 2
    as_expected(capsys.readouterr().err)
    assert erag("plan", "--data", data_file(tmp_path, "y", files), "--reader", "none/such") == 2
    assert "none/such" in capsys.readouterr().err


def test_data_sets_that_one_table_cannot_compare_are_refused(files, tmp_path, capsys):
    nq = data_file(tmp_path, "nq", files)
    usual = ["--reader", "bundled", "--out", files["out"], "--annotators", "erag,containment"]
    for line in ("annotators: containment,erag", "confidence: 0.5", "resamples: 700"):
        other = data_file(tmp_path, "x", files, line)
        assert erag("evaluate", "--data", nq, other, *usual) == 2
        as_expected(capsys.readouterr().err)
    # An annotator that no data set has a use for is refused, and not left out.
    claims = data_file(tmp_path, "x", files, "task: claims", "metric: accuracy")
    assert erag("evaluate", "--data", claims, *usual) == 2
    as_expected(capsys.readouterr().err)
    assert not files["out"].exists()


def test_a_plan_of_several_data_sets_is_one_json_text(files, tiny_t5, tmp_path, capsys):
    given = [data_file(tmp_path, name, files) for name in ("nq", "x")]
    asked = ["--reader", tiny_t5, "--store", tmp_path / "s", "--json"]
    assert erag("plan", "--data", *given, *asked) == 0
    assert json.loads(capsys.readouterr().out).keys() == {"nq", "x"}


@pytest.mark.parametrize(
    "options",
    [
        ["--k-sweep", "5,x"],
        ["--k-sweep", "0"],
        ["--k-sweep", "1,2", "--k", "3"],
        ["--augmentation", "fid,both"],
        ["--augmentation", "in-prompt,fid"],
        ["--reader", "bundled", "--reader", "none/such"],
        ["--erag-reader", "none/such"],
        ["--annotators", "utility", "--abstain-prompt", "nowhere.txt"],
    ],
)
def test_what_cannot_work_is_one_line(files, tmp_path, capsys, options):
    assert evaluate(files, "--store", tmp_path / "s", "--actors", 0, *options) == 2
    # A slow machine says before that it prepares.
    *waits, said = capsys.readouterr().err.splitlines()
    as_expected(said)
    assert all(line.endswith((" …", " far)")) for line in waits)


def test_words_of_the_users_own_are_not_taken_for_options(files, tmp_path, capsys):
    more = ["--k", 2, *CONTAINMENT, "--resamples", 0]
    named = tmp_path / "named.trec"
    named.write_text(files["run"].read_text().replace("mine", "`my_run`"))
    assert evaluate(files | {"run": named}, *more, "--store", tmp_path / "store", "--limit", 1) == 0
    assert evaluate(files | {"run": tmp_path / "`no_file`.trec"}, *more) == 2
    error = capsys.readouterr().err
    assert "`no_file`.trec: " in error
    assert evaluate(files, *more, "--limit", 0) == 2
    assert "--limit is 0; use 1 or more" in capsys.readouterr().err


def test_only_known_fields_become_options():
    text = "run `my_run` at `k`: use `end_to_end_k`, or ``k`` in `unknown_word`"
    known = {"k", "end_to_end_k"}
    assert with_options(text, known) == (
        "run `my_run` at --k: use --end-to-end-k, or --k in `unknown_word`"
    )
    assert with_options("`my_run`") == "--my-run"  # in text of the engine alone
