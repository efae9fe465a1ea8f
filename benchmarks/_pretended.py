"""Readers that read nothing, to measure the engine's own cost: made-up questions, passages and runs."""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import polars as pl

from engine import tables
from engine.inputs.files import InputFiles
from engine.reading.local import Local
from engine.reading.protocol import ReaderSpec, ReaderStats, ReadOutput

# Words of a passage, as in the Wikipedia corpora of open-domain question answering.
_WORDS = 100
_QUESTION_WORDS = 9
_VOCABULARY = 20_000


class Pretended:
    """A reader that answers by a hash, after the time that a given speed would take.

    Args:
        tokens_per_second: of its inputs, as units are sized by them; 0 for a reader that costs nothing.
        shared: number of leading characters that all inputs share, which are read once.
        log: gets a line for each call: its begin and end, and whether torch is loaded here.
    """

    def __init__(
        self, tokens_per_second: float, *, shared: int = 0, log: Path | None = None
    ) -> None:
        self.stats = ReaderStats()
        self._speed = tokens_per_second
        self._shared = shared
        self._log = log
        if log is not None:
            log.parent.mkdir(parents=True, exist_ok=True)
            log.write_text("")

    def read(self, inputs: Sequence[Sequence[str]]) -> list[ReadOutput]:
        start, began = time.perf_counter(), time.time()
        tokens = [max(1, (sum(map(len, texts)) - self._shared) // 4) for texts in inputs]
        self.stats.prompt_tokens += sum(tokens)
        self.stats.padded_tokens += sum(tokens)
        outputs = [
            ReadOutput(_answer(texts), count, 1, False)
            for texts, count in zip(inputs, tokens, strict=True)
        ]
        if self._speed:
            time.sleep(max(0.0, sum(tokens) / self._speed - (time.perf_counter() - start)))
        if self._log is not None:
            with self._log.open("a") as stream:
                stream.write(f"{began} {time.time()} {int('torch' in sys.modules)}\n")
        return outputs


class FreeHost(Local):
    """Hosts a reader that costs nothing."""

    def load(self, spec: ReaderSpec) -> Pretended:
        return Pretended(0.0)


class SlowHost(Local):
    """Hosts a reader that sleeps like a reader with a fixed number of tokens a second.

    That is 25 passages of 100 words a second, and a first unit in 4.7 seconds. It logs the times of reads in
    a folder beside the store, a file for each actor.
    """

    TOKENS_PER_SECOND = 7000.0

    def load(self, spec: ReaderSpec) -> Pretended:
        log = Path(str(self.places[0])).parent / "log" / str(os.getpid())
        return Pretended(self.TOKENS_PER_SECOND, shared=len(spec.shared_prefix), log=log)


def _answer(texts: Sequence[str]) -> str:
    return f"w{hashlib.blake2b(''.join(texts).encode(), digest_size=2).hexdigest()}"


def make_inputs(folder: Path, *, queries: int, k: int, passages: int) -> InputFiles:
    """Write questions, passages and a run of ``k`` passages for each question; the same for the same numbers."""
    folder.mkdir(parents=True, exist_ok=True)
    draw = np.random.default_rng([queries, k, passages])
    vocabulary = np.array([f"word{number}" for number in range(_VOCABULARY)])

    def texts(count: int, words: int) -> list[str]:
        return [
            " ".join(row) for row in vocabulary[draw.integers(_VOCABULARY, size=(count, words))]
        ]

    places = InputFiles(
        queries=folder / "queries.jsonl",
        corpus=folder / "corpus.parquet",
        run=(folder / "run.parquet",),
    )
    with Path(places.queries).open("w") as stream:
        for number, text in enumerate(texts(queries, _QUESTION_WORDS)):
            answer = f"w{number % 65536:04x}"
            stream.write(
                json.dumps({"id": f"q{number}", "question": text, "answers": [answer]}) + "\n"
            )
    parts = []
    for start in range(0, passages, 20_000):
        numbers = range(start, min(start + 20_000, passages))
        rows = zip(
            [f"d{number}" for number in numbers],
            [f"Title {number % 997}" for number in numbers],
            texts(len(numbers), _WORDS),
            [f"A{number // 5}" for number in numbers],
            strict=True,
        )
        parts.append(pl.DataFrame(list(rows), schema=tables.CORPUS, orient="row"))
    pl.concat(parts).write_parquet(folder / "corpus.parquet", row_group_size=20_000)
    _write_run(Path(places.run[0]), draw, queries=queries, k=k, passages=passages)
    return places


def _write_run(
    path: Path, draw: np.random.Generator, *, queries: int, k: int, passages: int
) -> None:
    """A run in row groups, so that memory holds a single group."""
    import pyarrow.parquet as parquet

    writer: parquet.ParquetWriter | None = None
    ranks = np.arange(1, k + 1)
    for start in range(0, queries, 2_000):
        count = min(2_000, queries - start)
        firsts = draw.integers(passages, size=count)
        # No passage twice in a list: steps without a common divisor with the number of passages.
        docs = (firsts[:, None] + ranks[None, :] * 7919) % passages
        frame = pl.DataFrame(
            {
                "query_id": np.repeat([f"q{n}" for n in range(start, start + count)], k),
                "doc_id": [f"d{number}" for number in docs.reshape(-1)],
                "rank": np.tile(ranks, count),
                "score": np.tile(1.0 / ranks, count),
                "run": ["made"] * (count * k),
            },
            schema=tables.RUNS,
        )
        table = frame.to_arrow()
        writer = writer or parquet.ParquetWriter(path, table.schema)
        writer.write_table(table)
    if writer is not None:
        writer.close()
