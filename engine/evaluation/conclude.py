"""Conclude an evaluation: statistics, notes and means from the labels and scores of all queries."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median_low

import polars as pl

from engine import tables
from engine.evaluation.jobs import Job
from engine.evaluation.kept import ShardFolder
from engine.evaluation.score import ALIKE_LABELS, ALIKE_LISTS, ALIKE_SCORES, ShardScores
from engine.evaluation.settings import Settings
from engine.inputs.files import NO_INPUTS, EvaluationInputs
from engine.inputs.read import SHARED
from engine.inputs.shards import InputShards
from engine.labels.annotator import Annotator
from engine.labels.registry import ANNOTATORS
from engine.messages.errors import InputError
from engine.messages.notes import Note, count_note
from engine.messages.wording import agreeing, counted, listed
from engine.ranking.measures import comparable, parse_measure
from engine.ranking.scores import Relevant
from engine.ranking.ties import tie_notes
from engine.reading.outputs import OutputCounts, cut_notes, not_as_trained, output_notes, read_notes
from engine.statistics.comparison import STUDENTIZED, clusters_of, reachable_p
from engine.statistics.single_labels import by_place, unseen
from engine.statistics.single_labels import means as sampled_means
from engine.statistics.table import Statistics, analyse, primary_measures
from engine.tables import ANNOTATOR, CLUSTER, LABEL, MEASURE, QUERY_ID, RUN, RUN_B, VALUE, K, N

PRIMARY_UNDEFINED = "primary_measure_undefined"
SHORT_LISTS = "short_lists"
SAMPLED_LISTS = "sampled_lists"
_MOST_SHORT = 3


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """All tables of an evaluation, and its costs (see ``engine.tables``).

    Attributes:
        inputs: the evaluated inputs, cut at the cutoff; without rows if they were evaluated in parts.
        queries, passages: numbers of evaluated queries and passages.
        means: means over queries, by run, annotator and measure, with the number ``n`` of queries.
        end_to_end: mean end-to-end scores by run, with ``n``.
        undefined: cells without a meaning, with the reason (``tables.UNDEFINED``).
        longest: passages of the longest list within the cutoff.
        clusters: clusters of queries (``tables.CLUSTERS``); statistics use them if ``Bootstrap.cluster`` is set.
        readings: jobs with their costs, by role.
        further: further tables of the annotators, by name.
        seconds: duration of the whole evaluation; 0 if not measured.
        shards: the evaluated inputs, cut at the cutoff or larger.
        parts: the folder of the tables of passages (labels, traces, reads), a file for each shard; None if held here.
        sha256: digests of the evaluated inputs if ``inputs`` has no rows.
    """

    settings: Settings
    shards: InputShards
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
    longest: int
    clusters: pl.DataFrame
    reads: pl.DataFrame
    readings: Mapping[str, Job]
    traces: pl.DataFrame
    further: Mapping[str, pl.DataFrame]
    outputs: OutputCounts
    notes: tuple[Note, ...]
    seconds: float = 0.0
    parts: ShardFolder | None = None
    sha256: Mapping[str, str] = field(default_factory=dict)

    @property
    def primary_measures(self) -> dict[str, str]:
        """The measure that comparisons use, by annotator (``table.primary_measures``)."""
        return primary_measures(self.means.select(ANNOTATOR, MEASURE).iter_rows())

    def further_table(self, name: str) -> pl.DataFrame:
        """A further table of an annotator; empty if the annotator took no part."""
        return self.further.get(name, pl.DataFrame())


def largest_scores(settings: Settings, shards: InputShards) -> Callable[[str, str], float]:
    """A function from annotator and measure to the largest possible score of a list, independent of labels seen so far.

    The largest label bounds sums of gains (DCG, ERR): 1 for the engine's, the file's largest for judgments, else ∞.
    """

    def largest(annotator: str, measure: str) -> float:
        parsed, known = parse_measure(measure), ANNOTATORS.get(annotator)
        k = settings.ranking.k
        label = 1.0 if known else settings.resolved.scales[annotator].largest
        grows = parsed.largest(k, 1.0) < parsed.largest(k, math.inf)
        if grows and known and known.needs_input and known.judges_everything:
            name, read = known.needs_input.name, shards.read
            judged = (read(shard.number, passages=False).tables[name] for shard in shards.shards)
            some = next((table for table in judged if table.height), tables.empty(tables.QRELS))
            whole = tables.LARGEST if tables.LARGEST in some.columns else LABEL
            label = max([1.0, *some[whole].top_k(1)])
        return parsed.largest(k, max(1.0, label))

    return largest


def refuse_unjudged(labelled_queries: Mapping[str, int]) -> None:
    """Refuse an annotator that labelled nothing."""
    for name, queries in labelled_queries.items():
        if not queries:
            problem = f"no query is judged by {name} (a label below 0 means not judged)"
            remedy = "give judgments of the queries that are evaluated"
            raise InputError(problem, remedy, "qrels.unjudged")


def conclude(
    scored: ShardScores, readings: Mapping[str, Job], settings: Settings, shards: InputShards
) -> Evaluation:
    """The evaluation from labels and scores of all queries; ``readings``: the jobs, by role.

    Raises:
        InputError: an annotator labelled nothing.
    """
    refuse_unjudged(scored.labelled_queries)
    runs, bootstrap, clustered = shards.runs, settings.bootstrap, _clusters(shards)
    clusters = clusters_of(clustered, bootstrap.cluster or bootstrap.until)
    relevant = settings.relevant(len(runs))
    query_scores, downstream = scored.query_scores, scored.downstream

    statistics = analyse(
        query_scores,
        downstream,
        settings.bootstrap,
        undefined=scored.undefined,
        comparable=comparable,
        largest=largest_scores(settings, shards),
        clusters=clusters,
    )
    closed_book = (t for t in scored.further.values() if dict(t.schema) == tables.HARM_OUTCOMES)
    by_cluster = clusters if bootstrap.cluster else None
    against = scored.label_lists, downstream, bootstrap.at_fixed_n, by_cluster
    missed = unseen(*against, next(closed_book, None))
    statistics = replace(statistics, unseen=missed, by_place=by_place(*against))
    return Evaluation(
        settings=settings,
        shards=shards,
        inputs=NO_INPUTS,
        queries=scored.queries,
        passages=scored.passages,
        relevant=relevant,
        labels=scored.labels,
        query_scores=query_scores,
        means=_means(query_scores, [RUN, ANNOTATOR, MEASURE]),
        downstream=downstream,
        end_to_end=sampled_means(downstream, query_scores, 1 - settings.bootstrap.confidence)
        if settings.bootstrap.lists and downstream.height
        else _means(downstream, [RUN, K]),
        statistics=statistics,
        undefined=scored.undefined,
        longest=max((length for _, length, _ in scored.lengths), default=0),
        clusters=clustered,
        reads=scored.reads,
        readings=readings,
        traces=scored.traces,
        further={
            table.name: table.concluded(scored.further[table.name], settings, clusters)
            for annotator in settings.resolved.listed
            for table in annotator.further_tables
            if table.name in scored.further
        },
        outputs=scored.outputs,
        notes=(
            *_notes(scored, readings, settings, relevant, runs),
            *_unreachable_p(statistics, settings),
        ),
    )


def _clusters(shards: InputShards) -> pl.DataFrame:
    if shards.only is not None:
        return shards.only.order
    queries = shards.queries(tables.CLUSTERS)  # all columns of 100,000 queries take 70 MB
    is_clustered = CLUSTER in queries.columns
    return queries.select(list(tables.CLUSTERS)) if is_clustered else tables.empty(tables.CLUSTERS)


def is_told(
    note: Note, queries: int, passages: int, lengths: Iterable[tuple[str, int, int]]
) -> bool:
    """Whether a note holds: equal values need several queries and passages to be noted, equal lists several lists."""
    if note.code not in (ALIKE_LABELS, ALIKE_SCORES, ALIKE_LISTS):
        return True
    listed = sum(lists for run, length, lists in lengths if length and run in note.about)
    return note.is_shown and min(queries, passages) > 1 and (note.code != ALIKE_LISTS or listed > 1)


def _notes(
    scored: ShardScores,
    readings: Mapping[str, Job],
    settings: Settings,
    relevant: Relevant,
    runs: Sequence[str],
) -> Iterator[Note]:
    jobs, usual = readings.values(), settings.reader.augmentation
    read = [(job.spec, job.costs) for job in jobs]
    yield from read_notes(read, truncated=scored.truncated, skips=settings.running.skips_failed)
    yield not_as_trained((job.spec, job.ask.augmentation or usual) for job in jobs)
    what = "[query was|queries were] left out"
    yield count_note("skipped_queries", scored.left_out, what, printed=False)
    counts = scored.queries, scored.passages, scored.lengths
    for note in (note for note in scored.notes if is_told(note, *counts)):
        if note.code == SHARED and settings.bootstrap.until:
            text = note.text.partition(", but ")[0] + ", which are read whole: "
            yield replace(note, text=text + "intervals and p-values take clusters as independent")
        else:
            yield note
    yield from output_notes(scored.outputs, settings.reader.metric_name)
    readers = {role: (job.spec, job.ask.role.title) for role, job in readings.items()}
    yield from cut_notes(scored.outputs, readers)
    if settings.bootstrap.lists:
        queries = scored.downstream[QUERY_ID].n_unique()
        what = (
            f"[list|lists] of each run [was|were] read, of {scored.queries} queries: means and differences of "
            "end-to-end scores are estimated for all queries, and intervals hold for similar queries"
        )
        yield count_note(SAMPLED_LISTS, queries, what)
    yield from _real_valued(scored)
    yield _cut_runs(scored.cut_runs, settings)
    yield from tie_notes(scored.query_scores, scored.reordered)
    yield _short_lists(scored, runs, settings)
    yield _unbounded(settings)
    for annotator in settings.resolved.listed:
        scores = scored.query_scores.filter(pl.col(ANNOTATOR) == annotator.name)
        yield _other_measure(annotator, scores, scored, settings)
        yield from annotator.score_notes(settings, scores)
    if relevant == "list" and len(runs) > 1:
        text = "with `relevant` list a run loses nothing for passages that it missed: do not compare runs by these figures"
        yield Note("lists_do_not_compare_runs", 1, text)


def _means(table: pl.DataFrame, by: list[str]) -> pl.DataFrame:
    """Means of ``value`` over queries; values are sorted, so that the order of queries changes no bit."""
    mean = pl.col(VALUE).sort().mean()
    return table.group_by(by, maintain_order=True).agg(mean, pl.len().alias(N))


def _real_valued(scored: ShardScores) -> Iterator[Note]:
    shares = [name for name in scored.real_valued if name not in scored.above_one]
    grades = list(scored.above_one)
    for names, taken in (
        (shares, "are real-valued: P is their mean, Success the largest, R the share of their sum"),
        (grades, "are real-valued, and some exceed 1: only measures with a threshold count them"),
    ):
        text = f"labels of {', '.join(names)} {taken}"
        yield Note("real_valued_annotators", len(names), text, tuple(names))


def _other_measure(
    annotator: Annotator, scores: pl.DataFrame, scored: ShardScores, settings: Settings
) -> Note:
    primary, name = settings.resolved.measures[0], annotator.name
    used = str(primary if scores.is_empty() else scores[MEASURE][0])
    real_valued, above_one = name in scored.real_valued, scored.largest[name] > 1
    why = settings.resolved.reasons(name, real_valued=real_valued, above_one=above_one)[0]
    text = f"{name} is compared by {used}, since {primary}, the primary measure, is {why}"
    return Note(PRIMARY_UNDEFINED, int(used != str(primary)), text, (name,))


def _unbounded(settings: Settings) -> Note:
    resolved = settings.resolved
    scales = resolved.scales.items()
    names = [name for name, of in scales if of.largest == math.inf and name not in ANNOTATORS]
    sums = [
        str(measure) for measure in resolved.measures if measure.largest(1, math.inf) == math.inf
    ]
    text = f"{listed(sums)} of {listed(names)} decides nothing and its differences have no intervals, since labels "
    text += "have no upper bound: nDCG needs none"
    return Note("unbounded_labels", len(names) if sums else 0, text, tuple(names))


def _cut_runs(names: tuple[str, ...], settings: Settings) -> Note:
    k = settings.ranking.k
    return Note(
        "cut_runs",
        len(names),
        f"{', '.join(names)} {agreeing(len(names), '[lists|list]')} more than `k` "
        f"{counted(k, 'passage[|s]')}: measures without a cutoff look at the first {k}",
        names,
        printed=any(measure.cutoff is None for measure in settings.resolved.measures),
    )


def _short_lists(scored: ShardScores, runs: Sequence[str], settings: Settings) -> Note:
    k = settings.ranking.k
    by_run: dict[str, Counter[int]] = defaultdict(Counter)
    for run, length, lists in scored.lengths:
        by_run[run][length] += lists
    short = {}
    for run in runs:
        lengths, total = by_run[run], by_run[run].total()
        if 2 * (fewer := total - lengths[k]) > total:
            median = median_low(lengths.elements())
            short[run] = f"{run} for {fewer} of {total} queries (median {median})"
    shown = list(short.values())[:_MOST_SHORT]
    shown += [f"and {counted(rest, 'more run[|s]')}"] if (rest := len(short) - len(shown)) else []
    text = f"lists of fewer than `k` {counted(k, 'passage[|s]')}: {', '.join(shown)}"
    return Note(SHORT_LISTS, len(short), text, tuple(short))


def _unreachable_p(statistics: Statistics, settings: Settings) -> Iterator[Note]:
    bootstrap, compared = settings.bootstrap, statistics.comparisons
    first = pl.col(ANNOTATOR) == settings.resolved.listed[0].name
    runs = pl.col(RUN) != pl.col(RUN_B)
    drawn = pl.col(tables.METHOD) != STUDENTIZED
    # Families of the correction of p-values: see ``compare_cells``.
    families = (
        compared.filter(drawn, family, pl.col(tables.p_of(tables.TAU)).is_not_nan())
        for family in (runs, ~runs & first, ~runs & ~first)
    )
    tests = max(family.height for family in families)
    if not bootstrap.resamples or not tests:
        return
    least, needed = reachable_p(tests, bootstrap)
    if least > (level := 1 - bootstrap.confidence):
        text = f"with {bootstrap.resamples} resamples and {counted(tests, 'comparison[|s]')}, no p-value "
        text += f"can fall below {least:.2g}; `resamples` {needed} would let one reach {level:.2g}"
        yield Note("unreachable_p", tests, text)
