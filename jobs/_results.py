"""Writing and printing an evaluation's results, in the words of the command line."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from engine.report import results
from engine.report.answer import answer_parts
from engine.report.findings import Findings
from engine.report.printed import full_parts
from engine.report.results import outputs as outputs
from jobs._evaluation_options import parameters
from jobs._options import with_options
from jobs._terminal import say_json, standard_output, verbosity


def print_results(findings: Findings, out: str, *, full: bool = False) -> None:
    """Print the answer, or all tables; or the summary as JSON."""
    if verbosity().as_json:
        say_json(findings.summary)
        return
    parts = (full_parts if full else answer_parts)(findings, out)
    standard_output().print_parts(parts, _worded())


def _worded() -> Callable[[str], str]:
    """What writes a sentence with options instead of fields."""
    return functools.partial(with_options, known={known.name for known in parameters()})


def _with_options(content: dict[str, Any]) -> dict[str, Any]:
    worded = _worded()
    for notes in content["notes"].values():
        for note in notes:
            note["text"] = worded(note["text"])
    content["verdict"]["sentences"] = [*map(worded, content["verdict"]["sentences"])]
    return content


write_results = functools.partial(results.write_results, reworded=_with_options)
