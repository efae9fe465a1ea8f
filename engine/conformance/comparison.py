"""What a comparison with reference implementations finds, and how two sets of values are compared."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import polars as pl

from engine.messages import extras
from engine.messages.errors import InputError
from engine.ranking.measures import Measure
from engine.tables import MEASURE, QUERY_ID, VALUE

Values = Mapping[str, float]  # by query (or item) id

# Both sides add at most some thousand terms of about 1 in double precision, in other orders: they
# differ by some thousand times 2e-16 at the worst. The least that a wrong rule can change, one
# relevant passage at rank 1000 of a thousand relevant, is 1e-6.
TOLERANCE = 1e-12
# Stands where a row's largest difference is that of the means.
THE_MEAN = "the mean"


@dataclass(frozen=True)
class Row:
    """One measure, recomputed by one reference.

    Attributes:
        measure: our name.
        there: the reference's name.
        n: how many queries (or items) were compared: those that the reference gives a value.
        difference: the largest absolute difference of a query, or of the means over the n; relative
            to the reference's value where that is above 1 (DCG). Infinite where a value that the
            reference's rules promise is missing or NaN.
        at: the id of the query with it, ``THE_MEAN``, or empty where there is no difference.
        their_mean: mean over the n, as the reference itself computes it where it does.
        our_mean: our mean over all queries that we count; ours over the n is compared with theirs.
        rule: a declared rule of the reference that bears on these values and is not ours; empty
            where there is none, or no difference that needs one.
        remaining: the largest difference once our values are computed by that rule.
    """

    measure: str
    there: str
    n: int
    difference: float
    at: str
    their_mean: float
    our_mean: float
    rule: str
    remaining: float

    def agrees(self, tolerance: float) -> bool:
        """Whether the values are the same without any allowance."""
        return self.difference <= tolerance

    def conforms(self, tolerance: float) -> bool:
        """Whether the values are the same, or become so by the reference's declared rule."""
        return self.remaining <= tolerance


@dataclass(frozen=True)
class Reference:
    """One reference implementation: what it computed, and by which rules.

    Attributes:
        package: its distribution.
        version: None where it is not installed.
        install: how to get it.
        rows: the measures that it and we compute.
        rules: how it treats ties, means, missing queries and so on, a line each.
        lacks: our names of the measures that it does not compute.
    """

    package: str
    version: str | None
    install: str
    rows: tuple[Row, ...] = ()
    rules: tuple[str, ...] = ()
    lacks: tuple[str, ...] = ()


@dataclass(frozen=True)
class Comparison:
    """The user's files, recomputed by every reference that is installed.

    Attributes:
        title: what was compared.
        unit: what values belong to: ``query`` or ``item``.
        notes: facts about the files that rules bear on, a line each.
        references: one for each that could be used, those that are not installed too.
    """

    title: str
    unit: str
    notes: tuple[str, ...]
    references: tuple[Reference, ...]


def compare(
    measure: str,
    there: str,
    ours: Values,
    theirs: Values,
    ids: Sequence[str],
    *,
    their_mean: float | None = None,
    by_rule: Values | None = None,
    rule: str = "",
) -> Row:
    """Compare the values of one measure.

    Args:
        ours: a value for every id of the files.
        theirs: the reference's.
        ids: those that the reference's rules give a value; at least one.
        their_mean: the mean over ``ids`` that the reference computes, if it does.
        by_rule: our values by the reference's declared rule, where that is not ours.
        rule: what that rule is about, in a word or two.
    """
    reference = [theirs.get(key, math.nan) for key in ids]
    mean = mean_of(reference) if their_mean is None else their_mean
    difference, at = _largest(ours, reference, mean, ids)
    row = Row(
        measure, there, len(ids), difference, at, mean, mean_of(list(ours.values())), "", difference
    )
    if by_rule is None or difference <= TOLERANCE:
        return row
    remaining, _ = _largest(by_rule, reference, mean, ids)
    if remaining >= difference:
        return row
    return replace(row, rule=rule, remaining=remaining)


def _largest(
    ours: Values, reference: Sequence[float], mean: float, ids: Sequence[str]
) -> tuple[float, str]:
    values = [ours[key] for key in ids]
    distances = [_distance(a, b) for a, b in zip(values, reference, strict=True)]
    distances.append(_distance(mean_of(values), mean))
    largest = max(distances)
    if largest == 0:
        return 0.0, ""
    # A mean is named only where no query is: it says less about the cause.
    return largest, [*ids, THE_MEAN][distances.index(largest)]


def _distance(a: float, b: float) -> float:
    if a == b:
        return 0.0
    distance = abs(a - b) / max(1.0, abs(b))
    return math.inf if math.isnan(distance) else distance


def by_query(scored: pl.DataFrame, measures: Sequence[Measure]) -> dict[Measure, dict[str, float]]:
    """The values of a table of scores, by measure and query."""
    names = {str(measure): measure for measure in measures}
    values: dict[Measure, dict[str, float]] = {measure: {} for measure in measures}
    for name, query, value in scored.select(MEASURE, QUERY_ID, VALUE).iter_rows():
        values[names[name]][query] = value
    return values


def mean_of(values: Sequence[float]) -> float:
    """The mean, in whatever order the values come; of at least one."""
    return math.fsum(values) / len(values)


def version_of(*distributions: str) -> str:
    """The version of the first of these distributions that is installed."""
    return extras.version_of(*distributions) or "of unknown version"


def not_installed(package: str, module: str, install: str, error: ImportError) -> Reference:
    """The entry of a reference that cannot be imported: how to get it, and what it misses."""
    why = "" if error.name == module else f" ({error})"
    return Reference(package, None, f"{install}{why}")


def require_installed(references: Sequence[Reference], what: str) -> None:
    """Refuse a comparison with nothing.

    Raises:
        InputError: no reference is installed.
    """
    if all(reference.version is None for reference in references):
        raise InputError(
            f"no reference implementation of {what} is installed",
            " or ".join(reference.install for reference in references),
        )
