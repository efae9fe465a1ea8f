"""The engine's savings, single and combined: sharing within a reader, and the read store.

An evaluation reads the lists of some queries, each passage alone and each list whole: of a first
retriever; of a second one that lists half of the first's passages; of the first with one passage of every
list swapped; and of the first once more, for a second metric. Each is done in several ways
(``changes.ways``): with and without sharing (Fusion-in-Decoder: one encoder pass for both kinds of read;
decoder-only readers: common beginnings of prompts are computed once), and with and without a read store that has the
first retriever's reads. Trained readers read the demo's questions with BM25's passages.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import polars as pl
from transformers import AutoTokenizer

from benchmarks._bundled import bundled_corpus
from benchmarks._harness import in_turn
from benchmarks._reads import get_reads
from benchmarks.efficiency import predict
from benchmarks.efficiency.changes import FIRST, Way, listed, passages_of, ways
from benchmarks.efficiency.grid import SHAPES, Cell, Conditions
from benchmarks.efficiency.models import ARTICLES, Subject, as_evaluated, load, passages
from engine.machine.device import machine_has_gpu
from engine.machine.pool import PoolSettings
from engine.messages.errors import ReadError
from engine.reading.models import packed, tokenizing
from engine.reading.plan import requested_reads
from engine.reading.protocol import ReaderSpec
from engine.retrieval.bm25 import build_index, search
from engine.sources.bundled import questions
from engine.sources.queries.read import read_queries
from engine.tables import DOC_ID, DOC_IDS, QUERY_ID, TEXT, TITLE

# Longer than any text, so that nothing counts as shared.
_NEVER = 2**31


class Data(NamedTuple):
    """Queries, passages, and by query the ids of the passages that the changes list, by number."""

    queries: pl.DataFrame
    corpus: pl.DataFrame
    ids: dict[str, list[str]]


class Spent(NamedTuple):
    """Cost of reads: the reader's seconds (on a CPU of all its threads, which other work on the machine changes
    less than wall-clock seconds), reads done, and tokens computed from prompts and written.
    """

    seconds: float
    reads: int
    tokens: int
    written: int


def measure(cell: Cell, conditions: Conditions, subject: Subject, folder: Path) -> dict[str, Any]:
    """Costs of ways to do an evaluation, as fields of ``Spent``; seconds are lists with an item for each round."""
    with contextlib.nullcontext() if machine_has_gpu() else _by_processor():
        return _measured(cell, conditions, subject, folder)


def _measured(cell: Cell, conditions: Conditions, subject: Subject, folder: Path) -> dict[str, Any]:
    reads = SHAPES[cell.model].reads
    if reads:
        subject = as_evaluated(cell.model, cell.augmentation, conditions)
    queries = predict.queries_of(cell, conditions)
    data = _listed_by_bm25(cell, queries) if reads else _made_up(cell, queries, subject, folder)
    kept = load(subject.spec)  # held, so that the model is loaded once
    sides: dict[str, dict[str, Any]] = {}
    calls: dict[str, Callable[[], None]] = {}
    with tempfile.TemporaryDirectory() as name:
        for way in ways(cell.change):
            store = Path(name, str(way.shares)) if way.keeps else None
            if store is not None:
                first = _wanted(FIRST, cell, data, subject, way)
                _do([pl.concat(first)], _spec(subject, way), store)
            wanted = _wanted(cell.change, cell, data, subject, way)
            sides[way.name] = {}
            calls[way.name] = partial(_once, sides[way.name], wanted, subject, store, way)
        first_round = in_turn(calls, 1, clock=time.perf_counter)
        took = sum(timing.seconds[0] for timing in first_round.values())
        further = predict.further_rounds(took, conditions.rounds, enough=predict.enough(cell))
        if further:
            for one in sides.values():
                one.clear()  # of the warm-up round
            in_turn(calls, further)
    del kept
    return {"queries": data.queries.height, "sides": sides}


def _made_up(cell: Cell, count: int, subject: Subject, folder: Path) -> Data:
    """Queries, and as many passages of their own for each as the changes list."""
    tokenizer = AutoTokenizer.from_pretrained(subject.spec.path, trust_remote_code=False)
    queries = read_queries(questions("short-answer")).head(count)
    each = passages_of(cell.k)
    text = (folder / ARTICLES).read_text(encoding="utf-8")
    texts = passages(text, cell.length, queries.height * each, tokenizer)
    ids = [f"{i // each} {i % each}" for i in range(len(texts))]
    corpus = pl.DataFrame({DOC_ID: ids, TITLE: [""] * len(ids), TEXT: texts})
    own = {q: ids[i * each : (i + 1) * each] for i, q in enumerate(queries[QUERY_ID])}
    return Data(queries, corpus, own)


def _listed_by_bm25(cell: Cell, count: int) -> Data:
    """The first questions of the demo for which BM25 lists enough passages."""
    corpus = bundled_corpus()
    queries = read_queries(questions("short-answer"))
    each = passages_of(cell.k)
    with tempfile.TemporaryDirectory() as name:
        build_index(corpus, name)
        run = search(name, queries, k=each)
    lists = run.group_by(QUERY_ID, maintain_order=True).agg(DOC_ID).filter(
        pl.col(DOC_ID).list.len() == each
    )  # fmt: skip
    own = dict(lists.head(count).iter_rows())
    return Data(queries.filter(pl.col(QUERY_ID).is_in(list(own))), corpus, own)


def _wanted(
    change: str, cell: Cell, data: Data, subject: Subject, way: Way
) -> tuple[pl.DataFrame, pl.DataFrame]:
    numbers = listed(change, cell.k)
    lists = [(q, [own[number] for number in numbers]) for q, own in data.ids.items()]
    single = [(q, [doc_id]) for q, doc_ids in lists for doc_id in doc_ids]
    alone, whole = (
        requested_reads(
            pl.DataFrame(rows, schema=[QUERY_ID, DOC_IDS], orient="row"),
            data.queries,
            data.corpus,
            prompt=subject.prompt,
            fingerprint=_spec(subject, way).fingerprint,
        )
        for rows in (single, lists)
    )
    return alone, whole


def _spec(subject: Subject, way: Way) -> ReaderSpec:
    return subject.spec if way.shares else replace(subject.spec, shared_prefix="")


def _once(
    side: dict[str, Any],
    wanted: Sequence[pl.DataFrame],
    subject: Subject,
    stored: Path | None,
    way: Way,
) -> None:
    """Do an evaluation's reads from a copy of the store, or from an empty one."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name, "store")
        if stored is not None:
            shutil.copytree(stored, directory)
        spent = _get(wanted, subject, directory, way)
    side.setdefault("seconds", []).append(spent.seconds)
    side.update(reads=spent.reads, tokens=spent.tokens, written=spent.written)


def _get(wanted: Sequence[pl.DataFrame], subject: Subject, store: Path, way: Way) -> Spent:
    """Do reads: in one call if they share work, else lists apart from single passages."""
    if way.shares:
        return _do([pl.concat(wanted)], _spec(subject, way), store)
    with _without_beginnings():
        return _do(wanted, _spec(subject, way), store)


def _do(parts: Sequence[pl.DataFrame], spec: ReaderSpec, store: Path) -> Spent:
    """Do reads, each part in a call."""
    done = []
    for part in parts:
        _, costs = get_reads(part, spec, store, pool=PoolSettings(actors=0))
        if costs.failed:
            raise ReadError(f"{costs.failed} reads of the benchmark failed")
        done.append(costs)
    return Spent(
        sum(costs.reader_seconds for costs in done),
        sum(costs.done for costs in done),
        sum(costs.computed_tokens for costs in done),
        sum(costs.output_tokens for costs in done),
    )


@contextlib.contextmanager
def _by_processor() -> Iterator[None]:
    """Measure all times in CPU time: a cell has its process to itself."""
    with mock.patch.object(time, "perf_counter", time.process_time):
        yield


@contextlib.contextmanager
def _without_beginnings() -> Iterator[None]:
    """Compute all tokens of every text, without shared beginnings."""
    with mock.patch.object(packed, "segments", partial(tokenizing.segments, least=_NEVER)):
        yield
