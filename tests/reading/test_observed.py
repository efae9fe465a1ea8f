"""Counts of an evaluation, from its units as they end; and the metrics that Grafana's dashboard shows."""

import json
import re
from pathlib import Path

import polars as pl
import pytest

from engine.machine.remote.api_settings import ApiSettings
from engine.machine.watch import PoolTotals
from engine.reading import observed
from engine.reading.costs import UnitResult
from engine.reading.observed import Observations, RayMetrics
from engine.reading.plan import ReadPlan, Unit

DASHBOARD = Path(__file__).parents[2] / "docs" / "cluster" / "grafana.json"


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


def unit(reads, *, wanted=0, reused=0, failures=(), seconds=2.0, worker="node a process 1"):
    failed = {str(number): ("q", reason) for number, reason in enumerate(failures)}
    plan = ReadPlan(reads=pl.DataFrame(), wanted=wanted, reused=reused)
    return UnitResult(
        Unit(0, 0, reads), (), worker, seconds, {}, plan=plan, done=reads, failures=failed,
        prompt_tokens=10 * reads, output_tokens=reads,
    )  # fmt: skip


def seen_after_two_units():
    clock, pool = Clock(), PoolTotals(actors=2, lost_actors=1, repeated_units=3, waiting_units=1)
    seen = Observations(ApiSettings(price_in=1.0, price_out=2.0, price_per_hour=3600.0), clock)
    seen.on_unit("reader", unit(0, seconds=0.0, worker=""), (0, 100), pool)
    seen.record()
    clock.now += 10  # until the first unit ends, the model is loaded
    seen.record()
    seen.on_unit("reader", unit(20, wanted=70, reused=10), (30, 100), pool)
    clock.now += 5
    seen.on_unit("reader", unit(10, failures=["no answer"], worker="b"), (40, 100), pool)
    return seen, clock, pool


def test_units_add_up_to_counts_by_role_and_actor():
    seen, _, _ = seen_after_two_units()
    record = seen.record()
    assert record["roles"] == {
        "reader": {
            "calls_requested": 70, "calls_cached": 10, "calls_new": 30, "calls_failed": 1,
            "tokens_in": 300, "tokens_out": 30,
        }
    }  # fmt: skip
    assert record["actors"]["b"] == {"actor_calls": 10, "actor_tokens": 110, "actor_seconds": 2.0}
    assert (record["actors_alive"], record["actors_lost"], record["units_repeated"]) == (2, 1, 3)
    assert (record["units_waiting"], record["last_error"]) == (1, "no answer")


def test_time_left_follows_from_reads_since_the_model_was_loaded_and_cost_from_actors_and_tokens():
    seen, clock, pool = seen_after_two_units()
    # 30 new reads since the last record without one, 5 s ago, and 60 to come: 10 s. Two actors, 15 s at 1 a second,
    # and tokens: 300 at 1 and 30 at 2 a million.
    record = seen.record()
    assert record["seconds_left"] == pytest.approx(10)
    assert record["cost"] == pytest.approx(2 * 15 + 300e-6 + 60e-6)
    seen.on_unit("reader", unit(60), (100, 100), pool)
    assert seen.record()["seconds_left"] == 0
    assert Observations(ApiSettings(), clock).record()["cost"] is None


def test_the_dashboard_shows_metrics_that_there_are(monkeypatch):
    told = {}
    monkeypatch.setattr(
        RayMetrics, "_set", lambda self, key, tag, name, value: told.update({key: tag})
    )
    monkeypatch.setitem(
        observed.sys.modules, "ray", type("Ray", (), {"is_initialized": lambda: True})
    )
    RayMetrics().tell(seen_after_two_units()[0].record())
    exported = {
        f"ray_erag_{key}{'_total' * (key in observed._COUNTERS)}": tag for key, tag in told.items()
    }
    panels = json.loads(DASHBOARD.read_text())["panels"]
    shown = " ".join(target["expr"] for panel in panels for target in panel.get("targets", []))
    assert set(re.findall(r"ray_erag_\w+", shown)) == exported.keys()
    for tags in re.findall(r"by \((\w+)\)", shown):
        assert tags in exported.values()
