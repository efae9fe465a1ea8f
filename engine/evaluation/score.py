"""Label and score queries from inputs and reads.

Each query is scored by itself, so several machines can score parts of an evaluation, which ``merge`` joins.
``conclude`` adds statistics and the verdict, over all queries.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import polars as pl

from engine import tables
from engine.evaluation.settings import Settings, refuse_without_measure
from engine.inputs.files import OUTPUTS, EvaluationInputs
from engine.labels.annotator import READER, Annotator, AnnotatorResult, Material
from engine.labels.registry import ANNOTATORS
from engine.messages.errors import InputError
from engine.messages.notes import Note, count_note, merge_notes
from engine.ranking.kernel import is_real_valued
from engine.ranking.kinds.base import Measure
from engine.ranking.measures import undefined_on_graded
from engine.ranking.scores import Relevant, largest_label, score_runs, score_utility
from engine.ranking.ties import score_reordered
from engine.reading.costs import requested_kinds
from engine.reading.outputs import OutputCounts, count_outputs, merge_outputs
from engine.reading.protocol import ReaderSpec
from engine.reading.remote.specify import CUT_PROMPT
from engine.scoring.metrics import get_metric, score_outputs
from engine.tables import ANNOTATOR, DOC_ID, DOC_IDS, FAILURE, LABEL, QUERY_ID, READ_KEY, RUN, N

UNREAD = "labels_not_needed"
ALIKE_LABELS, ALIKE_SCORES, ALIKE_LISTS = "alike_labels", "alike_scores", "alike_lists"
_SHOWN = 3
# Columns that identify a read of an evaluation: the query, and its passages in order.
IDENTITY = (QUERY_ID, DOC_IDS)
# With the key, since each text scored behind one prompt has its own.
_READ = (*IDENTITY, READ_KEY)
_NO_READS = tables.empty({**tables.READS, FAILURE: pl.String()})
# Distinct reads by kind, and how many failed.
ReadCounts = tuple[Mapping[str, int], int]


@dataclass(frozen=True, kw_only=True)
class ShardScores:
    """Labels and scores of some queries, or of all.

    Attributes:
        labels, traces, reads: tables of all listed passages; empty in merged scores.
        further: by the name of a further table, the table, or the outcomes by query from which it is concluded;
            merged scores have outcomes alone.
        query_scores, undefined, downstream, label_lists: see ``engine.tables``.
        reordered: scores with equal scores in another order (``ranking.ties.REORDERED``).
        labelled_queries: the number of queries with labels, by annotator.
        real_valued: annotators with fractional labels.
        largest: the largest label, 0 or more, by annotator.
        truncated: reads whose input was cut.
        left_out: queries left out of some figure because of failed reads.
        lengths: run, length, and number of the run's lists of that length within the cutoff.
        role_reads, job_reads: counts of reads by role, and by the key of a job over all conditions.
    """

    queries: int
    passages: int
    labels: pl.DataFrame
    traces: pl.DataFrame
    reads: pl.DataFrame
    further: Mapping[str, pl.DataFrame]
    query_scores: pl.DataFrame
    reordered: pl.DataFrame
    undefined: pl.DataFrame
    downstream: pl.DataFrame
    label_lists: pl.DataFrame
    labelled_queries: Mapping[str, int] = field(default_factory=dict)
    real_valued: tuple[str, ...] = ()
    largest: Mapping[str, float] = field(default_factory=dict)
    truncated: int = 0
    left_out: int = 0
    cut_runs: tuple[str, ...] = ()
    lengths: tuple[tuple[str, int, int], ...] = ()
    outputs: OutputCounts = field(default_factory=OutputCounts)
    notes: tuple[Note, ...] = ()
    role_reads: Mapping[str, ReadCounts] = field(default_factory=dict)
    job_reads: Mapping[str, ReadCounts] = field(default_factory=dict)

    @property
    def above_one(self) -> tuple[str, ...]:
        """Annotators with fractional labels, and labels above 1."""
        return tuple(name for name in self.real_valued if self.largest[name] > 1)


def score(
    inputs: EvaluationInputs,
    settings: Settings,
    lists: pl.DataFrame,
    read: Mapping[str, tuple[ReaderSpec, pl.DataFrame]],
) -> ShardScores:
    """Label and score the queries of a shard.

    Args:
        inputs: at the cutoff of the settings.
        lists: ``run``, ``query_id``, ``doc_ids`` of the lists that are read whole, or have recorded outputs.
        read: by role, the reader, and at least the reads that the settings need (``tables.READS``, ``failure``).

    Raises:
        InputError: a label is out of range, or no measure fits the labels.
    """
    listed, pairs = settings.resolved.listed, pairs_to_label(inputs)
    reads = {role: own for role, (_, own) in read.items()}
    labelled, left_out = _label(inputs, settings, pairs, reads)
    scored = {
        a.name: _score_labels(a, labelled[a.name], left_out[a.name], inputs, settings)
        for a in listed
    }
    names = [annotator.name for annotator in listed]
    downstream = _downstream(inputs, settings, lists, reads)
    return ShardScores(
        queries=inputs.queries.height,
        passages=inputs.corpus.height,
        labels=pl.concat([labelled[name].labels for name in names]),
        traces=pl.concat([labelled[name].traces for name in names], how="diagonal"),
        reads=pl.concat([_NO_READS, *reads.values()]).drop(FAILURE),
        further={name: own for n in names for name, own in labelled[n].tables.items()},
        query_scores=pl.concat([scored[name].scores for name in names]),
        reordered=pl.concat([scored[name].reordered for name in names]),
        undefined=pl.concat([scored[name].undefined for name in names]),
        downstream=downstream,
        label_lists=_label_lists(settings, lists, labelled, left_out, reads),
        labelled_queries={name: scored[name].labelled_queries for name in names},
        real_valued=tuple(name for name in names if scored[name].real_valued),
        largest={name: scored[name].largest for name in names},
        truncated=sum(int(own[tables.TRUNCATED].sum()) for own in reads.values()),
        left_out=len({query for name in names for query in left_out[name]}),
        cut_runs=inputs.cut_runs,
        lengths=_lengths(inputs),
        outputs=count_outputs(
            read,
            downstream if settings.reader.end_to_end else None,
            inputs.queries,
            get_metric(settings.reader.metric),
        ),
        notes=tuple(_notes(inputs, settings, labelled)),
        role_reads={role: count_reads(own) for role, own in reads.items()},
    )


def count_reads(reads: pl.DataFrame) -> ReadCounts:
    """The distinct reads of a table by kind, and the number of failed reads."""
    return requested_kinds(reads), reads.filter(pl.col(FAILURE).is_not_null())[READ_KEY].n_unique()


def pairs_to_label(inputs: EvaluationInputs) -> pl.DataFrame:
    """``query_id`` and ``doc_id`` of every passage that some run lists."""
    return inputs.runs.select(QUERY_ID, DOC_ID).unique(maintain_order=True)


def alone(pairs: pl.DataFrame) -> pl.DataFrame:
    """``query_id`` and ``doc_ids`` of the reads of single passages, in the order of ``pairs``."""
    return pairs.select(QUERY_ID, pl.concat_list(DOC_ID).alias(DOC_IDS))


def closed_book(pairs: pl.DataFrame) -> pl.DataFrame:
    """``query_id`` and ``doc_ids`` of the reads without passages, one for each query of ``pairs``."""
    nothing = pl.lit([], pl.List(pl.String)).alias(DOC_IDS)
    return pairs.select(QUERY_ID).unique(maintain_order=True).with_columns(nothing)


def reads_of(reads: pl.DataFrame, lists: pl.DataFrame) -> pl.DataFrame:
    """The reads of ``lists``, in order, a row per list or per scored text; a ValueError if one is missing."""
    distinct = reads.unique(_READ, keep="first", maintain_order=True)
    rows = lists.select(IDENTITY)
    rows = rows.join(distinct, on=IDENTITY, how="left", maintain_order="left_right")
    if lacking := rows[READ_KEY].null_count():
        raise ValueError(f"{lacking} of {rows.height} reads were never asked for")
    return rows.select(reads.columns)


def merge(
    parts: Sequence[ShardScores], settings: Settings, *, runs: Sequence[str], passages: int
) -> ShardScores:
    """Merge the scores of parts. A measure defined in all parts may be undefined for the labels of the whole.

    Args:
        passages: the number of listed passages; the parts may share some.

    Raises:
        InputError: no measure fits the labels of an annotator.
    """
    first = parts[0]
    annotators = list(first.labelled_queries)

    def having(names: str, order: Sequence[str]) -> tuple[str, ...]:
        having_some = {name for part in parts for name in getattr(part, names)}
        return tuple(name for name in order if name in having_some)

    real_valued = having("real_valued", annotators)
    largest = {name: max(part.largest[name] for part in parts) for name in annotators}
    undefined = pl.concat(
        split_measures(
            name, settings, real_valued=name in real_valued, exceeding=largest[name] > 1
        )[1]
        for name in annotators
    )
    measures = [str(measure) for measure in settings.resolved.measures]
    order = {ANNOTATOR: annotators, RUN: runs, tables.MEASURE: measures}
    places = [pl.col(name).cast(pl.Enum(names)) for name, names in order.items()]
    names = ("labels", "traces", "reads", "reordered", "label_lists", "query_scores", "downstream")
    whole = {name: pl.concat([getattr(part, name) for part in parts]) for name in names}
    scores, downstream = whole.pop("query_scores"), whole.pop("downstream")
    cell = [ANNOTATOR, tables.MEASURE]
    if not undefined.is_empty():
        scores = scores.join(undefined, on=cell, how="anti", maintain_order="left")
    return ShardScores(
        **whole,
        queries=sum(part.queries for part in parts),
        passages=passages,
        further={name: pl.concat([part.further[name] for part in parts]) for name in first.further},
        query_scores=scores.sort(places, maintain_order=True),
        undefined=undefined,
        downstream=downstream.sort(places[1], maintain_order=True),
        labelled_queries={
            name: sum(part.labelled_queries[name] for part in parts) for name in annotators
        },
        real_valued=real_valued,
        largest=largest,
        truncated=sum(part.truncated for part in parts),
        left_out=sum(part.left_out for part in parts),
        cut_runs=having("cut_runs", runs),
        lengths=tuple(row for part in parts for row in part.lengths),
        outputs=merge_outputs(part.outputs for part in parts),
        notes=merge_notes((part.notes for part in parts), passages),
    )


def _label(
    inputs: EvaluationInputs,
    settings: Settings,
    every_pair: pl.DataFrame,
    read: Mapping[str, pl.DataFrame],
) -> tuple[dict[str, AnnotatorResult], dict[str, list[str]]]:
    labelled: dict[str, AnnotatorResult] = {}
    left_out: dict[str, list[str]] = {}
    for annotator in settings.resolved.annotators:
        lost = [query for name in annotator.rests_on(settings) for query in left_out[name]]
        ask = settings.resolved.asks.get(annotator.name)
        reads, pairs = _NO_READS, every_pair
        if ask is not None and ask.role.name in read:
            own, singles = read[ask.role.name], alone(pairs)
            if settings.running.lazy:
                singles = singles.join(own, on=IDENTITY, how="semi", maintain_order="left")
                pairs = singles.select(QUERY_ID, pl.col(DOC_IDS).list.first().alias(DOC_ID))
            reads = reads_of(own, pl.concat([singles, *[closed_book(pairs)] * ask.closed]))
            failed = reads.filter(pl.col(FAILURE).is_not_null())
            lost += failed[QUERY_ID].unique(maintain_order=True).to_list()
        skipped = settings.running.skips_failed
        left_out[annotator.name] = list(dict.fromkeys(lost)) if skipped else []
        result = label(annotator, inputs, settings, pairs, labelled, reads=reads)
        if settings.running.lazy:
            result = _with_unread(result, annotator.name, every_pair)
        labelled[annotator.name] = result
    return labelled, left_out


def label(
    annotator: Annotator,
    inputs: EvaluationInputs,
    settings: Settings,
    pairs: pl.DataFrame,
    labelled: Mapping[str, AnnotatorResult],
    *,
    reads: pl.DataFrame = _NO_READS,
) -> AnnotatorResult:
    """Have an annotator label the pairs, and check its tables; ``labelled``: earlier annotators, by name.

    Raises:
        ValueError: labels or further tables with wrong columns, or labels in the name of another annotator.
        PartialCorpusError: the annotator needs the whole corpus, and the inputs are a part.
    """
    result = annotator.label(
        Material(
            queries=inputs.queries,
            passages=inputs.corpus,
            runs=inputs.runs,
            run_names=inputs.run_names,
            pairs=pairs,
            settings=settings,
            tables=inputs.tables,
            relevant=settings.relevant(len(inputs.run_names), annotator),
            rests_on={name: labelled[name] for name in annotator.rests_on(settings)},
            reads=reads,
            part_for="" if inputs.is_whole else annotator.name,
        )
    )
    result = replace(result, labels=tables.with_added(result.labels, tables.LABELS))
    declared = {table.name: table.columns for table in annotator.further_tables}
    schemas = {name: dict(table.schema) for name, table in result.tables.items()}
    if dict(result.labels.schema) != tables.LABELS or schemas != declared:
        raise ValueError(f"the tables of {annotator.name} have other columns than they must")
    if not result.labels.filter(pl.col(ANNOTATOR) != annotator.name).is_empty():
        raise ValueError(f"{annotator.name} labels in the name of another annotator")
    return result


def _with_unread(labelled: AnnotatorResult, annotator: str, pairs: pl.DataFrame) -> AnnotatorResult:
    if not (unread := pairs.height - labelled.labels.height):
        return labelled
    labels = pairs.join(
        labelled.labels, on=[QUERY_ID, DOC_ID], how="left", maintain_order="left"
    ).with_columns(pl.lit(annotator).alias(ANNOTATOR))
    what = "label[|s] of {} [was not made and is|were not made and are] null: no measure needs [it|them]"
    note = count_note(UNREAD, unread, what, about=(annotator,))
    labels = labels.select(list(tables.LABELS))
    return replace(labelled, labels=labels, notes=(*labelled.notes, note))


def _lengths(inputs: EvaluationInputs) -> tuple[tuple[str, int, int], ...]:
    counted = inputs.runs.group_by(RUN, QUERY_ID).agg(pl.len().alias(N))
    lists = inputs.lists().join(counted, on=[RUN, QUERY_ID], how="left")
    return tuple(lists.group_by(RUN, pl.col(N).fill_null(0)).len("lists").sort(RUN, N).iter_rows())


class _AnnotatorScores(NamedTuple):
    """Fields as in ``ShardScores``; ``labelled_queries`` counts failed queries too, or rows of further tables."""

    scores: pl.DataFrame
    reordered: pl.DataFrame
    undefined: pl.DataFrame
    labelled_queries: int
    real_valued: bool
    largest: float


def _score_labels(
    annotator: Annotator,
    labelled: AnnotatorResult,
    left_out: Sequence[str],
    inputs: EvaluationInputs,
    settings: Settings,
) -> _AnnotatorScores:
    labels = labelled.labels
    if settings.running.lazy and annotator.name in settings.resolved.asks:
        # No score depends on unread labels: any value will do.
        labels = labels.with_columns(pl.col(LABEL).fill_null(0.0))
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
        # No passages are listed in this part. Scores take the annotator's name from labels, so a dummy label
        # stands in: below 0, of no passage.
        nothing = {QUERY_ID: query_ids[:1], DOC_ID: "", ANNOTATOR: annotator.name, LABEL: -1.0}
        labels = pl.DataFrame(nothing, {name: tables.LABELS[name] for name in nothing})
    names = inputs.run_names
    bases: dict[Relevant, list[Measure]] = {}
    for measure in defined:
        bases.setdefault(settings.relevant(len(names), annotator, measure), []).append(measure)

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

    scores = by(inputs.runs, query_ids).filter(~pl.col(QUERY_ID).is_in(left_out))
    return _AnnotatorScores(
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
    """The measures that fit an annotator's labels, and the others (``tables.UNDEFINED``)."""
    measures, scale = settings.resolved.measures, settings.resolved.scales[annotator]
    reasons = settings.resolved.reasons(annotator, real_valued=real_valued, above_one=exceeding)
    refuse_without_measure(annotator, scale, reasons)
    undefined = [
        {ANNOTATOR: annotator, tables.MEASURE: str(measure), tables.NOTE: why}
        for measure, why in zip(measures, reasons, strict=True)
        # Utilities and other labels share no measure: such a pair is no undefined cell.
        if why and not scale.utilities and measure.labels != "utilities"
    ]
    defined = [measure for measure, why in zip(measures, reasons, strict=True) if not why]
    return defined, pl.DataFrame(undefined, schema=tables.UNDEFINED)


def refuse_without_threshold(
    annotator: str, labels: pl.DataFrame, measures: Sequence[Measure]
) -> None:
    """Refuse measures that real-valued labels above 1 would turn into means or sums of grades.

    If the same measure is listed with a threshold, too, it is undefined for this annotator in place of refused.
    """
    # Measures that need a threshold on any real-valued labels only get a note, as for labels up to 1.
    affected = [m for m in undefined_on_graded(measures, above_one=True) if m.takes_labels(True)]
    answered = {(m.kind, m.cutoff) for m in measures if m.rel is not None}
    first = next((m for m in affected if (m.kind, m.cutoff) not in answered), None)
    if first is None:
        return
    between = labels.filter(pl.col(LABEL) != pl.col(LABEL).round())
    query_id, doc_id, label = between.select(QUERY_ID, DOC_ID, LABEL).row(0)
    thresholds = dict.fromkeys(str(measure.with_threshold()) for measure in measures)
    problem = (
        f"{first} is not defined on the labels of {annotator}: some exceed 1, and some lie between "
    )
    problem += f"whole numbers ({label:g} for passage {doc_id!r} of query {query_id!r})"
    measures_named = f'`measures` "{" ".join(thresholds)}"'
    remedy = f"say what is relevant, as in {first.with_threshold()} ({measures_named}), or correct the label"
    raise InputError(problem, remedy, "measure.threshold")


def _downstream(
    inputs: EvaluationInputs,
    settings: Settings,
    lists: pl.DataFrame,
    read: Mapping[str, pl.DataFrame],
) -> pl.DataFrame:
    if settings.reader.end_to_end == "recorded":
        outputs = inputs.tables[OUTPUTS].with_columns(pl.lit(None, pl.String).alias(FAILURE))
        whole = lists.join(outputs, on=[RUN, QUERY_ID], how="left", maintain_order="left")
    elif not settings.reader.end_to_end or READER.name not in read:
        return tables.empty(tables.DOWNSTREAM)
    else:
        whole = reads_of(read[READER.name], lists)
    scored = score_outputs(whole, inputs.queries, settings.reader.metric)
    most = pl.lit(settings.longest_list, pl.Int64).alias(tables.K)
    scores = lists.select(RUN, QUERY_ID, most).hstack(scored[[tables.OUTPUT, tables.VALUE]])
    return scores.filter(scored[FAILURE].is_null()) if settings.running.skips_failed else scores


def _label_lists(
    settings: Settings,
    lists: pl.DataFrame,
    labelled: Mapping[str, AnnotatorResult],
    left_out: Mapping[str, list[str]],
    read: Mapping[str, pl.DataFrame],
) -> pl.DataFrame:
    if READER.name in read and settings.reader.end_to_end is True:
        # The output of a cut prompt says nothing about all passages together.
        cut = read[READER.name].filter(pl.col(FAILURE).str.starts_with(CUT_PROMPT))
        lists = lists.join(cut, on=IDENTITY, how="anti", maintain_order="left")
    lists = lists.explode(DOC_IDS)  # an empty list gives a null row
    for own in settings.resolved.annotators:
        if own.is_the_readers:
            labels = labelled[own.name].labels.rename({DOC_ID: DOC_IDS})
            return (
                lists.filter(~pl.col(QUERY_ID).is_in(left_out[own.name]))
                .join(labels, on=[QUERY_ID, DOC_IDS], how="left", maintain_order="left")
                .group_by(RUN, QUERY_ID, maintain_order=True)
                .agg(pl.col(LABEL).filter(pl.col(DOC_IDS).is_not_null()))
            )
    return tables.empty(tables.LABEL_LISTS)


def _notes(
    inputs: EvaluationInputs, settings: Settings, labelled: Mapping[str, AnnotatorResult]
) -> Iterator[Note]:
    yield from inputs.notes
    yield _note_unscorable(inputs, settings)
    in_use = {annotator.name for annotator in settings.resolved.annotators}
    for annotator in ANNOTATORS.values():
        for note in annotator.query_notes(inputs.queries):
            yield replace(note, printed=note.printed and annotator.name in in_use)
    for annotator in settings.resolved.annotators:
        yield from labelled[annotator.name].notes
    yield from constant_notes(inputs, [a.name for a in settings.resolved.listed], labelled)
    yield from _empty_lists(inputs, settings)
    yield from settings.notes_on(inputs)


def _note_unscorable(inputs: EvaluationInputs, settings: Settings) -> Note:
    can_score = get_metric(settings.reader.metric).can_score
    every = inputs.queries[tables.ANSWERS].to_list() if settings.scores_answers else []
    amount = sum(not all(map(can_score, answers)) for answers in every)
    what = f"[query has|queries have] an answer that {settings.reader.metric_name} cannot score, "
    return count_note("unscorable_answers", amount, f"{what}and that no output matches")


def _empty_lists(inputs: EvaluationInputs, settings: Settings) -> Iterator[Note]:
    empty = {run: lists for run, length, lists in _lengths(inputs) if length == 0}
    is_skipped = settings.ranking.missing == "skip"
    what = "[query has|queries have] no results in {} and "
    what += "[is|are] left out of it" if is_skipped else "[scores|score] 0 on every measure"
    for run in inputs.run_names:
        yield count_note("queries_without_results", empty.get(run, 0), what, about=(run,))


def constant_notes(
    inputs: EvaluationInputs, annotators: Iterable[str], labelled: Mapping[str, AnnotatorResult]
) -> Iterator[Note]:
    """Notes on constant labels, scores and lists; ``messages.notes.merge_notes`` keeps notes that every part has."""
    passages = inputs.corpus.height

    def note(code: str, name: str, values: pl.Series, alike: bool, text: str) -> Note:
        known = passages * (values.len() > 0)
        return Note(code, known * alike, text, (name,), passages=known)

    for name in annotators:
        labels = labelled[name].labels[LABEL].drop_nulls()
        text = f"all labels of {name} are {(labels.head(1).to_list() or [0])[0]:g}: they order no passages"
        yield note(ALIKE_LABELS, name, labels, labels.n_unique() == 1, text)
    score = pl.col(tables.SCORE).cast(pl.Float32)
    lists = inputs.runs.group_by(RUN, QUERY_ID, maintain_order=True).agg(
        pl.col(DOC_ID).sort_by(tables.RANK), score.n_unique(), pl.len().alias(N)
    )
    for run in inputs.run_names:
        own = lists.filter(pl.col(RUN) == run)
        scores, texts = own.filter(pl.col(N) > 1)[tables.SCORE], own[DOC_ID]
        text = f"all passages of a list of {run} have one score: it does not order them"
        yield note(ALIKE_SCORES, run, scores, scores.max() == 1, text)
        first = ", ".join((texts.head(1).to_list() or [[]])[0][:_SHOWN])
        text = f"{run} lists the same passages for every query ({first} first)"
        yield note(ALIKE_LISTS, run, texts, texts.list.join("\n").n_unique() == 1, text)
