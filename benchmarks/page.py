"""The page of an evaluation: its size, and the time in which a browser opens the page and a query's details.

    python -m benchmarks.page --queries 3000 --k 50

The evaluation is invented: two runs, three annotators, passages of 100 words. Browsing needs
chromium, and the package playwright (an extra of the tests); otherwise the page is only written.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import shutil
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from benchmarks._harness import Line, make_parser, write_report
from engine import tables
from engine.inputs.files import EvaluationInputs
from engine.report.findings import read_findings
from engine.report.page.remake import write_page
from engine.report.page_files import PAGE

_RUNS = ("first", "second")
_ANNOTATORS = ("erag", "containment", "provenance")
_WORDS = 100
# Queries to open, one after the other.
_OPENED = 20


def main(options: Sequence[str] | None = None) -> None:
    arguments = _arguments(options)
    folder = Path(tempfile.mkdtemp(prefix="erag-page-"))
    try:
        sources = _make(folder, arguments.queries, arguments.k)
        start = time.perf_counter()
        written = write_page(read_findings(folder, sources), folder)
        figures: dict[str, Any] = {
            "queries": arguments.queries,
            "k": arguments.k,
            "written_seconds": round(time.perf_counter() - start, 1),
            "page_mib": round((folder / PAGE).stat().st_size / 2**20, 2),
            "all_mib": round(written.size / 2**20, 1),
            "files": 1 + len(written.beside),
            **_browsed(folder / PAGE, arguments.rounds),
        }
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(json.dumps(figures), flush=True)
    about = f"{arguments.queries:,} queries x {arguments.k} passages"
    page = [Line(f"{about}: the page", f"{figures['page_mib']} MiB", "5 MB")]
    if "open_seconds" in figures:
        page += [
            Line(f"{about}: until it is open, median", f"{figures['open_seconds']} s", "3 s"),
            Line("until a query is shown, median", f"{figures['query_milliseconds']} ms", "200 ms"),
        ]
    else:
        page.append(Line("opening it", "not measured: needs chromium and playwright", "3 s"))
    write_report(arguments, ["polars", "matplotlib", "jinja2"], figures, page)


def _arguments(options: Sequence[str] | None) -> argparse.Namespace:
    parser = make_parser(__doc__, quick={"queries": 300, "k": 10, "rounds": 3})
    parser.add_argument("--queries", type=int, default=3000)
    parser.add_argument("--k", type=int, default=50, help="passages in each list")
    parser.add_argument("--rounds", type=int, default=5, help="how often the page is opened")
    return parser.parse_args(options)


def _make(folder: Path, queries: int, k: int) -> EvaluationInputs:
    """Write the tables and the summary of a made-up evaluation; return its inputs."""
    draw = np.random.default_rng(0)
    vocabulary = np.array([f"word{number}" for number in range(5_000)])
    passages = 4 * queries
    ids = [f"q{number}" for number in range(queries)]
    asked = pl.DataFrame(
        [(name, f"which word follows {name}", ["word1"], []) for name in ids],
        schema=tables.QUERIES,
        orient="row",
    )
    texts = vocabulary[draw.integers(len(vocabulary), size=(passages, _WORDS))]
    corpus = pl.DataFrame(
        [(f"d{n}", f"Title {n}", " ".join(text), "A") for n, text in enumerate(texts)],
        schema=tables.CORPUS,
        orient="row",
    )
    runs = pl.concat(_run(name, ids, passages, k, draw) for name in _RUNS)
    listed = runs.select("query_id", "doc_id").unique(maintain_order=True)
    traces = pl.concat(_traces(listed, name, draw) for name in _ANNOTATORS)
    traces.write_parquet(folder / "traces.parquet")
    downstream = pl.concat(
        asked.select(
            pl.lit(run).alias("run"),
            "query_id",
            pl.lit(k).cast(pl.Int64).alias("k"),
            pl.lit("word1 and more").alias("output"),
            pl.Series("value", draw.integers(2, size=queries).astype(float)),
        )
        for run in _RUNS
    )
    downstream.write_parquet(folder / "downstream.parquet")
    scores = pl.concat(
        asked.select(
            pl.lit(run).alias("run"),
            pl.lit(name).alias("annotator"),
            pl.lit("nDCG").alias("measure"),
            "query_id",
            pl.Series("value", draw.random(queries)),
        )
        for run in _RUNS
        for name in _ANNOTATORS
    )
    scores.write_parquet(folder / "query_scores.parquet")
    (folder / "summary.json").write_text(json.dumps(_summary(queries, k)))
    return EvaluationInputs(queries=asked, corpus=corpus, runs=runs)


def _run(
    name: str, ids: Sequence[str], passages: int, k: int, draw: np.random.Generator
) -> pl.DataFrame:
    firsts = draw.integers(passages, size=len(ids))
    ranks = np.arange(1, k + 1)
    docs = (firsts[:, None] + ranks[None, :] * 7) % passages
    return pl.DataFrame(
        {
            "query_id": np.repeat(ids, k),
            "doc_id": [f"d{number}" for number in docs.reshape(-1)],
            "rank": np.tile(ranks, len(ids)),
            "score": np.tile(1.0 / ranks, len(ids)),
            "run": [name] * (len(ids) * k),
        },
        schema=tables.RUNS,
    )


def _traces(listed: pl.DataFrame, annotator: str, draw: np.random.Generator) -> pl.DataFrame:
    labels = draw.integers(2, size=listed.height).astype(float)
    found = listed.with_columns(
        pl.lit(annotator).alias("annotator"),
        pl.Series("label", labels),
        pl.lit("word1").alias("output"),
    )
    return pl.concat([tables.empty(tables.TRACES), found], how="diagonal")


def _summary(queries: int, k: int) -> dict[str, Any]:
    return {
        "configuration": {
            "metric": "em", "confidence": 0.95, "resamples": 0, "seed": 0, "relevant": "pool", "annotators": list(_ANNOTATORS), "own_annotators": [],
            "k": k, "end_to_end_k": k,
        },
        "means": [
            {"run": run, "annotator": name, "measure": "nDCG", "value": 0.5, "n": queries}
            for run in _RUNS
            for name in _ANNOTATORS
        ],
        "end_to_end": [{"run": run, "value": 0.5, "n": queries} for run in _RUNS],
        "verdict": None,
        "reading": {"wanted": 0, "kinds": {}},
        "notes": {},
        "counts": {"queries": queries},
    }  # fmt: skip


def _browsed(page: Path, rounds: int) -> dict[str, float]:
    """Median seconds until the table appears, and milliseconds until an opened query does; empty without a browser."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None or importlib.util.find_spec("playwright") is None:
        return {}
    from playwright.sync_api import sync_playwright

    opened, shown = [], []
    with sync_playwright() as started:
        browser = started.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for _ in range(rounds):
            tab = browser.new_page()
            start = time.perf_counter()
            tab.goto(page.as_uri())
            tab.locator("#table tbody button").first.wait_for()
            opened.append(time.perf_counter() - start)
            tab.locator("#table tbody button").first.click()
            for _ in range(_OPENED):
                shown.append(tab.evaluate(_OPEN_NEXT))
            tab.close()
        browser.close()
    return {
        "open_seconds": round(statistics.median(opened), 2),
        "query_milliseconds": round(statistics.median(shown)),
        "slowest_query_milliseconds": round(max(shown)),
    }


# Runs within the page, so that the driver's delay is not measured: until the next query's last passage is laid out.
_OPEN_NEXT = """() => new Promise((done) => {
  const start = performance.now();
  const body = document.getElementById("dialog-body");
  const watch = new MutationObserver(() => {
    if (!body.querySelector(".passage")) return;
    watch.disconnect();
    requestAnimationFrame(() => setTimeout(() => done(performance.now() - start)));
  });
  watch.observe(body, {childList: true});
  // Away from those that were just opened, so that its script is not loaded yet.
  state.open = Math.min(state.shown.length - 2, state.open + 97) % (state.shown.length - 1);
  document.getElementById("next-query").disabled = false;
  document.getElementById("next-query").click();
})"""


if __name__ == "__main__":
    main()
