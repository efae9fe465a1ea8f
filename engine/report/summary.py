"""The summary of an evaluation as JSON, for programs and for the record; and the origin of a result.

The origin (time, command, inputs and code) is a block apart, since it differs between runs with the same figures.
"""

from __future__ import annotations

import math
import os
import platform
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from engine.evaluation.conclude import Evaluation
from engine.evaluation.jobs import Job
from engine.evaluation.settings import Settings
from engine.inputs.files import InputFiles
from engine.labels.annotator import READER
from engine.labels.registry import ANNOTATORS, input_tables
from engine.machine.device import this_machine
from engine.machine.remote.api_settings import ApiSpec
from engine.messages.errors import InputError, masked
from engine.messages.extras import version_of
from engine.messages.notes import Note
from engine.messages.wording import quoted
from engine.ranking.scores import JUDGED, Relevant
from engine.reading.costs import ReadingCosts
from engine.reading.identity import code_of_function
from engine.reading.outputs import SHOWN
from engine.report import verdict
from engine.sources.io.digests import digest_at, file_sha256, json_digest
from engine.sources.io.files import is_text
from engine.sources.io.locations import Location, locate
from engine.sources.runs.scan import header_of
from engine.sources.traces.read import named_file
from engine.version import __version__

PROMPT_PARTS = "prompt_parts"
# The digest of the source of a metric that is a function.
METRIC_CODE = "metric_code_sha256"
# The summary's file name, the key of its audit for digests of all files, and the file of ``erag repeat`` beside it.
SUMMARY, DIGESTS, REPEATED = "summary.json", "results_sha256", "repeated.json"
# The folder, beside the summary, with the state of an evaluation in shards, for resuming.
SHARDS = "shards"
STATISTICS = ("correlations", "comparisons", "systems", "run_pairs", "unseen", "by_place")

# Larger files have no digest: their tables have one, and hashing 1 GiB takes up to 3 s.
MOST_BYTES = 2**30
# The directory that holds the package: in a checkout, its root.
_ROOT = Path(__file__).resolve().parents[2]
_GIT_SECONDS = 20
PACKAGES = ("torch", "transformers", "ray", "polars", "scipy", "numpy", "pyserini", "rouge-score")


# The counts of ``summary.json``, each with its value in the absence of a note of that code: the number of
# things, by run, the names concerned, or whether there are any.
_COUNTS: dict[str, int | bool | list[str] | dict[str, int]] = {
    "queries_without_results": {},
    "queries_without_provenance": 0,
    "queries_without_judgments": 0,
    "judgments_beyond_lists": 0,
    "queries_without_preferences": 0,
    "preferences_beyond_lists": 0,
    "real_valued_annotators": [],
    "cut_runs": [],
    "skipped_queries": 0,
    "no_gold_article_listed": False,
    "corpus_passages": 0,
    "ignored_queries": 0,
    "empty_passages": 0,
    "unanswerable_queries": 0,
    "skipped_records": 0,
    "truncated_reads": 0,
    "queries_running_on": 0,
}


def summarize(
    evaluation: Evaluation, files: dict[str, Any], origin: Origin | None = None
) -> dict[str, Any]:
    """All figures and their context for programs, as JSON-ready values (NaN becomes null)."""
    settings, readings = evaluation.settings, evaluation.readings
    metric = settings.reader.scored_by
    reading = readings.get(READER.name)
    return jsonable(
        {
            "configuration": configuration(settings, evaluation.relevant, files),
            **_roles(evaluation),
            # Keys that few evaluations have are left out of other summaries.
            **({METRIC_CODE: metric.code or None} if metric.own else {}),
            "counts": _counts(evaluation),
            "notes": notes_by_code(evaluation.notes),
            "reading": (reading.costs if reading else ReadingCosts()).described(),
            "outputs": [
                {"output": output, "reads": reads}
                for output, reads in [*evaluation.outputs.commonest.items()][:SHOWN]
            ],
            "seconds": evaluation.seconds,
            **({"shards": len(evaluation.shards.shards)} if evaluation.parts else {}),
            "primary_measures": evaluation.primary_measures,
            "means": evaluation.means.to_dicts(),
            "end_to_end": evaluation.end_to_end.to_dicts(),
            "undefined": evaluation.undefined.to_dicts(),
            **{name: getattr(evaluation.statistics, name).to_dicts() for name in STATISTICS},
            "verdict": verdict.summarize_verdict(evaluation),
            **{
                table.name: evaluation.further_table(table.name).to_dicts()
                for annotator in (*ANNOTATORS.values(), *settings.resolved.listed)
                for table in annotator.further_tables
                if table.in_summary
            },
            "versions": versions(PACKAGES),
            "audit": audit_of(origin or Origin(), evaluation.sha256 or evaluation.inputs.sha256),
        }
    )


def with_digests(summary: dict[str, Any], folder: Path) -> dict[str, Any]:
    """A summary with the digests of the tables in a folder, and its own."""
    digests = {path.name: digest_at(path) for path in sorted(folder.glob("*.parquet"))}
    whole = {**summary, "audit": {**summary["audit"], DIGESTS: digests}}
    digests[SUMMARY] = json_digest(whole)
    return whole


def digests_of(summary: Mapping[str, Any]) -> dict[str, str]:
    """The digests in a summary, by file name; empty for summaries of earlier versions."""
    audit = summary.get("audit")
    digests = audit.get(DIGESTS) if isinstance(audit, dict) else None
    return digests if isinstance(digests, dict) else {}


def conditions_of(summary: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """Conditions of a study, each with its folder of results; empty for a single evaluation."""
    return (summary.get("study") or {"conditions": ()})["conditions"]


def configuration(settings: Settings, relevant: Relevant, files: dict[str, Any]) -> dict[str, Any]:
    """Configuration of the evaluation: files, and settings with the values of defaults."""
    names = settings.labels.names()
    beyond = next((named for named in settings.resolved.listed if named.judges_everything), None)
    return {
        **files,
        **settings.flat(),
        "base_url": settings.api.base_url and masked(settings.api.base_url),
        "measures": [str(measure) for measure in settings.resolved.measures],
        "relevant": relevant,
        **({JUDGED: settings.relevant(1, beyond)} if beyond else {}),
        "annotators": [name for name in names if name in ANNOTATORS],
        "own_annotators": [name for name in names if name not in ANNOTATORS],
        "end_to_end_k": settings.reader.end_to_end_k or settings.ranking.k,
    }


def _roles(evaluation: Evaluation) -> dict[str, Any]:
    known = [annotator.role for annotator in ANNOTATORS.values() if annotator.role]
    roles: dict[str, Any] = {role.key: None for role in (READER, *known)}
    for reading in evaluation.readings.values():
        roles[reading.ask.role.key] = described = describe_reader(reading)
        if reading.ask.role != READER:
            described |= {**reading.ask.description, "reading": reading.costs.described()}
    return roles


def _counts(evaluation: Evaluation) -> dict[str, Any]:
    counts: dict[str, Any] = {"queries": evaluation.queries, "passages": evaluation.passages}
    for code, nothing in _COUNTS.items():
        notes = [note for note in evaluation.notes if note.code == code]
        if isinstance(nothing, dict):
            counts[code] = {note.about[0]: note.amount for note in notes}
        elif isinstance(nothing, list):
            counts[code] = [name for note in notes for name in note.about]
        else:
            amount = sum(note.amount for note in notes)
            counts[code] = amount > 0 if isinstance(nothing, bool) else amount
    return counts


def notes_by_code(notes: Iterable[Note]) -> dict[str, Any]:
    """The printed notes, by code."""
    by_code: dict[str, list[dict[str, Any]]] = {}
    for note in notes:
        if note.is_shown:
            content = {"amount": note.amount, "about": list(note.about), "text": note.text}
            by_code.setdefault(note.code, []).append(content)
    return by_code


def describe_reader(reading: Job) -> dict[str, Any]:
    """Describe the reader, with everything that determines its outputs."""
    spec, prompt, api = reading.spec, reading.prompt, reading.spec.api
    code, known = spec.code or code_of_function(spec), spec.is_reproducible
    return {
        "name": spec.name,
        "weights_sha256": spec.weights or None,
        "architecture": spec.architecture if known else None,
        "parameters": spec.parameters or None,
        "dtype": spec.dtype if known else None,
        "engine": spec.engine,
        "prompt": prompt.template.name,
        "prompt_sha256": prompt.digest,
        PROMPT_PARTS: {
            **prompt.described(),
            "system": api.system if api else "",
            "most_new_tokens": spec.most_new_tokens,
        },
        "choices": spec.choices,
        "max_new_tokens": spec.max_new_tokens,
        "max_input_tokens": spec.max_input_tokens,
        "fingerprint": spec.fingerprint,
        "executor": spec.executor or None,
        **({"code_sha256": code} if code else {}),  # of the model, or of a function
        **({"api": _server(reading, api)} if api else {}),
        **({"version": spec.function.reader.version} if spec.function else {}),
        **({} if known else {"reproducible": False}),
    }


def _server(reading: Job, api: ApiSpec) -> dict[str, Any]:
    costs = reading.costs
    price = api.settings.cost(costs.prompt_tokens, costs.output_tokens)
    return {
        "host": api.settings.host,
        "endpoint": api.endpoint,
        "model": api.model,
        "server_fingerprint": api.server or None,
        "sent": api.sent,
        "refused": list(api.refused),
        "cost": None if costs.unreported_answers else price,  # by the tokens of all answers
    }


def versions(packages: Iterable[str]) -> dict[str, str | None]:
    """Versions of the engine, of Python, and of packages; None for packages that are not installed."""
    return {
        "erag-engine": __version__,
        "python": platform.python_version(),
        **{name: version_of(name) for name in packages},
    }


def jsonable(value: Any) -> Any:
    """The value in JSON types: NaN and infinities become null, keys and paths strings."""
    if isinstance(value, dict):
        return {str(key): jsonable(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [jsonable(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return str(value) if isinstance(value, Path) else value


def code_in(root: Path) -> dict[str, Any]:
    """The code of a directory that holds the package: ``version``, ``commit``, and whether tracked files are ``modified``.

    The last two are None outside a checkout, or if git is not installed or refuses to look.
    """
    # A checkout further up is another project's, which has this package installed inside.
    commit = _git(root, "rev-parse", "HEAD") if (root / ".git").exists() else None
    changes = _git(root, "status", "-s", "-uno") if commit else None
    known = {} if changes is None else {"commit": commit, "modified": bool(changes)}
    return {"version": __version__, "commit": None, "modified": None, **known}


def _git(root: Path, *arguments: str) -> str | None:
    # Inside a hook these variables point at another repository; and nothing is locked or written.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    try:
        return subprocess.check_output(
            ["git", "-C", str(root), *arguments],
            env=environment | {"GIT_OPTIONAL_LOCKS": "0"},
            stderr=subprocess.DEVNULL,
            text=True,
            timeout=_GIT_SECONDS,
        ).strip()
    except (OSError, subprocess.SubprocessError):
        return None


@dataclass(frozen=True)
class Origin:
    """The origin of a result, recorded when work begins. The command line has no credentials; None from Python."""

    command: str | None = None
    files: Sequence[Mapping[str, Any]] = ()
    code: Mapping[str, Any] = field(default_factory=lambda: code_in(_ROOT))


def place(path: Location | None) -> str | None:
    """A path or address without credentials; an InputError if results could not hold it."""
    text = "" if path is None else masked(str(locate(path)))
    if not is_text(text):
        problem = f"{quoted(text)} is no name in UTF-8"
        raise InputError(problem, "rename it; results hold its name", "files.encoding")
    return text or None


def name_files(files: InputFiles | None) -> dict[str, Any]:
    """The places of inputs for ``summary.json``, without credentials; None if missing, or for a table in memory."""
    tables, corpus = (files.tables, files.passages) if files else ({}, None)
    recorded = [place(named_file(path)[1]) for path in (files.outputs if files else ())]
    return {
        "queries": place(files.queries if files else None),
        "corpus": [*map(place, corpus)] if isinstance(corpus, tuple) else place(corpus),
        "runs": [place(path) for path in files.run] if files else [],
        **{name: place(tables[name].path if name in tables else None) for name in input_tables()},
        **{f"{name}_corpus": place(file.corpus) for name, file in tables.items() if file.corpus},
        "answers": place(files.answers if files else None),
        **({"outputs": recorded} if recorded else {}),
    }


def input_files(named: Mapping[str, str | list[str] | None]) -> list[dict[str, Any]]:
    """The files of a command: ``role`` (``queries``, ``runs`` …), ``path`` without credentials, ``bytes``, ``sha256``;
    ``header`` holds the comments at the head of a run.

    ``bytes`` and ``sha256`` are None for a directory, pipe or address, ``sha256`` also for files above ``MOST_BYTES``.

    Raises:
        InputError: a file can no longer be read.
    """
    files: list[dict[str, Any]] = []
    for role, paths in named.items():
        for path in dict.fromkeys([paths] if isinstance(paths, str) else paths or []):
            size = sha256 = None
            try:
                if Path(path).is_file():  # no directory, pipe that is empty by now, or address
                    size = Path(path).stat().st_size
                    sha256 = file_sha256(path) if size <= MOST_BYTES else None
            except OSError as error:
                problem, remedy = f"cannot be read ({error})", "leave it in place"
                raise InputError(problem, remedy, "results.unreadable", path=path) from None
            files.append({"role": role, "path": path, "bytes": size, "sha256": sha256})
            if role == "runs" and size and (header := header_of(path)):
                files[-1]["header"] = header
    return files


def audit_of(origin: Origin, tables: Mapping[str, str]) -> dict[str, Any]:
    """The block of ``summary.json``, with digests of the tables that were evaluated (``evaluation.digest``)."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": origin.command,
        "machine": asdict(this_machine()),
        "code": dict(origin.code),
        "files": [dict(file) for file in origin.files],
        "tables_sha256": dict(tables),
    }
