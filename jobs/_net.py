"""The last net: an error that nobody foresaw ends in one line and a log, not in a traceback."""

from __future__ import annotations

import os
import sys
import tempfile
import traceback

from engine.masking import masked


def unforeseen(error: Exception) -> str:
    """One line about an error that nothing caught, with the place of a log that has the traceback.

    The log is a file of its own in the folder of temporary files, which only the user can read: a
    traceback may quote data. Where it cannot be written, the traceback goes to standard error.
    """
    trace = masked("".join(traceback.format_exception(error)))
    what = f"{type(error).__name__}: {error}"[:300]
    try:
        number, path = tempfile.mkstemp(prefix="erag-error-", suffix=".log")
        with os.fdopen(number, "w", encoding="utf-8", errors="backslashreplace") as log:
            log.write(trace)
    except OSError:
        sys.stderr.write(trace)
        return f"an unforeseen error ({what}); the traceback is above: please report it"
    return f"an unforeseen error ({what}); please report it with the traceback in {path}"
