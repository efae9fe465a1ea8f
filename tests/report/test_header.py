"""The first lines of every answer: who read, by which metric, at which cutoff, and what."""

import pytest

from engine.report import header

OWN = {"name": "bundled", "executor": None, "dtype": "bfloat16", "prompt": "completion", "fingerprint": "f"}  # fmt: skip
API = {"api": {"model": "small", "host": "localhost:8000"}, "dtype": None}
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
    told = [
        "Reader: SmolLM2-135M-Instruct (bundled, bfloat16) · prompt completion · metric em · k = 10",
        "Data: 40 queries (q.jsonl) · 300 passages (c.jsonl) · run bm25 · recall base: pooled passages",
    ]
    assert header.lines(summary()) == [DEMONSTRATION, *told]
    assert header.lines(summary(command=None))[0] == DEMONSTRATION
    for command in ("erag demo --out x", "python -m jobs.demo"):
        assert header.lines(summary(command=command)) == told
    assert header.lines(summary(OWN | {"executor": "mine"}))[0].startswith(
        "Reader: mine (in place of SmolLM2-135M-Instruct) · "
    )


@pytest.mark.parametrize(
    ("reader", "told"),
    [
        ({"name": "/models/org/Llama-3-8B"}, "org/Llama-3-8B (bfloat16)"),
        ({"name": "./my-llm"}, "my-llm (bfloat16)"),
        ({"name": "/m/q4.gguf"}, "q4.gguf (bfloat16)"),
        ({"name": "x" * 99}, f"{'x' * 59}… (bfloat16)"),
        ({"name": "openai:small"} | API, "small at localhost:8000"),
        ({"name": "ask", "version": "2", "dtype": None}, "ask (a function, version 2)"),
        ({"name": "ask", "version": None, "dtype": None}, "ask (a function, not cached)"),
    ],
)
def test_every_kind_of_reader_is_named(reader, told):
    assert header.lines(summary(OWN | reader))[0].startswith(f"Reader: {told} · prompt")


def test_labels_alone_and_other_readers_are_told():
    judged = summary(None, judge=OWN | {"name": "openai:small"} | API, end_to_end=[])
    assert header.lines(judged)[0] == "Reader: none, labels only · judge: small at localhost:8000 · k = 10"  # fmt: skip
    declining = summary(abstain=OWN, configuration={"end_to_end_k": 3})
    assert header.lines(declining)[1].endswith("metric em · k = 10 (end to end 3)")
    assert "abstain" not in header.lines(declining)[1]


def test_a_study_names_its_readers_and_cutoffs_and_many_runs_are_cut():
    conditions = [{"reader": name, "k": k} for name in ("m/a", "bundled") for k in (10, 5)]
    runs = tuple("abcdefg")
    files = {"runs": ["/x/a.trec", "/x/other.json"], "qrels": "/x/test.tsv"}
    of_study = summary(OWN | {"name": "m/a"}, runs=runs, study={"conditions": conditions}, configuration=files)  # fmt: skip
    assert header.lines(of_study) == [
        DEMONSTRATION,
        "Readers: m/a (bfloat16), SmolLM2-135M-Instruct · prompt completion · metric em · k = 5, 10",
        "Data: 40 queries (q.jsonl) · 300 passages (c.jsonl) · runs a, b, c, d, e and 2 more (other.json) "
        "· qrels test.tsv · recall base: pooled passages",
    ]
