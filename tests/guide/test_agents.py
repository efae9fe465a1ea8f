"""The command and the lines of docs/guide/agents.md, on the traces that it shows and a log of inspect_ai's shape."""

import json
import re
import shlex
from pathlib import Path

import polars as pl

import engine
from tests.commands import erag

PAGE = (Path(__file__).parents[2] / "docs/guide/agents.md").read_text()
(TRACES,) = re.findall(r"```json\n(.*?)```", PAGE, re.S)
(COMMAND,) = re.findall(r"^erag (.*)$", PAGE, re.M)
(LINES,) = re.findall(r"```python\n(.*?)```", PAGE, re.S)


def test_the_command_evaluates_the_traces_that_stand_above_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ERAG_CACHE", str(tmp_path / "cache"))
    Path("traces.jsonl").write_text(TRACES)
    query = {"id": "1", "query": "what is the capital of Aruba", "answers": ["Oranjestad"]}
    Path("queries.jsonl").write_text(json.dumps(query))
    Path("model.py").write_text(
        "def ask(prompts):\n    return ['Oranjestad' if 'Oranjestad is' in p else '' for p in prompts]\n"
    )
    words = ["model.py:ask" if word == "MODEL" else word for word in shlex.split(COMMAND)]
    assert not erag(*words)
    labels = pl.read_parquet("results/labels.parquet").sort("doc_id")
    assert labels.select("doc_id", "label").rows() == [("a", 0.0), ("b", 1.0)]
    assert pl.read_parquet("results/downstream.parquet")["output"].to_list() == ["Oranjestad"]
    assert engine.read_traces("traces.jsonl").runs["run"].unique().to_list() == ["traces"]


def sample(own, completion, **more):
    output = {"model": "m", "choices": [], "completion": completion}
    return {"id": own, "epoch": 1, "input": "x", "output": output, "error": None} | more


def test_fifteen_lines_make_recorded_outputs_of_a_log_of_inspect_ai(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    failed = sample("3", "", error={"message": "no connection"})
    samples = [sample("1", "Lima"), sample(2, "Rome"), sample("1", "Quito", epoch=2), failed]
    Path("log.json").write_text(json.dumps({"version": 2, "status": "success", "samples": samples}))
    assert len(LINES.splitlines()) <= 15
    exec(compile(LINES, "agents.md", "exec"), {})
    rows = [json.loads(line) for line in Path("outputs.jsonl").read_text().splitlines()]
    assert rows == [{"query_id": "1", "output": "Lima"}, {"query_id": "2", "output": "Rome"}]
    queries = {"1": {"query": "of Peru", "answers": ["Lima"]}, "2": {"query": "of Italy", "answers": ["Rome"]}}  # fmt: skip
    result = engine.evaluate(
        queries, {"a": "Lima", "b": "Rome"}, {"1": ["a", "b"], "2": ["a", "b"]},
        outputs="outputs.jsonl", annotators="containment", k=2, store="store", progress=False,
    )  # fmt: skip
    assert result.table("downstream")["value"].to_list() == [1.0, 1.0]
