"""``erag gate``: whether a candidate may replace a baseline, as an exit status."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from xml.etree import ElementTree

from engine.messages.wording import number, with_interval
from engine.report.paired import compare
from engine.report.summary import jsonable
from engine.sources.io.files import write_bytes
from engine.sources.io.outputs import Inputs, Outputs, refuse_overlap
from engine.statistics.leads import LEVEL
from engine.tables import RUN, RUN_B
from jobs._command import run_command, with_verbosity
from jobs._options import Words, with_options
from jobs._terminal import say, say_json, shown, verbosity

# Exit statuses, and how JUnit calls them. Of several pairs, the first that one has is the decision on all.
_STATUS = {"worse": (1, "failure"), "undecided": (3, "error"), "not worse": (0, "system-out")}
# How a report begins, and what else XML cannot hold beside characters that no terminal is sent.
_SUITE = b"<testsuite"
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
) -> None:
    """Test whether a candidate is worse than a baseline by more than a margin, by one-sided tests at 5%.

    The exit status is 0 if it is not worse by more than the margin, 1 if it is, 3 if more queries are needed.

    Parameters
    ----------
    baseline
        What --out of erag evaluate named; FOLDER:RUN for one run of it.
    candidate
        The same of what may replace it; runs of the same name are compared.
    margin
        Loss of the mean end-to-end score that is allowed, between 0 and 1.
    allow
        What may differ, of queries, corpus, metric and reader.
    cluster
        What queries are clustered by: article, or a column that an evaluation clustered them by; none for independent
        queries. By default as the evaluations did, else by article where many share one.
    junit
        File for a report in the format of JUnit.
    """
    if junit and junit.is_file() and junit.read_bytes().startswith(_SUITE):
        # That of an earlier gate would be taken for this one's, if this one is refused or ends in an error.
        write_bytes(_report([(candidate, "undecided", "no decision was made")]), junit)
    comparison = compare(baseline, candidate, cluster=cluster, allow=["answers"])
    notes = [with_options(note, {"cluster"}) for note in comparison.notes]
    if junit:
        read = [findings.folder for findings in comparison.evaluations.values()]
        refuse_overlap(
            Inputs({"baseline or candidate": read}, {}), Outputs([junit]), option="junit"
        )
    confidence = next(iter(comparison.evaluations.values())).confidence
    pairs, cases = [], []
    for pair, one in zip(comparison.pairs, comparison.gate(margin, allow), strict=True):
        # The interval is that of ``erag compare``; the bounds decide.
        stated = {"bounds": [one.low, one.high], "level": LEVEL, "confidence": confidence}
        of_pair = {name: pair[name] for name in (RUN, RUN_B, "low", "high")}
        pairs.append(asdict(one) | of_pair | stated)
        interval = with_interval(one.difference, pair["low"], pair["high"], plus="+")
        low, high = (number(bound, plus="+") for bound in (one.low, one.high))
        line = (
            f"{one.decision}: {pair[RUN_B]} less {pair[RUN]} is {interval} ({confidence * 100:g}% interval), "
            f"{low} to {high} by one-sided tests at {LEVEL:.0%}, margin {margin:g}, {one.n} queries"
        )
        if one.decision == "undecided":
            line += f"; {one.queries_needed or 'no number of'} queries would decide (80% power)"
        say(line)
        cases.append((pair[RUN_B], one.decision, line))
    for note in notes:
        say(f"note: {note}")
    if junit:
        write_bytes(_report(cases), junit)
    decision = next(name for name in _STATUS if name in {pair["decision"] for pair in pairs})
    if verbosity().as_json:
        found = {"decision": decision, "margin": margin, "pairs": pairs}
        say_json(jsonable(found | {"differing": comparison.differing, "notes": notes}))
    sys.exit(_STATUS[decision][0])


def _report(cases: Sequence[tuple[str, str, str]]) -> bytes:
    """A report in the format of JUnit, of names, decisions and lines; without characters that XML cannot hold."""
    tags = [_STATUS[decision][1] for _, decision, _ in cases]
    suite = ElementTree.Element("testsuite", name="erag gate", tests=str(len(tags)))
    suite.set("failures", str(tags.count("failure")))
    suite.set("errors", str(tags.count("error")))
    for tag, (name, decision, line) in zip(tags, cases, strict=True):
        name, line = (shown(text).translate(_NOT_XML) for text in (name, line))
        case = ElementTree.SubElement(suite, "testcase", classname="erag.gate", name=name)
        about = {} if tag == "system-out" else {"type": decision}
        ElementTree.SubElement(case, tag, about).text = line
    return ElementTree.tostring(suite, encoding="utf-8")


if __name__ == "__main__":
    run_command(gate)
