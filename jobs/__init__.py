"""The commands. They use the ``engine`` beside this folder, even if another package has that name.

A program's own folder called ``engine`` comes first if it is in the current directory of
``python -m jobs.X``, or in one of PYTHONPATH's.
"""

from __future__ import annotations

import os
import signal
import sys


def _stop(*_: object) -> None:
    """Ctrl-C before a command handles it (``jobs._signals``), or after its end."""
    os.write(
        2, b"erag: interrupted; every file is as it was, or whole; run the same command again\n"
    )
    os._exit(130)


# While Python looks for the module of ``python -m jobs.X``; the command ``erag`` handles it itself.
if sys.argv[:1] == ["-m"] and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, _stop)

from importlib.util import find_spec  # noqa: E402
from pathlib import Path  # noqa: E402

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
