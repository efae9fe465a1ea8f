"""The first lines of every answer: who read, by which metric, at which cutoff, and what."""

import pytest

from engine.report import header
from tests.expected import as_expected

OWN = {"name": "bundled", "executor": None, "dtype": "bfloat16", "prompt": "completion", "fingerprint": "f"}  # fmt: skip
API = {"api": {"model": "small", "host": "here:8000"}, "dtype": None}
DEMONSTRATION = (
    "Demonstration only: the bundled reader (SmolLM2-135M-Instruct) is no basis for decisions about "
    "another system; evaluate with the LLM of your system"
)


def summary(reader=OWN, *, runs=("bm25",), command="erag evaluate", **more):
    settings = {
        "metric": "em",
        "k": 10,
        "end_to_end_k": 10,
        "relevant": "pool",
        "reader": "bundled",
    }
    settings |= {"queries": "/a/q.jsonl", "corpus": "s3://b/c.jsonl", "qrels": None}
    settings["runs"] = [f"/runs/{name}.trec" for name in runs]
    return {
        "configuration": settings | more.pop("configuration", {}),
        "counts": {"queries": 40, "passages": 300},
        "reader": reader,
        "means": [{"run": name} for name in runs],
        "end_to_end": [{"run": name} for name in runs],
        "audit": {"command": command},
    } | more


def test_the_bundled_reader_is_a_demonstration_but_in_the_demo():
    first, *told = header.lines(summary())
    assert first == DEMONSTRATION
    as_expected(told)
    assert header.lines(summary(command=None))[0] == DEMONSTRATION
    for command in ("erag demo --out x", "python -m jobs.demo"):
        assert header.lines(summary(command=command)) == told
    as_expected(header.lines(summary(OWN | {"executor": "mine"}))[0])


@pytest.mark.parametrize(
    ("reader", "told"),
    [
        ({"name": "/models/org/Llama-3-8B"}, "org/Llama-3-8B (bfloat16)"),
        ({"name": "./my-llm"}, "my-llm (bfloat16)"),
        ({"name": "/m/q4.gguf"}, "q4.gguf (bfloat16)"),
        ({"name": "x" * 99}, f"{'x' * 59}… (bfloat16)"),
        ({"name": "openai:small"} | API, "small at here:8000"),
        ({"name": "ask", "version": "2", "dtype": None}, "Python function ask() (version 2)"),
        (
            {"name": "ask", "version": None, "dtype": None},
            "Python function ask() (answers not cached)",
        ),
    ],
)
def test_every_kind_of_reader_is_named(reader, told):
    assert header.lines(summary(OWN | reader))[0].startswith(f"Reader: {told} · prompt")


def test_labels_alone_and_other_readers_are_told():
    judged = summary(None, judge=OWN | {"name": "openai:small"} | API, end_to_end=[])
    as_expected(header.lines(judged)[0])
    declining = summary(abstain=OWN, configuration={"end_to_end_k": 3})
    as_expected(header.lines(declining)[1])


def test_a_study_names_its_readers_and_cutoffs_and_many_runs_are_cut():
    conditions = [{"reader": name, "k": k} for name in ("m/a", "bundled") for k in (10, 5)]
    runs = tuple("abcdefg")
    files = {"runs": ["/x/a.trec", "/x/other.json"], "qrels": "/x/test.tsv"}
    of_study = summary(OWN | {"name": "m/a"}, runs=runs, study={"conditions": conditions}, configuration=files)  # fmt: skip
    as_expected(header.lines(of_study))
