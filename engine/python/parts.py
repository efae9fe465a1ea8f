"""Users' parts of an evaluation: functions, in Python or files (``FILE.py:function``), or from installed packages.

A package adds parts by entry points of the groups ``erag.metrics``, ``erag.annotators`` and ``erag.readers``: functions
as users give them, or ``Metric``, ``Annotator`` and ``ReaderFunction``. The engine's own names take precedence.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from engine.labels import from_function
from engine.labels.annotator import Annotator
from engine.labels.registry import ANNOTATORS
from engine.machine.functions import code_of, is_named, load_named
from engine.messages.extras import provided
from engine.messages.wording import name_of
from engine.reading.function import ReaderChoice, ReaderFunction, reader_function
from engine.reading.models.weights import BUNDLED, BUNDLED_FID
from engine.scoring.metrics import METRICS, Metric, metric_from_function

# Options that name a model each.
MODELS = ("reader", "erag_reader", "judge")
MetricChoice = str | Metric | Callable[[str, list[str]], float]
AnnotatorChoice = str | Annotator | Callable[[str, list[str], str, str], float]


def metric_of(choice: MetricChoice) -> str | Metric:
    part, name = _part("metrics", choice, METRICS)
    if isinstance(part, Metric) or not callable(part):
        return part  # settings refuse an invalid one
    return metric_from_function(part, name, code=code_of(part).who)


def annotator_of(choice: AnnotatorChoice) -> str | Annotator:
    part, name = _part("annotators", choice, ANNOTATORS)
    return from_function(name or name_of(part), part) if callable(part) else part


def reader_of(choice: ReaderChoice) -> str | ReaderFunction:
    part, name = _part("readers", choice, (BUNDLED, BUNDLED_FID))
    is_function = callable(part) or isinstance(part, ReaderFunction)
    return reader_function(part, name) if is_function else part


def _part(kind: str, choice: Any, known: Collection[str]) -> tuple[Any, str | None]:
    """The part itself or the part of that name, and its name in a package."""
    if not isinstance(choice, str) or choice in known:
        return choice, None
    if is_named(choice):
        return load_named(choice), None
    part = provided(kind, choice)
    return (choice, None) if part is None else (part, choice)
