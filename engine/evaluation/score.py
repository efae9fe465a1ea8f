"""Label and score queries from inputs and reads.

Each query is scored by itself, so several machines can score parts of an evaluation, which ``merge`` joins.
``assess`` makes what concerns all queries together: statistics, verdict.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import polars as pl

from engine import tables
from engine.evaluation.answer_counts import Outputs, count_outputs, merge_outputs
from engine.evaluation.budgets import budget_notes
from engine.evaluation.constant import constant_notes
from engine.evaluation.inputs import EvaluationInputs
from engine.evaluation.prepare import (
    AnnotatorScores,
    Prepared,
    label,
    score_annotator,
    split_measures,
)
from engine.evaluation.read_jobs import IDENTITY, Reading, alone, closed_book, failed_queries
from engine.evaluation.reference_answers import note_unscorable
from engine.evaluation.settings import Settings
from engine.evaluation.shards import InputShards
from engine.labels.annotator import READER, Annotator, Labelled
from engine.labels.registry import ANNOTATORS
from engine.messages.notes import Note, count_note, merge_notes
from engine.ranking.measures import largest_value, parse_measure
from engine.reading.remote.whole_prompts import CUT_PROMPT
from engine.scoring.metrics import score_outputs
from engine.tables import ANNOTATOR, DOC_ID, DOC_IDS, FAILURE, LABEL, MEASURE, QUERY_ID, RUN, N

# Code of the note on labels that were not needed.
UNREAD = "labels_not_needed"


@dataclass(frozen=True, kw_only=True)
class Scored:
    """Labels and scores of some queries, or of all.

    Attributes:
        labels, traces, reads: tables of all listed passages; empty in what was merged.
        further: further tables, or the outcomes that they are concluded from, by the name of the table; in
            what was merged the latter alone.
        query_scores, undefined, downstream, label_lists: see ``engine.tables``.
        reordered: scores with equal scores in another order (``ranking.ties.REORDERED``).
        labelled_queries: of how many queries each annotator labelled something.
        real_valued: annotators of whose labels some lie between whole numbers.
        largest: the largest label of each annotator, 0 or more.
        truncated: reads whose input was cut.
        left_out: queries that failed reads leave out of some figure.
        lengths: a run, a length and how many of its lists within the cutoff have it.
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
    outputs: Outputs = field(default_factory=Outputs)
    notes: tuple[Note, ...] = ()

    @property
    def above_one(self) -> tuple[str, ...]:
        """Annotators of whose labels some lie between whole numbers, and these or others exceed 1."""
        return tuple(name for name in self.real_valued if self.largest[name] > 1)


def score_queries(prepared: Prepared, readings: Mapping[str, Reading]) -> Scored:
    """Label and score what was prepared; ``readings``: by role, of all that ``prepared.requests`` ask, or of more.

    Raises:
        InputError: labels that reads gave have none of the measures.
    """
    inputs, settings = prepared.inputs, prepared.settings
    listed = settings.resolved.listed
    labelled, left_out = _label(prepared, readings)
    scored = {
        annotator.name: prepared.scored.get(annotator.name)
        or _score_labels(annotator, labelled, left_out, prepared)
        for annotator in listed
    }
    names = [annotator.name for annotator in listed]
    read = [reading.reads.drop(FAILURE) for reading in readings.values()]
    downstream = _downstream(prepared, readings)
    return Scored(
        queries=inputs.queries.height,
        passages=inputs.corpus.height,
        labels=pl.concat([labelled[name].labels for name in names]),
        traces=pl.concat([labelled[name].traces for name in names], how="diagonal"),
        reads=pl.concat([tables.empty(tables.READS), *read]),
        further={
            name: table for made in listed for name, table in labelled[made.name].tables.items()
        },
        query_scores=pl.concat([scored[name].scores for name in names]),
        reordered=pl.concat([scored[name].reordered for name in names]),
        undefined=pl.concat([scored[name].undefined for name in names]),
        downstream=downstream,
        label_lists=_label_lists(prepared, labelled, left_out, readings),
        labelled_queries={name: scored[name].labelled_queries for name in names},
        real_valued=tuple(name for name in names if scored[name].real_valued),
        largest={name: scored[name].largest for name in names},
        truncated=sum(int(reading.reads[tables.TRUNCATED].sum()) for reading in readings.values()),
        left_out=len({query for name in names for query in left_out[name]}),
        cut_runs=inputs.cut_runs,
        lengths=_lengths(inputs),
        outputs=count_outputs(readings.values(), downstream, inputs.queries, settings),
        notes=tuple(_notes(prepared, labelled)),
    )


def largest_scores(settings: Settings, shards: InputShards) -> Callable[[str, str], float]:
    """What gives the largest score of a list, by annotator and measure; no label that was seen decides it.

    DCG has one where labels have: 1 for the engine's own, the largest of the whole file for judgments; else it is infinite.
    """

    def largest(annotator: str, measure: str) -> float:
        parsed, known = parse_measure(measure), ANNOTATORS.get(annotator)
        label = 1.0 if known else settings.resolved.scales[annotator].largest
        if parsed.kind == "DCG" and known and known.needs_input and known.judges_everything:
            name, read = known.needs_input.name, shards.read
            judged = (read(one.number, passages=False).tables[name] for one in shards.shards)
            some = next((table for table in judged if table.height), tables.empty(tables.QRELS))
            whole = tables.LARGEST if tables.LARGEST in some.columns else LABEL
            label = max([1.0, *some[whole].top_k(1)])
        return largest_value(parsed, settings.ranking.k, label)

    return largest


def merge(
    parts: Sequence[Scored], settings: Settings, *, runs: Sequence[str], passages: int
) -> Scored:
    """Merge what was scored in parts.

    What measures mean depends on all labels: where those of one part lie between whole numbers and
    those of another exceed 1, a measure may be undefined that both parts have.

    Args:
        passages: how many are listed; the parts may share some.

    Raises:
        InputError: the labels of an annotator have none of the measures.
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
    scores = pl.concat([part.query_scores for part in parts])
    order = {
        ANNOTATOR: annotators,
        RUN: list(runs),
        MEASURE: [str(measure) for measure in settings.resolved.measures],
    }
    scores = scores.join(
        undefined, on=[ANNOTATOR, MEASURE], how="anti", maintain_order="left"
    ).sort(
        [pl.col(name).replace_strict(_places(names), default=0) for name, names in order.items()],
        maintain_order=True,
    )
    downstream = pl.concat([part.downstream for part in parts])
    return Scored(
        queries=sum(part.queries for part in parts),
        passages=passages,
        labels=first.labels.clear(),
        traces=first.traces.clear(),
        reads=first.reads.clear(),
        further={
            name: pl.concat([part.further[name] for part in parts])
            for name in names_of_concluded(settings)
        },
        query_scores=scores,
        reordered=pl.concat([part.reordered for part in parts]),
        undefined=undefined,
        downstream=downstream.sort(
            pl.col(RUN).replace_strict(_places(list(runs)), default=0), maintain_order=True
        ),
        label_lists=pl.concat(part.label_lists for part in parts),
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


def names_of_concluded(settings: Settings) -> list[str]:
    """The names of further tables that are concluded from the outcomes of all queries."""
    made = (table for known in settings.resolved.listed for table in known.further_tables)
    return [table.name for table in made if table.conclusion is not None]


def _places(names: Sequence[str]) -> dict[str, int]:
    return {name: place for place, name in enumerate(names)}


def _label(
    prepared: Prepared, readings: Mapping[str, Reading]
) -> tuple[dict[str, Labelled], dict[str, list[str]]]:
    """What every annotator in use made, and the queries that failed reads leave out of its labels."""
    settings = prepared.settings
    labelled = dict(prepared.labelled)
    left_out: dict[str, list[str]] = {}
    for annotator in settings.resolved.annotators:
        lost = [query for name in annotator.rests_on(settings) for query in left_out[name]]
        ask = settings.resolved.asks.get(annotator.name)
        reads, pairs = None, prepared.pairs
        if ask is not None and ask.role.name in readings:
            reading, singles = readings[ask.role.name], alone(pairs)
            if settings.running.lazy:
                singles = singles.join(
                    reading.wanted, on=IDENTITY, how="semi", maintain_order="left"
                )
                pairs = singles.select(QUERY_ID, pl.col(DOC_IDS).list.first().alias(DOC_ID))
            reads = reading.of(pl.concat([singles, *[closed_book(pairs)] * ask.closed]))
            lost += failed_queries(reads)
        skipped = settings.running.skips_failed
        left_out[annotator.name] = list(dict.fromkeys(lost)) if skipped else []
        if annotator.name not in labelled:
            made = label(annotator, prepared.inputs, settings, pairs, labelled, reads=reads)
            if settings.running.lazy:
                made = _with_unread(made, annotator.name, prepared.pairs)
            labelled[annotator.name] = made
    return labelled, left_out


def _with_unread(labelled: Labelled, annotator: str, pairs: pl.DataFrame) -> Labelled:
    """Labels of all listed passages: null for those that no measure needs, which a note counts."""
    if not (unread := pairs.height - labelled.labels.height):
        return labelled
    labels = (
        pairs.join(labelled.labels, on=[QUERY_ID, DOC_ID], how="left", maintain_order="left")
        .with_columns(pl.lit(annotator).alias(ANNOTATOR))
        .select(list(tables.LABELS))
    )
    what = "label[|s] of {} [was not made and is|were not made and are] null: no measure needs [it|them]"
    note = count_note(UNREAD, unread, what, about=(annotator,))
    return replace(labelled, labels=labels, notes=(*labelled.notes, note))


def _lengths(inputs: EvaluationInputs) -> tuple[tuple[str, int, int], ...]:
    counted = inputs.runs.group_by(RUN, QUERY_ID).agg(pl.len().alias(N))
    lists = inputs.lists().join(counted, on=[RUN, QUERY_ID], how="left")
    return tuple(lists.group_by(RUN, pl.col(N).fill_null(0)).len("lists").sort(RUN, N).iter_rows())


def _score_labels(
    annotator: Annotator,
    labelled: Mapping[str, Labelled],
    left_out: Mapping[str, list[str]],
    prepared: Prepared,
) -> AnnotatorScores:
    labels = labelled[annotator.name]
    if prepared.settings.running.lazy and annotator.name in prepared.settings.resolved.asks:
        # Whatever these labels are, no score depends on them.
        unread = pl.col(LABEL).fill_null(0.0)
        labels = replace(labels, labels=labels.labels.with_columns(unread))
    scored = score_annotator(annotator, labels, prepared.inputs, prepared.settings)
    kept = ~pl.col(QUERY_ID).is_in(left_out[annotator.name])
    return replace(scored, scores=scored.scores.filter(kept))


def _downstream(prepared: Prepared, readings: Mapping[str, Reading]) -> pl.DataFrame:
    """The downstream table of whole lists, less those that ``failed_reads`` leaves out."""
    settings, lists = prepared.settings, prepared.lists
    if not settings.reader.end_to_end or READER.name not in readings:
        return tables.empty(tables.DOWNSTREAM)
    whole, depth = readings[READER.name].of(lists), settings.reader.end_to_end_k
    scored = score_outputs(whole, prepared.inputs.queries, settings.reader.metric)
    scores = lists.select(RUN, QUERY_ID).with_columns(
        pl.lit(depth if isinstance(depth, int) else settings.ranking.k, pl.Int64).alias(tables.K),
        scored[tables.OUTPUT],
        scored[tables.VALUE],
    )
    if settings.running.skips_failed:
        return scores.filter(scored[FAILURE].is_null())
    return scores


def _label_lists(
    prepared: Prepared,
    labelled: Mapping[str, Labelled],
    left_out: Mapping[str, list[str]],
    readings: Mapping[str, Reading],
) -> pl.DataFrame:
    """``tables.LABEL_LISTS``: no rows where no labels are the reader's own."""
    lists = prepared.lists
    if (
        READER.name in readings
    ):  # what a server made of a cut prompt says nothing of all passages together
        cut = readings[READER.name].reads.filter(pl.col(FAILURE).str.starts_with(CUT_PROMPT))
        lists = lists.join(cut, on=IDENTITY, how="anti", maintain_order="left")
    lists = lists.explode(DOC_IDS)  # of an empty list, a row of null
    for own in prepared.settings.resolved.annotators:
        if own.is_the_readers:
            labels = labelled[own.name].labels.rename({DOC_ID: DOC_IDS})
            return (
                lists.filter(~pl.col(QUERY_ID).is_in(left_out[own.name]))
                .join(labels, on=[QUERY_ID, DOC_IDS], how="left", maintain_order="left")
                .group_by(RUN, QUERY_ID, maintain_order=True)
                .agg(pl.col(LABEL).filter(pl.col(DOC_IDS).is_not_null()))
            )
    return tables.empty(tables.LABEL_LISTS)


def _notes(prepared: Prepared, labelled: Mapping[str, Labelled]) -> Iterator[Note]:
    inputs, settings = prepared.inputs, prepared.settings
    yield from inputs.notes
    yield note_unscorable(inputs, settings)
    in_use = {annotator.name for annotator in settings.resolved.annotators}
    for annotator in ANNOTATORS.values():
        for note in annotator.query_notes(inputs.queries):
            yield replace(note, printed=note.printed and annotator.name in in_use)
    for annotator in settings.resolved.annotators:
        yield from labelled[annotator.name].notes
    yield from constant_notes(inputs, [one.name for one in settings.resolved.listed], labelled)
    yield from _empty_lists(prepared)
    yield from budget_notes(inputs, settings)


def _empty_lists(prepared: Prepared) -> Iterator[Note]:
    empty = {run: lists for run, length, lists in _lengths(prepared.inputs) if length == 0}
    consequence = (
        "and [is|are] left out of it"
        if prepared.settings.ranking.missing == "skip"
        else "and [scores|score] 0 on every measure"
    )
    for run in prepared.inputs.run_names:
        yield count_note(
            "queries_without_results",
            empty.get(run, 0),
            f"[query has|queries have] no results in {{}} {consequence}",
            about=(run,),
        )
