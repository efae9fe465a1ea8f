"""The metric on the development queries: the engine's own scoring of the engine's own reader."""

from __future__ import annotations

import gc
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import polars as pl

from engine.messages.errors import ReadError
from engine.reading.plan import INPUTS, output_columns, wanted_reads
from engine.reading.protocol import ReadOutput
from engine.scoring.metrics import score_outputs
from engine.sources.io.files import temporary_directory
from engine.tables import DOC_IDS, FAILURE, QUERY_ID, VALUE
from engine.training.examples import Readings
from engine.training.learner import Learner, diverged, save
from engine.training.start import Start

# The metric of a model on some queries: its sum, and over how many.
Measure = Callable[[Learner], tuple[float, int]]


def measuring(readings: Readings, start: Start, metric: str, share: slice) -> Measure:
    """A function that takes the metric of a model on a worker's share of the development queries.

    Raises:
        ReadError: by what is returned: a query could not be read.
    """
    own = wanted(readings, start)[share]

    def measure(learner: Learner) -> tuple[float, int]:
        if own.is_empty():
            return 0.0, 0
        found = values(own, read(learner, start, own[INPUTS].to_list()), readings.queries, metric)
        return float(found.sum()), len(found)

    return measure


def wanted(readings: Readings, start: Start) -> pl.DataFrame:
    """The reads of queries with their lists, as an evaluation has them; a query without a list is read without one."""
    listed = readings.queries.select(QUERY_ID).join(
        readings.lists, on=QUERY_ID, how="left", maintain_order="left"
    )
    lists = listed.with_columns(pl.col(DOC_IDS).fill_null([]))
    return wanted_reads(
        lists, readings.queries, readings.corpus, prompt=start.prompt, fingerprint=""
    )


def values(
    wanted: pl.DataFrame, outputs: Sequence[ReadOutput], queries: pl.DataFrame, metric: str
) -> pl.Series:
    """The metric's value of each output.

    Raises:
        ReadError: a query could not be read.
    """
    reads = wanted.select(QUERY_ID).hstack(output_columns(outputs))
    failed = reads.filter(pl.col(FAILURE).is_not_null())
    if not failed.is_empty():
        raise ReadError(
            f"the reader failed on a development query: {failed[FAILURE][0]}; give more `memory`, "
            "or fewer passages with `k`"
        )
    return score_outputs(reads, queries, metric)[VALUE]


def read(learner: Learner, start: Start, inputs: list[list[str]]) -> list[ReadOutput]:
    """What a model in training answers as a reader: it is saved, and read with as any other directory."""
    from engine.reading.models import fid_t5  # noqa: F401 (makes its model type known)
    from engine.reading.models.encoder_decoder import EncoderDecoderReader

    with temporary_directory(Path(tempfile.gettempdir(), "erag-model")) as directory:
        save(learner.model, Path(start.spec.path), directory)
        # Known by where it is: nobody else reads these weights.
        spec = replace(start.spec, path=str(directory), weights=directory.name)
        reader = EncoderDecoderReader(spec)
        try:
            return reader.read(inputs)
        except ArithmeticError:
            raise diverged("the output") from None
        finally:
            del reader
            gc.collect()
