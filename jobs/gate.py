"""``erag gate``: whether a candidate may replace a baseline, as an exit status."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from xml.etree import ElementTree

from engine.messages.errors import InputError
from engine.messages.wording import number, with_interval
from engine.report.page.render import MARKDOWN, write_single
from engine.report.paired import compare
from engine.report.summary import jsonable
from engine.sources.io.files import write_bytes
from engine.sources.io.outputs import Inputs, Outputs, refuse_overlap
from engine.statistics.leads import LEVEL
from engine.tables import RUN, RUN_B
from jobs._command import run_command, with_verbosity
from jobs._options import Paths, Words, with_options
from jobs._terminal import say, say_json, shown, standard_output
from jobs.compare import page_of

# Exit statuses, with their JUnit elements. The first status that any pair has is the decision on all pairs.
_STATUS = {"worse": (1, "failure"), "undecided": (3, "error"), "not worse": (0, "system-out")}
# Heads of reports, and characters that XML cannot hold, beyond the ones that terminals never get.
_SUITE = b"<testsuite"
_REPORT = re.compile(rb"<!-- erag gate -->|\s*<!doctype html>(?s:.{,400})<title>erag gate</title>")
_NOT_XML = dict.fromkeys((0xFFFE, 0xFFFF), "\N{REPLACEMENT CHARACTER}")


@partial(with_verbosity, as_json=True)
def gate(
    *,
    baseline: str,
    candidate: str,
    margin: float,
    allow: Words = (),
    cluster: str | None = None,
    junit: Path | None = None,
    out: Paths | None = None,
) -> None:
    """Test whether a candidate is worse than a baseline by more than a margin, by one-sided tests at 5%.

    The exit status is 0 if it is not worse by more than the margin, 1 if it is, 3 if more queries are needed.

    Args:
        baseline: Folder that erag evaluate wrote (its --out); FOLDER:RUN for a single run.
        candidate: The same for the candidate; runs of the same name are compared.
        margin: Allowed loss of the mean end-to-end score, between 0 and 1.
        allow: Differences to allow: queries, corpus, metric or reader.
        cluster: Clusters of queries: article, or a column that an evaluation clustered them by; none for
            independent queries. By default as the evaluations did, else by article if many queries share one.
        junit: File for a report in the format of JUnit.
        out: Files for the decision: Markdown for a pull request (.md), a page (.html).
    """
    out = out or []
    if junit and junit.is_file() and junit.read_bytes().startswith(_SUITE):
        # An earlier gate's report would be mistaken for this one's after a refusal or an error.
        write_bytes(_report([(candidate, "undecided", "no decision was made")]), junit)
    for path in out:
        if path.suffix not in (MARKDOWN, ".html"):
            remedy = "give `out` a name in .md or .html, `junit` one of JUnit"
            raise InputError("is neither Markdown nor a page", remedy, "settings.suffix", path=path)
        if path.is_file() and _REPORT.match(path.read_bytes()):
            path.unlink()
    comparison = compare(baseline, candidate, cluster=cluster, allow=["answers"])
    notes = [with_options(note, {"cluster"}) for note in comparison.notes]
    comparison, evaluations = replace(comparison, notes=notes), comparison.evaluations.values()
    read = Inputs({"baseline or candidate": [own.folder for own in evaluations]}, {})
    for option, files in (("junit", [junit] if junit else []), ("out", out)):
        refuse_overlap(read, Outputs(files), option=option)
    confidence = next(iter(evaluations)).confidence
    pairs, cases = [], []
    for pair, test in zip(comparison.pairs, comparison.gate(margin, allow), strict=True):
        # The interval equals ``erag compare``'s; the bounds decide.
        stated = {name: pair[name] for name in (RUN, RUN_B, "low", "high")}
        stated |= {"bounds": [test.low, test.high], "level": LEVEL, "confidence": confidence}
        pairs.append(asdict(test) | stated)
        interval = with_interval(test.difference, pair["low"], pair["high"], plus="+")
        low, high = (number(bound, plus="+") for bound in (test.low, test.high))
        line = (
            f"{test.decision}: {pair[RUN_B]} minus {pair[RUN]} is {interval} ({confidence * 100:g}% interval), "
            f"{low} to {high} by one-sided tests at {LEVEL:.0%}, margin {margin:g}, {test.n} queries"
        )
        if test.decision == "undecided":
            line += f"; {test.queries_needed or 'no number of'} queries would decide (80% power)"
        say(line)
        cases.append((pair[RUN_B], test.decision, line))
    standard_output().print_parts(comparison.remarks)
    decision = next(name for name in _STATUS if name in {pair["decision"] for pair in pairs})
    passed = "No pass" if _STATUS[decision][0] else "Pass"
    lines = [f"{passed}: {decision} at a margin of {margin:g}", *(line for _, _, line in cases)]
    if junit:
        write_bytes(_report(cases), junit)
    for path in out:
        write_single(page_of(comparison, path, lines, margin), path)
    content = {"decision": decision, "margin": margin, "pairs": pairs}
    content |= {"differing": comparison.differing, "notes": comparison.notes}
    say_json(jsonable(content))
    sys.exit(_STATUS[decision][0])


def _report(cases: Sequence[tuple[str, str, str]]) -> bytes:
    """A report in the format of JUnit, without characters that XML cannot hold."""
    tags = [_STATUS[decision][1] for _, decision, _ in cases]
    counts = {"tests": len(tags), "failures": tags.count("failure"), "errors": tags.count("error")}
    named = {"name": "erag gate"} | {name: str(count) for name, count in counts.items()}
    suites = ElementTree.Element("testsuites", named)
    suite = ElementTree.SubElement(suites, "testsuite", named, skipped="0")
    for tag, (name, decision, line) in zip(tags, cases, strict=True):
        name, line = (shown(text).translate(_NOT_XML) for text in (name, line))
        case = ElementTree.SubElement(suite, "testcase", classname="erag.gate", name=name)
        about = {} if tag == "system-out" else {"type": decision, "message": line}
        ElementTree.SubElement(case, tag, about).text = line
    return ElementTree.tostring(suites, encoding="utf-8")


if __name__ == "__main__":
    run_command(gate)
