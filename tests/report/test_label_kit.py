"""The exported folder explains itself, gives its labels back, and leads to ir_measures."""

import re
import shutil
from pathlib import Path

import ir_measures
import polars as pl
import pytest
import yaml

import erag_engine
from engine import Reader, Result, load_labels
from engine.sources.runs.export import scored_labels
from tests.expected import refused
from tests.python.test_evaluate import PASSAGES, QUERIES, Counting

# "mine" lists an answer first for all but every fourth question, and nothing for q11; q0 is not judged.
RUNS = {
    "mine": {f"q{i}": {f"d{i}": 2.0, f"e{i}": 1.0} for i in range(11)},
    "poor": {f"q{i}": {f"e{i}": 1.0} for i in range(11)},
}
QRELS = {f"q{i}": {f"d{i}": 1} for i in range(1, 12)}


def evaluated(folder):
    """An evaluation by a reader with a version and a name of this machine, with its prompt in a file there."""
    prompt = folder.parent / "prompt.txt"
    prompt.write_text("Answer {{briefly}}.\n{passages}\nQuestion: {query}")
    reader = Reader(Counting(), name="/machine/llm", version="7")
    options = {"k": 10, "measures": "nDCG@10 P@1", "resamples": 0, "progress": False, "prompt": prompt}  # fmt: skip
    found = erag_engine.evaluate(
        QUERIES,
        PASSAGES,
        RUNS,
        reader=reader,
        annotators=["erag", "qrels"],
        qrels=QRELS,
        store=folder.parent,
        **options,
    )
    found.save(folder)
    return found


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("engine.report.page.remake.make_page", lambda *_, **__: None)  # takes seconds
        folders = [tmp_path_factory.mktemp("machine") / "results" for _ in range(2)]
        for folder in folders:
            evaluated(folder)
    return folders


def test_labels_of_an_exported_folder_come_back_with_the_rows_of_its_qrels(place, tmp_path):
    found = Result.load(place[0])
    labels = load_labels(shutil.copytree(place[0] / "exported", tmp_path / "copy"))
    assert labels.schema == found.labels.schema
    expected = pl.concat(scored_labels([found.labels], found.scores))
    assert sorted(labels.rows()) == sorted(expected.rows())
    # Nothing is listed for q11: its mean counts it as 0, and so do judgments.
    assert ("q11", "no-passage", "erag", 0.0) in labels.rows()
    assert labels.filter(annotator="qrels", query_id="q0").is_empty()


def test_metadata_name_the_reader_its_prompt_and_queries_without_scores(place):
    metadata = yaml.safe_load((place[0] / "exported/ir_metadata.yaml").read_text())
    summary = Result.load(place[0]).summary
    sections = ["platform", "research goal", "implementation", "method", "data"]
    assert list(metadata) == sections
    reader = metadata["method"]["readers"]["reader"]
    assert (reader["name"], reader["version"]) == ("llm", "7")
    assert reader["fingerprint"] == summary["reader"]["fingerprint"]
    assert reader["prompt"]["sha256"] == summary["reader"]["prompt_sha256"]
    assert reader["prompt"]["body"] == "Answer {{briefly}}.\n{passages}\nQuestion: {query}"
    assert reader["decoding"] == {"choices": [], "max_new_tokens": 16, "max_input_tokens": 0}
    assert metadata["method"]["metric"] == "em"
    data = metadata["data"]
    assert data["test collection"]["sha256"] == summary["audit"]["tables_sha256"]
    assert data["queries without scores"] == {"qrels": {"number": 1, "first ids": ["q0"]}}
    assert data["reasons"] == [
        note["text"]
        for code in ("queries_without_judgments", "queries_without_results")
        for note in summary["notes"][code]
    ]
    assert data["files"]["qrels/erag.txt"]["annotator"] == "erag"


def test_the_folder_is_equal_for_equal_inputs_and_names_no_folder_of_the_machine(place):
    first, second = (sorted(one.rglob("exported/**/*.*")) for one in place)
    assert len(first) == 9
    for one, other in zip(first, second, strict=True):
        assert one.read_bytes() == other.read_bytes(), one
        assert b"machine" not in one.read_bytes(), one


def test_a_folder_without_labels_or_with_damaged_ones_is_refused(place, tmp_path):
    with refused("labels.missing", path=place[0]):
        load_labels(place[0])
    copy = shutil.copytree(place[0] / "exported", tmp_path / "exported")
    metadata, labels = copy / "ir_metadata.yaml", copy / "labels.parquet"
    labels.write_bytes(labels.read_bytes() + b"x")
    with refused("files.unreadable", path=labels):
        load_labels(copy)
    labels.unlink()
    with refused("files.unreadable", path=labels):
        load_labels(copy)
    for broken in (b"a: [", b"\xff", b"data: 1", b"data: {files: {}}", b"- " * 5000):
        metadata.write_bytes(broken)
        with refused("labels.damaged", path=metadata):
            load_labels(copy)


def test_the_lines_of_the_guide_lead_from_labels_to_ir_measures(place, monkeypatch, capsys):
    guide = (Path(__file__).parents[2] / "docs/guide/python.md").read_text()
    (code,) = (
        one for one in re.findall(r"```python\n(.*?)```", guide, re.S) if "load_labels" in one
    )
    monkeypatch.chdir(place[0].parent)
    shutil.copy("results/exported/runs/mine.trec", "mine.trec")
    names = {"erag_engine": erag_engine, "ir_measures": ir_measures, "nDCG": ir_measures.nDCG}
    exec(compile(code, "python.md", "exec"), names)
    means = Result.load(place[0]).means
    expected = means.filter(run="mine", annotator="erag", measure="nDCG@10")["value"].item()
    assert capsys.readouterr().out == f"{{nDCG@10: {expected}}}\n"
