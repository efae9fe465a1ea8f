"""The evaluation: prepare, read, assess. Everything costly happens in ``read``, once for every read."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace

import polars as pl

from engine.evaluation.api_readers import begin
from engine.evaluation.assess import Evaluation, assess
from engine.evaluation.digest import inputs_sha256
from engine.evaluation.inputs import EvaluationInputs
from engine.evaluation.prepare import prepare
from engine.evaluation.read import Reading, by_role, read, specify_jobs
from engine.evaluation.settings import Settings
from engine.machine.watch import OnEvent, silent
from engine.reading.certify import Certificate, Sample, certify
from engine.reading.reads import Executor, Progress
from engine.sources.io.locations import Location


def evaluate(
    inputs: EvaluationInputs,
    settings: Settings,
    *,
    store: Location,
    on_progress: Progress = lambda done, total: None,
    on_event: OnEvent = silent,
    executor: Executor | None = None,
) -> Evaluation:
    """Evaluate runs: label their passages, score them, and compare with the end-to-end score.

    Args:
        inputs: queries, passages and runs (``evaluation.inputs.read_inputs``), read at the ``k`` of the
            settings or at a larger one.
        settings: what to do.
        store: the read store, a path or an address.
        on_progress: called with the distinct reads done and wanted.
        on_event: told one line when nodes of the cluster come or go, actors restart, or the job waits.
        executor: a program of the user's that does the reads instead of the readers, given their
            prompts (docs/guide/python.md). The store keeps its reads under its name if it is a
            ``NamedExecutor``; otherwise they are neither stored nor looked up.

    Raises:
        InputError: the inputs were read at a smaller ``k``, an annotator lacks what it needs, or a label
            is out of range.
        ReadError: reads failed and ``failed_reads`` is ``error``.
    """
    start = time.perf_counter()
    begin([settings])
    prepared = prepare(inputs, settings)
    jobs = specify_jobs(prepared.requests, settings, executor, on_event)
    readings = by_role(
        read(
            jobs,
            prepared.inputs.queries,
            prepared.inputs.corpus,
            settings.running,
            store=store,
            on_progress=on_progress,
            on_event=on_event,
            executor=executor,
        )
    )
    certificates = certify_readings(readings, prepared.inputs, settings, executor)
    evaluation = assess(prepared, readings, certificates)
    return replace(evaluation, seconds=time.perf_counter() - start)


def certify_readings(
    readings: Mapping[str, Reading],
    inputs: EvaluationInputs,
    settings: Settings,
    executor: Executor | None = None,
) -> dict[str, Certificate]:
    """Repeat a sample of every role's reads, as many as ``certify`` says; none where it is 0."""
    if not settings.running.certify:
        return {}
    return {
        role: _certify(reading, inputs, settings, executor) for role, reading in readings.items()
    }


def _certify(
    reading: Reading, inputs: EvaluationInputs, settings: Settings, executor: Executor | None
) -> Certificate:
    def value(reads: pl.DataFrame) -> pl.Series:
        return reading.ask.value(reads, inputs.queries)

    return certify(
        reading.wanted,
        reading.reads,
        reading.spec,
        sample=Sample(settings.running.certify, settings.bootstrap.seed),
        score=value,
        sha256={"prompt": reading.prompt.digest, **inputs_sha256(inputs)},
        pool=settings.running.pool(),
        executor=executor,
    )
