"""The label bench: a comparison of passage labels by their agreement with a reader of whole lists.

    python -m benchmarks.label_bench [--sets nq=DIR trivia=FILE articles] [--readers bundled-fid:fid bundled-fid bundled]
        [--questions 300] [--k 10] [--judge READER] [--repeat 5] [--store DIR] [--cells DIR] [--json FILE]

A cell is a set of questions read one way: every label of all listed passages, the score of the whole list, also with the
list in the other order, and of the question without any passage, for the annotator ``gain``. Cells are stored as
Parquet, the project's own in ``benchmarks/labels``; without options these are used as they are, and nothing is read. With
``--sets`` and ``--readers`` the cells of all sets and ways are computed first. In a stored cell, only missing labels
of the first ``--questions`` are read (``--again`` reads the labels of ``--labels`` again, and leaves the others; reads come
from the store). So the bench continues on another machine: copy the folder of cells.

- ``--sets NAME=DIR``: a folder with ``queries.*`` and ``corpus.*``; BM25 finds the passages. ``NAME=FILE``: questions of TriviaQA or others
  over the passages of the bundled articles. ``articles`` needs neither: questions made (``bundled_reader.text``) from bundled articles
  outside the training data of ``bundled-fid``. A cell of other questions, passages or lists is refused, by its digest.
- ``--readers READER[:fid][:DTYPE]``: any reader of ``erag evaluate --reader``, ``openai:MODEL`` and ``FILE.py:function``
  included; labels that such readers cannot give are left out, and named. All passages are in one prompt, or with ``:fid`` each is encoded by itself.
- ``--repeat N`` reads N questions per cell once more, with an empty store, and counts the values that differ.

For every label: DCG@k (labels over log2(rank + 1), summed, which is defined for any real label) against the score of the list, with
the engine's intervals, and tau of the list's highest label; for DCG, AUC; the share of the ceiling, the highest tau of any function of eRAG's
labels (fitted, see ``engine.statistics.single_labels``; a label with more information may exceed it; none with fewer than 10 right or wrong
lists); n; reads and tokens a question; and the worth of a label, 1 / (1 - rho^2): the number of lists that estimate the mean as well as one
list beside the labels of all questions.
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from benchmarks._harness import Line, make_parser, write_report
from benchmarks._label_cells import (
    CELLS,
    DIGITS,
    JUDGE,
    KNOWN,
    LABELS,
    ORDERED,
    PLACE,
    Cell,
    Way,
    inputs_of,
    joined,
    labels_for,
    lacking,
    make_cell,
    part_of,
    place_of,
    read_cell,
)
from benchmarks._single import correlate
from engine.inputs.files import EvaluationInputs
from engine.machine.model_files import cache_directory
from engine.statistics.arrays import Floats
from engine.statistics.bounded import mean_interval
from engine.statistics.correlation import Bootstrap, Correlation, margins
from engine.statistics.single_labels import ceiling
from engine.tables import QUERY_ID

# Least number of right and of wrong lists for a meaningful share of the ceiling.
LEAST = 10


def dcg(labels: Floats) -> Floats:
    """(n,) a list's labels over log2(rank + 1), summed, and divided by the same sum of a list of ones."""
    weights = 1 / np.log2(np.arange(2, labels.shape[1] + 2))
    return np.asarray(labels @ weights / weights.sum()).round(12)


def figures_of(cell: Cell, bootstrap: Bootstrap) -> list[dict[str, Any]]:
    """A row for each label of a cell."""
    most, all_ids = _ceilings(cell), cell.values("erag")[0]
    rows = []
    for label in cell.labels:
        ids, labels, y = cell.values(label)
        x = dcg(labels)
        found = correlate(x, y, bootstrap)
        best = correlate(labels.max(axis=1), y, bootstrap)
        highest = {f"max_{one}": getattr(best, one) for one in ("tau", "tau_low", "tau_high")}
        price = cell.about["prices"].get(
            "gain" if label == KNOWN else label, {"reads": 0, "tokens": 0}
        )
        few = min((y == 1).sum(), (y == 0).sum()) < LEAST
        beside = ids == all_ids and not few and most["ceiling"]
        share = found.tau / most["ceiling"] if beside else math.nan
        rows.append(
            {"set": cell.about["set"], "way": cell.about["way"], "label": label, **_described(found)}
            | {"auc": margins(x, y, found.tau).auc, "share": share, **price, "worth": worth(found.rho)}
            | dict(zip(("worth_low", "worth_high"), _worths(found), strict=True)) | highest | {"note": found.note}
        )  # fmt: skip
    return rows


def _described(found: Correlation) -> dict[str, Any]:
    names = ("n", "tau", "tau_low", "tau_high", "rho", "rho_low", "rho_high", "method")
    return {name: getattr(found, name) for name in names}


def worth(rho: float) -> float:
    """Number of lists equal to one list beside the labels of all questions: 1 / (1 - rho^2); infinite for rho 1."""
    return 1 / (1 - rho**2) if rho**2 < 1 else math.inf if rho == rho else math.nan


def _worths(found: Correlation) -> tuple[float, float]:
    """The interval of the worth, from rho's interval."""
    if math.isnan(found.rho_low):
        return math.nan, math.nan
    ends = sorted(map(worth, (found.rho_low, found.rho_high)))
    return (1.0 if found.rho_low < 0 < found.rho_high else ends[0]), ends[1]


def _ceilings(cell: Cell) -> dict[str, float]:
    """tau of the best function of eRAG's labels, fitted."""
    _, labels, y = cell.values("erag")
    if not len(y) or not np.isin(y, (0, 1)).all() or len(set(y)) < 2:
        return {"ceiling": math.nan}
    _, group = np.unique(labels, axis=0, return_inverse=True)
    group = group.reshape(-1)
    return {"ceiling": ceiling(np.bincount(group), np.bincount(group, y).astype(np.float64))}


def orders_of(cell: Cell, bootstrap: Bootstrap) -> dict[str, Any]:
    """Both orders of the lists: scores, eRAG's tau, the place that agrees best; scores without passages."""
    row: dict[str, Any] = {"set": cell.about["set"], "way": cell.about["way"], **_ceilings(cell)}
    for name, turned in (("", False), ("_reversed", True)):
        _, labels, y = cell.values("erag", turned)
        found = correlate(dcg(labels), y, bootstrap)
        row |= {f"n{name}": len(y), f"score{name}": float(y.mean()), f"tau{name}": found.tau}
        row |= {f"tau_low{name}": found.tau_low, f"tau_high{name}": found.tau_high}
        rhos = [correlate(column, y, Bootstrap(resamples=0)).rho for column in labels.T]
        row[f"by_place{name}"] = rhos
    table = cell.table
    useful = table.filter(pl.col("erag") >= 0.5)
    row["useful"] = useful.height
    row["without_answer"] = (
        useful.filter(pl.col("containment") == 0).height if "containment" in table.columns else None
    )
    row["known"] = useful.filter(pl.col("gain") < 0.5).height if "gain" in table.columns else None
    if "gain" in table.columns:
        closed = (
            table.drop_nulls("gain")
            .group_by(QUERY_ID)
            .agg((pl.col("erag") - pl.col("gain")).first() >= 0.5)
        )
        right = closed["erag"].cast(pl.Float64).to_numpy()
        row["closed"], row["n_closed"] = float(right.mean()), len(right)
        row["closed_low"], row["closed_high"] = mean_interval(right, bootstrap.confidence, None)
    return row


def matrix(cells: Sequence[Cell], bootstrap: Bootstrap) -> list[dict[str, Any]]:
    """eRAG's labels by each way against the lists of all other ways, over their common questions."""
    rows = []
    for lists in cells:
        for labels in cells:
            if lists.about["set"] != labels.about["set"]:
                continue
            ids, given, _ = labels.values("erag")
            read, _, y = lists.values("erag")
            scores, x = dict(zip(read, y, strict=True)), dict(zip(ids, dcg(given), strict=True))
            both = sorted(scores.keys() & x.keys())
            if both:
                given_x, read_y = (np.array([side[one] for one in both]) for side in (x, scores))
                found = correlate(given_x, read_y, bootstrap)
                about = {
                    "set": lists.about["set"],
                    "lists": lists.about["way"],
                    "labels": labels.about["way"],
                }
                rows.append(about | _described(found))
    return rows


def repeated(cell: Cell, again: Cell) -> tuple[int, int]:
    """Number of values of a cell that differ when read again, and number compared, without BM25's, which are no reads."""
    names = [
        name
        for name in again.table.columns
        if name in cell.table.columns and name not in (QUERY_ID, PLACE)
    ]
    both = again.table.join(cell.table, on=[QUERY_ID, PLACE], suffix="_before")
    differ = sum(
        both.select((pl.col(name) - pl.col(f"{name}_before")).abs() > 10**-DIGITS * 2)
        .to_series()
        .sum()
        for name in names
    )
    return int(differ), both.height * len(names)


def with_interval(row: Mapping[str, Any], name: str, digits: int = 2) -> str:
    """A figure and its bounds, formatted for tables."""
    value, low, high = (row[key] for key in (name, f"{name}_low", f"{name}_high"))
    if math.isnan(value):
        return "undefined"
    return f"{value:.{digits}f}" + (
        "" if math.isnan(low) else f" [{low:.{digits}f}, {high:.{digits}f}]"
    )


def report(rows: Sequence[Mapping[str, Any]], orders: Sequence[Mapping[str, Any]], crossed: Sequence[Mapping[str, Any]]) -> Iterator[str]:  # fmt: skip
    """The tables, as Markdown."""
    for name in dict.fromkeys(row["set"] for row in rows):
        yield f"\n**{name}**\n"
        yield "| read by | label | tau [95%] | tau of the best label | rho [95%] | AUC | of the ceiling | worth in lists | reads | tokens | n |"
        yield "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |"
        before = ""
        for row in (one for one in rows if one["set"] == name):
            way, before = ("" if row["way"] == before else row["way"]), row["way"]
            share = "" if math.isnan(row["share"]) else f"{row['share']:.0%}"
            auc = "" if math.isnan(row["auc"]) else f"{row['auc']:.2f}"
            yield (
                f"| {way} | {row['label']} | {with_interval(row, 'tau')} | {with_interval(row, 'max_tau')} | {with_interval(row, 'rho')} | {auc} | {share} "
                f"| {with_interval(row, 'worth')} | {row['reads']:g} | {row['tokens']:,.0f} | {row['n']} |"
            )
    yield "\n**Both orders of the lists** (eRAG's labels)\n"
    yield "| set | read by | n | score | tau [95%] | best place | score, reversed | tau, reversed [95%] | best place | ceiling, fitted |"
    yield "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |"
    for row in orders:
        turned = {f"tau{end}": row[f"tau{end}_reversed"] for end in ("", "_low", "_high")}
        yield (
            f"| {row['set']} | {row['way']} | {row['n']} | {row['score']:.3f} | {with_interval(row, 'tau')} | {_best(row['by_place'])} "
            f"| {row['score_reversed']:.3f} | {with_interval(turned, 'tau')} | {_best(row['by_place_reversed'])} "
            f"| {row['ceiling']:.2f} |"
        )
    yield "\n**Labels by one reader, lists by another** (eRAG's labels; tau [95%])\n"
    yield "| set | lists read by | labels by | tau [95%] | n |"
    yield "| --- | --- | --- | --- | --- |"
    for row in crossed:
        yield f"| {row['set']} | {row['lists']} | {row['labels']} | {with_interval(row, 'tau')} | {row['n']} |"
    yield "\n**Useful passages** (eRAG's label 0.5 or more)\n"
    yield "| set | read by | useful | without the answer | of questions known without passages | questions right without passages [95%] | n |"
    yield "| --- | --- | --- | --- | --- | --- | --- |"
    for row in orders:
        shown = [
            "" if row[name] is None else str(row[name]) for name in ("without_answer", "known")
        ]
        closed = (
            [with_interval(row, "closed"), str(row["n_closed"])] if "closed" in row else ["", ""]
        )
        yield f"| {row['set']} | {row['way']} | {row['useful']} | {' | '.join([*shown, *closed])} |"


def _best(rhos: Sequence[float]) -> str:
    """The place whose label agrees best, with its rho and the next best."""
    ranked = sorted(((rho, place) for place, rho in enumerate(rhos, 1) if rho == rho), reverse=True)
    if not ranked:
        return "none"
    first = f"{ranked[0][1]} ({ranked[0][0]:.2f}"
    return f"{first}; next {ranked[1][0]:.2f})" if len(ranked) > 1 else f"{first})"


def _made(path: Path, name: str, inputs: EvaluationInputs, way: Way, options: argparse.Namespace) -> Cell | None:  # fmt: skip
    """The cell with newly read labels, missing or requested again; None if it lacks nothing."""
    make: dict[str, Any] = {"store": options.store, "k": options.k, "judge": options.judge}
    wanted = labels_for(inputs, way, _wanted(options))
    if left := [label for label in _wanted(options) if label in way.lacks]:
        print(f"{way.name} cannot give {', '.join(left)}", file=sys.stderr, flush=True)
    asked = part_of(inputs, inputs.queries.head(options.questions))
    if not path.exists():
        return make_cell(name, asked, way, wanted, **make)
    before = read_cell(path)
    queries, labels, lists = lacking(before, asked, wanted)
    if options.again:
        queries, labels, lists = asked.queries, list(wanted), "erag" in wanted
    if queries.is_empty():
        return None
    some = part_of(inputs, queries, None if lists else ORDERED)
    return joined(before, make_cell(name, some, way, labels, **make), inputs)


def _wanted(options: argparse.Namespace) -> list[str]:
    return [*options.labels.split(","), *[JUDGE] * bool(options.judge)]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = make_parser(__doc__, quick={"resamples": 100})
    parser.add_argument("--sets", nargs="*", default=[], metavar="NAME=DIR")
    parser.add_argument("--readers", nargs="*", default=[], metavar="READER[:fid][:DTYPE]")
    parser.add_argument(
        "--labels", default=",".join(LABELS), help="annotators, separated by commas"
    )
    parser.add_argument("--questions", type=int, default=100)
    parser.add_argument("--k", type=int, default=10)
    parser.add_argument("--judge", help="the model that judges; by default none does")
    parser.add_argument(
        "--again", action="store_true", help="read the labels again that cells have, too"
    )
    parser.add_argument(
        "--repeat", type=int, default=0, help="questions of each cell to read twice"
    )
    parser.add_argument("--store", type=Path, default=cache_directory() / "reads")
    parser.add_argument("--cells", type=Path, default=CELLS)
    parser.add_argument("--resamples", type=int, default=2000)
    options = parser.parse_args(arguments)
    checks = {}
    for one in options.sets:
        name, _, data = one.partition("=")
        with tempfile.TemporaryDirectory() as folder:
            ways = {place_of(options.cells, name, way): way for way in map(Way.of, options.readers)}
            there = [read_cell(path).about["questions"] for path in ways if path.exists()]
            most = max(options.questions, *there, 0)
            inputs = inputs_of(Path(data) if data else None, most, options.k, Path(folder))
            for path, way in ways.items():
                if made := _made(path, name, inputs, way, options):
                    made.write(path)
                    print(f"{path}: {path.stat().st_size:,} bytes", file=sys.stderr, flush=True)
                if options.repeat:
                    some = part_of(inputs, inputs.queries.head(options.repeat))
                    with tempfile.TemporaryDirectory() as empty:
                        again = make_cell(
                            name, some, way, _wanted(options), store=Path(empty), k=options.k, judge=options.judge
                        )  # fmt: skip
                    checks[path.stem] = repeated(read_cell(path), again)
    cells = [read_cell(path) for path in sorted(options.cells.glob("*.parquet"))]
    if not cells:
        sys.exit(f"{options.cells} has no cells: give --sets and --readers")
    bootstrap = Bootstrap(resamples=options.resamples)
    rows = [row for cell in cells for row in figures_of(cell, bootstrap)]
    orders = [orders_of(cell, bootstrap) for cell in cells]
    crossed = matrix(cells, bootstrap)
    print("\n".join(report(rows, orders, crossed)))
    for name, (differ, of_all) in checks.items():
        print(f"\n{name}: {differ} of {of_all} values differ when they are read again")
    figures = {
        "cells": [cell.about for cell in cells],
        "labels": rows,
        "orders": orders,
        "matrix": crossed,
        "repeated": checks,
    }
    best = max(
        (row for row in rows if row["label"] != "erag" and row["tau"] == row["tau"]),
        key=lambda row: row["tau"],
    )
    line = Line(
        f"{len(rows)} labels in {len(cells)} cells; the best but eRAG's: {best['label']} ({best['set']}, {best['way']})",
        f"{best['tau']:.2f}",
    )
    write_report(options, ("torch", "transformers", "polars"), figures, [line])
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
