"""The page while an evaluation runs: how far it is and what is known, remade now and then beside the reads."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from engine.evaluation.context import Context, Known, Mean
from engine.messages.extras import missing
from engine.report.findings import SUMMARY
from engine.report.layout import Grid
from engine.report.page.content import Answer, Part
from engine.report.page.plain import Page, write_plain
from engine.sources.io.folders import folder_at
from engine.sources.io.locations import Location

# The least time between two pages.
SECONDS = 30
# Calls done and wanted, calls done a second, and seconds so far.
_Far = tuple[int, int, float, float]
_LONGEST_FIRST = (
    "Means of what was read so far. The longest prompts are read first, so that these figures are not of a random sample "
    "and have no intervals. Runs may be ahead on different queries: wait for the results before you choose."
)
_IN_SHARDS = (
    "Means over the queries of the shards that are scored, the same for all runs. A shard has the queries whose texts have "
    "hashes in a range. Intervals and the verdict come with the results."
)


@contextlib.contextmanager
def live_page(out: Location, settings: Mapping[str, object], context: Context) -> Iterator[Context]:
    """How an evaluation is run that writes ``report.html`` into the folder ``out`` meanwhile.

    It writes nothing at an address, nor where results are already. A thread of its own looks at what is known, and
    writes; where it cannot, the evaluation goes on without a page.
    """
    folder = folder_at(out).at
    if missing("page") or not isinstance(folder, Path) or (folder / SUMMARY).exists():
        yield context
        return
    begun = last = time.monotonic()
    first: int | None = None
    asked: list[Callable[[], Known]] = []

    def tell(done: int, total: int) -> None:
        nonlocal first, last
        context.on_progress(done, total)
        now = time.monotonic()
        first = done if first is None else first
        if done < total and now - last >= SECONDS:
            last = now
            writer.submit(write, (done, total, (done - first) / (now - begun), now - begun))

    def write(far: _Far) -> None:
        known = asked[-1]() if asked else None
        write_plain(_page(far, settings, known), folder, single_file=True)

    # Its end waits for the thread: no page of this kind takes the place of the last one.
    with ThreadPoolExecutor(1) as writer:
        yield replace(context, on_progress=tell, on_known=asked.append)


def _page(far: _Far, asked: Mapping[str, object], known: Known | None) -> Page:
    done, total, rate, seconds = far
    left = f"about {timedelta(seconds=round((total - done) / rate))}" if rate else "unknown"
    facts = [("LLM calls", f"{done:,} of {total:,}, {rate:,.1f} a second")]
    parts = []
    if known:
        facts.append(("failed", f"{known.failed:,}"))
        if known.queries is not None:
            facts.append(("queries that are scored", f"{known.queries:,}"))
        columns = {f"end to end ({known.metric}), lists": known.scores}
        if known.annotator:
            columns[f"{known.annotator} label, passages"] = known.labels
        head = ["run", *columns]
        rows = [[run, *(_mean(of, run) for of in columns.values())] for run in known.runs]
        grid = Grid("known", _LONGEST_FIRST if known.queries is None else _IN_SHARDS, head, rows)
        if known.scores or known.labels:
            parts.append(Part("known", "So far", "What is known so far", grids=[grid]))
    facts.append(("time", f"{timedelta(seconds=round(seconds))} so far; left: {left}"))
    now = f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC, at most every {SECONDS} seconds"
    reason = "The results take the place of this page. If it is old, the evaluation was stopped: the same command goes on."
    headline = f"The evaluation runs: {done / total:.0%} of the LLM calls are done."
    answer = Answer(headline, [reason], [*facts, ("written", now)])
    return Page("The evaluation runs: erag-engine", answer, parts, (), (), asked, SECONDS)


def _mean(of_runs: Mapping[str, Mean], run: str) -> str:
    return "{:.3f} (n\xa0=\xa0{:,})".format(*of_runs[run]) if run in of_runs else ""
