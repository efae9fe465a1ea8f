"""The certificate as it is printed and written, from the command line."""

import json
from dataclasses import asdict, replace

import pytest

from engine.reading.repetition import BatchPolicy, Change, RepeatabilityCheck
from engine.report.printed import certificate_line
from jobs import cli
from jobs._command import run_app

CERTIFICATE = RepeatabilityCheck(
    repeated=64,
    alone=32,
    failed=0,
    changed_outputs=2,
    changed_labels=1,
    largest_confidence_difference=None,
    changes=[Change("q1", ["d1"], "Ann", "Anna")],
    seed=0,
    dtype="bfloat16",
    device="cpu",
    batches=BatchPolicy(8192, 0),
    repeated_batches=BatchPolicy(4096, 0),
    sha256={"weights": "w"},
)


def test_the_line_says_what_was_repeated_and_what_changed():
    assert certificate_line(asdict(CERTIFICATE), "") == (
        "repeatability check: 64 LLM calls repeated, 2 outputs and 1 label changed"
    )
    assert certificate_line(asdict(replace(CERTIFICATE, failed=3)), "the judge").startswith(
        "repeatability check of the judge: 64 LLM calls repeated, 3 failed, 2 outputs"
    )


@pytest.mark.parametrize(
    ("option", "repeated"), [(["--certify"], 2), (["--certify", "1"], 1), ([], None)]
)
def test_the_command_prints_it_and_writes_it(tiny_t5, tmp_path, capsys, option, repeated):
    (tmp_path / "q.jsonl").write_text(
        '{"id": "1", "input": "w1 w2", "output": [{"answer": "w3"}]}\n'
        '{"id": "2", "input": "w4", "output": [{"answer": "w5"}]}\n'
    )
    (tmp_path / "c.jsonl").write_text('{"id": "a", "title": "w6", "text": "w7 w8 w9"}\n')
    (tmp_path / "r.trec").write_text("1 Q0 a 1 1 mine\n2 Q0 a 1 1 mine\n")
    arguments = ["evaluate", *option, "--queries", tmp_path / "q.jsonl"]
    arguments += ["--corpus", tmp_path / "c.jsonl", "--run", tmp_path / "r.trec"]
    arguments += ["--out", tmp_path / "out", "--store", tmp_path / "store", "--reader", tiny_t5]
    arguments += ["--k", 1, "--actors", 0, "--dtype", "float32", "--resamples", 0, "--seed", 5]
    # a list of one passage is the same read as the passage alone: two distinct ones
    run_app(cli.app, [str(argument) for argument in arguments])
    found = json.loads((tmp_path / "out" / "summary.json").read_text())["certificates"]
    printed = [
        line for line in capsys.readouterr().out.splitlines() if "repeatability check:" in line
    ]
    if repeated is None:
        assert found == {}
        assert printed == []
        return
    assert printed == [
        f"repeatability check: {repeated} LLM call{'s' * (repeated > 1)} repeated, 0 outputs and 0 labels changed"
    ]
    found = found["reader"]
    assert (found["repeated"], found["seed"], found["dtype"]) == (repeated, 5, "float32")
    assert {"weights", "reader", "reads", "prompt", "queries", "corpus", "runs"} == set(
        found["sha256"]
    )
    assert set(map(len, found["sha256"].values())) == {32, 64}
    assert found["versions"]["torch"].startswith("2.")
