"""Settings that check themselves: every field against its annotation, on every construction.

An annotation states a value's type and range: ``k: Positive = 10``. Values come from a command line, a file, or Python,
where any object may stand for a number (``numpy.int64(3)`` does) or for none.
"""

from __future__ import annotations

import functools
import math
import numbers
import operator
import os
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

from engine.messages.errors import MOST, InputError
from engine.messages.wording import meant, quoted


class Range(NamedTuple):
    """The range of a number, for its annotation; an open one leaves out its bounds."""

    least: float
    most: float = math.inf
    is_open: bool = False

    def holds(self, value: float) -> bool:
        """Whether a number is in the range; neither NaN nor infinity is."""
        inside = self.least <= value <= self.most and math.isfinite(value)
        return inside and not (self.is_open and value in (self.least, self.most))

    def words(self) -> str:
        if self.most == math.inf:
            return f"more than {self.least:g}" if self.is_open else f"{self.least:g} or more"
        return f"a number {'between' if self.is_open else 'from'} {self.least:g} {'and' if self.is_open else 'to'} {self.most:g}"


SEVERAL = "several"
"""In an annotation of a text: a list of texts stands for them with spaces between."""

Positive = Annotated[int, Range(1)]
Natural = Annotated[int, Range(0)]
Amount = Annotated[float, Range(0)]
Share = Annotated[float, Range(0, 1)]

_UNFIT = object()
_ANY = Range(-math.inf)


class CheckedSettings:
    """The base of a dataclass of settings: an InputError refuses values that a field's annotation does not allow.

    A ``__post_init__`` of its own calls this one first.
    """

    def __post_init__(self) -> None:
        owner: Any = type(self)
        for name, hint in hints_of(owner).items():
            # They are frozen, and a value may be another object than the one that it stands for.
            object.__setattr__(self, name, fitted(name, getattr(self, name), hint))


@functools.cache
def hints_of(owner: Any) -> dict[str, Any]:
    hints = get_type_hints(owner, include_extras=True)
    return {field.name: hints[field.name] for field in fields(owner)}


def fitted(name: str, value: Any, hint: Any) -> Any:
    """A setting's value in its annotation's type: whole numbers as ``int``, lists as tuples, paths as texts.

    An InputError names the setting and the values that it takes.
    """
    if (result := _fitted(value, hint)) is not _UNFIT:
        return result
    if isinstance(value, int) and value > MOST:
        raise InputError(f"`{name}` is too large a number", f"use {MOST} or less", "settings.large")
    for kind, _ in _kinds(hint):
        if get_origin(kind) is tuple and isinstance(value, list | tuple):
            for item in value:  # names the one at fault
                fitted(name, item, get_args(kind)[0])
    choices = [c for kind, _ in _kinds(hint) for c in get_args(kind) if isinstance(c, str)]
    near = meant(value, choices) if isinstance(value, str) else ""
    is_whole = isinstance(value, numbers.Integral) and not isinstance(value, bool)
    as_number = isinstance(value, float) and any(kind is float for kind, _ in _kinds(hint))
    problem = f"`{name}` is {f'{value:g}' if as_number else _shown(value)}"
    raise InputError(problem, f"{near}use {_valid(hint, is_whole)}", "settings.value")


def _kinds(hint: Any) -> list[tuple[Any, tuple[Any, ...]]]:
    """Types that an annotation allows, with their metadata."""
    kinds = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    apart = (get_args(kind) if get_origin(kind) is Annotated else (kind,) for kind in kinds)
    return [(kind, tuple(about)) for kind, *about in apart]


def _fitted(value: Any, hint: Any) -> Any:
    """The value in the first type that accepts it; else ``_UNFIT``."""
    for kind, about in _kinds(hint):
        if (result := _as(value, kind, about)) is not _UNFIT:
            return result
    return _fitted(os.fspath(value), hint) if isinstance(value, os.PathLike) else _UNFIT


def _as(value: Any, kind: Any, about: tuple[Any, ...]) -> Any:
    origin, is_truth = get_origin(kind), type(value).__name__ in ("bool", "bool_")
    if kind is object:
        return value
    if kind is Path and isinstance(value, str) and value:
        return Path(value)
    if origin is Literal:
        return value if isinstance(value, str) and value in get_args(kind) else _UNFIT
    if kind is bool:
        return bool(value) if is_truth else _UNFIT
    if kind in (int, float):
        number = math.nan if is_truth else _number(value, kind)
        within = next((part for part in about if isinstance(part, Range)), _ANY)
        return number if within.holds(number) else _UNFIT
    if origin is tuple or (SEVERAL in about and isinstance(value, list | tuple)):
        several = value if isinstance(value, list | tuple) else [_UNFIT]
        items = tuple(_fitted(item, get_args(kind)[0] if origin else kind) for item in several)
        return _UNFIT if _UNFIT in items else items if origin else " ".join(items)
    return value if isinstance(value, origin or kind) else _UNFIT


def _number(value: Any, kind: type) -> float:
    """A number of this kind, ``int`` as tables hold it or ``float``; NaN for anything else."""
    try:
        if kind is float:
            return float(value) if isinstance(value, numbers.Real) else math.nan
        whole = operator.index(value)
    except (TypeError, OverflowError):
        return math.nan
    return whole if abs(whole) <= MOST else math.nan


def _valid(hint: Any, is_whole: bool = False) -> str:
    """Valid values in words, for a remedy; ``is_whole`` if the refused value is a whole number."""
    words: dict[str, None] = {}
    for kind, about in _kinds(hint):
        origin = get_origin(kind) or kind
        range_ = next((part.words() for part in about if isinstance(part, Range)), "")
        if origin is Literal:
            words[", ".join(get_args(kind))] = None
        elif origin is tuple:
            words[f"a list, each {_valid(get_args(kind)[0])}"] = None
        elif kind in (int, float) and range_ and (is_whole or kind is float):
            words[range_] = None
        elif kind in (int, float):
            what = "a whole number" if kind is int else "a number"
            words[f"{what}, {range_}" if range_ else what] = None
        elif kind is not NoneType:
            known = {bool: "True or False", str: "a text", Path: "a path", Mapping: "a dictionary"}
            words[known.get(origin, f"an object of the type {origin.__name__}")] = None
    return " or ".join(words)


def _shown(value: Any) -> str:
    if isinstance(value, float):  # NumPy's count, too, but their repr names their type
        return str(value)
    known = value is None or isinstance(value, str | int | list | tuple | dict)
    return quoted(value) if known else f"of the type {type(value).__name__}"
