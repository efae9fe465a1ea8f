"""A few queries of an evaluation that is too large for one process, so that a plan counts no more than these.

They are whole ranges of buckets, as shards are, in places far from each other: queries of equal text are
together, and a store that has the reads of the first shards alone counts as what it is.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import polars as pl

from engine import tables
from engine.inputs.files import EvaluationInputs, InputFiles
from engine.inputs.lists import Lists
from engine.inputs.partition import PAIRS_PER_SHARD
from engine.inputs.read import listed_queries
from engine.inputs.scatter import BUCKET, ScatteredParts, count_parts, pairs_by_bucket
from engine.inputs.shards import InMemoryInputs
from engine.messages.errors import InputError
from engine.planning.counts import Sample
from engine.sources.io.files import reported_writing, temporary_directory, write_parquet
from engine.sources.io.locations import Location
from engine.sources.queries.buckets import BUCKETS, Range, buckets_of, halved
from engine.sources.runs.read import write_run
from engine.tables import QUERY, QUERY_ID, RUN

# Places that a sample is taken from; and which part of a shard it is at most, since its prompts are held
# beside the keys of all queries.
_PLACES, _PART = 16, 2


def take_sample(files: InputFiles, *, k: int, pairs: int = PAIRS_PER_SHARD) -> Sample:
    """A sample of at most about half of the pairs that a shard has.

    Runs are read, checked and cut part after part, as for shards, in a temporary folder; of the corpus the
    passages that the sample lists are kept.

    Raises:
        InputError: as ``inputs.read_inputs``; of documents that the corpus lacks, for those of the sample.
    """
    place = Path(tempfile.gettempdir()) / "erag-plan"
    with reported_writing(place), temporary_directory(place) as folder:

        def parts_of(queries: pl.DataFrame) -> ScatteredParts:
            return ScatteredParts(queries, folder, count_parts(files.run))

        _, queries, lists, _ = listed_queries(files, k=k, parts_of=parts_of)
        counted, buckets = pairs_by_bucket(lists), buckets_of(queries[QUERY])
        evaluated = np.bincount(buckets, minlength=BUCKETS)
        spans = _spread(halved(counted, evaluated, max(1, pairs // (_PART * _PLACES))))
        inside = np.concatenate([np.arange(low, high) for low, high in spans])
        sampled = queries.filter(pl.Series(np.isin(buckets, inside)))
        rows = pl.concat(part.join(sampled, on=QUERY_ID, how="semi") for part in lists)
        inputs = _read(files, sampled, rows, lists, folder, k)
    found = pl.DataFrame({QUERY_ID: queries[QUERY_ID], BUCKET: buckets})
    return Sample(
        inputs=inputs,
        spans=tuple(
            (
                span,
                frozenset(found.filter(pl.col(BUCKET).is_between(*span, closed="left"))[QUERY_ID]),
            )
            for span in spans
        ),
        queries=queries.height,
        pairs=int(counted.sum()) / max(1, int(counted[inside].sum())),
        lists=queries.height / max(1, sampled.height),
    )


def _spread(ranges: Sequence[Range]) -> list[Range]:
    count = min(_PLACES, len(ranges))
    return [ranges[int((place + 0.5) * len(ranges) / count)] for place in range(count)]


def _read(
    files: InputFiles,
    queries: pl.DataFrame,
    rows: pl.DataFrame,
    lists: Lists,
    folder: Path,
    k: int,
) -> EvaluationInputs:
    """The inputs of the sample, as the engine reads them from files; faults are those of the user's files."""
    write_parquet(queries, folder / "queries.parquet")
    given: dict[Path, Location] = {}
    for number, (name, path) in enumerate(zip(lists.names, lists.paths, strict=True)):
        run = rows.filter(pl.col(RUN) == name)
        if not run.is_empty():
            given[folder / f"{number}.parquet"] = path
            write_run(run.select(list(tables.RUNS)), folder / f"{number}.parquet")
    sampled = InputFiles(
        queries=folder / "queries.parquet",
        corpus=files.corpus,
        run=tuple(given),
        skip_bad=files.skip_bad,
        need_answers=files.need_answers,
    )
    try:
        return InMemoryInputs.of_files(sampled, k=k).inputs
    except InputError as error:
        if error.path is None or Path(error.path) not in given:
            raise
        path = given[Path(error.path)]
        raise InputError(error.problem, error.remedy, path=path) from None
