"""Parts that installed packages add by entry points of the groups ``erag.metrics``, ``erag.annotators``, and so on."""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import Any

from engine.messages.errors import InputError
from engine.messages.wording import reason_of


def provided(kind: str, name: str) -> Any:
    """The part of this name from an installed package; None without any.

    Args:
        kind: metrics, annotators, measures or readers: entry points are of the group ``erag.metrics``, and so on.

    Raises:
        InputError: the package raises an error, or two packages add parts of one name.
    """
    # A package in two places is listed twice.
    entries = {entry.value: entry for entry in entry_points(group=f"erag.{kind}", name=name)}
    if len(entries) > 1:
        places = " and ".join(sorted(entries))
        problem = f"{name!r} of erag.{kind} is {places}"
        raise InputError(problem, "remove one of the packages", "package.twice")
    for place, entry in entries.items():
        try:
            return entry.load()
        except Exception as error:  # a package's code may raise anything
            problem = f"{name!r} of erag.{kind}, {place}, cannot be loaded ({reason_of(error)})"
            remedy = "correct the package, or remove it"
            raise InputError(problem, remedy, "package.unloadable") from error
    return None
