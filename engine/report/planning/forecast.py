"""Settings of a plan, its forecast of an evaluation's cost, and output of the forecast for people and programs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from operator import mul
from typing import Annotated, Any, NamedTuple

from rich.table import Table
from rich.text import Text

from engine.machine.remote.api_settings import HOUR, ApiSettings
from engine.messages.checked import CheckedSettings, Range
from engine.messages.errors import InputError
from engine.messages.wording import agreeing, counted, quoted
from engine.report.layout import Grid, terminal_table
from engine.sources.io.locations import Location

BUDGET = re.compile(r"(\d+(?:\.\d+)?)(calls|reads|h|)")
SINGLE_PASSAGES, WHOLE_LISTS = "single passages", "lists"


@dataclass(frozen=True, kw_only=True)
class PlanSettings(CheckedSettings):
    """Settings of a plan.

    Attributes:
        pace: Folder or address of the results of an earlier evaluation: LLM calls are taken to be as fast as there.
        finish_in: Hours in which the LLM calls should end; the plan says how many actors that takes.
        budget: Most that the evaluation may take: LLM calls, hours or money, as in 20000calls, 2h or 5.00. The plan
            says which way of reading keeps within it.

    Raises:
        InputError: a value out of range, or one that needs a pace without one.
    """

    pace: Location | None = None
    finish_in: Annotated[float, Range(0, is_open=True)] | None = None
    budget: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.budget and not BUDGET.fullmatch(self.budget):
            problem = f"`budget` is {quoted(self.budget)}"
            raise InputError(problem, "use 20000calls, 2h or 5.00", "settings.budget")
        if self.finish_in is not None and self.pace is None:
            problem = "`finish_in` without `pace`: nothing says how long LLM calls take"
            remedy = "give the results of an earlier evaluation as `pace`"
            raise InputError(problem, remedy, "plan.pace")


@dataclass(frozen=True, kw_only=True)
class Kind:
    """Reads of one kind, a line of the plan; tokens, seconds and price of the reads left, None if unknown."""

    reader: str
    name: str  # "single passages", "lists", or the role that reads
    asked: int  # reads of every run, with duplicates
    stored: int  # distinct reads in the store
    left: int  # distinct reads still to do
    prompt_tokens: float | None = None
    output_tokens: float | None = None  # an upper bound
    seconds: float | None = None  # of the reader
    token_price: float | None = None  # an upper bound, from a server

    @property
    def shared(self) -> int:
        """Number of duplicates, which are read once."""
        return self.asked - self.stored - self.left


class Way(NamedTuple):
    """A way to evaluate: the least share of passages and of lists that it reads, and whether it reads no more."""

    name: str
    singles: float = 1
    lists: float = 1
    known: bool = False


ALL = Way("all", known=True)
# What options do that ways are named by.
_WAYS = {
    "lists": "`lists` reads end to end for that share of the queries",
    "lazy": "`lazy` skips passages that cannot change the measure",
    "until": "`until` stops once the verdict is clear",
}


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """Forecast of the cost of an evaluation."""

    kinds: tuple[Kind, ...]
    queries: int
    sampled: int | None = None  # queries in the sample; None if all were counted
    pace: str | None = None  # the results that set the pace
    notes: tuple[str, ...] = ()
    start: float = 0.0  # seconds until an actor reads, including loads of further models
    peak: int = 0  # bytes of an actor, measured at that pace or estimated; 0 without a model
    actors: int = 1
    settings: PlanSettings = field(default_factory=PlanSettings)
    price_per_hour: float | None = None  # of an actor; None without a price or a pace
    ways: tuple[Way, ...] = ()  # to read less, down to their shares, and at most all

    @property
    def all(self) -> Kind:
        return add_up(self.kinds)

    @property
    def is_priced(self) -> bool:
        """Whether actors or tokens have a price."""
        return self.price_per_hour is not None or self.all.token_price is not None

    def seconds(self, actors: int, kind: Kind | None = None) -> float | None:
        """Wall-clock seconds of reading with this many actors, each as fast as in the earlier evaluation."""
        reading = (kind or self.all).seconds
        return None if reading is None else self.start + reading / actors

    def money(self, seconds: float | None, tokens: float | None) -> float | None:
        """The price of an actor's seconds and of tokens; None if seconds have a price but are unknown."""
        if self.price_per_hour is not None and seconds is None:
            return None
        price = ApiSettings(price_per_hour=self.price_per_hour).cost(0, 0, seconds or 0.0)
        return (price or 0.0) + (tokens or 0.0)


def add_up(kinds: Sequence[Kind], reader: str = "", way: Way = ALL, name: str = "all") -> Kind:
    """The sum of several kinds, limited to the reads of a way; a figure missing in one kind is None in the sum."""
    shares = [way.lists if kind.name == WHOLE_LISTS else way.singles for kind in kinds]
    added: dict[str, Any] = {}
    for figure in ("asked", "stored", "left", "prompt_tokens", "output_tokens", "seconds"):
        values = [getattr(kind, figure) for kind in kinds]
        added[figure] = None if None in values else sum(map(mul, values, shares))
    prices = [(kind.token_price, share) for kind, share in zip(kinds, shares, strict=True)]
    priced = [price * share for price, share in prices if price is not None]
    return Kind(reader=reader, name=name, token_price=sum(priced) if priced else None, **added)


_MINUTE, _GIB = 60.0, 2**30
# Durations up to these bounds are printed in seconds and minutes; shorter ones than ``_LEAST`` look alike.
_AS_SECONDS, _AS_MINUTES, _LEAST = 100.0, 100 * _MINUTE, 0.1
# Most rows of the table; beyond them, kinds of several readers are added up.
_MOST_ROWS = 8
_ACTORS = "[actor|actors]"
# Names of the counts of a kind in all outputs; JSON also has the names of earlier versions.
_NAMES = ("requested", "duplicate", "cached", "new")
_EARLIER = ("asked", "shared", "stored", "left")


def shown(forecast: Forecast) -> list[Table | str]:
    """The table and the lines, 25 at most in all."""
    return [_table(forecast), *_lines(forecast)]


def content(forecast: Forecast) -> dict[str, Any]:
    """The plan's figures for JSON; unknown figures are null.

    ``reads`` has the totals of ``kinds``. ``seconds`` and ``cost`` need a pace.
    """
    seconds, cost = forecast.seconds(forecast.actors), _cost(forecast)
    return {
        "queries": forecast.queries,
        "sampled": forecast.sampled,
        "reads": _counts(forecast.all),
        "kinds": [asdict(kind) | _counts(kind) for kind in forecast.kinds],
        "actors": forecast.actors,
        "pace": forecast.pace,
        "notes": forecast.notes,
        "seconds": None if seconds is None else {"value": seconds},
        "peak": forecast.peak or None,
        "cost": None if cost is None else {"value": cost},
        "token_price": forecast.all.token_price,
        "ways": {way.name: round(add_up(forecast.kinds, way=way).left) for way in forecast.ways},
    }


def _counts(kind: Kind) -> dict[str, int]:
    counts = [getattr(kind, name) for name in _EARLIER]
    return dict(zip(_NAMES + _EARLIER, counts * 2, strict=True))


def _cost(forecast: Forecast) -> float | None:
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
    head = [*names, *_NAMES, "prompt tokens", "generated at most"]
    if timed:
        head += ["time of 1 actor", *([] if actors == 1 else [f"of {actors} actors"])]
    head += ["cost of calls"] * forecast.is_priced
    title = f"LLM calls of {counted(forecast.queries, '[query|queries]')}{estimated}"
    result = terminal_table(Grid("reads", "", head, [], len(names), title))
    named = [(way, f"with {way.name}{'' if way.known else ', at least'}") for way in forecast.ways]
    ways = [add_up(kinds, way=way, name=name) for way, name in named]
    for kind in [*kinds, forecast.all, *ways]:
        counts = [f"{_counts(kind)[name]:,.0f}" for name in _NAMES]
        values = [*[""] * 3, counts[3]] if kind in ways else counts
        tokens = kind.prompt_tokens, kind.output_tokens
        values += ["" if n is None else f"{n:,.0f}" for n in tokens]
        if timed:
            seconds = kind.seconds if kind.left else None
            values += [
                "" if seconds is None else duration(seconds / shared)
                for shared in dict.fromkeys((1, actors))
            ]
        if forecast.is_priced:
            money = forecast.money(kind.seconds, kind.token_price)
            values.append("" if money is None else _money(money))
        names = [kind.reader, kind.name] if several else [kind.name]
        result.add_row(*map(Text, [*names, *values]))
    return result


def _rows(kinds: Sequence[Kind]) -> list[Kind]:
    names = dict.fromkeys((kind.reader, kind.name) for kind in kinds)
    if len(names) > _MOST_ROWS:
        kinds = [replace(kind, reader="") for kind in kinds]
        names = dict.fromkeys(("", name) for _, name in names)
    alike = {key: [kind for kind in kinds if (kind.reader, kind.name) == key] for key in names}
    return [add_up(rows, reader, name=name) for (reader, name), rows in alike.items()]


def _lines(forecast: Forecast) -> Iterator[str]:
    if forecast.sampled is not None:
        queries = counted(forecast.sampled, "[query|queries]")
        yield f"counts: estimated from a sample of {queries}, and from all listed passages"
    if not forecast.all.left:
        yield "no new LLM call is needed: all are cached"
        return
    if forecast.ways:
        names = " ".join(way.name for way in forecast.ways)
        options = "; ".join(text for name, text in _WAYS.items() if name in names)
        yield f"fewer calls: {options}; at least: a lower bound; the outputs decide how much is saved"
    if forecast.settings.budget:
        yield _by_budget(forecast, forecast.settings.budget)
    if forecast.pace is None:
        yield "no time is estimated: for that, pass the results of an earlier evaluation (`pace`)"
    else:
        yield f"time: at the pace of the LLM calls in {forecast.pace}"
    yield from (f"note: {note}" for note in forecast.notes)
    for actors in dict.fromkeys((1, forecast.actors)):
        if (seconds := forecast.seconds(actors)) is not None:
            start = f"{duration(forecast.start)} of start"
            yield f"start and LLM calls, {counted(actors, _ACTORS)}: {duration(seconds)}, {start} included"
    if (hours := forecast.settings.finish_in) is not None:
        verb = agreeing(forecast.actors, "[finishes|finish]")
        yield f"{counted(forecast.actors, _ACTORS)} {verb} in {hours:g} h"
    if forecast.peak:
        yield f"memory: about {forecast.peak / _GIB:.1f} GiB per actor (a process that hosts the reader)"
    if (cost := _cost(forecast)) is not None:
        price = forecast.price_per_hour
        yield f"cost: {_money(cost)} at {price:g} for an actor's hour, start included"
    if (price := forecast.all.token_price) is not None:
        yield f"price of the tokens of new LLM calls: about {price:.4g} at most"


def _by_budget(forecast: Forecast, budget: str) -> str:
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
            named = f"the evaluation{f' with {way.name}' * (way is not ALL)}"
            return f"budget {budget}: {named} {'keeps' if way.known else 'may keep'} within it"
    return f"budget {budget}: nothing keeps within it"


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
