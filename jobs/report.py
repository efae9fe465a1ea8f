"""``erag report``: the page of a result that was made before."""

from __future__ import annotations

from pathlib import Path

from engine.report.page.remake import remake
from jobs._command import run_command, with_verbosity
from jobs._terminal import say


@with_verbosity
def report(folder: Path, /, *, single_file: bool = False, passages: bool = True) -> None:
    """Make the page of an evaluation again, from the folder that erag evaluate wrote.

    Reads nothing with an LLM. The passages come from the files that the evaluation was given; where they have
    changed since, nothing is written.

    Parameters
    ----------
    folder
        What --out of erag evaluate named.
    single_file
        Put everything into report.html, which can then be sent by itself.
    passages
        Show the passages of every query. Without them the page needs none of the evaluation's inputs.
    """
    written = remake(folder, single_file=single_file, passages=passages)
    beside = f", and {len(written.beside)} files beside it" if written.beside else ""
    say(f"{written.page} ({written.size / 2**20:.1f} MiB{beside})")


if __name__ == "__main__":
    run_command(report)
