"""Choose what runs a reader, and specify it with its prompt, by what is asked of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

from engine.machine import device
from engine.machine.device import Dtype
from engine.machine.pool import PoolSettings
from engine.machine.remote.api_settings import ApiSettings, is_api
from engine.machine.survey import reading_on_vllm, reads_on_gpus
from engine.machine.watch import OnEvent
from engine.messages.errors import InputError
from engine.reading.function_reader import specify_function
from engine.reading.models.weights import resolve
from engine.reading.prompting.prompts import Prompt, Purpose
from engine.reading.protocol import Augmentation, Engine, ReaderSpec, Scores
from engine.reading.reader_settings import ReaderSettings, RunningSettings
from engine.reading.readers import specify
from engine.reading.remote.specify import specify_api


class ReaderAsk(Protocol):
    """What is asked of a model, as ``labels.annotator.Ask`` says it."""

    @property
    def model(self) -> str: ...
    @property
    def task(self) -> Purpose: ...
    @property
    def prompt(self) -> str | None: ...
    @property
    def augmentation(self) -> Augmentation | None: ...
    @property
    def scores(self) -> Scores: ...


def engine_for(
    model: str, reader: ReaderSettings, pool: PoolSettings, on_event: OnEvent, *, asked: bool
) -> Engine:
    """Choose what runs a reader: as the user says, or vLLM where the machines that read have it.

    Args:
        asked: whether it reads, and no executor in its place.
    """
    if reader.own(model):
        return "function"
    if is_api(model):
        return "openai"
    if reader.engine != "auto":
        return reader.engine
    # Nodes are asked only where it matters.
    if asked and resolve(model).architecture == "causal":
        return "vllm" if reading_on_vllm(pool, on_event) else "transformers"
    return "transformers"


def specify_asked(
    ask: ReaderAsk,
    reader: ReaderSettings,
    running: RunningSettings,
    api: ApiSettings,
    dtype: Dtype | None,
    engine: Engine,
    *,
    asked: bool,
) -> tuple[ReaderSpec, Prompt]:
    """The reader that is asked, and its prompt; ``asked`` as in ``engine_for``.

    Raises:
        InputError: the reader cannot be used, or cannot score texts that it is to score.
    """
    if own := reader.own(ask.model):
        augmentation = ask.augmentation or "in-prompt"
        spec, prompt = specify_function(
            own, augmentation=augmentation, task=ask.task, prompt=ask.prompt
        )
        return _scoring(spec, ask.scores), prompt
    if is_api(ask.model):
        spec, prompt = specify_api(
            ask.model,
            api,
            augmentation=ask.augmentation or "in-prompt",
            task=ask.task,
            prompt=ask.prompt,
            scores=ask.scores,
            tried=asked,
        )
        return _scoring(spec, ask.scores), prompt
    # One passage is the same prompt to a decoder-only reader, however whole lists are read.
    usual = ask.augmentation or reader.augmentation
    one = ask.augmentation is None and resolve(ask.model).architecture == "causal"
    # Only what a budget is judged by, and what AMX changes, needs to know: on a cluster nodes are asked.
    on_gpu = bool(running.memory) or (engine == "transformers" and device.has_amx())
    spec, prompt = specify(
        ask.model,
        augmentation="in-prompt" if one else usual,
        task=ask.task,
        prompt=ask.prompt,
        dtype=dtype,
        memory=running.memory,
        gpu=on_gpu and reads_on_gpus(running.pool()),
        engine=engine,
        trust_remote_code=reader.trust_remote_code,
    )
    return _scoring(spec, ask.scores), prompt


def _scoring(spec: ReaderSpec, scores: Scores) -> ReaderSpec:
    if not scores:
        return spec
    thinks = spec.room and scores != "own"
    if spec.function or thinks:
        begins = "begins to think behind its prompt, where a text would be scored"
        why = begins if thinks else "is a function and gives no log-probabilities of texts"
        raise InputError(
            f"the reader {spec.name} {why}",
            "leave out annotators that score texts, or give them another model",
        )
    return replace(spec, scores=scores, choices=())
