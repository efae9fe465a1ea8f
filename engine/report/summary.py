"""The summary of an evaluation as JSON, for programs and for the record."""

from __future__ import annotations

import importlib.metadata
import math
import platform
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

from engine import __version__
from engine.evaluation.evaluate import Evaluation, means
from engine.evaluation.read import Reading, Role
from engine.evaluation.settings import Settings
from engine.reading.reads import ReadingCosts
from engine.report import certificate, verdict
from engine.tables import ANNOTATOR

_PACKAGES = ("torch", "transformers", "ray", "polars", "scipy", "numpy", "pyserini", "rouge-score")


def summarize(evaluation: Evaluation, settings: Settings, files: dict[str, Any]) -> dict[str, Any]:
    """Everything a reader of the figures needs, as JSON-ready values (NaN becomes null).

    Args:
        files: what was evaluated: paths of queries, corpus and runs.
    """
    scores, end_to_end = means(evaluation)
    readings = evaluation.readings
    reading = readings.get("reader")
    used = versions(_PACKAGES)
    return jsonable(
        {
            "configuration": {
                **files,
                **asdict(settings),
                "measures": [str(measure) for measure in settings.parsed_measures()],
                "relevant": evaluation.relevant,
                "own_annotators": [
                    name
                    for name in evaluation.labels[ANNOTATOR].unique(maintain_order=True)
                    if name not in settings.annotators
                ],
                "end_to_end_k": settings.end_to_end_k or settings.k,
            },
            "reader": reading and _reader(reading),
            "erag_reader": _other("erag", readings, {}),
            "judge": _other("judge", readings, {"labels": settings.judge_labels}),
            "abstain": _other("abstain", readings, {"helpful": settings.helpful}),
            "counts": asdict(evaluation.counts),
            "reading": asdict(reading.costs if reading else ReadingCosts()),
            "edits": [asdict(found) for found in evaluation.edited],
            "seconds": evaluation.seconds,
            "means": scores.to_dicts(),
            "end_to_end": end_to_end.to_dicts(),
            "undefined": evaluation.undefined.to_dicts(),
            "correlations": evaluation.statistics.correlations.to_dicts(),
            "comparisons": evaluation.statistics.comparisons.to_dicts(),
            "systems": evaluation.statistics.systems.to_dicts(),
            "run_pairs": evaluation.statistics.run_pairs.to_dicts(),
            "verdict": verdict.content(evaluation, settings),
            "dual": evaluation.dual.to_dicts(),
            "certificates": {
                role: certificate.content(found, used)
                for role, found in evaluation.certificates.items()
            },
            "versions": used,
        }
    )


def _other(
    role: Role, readings: Mapping[Role, Reading], more: dict[str, Any]
) -> dict[str, Any] | None:
    """A reader beside that of whole lists, with what its reads cost; None where there is none."""
    if (reading := readings.get(role)) is None:
        return None
    return {**_reader(reading), **more, "reading": asdict(reading.costs)}


def _reader(reading: Reading) -> dict[str, Any]:
    spec, prompt = reading.spec, reading.prompt
    return {
        "name": spec.name,
        "weights_sha256": spec.weights,
        "architecture": spec.architecture,
        "parameters": spec.parameters,
        "dtype": spec.dtype,
        "prompt": prompt.template.name,
        "prompt_sha256": prompt.digest,
        "choices": spec.choices,
        "max_new_tokens": spec.max_new_tokens,
        "max_input_tokens": spec.max_input_tokens,
        "fingerprint": spec.fingerprint,
    }


def versions(packages: Iterable[str]) -> dict[str, str | None]:
    """Versions of the engine, of Python, and of packages; None for those that are not installed."""
    return {
        "erag-engine": __version__,
        "python": platform.python_version(),
        **{name: _version(name) for name in packages},
    }


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def jsonable(value: Any) -> Any:
    """The value as JSON can hold it: NaN and infinities become null, keys strings."""
    if isinstance(value, dict):
        return {str(key): jsonable(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [jsonable(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
