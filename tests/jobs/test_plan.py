"""``erag plan`` and ``erag evaluate --dry-run`` as a user runs them."""

import json

import pytest

from engine.evaluation import startup
from tests.commands import erag
from tests.commands import evaluate as run_evaluate

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

    def call(*options, command="plan"):
        given = [part for name, value in files.items() for part in (f"--{name}", value)]
        given += ["--store", files["out"].parent / "store", "--k", 2]
        if "--reader" not in options:
            given += ["--reader", tiny_t5]
        status = erag(command, *given, *options)
        printed = capsys.readouterr()
        return status, printed.out, printed.err

    return call


def row(printed, name):
    """The figures of a line of the table."""
    (line,) = (line for line in printed.splitlines() if line.strip().startswith(name))
    return line.strip().removeprefix(name).split()


def test_a_plan_counts_reads_times_some_and_keeps_these(plan, files, tiny_t5):
    status, printed, _ = plan("--actors", 0, "--probe-reads", 8, "--price-per-hour", 3)
    assert status == 0
    asked, equal, stored, left = map(int, row(printed, "all")[:4])
    assert (asked, equal) == (36, 0)
    assert 4 <= stored <= 14
    assert stored + left == 36
    for word in ("start:", "start and LLM calls, 1 actor:", "memory:", "cost:", "cached"):
        assert word in printed
    assert "at 3 for an actor's hour" in printed
    assert len(printed.splitlines()) <= 25
    assert not files["out"].exists()
    more = ["--store", files["out"].parent / "store", "--k", 2, "--actors", 0, "--resamples", 0]
    assert run_evaluate(files, *more, "--reader", tiny_t5) == 0
    summary = json.loads((files["out"] / "summary.json").read_text())
    assert (summary["reading"]["reused"], summary["reading"]["done"]) == (stored, left)
    status, printed, _ = plan("--actors", 0)
    assert row(printed, "all") == ["36", "0", "36", "0"]
    assert "no new LLM call is needed" in printed


def test_counts_alone_load_nothing(plan, files):
    status, printed, _ = plan("--actors", 0, "--probe-reads", 0)
    assert status == 0
    assert row(printed, "single passages") == ["24", "0", "0", "24"]
    assert row(printed, "whole lists") == ["12", "0", "0", "12"]
    assert "no time is predicted without a probe, which erag plan makes by default" in printed
    assert not (files["out"].parent / "store").exists()


def test_a_dry_run_counts_and_reads_nothing(plan, files):
    status, printed, _ = plan("--actors", 0, "--dry-run", command="evaluate")
    assert status == 0
    assert row(printed, "all") == ["36", "0", "0", "36"]
    assert "no time is predicted without a probe, which erag plan makes by default" in printed
    assert "probe:" not in printed
    assert not files["out"].exists()
    assert not (files["out"].parent / "store").exists()


def test_a_plan_as_json_has_the_figures_of_the_table(plan):
    status, printed, _ = plan("--actors", 0, "--dry-run", "--json", command="evaluate")
    assert status == 0
    counted = json.loads(printed)
    assert counted["reads"] == {"asked": 36, "shared": 0, "stored": 0, "left": 36}
    assert {kind["name"]: kind["left"] for kind in counted["kinds"]} == {
        "single passages": 24,
        "whole lists": 12,
    }
    assert (counted["queries"], counted["actors"]) == (12, 1)
    for unknown in ("probe", "seconds", "peak", "cost", "token_price", "sampled"):
        assert counted[unknown] is None
    status, printed, _ = plan("--actors", 0, "--probe-reads", 8, "--price-per-hour", 3, "--json")
    timed = json.loads(printed)
    assert timed["reads"]["stored"] == timed["probe"]["reads"] > 0
    assert timed["seconds"]["value"] > 0
    assert timed["cost"]["value"] == pytest.approx(3 * timed["seconds"]["value"] / 3600)


def test_a_plan_of_an_evaluation_in_shards_is_an_estimate_from_a_sample(plan, files, monkeypatch):
    monkeypatch.setattr(startup, "LARGE", 4)
    status, printed, _ = plan("--actors", 0, "--probe-reads", 8)
    assert status == 0
    assert "LLM calls of 12 queries, an estimate" in printed
    assert "counts: from a sample of 12 queries" in printed
    assert row(printed, "all")[0] == "36"
    assert not files["out"].exists()


@pytest.mark.slow
@pytest.mark.usefixtures("ray_session")
def test_on_ray_the_probe_is_read_by_actors_and_says_how_many_finish_in_time(plan):
    status, printed, _ = plan("--finish-in", 1, "--probe-reads", 16, "--cpus-per-actor", 1)
    assert status == 0
    assert "1 actor finishes in 1 h, by the upper end" in printed
    _, stored, left = map(int, row(printed, "all")[1:4])
    assert stored >= 8
    assert stored + left == 36
    (line,) = (line for line in printed.splitlines() if line.startswith("probe:"))
    assert "with 1 CPU" in line
    # That Ray, an actor and its libraries take no time would be news.
    (start,) = (line for line in printed.splitlines() if line.startswith("start: "))
    assert float(start.split()[1]) > 1


def test_options_of_a_plan_may_stand_in_the_file_of_the_evaluation(plan, tmp_path):
    config = tmp_path / "o.yaml"
    config.write_text("actors: 0\nprobe-reads: 0\n")
    status, printed, _ = plan("--config", config)
    assert status == 0
    assert "without a probe" in printed


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--price-per-hour", -1], "--price-per-hour is -1; use 0 or more"),
        (["--price-per-hour", "cheap"], "--price-per-hour is 'cheap'; give a number"),
        (["--finish-in", 0], "--finish-in is 0; use more than 0"),
        (["--finish-in", 2, "--actors", 4], "--actors 4 beside --finish-in 2, which asks how many"),
        (["--probe-reads", -5], "--probe-reads is -5; use 0 or more"),
        (["--probe-reads", 0, "--finish-in", 1], "--finish-in with --probe-reads 0"),
        (["--annotators", "qrels"], "the annotator qrels without --qrels"),
        (["--reader", "nowhere"], "nowhere"),
    ],
)
def test_options_that_cannot_work_are_refused_in_one_line(plan, files, options, words):
    status, printed, error = plan(*options)
    assert status == 2
    assert words in error
    assert error.count("\n") == 1
    assert not printed
    assert not files["out"].exists()
