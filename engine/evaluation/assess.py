"""From inputs and reads to the evaluation: labels, scores, statistics, notes. Pure: nothing is read here."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import polars as pl

from engine import tables
from engine.evaluation.edited import EditedReads, count_edited_reads
from engine.evaluation.inputs import EvaluationInputs
from engine.evaluation.prepare import Prepared, Scored, checked, material_for, score
from engine.evaluation.read import Reading, alone, failed_queries, failures
from engine.evaluation.references import note_unscorable
from engine.evaluation.settings import Settings
from engine.labels.annotator import READER, Annotator, Labelled
from engine.labels.registry import ANNOTATORS
from engine.notes import Note, count_note
from engine.ranking.measures import comparable
from engine.ranking.scores import Relevant
from engine.reading.certify import Certificate
from engine.reading.reads import UNNAMED, ReadingCosts
from engine.scoring.metrics import score_outputs
from engine.statistics.comparison import PERMUTATION
from engine.statistics.table import Statistics, analyse
from engine.tables import (
    ANNOTATOR,
    FAILURE,
    MEASURE,
    OUTPUT,
    QUERY_ID,
    RUN,
    RUN_B,
    TRUNCATED,
    VALUE,
    K,
    N,
)
from engine.wording import agreeing, counted


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """All tables of an evaluation, and what they cost (see ``engine.tables``).

    Attributes:
        settings: what was evaluated and how.
        inputs: what was evaluated, cut at the cutoff.
        queries, passages: how many were evaluated.
        relevant: what counted as judged.
        means: of every run, annotator and measure over queries, with their number ``n``.
        end_to_end: the mean end-to-end score of every run, likewise.
        undefined: the cells that have no meaning, and why (``tables.UNDEFINED``).
        reads: the reads of all roles together.
        readings: what was read, by the name of the role that read.
        traces: what is behind every label.
        further: further tables of the annotators that were asked for, by name.
        notes: what qualifies the figures.
        seconds: of the whole evaluation; 0 if not measured.
        certificates: by role, where certificates were asked for.
        edited: what the edited runs cost, where there are such.
    """

    settings: Settings
    inputs: EvaluationInputs
    queries: int
    passages: int
    relevant: Relevant
    labels: pl.DataFrame
    query_scores: pl.DataFrame
    means: pl.DataFrame
    downstream: pl.DataFrame
    end_to_end: pl.DataFrame
    statistics: Statistics
    undefined: pl.DataFrame
    reads: pl.DataFrame
    readings: Mapping[str, Reading]
    traces: pl.DataFrame
    further: Mapping[str, pl.DataFrame]
    notes: tuple[Note, ...]
    seconds: float = 0.0
    certificates: Mapping[str, Certificate] = field(default_factory=dict)
    edited: tuple[EditedReads, ...] = ()

    def further_table(self, name: str) -> pl.DataFrame:
        """A further table of an annotator; empty where the annotator was not asked for."""
        return self.further.get(name, pl.DataFrame())


def assess(
    prepared: Prepared,
    readings: Mapping[str, Reading],
    certificates: Mapping[str, Certificate] | None = None,
) -> Evaluation:
    """The evaluation that inputs and reads give.

    Args:
        readings: by role, of everything that ``prepared.requests`` ask; of more, if it was read too.
        certificates: by role.

    Raises:
        InputError: labels that reads gave have none of the measures.
    """
    inputs, settings = prepared.inputs, prepared.settings
    listed = settings.labels.listed()
    labelled, left_out = _label(prepared, readings)
    scored = {
        annotator.name: prepared.scored.get(annotator.name)
        or _score_labels(annotator, labelled, left_out, prepared)
        for annotator in listed
    }
    names = [annotator.name for annotator in listed]
    query_scores = pl.concat([scored[name].scores for name in names])
    undefined = pl.concat([scored[name].undefined for name in names])
    downstream = _downstream(prepared, readings)
    statistics = analyse(
        query_scores,
        downstream,
        settings.bootstrap,
        undefined=undefined,
        never_chosen=[edited.name for edited in inputs.edited],
        comparable=comparable,
    )
    reads = pl.concat(
        [tables.empty(tables.READS), *(r.reads.drop(FAILURE) for r in readings.values())]
    )
    return Evaluation(
        settings=settings,
        inputs=inputs,
        queries=inputs.queries.height,
        passages=inputs.corpus.height,
        relevant=prepared.relevant,
        labels=pl.concat([labelled[name].labels for name in names]),
        query_scores=query_scores,
        means=_means(query_scores, [RUN, ANNOTATOR, MEASURE]),
        downstream=downstream,
        end_to_end=_means(downstream, [RUN, K]),
        statistics=statistics,
        undefined=undefined,
        reads=reads,
        readings=readings,
        traces=pl.concat([labelled[name].traces for name in names], how="diagonal"),
        further={
            name: table for made in listed for name, table in labelled[made.name].tables.items()
        },
        notes=(
            *_notes(prepared, readings, labelled, scored, left_out),
            *_unreachable_p(statistics, settings),
        ),
        certificates=certificates or {},
        edited=count_edited_reads(
            inputs,
            prepared.lists,
            alone=bool(settings.asks()),
            whole=settings.reader.end_to_end,
        ),
    )


def _label(
    prepared: Prepared, readings: Mapping[str, Reading]
) -> tuple[dict[str, Labelled], dict[str, list[str]]]:
    """What every annotator in use made, and the queries that failed reads leave out of its labels."""
    settings = prepared.settings
    asks = settings.asks()
    labelled = dict(prepared.labelled)
    left_out: dict[str, list[str]] = {}
    singles = alone(prepared.pairs)
    for annotator in settings.annotators_in_use():
        lost = [query for name in annotator.rests_on(settings) for query in left_out[name]]
        ask = asks.get(annotator.name)
        reads = _no_reads()
        if ask is not None and ask.role.name in readings:
            reads = readings[ask.role.name].of(singles)
            lost += failed_queries(reads)
        skipped = settings.running.failed_reads == "skip"
        left_out[annotator.name] = list(dict.fromkeys(lost)) if skipped else []
        if annotator.name not in labelled:
            material = material_for(
                annotator,
                prepared.inputs,
                settings,
                prepared.relevant,
                prepared.pairs,
                labelled,
            )
            made = annotator.label(replace(material, reads=reads))
            labelled[annotator.name] = checked(annotator, made)
    return labelled, left_out


def _no_reads() -> pl.DataFrame:
    return tables.empty({**tables.READS, FAILURE: pl.String()})


def _score_labels(
    annotator: Annotator,
    labelled: Mapping[str, Labelled],
    left_out: Mapping[str, list[str]],
    prepared: Prepared,
) -> Scored:
    made = labelled[annotator.name]
    scored = score(annotator, made, prepared.inputs, prepared.settings, prepared.relevant)
    kept = ~pl.col(QUERY_ID).is_in(left_out[annotator.name])
    return replace(scored, scores=scored.scores.filter(kept))


def _downstream(prepared: Prepared, readings: Mapping[str, Reading]) -> pl.DataFrame:
    """The downstream table of whole lists, less those that ``failed_reads`` leaves out."""
    settings, lists = prepared.settings, prepared.lists
    if not settings.reader.end_to_end or READER.name not in readings:
        return tables.empty(tables.DOWNSTREAM)
    whole = readings[READER.name].of(lists)
    scored = score_outputs(whole, prepared.inputs.queries, settings.reader.metric)
    scores = lists.select(RUN, QUERY_ID).with_columns(
        pl.lit(settings.reader.end_to_end_k or settings.ranking.k, pl.Int64).alias(K),
        scored[OUTPUT],
        scored[VALUE],
    )
    if settings.running.failed_reads == "skip":
        return scores.filter(scored[FAILURE].is_null())
    return scores


def _means(table: pl.DataFrame, by: list[str]) -> pl.DataFrame:
    """Means of ``value`` over queries, and over how many."""
    return table.group_by(by, maintain_order=True).agg(pl.col(VALUE).mean(), pl.len().alias(N))


def _notes(
    prepared: Prepared,
    readings: Mapping[str, Reading],
    labelled: Mapping[str, Labelled],
    scored: Mapping[str, Scored],
    left_out: Mapping[str, list[str]],
) -> Iterator[Note]:
    """What qualifies the figures, in the order in which it is printed."""
    inputs, settings = prepared.inputs, prepared.settings
    yield from _read_notes(readings, settings)
    listed = settings.labels.listed()
    lost = {query for annotator in listed for query in left_out[annotator.name]}
    yield count_note(
        "skipped_queries", len(lost), "[query was|queries were] left out", printed=False
    )
    yield from inputs.notes
    yield note_unscorable(inputs, settings)
    in_use = {annotator.name for annotator in settings.annotators_in_use()}
    for annotator in ANNOTATORS.values():
        for note in annotator.query_notes(inputs.queries):
            yield replace(note, printed=note.printed and annotator.name in in_use)
    for annotator in settings.annotators_in_use():
        yield from labelled[annotator.name].notes
    yield from _empty_lists(prepared)
    yield from _real_valued(scored)
    yield _cut_runs(prepared)
    for annotator in listed:
        material = material_for(
            annotator, inputs, settings, prepared.relevant, prepared.pairs, labelled
        )
        yield from annotator.score_notes(material, scored[annotator.name].scores)
    if prepared.relevant == "list" and inputs.runs[RUN].n_unique() > 1:
        yield Note(
            "lists_do_not_compare_runs",
            1,
            "`relevant` list excuses what a run did not find: its figures do not compare runs",
        )


def _real_valued(scored: Mapping[str, Scored]) -> Iterator[Note]:
    """Whose labels lie between whole numbers, and how measures take them."""
    shares = [name for name, of in scored.items() if of.real_valued and not of.above_one]
    grades = [name for name, of in scored.items() if of.above_one]
    for names, taken in (
        (shares, "are real-valued: P is their mean, Success the largest, R the share of their sum"),
        (grades, "are real-valued, and some exceed 1: only measures with a threshold count them"),
    ):
        text = f"labels of {', '.join(names)} {taken}"
        yield Note("real_valued_annotators", len(names), text, tuple(names))


def _read_notes(readings: Mapping[str, Reading], settings: Settings) -> Iterator[Note]:
    consequence = (
        "and the figures that need [it|them] go without [its query|their queries]"
        if settings.running.failed_reads == "skip"
        else "and [counts|count] as 0"
    )
    yield count_note("failed_reads", failures(readings), f"read[|s] failed {consequence}")
    yield count_note(
        "truncated_reads",
        sum(int(reading.reads[TRUNCATED].sum()) for reading in readings.values()),
        "[read was|reads were] cut to the reader's longest input",
    )
    yield count_note(
        "memory_halvings",
        sum(reading.costs.memory_halvings for reading in readings.values()),
        "[batch was|batches were] halved because memory ran out",
    )
    yield damaged_files(reading.costs for reading in readings.values())
    yield _own_executor(readings)


def damaged_files(costs: Iterable[ReadingCosts]) -> Note:
    """Which files of the read store were damaged, and where they are now."""
    paths = tuple(dict.fromkeys(path for of_one in costs for path in of_one.damaged_files))
    first = f", {paths[0]}{' first' if len(paths) > 1 else ''}" if paths else ""
    what = f"damaged [file|files] of the read store [was|were] set aside and not used{first}"
    return count_note("damaged_store_files", len(paths), what, about=paths)


def _own_executor(readings: Mapping[str, Reading]) -> Note:
    """Who read, where it was not the readers that are named everywhere else."""
    specs = [reading.spec for reading in readings.values() if reading.spec.executor]
    names = tuple(dict.fromkeys(spec.executor for spec in specs))
    readers = ", ".join(dict.fromkeys(spec.name for spec in specs))
    unkept = ", and are not stored" if UNNAMED in names else ""
    text = f"reads were done by {', '.join(names)}, not by {readers}{unkept}"
    return Note("own_executor", len(names), text, names)


def _empty_lists(prepared: Prepared) -> Iterator[Note]:
    """How many queries each run lists nothing for, and what that means."""
    runs, total = prepared.inputs.runs, prepared.inputs.queries.height
    with_results = runs.group_by(RUN, maintain_order=True).agg(pl.col(QUERY_ID).n_unique())
    for run, some in with_results.iter_rows():
        amount = total - some
        consequence = (
            f"{agreeing(amount, '[is|are]')} left out of it"
            if prepared.settings.ranking.missing == "skip"
            else f"{agreeing(amount, '[scores|score]')} 0 on every measure"
        )
        lacking = f"{counted(amount, '[query has|queries have]')} no results in {run}"
        yield Note("queries_without_results", amount, f"{lacking} and {consequence}", (run,))


def _cut_runs(prepared: Prepared) -> Note:
    names, k = prepared.inputs.cut_runs, prepared.settings.ranking.k
    return Note(
        "cut_runs",
        len(names),
        f"{', '.join(names)} {agreeing(len(names), '[lists|list]')} more than `k` "
        f"{counted(k, 'passage[|s]')}: measures without a cutoff look at the first {k}",
        names,
        printed=any(measure.cutoff is None for measure in prepared.settings.measures()),
    )


def _unreachable_p(statistics: Statistics, settings: Settings) -> Iterator[Note]:
    """That no p-value can be significant, where there are too few resamples for the comparisons."""
    bootstrap, compared = settings.bootstrap, statistics.comparisons
    of_first = pl.col(ANNOTATOR) == settings.labels.names()[0]
    of_runs = pl.col(RUN) != pl.col(RUN_B)
    # As the p-values are corrected: see ``compare_cells``.
    families = (
        compared.filter(family, pl.col(tables.p_of(tables.TAU)).is_not_nan())
        for family in (of_runs, ~of_runs & of_first, ~of_runs & ~of_first)
    )
    family = max(families, key=lambda found: found.height)
    tests = family.height
    if not bootstrap.resamples or not tests:
        return
    # The least p-value that this many resamples can give, after Holm's correction: of resamples twice
    # the smaller tail is taken, of permutations both tails.
    tails = 1 if (family[tables.METHOD] == PERMUTATION).any() else 2
    least = min(1.0, tails * tests / (bootstrap.resamples + 1))
    if least > 1 - bootstrap.confidence:
        needed = math.ceil(tails * tests / (1 - bootstrap.confidence))
        yield Note(
            "unreachable_p",
            tests,
            f"with {bootstrap.resamples} resamples and {counted(tests, 'comparison[|s]')} no p-value "
            f"can fall below {least:.2g}; `resamples` {needed} would let one reach "
            f"{1 - bootstrap.confidence:.2g}",
        )
