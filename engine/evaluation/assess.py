"""Conclude an evaluation: statistics, notes and means from the labels and scores of all queries."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import polars as pl

from engine import tables
from engine.evaluation.answer_counts import Outputs, cut_notes, output_notes
from engine.evaluation.constant import is_told
from engine.evaluation.inputs import NO_INPUTS, EvaluationInputs
from engine.evaluation.parts import InFolder
from engine.evaluation.prepare import refuse_unjudged
from engine.evaluation.query_clusters import SHARED
from engine.evaluation.read_jobs import Reading
from engine.evaluation.score import Scored, largest_scores
from engine.evaluation.settings import Settings
from engine.evaluation.shards import InputShards
from engine.labels.annotator import Annotator
from engine.labels.registry import ANNOTATORS
from engine.messages.notes import Note, count_note
from engine.messages.wording import agreeing, counted, listed
from engine.ranking.measures import comparable
from engine.ranking.scores import Relevant
from engine.ranking.ties import tie_notes
from engine.reading.costs import ReadingCosts
from engine.reading.models.weights import BUNDLED_FID
from engine.reading.protocol import UNNAMED
from engine.reading.repetition import RepeatabilityCheck
from engine.statistics.cells import clusters_of
from engine.statistics.choice import primary_measures
from engine.statistics.comparison import STUDENTIZED, reachable_p
from engine.statistics.sampled_lists import means as sampled_means
from engine.statistics.single_labels import by_place, unseen
from engine.statistics.table import Statistics, analyse
from engine.tables import ANNOTATOR, CLUSTER, MEASURE, QUERY_ID, RUN, RUN_B, VALUE, K, N

# Codes of notes: that an annotator is compared by another measure than the rest, that most lists are
# shorter than the cutoff, and that not all were read.
PRIMARY_UNDEFINED = "primary_measure_undefined"
SHORT_LISTS = "short_lists"
SAMPLED_LISTS = "sampled_lists"
STORED = "stored_reads"
_MOST_SHORT = 3


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """All tables of an evaluation, and what they cost (see ``engine.tables``).

    Attributes:
        inputs: what was evaluated, cut at the cutoff; without rows where that was done in parts.
        queries, passages: how many were evaluated.
        means: of every run, annotator and measure over queries, with their number ``n``.
        end_to_end: the mean end-to-end score of every run, likewise.
        undefined: the cells that have no meaning, and why (``tables.UNDEFINED``).
        longest: passages of the longest list within the cutoff.
        clusters: of the queries (``tables.CLUSTERS``); ``Bootstrap.cluster`` says whether statistics make use of them.
        readings: what was read, by the name of the role that read.
        further: further tables of the annotators that were asked for, by name.
        seconds: of the whole evaluation; 0 if not measured.
        certificates: by role, where certificates were asked for.
        shards: what was evaluated, cut at the cutoff or at a larger one.
        parts: where the tables of passages (labels, traces, reads) are, in as many files as there are
            shards; None where they are here.
        sha256: digests of what was evaluated, where ``inputs`` has no rows.
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
    readings: Mapping[str, Reading]
    traces: pl.DataFrame
    further: Mapping[str, pl.DataFrame]
    outputs: Outputs
    notes: tuple[Note, ...]
    seconds: float = 0.0
    certificates: Mapping[str, RepeatabilityCheck] = field(default_factory=dict)
    parts: InFolder | None = None
    sha256: Mapping[str, str] = field(default_factory=dict)

    @property
    def primary_measures(self) -> dict[str, str]:
        """By annotator, the measure that it is compared by (``choice.primary_measures``)."""
        return primary_measures(self.means.select(ANNOTATOR, MEASURE).iter_rows())

    def further_table(self, name: str) -> pl.DataFrame:
        """A further table of an annotator; empty where the annotator was not asked for."""
        return self.further.get(name, pl.DataFrame())


def conclude(
    scored: Scored, readings: Mapping[str, Reading], settings: Settings, shards: InputShards
) -> Evaluation:
    """The evaluation that labels and scores of all queries give; of ``readings`` no tables are looked at.

    Raises:
        InputError: an annotator labelled nothing.
    """
    refuse_unjudged(scored.labelled_queries)
    runs, queries, bootstrap = shards.runs, shards.queries(), settings.bootstrap
    clustered = tables.empty(tables.CLUSTERS)
    if shards.only is not None:
        clustered = shards.only.order
    elif CLUSTER in queries.columns:
        clustered = queries.select(list(tables.CLUSTERS))
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
    against = scored.label_lists, downstream, bootstrap.of_fixed_n, by_cluster
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


def _notes(
    scored: Scored,
    readings: Mapping[str, Reading],
    settings: Settings,
    relevant: Relevant,
    runs: Sequence[str],
) -> Iterator[Note]:
    yield from _read_notes(readings, settings, truncated=scored.truncated)
    yield count_note(
        "skipped_queries", scored.left_out, "[query was|queries were] left out", printed=False
    )
    of_all = scored.queries, scored.passages, scored.lengths
    for note in (note for note in scored.notes if is_told(note, *of_all)):
        if note.code == SHARED and settings.bootstrap.until:
            text = note.text.partition(", but ")[0] + ", which are read whole: "
            yield replace(note, text=text + "intervals and p-values take these as independent")
        else:
            yield note
    yield from output_notes(scored.outputs, settings)
    yield from cut_notes(scored.outputs, readings)
    if settings.bootstrap.lists:
        read = scored.downstream[QUERY_ID].n_unique()
        what = (
            f"[list|lists] of each run [was|were] read, of {scored.queries} queries: means and differences of "
            "end-to-end scores are estimated for all of these, and intervals hold for other queries like them"
        )
        yield count_note(SAMPLED_LISTS, read, what)
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
        yield Note(
            "lists_do_not_compare_runs",
            1,
            "`relevant` list excuses what a run did not find: its figures do not compare runs",
        )


def _means(table: pl.DataFrame, by: list[str]) -> pl.DataFrame:
    """Means of ``value`` over queries, and over how many.

    Sorted, so that they are the same to the last bit in whatever order the queries come.
    """
    mean = pl.col(VALUE).sort().mean()
    return table.group_by(by, maintain_order=True).agg(mean, pl.len().alias(N))


def _real_valued(scored: Scored) -> Iterator[Note]:
    shares = [name for name in scored.real_valued if name not in scored.above_one]
    grades = list(scored.above_one)
    for names, taken in (
        (shares, "are real-valued: P is their mean, Success the largest, R the share of their sum"),
        (grades, "are real-valued, and some exceed 1: only measures with a threshold count them"),
    ):
        text = f"labels of {', '.join(names)} {taken}"
        yield Note("real_valued_annotators", len(names), text, tuple(names))


def _read_notes(
    readings: Mapping[str, Reading], settings: Settings, *, truncated: int
) -> Iterator[Note]:
    costs = [reading.costs for reading in readings.values()]

    def summed(code: str, what: str, cost: str) -> Note:
        return count_note(code, sum(getattr(of_one, cost) for of_one in costs), what)

    consequence = (
        "and the figures that need [it|them] go without [its query|their queries]"
        if settings.running.skips_failed
        else "and [counts|count] as 0"
    )
    yield summed("failed_reads", f"LLM call[|s] failed {consequence}", "failed")
    yield count_note(
        "truncated_reads", truncated, "[prompt was|prompts were] cut to the reader's longest input"
    )
    what = "[batch was|batches were] halved because memory ran out"
    yield summed("memory_halvings", what, "memory_halvings")
    what = "read[ was| were] done one at a time: this reader gives other answers to shorter texts in a batch"
    yield summed("lone_reads", what, "alone")
    yield damaged_files(costs)
    yield _not_as_trained(readings, settings)
    yield _not_applied(readings)
    yield _own_executor(readings)
    yield _behind_api(readings)
    yield from _own_readers(readings)
    what = "answer[|s] came without a count of tokens: [its|their] price is not known, "
    what += "and bounds count what was reserved for [it|them]"
    yield summed("unreported_answers", what, "unreported_answers")
    for reading in readings.values():
        spec = reading.spec
        made = f"of {{}} [was|were] made {listed(spec.doubts)}; `reread` makes [it|them] anew"
        amount, name = reading.costs.reused if spec.doubts else 0, spec.executor or spec.name
        yield count_note(STORED, amount, f"stored LLM call[|s] {made}", about=(name,))
    what = (
        "answer[|s] named another model, or another fingerprint of the server, than the first one"
    )
    yield summed("changed_servers", what, "changed_servers")


def _other_measure(
    annotator: Annotator, scores: pl.DataFrame, scored: Scored, settings: Settings
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
    sums = [str(measure) for measure in resolved.measures if measure.kind == "DCG"]
    text = f"{listed(sums)} of {listed(names)} decides nothing and its differences have no intervals, since nobody "
    text += "knows how large a label can be: nDCG needs no bound"
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


def _short_lists(scored: Scored, runs: Sequence[str], settings: Settings) -> Note:
    k = settings.ranking.k
    by_run: dict[str, Counter[int]] = defaultdict(Counter)
    for run, length, lists in scored.lengths:
        by_run[run][length] += lists
    short = {}
    for run in runs:
        lengths, total = by_run[run], by_run[run].total()
        if 2 * (fewer := total - lengths[k]) > total:
            median = next(
                most
                for most in sorted(lengths)
                if 2 * sum(lists for length, lists in lengths.items() if length <= most) >= total
            )
            short[run] = f"{run} for {fewer} of {total} queries (median {median})"
    told = list(short.values())[:_MOST_SHORT]
    told += [f"and {counted(rest, 'more run[|s]')}"] if (rest := len(short) - len(told)) else []
    text = f"lists of fewer than `k` {counted(k, 'passage[|s]')}: {', '.join(told)}"
    return Note(SHORT_LISTS, len(short), text, tuple(short))


def damaged_files(costs: Iterable[ReadingCosts]) -> Note:
    """Which files of the read store were damaged, and where they are now."""
    paths = tuple(dict.fromkeys(path for of_one in costs for path in of_one.damaged_files))
    first = f", {paths[0]}{' first' if len(paths) > 1 else ''}" if paths else ""
    what = f"damaged [file|files] of the read store [was|were] set aside and not used{first}"
    return count_note("damaged_store_files", len(paths), what, about=paths)


def _not_as_trained(readings: Mapping[str, Reading], settings: Settings) -> Note:
    named = [reading for reading in readings.values() if reading.spec.name == BUNDLED_FID]
    kinds = {reading.ask.augmentation or settings.reader.augmentation for reading in named}
    return Note(
        "reader_not_as_trained",
        int("in-prompt" in kinds),
        f"{BUNDLED_FID} was trained to read as Fusion-in-Decoder, and read prompts: give `augmentation` fid",
    )


def _not_applied(readings: Mapping[str, Reading]) -> Note:
    specs = [reading.spec for reading in readings.values() if reading.spec.writes]
    names = {spec.name: ", ".join(spec.not_applied) for spec in specs if spec.not_applied}
    told = "; ".join(f"{settings} of {name}" for name, settings in names.items())
    text = f"generation_config.json has settings that are not applied, and would change outputs: {told}"
    return Note("settings_not_applied", len(names), text, tuple(names))


def _own_executor(readings: Mapping[str, Reading]) -> Note:
    specs = [reading.spec for reading in readings.values() if reading.spec.executor]
    names = tuple(dict.fromkeys(spec.executor for spec in specs))
    readers = ", ".join(dict.fromkeys(spec.name for spec in specs))
    unkept = ", and are not cached" if UNNAMED in names else ""
    text = f"LLM calls were made by {', '.join(names)}, not by {readers}{unkept}"
    return Note("own_executor", len(names), text, names)


def _behind_api(readings: Mapping[str, Reading]) -> Note:
    specs = [reading.spec for reading in readings.values() if reading.spec.api]
    names = tuple(dict.fromkeys(spec.name for spec in specs if not spec.executor))
    text = (
        f"{', '.join(names)} {agreeing(len(names), '[answers|answer]')} behind an API: LLM calls are not "
        "reproducible; `certify` measures how many come out otherwise"
    )
    return Note("not_reproducible", len(names), text, names)


def _own_readers(readings: Mapping[str, Reading]) -> Iterator[Note]:
    specs = [reading.spec for reading in readings.values() if not reading.spec.executor]
    readers = [spec.function.reader for spec in specs if spec.function]
    for kept, consequence in (
        (True, "what its outputs depend on is not known here, beyond its version"),
        (False, "it has no version, so its outputs are not cached"),
    ):
        names = tuple(dict.fromkeys(reader.name for reader in readers if reader.is_kept == kept))
        text = f"the reader {', '.join(names)} is a function: {consequence}"
        yield Note("own_readers", len(names), text, names)


def _unreachable_p(statistics: Statistics, settings: Settings) -> Iterator[Note]:
    bootstrap, compared = settings.bootstrap, statistics.comparisons
    of_first = pl.col(ANNOTATOR) == settings.resolved.listed[0].name
    of_runs = pl.col(RUN) != pl.col(RUN_B)
    drawn = pl.col(tables.METHOD) != STUDENTIZED
    # As the p-values are corrected: see ``compare_cells``.
    families = (
        compared.filter(drawn, family, pl.col(tables.p_of(tables.TAU)).is_not_nan())
        for family in (of_runs, ~of_runs & of_first, ~of_runs & ~of_first)
    )
    family = max(families, key=lambda found: found.height)
    tests = family.height
    if not bootstrap.resamples or not tests:
        return
    least, needed = reachable_p(tests, bootstrap)
    if least > 1 - bootstrap.confidence:
        yield Note(
            "unreachable_p",
            tests,
            f"with {bootstrap.resamples} resamples and {counted(tests, 'comparison[|s]')} no p-value "
            f"can fall below {least:.2g}; `resamples` {needed} would let one reach "
            f"{1 - bootstrap.confidence:.2g}",
        )
