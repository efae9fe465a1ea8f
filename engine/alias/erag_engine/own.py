"""Paths of this installation's own packages, and the packages that Python finds by their names."""

from __future__ import annotations

import functools
import importlib
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType


def root() -> Path:
    """The folder with ``engine`` and ``jobs``: of installed packages, or of a checkout."""
    parents = Path(__file__).resolve().parents
    return next(parent for parent in parents if (parent / "jobs" / "_command.py").is_file())


def place_of(name: str) -> Path | None:
    """The file behind a top-level name, or its folder if it is a package."""
    spec = find_spec(name)
    places = [*(spec.submodule_search_locations or ()), spec.origin or ""] if spec else [""]
    return Path(places[0]).resolve() if places[0] else None


@functools.cache
def engine(below: str = "") -> ModuleType:
    """The package ``engine``, or a module below it (``.tables``); an ImportError if Python finds another package."""
    place = place_of("engine")
    if place is None or not (place / "labels" / "erag.py").is_file():
        raise ImportError(
            f"{place} is in the way of the package engine in {root()}, of which erag_engine is another name; "
            "rename it, or leave its folder out of PYTHONPATH and of the current directory"
        )
    return importlib.import_module(f"engine{below}")
