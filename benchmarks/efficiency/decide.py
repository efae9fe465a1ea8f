"""What it saves that reads end when they are decided: an evaluation of the demo's questions with it and without."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks._harness import in_turn
from benchmarks.efficiency import predict
from benchmarks.efficiency.grid import Conditions
from engine.evaluation.evaluate import evaluate
from engine.evaluation.inputs import EvaluationInputs, InputFiles, read_inputs
from engine.evaluation.settings import Settings
from engine.reading.protocol import ReaderSpec
from engine.retrieval.bm25 import build_index, search
from engine.sources.articles.read import read_source
from engine.sources.bundled import questions, wikipedia_dump
from engine.sources.io.files import write_parquet
from engine.sources.passages.cut import passages
from engine.sources.queries.read import read_queries
from engine.sources.runs.read import write_run

_K, _QUERIES = 10, 8


def with_and_without(
    conditions: Conditions, spec: ReaderSpec, folder: Path, *, enough: float
) -> dict[str, dict[str, Any]]:
    """Seconds of the readers, reads done and tokens written, with ``decide`` and without.

    Args:
        spec: of the model, which ``evaluate`` loads itself.
        folder: where the model is, if it is not the bundled one.
        enough: seconds of rounds after which none begins.
    """
    reader = spec.name if spec.architecture == "causal" else str(folder / spec.name)
    sides: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as name:
        inputs = _inputs(Path(name))
        calls: dict[str, Callable[[], None]] = {}
        for value in (False, True):
            settings = Settings.of(
                k=_K,
                annotators=("erag",),
                reader=reader,
                dtype=conditions.dtype,
                actors=0,
                decide=value,
            )
            side = "with early decision" if value else "without"
            sides[side] = {"seconds": [], "reads": 0, "tokens": 0}
            calls[side] = partial(_once, sides[side], inputs, settings)
        took = sum(timing.seconds[0] for timing in in_turn(calls, 1).values())
        further = predict.further_rounds(took, conditions.rounds, enough=enough)
        if further:
            for one in sides.values():
                one["seconds"].clear()  # of the round that warmed up
            in_turn(calls, further)
    return sides


def _inputs(folder: Path) -> EvaluationInputs:
    """The first questions of the demo with BM25's passages."""
    corpus = passages(read_source(wikipedia_dump()))
    write_parquet(corpus, folder / "corpus.parquet")
    queries = read_queries(questions("short-answer")).head(_QUERIES)
    build_index(corpus, folder / "index")
    write_run(search(folder / "index", queries, k=_K), folder / "run.parquet")
    files = InputFiles(
        queries=questions("short-answer"),
        corpus=folder / "corpus.parquet",
        run=(folder / "run.parquet",),
        limit=_QUERIES,
    )
    return read_inputs(files, k=_K)


def _once(side: dict[str, Any], inputs: EvaluationInputs, settings: Settings) -> None:
    with tempfile.TemporaryDirectory() as store:
        costs = [one.costs for one in evaluate(inputs, settings, store=store).readings.values()]
    side["seconds"].append(sum(one.reader_seconds for one in costs))
    side["reads"] = sum(one.done for one in costs)
    side["tokens"] = sum(one.output_tokens for one in costs)
