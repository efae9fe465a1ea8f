"""What ``erag plan`` foretells, beside what the evaluation then takes: reads, seconds and memory.

    python -m benchmarks.planner [--cases demo runs fid] [--queries 24] [--probe-reads 64] [--actors 0]
        [--shard-pairs N] [--clock wall] [--rounds 1] [--json FILE]

Each plan, and then its evaluation, runs in a process of its own, as two commands do; the store is empty
before, and has the reads of the probe between them. Three cases: the demo's questions with the bundled
decoder-only reader; the same with three runs whose lists overlap, and a judge; Fusion-in-Decoder with a
random model of T5-small's shape. With ``--shard-pairs`` they are planned from a sample, and done in shards, as
large evaluations are.

The reads that are left, as they are counted, must be those that the evaluation does (of a sample: be near them).
Expectation: the time
of reading, models loaded and actors started, is within 20% of what was foretold. On a machine that others
use, what changes between the plan and the evaluation is an error of the plan: ``--clock processor`` counts
the seconds of processors that both spend instead, which others lengthen less. It needs OMP_NUM_THREADS=1,
since threads that wait for each other spend some, too, and ``--actors 0``.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import polars as pl

from benchmarks._harness import Line, in_fresh_process, make_parser, write_report
from engine.tables import QUERY_ID, RANK, RUN

CASES = ("demo", "runs", "fid")
_WITHIN = 0.2
# Passages of a list of the demo, and of the runs that are made of longer ones.
_DEPTH, _LONG = 10, 18
_MIB = 2**20
# Of the tokenizer, and passages that it is trained on.
_VOCABULARY, _TRAINED_ON = 8000, 600
_THREADS = "OMP_NUM_THREADS"


def main(options: Sequence[str] | None = None) -> None:
    arguments = _arguments(options)
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="erag-planner-") as place:
        folder = Path(place)
        in_fresh_process(_make, place, arguments.queries, arguments.cases)
        print(_line(_HEAD))
        for number in range(arguments.rounds):
            for case in arguments.cases:
                store = str(folder / f"store-{case}-{number}")
                shared = (place, case, store, arguments.actors, arguments.shard_pairs)
                plan = in_fresh_process(
                    _timed_by, arguments.clock, _plan, *shared, arguments.probe_reads, number
                )
                real = in_fresh_process(_timed_by, arguments.clock, _evaluate, *shared)
                rows.append(_row(case, plan, real))
                print(_line(_shown(rows[-1])), flush=True)
    within = sum(abs(row["error"]) <= _WITHIN for row in rows)
    held = sum(row["low"] <= row["real_seconds"] <= row["high"] for row in rows)
    print(f"within {_WITHIN:.0%}: {within} of {len(rows)}; inside the interval: {held}")
    page = [
        Line(
            f"{row['case']}: seconds foretold, and taken",
            f"{row['foretold_seconds']:.0f}, {row['real_seconds']:.0f}",
            "within 20%",
        )
        for row in rows
    ]
    write_report(arguments, ["torch", "transformers", "ray", "polars"], {"rows": rows}, page)


def _arguments(options: Sequence[str] | None) -> argparse.Namespace:
    quick = {"cases": ["fid"], "queries": 4, "probe_reads": 12}
    parser = make_parser(__doc__, rounds=1, quick=quick)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--queries", type=int, default=24, help="questions of each case")
    parser.add_argument("--probe-reads", type=int, help="as of erag plan")
    parser.add_argument("--clock", choices=("wall", "processor"), default="wall")
    parser.add_argument("--actors", type=int, default=0, help="as of erag evaluate")
    parser.add_argument("--shard-pairs", type=int, default=0, help="as of erag evaluate")
    arguments: argparse.Namespace = parser.parse_args(options)
    if arguments.clock == "processor" and (arguments.actors or os.environ.get(_THREADS) != "1"):
        parser.error(f"--clock processor needs {_THREADS}=1 and --actors 0")
    return arguments


def _timed_by(clock: str, function: Any, *arguments: Any) -> dict[str, Any]:
    """Call a function in whose process all times are taken by a clock."""
    if clock == "processor":
        time.perf_counter = time.process_time
    result: dict[str, Any] = function(*arguments)
    if "ray" in sys.modules:  # else it would be ended in the middle of its work
        from engine.machine import cluster

        cluster.stop_ray()
    return result


def _make(place: str, queries: int, cases: list[str]) -> dict[str, Any]:
    """Lay down questions, passages, runs and the random model."""
    from benchmarks._bundled import bundled_corpus
    from engine.retrieval.bm25 import build_index, search
    from engine.sources.bundled import questions
    from engine.sources.io.files import write_parquet
    from engine.sources.queries.read import read_queries
    from engine.sources.runs.read import write_run

    folder = Path(place)
    corpus = bundled_corpus()
    table = read_queries(questions("short-answer")).head(queries)
    write_parquet(corpus, folder / "corpus.parquet")
    write_parquet(table, folder / "queries.parquet")
    build_index(corpus, folder / "index")
    lists = search(folder / "index", table, k=_LONG)
    for name, first in (("bm25", 0), ("from-fifth", 4), ("from-ninth", 8)):
        part = lists.filter(pl.col(RANK) > first, pl.col(RANK) <= first + _DEPTH)
        ranked = part.with_columns(pl.col(RANK) - first, pl.lit(name).alias(RUN))
        write_run(ranked.sort(QUERY_ID, RANK), folder / f"{name}.parquet")
    if "fid" in cases:
        from benchmarks.fid import make_model

        make_model(folder / "t5", corpus["text"].head(_TRAINED_ON).to_list(), _VOCABULARY)
    return {}


def _case(place: str, case: str, actors: int, pairs: int) -> tuple[Any, Any]:
    """The files and settings of a case."""
    from engine.evaluation.inputs import InputFiles
    from engine.evaluation.settings import Settings

    folder = Path(place)
    runs = ("bm25", "from-fifth", "from-ninth") if case == "runs" else ("bm25",)
    files = InputFiles(
        queries=folder / "queries.parquet",
        corpus=folder / "corpus.parquet",
        run=tuple(folder / f"{name}.parquet" for name in runs),
    )
    more: dict[str, Any] = {
        "demo": {"k": _DEPTH, "end_to_end_k": 3, "annotators": ("erag",)},
        "runs": {"k": 5, "annotators": ("erag", "judge"), "judge": "bundled"},
        "fid": {"k": _DEPTH, "reader": str(folder / "t5"), "augmentation": "fid"},
    }[case]
    measures = f"nDCG@{more['k']}"
    return files, Settings.of(
        actors=actors, shard_pairs=pairs, measures=measures, resamples=0, **more
    )


def _plan(
    place: str,
    case: str,
    store: str,
    actors: int,
    pairs: int,
    probe_reads: int | None,
    seed: int,
) -> dict[str, Any]:
    from engine.evaluation.inputs import read_inputs
    from engine.planning.forecast import PlanSettings
    from engine.planning.planner import plan_evaluation
    from engine.planning.sample import take_sample

    files, settings = _case(place, case, actors, pairs)
    sample = take_sample(files, k=settings.ranking.k, pairs=pairs) if pairs else None
    inputs = sample.inputs if sample else read_inputs(files, k=settings.ranking.k)
    begun, clock = time.perf_counter(), time.process_time()
    plan = plan_evaluation(
        inputs,
        [settings.but(seed=seed)],
        PlanSettings(probe_reads=probe_reads),
        store=store,
        sample=sample,
    )
    span = plan.seconds(plan.actors)
    assert plan.probe is not None, "everything is stored"
    return {
        "sampled": plan.sampled,
        "asked": sum(kind.asked for kind in plan.kinds),
        "left": plan.left,
        "probed": plan.probe.reads,
        "plan_seconds": time.perf_counter() - begun,
        "plan_processor_seconds": time.process_time() - clock,
        "foretold_seconds": span.value,
        "low": span.low,
        "high": span.high,
        "start": plan.start,
        "foretold_mib": plan.peak / _MIB,
    }


def _evaluate(place: str, case: str, store: str, actors: int, pairs: int) -> dict[str, Any]:
    from engine.evaluation.evaluate import evaluate
    from engine.evaluation.inputs import read_inputs

    files, settings = _case(place, case, actors, pairs)
    begun, clock = time.perf_counter(), time.process_time()
    if pairs:
        result = _in_shards(files, settings, Path(store), pairs)
    else:
        inputs = read_inputs(files, k=settings.ranking.k)
        result = evaluate(inputs, settings, store=store)
    costs = [reading.costs for reading in result.readings.values()]
    return {
        "done": sum(one.done for one in costs),
        "real_seconds": sum(one.seconds for one in costs),
        "whole_seconds": time.perf_counter() - begun,
        "processor_seconds": time.process_time() - clock,
        "real_mib": max((peak for one in costs for peak in one.workers.values()), default=0) / _MIB,
    }


def _in_shards(files: Any, settings: Any, store: Path, pairs: int) -> Any:
    from engine.evaluation.context import Context
    from engine.evaluation.evaluate import evaluate_shards
    from engine.evaluation.startup import partition_beside_ray
    from engine.sources.io.folders import folder_at

    out = store.with_name(f"{store.name}-out")
    made = partition_beside_ray(
        files,
        folder_at(out / "inputs"),
        settings.running.pool(),
        k=settings.ranking.k,
        pairs_per_shard=pairs,
    )
    (result,) = evaluate_shards(made, [settings], Context(store=store), folder_at(out)).evaluations
    return result


def _row(case: str, plan: dict[str, Any], real: dict[str, Any]) -> dict[str, Any]:
    exact = plan["sampled"] is None
    assert not exact or plan["left"] == real["done"], f"{case}: {plan['left']} of {real['done']}"
    error = plan["foretold_seconds"] / real["real_seconds"] - 1
    return {"case": case, **plan, **real, "error": error}


_HEAD = (
    *("case", "asked", "probe", "left", "done", "foretold s", "interval", "real s", "error"),
    *("CPU s a read", "then", "MiB", "real MiB"),
)
_WIDTHS = (6, 6, 6, 6, 6, 11, 16, 8, 7, 13, 6, 6, 9)


def _shown(row: dict[str, Any]) -> tuple[str, ...]:
    return (
        row["case"],
        *(str(row[name]) for name in ("asked", "probed", "left", "done")),
        f"{row['foretold_seconds']:.1f}",
        f"{row['low']:.1f} to {row['high']:.1f}",
        f"{row['real_seconds']:.1f}",
        f"{row['error']:+.0%}",
        # Of both, loading included; actors have processes of their own, whose time is not in it.
        f"{row['plan_processor_seconds'] / row['probed']:.2f}",
        f"{row['processor_seconds'] / max(1, row['done']):.2f}",
        f"{row['foretold_mib']:.0f}",
        f"{row['real_mib']:.0f}",
    )


def _line(cells: tuple[str, ...]) -> str:
    return "  ".join(cell.rjust(width) for cell, width in zip(cells, _WIDTHS, strict=True))


if __name__ == "__main__":
    main()
