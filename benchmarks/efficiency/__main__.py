"""The command ``python -m benchmarks.efficiency``, which ``run`` describes."""

from __future__ import annotations

import signal

if __name__ == "__main__":
    # Until there is a run, which says what it keeps, Ctrl-C ends the imports without a traceback.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    from benchmarks.efficiency.run import main

    raise SystemExit(main())
