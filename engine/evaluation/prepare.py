"""Prepare a shard: which annotator needs which reads, and the labels and scores that need none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import polars as pl

from engine import tables
from engine.evaluation.budgets import cut_for, given_together
from engine.evaluation.inputs import EvaluationInputs
from engine.evaluation.read_jobs import Request, requests_for
from engine.evaluation.settings import Settings, refuse_without_measure
from engine.labels.annotator import Annotator, Labelled, Material
from engine.messages.errors import InputError
from engine.ranking.kernel import is_real_valued
from engine.ranking.measures import UTILITY_KIND, Measure, undefined_on_graded
from engine.ranking.scores import Relevant, largest_label, score_runs
from engine.ranking.ties import score_reordered
from engine.ranking.udcg import score_utility
from engine.statistics.runs import drawn_share, is_drawn
from engine.tables import ANNOTATOR, DOC_ID, DOC_IDS, LABEL, QUERY_ID, RUN

_NO_READS = tables.empty({**tables.READS, tables.FAILURE: pl.String()})


@dataclass(frozen=True)
class Prepared:
    """An evaluation before its reads.

    Attributes:
        pairs: ``query_id`` and ``doc_id`` of every passage that some run lists.
        lists: ``run``, ``query_id``, ``doc_ids`` of the lists that are read whole.
        labelled: what annotators made that need no reads, by name.
    """

    inputs: EvaluationInputs
    settings: Settings
    pairs: pl.DataFrame
    lists: pl.DataFrame
    requests: tuple[Request, ...]
    labelled: Mapping[str, Labelled]
    scored: Mapping[str, AnnotatorScores]


@dataclass(frozen=True)
class AnnotatorScores:
    """The query scores of one annotator's labels, and the measures that are undefined for them.

    Attributes:
        reordered: scores with equal scores in another order (``ranking.ties.REORDERED``).
        labelled_queries: how many queries have scores, those of failed reads included; or rows of further tables.
        real_valued: whether some label lies between whole numbers.
        largest: the largest label, 0 or more.
    """

    scores: pl.DataFrame
    reordered: pl.DataFrame
    undefined: pl.DataFrame
    labelled_queries: int
    real_valued: bool
    largest: float


def prepare(inputs: EvaluationInputs, settings: Settings) -> Prepared:
    """Label the queries of a shard that need no reads, and plan the reads, once ``check`` has seen all shards.

    Raises:
        InputError: the inputs were read at a smaller cutoff, a label is out of range, or a measure has no meaning on
            the labels.
    """
    inputs = cut_for(inputs, settings)
    pairs, lists = pairs_to_label(inputs), lists_to_read(inputs, settings)
    asking = settings.resolved.asks
    in_use = settings.resolved.annotators
    labelled: dict[str, Labelled] = {}
    for annotator in in_use:
        rests_on = annotator.rests_on(settings)
        if annotator.name not in asking and all(name in labelled for name in rests_on):
            labelled[annotator.name] = label(annotator, inputs, settings, pairs, labelled)
    listed = settings.resolved.listed
    scored = {
        annotator.name: score_annotator(annotator, labelled[annotator.name], inputs, settings)
        for annotator in listed
        if annotator.name in labelled
    }
    requests = requests_for(pairs, lists, settings)
    return Prepared(inputs, settings, pairs, lists, tuple(requests), labelled, scored)


def label(
    annotator: Annotator,
    inputs: EvaluationInputs,
    settings: Settings,
    pairs: pl.DataFrame,
    labelled: Mapping[str, Labelled],
    *,
    reads: pl.DataFrame | None = None,
) -> Labelled:
    """Have an annotator label the pairs, and check its tables; ``labelled``: by name, what it rests on, or more.

    Raises:
        ValueError: labels or further tables with other columns, or labels in another name.
        PartialCorpusError: it looks at the corpus, and the inputs are a part.
    """
    made = annotator.label(
        Material(
            queries=inputs.queries,
            corpus=inputs.corpus,
            runs=inputs.runs,
            run_names=inputs.run_names,
            pairs=pairs,
            settings=settings,
            tables=inputs.tables,
            relevant=settings.relevant(len(inputs.run_names), annotator),
            rests_on={name: labelled[name] for name in annotator.rests_on(settings)},
            reads=_NO_READS if reads is None else reads,
            part_for="" if inputs.is_whole else annotator.name,
        )
    )
    declared = {table.name: table.made for table in annotator.further_tables}
    schemas = {name: dict(table.schema) for name, table in made.tables.items()}
    if dict(made.labels.schema) != tables.LABELS or schemas != declared:
        raise ValueError(f"the tables of {annotator.name} have other columns than they must")
    if not made.labels.filter(pl.col(ANNOTATOR) != annotator.name).is_empty():
        raise ValueError(f"{annotator.name} labels in the name of another annotator")
    return made


def score_annotator(
    annotator: Annotator, labelled: Labelled, inputs: EvaluationInputs, settings: Settings
) -> AnnotatorScores:
    """Scores by the measures that the labels have, of the queries with labels; the other measures are noted."""
    labels = labelled.labels
    utilities = settings.resolved.scales[annotator.name].utilities
    counted = labels.filter(pl.col(LABEL) >= 0)
    real_valued = not utilities and is_real_valued(counted[LABEL].to_numpy())
    largest = largest_label(counted[LABEL])
    exceeding = not utilities and largest > 1
    if real_valued and exceeding:
        refuse_without_threshold(annotator.name, counted, settings.resolved.measures)
    defined, undefined = split_measures(
        annotator.name, settings, real_valued=real_valued, exceeding=exceeding
    )
    unjudged, missing = set(labelled.unjudged), settings.ranking.missing
    query_ids = [query for query in inputs.queries[QUERY_ID] if query not in unjudged]
    if labels.is_empty():
        # Of a part for whose queries nothing is listed. Scores name the annotator as its labels do, so
        # one label stands for none: below 0, of no passage.
        nothing = {QUERY_ID: query_ids[:1], DOC_ID: "", ANNOTATOR: annotator.name, LABEL: -1.0}
        labels = pl.DataFrame(nothing, schema=tables.LABELS)
    names = inputs.run_names
    bases: dict[Relevant, list[Measure]] = {}
    for measure in defined:
        # What no run lists has no length in tokens.
        base = settings.relevant(len(names), None if measure.tokens else annotator)
        bases.setdefault(base, []).append(measure)

    def by(runs: pl.DataFrame, queries: Sequence[str]) -> pl.DataFrame:
        if utilities:
            return score_utility(runs, labels, queries, defined, missing=missing, names=names)
        parts = [
            score_runs(runs, labels, queries, some, relevant=base, missing=missing, names=names)
            for base, some in bases.items()
        ]
        order = {RUN: pl.Enum(names), tables.MEASURE: pl.Enum([*map(str, defined)])}
        places = [pl.col(name).cast(kind) for name, kind in order.items()]
        return parts[0] if len(parts) == 1 else pl.concat(parts).sort(places, maintain_order=True)

    scores = by(inputs.runs, query_ids)
    return AnnotatorScores(
        scores.join(inputs.unlabelled, on=[RUN, QUERY_ID], how="anti", maintain_order="left"),
        score_reordered(inputs.runs, query_ids, by),
        undefined,
        labelled_queries=len(query_ids) or sum(of.height for of in labelled.tables.values()),
        real_valued=real_valued,
        largest=largest,
    )


def split_measures(
    annotator: str, settings: Settings, *, real_valued: bool, exceeding: bool
) -> tuple[list[Measure], pl.DataFrame]:
    """The measures that an annotator's labels have, and the others (``tables.UNDEFINED``)."""
    measures, scale = settings.resolved.measures, settings.resolved.scales[annotator]
    reasons = settings.resolved.reasons(annotator, real_valued=real_valued, above_one=exceeding)
    refuse_without_measure(annotator, scale, reasons)
    undefined = [
        {ANNOTATOR: annotator, tables.MEASURE: str(measure), tables.NOTE: why}
        for measure, why in zip(measures, reasons, strict=True)
        # Utilities and other labels have no measure in common: that is not a cell, empty or not.
        if why and not scale.utilities and measure.kind != UTILITY_KIND
    ]
    defined = [measure for measure, why in zip(measures, reasons, strict=True) if not why]
    return defined, pl.DataFrame(undefined, schema=tables.UNDEFINED)


def refuse_unjudged(labelled_queries: Mapping[str, int]) -> None:
    """Refuse an annotator that labelled nothing."""
    for name, queries in labelled_queries.items():
        if not queries:
            raise InputError(
                f"no query is judged by {name} (a label below 0 means not judged)",
                "give judgments of the queries that are evaluated",
            )


def refuse_without_threshold(
    annotator: str, labels: pl.DataFrame, measures: Sequence[Measure]
) -> None:
    """Refuse measures that real-valued labels above 1 would turn into means or sums of grades.

    They pass where the same measure stands beside them with a threshold: then they are for other
    annotators, and undefined for this one.
    """
    # Measures that need a threshold on any real-valued labels are noted, as where none exceeds 1.
    affected = [m for m in undefined_on_graded(measures, above_one=True) if m.takes_labels(True)]
    answered = {(m.kind, m.cutoff) for m in measures if m.rel is not None}
    unanswered = [measure for measure in affected if (measure.kind, measure.cutoff) not in answered]
    if not unanswered:
        return
    between = labels.filter(pl.col(LABEL) != pl.col(LABEL).round())
    query_id, doc_id, label = between.select(QUERY_ID, DOC_ID, LABEL).row(0)
    thresholds = dict.fromkeys(str(measure.with_threshold()) for measure in measures)
    raise InputError(
        f"{unanswered[0]} is not defined on the labels of {annotator}: some exceed 1, and some "
        f"lie between whole numbers ({label:g} for passage {doc_id!r} of query {query_id!r})",
        f"say what is relevant, as in {unanswered[0].with_threshold()} "
        f'(`measures` "{" ".join(thresholds)}"), or correct the label',
    )


def pairs_to_label(inputs: EvaluationInputs) -> pl.DataFrame:
    """``query_id`` and ``doc_id`` of every passage that some run lists."""
    return inputs.runs.select(QUERY_ID, DOC_ID).unique(maintain_order=True)


def lists_to_read(inputs: EvaluationInputs, settings: Settings) -> pl.DataFrame:
    """``run``, ``query_id``, ``doc_ids``: what the reader of whole lists is given, of ``budgets.cut_for``."""
    runs = inputs.runs
    listed = (
        given_together(runs, settings)
        .group_by(RUN, QUERY_ID, maintain_order=True)
        .agg(pl.col(DOC_ID).alias(DOC_IDS))
    )
    lists = (
        inputs.lists()
        .join(inputs.unread, on=[RUN, QUERY_ID], how="anti", maintain_order="left")
        .join(listed, on=[RUN, QUERY_ID], how="left", maintain_order="left")
        .with_columns(pl.col(DOC_IDS).fill_null([]))
    )
    if share := settings.bootstrap.lists:
        lists = lists.filter(is_drawn(lists[QUERY_ID], settings.bootstrap.seed, share))
    if settings.ranking.missing == "skip":
        return lists.join(runs, on=[RUN, QUERY_ID], how="semi", maintain_order="left")
    return lists


def with_share(settings: Settings, query_ids: pl.Series, each: float = 1) -> Settings:
    """The settings with lists as a share of the queries; each of ``query_ids`` stands for ``each`` queries."""
    lists, seed = settings.bootstrap.lists, settings.bootstrap.seed
    if lists is None:
        return settings
    number = lists if lists < 1 else max(1, round(lists / each))
    return settings.but(lists=drawn_share(query_ids, seed, number))
