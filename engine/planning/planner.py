"""The plan of an evaluation: its reads are counted, some are done, and what all will take is foreseen."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import polars as pl

from engine import tables
from engine.evaluation.api_readers import begin, refuse_plan
from engine.evaluation.context import Context
from engine.evaluation.inputs import EvaluationInputs
from engine.evaluation.prepare import with_share
from engine.evaluation.rounds import FIRST_LISTS, FIRST_ROUND
from engine.evaluation.settings import Settings
from engine.labels.annotator import READER
from engine.machine.batching import GPU_BATCH_TOKENS
from engine.machine.pool import PoolSettings
from engine.machine.remote.api_settings import is_api
from engine.machine.watch import OnEvent, silent
from engine.messages.errors import InputError
from engine.planning import probe
from engine.planning.counts import DRAWN, LISTS, Counted, Sample, count_reads
from engine.planning.forecast import (
    SINGLE_PASSAGES,
    WHOLE_LISTS,
    Batch,
    Forecast,
    Kind,
    Left,
    Pace,
    PlanSettings,
    Way,
    actors_to_finish,
    pace_of,
    reading_seconds,
    total_seconds,
)
from engine.planning.probe import WHOLE, Stratum, Timed
from engine.planning.prober import Group, Prober
from engine.reading.executors import Executor, Progress, by_model, unit_tokens
from engine.reading.plan import GROUP, SIZE
from engine.reading.stream import UNIT_SECONDS
from engine.sources.io.locations import Location
from engine.tables import OUTPUT_TOKENS, PROMPT_TOKENS, QUERY_ID, READ_KEY

_READS, _GROUPS = "reads", "groups"


def plan_evaluation(
    inputs: EvaluationInputs,
    conditions: Iterable[Settings],
    asked: PlanSettings,
    *,
    store: Location,
    sample: Sample | None = None,
    on_progress: Progress = lambda done, total: None,
    on_event: OnEvent = silent,
    executor: Executor | None = None,
) -> Forecast:
    """Foresee what an evaluation, or a study, will take, from a probe of its reads.

    The reads of the probe are added to the store; nothing else is written.

    Args:
        inputs: as in ``evaluate.evaluate``, or those of the sample.
        conditions: the settings of each, as ``study.vary`` gives them.
        asked: what the plan is asked.
        sample: what the inputs are a sample of, where the evaluation is done in shards.
        on_progress: called with the reads of the probe that are done and wanted.
        store, on_event, executor: as in ``Context``.

    Raises:
        InputError: as ``evaluate.evaluate``; a number of actors beside a time to finish in; or a time that
            the start of the actors alone takes.
    """
    settings = list(conditions)
    running, bootstrap = settings[0].running, settings[0].bootstrap
    refuse_both(asked, running.pool())
    begin(settings)
    refuse_plan(settings, asked.finish_in)
    context = Context(store=store, on_progress=on_progress, on_event=on_event, executor=executor)
    query_ids, each = inputs.queries[QUERY_ID], sample.lists if sample else 1
    drawn = [with_share(one, query_ids, each) for one in settings]
    counted = list(count_reads(inputs, drawn, context, sample=sample))
    prober = Prober(context, asked, running.pool())
    groups = [
        prober.read(jobs, _size(jobs) / max(1, _size(counted)), seed=bootstrap.seed)
        for jobs in _together(counted, executor)
    ]
    actors = running.pool().bounds()[1] or max((group.room for group in groups), default=1)
    scale = {False: sample.pairs, True: sample.lists} if sample else {False: 1.0, True: 1.0}
    parts = [
        _foresee(group, scale, actors, kept=not prober.unstored, in_shards=bool(sample))
        for group in groups
    ]
    lists = _drawn(groups, kept=not prober.unstored)
    queries = sample.queries if sample else inputs.queries.height
    works = [(work.left, work.pace) for part in parts for work in part.works]
    reading = total_seconds(works, confidence=bootstrap.confidence)
    start = sum(probe.start_seconds(group.timed) for group in groups)
    if asked.finish_in is not None and works:
        actors = actors_to_finish(reading, start, asked.finish_in)
    return Forecast(
        kinds=tuple(_priced(kind, settings[0]) for part in parts for kind in part.kinds),
        queries=queries,
        sampled=inputs.queries.height if sample else None,
        probe=prober.made(groups),
        reading=reading,
        start=start,
        peak=max((part.peak for part in parts), default=0),
        actors=actors,
        settings=asked,
        confidence=bootstrap.confidence,
        certified=running.certify,
        ways=tuple(_ways(settings[0], inputs, queries, lists)) if len(settings) == 1 else (),
    )


def _ways(settings: Settings, inputs: EvaluationInputs, queries: int, lists: Way) -> Iterator[Way]:
    """The ways to read less: the lists that are drawn; at least the first rank, and the first round of queries."""
    with contextlib.suppress(InputError):
        if not settings.bootstrap.lists and settings.but(lists=LISTS):
            yield lists
    if width := settings.bootstrap.width:
        yield Way(f"width {width:g}", lists=min(1.0, FIRST_LISTS / max(1, queries)))
        return
    k, few = settings.ranking.k, min(1.0, FIRST_ROUND / max(1, queries))
    ways = Way("lazy", 1 / k), Way("until", few, few), Way("lazy until", few / k, few)
    for way in ways if len(inputs.run_names) > 1 else ways[:1]:
        with contextlib.suppress(InputError):
            until = "verdict" if "until" in way.name else None
            settings.but(lazy="lazy" in way.name, until=until)
            yield way


def _drawn(groups: Iterable[Group], *, kept: bool) -> Way:
    """Sampled lists: which of those that are left they read; ``kept``: the probe's are in the store."""
    done = _keys(timed for group in groups for timed in group.timed if kept)
    whole = [one.left.filter(WHOLE) for group in groups for one in group.jobs]
    drawn = [row for one in whole for row in one.join(done, on=READ_KEY, how="anti")[DRAWN]]
    return Way(f"lists {LISTS:g}", lists=sum(drawn) / max(1, len(drawn)), known=True)


def _priced(kind: Kind, settings: Settings) -> Kind:
    if not (is_api(kind.reader) and kind.prompt_tokens):
        return kind
    price = settings.api.cost(kind.prompt_tokens, kind.output_tokens)
    return replace(kind, token_price=price)


def refuse_both(asked: PlanSettings, pool: PoolSettings) -> None:
    """Refuse a number of actors where the plan is asked for one.

    Raises:
        InputError: there is one.
    """
    if asked.finish_in is not None and pool.actors is not None:
        raise InputError(
            f"`actors` {pool.actors} beside `finish_in` {asked.finish_in:g}, which asks how many",
            "leave one of them out",
        )


def _together(counted: Sequence[Counted], executor: Executor | None) -> list[list[Counted]]:
    """Jobs whose readers share the actors, as in the evaluation."""
    if executor:
        return [[one] for one in counted]
    return by_model(counted, lambda one: one.job.spec)


def _size(jobs: Iterable[Counted]) -> int:
    return sum(int(one.left[SIZE].sum()) for one in jobs)


@dataclass(frozen=True)
class _StratumLeft:
    """What is left of a stratum, how fast it goes, and the tokens of its prompts by kind of read."""

    stratum: Stratum
    left: Left
    pace: Pace
    prompts: Mapping[bool, float]


@dataclass(frozen=True)
class _ModelForecast:
    """What is foreseen of jobs whose readers share a model."""

    works: tuple[_StratumLeft, ...]
    kinds: tuple[Kind, ...]
    peak: int


def _foresee(
    group: Group, scale: Mapping[bool, float], actors: int, *, kept: bool, in_shards: bool
) -> _ModelForecast:
    """What is foreseen of the jobs of a group.

    Args:
        scale: reads in the whole evaluation for each that was counted, by kind.
        actors: of the evaluation.
        kept: whether the reads of the probe are in the store.
        in_shards: whether units are cut by time.
    """
    left = [
        _left(job, one, _keys(group.of(job)) if kept else None, scale)
        for job, one in enumerate(group.jobs)
    ]
    total = sum(float(of_job[SIZE].sum()) for of_job in left)
    gpu = group.backend is not None and group.backend.backend.gpu
    batch = unit_tokens(int(total), actors=actors, gpu=gpu)
    if gpu and in_shards:  # where units grow with the speed of GPUs
        batch = max(batch, min(GPU_BATCH_TOKENS, int(total) // (8 * actors)))
    works: list[_StratumLeft] = []
    if group.timed:
        by = pl.concat(left).group_by("job", "lists", maintain_order=True)
        for (job, lists), rows in by:
            stratum = Stratum(int(job), bool(lists))
            works.append(_work(group, stratum, rows, batch, in_shards=in_shards))
    kinds = [
        kind
        for job, one in enumerate(group.jobs)
        for kind in _kinds(job, one, left[job], group.of(job), works, scale)
    ]
    largest = max((work.left.size_of_batch(work.pace) for work in works), default=0.0)
    return _ModelForecast(tuple(works), tuple(kinds), probe.peak_memory(group.timed, largest))


def _keys(timed: Iterable[Timed]) -> pl.DataFrame:
    """The keys of reads that were done, in one column."""
    none = pl.DataFrame(schema={READ_KEY: pl.String})
    return pl.concat([none, *(one.outputs.select(READ_KEY) for one in timed)])


def _left(
    job: int, counted: Counted, done: pl.DataFrame | None, scale: Mapping[bool, float]
) -> pl.DataFrame:
    """What is left of a job once the probe is done: by ``job``, ``lists`` (whether the group has any) and
    ``whole``, the number of ``reads``, their ``size``, and the ``groups`` that have them.
    """
    frames = [
        part.with_columns(pl.lit(stratum.whole).alias("lists"))
        for stratum, part in probe.strata(counted.left, job)
    ]
    if not frames:
        return pl.DataFrame(schema=_LEFT)
    factor = pl.col(WHOLE).replace_strict(scale, return_dtype=pl.Float64)
    plan = pl.concat(frames)
    read = plan.clear() if done is None else plan.join(done, on=READ_KEY, how="semi")
    counts = [
        frame.group_by("lists", WHOLE).agg(
            pl.len().alias(_READS), pl.col(SIZE).sum(), pl.col(GROUP).n_unique().alias(_GROUPS)
        )
        for frame in (plan, read)
    ]
    both = counts[0].join(counts[1], on=["lists", WHOLE], how="left", suffix="_done")
    return both.select(
        pl.lit(job, pl.Int64).alias("job"),
        "lists",
        WHOLE,
        *(
            (pl.col(name) * factor - pl.col(f"{name}_done").fill_null(0)).clip(0).alias(name)
            for name in (_READS, SIZE, _GROUPS)
        ),
    )


_LEFT: tables.Schema = {
    "job": pl.Int64(),
    "lists": pl.Boolean(),
    WHOLE: pl.Boolean(),
} | dict.fromkeys((_READS, SIZE, _GROUPS), pl.Float64())


def _work(
    group: Group, stratum: Stratum, left: pl.DataFrame, batch: float, *, in_shards: bool
) -> _StratumLeft:
    timed = [one for one in group.timed if one.batch.stratum == stratum]
    # Of a stratum of few reads it may be that all of them came first.
    counted = [one for one in timed if not (one.first or one.batch.warming)] or timed
    pace = pace_of([Batch(float(one.batch.reads[SIZE].sum()), one.done.seconds) for one in counted])
    prompts = {
        whole: size * _ratio(timed, whole, PROMPT_TOKENS, by_size=True)
        for whole, size in left.select(WHOLE, SIZE).iter_rows()
    }
    work = Left(
        size=float(left[SIZE].sum()),
        groups=float(left[_GROUPS].max() or 0),  # type: ignore[arg-type]
        batch=batch,
        batch_seconds=UNIT_SECONDS if in_shards else None,
    )
    return _StratumLeft(stratum, work, pace, prompts)


def _ratio(timed: Iterable[Timed], whole: bool, tokens: str, *, by_size: bool = False) -> float:
    """Tokens of a read of a kind in the probe, or of one of its size; 0 where it has none of that kind."""
    counts = [
        one.batch.reads.select(READ_KEY, SIZE, WHOLE)
        .join(one.outputs, on=READ_KEY)
        .filter(pl.col(WHOLE) == whole)
        .select(pl.col(tokens).sum(), pl.col(SIZE).sum() if by_size else pl.len().alias(SIZE))
        for one in timed
    ]
    if not counts:
        return 0.0
    had, of = pl.concat(counts).sum().row(0)
    return had / of if of else 0.0


def _kinds(
    job: int,
    counted: Counted,
    left: pl.DataFrame,
    timed: Sequence[Timed],
    works: Sequence[_StratumLeft],
    scale: Mapping[bool, float],
) -> Iterator[Kind]:
    """The reads of a job by kind; the time of a stratum is divided by the tokens of its prompts."""
    own = [work for work in works if work.stratum.job == job]
    for whole in (False, True):
        if not counted.asked[whole]:
            continue
        reads = round(float(left.filter(pl.col(WHOLE) == whole)[_READS].sum()))
        distinct = counted.left.filter(pl.col(WHOLE) == whole).height + counted.stored[whole]
        yield Kind(
            reader=counted.job.spec.name,
            name=_name(counted, whole),
            asked=round(counted.asked[whole] * scale[whole]),
            stored=round(distinct * scale[whole]) - reads,
            left=reads,
            prompt_tokens=round(sum(work.prompts.get(whole, 0.0) for work in own)),
            output_tokens=round(reads * _ratio(timed, whole, OUTPUT_TOKENS)),
            seconds=sum(
                reading_seconds(work.left, work.pace)
                * work.prompts.get(whole, 0.0)
                / max(1.0, sum(work.prompts.values()))
                for work in own
            ),
        )


def _name(counted: Counted, whole: bool) -> str:
    role = counted.job.ask.role
    if role != READER:
        return role.title.removeprefix("the ")
    return WHOLE_LISTS if whole else SINGLE_PASSAGES
