"""Functions of a user's that options name as FILE.py:function. Their files run only where they are named so."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from engine.labels import from_function
from engine.labels.annotator import Annotator
from engine.machine.functions import code_of, is_named, load_named
from engine.messages.wording import name_of
from engine.reading.function import ReaderFunction, reader_function
from engine.scoring.metrics import Metric
from engine.scoring.own import metric_from_function

# Options that name one model each, beside the readers that are compared.
OTHER_MODELS = ("erag_reader", "judge")
HELP = "FILE.py:function names a function of yours."


def reader_name(name: str) -> str:
    """What a reader is called; a function goes by its own name."""
    return reader_function(load_named(name)).name if is_named(name) else name


def reader_functions(names: Iterable[str | None]) -> tuple[ReaderFunction, ...]:
    """The functions among readers, each once."""
    named = dict.fromkeys(name for name in names if name and is_named(name))
    return tuple(reader_function(load_named(name)) for name in named)


def other_models(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options with the names of functions as those of other models."""
    names = {key: options[key] for key in OTHER_MODELS if options.get(key)}
    return {**options, **{key: reader_name(name) for key, name in names.items()}}


def metric(text: str) -> str | Metric:
    """A metric by name, or a function's."""
    if not is_named(text):
        return text
    function = load_named(text)
    return metric_from_function(function, code=code_of(function).who)


def annotator(text: str) -> str | Annotator:
    """An annotator by name, or a function's."""
    if not is_named(text):
        return text
    function = load_named(text)
    return from_function(name_of(function), function)
