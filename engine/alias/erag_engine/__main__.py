"""The command ``erag``, found by a name of its own: a user may have folders called ``jobs`` and ``engine``."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command with this installation's packages, even if PYTHONPATH puts others before them."""
    try:
        import importlib

        from .own import place_of, root

        place = place_of("jobs")
        if place is None or not (place / "_command.py").is_file():
            sys.path.insert(0, str(root()))
        importlib.import_module("jobs.cli").main()  # which finds this `engine`
    except KeyboardInterrupt:  # before a command runs, which reports the work that it keeps
        sys.stderr.write("erag: interrupted; nothing was begun\n")
        sys.exit(130)


if __name__ == "__main__":
    main()
