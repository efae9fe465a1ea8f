"""The interface of every annotator, the engine's and a user's: what it needs and has read, how it labels.

An annotator is data (``Annotator``) and one function, ``label``, from ``Material`` to ``Labelled``. An evaluation looks
everything up here and knows no annotator by name; ``engine.labels.registry`` lists the engine's own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, TypeVar

import polars as pl

from engine import tables
from engine.messages.errors import InputError
from engine.messages.notes import Note
from engine.ranking.scores import RankingSettings, Relevant
from engine.reading.reader_settings import ReaderAsk, ReaderSettings
from engine.scoring.metrics import score_outputs
from engine.sources.input_tables import InputTable
from engine.statistics.comparison import Clusters
from engine.statistics.correlation import Bootstrap
from engine.tables import ANNOTATOR, DOC_ID, DOC_IDS, LABEL, QUERY_ID, VALUE

Options = TypeVar("Options")


class EvaluationSettings(Protocol):
    """The settings of an evaluation, as far as annotators see them."""

    @property
    def reader(self) -> ReaderSettings: ...

    @property
    def ranking(self) -> RankingSettings: ...

    @property
    def bootstrap(self) -> Bootstrap: ...

    def options(self, kind: type[Options]) -> Options:
        """An annotator's options, by their class."""


@dataclass(frozen=True)
class Role:
    """The role in which a model reads. Reads of one role form one job, with one prompt.

    Attributes:
        name: in repeated.json and in the costs of a study.
        title: in sentences, as in "reads of the judge"; empty for the reader of whole lists.
        key: under which ``summary.json`` describes it.
        is_readers: whether a model in it reads what the RAG system's own LLM would read otherwise.
    """

    name: str
    title: str
    key: str
    is_readers: bool = False


# The RAG system's own LLM. It reads whole lists, and single passages where no other model does.
READER = Role("reader", "", "reader")


@dataclass(frozen=True, kw_only=True)
class Ask(ReaderAsk):
    """What an annotator asks to be read: every listed passage alone, and perhaps each query without a passage.

    Attributes:
        value: the label of each read from the reads and the queries, to count the labels that a
            repetition changes (``engine.reading.repetition``). If several annotators share a role, the
            first one's function counts.
        description: what else ``summary.json`` says of this role.
        singles, lists, closed: what is read: each listed passage alone, whole lists, each query without passages (closed
            book).
    """

    role: Role
    value: Callable[[pl.DataFrame, pl.DataFrame], pl.Series]
    description: Mapping[str, Any] = field(default_factory=dict)
    singles: bool = True
    lists: bool = False
    closed: bool = False

    @property
    def terms(self) -> tuple[object, ...]:
        """What asks in one role must have in common: one reader does them, with one prompt."""
        return self.model, self.task, self.prompt, self.augmentation, self.scores


def ask_reader(reader: ReaderSettings) -> Ask:
    """What the RAG system's own LLM is asked: whole lists, and passages alone."""
    return Ask(
        role=READER,
        model=reader.reader,
        task=reader.task,
        prompt=reader.prompt,
        augmentation=reader.augmentation,
        value=lambda reads, queries: score_outputs(reads, queries, reader.metric)[VALUE],
    )


def labels_of(name: str, rows: pl.DataFrame, value: pl.Expr) -> pl.DataFrame:
    """Labels table of an annotator, of rows with ``doc_id`` or, of reads of one passage each, ``doc_ids``."""
    passage = DOC_ID if DOC_ID in rows.columns else pl.col(DOC_IDS).list.first().alias(DOC_ID)
    return rows.select(QUERY_ID, passage, pl.lit(name).alias(ANNOTATOR), value.alias(LABEL))


@dataclass(frozen=True)
class Scale:
    """What kind of labels an annotator gives.

    Attributes:
        graded: what labels these are, where they can lie between 0 and 1 ("the judge's graded
            labels"); empty for labels that are 0 or 1, or whole numbers.
        utilities: whether they may be negative, so that utility measures alone fit them.
        largest: that no label exceeds, of an annotator of the user's; infinite where nobody knows.
    """

    graded: str = ""
    utilities: bool = False
    largest: float = math.inf


class Display(NamedTuple):
    """A further table as it is printed: columns of names to the left, of values to the right."""

    title: str
    names: Sequence[str]
    values: Sequence[str]
    rows: Sequence[tuple[Sequence[str], Sequence[str]]]


class Conclusion(NamedTuple):
    """How a table of figures over all queries is made, though queries are labelled in parts.

    Attributes:
        outcomes: the columns of what ``label`` makes in the table's place: rows of single queries.
        conclude: the table from the outcomes of all queries, part after part as ``label`` made them, the settings, and
            the clusters by query id, if any; figures must not depend on how the queries were parted.
    """

    outcomes: tables.Schema
    conclude: Callable[[pl.DataFrame, EvaluationSettings, Clusters], pl.DataFrame]


@dataclass(frozen=True, kw_only=True)
class FurtherTable:
    """An extra table that an annotator makes beside its labels; written as a Parquet file of this name.

    Attributes:
        in_summary: whether ``summary.json`` holds its rows, too.
        conclusion: how it is made of the outcomes of queries; None for a table whose rows are of single
            queries, which ``label`` makes as it is.
        display: how it is printed, with this suffix of figures with intervals (`` [95%]``); None if it is not.
    """

    name: str
    schema: tables.Schema
    in_summary: bool = False
    conclusion: Conclusion | None = None
    display: Callable[[pl.DataFrame, str], Display] | None = None

    @property
    def made(self) -> tables.Schema:
        """The columns of what ``label`` makes."""
        return self.schema if self.conclusion is None else self.conclusion.outcomes

    def concluded(
        self, made: pl.DataFrame, settings: EvaluationSettings, clusters: Clusters
    ) -> pl.DataFrame:
        """The table, from what ``label`` made of all queries.

        Raises:
            ValueError: the conclusion has other columns than it must.
        """
        if self.conclusion is None:
            return made
        table = self.conclusion.conclude(made, settings, clusters)
        if dict(table.schema) != self.schema:
            raise ValueError(f"the table {self.name} has other columns than it must")
        return table


@dataclass(frozen=True)
class Labelled:
    """What an annotator made.

    Attributes:
        traces: what is behind every label: the traces table, and any further columns.
        tables: its further tables, by name, or the outcomes that they are concluded from.
        notes: what a user of the labels should know.
        unjudged: queries of which nothing was judged, without scores: 0 would say that nothing was relevant.
    """

    labels: pl.DataFrame
    traces: pl.DataFrame
    tables: Mapping[str, pl.DataFrame] = field(default_factory=dict)
    notes: tuple[Note, ...] = ()
    unjudged: tuple[str, ...] = ()


class PartialCorpusError(InputError):
    """An annotator looks at the corpus of an evaluation of which it is given a part."""


class _Corpus:
    """The corpus of ``Material``, which a part of an evaluation does not have."""

    def __get__(self, material: Material | None, owner: type[Material]) -> pl.DataFrame:
        if material is None:
            raise AttributeError  # there is no default
        if material.part_for:
            raise PartialCorpusError(
                f"the annotator {material.part_for} looks at `corpus`, and queries are labelled in parts, each "
                "with its own passages",
                "count over the corpus beforehand and look at `passages`, or have all queries labelled together "
                "(a larger `shard_pairs`, without `until` and `width`)",
                "annotator.corpus",
            )
        return material.passages

    def __set__(self, material: Material, corpus: pl.DataFrame) -> None:
        material.__dict__["passages"] = corpus


@dataclass(frozen=True, kw_only=True, repr=False)
class Material:
    """What annotators label from.

    A label may look at its query, its passage, what was read of them, and the judgments of the query. Queries may be
    labelled in parts, so a label that looks at other queries depends on who else is in the part: nothing refuses that.

    Attributes:
        queries, runs: the tables of the evaluation, or of a part of it.
        corpus: the passages that some run lists for any query of the evaluation, for labels that look at more passages
            than their own. A part of an evaluation has none: looking at it raises ``PartialCorpusError``.
        passages: those that some run lists for these queries.
        run_names: of all runs, in order; one may list nothing for these queries.
        pairs: ``query_id`` and ``doc_id`` of every passage that some run lists.
        tables: the files that annotators need, by the name of their input.
        rests_on: what the annotators that this one rests on made, by name.
        reads: the reads table with ``failure``, one read for each pair in their order, or one for each reference
            answer where these are scored, and then those of queries without passages, where they are asked
            for; empty for an annotator that asks for none. A failed read has an empty output and null confidence.
        part_for: the annotator, where the queries are a part of those evaluated; else empty.
    """

    queries: pl.DataFrame
    corpus: _Corpus = _Corpus()
    passages: pl.DataFrame = field(init=False)
    runs: pl.DataFrame
    run_names: Sequence[str]
    pairs: pl.DataFrame
    settings: EvaluationSettings
    tables: Mapping[str, pl.DataFrame] = field(default_factory=dict)
    relevant: Relevant = "list"
    rests_on: Mapping[str, Labelled] = field(default_factory=dict)
    reads: pl.DataFrame = field(default_factory=lambda: tables.empty(tables.READS))
    part_for: str = ""


@dataclass(frozen=True, kw_only=True)
class Annotator:
    """Who labels passages.

    Attributes:
        name: in every table.
        meaning: what a label of its says, for people.
        label: labels the pairs of its material, and traces the labels.
        options: the frozen dataclass whose fields are its options of ``erag evaluate``; None where it has none.
        uses_options_of: further annotators whose options it follows.
        needs_provenance: whether it needs queries with gold articles.
        needs_answers: whether it needs queries with answers; what it rests on may need them besides.
        needs_input: the file that it needs, if any.
        unfit_tasks: tasks for which its labels have no meaning, with the reason.
        rests_on: names of the engine's annotators whose labels it is made of, asked for or not.
        rests_by: the option that chooses what it rests on; empty where nothing does.
        role: in which a model may read for it, as ``asks`` says; None for an annotator that never asks for reads.
        asks: what it asks to be read under these settings; None for nothing.
        scale: what kind of labels it gives under these settings.
        judges_everything: whether its judgments reach beyond the lists, as recall and ideal rankings then may.
        is_the_readers: whether its labels are the reader's own outcomes, comparable with the score of another reader.
        finds_answers: whether its labels say that a passage contains an answer.
        further_tables: what it leaves beside labels and traces.
        query_notes: notes on the queries, for evaluations whose labels rest on this annotator.
        score_notes: notes on the scores that its labels give, of all queries.
    """

    name: str
    label: Callable[[Material], Labelled]
    options: type | None = None
    uses_options_of: tuple[str, ...] = ()
    needs_provenance: bool = False
    needs_answers: bool = False
    needs_input: InputTable | None = None
    unfit_tasks: Mapping[str, str] = field(default_factory=dict)
    rests_on: Callable[[EvaluationSettings], tuple[str, ...]] = lambda settings: ()
    rests_by: str = ""
    role: Role | None = None
    asks: Callable[[EvaluationSettings], Ask | None] = lambda settings: None
    scale: Callable[[EvaluationSettings], Scale] = lambda settings: Scale()
    judges_everything: bool = False
    is_the_readers: bool = False
    finds_answers: bool = False
    meaning: str = ""
    further_tables: tuple[FurtherTable, ...] = ()
    query_notes: Callable[[pl.DataFrame], Iterable[Note]] = lambda queries: ()
    score_notes: Callable[[EvaluationSettings, pl.DataFrame], Iterable[Note]] = (
        lambda settings, scores: ()
    )


def complete(traces: pl.DataFrame) -> pl.DataFrame:
    """The traces table, with nulls in the columns that say nothing of this annotator."""
    missing = [
        pl.lit(None, dtype=kind).alias(name)
        for name, kind in tables.TRACES.items()
        if name not in traces.columns
    ]
    return traces.with_columns(missing).select(list(tables.TRACES))
