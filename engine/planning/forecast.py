"""What a plan is asked, and what it says that an evaluation will take."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import mul
from typing import Annotated, Any, NamedTuple

from engine.machine.remote.api_settings import ApiSettings
from engine.messages.checked import Checked, Within
from engine.messages.errors import InputError
from engine.messages.wording import quoted
from engine.sources.io.locations import Location

BUDGET = re.compile(r"(\d+(?:\.\d+)?)(reads|h|)")
SINGLE_PASSAGES, WHOLE_LISTS = "single passages", "whole lists"


@dataclass(frozen=True, kw_only=True)
class PlanSettings(Checked):
    """What a plan is asked.

    Attributes:
        pace: Folder or address of the results of an earlier evaluation: LLM calls are taken to be as fast as there.
        finish_in: Hours in which the LLM calls should end; the plan says how many actors that takes.
        budget: Most that the evaluation may take: LLM calls, hours or money, as in 20000reads, 2h or 5.00. The plan
            says which way of reading keeps to it.

    Raises:
        InputError: a value out of range, or one that needs a pace without one.
    """

    pace: Location | None = None
    finish_in: Annotated[float, Within(0, is_open=True)] | None = None
    budget: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.budget and not BUDGET.fullmatch(self.budget):
            raise InputError(f"`budget` is {quoted(self.budget)}", "use 20000reads, 2h or 5.00")
        if self.finish_in is not None and self.pace is None:
            raise InputError(
                "`finish_in` without `pace`: nothing says how long LLM calls take",
                "give the results of an earlier evaluation as `pace`",
            )


@dataclass(frozen=True, kw_only=True)
class Kind:
    """Reads of one kind: what a line of the plan says.

    Attributes:
        name: "single passages", "whole lists", or who reads.
        asked: reads that the evaluation asks for, of every run, with those that are equal.
        stored: distinct reads that the store has.
        left: distinct reads that are to be done.
        prompt_tokens: of these; None where nobody knows.
        output_tokens: of these at most; None where nobody knows.
        seconds: of the reader, for these; None where nobody knows.
        token_price: of their tokens at most, which are asked of a server; None where no price is known.
    """

    reader: str
    name: str
    asked: int
    stored: int
    left: int
    prompt_tokens: float | None = None
    output_tokens: float | None = None
    seconds: float | None = None
    token_price: float | None = None

    @property
    def shared(self) -> int:
        """Those that are equal to others, and so are done once."""
        return self.asked - self.stored - self.left


class Way(NamedTuple):
    """A way to evaluate: the least share of passages and of lists that it reads, and whether it reads no more."""

    name: str
    singles: float = 1
    lists: float = 1
    known: bool = False


ALL = Way("all", known=True)


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """What an evaluation will take.

    Attributes:
        sampled: how many of these the counts are taken from, where not from all.
        pace: the results of the evaluation that time is taken from; None where nothing says it.
        start: seconds until the actors read, and in which they load further models; of each actor.
        peak: memory of an actor in bytes: measured at that pace, or what it is taken to need; 0 without a model.
        price_per_hour: of an actor; None where no price, or no pace, is known.
        ways: to read less, down to their shares, and at most all.
    """

    kinds: tuple[Kind, ...]
    queries: int
    sampled: int | None = None
    pace: str | None = None
    notes: tuple[str, ...] = ()
    start: float = 0.0
    peak: int = 0
    actors: int = 1
    settings: PlanSettings = field(default_factory=PlanSettings)
    price_per_hour: float | None = None
    ways: tuple[Way, ...] = ()

    @property
    def all(self) -> Kind:
        """All reads."""
        return add_up(self.kinds)

    @property
    def is_priced(self) -> bool:
        """Whether a price is known, of an actor or of tokens."""
        return self.price_per_hour is not None or self.all.token_price is not None

    def seconds(self, actors: int, kind: Kind | None = None) -> float | None:
        """Wall-clock seconds of reading with so many actors, each like those of the earlier evaluation."""
        reading = (kind or self.all).seconds
        return None if reading is None else self.start + reading / actors

    def money(self, seconds: float | None, tokens: float | None) -> float | None:
        """The price of an actor's seconds and of tokens; None where seconds have one and are not known."""
        if self.price_per_hour is not None and seconds is None:
            return None
        of_actor = ApiSettings(price_per_hour=self.price_per_hour).cost(0, 0, seconds or 0.0)
        return (of_actor or 0.0) + (tokens or 0.0)


def add_up(kinds: Sequence[Kind], reader: str = "", way: Way = ALL, name: str = "all") -> Kind:
    """The reads of several kinds together, as far as a way does them; a figure that one lacks is not known of all."""
    shares = [way.lists if kind.name == WHOLE_LISTS else way.singles for kind in kinds]
    added: dict[str, Any] = {}
    for figure in ("asked", "stored", "left", "prompt_tokens", "output_tokens", "seconds"):
        values = [getattr(kind, figure) for kind in kinds]
        added[figure] = None if None in values else sum(map(mul, values, shares))
    prices = [(kind.token_price, share) for kind, share in zip(kinds, shares, strict=True)]
    priced = [price * share for price, share in prices if price is not None]
    return Kind(reader=reader, name=name, token_price=sum(priced) if priced else None, **added)
