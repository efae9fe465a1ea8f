"""Writing and printing an evaluation's results, in the words of the command line."""

from __future__ import annotations

import functools
from collections.abc import Collection
from typing import Any

from engine.evaluation.assess import Evaluation
from engine.evaluation.study import Study
from engine.report import results
from engine.report.answer import answer_parts
from engine.report.audit import Origin
from engine.report.findings import Findings
from engine.report.printed import full_parts
from engine.report.results import outputs as outputs
from engine.sources.io.locations import Location
from jobs._evaluation_options import parameters
from jobs._options import with_options
from jobs._terminal import say_json, standard_output, verbosity


def write_results(
    result: Evaluation,
    files: dict[str, Any],
    out: Location,
    study: Study | None = None,
    origin: Origin | None = None,
) -> Findings:
    """As ``engine.report.results.write_results``, with options in the sentences of the summary."""
    reworded = functools.partial(_with_options, known=_fields())
    return results.write_results(result, files, out, study, origin, reworded=reworded)


def print_results(findings: Findings, out: str, *, full: bool = False) -> None:
    """Print the answer, with ``full`` all tables and what stands around them; or the summary as JSON.

    Args:
        findings: as they were written.
        out: where the results are, without credentials.
    """
    if verbosity().as_json:
        say_json(findings.summary)
        return
    console, known = standard_output(), _fields()
    for part in (full_parts if full else answer_parts)(findings, out):
        if isinstance(part, str):
            console.print_line(with_options(part, known))
        else:
            console.print(part)


def _fields() -> set[str]:
    return {known.name for known in parameters()}


def _with_options(content: dict[str, Any], known: Collection[str]) -> dict[str, Any]:
    """The summary with options, instead of fields, in its sentences."""
    for notes in content["notes"].values():
        for note in notes:
            note["text"] = with_options(note["text"], known)
    said = content["verdict"]["sentences"]
    content["verdict"]["sentences"] = [with_options(sentence, known) for sentence in said]
    return content
