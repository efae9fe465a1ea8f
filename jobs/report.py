"""``erag report``: make the page of an earlier result."""

from __future__ import annotations

import sys
from pathlib import Path

from engine.report.heartbeat import progress_of
from engine.report.page.remake import remake
from jobs._command import run_command, with_verbosity
from jobs._terminal import say


@with_verbosity
def report(
    folder: Path, /, *, single_file: bool = False, passages: bool = True, progress: bool = False
) -> None:
    """Make the page of an evaluation again, from the folder that erag evaluate wrote.

    Reads nothing with an LLM. The passages come from the evaluation's input files; if they have
    changed since, nothing is written.

    Args:
        folder: Folder that erag evaluate wrote (its --out).
        single_file: Put everything into report.html, which can then be sent by itself.
        passages: Show the passages of every query. The page needs no input files if they are left out.
        progress: Print the progress of the evaluation that writes there, or its end, and make no page. The status
            is 0 if it is done or runs, and 1 if it was interrupted, failed, or gives no sign of life.
    """
    if progress:
        lines, is_well = progress_of(folder)
        for line in lines:
            say(line)
        sys.exit(0 if is_well else 1)
    written = remake(folder, single_file=single_file, passages=passages)
    beside = f", and {len(written.beside)} files beside it" if written.beside else ""
    say(f"{written.page} ({written.size / 2**20:.1f} MiB{beside})")


if __name__ == "__main__":
    run_command(report)
