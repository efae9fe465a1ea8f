"""The plan of an evaluation, as people read it: a table of reads by kind, and lines below it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from typing import Any

from rich.table import Table
from rich.text import Text

from engine.messages.wording import agreeing, counted
from engine.planning.forecast import BUDGET, WHOLE_LISTS, Forecast, Kind, Probe, Span, Way
from engine.report.layout import Grid, terminal_table

_MINUTE, _HOUR, _GIB = 60.0, 3600.0, 2**30
# Up to so many, seconds are given as such, and as minutes.
_AS_SECONDS, _AS_MINUTES = 100.0, 100 * _MINUTE
# Rows of the table; kinds of several readers are added up where there would be more.
_MOST_ROWS = 8
_ACTORS = "[actor|actors]"
_ALL = Way("all", known=True)
_FIGURES = ("asked", "stored", "left", "prompt_tokens", "output_tokens", "seconds", "token_price")


def shown(forecast: Forecast) -> list[Table | str]:
    """The table and the lines, 25 at most in all."""
    return [_table(forecast), *_lines(forecast)]


def content(forecast: Forecast) -> dict[str, Any]:
    """The plan's figures as JSON has them; what is not known is null.

    ``reads`` has the totals of ``kinds``. Without a probe there are no ``seconds``, ``peak`` and ``cost``.
    """
    actors, timed = forecast.actors, forecast.probe is not None
    total = _sum(forecast.kinds, "", "all")
    cost = forecast.cost(actors) if timed else None
    return {
        "queries": forecast.queries,
        "sampled": forecast.sampled,
        "reads": {name: getattr(total, name) for name in ("asked", "shared", "stored", "left")},
        "kinds": [asdict(kind) | {"shared": kind.shared} for kind in forecast.kinds],
        "certified": forecast.certified,
        "actors": actors,
        "probe": None if forecast.probe is None else asdict(forecast.probe),
        "seconds": _bounds(forecast.seconds(actors)) if timed else None,
        "peak": forecast.peak or None,
        "cost": None if cost is None else _bounds(cost),
        "token_price": forecast.token_price,
        "ways": {one.name: round(_sum(forecast.kinds, "", "", one).left) for one in forecast.ways},
    }


def _bounds(span: Span) -> dict[str, float | None]:
    return {name: None if math.isnan(v) else v for name, v in asdict(span).items()}


def _table(forecast: Forecast) -> Table:
    kinds = _rows(forecast.kinds)
    several = len({kind.reader for kind in kinds}) > 1
    timed, actors = forecast.probe is not None, forecast.actors
    shared = [] if actors == 1 else [f"of {actors} actors"]
    estimated = "" if forecast.sampled is None else ", an estimate"
    names = ["reader", "LLM calls"] if several else ["LLM calls"]
    head = [*names, "requested", "equal", "cached", "new"]
    priced = ["cost of calls"] * forecast.is_priced
    head += ["prompt tokens", "generated", "time of 1 actor", *shared, *priced] if timed else []
    title = f"LLM calls of {counted(forecast.queries, '[query|queries]')}{estimated}"
    result = terminal_table(Grid("reads", "", head, [], len(names), title))
    least = {False: ", at least", True: ""}
    ways = [_sum(kinds, "", f"{way.name}{least[way.known]}", way) for way in forecast.ways]
    for kind in [*kinds, _sum(kinds, "", "all"), *ways]:
        counts = [f"{n:,}" for n in (kind.asked, kind.shared, kind.stored)]
        values = [*([""] * 3 if kind in ways else counts), f"{kind.left:,.0f}"]
        if timed:
            tokens = kind.prompt_tokens, kind.output_tokens
            values += [*(f"{n:,.0f}" for n in tokens), duration(kind.seconds)]
            values += [duration(kind.seconds / actors) for _ in shared]
            values += [_money(forecast.money(kind.seconds, kind.token_price)) for _ in priced]
        names = [kind.reader, kind.name] if several else [kind.name]
        result.add_row(*map(Text, [*names, *values]))
    return result


def _rows(kinds: Sequence[Kind]) -> list[Kind]:
    """The kinds, those of one name and reader added up; of all readers together where they are many."""
    names = dict.fromkeys((kind.reader, kind.name) for kind in kinds)
    if len(names) > _MOST_ROWS:
        kinds = [replace(kind, reader="") for kind in kinds]
        names = dict.fromkeys(("", name) for _, name in names)
    return [
        _sum([kind for kind in kinds if (kind.reader, kind.name) == (reader, name)], reader, name)
        for reader, name in names
    ]


def _sum(kinds: Sequence[Kind], reader: str, name: str, way: Way = _ALL) -> Kind:
    shares = [way.lists if kind.name == WHOLE_LISTS else way.singles for kind in kinds]
    both = list(zip(kinds, shares, strict=True))
    totals: dict[str, Any] = {
        of: sum((getattr(kind, of) or 0) * share for kind, share in both) for of in _FIGURES
    }
    return Kind(reader=reader, name=name, **totals)


def _lines(forecast: Forecast) -> Iterator[str]:
    if forecast.sampled is not None:
        queries = counted(forecast.sampled, "[query|queries]")
        yield f"counts: from a sample of {queries}, by what runs list for all"
    if forecast.certified:
        yield f"not counted: LLM calls that `certify` repeats, up to {forecast.certified} in each role"
    if not forecast.left:
        yield "no new LLM call is needed: all are cached"
        if forecast.probe is not None:
            yield from _of_probe(forecast, forecast.probe)
        return
    if forecast.settings.budget:
        yield _within(forecast, forecast.settings.budget)
    if forecast.probe is None:
        yield "no time is predicted without a probe, which erag plan makes by default"
        return
    yield from _times(forecast)
    if forecast.peak:
        yield f"memory: about {forecast.peak / _GIB:.1f} GiB at most, of each actor"
    cost = forecast.cost(forecast.actors)
    if cost is not None:
        price = forecast.settings.price_per_hour
        yield (
            f"cost: {_with_interval(cost, _money)} at {price:g} for an actor's hour, start included "
            f"(an actor has {forecast.probe.share})"
        )
    if forecast.token_price is not None:
        yield f"price of the tokens that are left: about {forecast.token_price:.4g}"
    yield from _of_probe(forecast, forecast.probe)


def _within(forecast: Forecast, budget: str) -> str:
    """The first way that keeps to a budget; of ways other than all, what they read at least does."""
    most, unit = BUDGET.fullmatch(budget).groups()  # type: ignore[union-attr]
    if (unit != "reads" and forecast.probe is None) or not (unit or forecast.is_priced):
        return f"budget {budget}: unknown without a probe and prices"
    for way in (_ALL, *forecast.ways):
        kind = _sum(forecast.kinds, "", "", way)
        hours = (forecast.start + kind.seconds / forecast.actors) / _HOUR
        of_all = forecast.start * forecast.actors + kind.seconds
        money = forecast.money(of_all, kind.token_price)
        if {"reads": kind.left, "h": hours, "": money}[unit] <= float(most):
            return f"budget {budget}: {way.name} {'keeps' if way.known else 'may keep'} to it"
    return f"budget {budget}: nothing keeps to it"


def _times(forecast: Forecast) -> Iterator[str]:
    level = f"{forecast.confidence * 100:g}%"
    bounds = "" if math.isnan(forecast.reading.low) else f" [{level} interval]"
    yield f"start: {duration(forecast.start)} until an actor is ready, models loaded"
    counts = dict.fromkeys((1, forecast.actors))
    for actors in counts:
        span = forecast.seconds(actors)
        name = counted(actors, _ACTORS)
        yield f"start and LLM calls, {name}: {_with_interval(span, duration)}{bounds}"
    hours = forecast.settings.finish_in
    if hours is not None:
        by = ", by the upper end of the interval" if bounds else ""
        verb = agreeing(forecast.actors, "[finishes|finish]")
        yield f"{counted(forecast.actors, _ACTORS)} {verb} in {hours:g} h{by}"


def _of_probe(forecast: Forecast, probe: Probe) -> Iterator[str]:
    kept = f"not cached ({probe.unstored})" if probe.unstored else "cached"
    actors = f"{counted(probe.actors, _ACTORS)} with {probe.share}"
    yield (
        f"probe: {counted(probe.reads, 'LLM call[|s]')} in {duration(probe.seconds)} by {actors}; "
        f"{agreeing(probe.reads, '[it is|they are]')} {kept}"
    )
    if probe.failed:
        yield f"{counted(probe.failed, 'LLM call[|s]')} of the probe failed: {probe.failure}"
    if forecast.actors > probe.room:
        yield f"there is room for {counted(probe.room, _ACTORS)} now; others are taken to be like these"


def _with_interval(span: Span, written: Callable[[float], str]) -> str:
    if math.isnan(span.low):
        return written(span.value)
    return f"{written(span.value)} ({written(span.low)} to {written(span.high)})"


def duration(seconds: float) -> str:
    """A time in seconds, minutes or hours, with two or three digits."""
    if seconds < _AS_SECONDS:
        return f"{seconds:.0f} s" if seconds >= 10 or not seconds else f"{seconds:.1f} s"
    if seconds < _AS_MINUTES:
        return f"{seconds / _MINUTE:.1f} min"
    hours = seconds / _HOUR
    return f"{hours:.1f} h" if hours < 100 else f"{hours:,.0f} h"


def _money(amount: float) -> str:
    digits = 4 if 0 < amount < 0.1 else 2
    return f"{amount:.{digits}f}" if amount < 1000 else f"{amount:,.0f}"
