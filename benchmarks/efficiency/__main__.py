"""The command ``python -m benchmarks.efficiency``, which ``run`` describes."""

from __future__ import annotations

import signal
from collections.abc import Sequence


def main(options: Sequence[str] | None = None) -> int:
    """Run the benchmark; its exit status, as ``run.main`` gives it."""
    from benchmarks.efficiency import run

    return run.main(options)


if __name__ == "__main__":
    # Before a run, which reports its kept results, Ctrl-C ends the imports without a traceback.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    raise SystemExit(main())
