"""Downstream metrics of a user's own."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from engine.messages.errors import InputError
from engine.messages.wording import name_of, number_of, reason_of
from engine.scoring.metrics import METRICS, Metric, UnscoredError

# Values that are kept: many passages lead to the same output.
_KEPT = 200_000


def metric_from_function(
    function: Callable[[str, list[str]], float], name: str | None = None, *, code: str = ""
) -> Metric:
    """A metric that is a function of the user's.

    Args:
        function: takes an output and the reference answers, and returns how good the output is, in
            [0, 1] (a bool is 0 or 1). It is called in one process, once for an output and its references.
        name: by default the function's.
        code: as of ``Metric``.

    Raises:
        InputError: no name, or one of the engine's own metrics.
    """
    name = name_of(function) if name is None else name
    if not name.strip():
        raise InputError("a metric without a name", "give it one")
    if name in METRICS:
        raise InputError(f"a metric of the engine is called {name!r}", "rename yours")
    return Metric(name, _Score(name, function), bool, "text", own=True, code=code)


class _Score:
    """The values of a user's function, each checked and kept."""

    def __init__(self, name: str, function: Callable[[str, list[str]], float]) -> None:
        self._name, self._function = name, function
        self._known: dict[tuple[str, tuple[str, ...]], float] = {}

    def __call__(self, output: str, references: Sequence[str]) -> float:
        key = output, tuple(references)
        if key not in self._known:
            if len(self._known) >= _KEPT:
                self._known.clear()
            self._known[key] = self._checked(output, list(references))
        return self._known[key]

    def _checked(self, output: str, references: list[str]) -> float:
        try:
            value: Any = self._function(output, references)
        except (Exception, SystemExit) as error:
            raise UnscoredError(
                f"the metric {self._name} raises {reason_of(error)}", "correct the function"
            ) from error
        number = number_of(value)
        if math.isnan(number):
            raise UnscoredError(
                f"the metric {self._name} gives {value!r}", "return a number from 0 to 1"
            )
        return number
