"""Shared parts of benchmarks: options, timing sides in turn, ratios, and the file of their figures."""

from __future__ import annotations

import argparse
import json
import multiprocessing
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import date
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple


class Ratio(NamedTuple):
    """Ratio of one side's time to another's: the median of the rounds, the least and the most."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.median:.2f} [{self.low:.2f}, {self.high:.2f}]"


class Timing(NamedTuple):
    """Seconds by round, and the result of the last round."""

    seconds: list[float]
    result: Any

    @property
    def best(self) -> float:
        return min(self.seconds)

    @property
    def median(self) -> float:
        return median(self.seconds)

    def over(self, other: Timing) -> Ratio:
        """The ratio of this side's time to the other's, by rounds, since the machine's load changes."""
        ratios = [a / b for a, b in zip(self.seconds, other.seconds, strict=True)]
        return Ratio(median(ratios), min(ratios), max(ratios))


class Line(NamedTuple):
    """A line of the page of all benchmarks: the quantity, its figure, and its target."""

    what: str
    figure: str
    target: str = ""


class _Parser(argparse.ArgumentParser):
    """Has other defaults with ``--quick``."""

    quick: Mapping[str, Any] | None = None

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        found = super().parse_args(args, namespace)
        if self.quick is None or not found.quick:
            return found
        self.set_defaults(**self.quick)
        return super().parse_args(args, namespace)


def make_parser(
    doc: str | None, *, rounds: int | None = None, quick: Mapping[str, Any] | None = None
) -> argparse.ArgumentParser:
    """A parser of a benchmark's options, with ``--json``, and ``--rounds`` if it times in turn.

    Args:
        doc: the benchmark's docstring, whose first line describes it.
        rounds: default number of rounds per side.
        quick: defaults with ``--quick``, for the smallest meaningful case; None for a
            benchmark that adds this option itself.
    """
    parser = _Parser(description=doc.splitlines()[0] if doc else None)
    if quick is not None:
        parser.quick = quick
        parser.add_argument("--quick", action="store_true", help="the smallest case")
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
    """Time all sides round by round, so that a change of the machine's load affects all sides."""
    timings = {name: Timing([], None) for name in sides}
    for _ in range(rounds):
        for name, side in sides.items():
            start = clock()
            result = side()
            timings[name].seconds.append(clock() - start)
            timings[name] = Timing(timings[name].seconds, result)
    return timings


def in_fresh_process(function: Callable[..., Any], *arguments: Any) -> Any:
    """The result of a module's function in a process of its own, which inherits no peak of memory."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(function, arguments)


def write_report(
    arguments: argparse.Namespace,
    packages: Sequence[str],
    figures: Mapping[str, Any],
    page: Sequence[Line] = (),
) -> None:
    """Write the figures to the file of ``--json``, if there is one, with their basis: options, and versions of packages.

    ``page`` has its lines on the page of ``python -m benchmarks``.
    """
    if arguments.json is None:
        return
    report = {
        "date": date.today().isoformat(),
        "machine": platform.processor() or platform.machine(),
        "versions": {name: version(name) for name in packages},
        "options": {name: str(value) for name, value in vars(arguments).items()},
        "page": [line._asdict() for line in page],
        **figures,
    }
    arguments.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


def beyond(hits: int, trials: int, *, least: float = 0.0, most: float = 1.0) -> bool:
    """Whether a share lies beyond its limits by more than chance explains (exact 99% interval)."""
    from scipy.stats import binomtest  # takes 70 MiB, which measured processes are spared

    if trials == 0:
        return False
    low, high = binomtest(hits, trials).proportion_ci(0.99)
    return bool(high < least or low > most)
