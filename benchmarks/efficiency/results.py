"""The file of ``benchmarks.efficiency``: every sample of every cell, saved as cells end, for resuming."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks._harness import Line
from benchmarks.efficiency.grid import Cell, Conditions
from engine.machine import device
from engine.machine.batching import machine_memory
from engine.messages.errors import InputError
from engine.messages.wording import counted, quoted
from engine.sources.io.files import write_text
from engine.version import __version__

Outcome = dict[str, Any]
_PACKAGES = ("torch", "transformers", "tokenizers")


def circumstances(conditions: Conditions) -> dict[str, Any]:
    """The circumstances of figures: the machine, the versions and the conditions, without the date."""
    gpu = device.machine_has_gpu()
    return {
        "machine": {
            "device": device.describe(gpu=gpu),
            "cores": len(os.sched_getaffinity(0)),
            "memory": machine_memory(),
            "system": f"{platform.system()} {platform.machine()}",
        },
        "versions": {
            "erag-engine": __version__,
            "python": platform.python_version(),
            **{name: version(name) for name in _PACKAGES},
        },
        "conditions": asdict(conditions),
    }


class Results:
    """Outcomes of cells, each written to the file as it comes.

    Attributes:
        outcomes: by cell; ``status`` is done, stopped (at its limit of time) or failed.
        dates: the first and the last day of measurements.

    Raises:
        InputError: the file is no such file, or its figures were measured in other circumstances.
    """

    def __init__(self, path: Path, conditions: Conditions) -> None:
        self._path = path
        self._circumstances = circumstances(conditions)
        self.outcomes: dict[Cell, Outcome] = {}
        self.dates: list[str] = []
        if path.exists():
            self._go_on()

    def _go_on(self) -> None:
        try:
            stored = json.loads(self._path.read_text(encoding="utf-8"))
            known = {name: stored[name] for name in self._circumstances}
            self.dates = [str(day) for day in stored["dates"]]
            self.outcomes = {Cell(**row["cell"]): row["outcome"] for row in stored["cells"]}
        except (ValueError, KeyError, TypeError, UnicodeDecodeError):
            raise InputError(
                "not results of this benchmark",
                "give another `json`",
                "replay.results",
                path=self._path,
            ) from None
        if other := differences(known, self._circumstances):
            raise InputError(
                f"measured in other circumstances ({'; '.join(other)})",
                "give another `json`, or the options of that run",
                "replay.machine",
                path=self._path,
            )

    def settled(self, cell: Cell, *, limit: float) -> bool:
        """Whether a cell is done, or was stopped at this limit of time or a longer one."""
        outcome = self.outcomes.get(cell, {"status": ""})
        return outcome["status"] == "done" or (
            outcome["status"] == "stopped" and outcome["limit"] >= limit
        )

    def add(self, cell: Cell, outcome: Outcome) -> None:
        """Add the outcome of a cell, and rewrite the file."""
        self.outcomes[cell] = outcome
        today = date.today().isoformat()
        self.dates = sorted({*self.dates[:1], today})
        rows = [{"cell": asdict(one), "outcome": own} for one, own in self.outcomes.items()]
        report = {"dates": self.dates, **self._circumstances, "cells": rows}
        write_text(json.dumps(report, indent=1) + "\n", self._path)

    def add_page(self, lines: Sequence[Line]) -> None:
        """Write the file's lines for the page of ``python -m benchmarks``; the next outcome removes them."""
        report = json.loads(self._path.read_text(encoding="utf-8"))
        report["page"] = [line._asdict() for line in lines]
        write_text(json.dumps(report, indent=1) + "\n", self._path)

    def figures(self, cell: Cell) -> dict[str, Any] | None:
        """The figures of a cell, if it is done."""
        outcome = self.outcomes.get(cell)
        return outcome["figures"] if outcome and outcome["status"] == "done" else None

    def walls(self) -> dict[Cell, float]:
        """Seconds of the finished cells."""
        return {
            cell: float(outcome["wall"])
            for cell, outcome in self.outcomes.items()
            if outcome["status"] == "done"
        }

    def described(self) -> list[str]:
        """The circumstances in words, a line each."""
        machine, versions = self._circumstances["machine"], self._circumstances["versions"]
        conditions = self._circumstances["conditions"]
        days = " to ".join(dict.fromkeys([*self.dates[:1], *self.dates[-1:]])) or "not measured"
        return [
            f"Measured {days} on {machine['device']}, {counted(machine['cores'], '[core|cores]')}, "
            f"{machine['memory'] / 2**30:.0f} GiB, {machine['system']}.",
            "Versions: " + ", ".join(f"{name} {number}" for name, number in versions.items()) + ".",
            f"{conditions['dtype']}, {counted(conditions['threads'], '[thread|threads]')}, a budget of "
            f"{conditions['memory'] / 2**30:.1f} GiB for a process, {conditions['rounds']} rounds.",
        ]


def differences(known: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Differences between two circumstances: ``versions.torch: '2.1' then, '2.2' now``."""
    return [
        f"{part}.{name}: {quoted(known[part].get(name))} then, {quoted(now[part].get(name))} now"
        for part in now
        for name in sorted({*known[part], *now[part]})
        if known[part].get(name) != now[part].get(name)
    ]
