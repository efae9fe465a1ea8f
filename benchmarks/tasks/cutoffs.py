"""Figure 1 of the eRAG paper on the tasks of Table 1: agreement of labels with the end-to-end score, by k.

    python -m benchmarks.tasks.cutoffs [--data DIR] [--tasks nq,trivia,two-hop] [--runs bm25] [--questions 300]
        [--work DIR] [--cells DIR] [--shown-only]

The reader of a task is ``trained-fid`` (``benchmarks.tasks.train``), which learned from lists of five. It reads each of
the 50 passages of a list alone, and the first 1, 3, 5, 10, 20 and 50 together. The best order of nDCG is of the list's own
passages, in Table 1 of all four runs' passages: the same labels have other values there.

A cell is a task with a run. Its labels, the end-to-end scores at every k and its provenance are kept in ``benchmarks/cells/cutoffs``
(``--cells``); the table needs the cells alone, and ``--shown-only`` reads nothing. A stored cell with as many
questions is not read again, and LLM calls are cached in the folder of ``--work``, so that an interrupted cell resumes.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import polars as pl

from benchmarks.table_one import (
    BOOTSTRAP,
    CELLS,
    LATE_OF,
    MOST,
    Kept,
    inputs_of,
    is_kept,
    kept_of,
    labels_by_rank,
    listed,
    settings_of,
    write_cell,
)
from benchmarks.tasks.retrieve import LATE, retrieve
from engine.evaluation.settings import Sweep
from engine.evaluation.study import Study, study, vary
from engine.ranking.measures import parse_measures
from engine.ranking.scores import score_runs
from engine.report import layout
from engine.report.layout import Grid
from engine.report.page.render import markdown
from engine.sources.passages.read import read_corpus
from engine.sources.queries.read import read_queries
from engine.sources.runs.read import write_run
from engine.statistics.comparison import correlate_cells, read_cells
from engine.tables import (
    ANNOTATOR,
    DOC_ID,
    LABEL,
    MEASURE,
    METHOD,
    QUERY_ID,
    RANK,
    RUN,
    TAU,
    VALUE,
    K,
)

CUTOFFS = (1, 3, 5, 10, 20, 50)
TASKS = ("nq", "trivia", "two-hop")
_DEEPEST = CUTOFFS[-1]
_READER, _WAY = "trained-fid", "fid"
_MEASURES = ("nDCG", "P", "Success")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, help="folder of nq: queries.jsonl and corpus.jsonl")
    parser.add_argument("--tasks", default=",".join(TASKS))
    parser.add_argument("--runs", default="bm25", help="of bm25, dense, rrf and late")
    parser.add_argument("--questions", type=int, default=MOST, help=f"of each task, at most {MOST}")
    parser.add_argument("--work", type=Path, default=Path("build/table-one"))
    parser.add_argument("--cells", type=Path, default=CELLS / "cutoffs", help="folder of the cells")
    parser.add_argument("--shown-only", action="store_true", help="read nothing")
    options = parser.parse_args(arguments)
    for run in [] if options.shown_only else options.runs.split(","):
        for task in options.tasks.split(","):
            make_cell(task, run, options)
    print(markdown(drawn(options.cells)))


def make_cell(task: str, run: str, options: argparse.Namespace) -> None:
    """Evaluate a task at every cutoff, and store the results, unless a cell with as many questions exists.

    Args:
        options: ``questions``, ``cells``, ``work`` and ``data``, as in the command.
    """
    name = f"{task}-{run}"
    if is_kept(name, options):
        return
    settings = settings_of(task, _READER, options.work).but(k=_DEEPEST)
    inputs = listed(lists_of(task, run, options.work, options.data), settings, options.questions)
    conditions = vary(settings, Sweep(k_sweep=CUTOFFS))
    done = study(inputs, conditions, store=options.work / "store")
    keep(task, run, done, options.cells)
    print(f"{name}: {len(inputs.queries)} questions, {done.seconds:.0f} s", flush=True)


def lists_of(task: str, run: str, work: Path, data: Path | None) -> dict[str, Any]:
    """The files of a task with one run, whose lists are as long as the largest cutoff."""
    files = inputs_of(task, work, data)
    path = files["corpus"].parent / f"{task}-{run}-{_DEEPEST}.parquet"
    if not path.exists():
        corpus, queries = read_corpus(files["corpus"]), read_queries(files["queries"])
        begin = LATE_OF.get(task, LATE)
        found = retrieve(corpus, queries, k=_DEEPEST, indexes=path.parent, begin=begin)
        write_run(found.filter(pl.col(RUN) == run), path)
    return {**files, RUN: (path,)}


def keep(task: str, run: str, done: Study, folder: Path) -> None:
    """Write the labels of a cell by rank, the end-to-end score at every cutoff, and the cell's provenance."""
    main = done.evaluations[done.main]
    labels = labels_by_rank(main).drop(RUN, DOC_ID)
    whole = pl.concat(
        one.downstream.select(K, QUERY_ID, VALUE) for one in done.evaluations.values()
    )
    made = kept_of(task, _READER, main)
    write_cell(f"{task}-{run}", labels, whole.sort(K, QUERY_ID), made, folder)


def drawn(folder: Path) -> Grid:
    """The figure as a table: the mean end-to-end score and Kendall's tau by task, run, annotator and measure, at every k."""
    rows: dict[tuple[str, ...], dict[int, str]] = {}
    methods: list[str] = []
    for path in sorted(folder.glob("*.json")):
        one = Kept(**json.loads(path.read_text()))
        run = path.stem.removeprefix(f"{one.task}-")
        of_cell = (one.task, run, str(one.queries))
        for k in CUTOFFS:
            whole, ranked = kept_scores(path, run, k)
            mean = whole.select(pl.col(VALUE).mean()).item()
            rows.setdefault((*of_cell, "(mean score)", one.metric), {})[k] = f"{mean:.3f}"
            cells = list(read_cells(ranked, whole))
            for cell, found in zip(cells, correlate_cells(cells, BOOTSTRAP), strict=True):
                row, measure = asdict(found.correlation), cell.measure.replace(f"@{k}", "@k")
                methods.append(row[METHOD])
                of_row = (*of_cell, cell.annotator, measure)
                rows.setdefault(of_row, {})[k] = layout.interval(row, TAU)
    head = ["task", RUN, "n", ANNOTATOR, MEASURE, *(f"k = {k}" for k in CUTOFFS)]
    filled = [[*names, *(by_k[k] for k in CUTOFFS)] for names, by_k in rows.items()]
    return Grid("by cutoff", layout.methods_line(methods), head, filled, 5)


def kept_scores(path: Path, run: str, k: int) -> tuple[pl.DataFrame, pl.DataFrame]:
    """End-to-end scores of a kept cell for the first ``k`` passages, and the scores of their labels by query."""
    whole = pl.read_parquet(path.with_name(f"{path.stem}-scores.parquet")).filter(pl.col(K) == k)
    labels = pl.read_parquet(path.with_name(f"{path.stem}-labels.parquet"))
    ranked = labels.filter(pl.col(RANK) <= k).with_columns(
        pl.col(RANK).cast(pl.String).alias(DOC_ID), pl.lit(run).alias(RUN)
    )
    known = [name for name in labels.columns if name not in (QUERY_ID, RANK)]
    long = ranked.unpivot(
        known, index=[QUERY_ID, DOC_ID], variable_name=ANNOTATOR, value_name=LABEL
    )
    measures = parse_measures(" ".join(f"{name}@{k}" for name in _MEASURES))
    ids = whole[QUERY_ID].to_list()
    scored = score_runs(ranked, long.drop_nulls(), ids, measures, relevant="list")
    return whole.with_columns(pl.lit(run).alias(RUN)), scored


if __name__ == "__main__":
    main()
