"""Benchmarks: what they share, and that the smallest case of each still runs."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import ray
import ray.data

from benchmarks import __main__ as every
from benchmarks import _ray_llm_peer
from benchmarks._driver import simulate
from benchmarks._harness import Line, Ratio, Timing, make_parser, write_report


def test_every_benchmark_is_on_the_page():
    folder = Path(every.__file__).parent
    modules = {path.stem for path in folder.glob("*.py") if not path.stem.startswith("_")}
    modules |= {path.parent.name for path in folder.glob("*/__main__.py")}
    assert modules == {*every.NAMES, *every.OF_RESULTS}


def test_quick_changes_defaults_and_nothing_that_was_given():
    parser = make_parser("One.\n\nMore.", rounds=5, quick={"rounds": 1, "reads": 3})
    parser.add_argument("--reads", type=int, default=100)
    assert (parser.parse_args([]).rounds, parser.parse_args([]).reads) == (5, 100)
    quick = parser.parse_args(["--quick", "--reads", "7"])
    assert (quick.rounds, quick.reads) == (1, 7)


def test_ratios_are_of_rounds_and_not_of_sums():
    """A round beside other load is slow for both sides."""
    slow, fast = Timing([2.0, 20.0, 4.0], None), Timing([1.0, 10.0, 1.0], None)
    assert slow.over(fast) == Ratio(2.0, 2.0, 4.0)
    assert str(slow.over(fast)) == "2.00 [2.00, 4.00]"
    with pytest.raises(ValueError, match="shorter"):
        slow.over(Timing([1.0], None))


def test_reports_have_the_lines_of_the_page(tmp_path):
    parser = make_parser("One.", quick={})
    arguments = parser.parse_args(["--quick", "--json", str(tmp_path / "a.json")])
    write_report(arguments, ["numpy"], {"cells": [1]}, [Line("speed", "2.0", "1 and more")])
    report = json.loads((tmp_path / "a.json").read_text())
    assert report["cells"] == [1]
    outcome = every.Outcome("peers", 3.0, report)
    lines = every.page([outcome, every.Outcome("ranking", 4.0, None, "failed with status 1: no")])
    told = [line.split() for line in lines[2:]]
    assert told[0] == ["peers", "speed", "2.0", "1", "and", "more"]
    assert told[1] == ["ranking", "failed", "with", "status", "1:", "no"]
    assert told[2][:4] == ["2", "benchmarks,", "7", "s;"]


def test_of_ten_minutes_a_thousand_actors_read_95_percent():
    # One driver, 9.4 ms a unit; the units are the engine's own.
    found = simulate(1000, 600.0, tokens_per_second=7000.0, tokens_per_pair=410.0)
    assert found["efficiency"] >= 0.95
    assert found["longest_unit_seconds"] < 30


def test_what_fails_is_told_and_decides_the_status(tmp_path, monkeypatch, capsys):
    failed = every.Outcome("peers", 1.0, None, "failed with status 1: outputs differ")
    monkeypatch.setattr(every, "run", lambda name, report, *, quick: failed)
    assert every.main(["--quick", "--only", "peers", "--json", str(tmp_path / "all.json")]) == 1
    assert "outputs differ" in capsys.readouterr().out
    assert json.loads((tmp_path / "all.json").read_text())["peers"]["report"] is None
    with pytest.raises(SystemExit, match="no benchmark nothing"):
        every.main(["--only", "nothing"])


def test_a_benchmark_that_ends_in_an_error_is_a_problem(tmp_path):
    found = every.run("_no_such", tmp_path / "report.json", quick=True)
    assert "_no_such" in found.problem


@pytest.fixture
def ray_llm(monkeypatch):
    """``ray.data.llm`` as far as its peer uses it: prompts of over a thousand characters are too long for it."""

    def build_processor(config, preprocess, postprocess):
        def read(row):
            asked = preprocess(row)
            if len(asked["prompt"]) <= 1000:
                answer = {"generated_text": " yes\n", "num_input_tokens": 3}
                return postprocess({**asked, **answer, "time_taken_llm": 2.0})
            if config["should_continue_on_error"]:
                return {"id": asked["id"], "__inference_error__": "ValueError: too long"}
            raise ValueError("too long")

        return lambda rows: SimpleNamespace(iter_rows=lambda: [read(row) for row in rows])

    monkeypatch.setitem(sys.modules, "vllm", SimpleNamespace(__version__="0"))
    library = SimpleNamespace(build_processor=build_processor, vLLMEngineProcessorConfig=dict)
    monkeypatch.setitem(sys.modules, "ray.data.llm", library)
    monkeypatch.setattr(ray, "is_initialized", lambda: True)
    monkeypatch.setattr(ray.data, "from_items", lambda rows, override_num_blocks: rows)
    monkeypatch.setattr(os, "environ", dict(os.environ))


@pytest.mark.parametrize(
    ("asked", "rows", "read", "failures", "error"),
    [
        ({}, 4, 4, [], ""),
        ({"scene": "failed row"}, 0, 0, [], "ValueError: too long"),
        ({"scene": "failed row", "kept": True}, 4, 3, ["ValueError: too long"], ""),
    ],
)
def test_the_peer_of_ray_data_llm_counts_what_came_and_what_was_read(
    ray_llm, asked, rows, read, failures, error
):
    found = _ray_llm_peer.measure({"model": "m", "prompts": ["a" * 9] * 4, **asked})
    assert (found["rows"], found["read"]) == (rows, read)
    assert (found["failures"], found["error"]) == (failures, error)
    assert found["seconds"] >= 2 * (read > 0)  # from when the engine had them
    there = min(4, read)
    assert found["outputs"] == [None] * (4 - there) + ["yes"] * there


# ``ray.data.llm`` without an LLM, on Ray Data as it is.
PLAYED = """
import asyncio, sys, time
from types import SimpleNamespace

class Stage:
    async def udf(self, batch):
        for row in batch:
            time.sleep(1)
            yield {**row, "generated_text": " yes", "num_input_tokens": 3, "time_taken_llm": 1}

def build_processor(config, preprocess, postprocess):
    stage = SimpleNamespace(fn=Stage)

    async def read(row):
        return [postprocess(answer) async for answer in stage.fn().udf([preprocess(row)])]

    class Processor:
        get_stage_by_name = staticmethod({"vLLMEngineStage": stage}.get)

        def __call__(self, rows):
            return rows.flat_map(lambda row: asyncio.run(read(row)))

    return Processor()

sys.modules["vllm"] = SimpleNamespace(__version__="0")
library = SimpleNamespace(build_processor=build_processor, vLLMEngineProcessorConfig=dict)
sys.modules["ray.data.llm"] = library
from benchmarks import _ray_llm_peer
_ray_llm_peer.main()
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("asked", "again", "written"),
    [
        ({}, [8], [8, 10, 12, 14, 16]),  # nothing tells the second job what was written
        ({"checkpoint": True, "block_rows": 0}, [8], [8]),
        ({"checkpoint": True, "second": "finished"}, [8], [16]),
        ({"checkpoint": True, "second": "changed"}, [0], [8]),
    ],
)
def test_the_peer_of_ray_data_llm_is_killed_and_goes_on(tmp_path, asked, again, written):
    asked = {"model": "m", "prompts": ["a"] * 8, "scene": "resume", "block_rows": 2, **asked}
    source, target = tmp_path / "in.json", tmp_path / "out.json"
    source.write_text(json.dumps(asked), encoding="utf-8")
    environment = os.environ | {"RAY_AUTH_MODE": "disabled"}
    subprocess.run([sys.executable, "-c", PLAYED, source, target], check=True, env=environment)
    found = json.loads(target.read_text(encoding="utf-8"))
    assert found["error"] == ""
    assert found["outputs"] == ["yes"] * 8
    assert found["again"] in again
    assert found["written"] in written


@pytest.mark.slow
@pytest.mark.parametrize("name", every.NAMES)
def test_the_smallest_case_runs(name, tmp_path):
    # No bound of its time: beside other work some take several times as long.
    outcome = every.run(name, tmp_path / "report.json", quick=True, limit=3600)
    assert not outcome.problem
    assert outcome.report["page"]
