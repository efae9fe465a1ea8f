"""What a stage is made of: checks, their figures, and their results on disk as soon as each ends."""

from __future__ import annotations

import concurrent.futures
import contextlib
import ctypes
import importlib.util
import json
import multiprocessing
import os
import shutil
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from engine.machine import device
from tests.gpu_first.scale import Scale

Outcome = Literal["holds", "FAILS", "not run", "under way"]
# Another try, once what was missing is there, costs nothing.
SETTLED: tuple[Outcome, ...] = ("holds", "FAILS")


class NotRun(Exception):  # noqa: N818 (it is no error)
    """Why a check is not run here."""


@dataclass
class Row:
    """A check: what it is about, what became of it, what it says, its figures, and seconds."""

    what: str
    outcome: Outcome = "under way"
    said: str = ""
    figures: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0


# In fp32, sums in another order may decide between logits as close as this.
NEAR = 1e-3
# Of outputs that differ, those that are furthest from a tie are told of.
_TOLD = 5
# Of (place among the reads, one output, the other): the gap of the two best logits where they part, and the token's place.
Gaps = Callable[[Sequence[tuple[int, str, str]]], list[tuple[float, int]]]

# A check says in a line what it found, and adds figures to the dictionary that it is given.
Check = Callable[[Scale, dict[str, Any]], str]


def run(checks: dict[str, Check], scale: Scale, target: Path) -> list[Row]:
    """Run the checks that are not settled, and write all rows after each of them.

    Returns early after an error that leaves the process without its GPU: a new process goes on.
    """
    rows = {row.what: row for row in load(target) if row.what in checks}
    for what, check in checks.items():
        if what in rows and rows[what].outcome in SETTLED:
            continue
        row = rows[what] = Row(what)
        save(rows, checks, target)  # who finds it under way knows in what the process died
        start = time.perf_counter()
        fatal = False
        try:
            row.said = check(scale, row.figures)
            row.outcome = "holds"
        except NotRun as reason:
            row.outcome, row.said = "not run", str(reason)
        except Exception as error:  # a check that fails must not hide the others
            row.outcome, row.said = "FAILS", f"{type(error).__name__}: {error}".split("\n")[0][:300]
            fatal = device.is_fatal(error)
        row.seconds = round(time.perf_counter() - start, 2)
        save(rows, checks, target)
        if fatal:
            break
    return [rows[what] for what in checks if what in rows]


def save(rows: dict[str, Row], checks: dict[str, Check], target: Path) -> None:
    """Write rows whole or not at all, here and where the machine takes files from: a command may end at any time."""
    content = [asdict(rows[what]) for what in checks if what in rows]
    partial = target.with_suffix(".part")
    partial.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    partial.replace(target)
    deliver(target)


def deliver(file: Path) -> None:
    """Copy a file to ``$OUT``, where that is set."""
    there = Path(os.environ.get("OUT") or file.parent)
    if there.resolve() != file.parent.resolve():
        there.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, there)


def load(target: Path) -> list[Row]:
    """The rows of an earlier run; none where there was none, or its file is damaged."""
    with contextlib.suppress(OSError, ValueError, TypeError):
        return [Row(**row) for row in json.loads(target.read_text(encoding="utf-8"))]
    return []


def require(*packages: str) -> None:
    """Raises ``NotRun`` where a package is not installed."""
    absent = [name for name in packages if importlib.util.find_spec(name) is None]
    if absent:
        raise NotRun(f"not installed: {', '.join(absent)}")


def alike(
    found: Sequence[Any], expected: Sequence[Any], *, share: float = 1.0, gaps: Gaps | None = None
) -> str:
    """How many are the same, of which there must be so large a share.

    Args:
        gaps: gives for outputs that differ the gap of the two best logits where they part, and that token's place.
            With it, and where all should be the same, a near tie is no fault.

    Raises:
        AssertionError: fewer are, or one that is no near tie is not; or nearly all are one and the same, which says
            nothing.
    """
    pairs = list(enumerate(zip(found, expected, strict=True)))
    differ = [(i, one, other) for i, (one, other) in pairs if one != other]
    said = f"{len(pairs) - len(differ)} of {len(pairs)} the same"
    parted: list[tuple[float, int]] = []
    if gaps is not None and differ:
        parted = gaps(differ)
        widest = sorted(zip(parted, differ, strict=True), reverse=True)[:_TOLD]
        told = (f"{gap:.1e} at token {place} of read {i}" for (gap, place), (i, *_) in widest)
        said += f", the two best logits of others apart by {', '.join(told)}"
    if share == 1 and parted:
        assert max(parted)[0] <= NEAR, said
    else:
        assert len(pairs) - len(differ) >= share * len(pairs), said
    assert len(expected) < 6 or len(set(map(str, expected))) > len(expected) / 4, (
        f"{said}, but hardly two of them differ"
    )
    return said


def apart(what: Callable[..., Any], *given: Any) -> Any:
    """The result of a call in a new process, which gives all of the GPU's memory back when it ends."""
    # Not multiprocessing's own pool: its processes may not start others, as vLLM does on several GPUs, and
    # one that dies is waited for.
    new = multiprocessing.get_context("spawn")
    pool = concurrent.futures.ProcessPoolExecutor(1, mp_context=new, initializer=end_with_parent)
    with pool:
        return pool.submit(what, *given).result()


def end_with_parent() -> None:
    """This process ends with the one that started it, however that ends, and gives the GPU's memory back."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
