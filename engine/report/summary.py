"""The summary of an evaluation as JSON, for programs and for the record."""

from __future__ import annotations

import importlib.metadata
import math
import platform
from dataclasses import asdict
from typing import Any

from engine import __version__
from engine.evaluation import Evaluation, means
from engine.reading.prompts import Prompt
from engine.reading.protocol import ReaderSpec
from engine.report import certificate
from engine.settings import Settings

_PACKAGES = ("torch", "transformers", "ray", "polars", "scipy", "numpy", "pyserini", "rouge-score")


def summarize(evaluation: Evaluation, settings: Settings, files: dict[str, Any]) -> dict[str, Any]:
    """Everything a reader of the figures needs, as JSON-ready values (NaN becomes null).

    Args:
        files: what was evaluated: paths of queries, corpus and runs.
    """
    scores, end_to_end = means(evaluation)
    spec, judge = evaluation.spec, evaluation.judge
    versions = {
        "erag-engine": __version__,
        "python": platform.python_version(),
        **{name: _version(name) for name in _PACKAGES},
    }
    return _jsonable(
        {
            "configuration": {
                **files,
                **asdict(settings),
                "measures": [str(measure) for measure in settings.parsed_measures()],
                "relevant": evaluation.relevant,
                "end_to_end_k": settings.end_to_end_k or settings.k,
            },
            "reader": None if spec is None else _reader(spec, evaluation.prompt),
            "judge": None
            if judge is None
            else {
                **_reader(judge.spec, judge.prompt),
                "labels": settings.judge_labels,
                "reading": asdict(judge.costs),
            },
            "counts": asdict(evaluation.counts),
            "reading": asdict(evaluation.costs),
            "seconds": evaluation.seconds,
            "means": scores.to_dicts(),
            "end_to_end": end_to_end.to_dicts(),
            "correlations": evaluation.statistics.correlations.to_dicts(),
            "comparisons": evaluation.statistics.comparisons.to_dicts(),
            "systems": evaluation.statistics.systems.to_dicts(),
            "run_pairs": evaluation.statistics.run_pairs.to_dicts(),
            "dual": evaluation.dual.to_dicts(),
            "certificates": {
                role: certificate.content(found, versions)
                for role, found in evaluation.certificates.items()
            },
            "versions": versions,
        }
    )


def _reader(spec: ReaderSpec, prompt: Prompt | None) -> dict[str, Any]:
    return {
        "name": spec.name,
        "weights_sha256": spec.weights,
        "architecture": spec.architecture,
        "dtype": spec.dtype,
        "prompt": prompt and prompt.template.name,
        "prompt_sha256": prompt and prompt.digest,
        "choices": spec.choices,
        "max_new_tokens": spec.max_new_tokens,
        "max_input_tokens": spec.max_input_tokens,
        "fingerprint": spec.fingerprint,
    }


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _jsonable(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _jsonable(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_jsonable(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
