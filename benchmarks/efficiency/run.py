"""End-to-end evaluation against eRAG, in time and memory: the paper's experiment on this machine.

    python -m benchmarks.efficiency [--quick] [--models DIRECTORY] [--k 10,30] [--lengths 150] [--json efficiency.json]

The same queries with the same k passages each are read whole (end-to-end) and passage by passage (eRAG), by
T5-small- and T5-base-shaped models with random weights, by the bundled decoder-only reader, and by models of the
user's own; in-prompt and with Fusion-in-Decoder; by the engine's own readers and by transformers' ``generate``, with fused attention
and without; for several k and lengths of passages. docs/efficiency.md describes the measurements.

Each cell runs in a process of its own, is skipped if its predicted peak exceeds the budget, ends at
``--limit``, and is saved at its end: the same command resumes, also after Ctrl-C. Beside the JSON file
are the tables (``.md``), two plots (``-time.svg``, ``-memory.svg``) and a page with both (``.html``).
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks._harness import make_parser
from benchmarks.efficiency import page, predict
from benchmarks.efficiency.changes import CHANGES
from benchmarks.efficiency.grid import (
    SHAPES,
    WAYS,
    Cell,
    Conditions,
    full_grid,
    memory_cells,
    quick_grid,
)
from benchmarks.efficiency.results import Results
from benchmarks.efficiency.table import grouped, markdown, ratios
from engine.machine import device
from engine.machine.batching import CPU_BATCH_TOKENS, GPU_BATCH_TOKENS, machine_memory
from engine.messages.checked import Positive, fitted
from engine.messages.errors import InputError
from engine.messages.wording import quoted
from engine.sources.io.files import write_text
from engine.sources.io.folders import require_output
from jobs._options import parse_bytes
from jobs._signals import StoppedError, keeps, stoppable

NO_TIME = "no time left"
# Other programs keep half of the machine; the engine itself takes a quarter by default.
_SHARE_OF_MEMORY = 0.5
# Fields of cells that options choose, and the options that leave checks unchanged.
_CHOICES = {
    "models": "model",
    "augmentations": "augmentation",
    "ways": "way",
    "k": "k",
    "lengths": "length",
    "tokens": "answer_tokens",
    "kinds": "kind",
}
_OF_TIMES = {"ways", "k", "lengths"}


def left_out(cell: Cell, conditions: Conditions) -> str:
    """Reason why a cell cannot be run here; empty if it can."""
    if tokens := predict.too_long(cell):
        positions = SHAPES[cell.model].positions
        return f"needs {positions + tokens:,} positions, the model has {positions:,}"
    if (needed := predict.peak(cell, conditions)) > conditions.memory:
        return f"needs {needed / 2**30:.1f} GiB"
    return ""


def run_cells(
    cells: Sequence[Cell], conditions: Conditions, results: Results, *, hours: float, limit: float
) -> dict[Cell, str]:
    """Run the missing cells, until the time is over; return the cells left out, with the reason."""
    end = time.monotonic() + 3600 * hours
    left: dict[Cell, str] = {}
    missing: list[Cell] = []
    for cell in cells:
        if not results.settled(cell, limit=limit):
            if why := left_out(cell, conditions):
                left[cell] = why
            else:
                missing.append(cell)
    if not missing:
        return left
    # Not at the top: complete results need no torch. The server imports meanwhile.
    from benchmarks.efficiency import process as process

    serving = threading.Thread(target=process.start_server)
    serving.start()
    from benchmarks.efficiency import models as models

    pace = predict.Pace(results.walls(), conditions)
    subjects: dict[tuple[str, str], models.Subject] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tokens = max(
            predict.queries_of(cell, conditions) * cell.k * cell.length for cell in missing
        )
        write_text(models.articles(tokens), folder / models.ARTICLES)
        serving.join()
        for number, cell in enumerate(missing, 1):
            expected = pace.seconds(cell)
            if time.monotonic() + expected > end:
                left[cell] = NO_TIME
                continue
            if expected > 2 * limit:  # predictions are not that wrong
                left[cell] = f"would take {expected:.0f} s, the limit is {limit:.0f} s"
                continue
            key = (cell.model, cell.augmentation)
            if key not in subjects:
                subjects[key] = models.make_subject(*key, folder, conditions)
            within = max(1.0, min(limit, end - time.monotonic()))
            outcome = process.run(cell, conditions, subjects[key], folder, limit=within)
            results.add(cell, outcome)
            if outcome["status"] == "done":
                pace.add(cell, outcome["wall"])
            why = f": {outcome['why']}" if outcome["status"] == "failed" else ""
            print(
                f"{number}/{len(missing)} {cell.name}: {outcome['status']} after "
                f"{outcome['wall']:.1f} s (expected {expected:.0f}){why}",
                flush=True,
            )
    return left


def plan(cells: Sequence[Cell], conditions: Conditions, results: Results, limit: float) -> None:
    """Print the cells to run: their number, the expected time, and cells that cannot run."""
    pace = predict.Pace(results.walls(), conditions)
    seconds, left, number = 0.0, {}, 0
    for cell in cells:
        if results.settled(cell, limit=limit):
            continue
        if why := left_out(cell, conditions):
            left[cell] = why
            continue
        number += 1
        seconds += min(limit, pace.seconds(cell))
        print(
            f"{seconds / 3600:6.2f} h  {predict.peak(cell, conditions) / 2**30:5.1f} GiB  {cell.name}"
        )
    for line in grouped(left):
        print(line)
    print(
        f"{number} of {len(cells)} cells to run, about {seconds / 3600:.1f} h; {len(left)} cannot be"
    )


def conditions_of(
    *, dtype: str | None, threads: int | None, memory: str | None, quick: bool, rounds: int | None
) -> Conditions:
    """The conditions of a run, with defaults that follow the machine.

    Raises:
        InputError: a value out of range.
    """
    fitted("threads", threads, Positive | None)
    fitted("rounds", rounds, Positive | None)
    gpu = device.machine_has_gpu()
    whole = machine_memory()
    if gpu:
        import torch

        whole = torch.cuda.get_device_properties(0).total_memory
    share = 0.9 if gpu else _SHARE_OF_MEMORY
    known = {"bfloat16": "bfloat16", "float16": "float16", "float32": "float32"}
    if dtype is not None and dtype not in known:
        raise InputError(f"`dtype` is {dtype}", f"use one of {', '.join(known)}")
    tokens = GPU_BATCH_TOKENS if gpu else CPU_BATCH_TOKENS // 4
    return Conditions(
        dtype=dtype or device.best_dtype(),  # type: ignore[arg-type]
        threads=threads or len(os.sched_getaffinity(0)),
        memory=parse_bytes(memory) if memory else int(share * whole),
        tokens=1000 if quick else tokens,
        rounds=rounds or (1 if quick else 3),
    )


def chosen(cells: Sequence[Cell], **options: str | None) -> list[Cell]:
    """The cells that options choose, with the peaks that belong to their times.

    Checks run for any k, length and way.

    Args:
        options: by the names in ``_CHOICES``, values separated by commas; None for all.

    Raises:
        InputError: a value that no cell has.
    """
    times = [cell for cell in cells if cell.kind == "time"]
    asked = {
        name: (field, _listed(name, text, [getattr(cell, field) for cell in known]))
        for name, field in _CHOICES.items()
        if (text := options.get(name)) is not None
        for known in [times if name in _OF_TIMES else cells]
    }

    def fits(cell: Cell, names: Iterable[str]) -> bool:
        return all(str(getattr(cell, asked[name][0])) in asked[name][1] for name in names)

    of_all = asked.keys() - {"kinds"}
    kept = {
        cell
        for cell in cells
        if cell.kind != "memory"
        and fits(cell, of_all - _OF_TIMES if cell.kind == "check" else of_all)
    }
    peaks = {one for cell in kept if cell.kind == "time" for one in memory_cells(cell).values()}
    return [cell for cell in cells if cell in kept | peaks and fits(cell, asked.keys() & {"kinds"})]


def _listed(option: str, text: str, values: Iterable[str | int]) -> list[str]:
    """The values that an option lists, checked against the existing values."""
    known = [str(value) for value in sorted(set(values))]
    asked = [part.strip() for part in text.split(",")]
    if unknown := [value for value in asked if value not in known]:
        remedy = f"use some of {', '.join(known)}"
        raise InputError(f"`{option}` names {quoted(unknown[0])}", remedy)
    return asked


def _run(options: argparse.Namespace) -> int:
    """Measure, print and write.

    Raises:
        InputError: a setting out of range, or an unusable file.
    """
    for name in ("hours", "limit"):
        if not getattr(options, name) > 0:
            raise InputError(f"`{name}` is {getattr(options, name):g}", "use more than 0")
    conditions = conditions_of(
        dtype=options.dtype,
        threads=options.threads,
        memory=options.memory,
        quick=options.quick,
        rounds=options.rounds,
    )
    require_output(options.json, directory=False)
    cells = _asked(options)
    results = Results(options.json, conditions)
    if options.plan:
        plan(cells, conditions, results, options.limit)
        return 0
    _refuse_nothing(cells, conditions, results)
    start = time.monotonic()
    keeps(f"{options.json} keeps the cells that are done; the same command goes on from there")
    try:
        left = run_cells(cells, conditions, results, hours=options.hours, limit=options.limit)
    except KeyboardInterrupt:
        if results.outcomes:
            _write(results, {}, options.json)
        raise
    print("\n".join(_write(results, left, options.json)))
    failed = [cell for cell in cells if results.outcomes.get(cell, {}).get("status") == "failed"]
    done = sum(results.figures(cell) is not None for cell in cells)
    print(f"{done} of {len(cells)} cells done, {time.monotonic() - start:.0f} s; {options.json}")
    return int(bool(failed))


def _asked(options: argparse.Namespace) -> list[Cell]:
    """The cells that options choose, of a grid with the user's own models, k and lengths."""
    asked: dict[str, str | None] = {name: getattr(options, name) for name in _CHOICES}
    grid: dict[str, Sequence[Any]] = {}
    for name in ("k", "lengths"):
        if (text := asked[name]) is not None:
            grid[name] = _numbers(name, text)
            asked[name] = ",".join(map(str, grid[name]))
    if (text := asked["models"]) is not None:
        from benchmarks.efficiency.own import add_models

        grid["models"] = add_models(text)
        asked["models"] = ",".join(grid["models"])
    return chosen((quick_grid if options.quick else full_grid)(CHANGES, **grid), **asked)


def _numbers(option: str, text: str) -> list[int]:
    parts = [part.strip() for part in text.split(",")]
    for part in parts:
        if not (part.isascii() and part.isdecimal() and int(part) > 0):
            remedy = "use whole numbers of 1 or more, separated by commas"
            raise InputError(f"`{option}` names {quoted(part)}", remedy)
    return list(map(int, parts))


def _refuse_nothing(cells: Sequence[Cell], conditions: Conditions, results: Results) -> None:
    """Refuse a run for times that cannot measure any."""
    times = [cell for cell in cells if cell.kind == "time"]
    if times and all(left_out(cell, conditions) and not results.figures(cell) for cell in times):
        least = min(times, key=lambda cell: cell.k * cell.length)
        problem = f"no time can be measured: {least.name} {left_out(least, conditions)}"
        raise InputError(problem, "use smaller `k` or `lengths`, or more `memory`")


def _write(results: Results, left: Mapping[Cell, str], json: Path) -> list[str]:
    """Write the tables, the plots and the page; return the lines of the tables."""
    lines = markdown(results, left)
    if results.outcomes:
        results.add_page(ratios(results))
    stem = json.with_suffix("")
    write_text("\n".join(lines) + "\n", stem.with_name(f"{stem.name}.md"))
    page.write(results, left, stem)
    return lines


def main(arguments: Sequence[str] | None = None) -> int:
    parser = make_parser(__doc__)
    parser.set_defaults(json=Path("efficiency.json"))
    parser.add_argument("--quick", action="store_true", help="one model, 20 short passages")
    parser.add_argument(
        "--models",
        help="some of t5-small, t5-base, bundled, bundled-fid, or directories of models, separated by commas",
    )
    parser.add_argument("--k", help="numbers of passages, separated by commas; by default 1 to 100")
    parser.add_argument(
        "--lengths", help="lengths of passages in tokens, separated by commas; by default 50 to 400"
    )
    parser.add_argument("--tokens", help="some lengths of answers in tokens, separated by commas")
    parser.add_argument("--ways", help=f"some of {', '.join(WAYS)}, separated by commas")
    parser.add_argument("--augmentations", help="in-prompt or fid")
    parser.add_argument("--kinds", help="some of check, time, memory, saving, separated by commas")
    parser.add_argument("--plan", action="store_true", help="print the cells and what they need")
    parser.add_argument(
        "--hours", type=float, default=2.5, help="for everything; cells that do not fit are named"
    )
    parser.add_argument("--limit", type=float, default=300, help="seconds of a cell")
    parser.add_argument("--rounds", type=int, help="by default 3, with --quick 1")
    parser.add_argument(
        "--memory", help="of a process, as in 8GiB; by default half of the machine's"
    )
    parser.add_argument("--dtype", help="by default the fastest of this machine")
    parser.add_argument("--threads", type=int, help="by default all cores")
    options = parser.parse_args(arguments)
    try:
        with stoppable():
            return _run(options)
    except InputError as error:
        raise SystemExit(str(error)) from None
    except StoppedError as stop:
        if not stop.is_logged:
            print(stop, file=sys.stderr)
        return stop.status
