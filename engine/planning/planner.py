"""The plan of an evaluation: its reads are counted, and what they take follows from the pace of an earlier one."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace

from engine.adaptive.queries import FIRST_ROUND
from engine.evaluation.jobs import Context
from engine.evaluation.plan import with_share
from engine.evaluation.settings import Settings, begin, models_of
from engine.inputs.files import EvaluationInputs
from engine.machine.device import default_actor_memory
from engine.machine.remote.api_settings import HOUR, is_api
from engine.machine.watch import OnEvent, silent
from engine.messages.errors import InputError
from engine.messages.wording import listed
from engine.planning.counts import LISTS, Counted, Sample, count_reads
from engine.planning.forecast import Forecast, PlanSettings, Way
from engine.planning.pace import Pace, RolePace, read_pace
from engine.reading.local import Executor
from engine.sources.io.locations import Location, locate, shown
from engine.statistics.sampled_lists import FIRST_LISTS
from engine.tables import QUERY_ID


def plan_evaluation(
    inputs: EvaluationInputs,
    conditions: Iterable[Settings],
    asked: PlanSettings,
    *,
    store: Location,
    sample: Sample | None = None,
    on_event: OnEvent = silent,
    executor: Executor | None = None,
) -> Forecast:
    """Foresee what an evaluation, or a study, will take; none of its LLM calls is made, and nothing is written.

    Inputs are those of the ``sample`` where the evaluation is done in shards.

    Raises:
        InputError: as ``evaluate.evaluate`` and ``pace_for``; or the time to finish in is over before the actors
            have started, or the pace has no time of some reads.
    """
    settings = list(conditions)
    first, pace = settings[0], pace_for(asked, settings)
    begin(settings)
    context = Context(store=store, on_event=on_event, executor=executor)
    query_ids, each = inputs.queries[QUERY_ID], sample.lists if sample else 1
    drawn = [with_share(one, query_ids, each) for one in settings]
    counted = list(count_reads(inputs, drawn, context, sample=sample))
    # Of what is stored already, nothing is needed.
    paces = [pace.of(one.job) if pace and one.kind.left else None for one in counted]
    both = list(zip(counted, paces, strict=True))
    queries = sample.queries if sample else inputs.queries.height
    ways = _ways(first, inputs, queries, counted) if len(settings) == 1 else ()
    most = first.running.pool().bounds()[1]
    if most is None:  # the cluster decides: as many as there were
        most = pace.actors if pace else 1
    made = Forecast(
        kinds=tuple(of_role.timed(one) if of_role else one.kind for one, of_role in both),
        queries=queries,
        sampled=inputs.queries.height if sample else None,
        pace=None if asked.pace is None else shown(locate(asked.pace)),
        start=sum(one.start for one in set(paces) if one),
        peak=max((_peak(one, of_role) for one, of_role in both), default=0),
        actors=max(1, most),
        settings=asked,
        price_per_hour=first.api.price_per_hour if pace else None,
        ways=tuple(ways),
    )
    if pace is None:
        return made
    unlike = [
        f"{name} of {one.job.ask.role.title or 'the reader'}"
        for one, of_role in both
        for name in (of_role.differences(one.job) if of_role else ())
    ]
    unlike += pace.differences(first.flat())
    return _at_pace(made, pace, list(dict.fromkeys(unlike)))


def pace_for(asked: PlanSettings, conditions: Collection[Settings]) -> Pace | None:
    """The pace that a plan is to take; None where none is named.

    Raises:
        InputError: as ``pace.read_pace``; or the plan is to say how many actors finish in some hours where their number
            is given, or where a server reads and none does.
    """
    actors = next(iter(conditions)).running.actors
    if asked.finish_in is not None and actors is not None:
        raise InputError(
            f"`actors` {actors} beside `finish_in` {asked.finish_in:g}, which asks how many",
            "leave one of them out",
        )
    models = (model for condition in conditions for model in models_of(condition))
    if asked.finish_in is not None and any(map(is_api, models)):
        raise InputError(
            "`finish_in` asks for a number of actors, and a reader behind an API has none",
            "leave it out, and try other values of `concurrency`",
        )
    return None if asked.pace is None else read_pace(asked.pace)


def _peak(counted: Counted, pace: RolePace | None) -> int:
    """Memory of an actor: as measured of this reader, else what its model is taken to need; 0 without one."""
    spec = counted.job.spec
    if pace is not None and pace.costs.workers and not pace.differences(counted.job):
        return max(pace.costs.workers.values())
    if spec.executor or not spec.is_reproducible:
        return 0
    return spec.memory or default_actor_memory(spec.weight_bytes)


def _ways(
    settings: Settings, inputs: EvaluationInputs, queries: int, counted: Sequence[Counted]
) -> Iterator[Way]:
    """The ways to read less: the lists that are drawn; at least the first rank, and the first round of queries."""
    with contextlib.suppress(InputError):
        if not settings.bootstrap.lists and settings.but(lists=LISTS):
            # Which of the lists that are left they read.
            left = [(one.kind.left, one.drawn) for one in counted if one.is_whole]
            drawn = sum(n * share for n, share in left) / max(1, sum(n for n, _ in left))
            yield Way(f"lists {LISTS:g}", lists=drawn, known=True)
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


def _at_pace(made: Forecast, pace: Pace, unlike: list[str]) -> Forecast:
    """The plan with as many actors as finish in the time that was asked for, if one was, and with what limits its pace."""
    unknown = listed(list(dict.fromkeys(one.name for one in made.kinds if one.seconds is None)))
    lacks = f"that evaluation made no LLM calls of this kind: {unknown}"
    hours, actors, reading = made.settings.finish_in, made.actors, made.all.seconds
    if hours is not None and made.all.left:
        left = hours * HOUR - made.start
        if reading is None:
            raise InputError(f"`finish_in` by `pace`, but {lacks}", "name one that did")
        if left <= 0:
            raise InputError(
                f"`finish_in` is {hours:g} hours, and the start of the actors alone takes {made.start:.0f} s",
                f"give more than {made.start / HOUR:.2g} hours",
            )
        actors = max(1, math.ceil(reading / left))
    unlike = [*unlike, *["actors"] * (actors != pace.actors)]
    notes = [f"that evaluation is not like the planned one in {listed(unlike)}"] * bool(unlike)
    notes += [f"{lacks}; their time is not known"] * bool(unknown)
    return replace(made, actors=actors, notes=tuple(notes))
