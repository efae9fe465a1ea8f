"""What benchmarks share: their options, timing sides in turn, and the JSON file of their figures."""

from __future__ import annotations

import argparse
import json
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple


class Timing(NamedTuple):
    """Seconds of each round, and what the last round returned."""

    seconds: list[float]
    result: Any

    @property
    def best(self) -> float:
        return min(self.seconds)


def make_parser(doc: str | None, *, rounds: int | None = None) -> argparse.ArgumentParser:
    """A parser of a benchmark's options, with ``--json``, and ``--rounds`` where it times in turn.

    Args:
        doc: the benchmark's docstring, whose first line describes it.
        rounds: how often each side is timed by default.
    """
    parser = argparse.ArgumentParser(description=doc.splitlines()[0] if doc else None)
    if rounds is not None:
        parser.add_argument(
            "--rounds", type=int, default=rounds, help="how often each side is timed, in turn"
        )
    parser.add_argument("--json", type=Path, help="file to write the figures to")
    return parser


def in_turn(
    sides: Mapping[str, Callable[[], Any]],
    rounds: int,
    *,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, Timing]:
    """Time all sides round by round, so that a change of the machine's load meets all of them."""
    timings = {name: Timing([], None) for name in sides}
    for _ in range(rounds):
        for name, side in sides.items():
            start = clock()
            result = side()
            timings[name].seconds.append(clock() - start)
            timings[name] = Timing(timings[name].seconds, result)
    return timings


def write_report(
    arguments: argparse.Namespace, packages: Sequence[str], figures: Mapping[str, Any]
) -> None:
    """Write the figures to the file of ``--json``, if given, with what they depend on.

    Args:
        arguments: the benchmark's options.
        packages: whose versions matter.
        figures: what was measured.
    """
    if arguments.json is None:
        return
    report = {
        "date": date.today().isoformat(),
        "machine": platform.processor() or platform.machine(),
        "versions": {name: version(name) for name in packages},
        "options": {name: str(value) for name, value in vars(arguments).items()},
        **figures,
    }
    arguments.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
