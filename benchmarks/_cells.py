"""Studies of many cells: each is computed by itself, saved as it ends, and not computed again."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict
from pathlib import Path
from typing import Any

from scipy.stats import binomtest

# Level of the intervals by which cells are judged: a cell fails where even its interval is beyond a limit.
_JUDGED_AT = 0.99


def figures_of(
    cells: Sequence[Any],
    compute: Callable[[Any], dict[str, Any]],
    saved: Path | None,
    *,
    workers: int,
) -> Iterator[tuple[Any, dict[str, Any]]]:
    """Each cell with its figures, as they come.

    Args:
        cells: dataclasses that JSON can hold.
        compute: the figures of a cell; a function of a module, for it runs in other processes.
        saved: file of JSON lines to take figures from and add them to; None to keep none.
        workers: processes; 1 for this one.
    """
    known: dict[str, dict[str, Any]] = {}
    if saved is not None and saved.exists():
        # A run that was killed may leave half a line, which goes, and is computed again.
        *whole, _ = saved.read_text(encoding="utf-8").split("\n")
        saved.write_text("".join(f"{line}\n" for line in whole), encoding="utf-8")
        for row in map(json.loads, whole):
            known[json.dumps(row["cell"])] = row["figures"]
    missing = []
    for cell in cells:
        if (key := json.dumps(asdict(cell))) in known:
            yield cell, known[key]
        else:
            missing.append(cell)
    for cell, figures in _computed(missing, compute, workers):
        if saved is not None:
            line = json.dumps({"cell": asdict(cell), "figures": figures})
            with saved.open("a", encoding="utf-8") as file:
                file.write(line + "\n")
        yield cell, figures


def _computed(
    cells: Sequence[Any], compute: Callable[[Any], dict[str, Any]], workers: int
) -> Iterator[tuple[Any, dict[str, Any]]]:
    if workers == 1:
        yield from ((cell, compute(cell)) for cell in cells)
        return
    with ProcessPoolExecutor(workers) as pool:
        pending = {pool.submit(compute, cell): cell for cell in cells}
        try:
            for future in as_completed(pending):
                yield pending[future], future.result()
        finally:
            pool.shutdown(cancel_futures=True)


def beyond(hits: int, trials: int, *, least: float = 0.0, most: float = 1.0) -> bool:
    """Whether a share lies beyond its limits by more than chance explains (exact 99% interval)."""
    if trials == 0:
        return False
    low, high = binomtest(hits, trials).proportion_ci(_JUDGED_AT)
    return bool(high < least or low > most)
