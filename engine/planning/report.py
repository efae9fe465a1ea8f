"""The plan of an evaluation, as people read it: a table of reads by kind, and lines below it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from typing import Any

from rich.table import Table
from rich.text import Text

from engine.machine.remote.api_settings import HOUR
from engine.messages.wording import agreeing, counted
from engine.planning.forecast import ALL, BUDGET, Forecast, Kind, add_up
from engine.report.layout import Grid, terminal_table

_MINUTE, _GIB = 60.0, 2**30
# Up to so many, seconds are given as such, and as minutes; and less than so many are not told apart.
_AS_SECONDS, _AS_MINUTES, _LEAST = 100.0, 100 * _MINUTE, 0.1
# Rows of the table; kinds of several readers are added up where there would be more.
_MOST_ROWS = 8
_ACTORS = "[actor|actors]"


def shown(forecast: Forecast) -> list[Table | str]:
    """The table and the lines, 25 at most in all."""
    return [_table(forecast), *_lines(forecast)]


def content(forecast: Forecast) -> dict[str, Any]:
    """The plan's figures as JSON has them; what is not known is null.

    ``reads`` has the totals of ``kinds``. Without a pace there are no ``seconds`` and no ``cost``.
    """
    seconds, cost = forecast.seconds(forecast.actors), _cost(forecast)
    return {
        "queries": forecast.queries,
        "sampled": forecast.sampled,
        "reads": {
            name: getattr(forecast.all, name) for name in ("asked", "shared", "stored", "left")
        },
        "kinds": [asdict(kind) | {"shared": kind.shared} for kind in forecast.kinds],
        "actors": forecast.actors,
        "pace": forecast.pace,
        "notes": forecast.notes,
        "seconds": None if seconds is None else {"value": seconds},
        "peak": forecast.peak or None,
        "cost": None if cost is None else {"value": cost},
        "token_price": forecast.all.token_price,
        "ways": {one.name: round(add_up(forecast.kinds, way=one).left) for one in forecast.ways},
    }


def _cost(forecast: Forecast) -> float | None:
    """The price of the actors, from their start to the end; None where no price or no time is known."""
    seconds = forecast.seconds(forecast.actors)
    if forecast.price_per_hour is None or seconds is None:
        return None
    return forecast.money(seconds * forecast.actors, None)


def _table(forecast: Forecast) -> Table:
    kinds = _rows(forecast.kinds)
    several = len({kind.reader for kind in kinds}) > 1
    timed, actors = forecast.pace is not None, forecast.actors
    estimated = "" if forecast.sampled is None else ", an estimate"
    names = ["reader", "LLM calls"] if several else ["LLM calls"]
    head = [*names, "requested", "equal", "cached", "new", "prompt tokens", "generated at most"]
    if timed:
        head += ["time of 1 actor", *([] if actors == 1 else [f"of {actors} actors"])]
    head += ["cost of calls"] * forecast.is_priced
    title = f"LLM calls of {counted(forecast.queries, '[query|queries]')}{estimated}"
    result = terminal_table(Grid("reads", "", head, [], len(names), title))
    ways = [
        add_up(kinds, way=way, name=f"{way.name}{'' if way.known else ', at least'}")
        for way in forecast.ways
    ]
    for kind in [*kinds, forecast.all, *ways]:
        counts = [f"{n:,}" for n in (kind.asked, kind.shared, kind.stored)]
        values = [*([""] * 3 if kind in ways else counts), f"{kind.left:,.0f}"]
        values += [
            "" if n is None else f"{n:,.0f}" for n in (kind.prompt_tokens, kind.output_tokens)
        ]
        if timed:
            values += [
                "" if kind.seconds is None or not kind.left else duration(kind.seconds / shared)
                for shared in dict.fromkeys((1, actors))
            ]
        if forecast.is_priced:
            money = forecast.money(kind.seconds, kind.token_price)
            values.append("" if money is None else _money(money))
        names = [kind.reader, kind.name] if several else [kind.name]
        result.add_row(*map(Text, [*names, *values]))
    return result


def _rows(kinds: Sequence[Kind]) -> list[Kind]:
    """The kinds, those of one name and reader added up; of all readers together where they are many."""
    names = dict.fromkeys((kind.reader, kind.name) for kind in kinds)
    if len(names) > _MOST_ROWS:
        kinds = [replace(kind, reader="") for kind in kinds]
        names = dict.fromkeys(("", name) for _, name in names)
    alike = {one: [kind for kind in kinds if (kind.reader, kind.name) == one] for one in names}
    return [add_up(alike[one], one[0], name=one[1]) for one in names]


def _lines(forecast: Forecast) -> Iterator[str]:
    if forecast.sampled is not None:
        queries = counted(forecast.sampled, "[query|queries]")
        yield f"counts: from a sample of {queries}, by what runs list for all"
    if not forecast.all.left:
        yield "no new LLM call is needed: all are cached"
        return
    if forecast.settings.budget:
        yield _within(forecast, forecast.settings.budget)
    if forecast.pace is None:
        yield "no time is predicted: erag plan takes it from the results of an earlier evaluation (`pace`)"
    else:
        yield f"time: as LLM calls took in {forecast.pace}"
    yield from (f"note: {note}" for note in forecast.notes)
    for actors in dict.fromkeys((1, forecast.actors)):
        if (seconds := forecast.seconds(actors)) is not None:
            start = f"{duration(forecast.start)} of start"
            yield f"start and LLM calls, {counted(actors, _ACTORS)}: {duration(seconds)}, {start} included"
    if (hours := forecast.settings.finish_in) is not None:
        verb = agreeing(forecast.actors, "[finishes|finish]")
        yield f"{counted(forecast.actors, _ACTORS)} {verb} in {hours:g} h"
    if forecast.peak:
        yield f"memory: about {forecast.peak / _GIB:.1f} GiB, of each actor"
    if (cost := _cost(forecast)) is not None:
        price = forecast.price_per_hour
        yield f"cost: {_money(cost)} at {price:g} for an actor's hour, start included"
    if (price := forecast.all.token_price) is not None:
        yield f"price of the tokens of new LLM calls: about {price:.4g} at most"


def _within(forecast: Forecast, budget: str) -> str:
    """The first way that keeps to a budget; of ways other than all, what they read at least does."""
    most, unit = BUDGET.fullmatch(budget).groups()  # type: ignore[union-attr]
    for way in (ALL, *forecast.ways):
        kind = add_up(forecast.kinds, way=way)
        seconds = forecast.seconds(forecast.actors, kind)
        taken: float | None = kind.left
        if unit == "h":
            taken = seconds and seconds / HOUR
        elif not unit:
            taken = forecast.money(seconds and seconds * forecast.actors, kind.token_price)
        if taken is None or not (unit or forecast.is_priced):
            needed = "the time of LLM calls (`pace`)" if unit or forecast.is_priced else "a price"
            return f"budget {budget}: unknown without {needed}"
        if taken <= float(most):
            return f"budget {budget}: {way.name} {'keeps' if way.known else 'may keep'} to it"
    return f"budget {budget}: nothing keeps to it"


def duration(seconds: float) -> str:
    """A time in seconds, minutes or hours, with two or three digits."""
    if seconds < _LEAST:
        return f"under {_LEAST:g} s"
    if seconds < _AS_SECONDS:
        return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"
    if seconds < _AS_MINUTES:
        return f"{seconds / _MINUTE:.1f} min"
    hours = seconds / HOUR
    return f"{hours:.1f} h" if hours < 100 else f"{hours:,.0f} h"


def _money(amount: float) -> str:
    digits = 4 if 0 < amount < 0.1 else 2
    return f"{amount:.{digits}f}" if amount < 1000 else f"{amount:,.0f}"
