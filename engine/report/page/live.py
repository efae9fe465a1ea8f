"""The page while an evaluation runs: how far it is, remade now and then beside the reads."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

from engine.messages.extras import missing
from engine.reading.executors import Progress
from engine.report.findings import SUMMARY
from engine.report.page.content import Answer
from engine.report.page.plain import Page, write_plain
from engine.sources.io.folders import folder_at
from engine.sources.io.locations import Location

# The least time between two pages.
SECONDS = 30


@contextlib.contextmanager
def live_page(
    out: Location, settings: Mapping[str, object], on_progress: Progress
) -> Iterator[Progress]:
    """A function that hears of progress, hands it on, and writes ``report.html`` into the folder ``out`` meanwhile.

    It writes nothing at an address, nor where results are already. A thread of its own writes, from what it hears alone;
    where it cannot, the evaluation goes on without a page.
    """
    folder = folder_at(out).at
    if missing("page") or not isinstance(folder, Path) or (folder / SUMMARY).exists():
        yield on_progress
        return
    begun = last = time.monotonic()
    first: int | None = None

    def tell(done: int, total: int) -> None:
        nonlocal first, last
        on_progress(done, total)
        now = time.monotonic()
        first = done if first is None else first
        if done < total and now - last >= SECONDS:
            last = now
            rate = (done - first) / (now - begun)
            page = _page(done, total, rate, settings)
            writer.submit(write_plain, page, folder, single_file=True)

    # Its end waits for the thread: no page of this kind takes the place of the last one.
    with ThreadPoolExecutor(1) as writer:
        yield tell


def _page(done: int, total: int, rate: float, settings: Mapping[str, object]) -> Page:
    now = datetime.now(UTC)
    facts = [
        ("LLM calls", f"{done:,} of {total:,}, {rate:,.1f} a second"),
        ("left", str(timedelta(seconds=round((total - done) / rate))) if rate else "unknown"),
        ("written", f"{now:%Y-%m-%d %H:%M:%S} UTC, at most every {SECONDS} seconds"),
    ]
    reason = "The results take the place of this page. If it is old, the evaluation was stopped: the same command goes on."
    answer = Answer(
        f"The evaluation runs: {done / total:.0%} of the LLM calls are done.", [reason], facts
    )
    return Page("The evaluation runs: erag-engine", answer, (), (), (), settings, SECONDS)
