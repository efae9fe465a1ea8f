"""Cells of the label bench: a set of questions read one way, as a stored table that can be extended."""

from __future__ import annotations

import hashlib
import json
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, cast, get_args

import numpy as np
import polars as pl

from engine.evaluation.conclude import Evaluation
from engine.evaluation.evaluate import evaluate
from engine.evaluation.jobs import specify_jobs
from engine.evaluation.settings import Settings
from engine.inputs.files import EvaluationInputs, InputFiles
from engine.inputs.read import read_inputs
from engine.labels.annotator import ask_reader
from engine.labels.registry import ANNOTATORS
from engine.machine.device import Dtype
from engine.machine.functions import is_named
from engine.machine.remote.api_settings import is_api
from engine.reading import store as read_store
from engine.reading.protocol import Augmentation
from engine.retrieval import bm25
from engine.sources.io.folders import folder_at
from engine.sources.passages.read import read_corpus
from engine.sources.queries.read import read_queries
from engine.sources.runs.read import write_run
from engine.statistics.arrays import Floats
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
    READ_KEY,
    RUN,
    SCORE,
    VALUE,
)
from jobs._evaluation_options import reader_functions, reader_name

CELLS = Path(__file__).parent / "labels"
MOST_BYTES = 200_000
# Annotators of the bench, in the order of its tables; cells of earlier versions have labels of grogu, since removed.
LABELS = (
    "erag", "gain", "likelihood", "dig", "perplexity", "pmi", "grogu", "utility", "containment", "containment-substring",
    "provenance", "dual",
)  # fmt: skip
# Labels read from answers, which depend on the way of reading; the others do not.
ANSWERED = {"erag", "gain", "likelihood", "dig", "perplexity", "utility"}
ORDERED, TURNED = "bm25", "reversed"
# Columns that are not labels.
LIST, LIST_TURNED, PLACE = "list", "list_reversed", "place"
BASELINE, KNOWN = "bm25", "erag-known"
# Labels that a function cannot give: it writes text, without probabilities.
NOT_BY_FUNCTIONS = {"likelihood", "dig", "perplexity", "pmi", "utility"}
# Used only if named.
JUDGE = "judge"
DIGITS = 5


@dataclass(frozen=True)
class Way:
    """A way of reading: a reader, how it gets its passages, and its precision (None for the machine's own)."""

    reader: str
    augmentation: Augmentation = "in-prompt"
    dtype: str | None = None

    @classmethod
    def of(cls, text: str) -> Way:
        """A way in the syntax of ``--readers``: suffixes say how it reads, and names of servers and functions have a colon."""
        name, augmentation, dtype = text, "in-prompt", None
        while not is_api(name):
            before, _, last = name.rpartition(":")
            if not before or before.endswith(".py") or last not in ("fid", *get_args(Dtype)):
                break
            name = before
            augmentation, dtype = ("fid", dtype) if last == "fid" else (augmentation, last)
        return cls(name, cast(Augmentation, augmentation), dtype)

    @property
    def name(self) -> str:
        named = reader_name(self.reader)
        return f"{named if is_named(self.reader) else Path(named).stem} {self.augmentation}"

    @property
    def lacks(self) -> set[str]:
        """The labels that no reader of this kind can give."""
        return NOT_BY_FUNCTIONS if is_named(self.reader) else set()


@dataclass(frozen=True)
class Cell:
    """A set of questions read one way.

    Attributes:
        table: a row for each question and place: ``query_id``, ``place``, ``list``, ``list_reversed`` and a column a label.
        about: set, way, versions, digests; by label the ``reads`` and ``tokens`` a question.
    """

    table: pl.DataFrame
    about: dict[str, Any]

    @property
    def labels(self) -> list[str]:
        """Names of its labels, in the order of the bench."""
        there = [*LABELS, JUDGE, BASELINE]
        derived = [KNOWN] if {"erag", "gain"} <= set(self.table.columns) else []
        return [name for name in there if name in self.table.columns] + derived

    def values(self, label: str, turned: bool = False) -> tuple[list[str], Floats, Floats]:
        """Ids of the questions with the label, (n, k) labels in list order, (n,) scores of the lists."""
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
        """Write the cell.

        Raises:
            SystemExit: it is larger than the limit of a cell.
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
    """Read a stored cell."""
    return Cell(pl.read_parquet(path), json.loads(pl.read_parquet_metadata(path)["about"]))


def _known_apart() -> pl.Expr:
    """eRAG's label, but 0 if the reader is right without the passage, by its score without: the label less ``gain``."""
    return pl.when(pl.col("erag") - pl.col("gain") >= 0.5).then(0.0).otherwise("erag")


def inputs_of(data: Path | None, questions: int, k: int, folder: Path) -> EvaluationInputs:
    """A set's first questions with the passages that BM25 finds, and the same lists in the other order.

    Args:
        data: the folder of the set, or the file of its questions over the bundled articles; None for made questions.
        folder: for the index and the runs.
    """
    files: Sequence[Path | None]
    if data is None or data.is_file():
        files = _over_articles(data, questions, folder)
    else:
        names = ("queries", "corpus")
        files = [next(iter(sorted(data.glob(f"{name}.*"))), None) for name in names]
    queries, corpus = files
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


def _over_articles(queries: Path | None, questions: int, folder: Path) -> tuple[Path, Path]:
    """The files of questions, made ones by default, and of the passages of the bundled articles."""
    from benchmarks.bundled_reader.text import GOLD, in_parts, made_queries
    from engine.sources.articles.read import read_source
    from engine.sources.bundled import wikipedia_dump

    text, corpus = in_parts(read_source(wikipedia_dump())), folder / "corpus.parquet"
    if queries is None:
        queries = folder / "queries.parquet"
        made_queries(text.corpora["test"], questions, 0).drop(GOLD).write_parquet(queries)
    pl.concat(text.corpora.values()).write_parquet(corpus)
    return queries, corpus


def labels_for(inputs: EvaluationInputs, way: Way, wanted: Sequence[str]) -> tuple[str, ...]:
    """The wanted annotators that exist in this version, fit the set, and suit the reader."""
    gold = int(inputs.queries[PROVENANCE].list.len().sum()) > 0
    needs_gold = ("provenance", "dual")
    return tuple(
        name
        for name in wanted
        if name in ANNOTATORS and name not in way.lacks and (gold or name not in needs_gold)
    )


def make_cell(
    name: str, inputs: EvaluationInputs, way: Way, wanted: Sequence[str], *, store: Path, k: int,
    judge: str | None = None, executor: Any = None,
) -> Cell:  # fmt: skip
    """Read a set one way, label its passages, and put both into a table.

    Args:
        name: of the set.
        inputs: with lists in one order alone, lists are not read.
        wanted: names of annotators.
        store: the read store.
        judge: the model that judges the passages, if ``judge`` is among the labels; None for the reader itself.
        executor: reads in place of the reader, as in ``evaluate``.
    """
    names, lists = labels_for(inputs, way, wanted), inputs.runs[RUN].n_unique() > 1
    asked_of = (way.reader, judge if JUDGE in names else None)
    # A cell means the same reader on every machine; servers and functions take no engine.
    weights = any(one and not (is_api(one) or is_named(one)) for one in asked_of)
    settings = Settings.of(
        reader=reader_name(way.reader), functions=reader_functions([way.reader, judge]), augmentation=way.augmentation if lists or set(names) & ANSWERED else "in-prompt",
        dtype=way.dtype, engine="transformers" if weights else "auto", annotators=names, end_to_end=lists,
        k=k, actors=0, resamples=0, metric="em", **({"judge": judge and reader_name(judge), "judge_labels": "graded"} if JUDGE in names else {}),
    )  # fmt: skip
    found = evaluate(inputs, settings, store=store, executor=executor)
    asked = replace(ask_reader(settings.reader), augmentation=way.augmentation)
    (job,) = specify_jobs([asked], settings, executor)
    spec = job.spec
    cut = _reads_of(found, "reader", store)["truncated"].sum()
    table = _table(inputs, found.labels, found.downstream)
    about = {
        "set": name, "way": way.name, "reader": spec.name, "parameters": spec.parameters,
        "augmentation": way.augmentation, "dtype": spec.dtype, "k": k, "questions": inputs.queries.height,
        "prices": _prices(found, settings, store), "fingerprint": spec.fingerprint, "inputs": digest(inputs.queries, inputs.runs),
        "table": digest(table), "truncated": int(cut),
        "versions": {one: version(one) for one in ("erag-engine", "torch", "transformers", "polars")},
    }  # fmt: skip
    return Cell(table, about)


def part_of(
    inputs: EvaluationInputs, queries: pl.DataFrame, run: str | None = None
) -> EvaluationInputs:
    """Inputs limited to the given queries, with both runs or one."""
    runs = inputs.runs.join(queries, on=QUERY_ID, how="semi", maintain_order="left")
    return replace(inputs, queries=queries, runs=runs.filter(pl.col(RUN) == run) if run else runs)


def lacking(cell: Cell, inputs: EvaluationInputs, wanted: Sequence[str]) -> tuple[pl.DataFrame, list[str], bool]:  # fmt: skip
    """The queries without some labels or lists in a cell, the missing labels, and whether lists are missing."""
    there = inputs.queries.select(QUERY_ID).join(cell.table, on=QUERY_ID, how="left")
    there = there.with_columns(
        pl.lit(None).alias(name) for name in wanted if name not in there.columns
    )
    null = there.group_by(QUERY_ID).agg(pl.col(*wanted, LIST).is_null().any())
    some = null.filter(pl.any_horizontal(*wanted, LIST))
    queries = inputs.queries.join(some, on=QUERY_ID, how="semi", maintain_order="left")
    return queries, [name for name in wanted if some[name].any()], bool(some[LIST].any())


def joined(before: Cell, after: Cell, inputs: EvaluationInputs) -> Cell:
    """A cell with its newer reads: values of ``after`` if present, else values of ``before``.

    Args:
        inputs: inputs of the set's first questions, at least as many as either cell has.

    Raises:
        SystemExit: the cell ``before`` has other inputs, or another reader.
    """
    count = before.about["questions"]
    name = f"{before.about['set']}, {before.about['way']}"
    head = part_of(inputs, inputs.queries.head(count))
    if digest(head.queries, head.runs) != before.about["inputs"]:
        sys.exit(
            f"{name}: the cell is of other questions, passages or lists; write to another folder with --cells"
        )
    if before.about["fingerprint"] != after.about["fingerprint"]:
        sys.exit(
            f"{name}: the cell is of another reader, precision or prompt; write to another folder with --cells"
        )
    keys = [QUERY_ID, PLACE]
    both = before.table.join(after.table, on=keys, how="full", coalesce=True, suffix=" after")
    shared = [one for one in after.table.columns if one in before.table.columns and one not in keys]
    newer = (pl.coalesce(f"{one} after", one).alias(one) for one in shared)
    table = both.with_columns(newer).drop(f"{one} after" for one in shared)
    order = [
        one for one in (*keys, BASELINE, LIST, LIST_TURNED, *LABELS, JUDGE) if one in table.columns
    ]
    table = table.select(order).sort(keys)
    prices = before.about["prices"] | after.about["prices"]
    for label in before.about["prices"].keys() & after.about["prices"].keys():
        had, has = (
            one.table.drop_nulls(label).select(QUERY_ID).unique() for one in (before, after)
        )
        kept = had.join(has, on=QUERY_ID, how="anti").height
        prices[label] = {
            unit: round((kept * before.about["prices"][label][unit] + has.height * value) / (kept + has.height), 2)
            for unit, value in after.about["prices"][label].items()
        }  # fmt: skip
    asked = table[QUERY_ID].n_unique()
    whole = part_of(inputs, inputs.queries.head(asked))
    return Cell(table, before.about | after.about | {
        "questions": asked, "prices": prices, "inputs": digest(whole.queries, whole.runs), "table": digest(table),
        "truncated": before.about["truncated"] + after.about["truncated"],
    })  # fmt: skip


def _reads_of(found: Evaluation, role: str, store: Path) -> pl.DataFrame:
    """The reads of a role: the ones in the store, by its reader; all reads of a reader that is not kept."""
    reads = found.reads.unique([QUERY_ID, DOC_IDS, READ_KEY], maintain_order=True)
    if role not in found.readings or not (spec := found.readings[role].spec).is_kept:
        return reads if role in found.readings else reads.clear()
    kept = read_store.find(read_store.listing(folder_at(store), spec.fingerprint), reads[READ_KEY])
    return reads.join(kept.reads, on=READ_KEY, how="semi", maintain_order="left")


def _prices(found: Evaluation, settings: Settings, store: Path) -> dict[str, dict[str, float]]:
    """By label, LLM calls and their tokens, prompts and answers, a question; closed-book reads included."""
    prices = {}
    for annotator in settings.resolved.listed:
        ask = settings.resolved.asks.get(annotator.name)
        tokens = calls = 0.0
        if ask is not None and ask.role.name in found.readings:
            reads = _reads_of(found, ask.role.name, store)
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
    listed = inputs.runs.filter(pl.col(RUN) == ORDERED)
    table = listed.select(
        QUERY_ID, DOC_ID, pl.col(RANK).alias(PLACE), pl.col(SCORE).alias(BASELINE)
    )
    for name, run in ((LIST, ORDERED), (LIST_TURNED, TURNED)) if downstream.height else ():
        scores = downstream.filter(pl.col(RUN) == run).select(QUERY_ID, pl.col(VALUE).alias(name))
        table = table.join(scores, on=QUERY_ID, how="left")
    for annotator in labels[ANNOTATOR].unique(maintain_order=True):
        own = labels.filter(pl.col(ANNOTATOR) == annotator).select(
            QUERY_ID, DOC_ID, pl.col(LABEL).alias(annotator)
        )
        table = table.join(own, on=[QUERY_ID, DOC_ID], how="left")
    numbers = [pl.col(pl.Float64).round(DIGITS).cast(pl.Float32), pl.col(PLACE).cast(pl.Int8)]
    return table.drop(DOC_ID).with_columns(*numbers).sort(QUERY_ID, PLACE)


def digest(*frames: pl.DataFrame) -> str:
    text = "".join(frame.write_json() for frame in frames)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def place_of(folder: Path, name: str, way: Way) -> Path:
    """The file of a cell."""
    return folder / f"{re.sub('[^a-z0-9]+', '-', f'{name} {way.name}'.lower())}.parquet"
