"""Ids of one input looked up in another: none that fits is refused, and those that do not are counted."""

from __future__ import annotations

import polars as pl

from engine.messages.errors import InputError
from engine.messages.wording import agreeing, quoted
from engine.sources.io.locations import Location


def count_strangers(
    ids: pl.Series, known: pl.Series, what: str, *, remedy: str, path: Location | None
) -> int:
    """How many distinct ids are none of the known ones.

    Args:
        what: what an input does with none of them, with ``{}`` for the number of known ids:
            ``judges none of the {} [query|queries]``.

    Raises:
        InputError: none fits; an example of both is named.
    """
    others = ids.filter(~ids.is_in(known.implode())).unique()
    said = agreeing(len(known), what.format(len(known)))
    refuse_strangers(ids, others, known, said, remedy=remedy, path=path)
    return len(others)


def refuse_strangers(
    ids: pl.Series,
    others: pl.Series,
    known: pl.Series,
    what: str,
    *,
    remedy: str,
    path: Location | None,
) -> None:
    """As ``count_strangers``, of ids of which these others are not known; of the known ones some are enough."""
    if len(ids) and len(known) and len(others) == ids.n_unique():
        problem = f"{what} (it has {quoted(ids[0])}, they have {quoted(known[0])})"
        raise InputError(problem, remedy, path=path)
