"""Another name of ``engine``: for programs, and for who looks for the package by the name that it is installed by.

``from erag_engine import evaluate`` gives what ``from engine import evaluate`` does, and modules below it are
those of ``engine`` themselves, not copies (``import erag_engine.tables``). pyproject.toml installs this folder
beside ``engine`` and ``jobs``.
"""

from __future__ import annotations

import functools
import importlib
import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_loader
from types import ModuleType
from typing import Any

from .own import found, root

# The modules of this folder itself.
_OWN = {"own", "__main__"}


@functools.cache
def _engine() -> ModuleType:
    place = found("engine")
    if place is None or not (place / "labels" / "erag.py").is_file():
        raise ImportError(
            f"{place} is in the way of the package engine in {root()}, of which erag_engine is another name; "
            "rename it, or leave its folder out of PYTHONPATH and of the current directory"
        )
    return importlib.import_module("engine")


def __getattr__(name: str) -> Any:
    return getattr(_engine(), name)


def __dir__() -> list[str]:
    return dir(_engine())


class _Modules(MetaPathFinder, Loader):
    """Finds ``erag_engine.x`` as ``engine.x``, which is imported once."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        above, _, below = name.partition(".")
        return spec_from_loader(name, self) if above == __name__ and below not in _OWN else None

    def create_module(self, spec: ModuleSpec) -> None:
        """None, for an empty module, whose place the real one takes."""

    def exec_module(self, module: ModuleType) -> None:
        below = module.__name__.removeprefix(__name__)
        sys.modules[module.__name__] = importlib.import_module(_engine().__name__ + below)


# The first to be asked: a package below is that of ``engine``, in whose folder others would find copies.
sys.meta_path.insert(0, _Modules())
