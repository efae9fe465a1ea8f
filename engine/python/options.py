"""The options of ``engine.evaluate``, for editors and type checkers: written by .ci/options from the settings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, TypedDict

from engine.reading.function import ReaderChoice
from engine.reading.protocol import EngineChoice
from engine.sources.io.locations import Location


class EvaluateOptions(TypedDict, total=False):
    """What ``engine.evaluate`` takes beside its arguments; docs/guide/python.md says where each is described."""

    answers: Any
    outputs: Any
    ignore_identical_ids: bool
    limit: int | None
    progress: bool
    store: Location | None
    qrels: Any
    preferences: Any
    augmentation: Literal["in-prompt", "fid"]
    task: Literal["short-answer", "claims", "dialogue"]
    prompt: str | None
    end_to_end: bool | Literal["recorded"]
    end_to_end_k: int | str | None
    engine: EngineChoice
    dtype: Literal["bfloat16", "float16", "float32"] | None
    trust_remote_code: bool
    measures: str | Sequence[str]
    relevant: Literal["list", "pool", "qrels"] | None
    missing: Literal["zero", "skip", "error"]
    resamples: int
    confidence: float
    seed: int
    cluster: str | None
    until: Literal["verdict"] | None
    lists: float | None
    width: float | None
    actors: int | str | None
    gpus_per_actor: float | None
    cpus_per_actor: float | None
    accelerator_type: str | None
    memory: int
    shard_pairs: int | None
    failed_reads: Literal["error", "zero", "skip"] | None
    reread: bool
    lazy: bool
    base_url: str | None
    api_key_env: str
    concurrency: int
    requests_per_minute: int | None
    tokens_per_minute: int | None
    request_timeout: float
    max_tokens: int | None
    max_cost: float | None
    price_in: float | None
    price_out: float | None
    price_per_hour: float | None
    max_hours: float | None
    batch_out: Location | None
    batch_in: Location | Sequence[Location]
    endpoint: Literal["chat", "completions"]
    erag_reader: ReaderChoice | None
    dual_words: Literal["tokens", "substring"]
    judge: ReaderChoice | None
    judge_prompt: str | None
    judge_labels: Literal["binary", "graded"]
    preference_labels: Literal["share", "bradley-terry"]
    helpful: Literal["erag", "containment", "containment-substring", "provenance"]
    abstain_prompt: str | None
