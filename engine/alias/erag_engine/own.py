"""Where this installation's own packages are, and what Python finds by their names."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path


def root() -> Path:
    """The folder with ``engine`` and ``jobs``: that of installed packages, or a checkout."""
    return next(
        parent
        for parent in Path(__file__).resolve().parents
        if (parent / "jobs" / "_command.py").is_file()
    )


def found(name: str) -> Path | None:
    """The file, or the folder if it is a package, that a top-level name is imported from."""
    spec = find_spec(name)
    if spec is None:
        return None
    places = [*(spec.submodule_search_locations or ()), *([spec.origin] if spec.origin else [])]
    return Path(places[0]).resolve() if places else None
