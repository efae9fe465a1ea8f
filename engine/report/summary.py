"""The summary of an evaluation as JSON, for programs and for the record."""

from __future__ import annotations

import math
import platform
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from engine.evaluation.conclude import Evaluation
from engine.evaluation.jobs import Job
from engine.evaluation.settings import Settings
from engine.inputs.files import inputs_sha256
from engine.labels.annotator import READER
from engine.labels.registry import ANNOTATORS
from engine.machine.remote.spec import ApiSpec
from engine.messages.errors import masked
from engine.messages.extras import version_of
from engine.messages.notes import Note
from engine.ranking.ranking_settings import JUDGED
from engine.ranking.scores import Relevant
from engine.reading.costs import ReadingCosts
from engine.reading.identity import code_of_function
from engine.reading.outputs import SHOWN
from engine.report import audit, verdict
from engine.report.audit import Origin
from engine.sources.io.kept import digest_at, json_digest
from engine.version import __version__

# What the prompts of a role are made of, in its description.
PROMPT_PARTS = "prompt_parts"
# The digest of the source of a metric that is a function.
METRIC_CODE = "metric_code_sha256"
# The file of the summary, and what its audit calls the digests of all files.
SUMMARY, DIGESTS = "summary.json", "results_sha256"
# The folder of what an evaluation in shards needs to go on, beside the summary.
SHARDS = "shards"
# The tables of every evaluation's statistics.
STATISTICS = ("correlations", "comparisons", "systems", "run_pairs", "unseen", "by_place")

_PACKAGES = ("torch", "transformers", "ray", "polars", "scipy", "numpy", "pyserini", "rouge-score")


# The counts of ``summary.json``, and what each is where there is no note of that code: the number of
# things, those of each run, the names concerned, or whether there are any.
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
    """Everything that a program needs to use the figures, as JSON-ready values (NaN becomes null)."""
    settings, readings = evaluation.settings, evaluation.readings
    metric = settings.reader.scored_by
    reading = readings.get(READER.name)
    used = versions(_PACKAGES)
    return jsonable(
        {
            "configuration": configuration(settings, evaluation.relevant, files),
            **_roles(evaluation),
            # Of a function of the user's: the file is otherwise what it always was.
            **({METRIC_CODE: metric.code or None} if metric.own else {}),
            "counts": _counts(evaluation),
            "notes": notes_by_code(evaluation.notes),
            "reading": asdict(reading.costs if reading else ReadingCosts()),
            "outputs": [
                {"output": output, "reads": reads}
                for output, reads in list(evaluation.outputs.commonest.items())[:SHOWN]
            ],
            "seconds": evaluation.seconds,
            # Where it was done in shards on disk; else the summary is what it always was.
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
            "certificates": {
                role: {**asdict(repeated), "versions": dict(used)}
                for role, repeated in evaluation.certificates.items()
            },
            "versions": used,
            "audit": audit.content(
                origin or Origin(),
                evaluation.sha256 or inputs_sha256(evaluation.inputs),
            ),
        }
    )


def with_digests(summary: dict[str, Any], folder: Path) -> dict[str, Any]:
    """A summary with the digests of the tables in a folder, and its own."""
    found = {path.name: digest_at(path) for path in sorted(folder.glob("*.parquet"))}
    whole = {**summary, "audit": {**summary["audit"], DIGESTS: found}}
    found[SUMMARY] = json_digest(whole)
    return whole


def digests_of(summary: Mapping[str, Any]) -> dict[str, str]:
    """The digests in a summary, by the name of the file; none in one of an earlier version."""
    audit = summary.get("audit")
    found = audit.get(DIGESTS) if isinstance(audit, dict) else None
    return found if isinstance(found, dict) else {}


def configuration(settings: Settings, relevant: Relevant, files: dict[str, Any]) -> dict[str, Any]:
    """What was evaluated and how: files, and settings with what their defaults stood for."""
    names = settings.labels.names()
    beyond = next((one for one in settings.resolved.listed if one.judges_everything), None)
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
    """Every reader by its role's key, None where nobody read; costs of the reader of whole lists stand apart."""
    known = [annotator.role for annotator in ANNOTATORS.values() if annotator.role]
    roles: dict[str, Any] = {role.key: None for role in (READER, *known)}
    for reading in evaluation.readings.values():
        role = reading.ask.role
        described = describe_reader(reading)
        if role != READER:
            described |= {**reading.ask.description, "reading": asdict(reading.costs)}
        roles[role.key] = described
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
    """The notes that are printed, by code."""
    by_code: dict[str, list[dict[str, Any]]] = {}
    for note in notes:
        if note.is_shown:
            content = {"amount": note.amount, "about": list(note.about), "text": note.text}
            by_code.setdefault(note.code, []).append(content)
    return by_code


def describe_reader(reading: Job) -> dict[str, Any]:
    """Who read, with all that decides what it gives."""
    spec, prompt, api = reading.spec, reading.prompt, reading.spec.api
    code = spec.code or code_of_function(spec)
    known = spec.is_reproducible
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
        # Only where code of the model, or a function, ran: the file is otherwise what it always was.
        **({"code_sha256": code} if code else {}),
        **({"api": _server(reading, api)} if api else {}),
        **({"version": spec.function.reader.version} if spec.function else {}),
        **({} if known else {"reproducible": False}),
    }


def _server(reading: Job, api: ApiSpec) -> dict[str, Any]:
    """The server that a reader is behind; without credentials."""
    costs = reading.costs
    # Of answers whose tokens are not known, no price is, nor of all together.
    price = api.settings.cost(costs.prompt_tokens, costs.output_tokens)
    return {
        "host": api.settings.host,
        "endpoint": api.endpoint,
        "model": api.model,
        "server_fingerprint": api.server or None,
        "sent": api.sent,
        "refused": list(api.refused),
        "cost": None if costs.unreported_answers else price,
    }


def versions(packages: Iterable[str]) -> dict[str, str | None]:
    """Versions of the engine, of Python, and of packages; None for those that are not installed."""
    return {
        "erag-engine": __version__,
        "python": platform.python_version(),
        **{name: version_of(name) for name in packages},
    }


def jsonable(value: Any) -> Any:
    """The value as JSON can hold it: NaN and infinities become null, keys and paths strings."""
    if isinstance(value, dict):
        return {str(key): jsonable(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [jsonable(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Path):
        return str(value)
    return value
