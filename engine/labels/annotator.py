"""The interface of every annotator, the engine's and a user's: its needs, its reads, its labels.

An annotator is data (``Annotator``) and one function, ``label``, from ``Material`` to ``AnnotatorResult``. An evaluation looks
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
    """The role in which a model reads. The reads in a role form one job, with one prompt."""

    name: str  # in repeated.json and in the costs of a study
    title: str  # in sentences, as in "reads of the judge"; empty for the reader of whole lists
    key: str  # in ``summary.json``
    is_readers: bool = False  # whether its model stands in for the RAG system's own LLM


# The RAG system's own LLM. It reads whole lists, and single passages if no other model does.
READER = Role("reader", "", "reader")


@dataclass(frozen=True, kw_only=True)
class Ask(ReaderAsk):
    """The reads that an annotator needs: every listed passage alone, and perhaps each query without a passage.

    Attributes:
        value: computes the label of each read from reads and queries, to count labels that a repetition changes
            (``engine.reading.repetition``). If annotators share a role, the first one's function counts.
        description: further keys of this role in ``summary.json``.
        singles, lists, closed: whether to read each listed passage alone, whole lists, and each query without passages
            (closed book).
    """

    role: Role
    value: Callable[[pl.DataFrame, pl.DataFrame], pl.Series]
    description: Mapping[str, Any] = field(default_factory=dict)
    singles: bool = True
    lists: bool = False
    closed: bool = False

    @property
    def terms(self) -> tuple[object, ...]:
        """The terms that all asks in a role must share: one reader and one prompt serve them."""
        return self.model, self.task, self.prompt, self.augmentation, self.scores


def ask_reader(reader: ReaderSettings) -> Ask:
    """The reads of the RAG system's own LLM: whole lists, and passages alone."""
    return Ask(
        role=READER,
        model=reader.reader,
        task=reader.task,
        prompt=reader.prompt,
        augmentation=reader.augmentation,
        value=lambda reads, queries: score_outputs(reads, queries, reader.metric)[VALUE],
    )


def labels_of(name: str, rows: pl.DataFrame, value: pl.Expr) -> pl.DataFrame:
    """Labels table of an annotator, from rows with ``doc_id``, or from single-passage reads with ``doc_ids``."""
    passage = DOC_ID if DOC_ID in rows.columns else pl.col(DOC_IDS).list.first().alias(DOC_ID)
    return rows.select(QUERY_ID, passage, pl.lit(name).alias(ANNOTATOR), value.alias(LABEL))


@dataclass(frozen=True)
class Scale:
    """The scale of an annotator's labels.

    ``graded`` names labels that can lie between 0 and 1 ("the judge's graded labels"); empty for whole numbers.
    """

    graded: str = ""
    utilities: bool = False  # whether labels may be negative; then only utility measures fit
    largest: float = math.inf  # upper bound on the labels of a user's annotator


class Display(NamedTuple):
    """A further table as printed: names on the left, values on the right."""

    title: str
    names: Sequence[str]
    values: Sequence[str]
    rows: Sequence[tuple[Sequence[str], Sequence[str]]]


class Conclusion(NamedTuple):
    """Computes a table of figures over all queries, although queries are labelled in parts.

    Attributes:
        outcomes: columns of the per-query rows that ``label`` returns in place of the table.
        conclude: computes the table from the outcomes of all queries (parts concatenated), the settings, and the
            clusters by query id, if any. Figures must not depend on the partition.
    """

    outcomes: tables.Schema
    conclude: Callable[[pl.DataFrame, EvaluationSettings, Clusters], pl.DataFrame]


@dataclass(frozen=True, kw_only=True)
class FurtherTable:
    """An annotator's extra table, beside its labels; written as a Parquet file of this name.

    Attributes:
        in_summary: whether ``summary.json`` holds its rows, too.
        conclusion: computes it from the outcomes of queries; None for a table with rows per query, which ``label``
            returns whole.
        display: formats it for printing, given the suffix of figures with intervals (`` [95%]``); None if not printed.
    """

    name: str
    schema: tables.Schema
    in_summary: bool = False
    conclusion: Conclusion | None = None
    display: Callable[[pl.DataFrame, str], Display] | None = None

    @property
    def columns(self) -> tables.Schema:
        """Columns of the table that ``label`` returns."""
        return self.schema if self.conclusion is None else self.conclusion.outcomes

    def concluded(
        self, rows: pl.DataFrame, settings: EvaluationSettings, clusters: Clusters
    ) -> pl.DataFrame:
        """The table, from the tables of ``label`` for all queries; a ValueError if the conclusion has wrong columns."""
        if self.conclusion is None:
            return rows
        table = self.conclusion.conclude(rows, settings, clusters)
        if dict(table.schema) != self.schema:
            raise ValueError(f"the table {self.name} has other columns than it must")
        return table


@dataclass(frozen=True)
class AnnotatorResult:
    """An annotator's results.

    Attributes:
        traces: the traces table: the evidence for every label, with any further columns.
        tables: its further tables by name, or the outcomes from which they are concluded.
        notes: notes for users of the labels.
        unjudged: queries without judgments; they have no scores, because 0 would mean "nothing relevant".
    """

    labels: pl.DataFrame
    traces: pl.DataFrame
    tables: Mapping[str, pl.DataFrame] = field(default_factory=dict)
    notes: tuple[Note, ...] = ()
    unjudged: tuple[str, ...] = ()


Labelled = AnnotatorResult  # its name in packages of users' annotators


class PartialCorpusError(InputError):
    """An annotator accessed the corpus while labelling only a part of an evaluation."""


@dataclass(frozen=True, kw_only=True, repr=False)
class Material:
    """The material from which an annotator labels passages.

    A label may use its query, its passage, their reads, and the query's judgments. Queries may be labelled in parts, so
    a label that uses other queries depends on the partition: nothing refuses that.

    ``reads`` is the reads table with ``failure``: one read per pair in their order, or one per reference answer if
    answers are scored; then the reads without passages, if requested. Empty for an annotator without reads. A failed
    read has an empty output and null confidence.
    """

    queries: pl.DataFrame  # of the evaluation, or of a part of it
    passages: pl.DataFrame  # that some run lists for these queries
    runs: pl.DataFrame
    run_names: Sequence[str]  # of all runs, in order; a run may list nothing for these queries
    pairs: pl.DataFrame  # ``query_id`` and ``doc_id`` of every passage that some run lists
    settings: EvaluationSettings
    tables: Mapping[str, pl.DataFrame] = field(default_factory=dict)  # needed files, by input
    relevant: Relevant = "list"
    rests_on: Mapping[str, AnnotatorResult] = field(default_factory=dict)  # by annotator
    reads: pl.DataFrame = field(default_factory=lambda: tables.empty(tables.READS))
    part_for: str = ""  # the annotator's name if the queries are a part of the evaluation

    @property
    def corpus(self) -> pl.DataFrame:
        """The passages that some run lists for any query of the evaluation, for labels that use other passages.

        A part of an evaluation has no corpus: a ``PartialCorpusError``.
        """
        if self.part_for:
            raise PartialCorpusError(
                f"the annotator {self.part_for} looks at `corpus`, and queries are labelled in parts, each "
                "with its own passages",
                "count over the corpus beforehand and look at `passages`, or have all queries labelled together "
                "(a larger `shard_pairs`, without `until` and `width`)",
                "annotator.corpus",
            )
        return self.passages

    def lacking(self, judgments: pl.DataFrame) -> tuple[str, ...]:
        """The queries without any of these judgments."""
        judged = set(judgments[QUERY_ID])
        return tuple(query_id for query_id in self.queries[QUERY_ID] if query_id not in judged)


@dataclass(frozen=True, kw_only=True)
class Annotator:
    """An annotator, which labels passages.

    Attributes:
        name: in every table.
        meaning: the meaning of its labels, for people.
        label: labels the pairs of its material, and traces the labels.
        options: the frozen dataclass whose fields are its options of ``erag evaluate``, if any.
        uses_options_of: other annotators whose options it uses.
        needs_provenance: whether it needs queries with gold articles.
        needs_answers: whether it needs queries with answers; annotators that it rests on may need them too.
        needs_input: the file that it needs, if any.
        unfit_tasks: tasks for which its labels have no meaning, with the reason.
        rests_on: names of the engine's annotators from whose labels it computes its own, requested or not.
        rests_by: the option that chooses ``rests_on``; empty if none does.
        role: role of the model that reads for it (``asks``); None for an annotator that never reads.
        asks: its reads under these settings; None for none.
        scale: the scale of its labels under these settings.
        judges_everything: whether its judgments reach beyond the lists, as recall and ideal rankings then may.
        is_the_readers: whether its labels are the reader's own outcomes, comparable to another reader's score.
        finds_answers: whether its labels say that a passage contains an answer.
        further_tables: its tables beside labels and traces.
        query_notes: notes on the queries, for evaluations whose labels rest on this annotator.
        score_notes: notes on the scores that its labels give, of all queries.
    """

    name: str
    label: Callable[[Material], AnnotatorResult]
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
    """The traces table, with nulls in the columns that this annotator lacks."""
    lacking = tables.TRACES.keys() - traces.columns
    nulls = [pl.lit(None, tables.TRACES[name]).alias(name) for name in lacking]
    return traces.with_columns(nulls).select(list(tables.TRACES))
