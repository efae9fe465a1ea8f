"""Ranking measures over many queries, against pytrec_eval and ranx.

    python -m benchmarks.ranking [--queries 200000] [--depth 50] [--labels graded] [--json FILE]

Every tool runs in a separate process on the same labels. First the data is handed over in the
tool's own format (dictionaries, ranx's Qrels and Run, this engine's flat arrays from Polars tables),
then all tools evaluate in turn, round by round; medians are printed. Before any timing the values
of every query are compared. ranx compiles on a small sample beforehand. Memory is the growth of a process
at its peak, from before the hand-over to the end.

The engine computes all measures of the list below, and once more only the measures of pytrec_eval; each peer
computes its own. ``--quick`` leaves ranx out, which takes half a minute to compile.
"""

from __future__ import annotations

import multiprocessing
import os
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from benchmarks._harness import Line, make_parser, write_report
from engine.ranking.kernel import RankedLabels, measure_lists
from engine.ranking.measures import KINDS, parse_measures
from engine.ranking.scores import score_runs

Floats = npt.NDArray[np.float64]
Labels = npt.NDArray[np.int64]

CUTOFFS = (1, 5, 10, 20, 50)
SOME = ("P", "R", "F1", "AP", "RR", "DCG", "nDCG", "Success")
NAMES = [f"{kind}@{k}" for kind in SOME for k in CUTOFFS] + ["AP", "RR", "nDCG", "Rprec"]
_TREC = {kind: KINDS[kind].references.trec_eval_cut for kind in SOME}
_TREC_NAMES = {
    f"{kind}@{k}": _TREC[kind].format(k) for kind in SOME for k in CUTOFFS if _TREC[kind]
}
_TREC_NAMES |= {"AP": "map", "RR": "recip_rank", "nDCG": "ndcg", "Rprec": "Rprec"}
_RANX = {kind: KINDS[kind].references.ranx for kind in SOME if kind != "DCG"}
_RANX_NAMES = {f"{kind}@{k}": f"{name}@{k}" for kind, name in _RANX.items() for k in CUTOFFS}
_RANX_NAMES |= {"AP": "map", "RR": "mrr", "nDCG": "ndcg", "Rprec": "r-precision"}


def make_labels(queries: int, depth: int, kind: str) -> Labels:
    """Labels by query and rank, shape (queries, depth): one passage in ten is relevant."""
    rng = np.random.default_rng(0)
    relevant = rng.random((queries, depth)) < 0.1
    return np.where(relevant, rng.integers(1, 4, relevant.shape) if kind == "graded" else 1, 0)


@dataclass(frozen=True)
class Ready:
    """A tool with its data loaded: ``columns`` turns its result into values by measure and query."""

    evaluate: Callable[[], Any]
    columns: Callable[[Any], dict[str, Floats]]
    hand_over: float


def _query_ids(count: int) -> list[str]:
    return [f"q{i:07}" for i in range(count)]  # ranx sorts them


def _dictionaries(labels: Labels) -> tuple[dict[str, dict[str, int]], dict[str, dict[str, float]]]:
    documents = [f"d{i}" for i in range(labels.shape[1])]
    scores = [float(labels.shape[1] - i) for i in range(labels.shape[1])]
    qrels = {
        query: dict(zip(documents, row, strict=True))
        for query, row in zip(_query_ids(len(labels)), labels.tolist(), strict=True)
    }
    return qrels, {query: dict(zip(documents, scores, strict=True)) for query in qrels}


def _pytrec_eval(labels: Labels) -> Ready:
    import pytrec_eval

    start = time.perf_counter()
    qrels, run = _dictionaries(labels)
    evaluator = pytrec_eval.RelevanceEvaluator(qrels, set(_TREC_NAMES.values()))
    return Ready(
        lambda: evaluator.evaluate(run),
        lambda found: {
            name: np.array([found[query][theirs] for query in qrels])
            for name, theirs in _TREC_NAMES.items()
        },
        time.perf_counter() - start,
    )


def _ranx(labels: Labels) -> Ready:
    import ranx

    warnings.filterwarnings("ignore")
    metrics = list(_RANX_NAMES.values())
    small = _dictionaries(labels[:10])
    ranx.evaluate(ranx.Qrels(small[0]), ranx.Run(small[1]), metrics, return_mean=False)
    start = time.perf_counter()
    qrels, run = _dictionaries(labels)
    theirs, listed = ranx.Qrels(qrels), ranx.Run(run)
    return Ready(
        lambda: ranx.evaluate(theirs, listed, metrics, return_mean=False),
        lambda found: {name: np.asarray(found[theirs]) for name, theirs in _RANX_NAMES.items()},
        time.perf_counter() - start,
    )


def _engine(labels: Labels, names: Sequence[str] = NAMES) -> Ready:
    measures = parse_measures(" ".join(names))
    start = time.perf_counter()
    offsets = np.arange(0, labels.size + 1, labels.shape[1])
    ranked = RankedLabels.own_lists(labels.astype(np.float64).ravel(), offsets)
    return Ready(
        lambda: measure_lists(ranked, measures, real_valued=False),
        lambda found: dict(zip(names, found, strict=True)),
        time.perf_counter() - start,
    )


def _engine_tables(labels: Labels) -> Ready:
    """The same from Polars tables with string ids to the table of scores: joins and all."""
    queries, depth = labels.shape
    measures = parse_measures(" ".join(NAMES))
    start = time.perf_counter()
    ids = _query_ids(queries)
    rows, ranks = np.divmod(np.arange(labels.size), depth)
    keys = pl.DataFrame(
        {
            "query_id": pl.Series(ids).gather(rows),
            "doc_id": pl.Series([f"d{i}" for i in range(depth)]).gather(ranks),
        }
    )
    runs = keys.with_columns(pl.Series("rank", ranks + 1), pl.lit("run").alias("run"))
    table = keys.with_columns(
        pl.lit("a").alias("annotator"), pl.Series("label", labels.ravel().astype(np.float64))
    )
    return Ready(
        lambda: score_runs(runs, table, ids, measures, relevant="list"),
        lambda found: {
            str(name): frame["value"].to_numpy()
            for (name,), frame in found.group_by(["measure"], maintain_order=True)
        },
        time.perf_counter() - start,
    )


TOOLS: dict[str, Callable[[Labels], Ready]] = {
    "pytrec_eval": _pytrec_eval,
    "ranx": _ranx,
    "engine": _engine,
    "engine, pytrec_eval's": partial(_engine, names=tuple(_TREC_NAMES)),
    "engine, from tables": _engine_tables,
}


def _status(field: str) -> int:
    for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"no {field} in /proc/self/status")


def _serve(tool: str, labels: Labels, pipe: Connection) -> None:
    """Hand the data over, then evaluate on each request."""
    base = _status("VmRSS")
    ready = TOOLS[tool](labels)
    pipe.send({"hand_over": ready.hand_over})
    while (asked := pipe.recv()) != "end":
        start = time.perf_counter()
        found = ready.evaluate()
        seconds = time.perf_counter() - start
        memory = _status("VmHWM") - base
        pipe.send((seconds, memory, ready.columns(found) if asked == "values" else None))


def main(options: Sequence[str] | None = None) -> None:
    quick = {"queries": 5_000, "rounds": 3, "tools": [name for name in TOOLS if name != "ranx"]}
    parser = make_parser(__doc__, rounds=5, quick=quick)
    parser.add_argument("--queries", type=int, default=200_000)
    parser.add_argument("--depth", type=int, default=50)
    parser.add_argument("--labels", choices=["binary", "graded"], default="graded")
    parser.add_argument("--tools", nargs="+", choices=[*TOOLS], default=[*TOOLS])
    arguments = parser.parse_args(options)
    # The engine, the base of the comparison, always takes part.
    tools = [name for name in TOOLS if name in {*arguments.tools, "engine"}]

    labels = make_labels(arguments.queries, arguments.depth, arguments.labels)
    context = multiprocessing.get_context("fork")
    pipes: dict[str, Connection] = {}
    report: dict[str, dict[str, Any]] = {}
    for tool in tools:
        pipes[tool], theirs = context.Pipe()
        context.Process(target=_serve, args=(tool, labels, theirs), daemon=True).start()
        report[tool] = pipes[tool].recv() | {"seconds": []}

    values: dict[str, dict[str, Floats]] = {}
    for tool, pipe in pipes.items():
        pipe.send("values")
        _, report[tool]["memory"], values[tool] = pipe.recv()
    for tool in tools:
        for name, column in values[tool].items():
            furthest = float(np.abs(column - values["engine"][name]).max())
            if furthest > 1e-12:
                raise SystemExit(f"{name} differs from {tool}'s by {furthest:.3g}")
        report[tool]["measures"] = len(values[tool])

    for _ in range(arguments.rounds):
        for tool, pipe in pipes.items():
            pipe.send("time")
            report[tool]["seconds"].append(pipe.recv()[0])
    for pipe in pipes.values():
        pipe.send("end")

    engine = median(report["engine"]["seconds"])
    print(
        f"{arguments.queries:,} queries x {arguments.depth} {arguments.labels} labels, "
        f"{len(os.sched_getaffinity(0))} cores; medians of {arguments.rounds} rounds; "
        "values of every query equal to 1e-12"
    )
    print(
        f"{'':22}{'measures':>9}{'hand-over s':>13}{'evaluate s':>12}{'engine is':>11}{'peak MB':>9}"
    )
    for tool, row in report.items():
        seconds = median(row["seconds"])
        row["ratio"] = seconds / engine
        print(
            f"{tool:22}{row['measures']:9}{row['hand_over']:13.2f}{seconds:12.3f}"
            f"{seconds / engine:10.1f}x{row['memory'] / 1e6:9.0f}"
        )
    packages = ("numpy", "polars", "pytrec_eval-terrier", "ranx")
    page = [
        Line(f"{tool} to engine, {row['measures']} measures", f"{row['ratio']:.1f}")
        for tool, row in report.items()
        if tool != "engine"
    ]
    page += [Line(tool, "left out") for tool in TOOLS if tool not in tools]
    write_report(arguments, packages, {"tools": report}, page)


if __name__ == "__main__":
    main()
