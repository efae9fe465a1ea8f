"""Making the page of a result again, from its folder and the files that it was given."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from engine.inputs.files import EvaluationInputs, InputFiles, cut_inputs, inputs_sha256
from engine.inputs.shards import InMemoryInputs
from engine.messages.errors import InputError
from engine.report.findings import Findings, Sources, read_findings
from engine.report.page.render import PAGE, Written, page_files, require_page
from engine.report.page.write import write_page
from engine.report.summary import SUMMARY
from engine.sources.io.folders import folder_at
from engine.sources.io.outputs import sole_writer
from engine.sources.io.replacing import replaced_together


def remake(folder: Path, *, single_file: bool, passages: bool) -> Written:
    """Make the page of an evaluation again, and those of the other conditions where it is a study.

    With ``passages``, for which the evaluation's inputs are read again, queries are shown with theirs.

    Raises:
        InputError: the folder holds no evaluation; an input is gone, or is not what was evaluated.
    """
    require_page()
    findings = read_findings(folder, None)
    study = findings.summary.get("study") or {"conditions": []}
    places = [Path(one["directory"]) for one in study["conditions"]] or [Path()]
    conditions = [read_findings(folder / place, None) for place in places]
    # Runs that an earlier version edited are in no file that can be read again.
    again = not (findings.summary.get("shards") or findings.configuration.get("edits"))
    if passages and again:
        cutoffs = [int(one.configuration["k"]) for one in conditions]
        inputs = InMemoryInputs.of_files(_files(findings), k=max(cutoffs)).inputs
        conditions = [
            replace(one, sources=_sources(one, cut_inputs(inputs, k)))
            for one, k in zip(conditions, cutoffs, strict=True)
        ]
    with sole_writer(folder):
        written = [
            replace_page(one.folder, partial(write_page, one, single_file=single_file))
            for one in conditions
        ]
    return written[places.index(Path())]


def replace_page(folder: Path, write: Callable[[Path], Written]) -> Written:
    """Have a page written into an empty folder, and put it into the place of the earlier one, which an error leaves whole."""
    place = folder_at(folder)
    with replaced_together(folder, lambda: page_files(place), last=PAGE) as new:
        written = write(new)
    beside = tuple(folder / path.relative_to(new) for path in written.beside)
    return replace(written, page=folder / PAGE, beside=beside)


def _files(findings: Findings) -> InputFiles:
    """The files that were evaluated. As many queries as were: the first of them."""
    settings, counts = findings.configuration, findings.summary["counts"]
    if not settings.get("queries"):
        raise InputError(
            "does not say which files were evaluated, since Python gave tables",
            "make the page without `passages`",
            path=findings.folder / SUMMARY,
        )
    several = isinstance(settings["corpus"], list)
    return InputFiles(
        queries=settings["queries"],
        corpus=None if several else settings["corpus"],
        corpora=tuple(settings["corpus"]) if several else (),
        run=tuple(settings["runs"]),
        limit=counts["queries"] or None,
        skip_bad=counts["skipped_records"],
        answers=settings.get("answers"),
        need_answers=False,  # whoever needed them had them
    )


def _sources(findings: Findings, inputs: EvaluationInputs) -> Sources:
    expected = (findings.summary.get("audit") or {}).get("tables_sha256", {})
    digests = inputs_sha256(inputs)
    for name in ("queries", "corpus", "runs"):
        if expected.get(name) != digests[name]:
            raise InputError(
                f"was made of other {'passages' if name == 'corpus' else name} than {findings.configuration[name]} has now",
                "evaluate again, or make the page without `passages`",
                path=findings.folder / SUMMARY,
            )
    return Sources.of(inputs)
