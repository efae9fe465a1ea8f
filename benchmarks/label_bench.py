"""The label bench: which labels of passages agree with a reader of whole lists, head to head.

    python -m benchmarks.label_bench [--sets nq=DIR trivia=DIR articles] [--readers bundled-fid:fid bundled-fid bundled]
        [--questions 300] [--k 10] [--judge READER --judged 50] [--repeat 5] [--store DIR] [--cells DIR] [--json FILE]

A cell is a set of questions read one way: every label of each listed passage, the score of the whole list, also with the
list in the other order, and of the question without any passage, where the annotator ``gain`` knows it. Cells are kept as
Parquet, those of the project in ``benchmarks/labels``; without options these are taken as they are, and nothing is read. With
``--sets`` and ``--readers`` the cells of each set and each way are made first, unless they are there (``--again`` makes
them again; reads are taken from the store). So the bench goes on on another machine: copy the folder of cells.

- ``--sets NAME=DIR``: a folder with ``queries.*`` and ``corpus.*``; BM25 finds the passages. ``articles`` needs no folder: questions
  that ``make reader`` makes of the bundled articles on which ``bundled-fid`` was not trained.
- ``--readers READER[:fid][:DTYPE]``: whatever ``erag evaluate --reader`` takes; servers by ``openai:MODEL``, which has a
  colon of its own. All passages are in one prompt, or with ``:fid`` each is encoded by itself.
- ``--repeat N`` reads N questions of each cell once more, with an empty store, and counts the values that differ.

Of every label: DCG@k (labels over log2(rank + 1), summed, which any real label has) against the score of the list, with the
intervals that the engine takes, and tau of the list's highest label; of DCG, AUC; the share of the ceiling, the most that any function of eRAG's labels reaches (fitted,
see ``engine.statistics.single_labels``; a label that says more than eRAG's may exceed it; none with fewer than 10 right or wrong lists); n; reads and tokens a question;
and the worth of a label, 1 / (1 - rho^2): how many lists must be read to know the mean as well as one list beside the
labels of all questions does.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from benchmarks._harness import Line, make_parser, write_report
from benchmarks._single import correlate
from engine.evaluation.assess import Evaluation
from engine.evaluation.evaluate import evaluate
from engine.evaluation.inputs import EvaluationInputs, InputFiles, read_inputs
from engine.evaluation.settings import Settings
from engine.labels.registry import ANNOTATORS
from engine.machine.model_files import cache_directory
from engine.retrieval import bm25
from engine.sources.passages.read import read_corpus
from engine.sources.queries.read import read_queries
from engine.sources.runs.read import write_run
from engine.statistics.arrays import Floats
from engine.statistics.correlation import Bootstrap, Correlation
from engine.statistics.margins import margins
from engine.statistics.single_labels import ceiling, learned
from engine.tables import (
    ANNOTATOR,
    DOC_ID,
    DOC_IDS,
    LABEL,
    OUTPUT_TOKENS,
    PROMPT_TOKENS,
    PROVENANCE,
    QUERY_ID,
    RANK,
    RUN,
    SCORE,
    VALUE,
)

CELLS = Path(__file__).parent / "labels"
MOST_BYTES = 200_000
# The annotators of the bench, in the order of its tables; those that this version has, and the set allows.
LABELS = (
    "erag", "gain", "likelihood", "dig", "perplexity", "pmi", "grogu", "utility", "containment", "containment-substring",
    "provenance", "dual",
)  # fmt: skip
ORDERED, TURNED = "bm25", "reversed"
# Columns that are not labels.
LIST, LIST_TURNED, PLACE = "list", "list_reversed", "place"
# Right and wrong lists without which a share of the ceiling says nothing.
LEAST = 10
BASELINE, KNOWN = "bm25", "erag-known"
_DIGITS = 5


@dataclass(frozen=True)
class Way:
    """A way of reading: a reader, how it gets its passages, and its precision (None for the machine's own)."""

    reader: str
    augmentation: str = "in-prompt"
    dtype: str | None = None

    @classmethod
    def of(cls, text: str) -> Way:
        """As ``--readers`` names it."""
        name, *rest = text.split(":") if not text.startswith("openai:") else [text]
        augmentation = "fid" if "fid" in rest else "in-prompt"
        return cls(name, augmentation, next((one for one in rest if one != "fid"), None))

    @property
    def name(self) -> str:
        return f"{Path(self.reader).stem} {self.augmentation}"


@dataclass(frozen=True)
class Cell:
    """A set of questions that was read one way.

    Attributes:
        table: a row for each question and place: ``query_id``, ``place``, ``list``, ``list_reversed`` and a column a label.
        about: set, way, versions, digests; of each label the ``reads`` and ``tokens`` a question.
    """

    table: pl.DataFrame
    about: dict[str, Any]

    @property
    def labels(self) -> list[str]:
        """Names of its labels, in the order of the bench."""
        there = [*LABELS, "judge", BASELINE]
        derived = [KNOWN] if {"erag", "gain"} <= set(self.table.columns) else []
        return [name for name in there if name in self.table.columns] + derived

    def values(self, label: str, turned: bool = False) -> tuple[list[str], Floats, Floats]:
        """Ids of the questions that have the label, (n, k) labels as the list has them, (n,) scores of the lists."""
        column = _known_apart() if label == KNOWN else pl.col(label)
        score = LIST_TURNED if turned else LIST
        rows = self.table.select(QUERY_ID, PLACE, score, column.alias(LABEL)).drop_nulls()
        order = pl.col(LABEL).sort_by(PLACE, descending=turned)
        lists = rows.group_by(QUERY_ID).agg(order, pl.col(score).first()).sort(QUERY_ID)
        k = max(map(len, lists[LABEL]), default=0)
        filled = [[*labels, *[0.0] * (k - len(labels))] for labels in lists[LABEL]]
        return (
            lists[QUERY_ID].to_list(),
            np.array(filled, dtype=np.float64),
            lists[score].to_numpy(),
        )

    def write(self, path: Path) -> None:
        """Write it.

        Raises:
            SystemExit: it is larger than a cell may be.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        self.table.write_parquet(
            path, compression="zstd", compression_level=19, statistics=False,
            metadata={"about": json.dumps(self.about, sort_keys=True)},
        )  # fmt: skip
        if (size := path.stat().st_size) > MOST_BYTES:
            sys.exit(
                f"{path} has {size:,} bytes, and a cell may have {MOST_BYTES:,}: ask fewer questions"
            )


def read_cell(path: Path) -> Cell:
    """A cell that was written."""
    return Cell(pl.read_parquet(path), json.loads(pl.read_parquet_metadata(path)["about"]))


def _known_apart() -> pl.Expr:
    """eRAG's label, 0 where the reader is right without the passage: its label less ``gain`` is the score without."""
    return pl.when(pl.col("erag") - pl.col("gain") >= 0.5).then(0.0).otherwise("erag")


def inputs_of(data: Path | None, questions: int, k: int, folder: Path) -> EvaluationInputs:
    """A set's first questions with what BM25 finds for them, and the same lists in the other order.

    Args:
        data: the folder of the set; None for the questions of the bundled articles.
        folder: for the index and the runs.
    """
    if data is None:
        data = _articles(questions, folder / "articles")
    queries, corpus = (
        next(iter(sorted(data.glob(f"{name}.*"))), None) for name in ("queries", "corpus")
    )
    if queries is None or corpus is None:
        sys.exit(f"{data} lacks queries.* or corpus.*")
    bm25.build_index(read_corpus(corpus), folder / "index")
    run = bm25.search(folder / "index", read_queries(queries).head(questions), k=k)
    last = pl.col(RANK).max().over(QUERY_ID)
    turned = run.with_columns(last + 1 - pl.col(RANK), -pl.col(SCORE)).sort(QUERY_ID, RANK)
    paths = []
    for name, rows in ((ORDERED, run), (TURNED, turned)):
        paths.append(folder / f"{name}.trec")
        write_run(rows.with_columns(pl.lit(name).alias(RUN)), paths[-1])
    return read_inputs(
        InputFiles(queries=queries, corpus=corpus, run=tuple(paths), limit=questions), k=k
    )


def _articles(questions: int, folder: Path) -> Path:
    from engine.sources.articles.read import read_source
    from engine.sources.bundled import wikipedia_dump
    from jobs.bundled_reader.lists import GOLD, made_queries
    from jobs.bundled_reader.make import in_parts

    text = in_parts(read_source(wikipedia_dump()))
    folder.mkdir()
    made_queries(text.corpora["test"], questions, 0).drop(GOLD).write_parquet(
        folder / "queries.parquet"
    )
    text.corpus.write_parquet(folder / "corpus.parquet")
    return folder


def labels_for(inputs: EvaluationInputs, way: Way, wanted: Sequence[str]) -> tuple[str, ...]:
    """The annotators that this version has and that fit the set."""
    gold = int(inputs.queries[PROVENANCE].list.len().sum()) > 0
    needs_gold = ("provenance", "dual")
    return tuple(name for name in wanted if name in ANNOTATORS and (gold or name not in needs_gold))


def make_cell(
    name: str, inputs: EvaluationInputs, way: Way, wanted: Sequence[str], *, store: Path, k: int,
    judge: tuple[str, int] | None = None, executor: Any = None,
) -> Cell:  # fmt: skip
    """Read a set one way, label its passages, and put both into a table.

    Args:
        name: of the set.
        wanted: names of annotators.
        store: the read store.
        judge: the model that judges the passages, and of how many questions, the first ones; None for no judge.
        executor: reads instead of the reader, as in ``evaluate``.
    """
    usual: dict[str, Any] = {"k": k, "actors": 0, "resamples": 0, "metric": "em"}
    settings = Settings.of(
        reader=way.reader, augmentation=way.augmentation, dtype=way.dtype,
        annotators=labels_for(inputs, way, wanted), **usual,
    )  # fmt: skip
    found = evaluate(inputs, settings, store=store, executor=executor)
    labels, prices = [found.labels], _prices(found, settings)
    if judge:
        first = _first(inputs, judge[1])
        asked = Settings.of(
            reader=judge[0], annotators=("judge",), judge_labels="graded", end_to_end=False, **usual
        )
        by_judge = evaluate(first, asked, store=store, executor=executor)
        labels.append(by_judge.labels)
        prices |= _prices(by_judge, asked)
    spec = found.readings["reader"].spec
    table = _table(inputs, pl.concat(labels), found.downstream)
    about = {
        "set": name, "way": way.name, "reader": spec.name, "parameters": spec.parameters,
        "augmentation": way.augmentation, "dtype": spec.dtype, "k": k, "questions": inputs.queries.height,
        "prices": prices, "fingerprint": spec.fingerprint, "inputs": _digest(inputs.queries, inputs.runs),
        "table": _digest(table), "truncated": int(found.readings["reader"].reads["truncated"].sum()),
        "versions": {one: version(one) for one in ("erag-engine", "torch", "transformers", "polars")},
    }  # fmt: skip
    return Cell(table, about)


def _first(inputs: EvaluationInputs, count: int) -> EvaluationInputs:
    queries = inputs.queries.head(count)
    runs = inputs.runs.filter(pl.col(RUN) == ORDERED).join(queries, on=QUERY_ID, how="semi")
    return replace(inputs, queries=queries, runs=runs)


def _prices(found: Evaluation, settings: Settings) -> dict[str, dict[str, float]]:
    """Of each label: LLM calls and their tokens, prompts and answers, a question; closed-book reads included."""
    prices = {}
    for annotator in settings.resolved.listed:
        ask = settings.resolved.asks.get(annotator.name)
        tokens = calls = 0.0
        if ask is not None and ask.role.name in found.readings:
            reads = found.readings[ask.role.name].reads
            least = 0 if getattr(ask, "closed", False) else 1
            single = reads.filter(pl.col(DOC_IDS).list.len().is_between(least, 1))
            calls = single.height / found.queries
            tokens = sum(map(sum, single.select(PROMPT_TOKENS, OUTPUT_TOKENS).iter_rows()))
            tokens /= found.queries
        prices[annotator.name] = {"reads": round(calls, 2), "tokens": round(tokens)}
    return prices


def _table(
    inputs: EvaluationInputs, labels: pl.DataFrame, downstream: pl.DataFrame
) -> pl.DataFrame:
    """The table of a cell."""
    listed = inputs.runs.filter(pl.col(RUN) == ORDERED)
    table = listed.select(
        QUERY_ID, DOC_ID, pl.col(RANK).alias(PLACE), pl.col(SCORE).alias(BASELINE)
    )
    for name, run in ((LIST, ORDERED), (LIST_TURNED, TURNED)):
        scores = downstream.filter(pl.col(RUN) == run).select(QUERY_ID, pl.col(VALUE).alias(name))
        table = table.join(scores, on=QUERY_ID, how="left")
    for annotator in labels[ANNOTATOR].unique(maintain_order=True):
        own = labels.filter(pl.col(ANNOTATOR) == annotator).select(
            QUERY_ID, DOC_ID, pl.col(LABEL).alias(annotator)
        )
        table = table.join(own, on=[QUERY_ID, DOC_ID], how="left")
    numbers = [pl.col(pl.Float64).round(_DIGITS).cast(pl.Float32), pl.col(PLACE).cast(pl.Int8)]
    return table.drop(DOC_ID).with_columns(*numbers).sort(QUERY_ID, PLACE)


def _digest(*frames: pl.DataFrame) -> str:
    text = "".join(frame.write_json() for frame in frames)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def dcg(labels: Floats) -> Floats:
    """(n,) the labels of each list over log2(rank + 1), summed, and divided by what a list of ones has."""
    weights = 1 / np.log2(np.arange(2, labels.shape[1] + 2))
    return np.asarray(labels @ weights / weights.sum()).round(12)


def figures_of(cell: Cell, bootstrap: Bootstrap) -> list[dict[str, Any]]:
    """A row for each label of a cell."""
    most = _ceilings(cell)
    rows = []
    for label in cell.labels:
        _, labels, y = cell.values(label)
        x = dcg(labels)
        found = correlate(x, y, bootstrap)
        best = correlate(labels.max(axis=1), y, bootstrap)
        highest = {f"max_{one}": getattr(best, one) for one in ("tau", "tau_low", "tau_high")}
        price = cell.about["prices"].get(
            "gain" if label == KNOWN else label, {"reads": 0, "tokens": 0}
        )
        few = min((y == 1).sum(), (y == 0).sum()) < LEAST
        share = math.nan if few or not most["ceiling"] else found.tau / most["ceiling"]
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
    """Lists that one list is worth beside the labels of all questions: 1 / (1 - rho^2); infinite for rho 1."""
    return 1 / (1 - rho**2) if rho**2 < 1 else math.inf if rho == rho else math.nan


def _worths(found: Correlation) -> tuple[float, float]:
    """The interval of the worth, from that of rho."""
    if math.isnan(found.rho_low):
        return math.nan, math.nan
    ends = sorted(map(worth, (found.rho_low, found.rho_high)))
    return (1.0 if found.rho_low < 0 < found.rho_high else ends[0]), ends[1]


def _ceilings(cell: Cell) -> dict[str, float]:
    """tau of the best function of eRAG's labels, fitted and learned."""
    _, labels, y = cell.values("erag")
    if not len(y) or not np.isin(y, (0, 1)).all() or len(set(y)) < 2:
        return {"ceiling": math.nan, "learned": math.nan}
    _, group = np.unique(labels, axis=0, return_inverse=True)
    group = group.reshape(-1)
    return {"ceiling": ceiling(group, y), "learned": learned(group, labels.sum(axis=1), y, seed=0)}


def orders_of(cell: Cell, bootstrap: Bootstrap) -> dict[str, Any]:
    """Both orders of the lists: scores, eRAG's tau, the place that agrees best; what is known without passages."""
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
    return row


def matrix(cells: Sequence[Cell], bootstrap: Bootstrap) -> list[dict[str, Any]]:
    """eRAG's labels by each way against the lists of each other way, over the questions that both have."""
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
    """How many of the values of a cell that was read again differ, and of how many; BM25's are no reads."""
    names = [
        name
        for name in again.table.columns
        if name in cell.table.columns and name not in (QUERY_ID, PLACE)
    ]
    both = again.table.join(cell.table, on=[QUERY_ID, PLACE], suffix="_before")
    differ = sum(
        both.select((pl.col(name) - pl.col(f"{name}_before")).abs() > 10**-_DIGITS * 2)
        .to_series()
        .sum()
        for name in names
    )
    return int(differ), both.height * len(names)


def with_interval(row: Mapping[str, Any], name: str, digits: int = 2) -> str:
    """A figure and its bounds, as tables show them."""
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
    yield "| set | read by | n | score | tau [95%] | best place | score, reversed | tau, reversed [95%] | best place | ceiling: learned, fitted |"
    yield "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |"
    for row in orders:
        turned = {f"tau{end}": row[f"tau{end}_reversed"] for end in ("", "_low", "_high")}
        yield (
            f"| {row['set']} | {row['way']} | {row['n']} | {row['score']:.3f} | {with_interval(row, 'tau')} | {_best(row['by_place'])} "
            f"| {row['score_reversed']:.3f} | {with_interval(turned, 'tau')} | {_best(row['by_place_reversed'])} "
            f"| {row['learned']:.2f}, {row['ceiling']:.2f} |"
        )
    yield "\n**Labels by one reader, lists by another** (eRAG's labels; tau [95%])\n"
    yield "| set | lists read by | labels by | tau [95%] | n |"
    yield "| --- | --- | --- | --- | --- |"
    for row in crossed:
        yield f"| {row['set']} | {row['lists']} | {row['labels']} | {with_interval(row, 'tau')} | {row['n']} |"
    yield "\n**Useful passages** (eRAG's label 0.5 or more)\n"
    yield "| set | read by | useful | without the answer | of questions known without passages |"
    yield "| --- | --- | --- | --- | --- |"
    for row in orders:
        shown = [
            "" if row[name] is None else str(row[name]) for name in ("without_answer", "known")
        ]
        yield f"| {row['set']} | {row['way']} | {row['useful']} | {' | '.join(shown)} |"


def _best(rhos: Sequence[float]) -> str:
    """The place whose label agrees best, with its rho and the next."""
    ranked = sorted(((rho, place) for place, rho in enumerate(rhos, 1) if rho == rho), reverse=True)
    if not ranked:
        return "none"
    first = f"{ranked[0][1]} ({ranked[0][0]:.2f}"
    return f"{first}; next {ranked[1][0]:.2f})" if len(ranked) > 1 else f"{first})"


def place_of(folder: Path, name: str, way: Way) -> Path:
    """The file of a cell."""
    return folder / f"{re.sub('[^a-z0-9]+', '-', f'{name} {way.name}'.lower())}.parquet"


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
    parser.add_argument("--judged", type=int, default=50, help="questions that it judges")
    parser.add_argument("--again", action="store_true", help="make cells that are there again")
    parser.add_argument(
        "--repeat", type=int, default=0, help="questions of each cell to read twice"
    )
    parser.add_argument("--store", type=Path, default=cache_directory() / "reads")
    parser.add_argument("--cells", type=Path, default=CELLS)
    parser.add_argument("--resamples", type=int, default=2000)
    options = parser.parse_args(arguments)
    checks = {}
    judge = (options.judge, options.judged) if options.judge else None
    for one in options.sets:
        name, _, data = one.partition("=")
        with tempfile.TemporaryDirectory() as folder:
            inputs = None
            for way in map(Way.of, options.readers):
                path = place_of(options.cells, name, way)
                if path.exists() and not (options.again or options.repeat):
                    continue
                inputs = inputs or inputs_of(
                    Path(data) if data else None, options.questions, options.k, Path(folder)
                )
                make = {"wanted": options.labels.split(","), "k": options.k}
                if options.again or not path.exists():
                    make_cell(
                        name, inputs, way, store=options.store, judge=judge, **make
                    ).write(path)  # fmt: skip
                    print(f"{path}: {path.stat().st_size:,} bytes", file=sys.stderr, flush=True)
                if options.repeat:
                    some = replace(inputs, queries=inputs.queries.head(options.repeat))
                    some = replace(some, runs=some.runs.join(some.queries, on=QUERY_ID, how="semi"))
                    with tempfile.TemporaryDirectory() as empty:
                        again = make_cell(name, some, way, store=Path(empty), **make)
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
