"""What the first minutes on a machine with a GPU are for, in order of value.

    python -m tests.gpu_first [--stage 0 real …] [--out FOLDER] [--tiny] [--again]

Stages, in this order: 0 what the machine has; real, the bundled reader; 5 the paper's Table 2; exact search by
torch; 1 our own loops; 4 Ray: 9 minutes at most in all. Only where it is asked for: 3 vLLM, 4.5 more minutes, which
needs ``make gpu``. Each runs in a process of its own under its own limit, and writes ``stage-N.json``
after every check, and ``report.md`` at its end, to FOLDER, by default ``build/gpu-first``, and to ``$OUT``, where that
is set. What cannot be imported is not begun. The same command goes on where an earlier one was ended: what is settled
is not done again (``--again`` forgets it). ``--tiny`` does everything with tiny shapes on a CPU, in some minutes.

Nothing is downloaded. ``tests.gpu_first.pieces`` carries what is needed to a machine where nothing can be.
The exit status is 1 where a check fails.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import NamedTuple

from engine.machine import device
from tests.gpu_first import doctor
from tests.gpu_first.checks import Check, Row, deliver, end_with_parent, load, run, save
from tests.gpu_first.scale import REAL, TINY

ROOT = Path(__file__).parents[2]


class Stage(NamedTuple):
    """A stage: its module beside this one, what it is about, and the seconds that it may take."""

    module: str
    about: str
    limit: float


STAGES = {
    "0": Stage("doctor", "the machine", 40),
    "real": Stage("real", "the bundled reader", 30),
    "5": Stage("table2", "the paper's Table 2", 80),
    "exact": Stage("search", "exact search", 70),
    "1": Stage("bare", "our own loops", 200),
    "4": Stage("actors", "Ray", 120),
    "3": Stage("served", "vLLM", 270),
}
# What a machine without vLLM can do, within one command of ten minutes.
USUAL = ("0", "real", "5", "exact", "1", "4")
# Of the limits, for CPUs that others use, too.
_SLOWER = 5
# Deaths of a stage's process after which it is not started again.
_DEATHS = 3


def checks_of(number: str) -> dict[str, Check]:
    module = importlib.import_module(f"tests.gpu_first.{STAGES[number].module}")
    checks: dict[str, Check] = module.CHECKS
    return checks


def target(out: Path, number: str) -> Path:
    return out / f"stage-{number}.json"


def perform(number: str, out: Path, *, tiny: bool) -> None:
    """Do a stage in this process, which ends with the command that started it, however that ends."""
    end_with_parent()
    scale = TINY if tiny else REAL
    rates = {row.what: row.figures for row in load(target(out, "0"))}.get("matrix products", {})
    run(checks_of(number), replace(scale, rates=rates), target(out, number))


def lacking(number: str, out: Path) -> Row | None:
    """Stage 0's word that a stage's modules cannot be imported."""
    what = doctor.OF.format(STAGES[number].module)
    rows = (row for row in load(target(out, "0")) if row.what == what and row.outcome != "holds")
    return next(rows, None)


def supervise(number: str, out: Path, *, tiny: bool, limit: float) -> list[Row]:
    """Have a stage done by processes of its own, within its limit.

    Where one dies, what it was doing has failed, and another goes on with the rest.
    """
    end = time.monotonic() + limit
    command = [sys.executable, "-m", "tests.gpu_first", "--out", str(out), "--perform", number]
    for _ in range(_DEATHS):
        process = subprocess.Popen(
            [*command, *(["--tiny"] if tiny else [])],
            cwd=ROOT,
            process_group=0,
            env=os.environ | {"HF_HUB_OFFLINE": "1", "TQDM_DISABLE": "1", "PYTHONPATH": _path()},
        )
        try:
            status = process.wait(max(1.0, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            status = None
        finally:
            # Also what it has started, and what would hold the GPU's memory.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        rows = {row.what: row for row in load(target(out, number))}
        for row in rows.values():
            if row.outcome == "under way":
                row.outcome = "not run" if status is None else "FAILS"
                row.said = f"ended by the stage's limit of {limit:.0f} s"
                if status is not None:
                    row.said = f"its process ended with status {status}"
        names = checks_of(number)
        save(rows, names, target(out, number))
        left = any(what not in rows for what in names)
        if status is None or not left or end - time.monotonic() < 5:
            break
    return [rows[what] for what in names if what in rows]


def _path() -> str:
    """Where modules are, also for Ray's workers, which begin in other folders."""
    given = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    return os.pathsep.join([str(ROOT), *map(os.path.abspath, given)])


def report(out: Path) -> Iterator[str]:
    """What all stages found so far, in Markdown."""
    yield f"{date.today().isoformat()}, by `python -m tests.gpu_first`"
    for number, stage in STAGES.items():
        rows = load(target(out, number))
        if not rows:
            continue
        yield ""
        yield f"| stage {number}: {stage.about} | | |"
        yield "| --- | --- | --- |"
        for row in rows:
            said = row.said.replace("|", "/")
            yield f"| {row.what} | {row.outcome} | {said} ({row.seconds:.0f} s) |"


def do(stages: Iterable[str], out: Path, *, tiny: bool) -> int:
    """Do stages one after the other; the status to exit with."""
    out.mkdir(parents=True, exist_ok=True)
    failed = False
    for number in stages:
        start = time.monotonic()
        if lacks := lacking(number, out):
            failed |= lacks.outcome == "FAILS"
            print(f"{number} not begun: {lacks.said} (--again --stage 0 looks again)", flush=True)
            continue
        limit = STAGES[number].limit * (_SLOWER if tiny else 1)
        for row in supervise(number, out, tiny=tiny, limit=limit):
            failed |= row.outcome == "FAILS"
            print(f"{number} {row.outcome}: {row.what}: {row.said}", flush=True)
        (out / "report.md").write_text("\n".join(report(out)) + "\n", encoding="utf-8")
        deliver(out / "report.md")
        print(f"{number} took {time.monotonic() - start:.0f} s", flush=True)
    return int(failed)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--stage", nargs="+", choices=STAGES, default=USUAL)
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "gpu-first")
    parser.add_argument("--tiny", action="store_true", help="tiny shapes, also without a GPU")
    parser.add_argument("--again", action="store_true", help="forget what is settled")
    parser.add_argument("--perform", choices=STAGES, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.perform is not None:
        perform(options.perform, options.out, tiny=options.tiny)
        return 0
    if not options.tiny and not device.machine_has_gpu():
        print("There is no GPU on this machine: nothing was checked (--tiny runs on a CPU).")
        return 0
    if options.again:
        for number in options.stage:
            target(options.out, number).unlink(missing_ok=True)
    return do(options.stage, options.out.resolve(), tiny=options.tiny)


if __name__ == "__main__":
    raise SystemExit(main())
