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
from engine.errors import InputError
from engine.evaluation.inputs import (
    EvaluationInputs,
    InputFiles,
    read_inputs,
    read_queries_of,
)
from engine.evaluation.sharded.cut_lists import BUCKET, NUMBER, CutLists, list_runs
from engine.evaluation.sharded.partition import PAIRS_PER_SHARD, count_parts
from engine.evaluation.sharded.query_keys import query_keys
from engine.evaluation.sharded.ranges import Counts, Range, halved
from engine.planning.counts import Sample
from engine.sources.io.files import reported_writing, write_parquet
from engine.sources.io.locations import Location
from engine.sources.io.temporary import temporary_directory
from engine.sources.queries.buckets import BUCKETS
from engine.sources.runs.read import write_run
from engine.tables import DOC_ID, QUERY_ID, RUN

# Places that a sample is taken from; and which part of a shard it is at most, since its prompts are held
# beside the keys of all queries.
_PLACES, _PART = 16, 2


def take_sample(files: InputFiles, *, k: int, pairs: int = PAIRS_PER_SHARD) -> Sample:
    """A sample of at most about half of the pairs that a shard has.

    Runs are read, checked and cut part after part, as for shards, in a temporary folder; of the corpus the
    passages that the sample lists are kept.

    Args:
        files: of an evaluation without edits.
        k: passages per query at most.
        pairs: of a shard.

    Raises:
        InputError: as ``inputs.read_inputs``; of documents that the corpus lacks, for those of the sample.
        WriteError: the disk is full.
    """
    query_set = read_queries_of(files)
    keys = query_keys(query_set.table, files.limit)
    place = Path(tempfile.gettempdir()) / "erag-plan"
    with reported_writing(place), temporary_directory(place) as folder:
        (folder / "parts").mkdir()
        lists = list_runs(files, keys, folder / "parts", k=k, parts=count_parts(files.run))
        counted = _pairs_by_bucket(lists)
        evaluated = np.bincount(keys.buckets[: keys.evaluated], minlength=BUCKETS)
        spans = _spread(halved(counted, evaluated, max(1, pairs // (_PART * _PLACES))))
        inside = np.concatenate([np.arange(low, high) for low, high in spans])
        rows = _rows_of(lists, inside)
        numbers = np.flatnonzero(np.isin(keys.buckets[: keys.evaluated], inside))
        queries = keys.table[numbers.tolist()]
        inputs = _read(files, queries, lists.with_names(rows), lists.names, folder, k)
    buckets = keys.buckets[numbers]
    ids = queries[QUERY_ID].to_numpy()
    sampled = int(counted[inside].sum())
    return Sample(
        inputs=inputs,
        spans=tuple(
            ((low, high), frozenset(ids[(buckets >= low) & (buckets < high)]))
            for low, high in spans
        ),
        queries=keys.evaluated,
        pairs=int(counted.sum()) / max(1, sampled),
        lists=keys.evaluated / max(1, len(numbers)),
    )


def _pairs_by_bucket(lists: CutLists) -> Counts:
    counts = np.zeros(BUCKETS, dtype=np.int64)
    for part in lists:
        pairs = part.select(NUMBER, DOC_ID, BUCKET).unique()
        counts += np.bincount(pairs[BUCKET].to_numpy(), minlength=BUCKETS)
    return counts


def _spread(ranges: Sequence[Range]) -> list[Range]:
    """Some of the ranges, at even distances."""
    count = min(_PLACES, len(ranges))
    return [ranges[int((place + 0.5) * len(ranges) / count)] for place in range(count)]


def _rows_of(lists: CutLists, buckets: Counts) -> pl.DataFrame:
    wanted = pl.Series(buckets).implode()
    return pl.concat([part.filter(pl.col(BUCKET).is_in(wanted)) for part in lists])


def _read(
    files: InputFiles,
    queries: pl.DataFrame,
    rows: pl.DataFrame,
    names: Sequence[str],
    folder: Path,
    k: int,
) -> EvaluationInputs:
    """The inputs of the sample, as the engine reads them from files; faults are those of the user's files."""
    write_parquet(queries, folder / "queries.parquet")
    given: dict[Path, Location] = {}
    for number, (name, path) in enumerate(zip(names, files.run, strict=True)):
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
        return read_inputs(sampled, k=k)
    except InputError as error:
        if error.path is None or Path(error.path) not in given:
            raise
        path = given[Path(error.path)]
        raise InputError(error.problem, error.remedy, path=path) from None
