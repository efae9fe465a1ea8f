"""Counts of an evaluation for monitoring, updated as units end; the evaluation itself does not use them.

Ray exports them as metrics, too: Prometheus finds them at a port of the driver's node, with ``ray_`` before the names
and ``_total`` after names of counters. ``docs/cluster/grafana.json`` shows them.
"""

from __future__ import annotations

import math
import sys
import threading
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable
from typing import Any

from engine.machine.remote.api_settings import ApiSettings
from engine.machine.watch import PoolTotals
from engine.reading.costs import UnitResult

# Others are gauges: they also go down, or may stay 0, which a counter of Ray's cannot report.
_COUNTERS = {"calls_requested", "calls_new", "tokens_in", "tokens_out"}
_COUNTERS |= {"actor_calls", "actor_tokens", "actor_seconds"}


class Observations:
    """Counts of an evaluation so far; one thread may add units, and another take records."""

    def __init__(self, api: ApiSettings, clock: Callable[[], float] = time.monotonic) -> None:
        self._api, self._clock, self._lock = api, clock, threading.Lock()
        self._roles: dict[str, Counter[str]] = {}
        self._actors: dict[str, Counter[str]] = {}
        self._reached, self._error = (0, 0), ""
        self._pools: dict[int, PoolTotals] = {}
        # The time left follows from the reads of the last records.
        self._records: deque[tuple[float, int]] = deque(maxlen=300)
        self._actor_seconds, self._last = 0.0, clock()

    def on_unit(
        self, role: str, unit: UnitResult, reached: tuple[int, int], pool: PoolTotals
    ) -> None:
        """Count a finished unit; as ``Context.on_unit``."""
        prompt, output, failures = unit.prompt_tokens, unit.output_tokens, unit.failures
        with self._lock:
            self._reached, self._pools[id(pool)] = reached, pool
            counts = self._roles.setdefault(role, Counter())
            counts["calls_requested"] += unit.plan.wanted
            counts["calls_cached"] += unit.plan.reused
            counts["calls_new"] += unit.done
            counts["calls_failed"] += len(failures)
            counts["tokens_in"] += prompt
            counts["tokens_out"] += output
            self._error = next((reason for _, reason in failures.values()), self._error)
            if unit.worker:
                actor = self._actors.setdefault(unit.worker, Counter())
                actor["actor_calls"] += unit.done
                actor["actor_tokens"] += prompt + output
                actor["actor_seconds"] += unit.seconds  # type: ignore[assignment]

    def record(self) -> dict[str, Any]:
        """The current counts, in the format of ``progress.json`` (docs/formats.md)."""
        with self._lock:
            now, (ended, expected) = self._clock(), self._reached
            together = sum(self._roles.values(), Counter[str]())
            if not (new := together["calls_new"]):  # until then, actors load
                self._records.clear()
            self._records.append((now, new))
            since, before = self._records[0]
            left = (now - since) * (expected - ended) / (new - before) if new > before else None
            pools = list(self._pools.values())
            # This process reads if Ray has no part.
            alive = pools[-1].actors or min(1, len(self._actors)) if pools else 0
            self._actor_seconds += alive * (now - self._last)
            self._last = now
            tokens = together["tokens_in"], together["tokens_out"]
            return {
                "calls_done": ended,
                "calls_expected": expected,
                "seconds_left": left if ended < expected else 0.0,
                "units_waiting": pools[-1].waiting_units if pools else 0,
                "units_repeated": sum(pool.repeated_units for pool in pools),
                "actors_alive": alive,
                "actors_lost": sum(pool.lost_actors for pool in pools),
                "cost": self._api.cost(*tokens, self._actor_seconds),
                "last_error": self._error or None,
                "roles": {role: dict(counts) for role, counts in self._roles.items()},
                "actors": {actor: dict(counts) for actor, counts in self._actors.items()},
            }


class RayMetrics:
    """Sets Ray's metrics to the numbers of records, in a driver's process with Ray."""

    def __init__(self) -> None:
        self._metrics: dict[str, Any] = {}
        self._counted: defaultdict[tuple[str, str], float] = defaultdict(float)

    def tell(self, record: dict[str, Any]) -> None:
        """Set metrics from a record; numbers of roles and actors are tagged with their names."""
        if "ray" not in sys.modules or not sys.modules["ray"].is_initialized():
            return
        numbers = {k: v for k, v in record.items() if k not in ("last_error", "roles", "actors")}
        named = {"": {"": numbers}, "role": record["roles"], "actor": record["actors"]}
        for tag, values in named.items():
            for name, figures in values.items():
                for key, value in figures.items():
                    self._set(key, tag, name, math.nan if value is None else value)

    def _set(self, key: str, tag: str, name: str, value: float) -> None:
        from ray.util import metrics

        if key not in self._metrics:
            kind = metrics.Counter if key in _COUNTERS else metrics.Gauge
            about = f"{key.replace('_', ' ')} of an evaluation"
            self._metrics[key] = kind(f"erag_{key}", about, (tag,) if tag else ())
        tags = {tag: name} if tag else {}
        if key not in _COUNTERS:
            self._metrics[key].set(value, tags)
        elif (more := value - self._counted[key, name]) > 0:
            self._metrics[key].inc(more, tags)
            self._counted[key, name] += more
