"""The files of a training, read and checked like an evaluation's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from engine.evaluation.evaluate import refuse_answers
from engine.inputs.files import InputFiles
from engine.inputs.shards import InMemoryInputs
from engine.messages.checked import CheckedSettings, Natural, Positive
from engine.messages.errors import InputError
from engine.messages.notes import Note, count_note
from engine.scoring.metrics import get_metric
from engine.sources.io.locations import Location
from engine.sources.queries.read import line_of
from engine.tables import ANSWERS, DOC_ID, DOC_IDS, QUERY, QUERY_ID, RANK
from engine.training.examples import Readings, trainable


@dataclass(frozen=True, kw_only=True)
class TrainingFiles(CheckedSettings):
    """The files of a training.

    Attributes:
        queries: Questions with answers to learn, in any layout that erag evaluate reads. Questions without answers are
            counted and left out.
        corpus: The passages that the runs list; not needed where runs carry their texts.
        run: The ranked list of every question, for the reader's prompt.
        dev_queries: Questions with answers, for model selection and early stopping. None should be among `queries`.
        dev_run: Their ranked lists.
        limit: Train on this many queries only, the first ones.
        skip_bad: Leave out bad records of the corpus, up to this many, and count them.

    Raises:
        InputError: a number out of range, or `dev_queries` without `dev_run`, or the other way round.
    """

    queries: Location
    corpus: Location | None = None
    run: Location
    dev_queries: Location | None = None
    dev_run: Location | None = None
    limit: Positive | None = None
    skip_bad: Natural = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.dev_queries is None) != (self.dev_run is None):
            present, absent = ("dev_queries", "dev_run")[:: 1 if self.dev_run is None else -1]
            problem = f"`{present}` without `{absent}`"
            raise InputError(problem, "give both, or neither", "settings.pair")


@dataclass(frozen=True, eq=False)
class TrainingInputs:
    """The data of a training: queries that are ``examples.trainable``, and development queries with answers."""

    train: Readings
    dev: Readings | None
    notes: tuple[Note, ...]


def read_training(files: TrainingFiles, *, k: int, metric: str) -> TrainingInputs:
    """Read the inputs of a training; from the corpus only the listed passages. An InputError if a file cannot be used,
    no query is left to train on, or a development query has no answer that the metric can score.
    """
    path = files.queries
    readings, notes_of_files = _read(files, path, files.run, k=k, limit=files.limit)
    train, without_answers, without_results = trainable(readings)
    if train.queries.is_empty():
        problem = "no query has both an answer and a listed passage"
        raise InputError(problem, "add answers, or list passages", "training.queries", path=path)
    words = "[query has|queries have] no {} and [was|were] left out"
    notes = [
        *notes_of_files,
        count_note("queries_without_answers", without_answers, words.format("answer")),
        count_note("queries_without_results", without_results, words.format("listed passage")),
    ]
    dev = None
    if files.dev_queries is not None and files.dev_run is not None:
        dev, notes_of_dev = _read(files, files.dev_queries, files.dev_run, k=k)
        path = files.dev_queries
        for query_id in dev.queries.filter(pl.col(ANSWERS).list.len() == 0)[QUERY_ID]:
            problem, line = f"query {query_id!r} has no answers", line_of(path, query_id)
            remedy = "add some, or leave the query out"
            raise InputError(problem, remedy, "queries.no-answers", path=path, line=line)
        refuse_answers(get_metric(metric), dev.queries, path)
        learned = set(train.queries[QUERY].str.strip_chars().str.to_lowercase())
        both = dev.queries[QUERY].str.strip_chars().str.to_lowercase().is_in(learned).sum()
        unlisted = dev.queries.height - dev.lists.height
        learned_too = "development [query is|queries are] in the training set, too: the metric will be too high"
        without_any = "development [query has|queries have] no listed passage: the reader gets [it|them] without any"
        notes += [
            *notes_of_dev,
            count_note("learned_dev_queries", int(both), learned_too),
            count_note("dev_queries_without_results", unlisted, without_any),
        ]
    return TrainingInputs(train, dev, tuple(notes))


def _read(
    files: TrainingFiles, queries: Location, run: Location, *, k: int, limit: int | None = None
) -> tuple[Readings, Sequence[Note]]:
    read: dict[str, Any] = {"limit": limit, "skip_bad": files.skip_bad, "need_answers": False}
    named = InputFiles(queries=queries, corpus=files.corpus, run=(run,), **read)
    inputs = InMemoryInputs.of_files(named, k=k).inputs
    by_query = inputs.runs.sort(QUERY_ID, RANK).group_by(QUERY_ID, maintain_order=True)
    lists = by_query.agg(pl.col(DOC_ID).alias(DOC_IDS))
    return Readings(inputs.queries, lists, inputs.corpus), inputs.notes
