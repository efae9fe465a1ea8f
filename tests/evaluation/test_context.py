"""What an observer hears as units end adds up to what the evaluation counted."""

import json

import pytest

from tests.commands import evaluate

READER = """
def read(prompts):
    return [next((word for word in ("Oranjestad", "George Orwell") if word in one), "none") for one in prompts]

read.version = "1"
"""


@pytest.mark.parametrize(
    "options", [(), ("--shard-pairs", 2), ("--lazy", "--measures", "RR@2"), ("--width", 0.5)], ids=lambda one: str(one[:1])
)  # fmt: skip
def test_units_add_up_to_the_costs(files, monkeypatch, options):
    monkeypatch.setattr(
        "engine.report.page.remake.make_page", lambda *_, **__: None
    )  # takes seconds
    (files["out"].parent / "mine.py").write_text(READER)
    usual = ("--k", 2, "--resamples", 100, "--reader", f"{files['out'].parent / 'mine.py'}:read")
    stored = ("--store", files["out"].parent / "store")
    # The reads of one query are in the store then.
    assert (
        evaluate({**files, "out": files["out"].parent / "first"}, *usual, *stored, "--limit", 1)
        == 0
    )
    # And all are, the second time, when shards would not even be looked at.
    for _ in range(1 if "--shard-pairs" in options else 2):
        assert evaluate(files, *usual, *stored, *options) == 0
        costs = json.loads((files["out"] / "summary.json").read_text())["reading"]
        record = json.loads((files["out"] / "progress.json").read_text())
        assert record["state"] == "done"
        counts = record["roles"]["reader"]
        counted = [counts[f"calls_{name}"] for name in ("requested", "cached", "new", "failed")]
        assert counted == [costs[name] for name in ("wanted", "reused", "done", "failed")]
        assert record["calls_done"] == costs["wanted"]
        assert record["units_waiting"] == 0
        assert sum(one["actor_calls"] for one in record["actors"].values()) == costs["done"]
