"""What the engine saves, apart and together: sharing within a reader, and the read store.

An evaluation reads the lists of some queries, each passage alone and each list whole: of a first
retriever; of a second one that lists half of the first's passages; of the first with one passage of every
list swapped; and of the first once more, for a second metric. Each is done in four ways: with and without
sharing (Fusion-in-Decoder: one encoder pass for both kinds of read; decoder-only readers: what prompts
begin with is computed once), and with and without a read store that has the first retriever's reads.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import polars as pl
from transformers import AutoTokenizer

from benchmarks._harness import in_turn
from benchmarks.efficiency import predict
from benchmarks.efficiency.changes import EARLY_DECISION, FIRST, listed
from benchmarks.efficiency.grid import Cell, Conditions
from benchmarks.efficiency.models import ARTICLES, Subject, load, passages
from engine.errors import ReadError
from engine.machine.pool import PoolSettings
from engine.reading.models import sharing
from engine.reading.plan import wanted_reads
from engine.reading.protocol import ReaderSpec
from engine.reading.reads import get_reads
from engine.sources.bundled import questions
from engine.sources.queries.read import read_queries
from engine.tables import DOC_ID, DOC_IDS, QUERY_ID, TEXT, TITLE

# Longer than any text, so that nothing is taken to be shared.
_NEVER = 2**31


def measure(cell: Cell, conditions: Conditions, subject: Subject, folder: Path) -> dict[str, Any]:
    """Seconds of the reader, reads done and tokens computed of each way to do an evaluation."""
    if cell.change == EARLY_DECISION:
        from benchmarks.efficiency.decide import with_and_without

        enough = predict.enough(cell)
        return {"sides": with_and_without(conditions, subject.spec, folder, enough=enough)}
    queries, corpus = _data(cell, conditions, subject, folder)
    kept = load(subject.spec)  # held, so that the model is loaded once
    sides: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as name:
        calls: dict[str, Callable[[], None]] = {}
        for shares in (False, True):
            spec = subject.spec if shares else replace(subject.spec, shared_prefix="")
            first, now = (
                _wanted(listed(change, cell.k), queries, corpus, subject, spec)
                for change in (FIRST, cell.change)
            )
            stored = Path(name, f"store {shares}")
            if cell.change != FIRST:
                _get(first, spec, stored, shares=shares)
            for keeps in (False, True) if cell.change != FIRST else (False,):
                side = " and ".join(["sharing"] * shares + ["store"] * keeps) or "neither"
                sides[side] = {"seconds": [], "reads": 0, "tokens": 0}
                calls[side] = partial(
                    _once, sides[side], now, spec, stored if keeps else None, shares=shares
                )
        took = sum(timing.seconds[0] for timing in in_turn(calls, 1).values())
        further = predict.further_rounds(took, conditions.rounds, enough=predict.enough(cell))
        if further:
            for one in sides.values():
                one["seconds"].clear()  # of the round that warmed up
            in_turn(calls, further)
    del kept
    return {"queries": queries.height, "sides": sides}


def _data(
    cell: Cell, conditions: Conditions, subject: Subject, folder: Path
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Queries, and as many passages of their own for each as the changes list."""
    tokenizer = AutoTokenizer.from_pretrained(subject.spec.path, trust_remote_code=False)
    most = replace(cell, kind="time")
    queries = read_queries(questions("short-answer")).head(predict.queries_of(most, conditions))
    each = cell.k + cell.k // 2 + 1
    text = (folder / ARTICLES).read_text(encoding="utf-8")
    texts = passages(text, cell.length, queries.height * each, tokenizer)
    ids = [f"{i // each} {i % each}" for i in range(len(texts))]
    return queries, pl.DataFrame({DOC_ID: ids, TITLE: [""] * len(ids), TEXT: texts})


def _wanted(
    numbers: Sequence[int],
    queries: pl.DataFrame,
    corpus: pl.DataFrame,
    subject: Subject,
    spec: ReaderSpec,
) -> list[pl.DataFrame]:
    """The reads of single passages, and those of whole lists."""
    lists = [(q, [f"{i} {n}" for n in numbers]) for i, q in enumerate(queries[QUERY_ID])]
    single = [(q, [doc_id]) for q, doc_ids in lists for doc_id in doc_ids]
    return [
        wanted_reads(
            pl.DataFrame(rows, schema=[QUERY_ID, DOC_IDS], orient="row"),
            queries,
            corpus,
            prompt=subject.prompt,
            fingerprint=spec.fingerprint,
        )
        for rows in (single, lists)
    ]


def _once(
    side: dict[str, Any],
    wanted: list[pl.DataFrame],
    spec: ReaderSpec,
    stored: Path | None,
    *,
    shares: bool,
) -> None:
    """Do an evaluation's reads from a copy of the store, or from an empty one."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name, "store")
        if stored is not None:
            shutil.copytree(stored, directory)
        seconds, side["reads"], side["tokens"] = _get(wanted, spec, directory, shares=shares)
        side["seconds"].append(seconds)


def _get(
    wanted: list[pl.DataFrame], spec: ReaderSpec, store: Path, *, shares: bool
) -> tuple[float, int, int]:
    """The reader's seconds, the reads done and the tokens computed: in one call where reads share."""
    seconds, reads, tokens = 0.0, 0, 0
    with contextlib.nullcontext() if shares else _without_beginnings():
        for part in [pl.concat(wanted)] if shares else wanted:
            _, costs = get_reads(part, spec, store, pool=PoolSettings(actors=0))
            if costs.failed:
                raise ReadError(f"{costs.failed} reads of the benchmark failed")
            seconds += costs.reader_seconds
            reads += costs.done
            tokens += costs.computed_tokens
    return seconds, reads, tokens


@contextlib.contextmanager
def _without_beginnings() -> Iterator[None]:
    """Every text computes all its tokens, whatever others begin with."""
    with mock.patch.object(sharing, "segments", partial(sharing.segments, least=_NEVER)):
        yield
