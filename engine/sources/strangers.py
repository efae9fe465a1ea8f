"""Look up ids of an input in another: refuse inputs without any match, count ids without a match.

A position never stands for an id: queries without ids, which are numbered, are refused beside others (``QueryNumbers``).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import polars as pl

from engine.messages.errors import InputError
from engine.messages.notes import Note, count_note
from engine.messages.wording import agreeing, quoted
from engine.sources.fields import DOC_ID_FIELDS
from engine.sources.io.locations import Location

_LIKE_AN_ID = re.compile(r"(?i:id|idx|index|num(ber)?|key)$|(?:^|[\W_])(?i:no|nr|pk|row)$|N[or]$")


@dataclass
class QueryNumbers:
    """Queries without ids, numbered from 1, and the ids by which other inputs name queries.

    Attributes:
        path: the queries' name in errors.
        fields: by number, the fields of the first queries that the engine does not know.
        count: number of numbered queries; 0 if they have ids.
        own: names of the engine's own runs, which use the numbers.
    """

    path: Location = ""
    fields: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    count: int = 0
    own: frozenset[str] = frozenset()
    _seen: dict[str, Location] = field(default_factory=dict)

    def see(self, ids: Iterable[str], path: Location) -> None:
        """Note the ids of an input."""
        if self.count and path not in self.own:
            for name in ids:
                self._seen.setdefault(name, path)

    def check(self) -> None:
        """Refuse numbers if a noted id is no number, or if a field named like an id has all ids, in another order."""
        numbers, ids = [*map(str, range(1, self.count + 1))], self._seen.keys()
        strange, meant = ids - numbers, []
        for name in next(iter(self.fields.values()), {}).keys() - DOC_ID_FIELDS if ids else ():
            column = [fields.get(name) for fields in self.fields.values()]
            values = {*column}
            others = column != numbers[: len(column)] and (values >= ids or values <= ids)
            may_be = bool(values & strange) if strange else others and _LIKE_AN_ID.search(name)
            if may_be and len(values) == len(column):
                meant.append(name)
        if strange or meant:
            name = next(name for name in self._seen if name in strange or not strange)
            problem = f"queries without ids (numbered from 1 to {self.count}), while {self._seen[name]} names them by ids, as {quoted(name)}"
            names = " or ".join(map(quoted, sorted(meant)))
            remedy = f"is {names} the id? name it id, or " if meant else ""
            remedy += "add a field id to the queries"
            raise InputError(problem, remedy, "queries.unidentified", path=self.path)

    def notes(self) -> tuple[Note, ...]:
        """A note that ids count as numbers of queries, with an example."""
        what = "[query|queries] without ids [was|were] numbered from 1, and named so in {}"
        what += f" (as {quoted(next(iter(self._seen), ''))})"
        about = sorted({*map(str, self._seen.values())})
        return (count_note("numbered_queries", self.count * bool(about), what, about=about),)


def count_strangers(
    ids: pl.Series, known: pl.Series, what: str, *, remedy: str, path: Location | None
) -> int:
    """Number of distinct ids that are not among the known ones.

    If no id is known, an InputError names an example from both; ``what`` is its phrase, with ``{}`` for the number of
    known ids: ``judges none of the {} [query|queries]``.
    """
    others = ids.filter(~ids.is_in(known.implode())).unique()
    what = agreeing(len(known), what.format(len(known)))
    refuse_strangers(ids, others, known, what, remedy=remedy, path=path)
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
    """As ``count_strangers``, for ids with the unknown ``others``; ``known`` may be incomplete."""
    if len(ids) and len(known) and len(others) == ids.n_unique():
        problem = f"{what} (it has {quoted(ids[0])}, they have {quoted(known[0])})"
        raise InputError(problem, remedy, "inputs.strangers", path=path)
