"""Measure how useful a retriever is to the LLM that reads its results (eRAG and its rivals).

``evaluate`` evaluates runs and returns a ``Result``; ``compare`` compares several; ``Reader`` wraps a function as an LLM; ``compat.eval`` is
called like the eRAG package; ``load_labels`` reads exported labels. All names are imported on first use.
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from engine import compat
    from engine.labels import Annotator, from_function
    from engine.messages.errors import InputError, ReadError, WriteError
    from engine.python.evaluate import evaluate
    from engine.python.input_forms import read_traces
    from engine.python.result import Result
    from engine.reading.function import ReaderFunction as Reader
    from engine.report.paired import compare
    from engine.sources.runs.export import load_labels
    from engine.version import __version__

__all__ = [
    "Annotator",
    "InputError",
    "ReadError",
    "Reader",
    "Result",
    "WriteError",
    "__version__",
    "compare",
    "compat",
    "evaluate",
    "from_function",
    "load_labels",
    "read_traces",
]

# The allocators of Arrow and Polars keep freed memory by default: 140 MB of the driver after a million reads.
os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
os.environ.setdefault("_RJEM_MALLOC_CONF", "dirty_decay_ms:50,muzzy_decay_ms:0")

# Module and name behind each public name.
_PLACES = {
    "Annotator": ("engine.labels", "Annotator"),
    "InputError": ("engine.messages.errors", "InputError"),
    "ReadError": ("engine.messages.errors", "ReadError"),
    "Reader": ("engine.reading.function", "ReaderFunction"),
    "Result": ("engine.python.result", "Result"),
    "WriteError": ("engine.messages.errors", "WriteError"),
    "__version__": ("engine.version", "__version__"),
    "compare": ("engine.report.paired", "compare"),
    "compat": ("engine.compat", ""),
    "evaluate": ("engine.python.evaluate", "evaluate"),
    "from_function": ("engine.labels", "from_function"),
    "load_labels": ("engine.sources.runs.export", "load_labels"),
    "read_traces": ("engine.python.input_forms", "read_traces"),
}


if not TYPE_CHECKING:  # else every name would do for type checkers

    def __getattr__(name: str) -> Any:
        """Import the object on its first use."""
        if name not in _PLACES:
            from engine.messages.gone import GONE

            if instead := GONE.get(("name", f"engine.{name}")):
                raise AttributeError(f"engine.{name} is gone: {instead}")
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        place, inside = _PLACES[name]
        module = importlib.import_module(place)
        globals()[name] = getattr(module, inside) if inside else module
        return globals()[name]


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
