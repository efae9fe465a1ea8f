"""``erag plan`` as a user runs it."""

import json
import re

import pytest

from engine.inputs import partition
from tests.commands import erag
from tests.commands import evaluate as run_evaluate
from tests.expected import as_expected

QUERIES = 12


@pytest.fixture
def plan(files, tiny_t5, capsys):
    """A function that plans the evaluation of the files: its status, what it printed, and its errors.

    12 queries, each with 2 of 24 passages: 24 single reads, and 12 whole lists.
    """
    queries, passages, lines = [], [], []
    for number in range(QUERIES):
        queries.append({"id": f"{number}", "input": f"w{number} w5", "output": [{"answer": "w7"}]})
        for place in range(2):
            name = f"d{number}-{place}"
            text = " ".join(f"w{(7 * number + 3 * i) % 97}" for i in range(8 + number))
            passages.append({"id": name, "title": f"w{number}", "text": f"{text} w{place}"})
            lines.append(f"{number} Q0 {name} {place + 1} {2 - place} mine\n")
    for name, records in (("queries", queries), ("corpus", passages)):
        files[name].write_text("".join(json.dumps(record) + "\n" for record in records))
    files["run"].write_text("".join(lines))

    def call(*options):
        given = [part for name, value in files.items() for part in (f"--{name}", value)]
        given += ["--k", 2]
        if "--store" not in options:
            given += ["--store", files["out"].parent / "store"]
        if "--reader" not in options:
            given += ["--reader", tiny_t5]
        status = erag("plan", *given, *options)
        printed = capsys.readouterr()
        return status, printed.out, printed.err

    return call


def row(printed, name):
    """The figures of a line of the table."""
    (line,) = (line for line in printed.splitlines() if line.strip().startswith(name))
    return line.strip().removeprefix(name).split()


def sentences(printed):
    """The lines beside the table; memory is another machine's in another precision."""
    lines = printed.splitlines()
    return [line.rstrip() for line in lines if line[:1].isalpha() and line[:6] != "memory"]


@pytest.fixture
def evaluated(plan, files, tiny_t5):
    """The summary of an evaluation of the files by one process, its calls in a store of their own."""
    more = ["--store", files["out"].parent / "other", "--k", 2, "--actors", 0, "--resamples", 0]
    assert run_evaluate(files, *more, "--reader", tiny_t5) == 0
    return json.loads((files["out"] / "summary.json").read_text())


def test_counts_alone_load_nothing(plan, files):
    status, printed, _ = plan("--actors", 0)
    assert status == 0
    # Of the prompts "question: w0 w5 title: w0 context: w0 … w0" and the token that ends each.
    assert row(printed, "single passages") == ["24", "0", "0", "24", "516", "384"]
    assert row(printed, "lists") == ["12", "0", "0", "12", "468", "192"]
    as_expected(sentences(printed))
    assert not (files["out"].parent / "store").exists()


def test_the_results_of_an_evaluation_pace_a_plan(plan, files, evaluated, capsys):
    """Of the same calls: they take as long as they did, 516 tokens at the pace of 516 and 468 at that of 468."""
    capsys.readouterr()
    asked = "--actors", 0, "--pace", files["out"], "--price-per-hour", 3
    status, printed, _ = plan(*asked, "--json")
    assert status == 0
    counted, reading = json.loads(printed), evaluated["reading"]
    assert {kind["name"]: kind["seconds"] for kind in counted["kinds"]} == {
        "single passages": pytest.approx(reading["kinds"]["single"]["reader_seconds"]),
        "lists": pytest.approx(reading["kinds"]["whole"]["reader_seconds"]),
    }
    # One process: what it took in all, start included.
    assert counted["seconds"]["value"] == pytest.approx(reading["seconds"])
    assert counted["cost"]["value"] == pytest.approx(3 * reading["seconds"] / 3600)
    assert counted["peak"] == max(reading["workers"].values())
    assert counted["notes"] == []
    tokens = sum(kind["prompt_tokens"] for kind in counted["kinds"])
    assert tokens == reading["prompt_tokens"]
    status, printed, _ = plan(*asked, "--dtype", "float32", "--budget", "36reads")
    as_expected(re.findall("time: .*|start and .*: |memory: about |at 3 .*|budget .*", printed))
    assert len(printed.splitlines()) <= 25
    status, printed, _ = plan("--actors", 0, "--store", files["out"].parent / "other")
    assert row(printed, "all")[:4] == ["36", "0", "36", "0"]
    as_expected(sentences(printed))


def test_a_plan_reads_nothing_and_says_its_figures_as_json(plan, files):
    status, printed, _ = plan("--actors", 0, "--json")
    assert status == 0
    counted = json.loads(printed)
    assert [*counted["reads"].values()] == [36, 0, 0, 36] * 2  # also by earlier names
    assert {kind["name"]: kind["left"] for kind in counted["kinds"]} == {
        "single passages": 24,
        "lists": 12,
    }
    assert (counted["queries"], counted["actors"]) == (12, 1)
    assert counted["peak"] > 2**30  # what the model is taken to need
    for unknown in ("pace", "seconds", "cost", "token_price", "sampled"):
        assert counted[unknown] is None
    assert not files["out"].exists()
    assert not (files["out"].parent / "store").exists()


def test_a_plan_of_an_evaluation_in_shards_is_an_estimate_from_a_sample(plan, files, monkeypatch):
    monkeypatch.setattr(partition, "LARGE", 4)
    status, printed, _ = plan("--actors", 0)
    assert status == 0
    as_expected(sentences(printed))
    assert row(printed, "all")[0] == "36"
    assert not files["out"].exists()


def test_options_of_a_plan_may_stand_in_the_file_of_the_evaluation(plan, tmp_path):
    config = tmp_path / "o.yaml"
    config.write_text("actors: 0\nbudget: 35reads\n")
    status, printed, _ = plan("--config", config)
    assert status == 0
    assert "budget 35reads: " in printed


@pytest.mark.parametrize(
    "options",
    [
        ["--price-per-hour", "cheap"],
        ["--finish-in", 1],
        ["--pace", "x"],
        ["--probe-reads", 5],
        ["--annotators", "qrels"],
        ["--reader", "nowhere"],
    ],
)
def test_options_that_cannot_work_are_refused_in_one_line(plan, files, options):
    status, printed, error = plan(*options)
    assert status == 2
    assert error.count("\n") == 1
    as_expected(error)
    assert not printed
    assert not files["out"].exists()
