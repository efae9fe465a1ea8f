"""Run all benchmarks, one after another, each in a process of its own, and write one page of their results.

    python -m benchmarks --quick [--only peers,intervals] [--json FILE]

Each runs as it does by itself without ``--quick``, which takes hours. The page names a benchmark that fails, or takes
longer than its share of the time, and the exit status is 1.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks._bundled import KEPT_IN
from benchmarks._harness import Line
from engine.machine.batching import machine_memory

# In order of importance: the engine's purpose first, then its parts.
NAMES = (
    "efficiency",
    "peers",
    "whole_evaluation",
    "scaling",
    "retrieval",
    "ranking",
    "statistics",
    "intervals",
    "fewer_reads",
    "label_bench",
    "table_one",
    "chunking",
    "page",
    "agents",
)
# Needs the results of a user's evaluation, or makes questions for one, so the page cannot run it by itself.
OF_RESULTS = ("tasks",)
# Time limit of a quick benchmark, in seconds; all of the page should end within ten minutes.
_QUICK_LIMIT = 240


class Outcome(NamedTuple):
    """The outcome of a benchmark: its report, or the reason for its absence."""

    name: str
    seconds: float
    report: dict[str, Any] | None
    problem: str = ""


def main(arguments: Sequence[str] | None = None) -> int:
    options = _options(arguments)
    names = options.only.split(",") if options.only else list(NAMES)
    if unknown := set(names) - set(NAMES):
        sys.exit(
            f"there is no benchmark {', '.join(sorted(unknown))}; choose of {', '.join(NAMES)}"
        )
    outcomes: list[Outcome] = []
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            print(f"{name} ...", file=sys.stderr, flush=True)
            outcomes.append(run(name, Path(folder, f"{name}.json"), quick=options.quick))
    for line in page(outcomes):
        print(line)
    if options.json is not None:
        content = {outcome.name: outcome._asdict() for outcome in outcomes}
        options.json.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    return int(any(outcome.problem for outcome in outcomes))


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="the smallest case of each")
    parser.add_argument("--only", help="names, separated by commas")
    parser.add_argument("--json", type=Path, help="file to write all reports to")
    return parser.parse_args(arguments)


def run(name: str, report: Path, *, quick: bool, limit: float = _QUICK_LIMIT) -> Outcome:
    """Run a benchmark in a process of its own, which takes memory and settings with it; ``limit``: seconds in quick mode."""
    command = [sys.executable, "-m", f"benchmarks.{name}", "--json", str(report)]
    command += ["--quick"] if quick else []
    # As ``readers.load`` sets it, but before torch is loaded: threads that wait for others should soon sleep.
    environment = {
        "GOMP_SPINCOUNT": "50000",
        KEPT_IN: str(report.with_name("bundled-corpus.parquet")),
    } | os.environ
    start = time.perf_counter()
    with tempfile.TemporaryFile("w+", encoding="utf-8") as said:
        try:
            status = subprocess.run(
                command,
                env=environment,
                stdout=subprocess.DEVNULL,
                stderr=said,
                check=False,
                timeout=limit if quick else None,
            ).returncode
        except subprocess.TimeoutExpired:
            return Outcome(name, limit, None, f"took more than {limit:g} s")
        seconds = time.perf_counter() - start
        said.seek(0)
        lines = said.read().strip().splitlines()
    found = json.loads(report.read_text(encoding="utf-8")) if report.exists() else None
    if status or found is None:
        problem = f"failed with status {status}: {lines[-1] if lines else 'it said nothing'}"
        return Outcome(name, seconds, found, problem)
    return Outcome(name, seconds, found)


def page(outcomes: Sequence[Outcome]) -> list[str]:
    """The results of all benchmarks, a line for each figure."""
    cores = len(os.sched_getaffinity(0))
    used = ", ".join(f"{name} {version(name)}" for name in ("torch", "transformers", "ray"))
    lines = [
        f"{date.today().isoformat()}, {platform.machine()}, {cores} cores, "
        f"{machine_memory() / 2**30:.0f} GiB, {used}",
        f"{'benchmark':18}{'':70}{'figure':>18}  target",
    ]
    for outcome in outcomes:
        told = [Line(**line) for line in (outcome.report or {}).get("page", [])]
        if outcome.problem:
            told.append(Line(outcome.problem, ""))
        for number, line in enumerate(told):
            name = outcome.name if number == 0 else ""
            lines.append(f"{name:18}{line.what:70}{line.figure:>18}  {line.target}".rstrip())
    total = sum(outcome.seconds for outcome in outcomes)
    lines.append(
        f"{len(outcomes)} benchmarks, {total:.0f} s; ratios: median of rounds [least, most]"
    )
    return lines


if __name__ == "__main__":
    raise SystemExit(main())
