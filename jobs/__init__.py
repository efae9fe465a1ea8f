"""The commands. They use the ``engine`` beside this folder, whatever else goes by that name.

A program's own folder called ``engine`` comes first where it is in the current directory of
``python -m jobs.X``, or in one of PYTHONPATH's.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

_ROOT = Path(__file__).resolve().parent.parent


def _put_engine_first() -> None:
    spec = find_spec("engine")
    places = [*(spec.submodule_search_locations or [str(spec.origin)])] if spec else []
    if [Path(place).resolve() for place in places] == [_ROOT / "engine"]:
        return
    if "engine" in sys.modules:
        raise ImportError(f"{places[0]} is in the way of the package engine in {_ROOT}; rename it")
    sys.path.insert(0, str(_ROOT))


_put_engine_first()
