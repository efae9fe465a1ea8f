"""Choose the engine of a reader, specify the reader and its prompt, and load it."""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from engine.machine import device, model_files
from engine.machine.device import Dtype
from engine.machine.remote.api_settings import ApiSettings, is_api
from engine.machine.survey import reading_dtype, reading_on_vllm, reads_on_gpus
from engine.machine.watch import OnEvent
from engine.messages.errors import InputError, ReadError
from engine.messages.extras import is_installed
from engine.reading.answers import ROOM
from engine.reading.function_reader import specify_function
from engine.reading.models import weights
from engine.reading.prompting import controls, prompts
from engine.reading.prompting.prompts import Prompt, Purpose, Template
from engine.reading.protocol import ENGINES, Augmentation, Reader, ReaderSpec, Scores, call
from engine.reading.reader_settings import ReaderAsk, ReaderSettings, RunningSettings
from engine.reading.remote.specify import specify_api

# FiD encodes each passage with the question in at most this many tokens (Izacard & Grave 2021).
FID_INPUT_TOKENS = 250
# Settings of ``generation_config.json``, with the value that changes nothing; None changes nothing either. By these
# settings transformers changes the logits of a step (``models.decoding`` applies them).
_PROCESSED: Mapping[str, object] = {
    "sequence_bias": [],
    "encoder_repetition_penalty": 1,
    "repetition_penalty": 1,
    "no_repeat_ngram_size": 0,
    "encoder_no_repeat_ngram_size": 0,
    "bad_words_ids": [],
    "min_length": 0,
    "min_new_tokens": 0,
    "forced_bos_token_id": None,
    "forced_eos_token_id": None,
    "exponential_decay_length_penalty": None,
    "suppress_tokens": [],
    "begin_suppress_tokens": [],
}
# These replace the search for the likeliest next token, or run the model differently.
_NOT_APPLIED: Mapping[str, object] = {
    "num_beams": 1,
    "num_beam_groups": 1,
    "constraints": [],
    "force_words_ids": [],
    "penalty_alpha": 0,
    "dola_layers": None,
    "guidance_scale": 1,
    "watermarking_config": None,
    "token_healing": False,
    "stop_strings": [],
}


def specify_asked(
    ask: ReaderAsk,
    reader: ReaderSettings,
    running: RunningSettings,
    api: ApiSettings,
    on_event: OnEvent,
    *,
    reads: bool,
) -> tuple[ReaderSpec, Prompt]:
    """The specification of a reader and its prompt; the default engine is vLLM if the reading machines have it.

    ``reads``: whether the reader itself reads, and no executor in its place. An InputError if the reader cannot be
    used, or must score texts and cannot.
    """
    if own := reader.own(ask.model):
        spec, prompt = specify_function(own, ask)
    elif is_api(ask.model):
        spec, prompt = specify_api(ask, api, tried=reads)
    else:
        model, pool, engine = weights.resolve(ask.model), running.pool(), reader.engine
        is_causal = model.architecture == "causal"
        if engine == "auto":  # nodes are queried only if it matters
            on_vllm = reads and is_causal and reading_on_vllm(pool, on_event)
            engine = "vllm" if on_vllm else "transformers"
        # Decoder-only readers have the same prompt for one passage, however whole lists are read.
        usual = "in-prompt" if is_causal else reader.augmentation
        # Only memory budgets and AMX depend on GPUs: on a cluster the answer costs a query of the nodes.
        on_gpu = bool(running.memory) or (engine == "transformers" and device.has_amx())
        spec, prompt = specify(
            model,
            augmentation=ask.augmentation or usual,
            task=ask.task,
            prompt=ask.prompt,
            dtype=reader.dtype or (reading_dtype(pool, on_event) if reads else None),
            memory=running.memory,
            gpu=on_gpu and reads_on_gpus(pool),
            engine=engine,
            trust_remote_code=reader.trust_remote_code,
        )
    return _scoring(spec, ask.scores), prompt


def _scoring(spec: ReaderSpec, scores: Scores) -> ReaderSpec:
    if not scores:
        return spec
    thinks, engine = spec.room and scores != "own", ENGINES[spec.engine]
    if scores not in engine.scores or thinks:
        why = f"{'is' if spec.function else 'runs on'} {engine.title} and gives no log-probabilities of texts"
        if thinks:
            why = "begins to think behind its prompt, where a text would be scored"
        remedy = "leave out annotators that score texts, or give them another model"
        raise InputError(f"the reader {spec.name} {why}", remedy, "reader.scores")
    return replace(spec, scores=scores, choices=())


# Wide: the settings of a reader, and whether it reads on GPUs, which its memory budget depends on.
def specify(
    reader: str | weights.Weights,
    *,
    augmentation: Augmentation,
    task: Purpose,
    prompt: str | None = None,
    dtype: Dtype | None = None,
    memory: int = 0,
    gpu: bool | None = None,
    engine: str = "transformers",
    trust_remote_code: bool = False,
) -> tuple[ReaderSpec, Prompt]:
    """The specification of a reader and its prompt.

    Args:
        reader: its name, as in ``weights.resolve``, or the result of that function.
        augmentation: all passages in one prompt, or Fusion-in-Decoder (encoder-decoder models only).
        prompt: a template as in ``prompts.read_template``; None for the kind of model's default.
        dtype: precision; None takes the fastest of this machine.
        memory: bytes per actor, 0 for the default.
        gpu: whether actors will have GPUs, which decides the least ``memory``; None if this machine reads.
        trust_remote_code: whether Python code that comes with the model may run.

    Raises:
        InputError: an unknown reader, a reader that needs untrusted code, a feature that the engine lacks,
            Fusion-in-Decoder with a decoder-only model, or a prompt that does not fit the reader.
    """
    model = reader if isinstance(reader, weights.Weights) else weights.resolve(reader)
    name = model.name
    code = model_files.agreed_code(model.path, name, trusted=trust_remote_code)
    if augmentation == "fid" and model.architecture == "causal":
        problem = f"reader {name!r} is decoder-only and cannot do Fusion-in-Decoder"
        raise InputError(problem, "use `augmentation` in-prompt, or a T5 reader", "reader.fid")
    quantised = model_files.quantization(model.path, name)
    template = prompts.read_template(prompt or prompts.DEFAULT_STYLE[model.architecture], task)
    _refuse_beyond(engine, model, len(template.choices), quantised)
    stored = call(ENGINES[engine].stored_bytes, model) or 0
    rendered = _make_prompt(template, task, model, augmentation, trusted=bool(code))
    room = _room(model.path, rendered)
    if template.max_input_tokens:
        _refuse_too_long(model.path, rendered, room)
    # An encoder reads an input as a whole: a prefix shared by inputs cannot be cached.
    prefix = rendered.prefix if model.architecture == "causal" else ""
    dtype = dtype or device.best_dtype()
    on_gpu = device.machine_has_gpu() if gpu is None else gpu
    generation, not_applied = greedy_settings(model.path, engine)
    own_loops = engine == "transformers" and model.architecture == "causal" and not on_gpu
    spec = ReaderSpec(
        weights=model.digest,
        architecture=model.architecture,
        dtype=dtype,
        max_new_tokens=rendered.max_new_tokens,
        stop=template.stop,
        max_input_tokens=template.max_input_tokens or (FID_INPUT_TOKENS if rendered.fused else 0),
        path=str(model.path),
        parameters=model_files.parameters(model.path),
        quantised_bytes=stored,
        name=name,
        source=model.source,
        tail_marker=rendered.tail_marker,
        special_tokens=not template.chat,
        choices=template.choices,
        thought=template.thought,
        room=room,
        generation=generation,
        not_applied=not_applied,
        code=code,
        shared_prefix=prefix,
        begun=not prefix and _is_begun(model, template, trusted=bool(code)),
        # Decided by the machine that starts the evaluation: keys must not depend on which nodes are up.
        fused_attention=own_loops and dtype == "bfloat16" and device.has_amx(),
        memory=memory,
        engine=engine,
    )
    if memory:
        _refuse_too_little(spec, gpu=on_gpu)
    return spec, rendered


def greedy_settings(path: Path, engine: str) -> tuple[str, tuple[str, ...]]:
    """A model's generation settings that its reader applies, as JSON (empty for none), and the names of all others.

    Settings come from ``config.json`` if there is no ``generation_config.json``, as in transformers.
    """
    settings = model_files.read_object(path / "generation_config.json")
    if settings is None:
        config = model_files.read_object(path / "config.json") or {}
        settings = {**(config.get("text_config") or {}), **config}
    known = {**_PROCESSED, **_NOT_APPLIED}
    names = [name for name in known if settings.get(name) not in (None, known[name])]
    applies = _PROCESSED if (own := ENGINES[engine].generation) is None else own
    applied = {name: settings[name] for name in names if name in applies}
    passed_over = tuple(name for name in names if name not in applies)
    return json.dumps(applied) if applied else "", passed_over


@functools.lru_cache(maxsize=64)
def _is_begun(model: weights.Weights, template: Template, *, trusted: bool) -> bool:
    """Whether the tokenizer's begin token precedes the passages of a prompt that begins with them."""
    if (
        model.architecture != "causal"
        or template.chat
        or template.body.fields[0] != prompts.PASSAGES
    ):
        return False
    return bool(controls.load_tokenizer(model.path, model.name, trusted=trusted)("")["input_ids"])


def _refuse_beyond(
    name: str, model: weights.Weights, choices: int, quantised: dict[str, Any]
) -> None:
    """Refuse, in the driver, models and choices that an engine does not support, and an engine that is missing."""
    engine, other = ENGINES[name], "use `engine` transformers"
    kinds = {"causal": "decoder-only", "encoder-decoder": "encoder-decoder"}
    if model.architecture not in engine.readers:
        runs = " and ".join(kinds[kind] for kind in engine.readers)
        raise InputError(
            f"reader {model.name!r} is {kinds[model.architecture]}, {engine.title} runs {runs} readers",
            other,
            "engine.architecture",
        )
    if engine.choices is not None and choices > engine.choices:
        raise InputError(
            f"{choices} choices for reader {model.name!r}, and {engine.title} weighs {engine.choices} at most",
            f"give fewer `choices` in the prompt, or {other}" if engine.choices else other,
            "engine.choices",
        )
    if not all(map(is_installed, engine.modules)):
        problem = f"`engine` is {name}, but {engine.title} is not installed"
        raise InputError(problem, f"{engine.install}, or {other}", "engine.missing")
    # Our own loops multiply weights as stored, and take the size of the file for the model's size.
    if quantised and not engine.stored_bytes:
        method = quantised.get("quant_method", "a method of its own")
        problem = f"its weights are quantised ({method}), which `engine` {name} does not read"
        is_causal = model.architecture == "causal"
        remedy = "use `engine` vllm" if is_causal else "give a checkpoint in full precision"
        raise InputError(problem, remedy, "model.quantised", path=model.name)


@functools.lru_cache(maxsize=64)
def _make_prompt(
    template: Template,
    task: Purpose,
    model: weights.Weights,
    augmentation: Augmentation,
    *,
    trusted: bool,
) -> Prompt:
    """A template, completed for a model: with its chat template, and its control tokens, which data must not hold."""
    path, kind, head, tail = model.path, model.architecture, "", ""
    if template.chat:
        head, tail = controls.around_message(path, model.name, template.system, trusted=trusted)
    has_sentinels = kind == "encoder-decoder"
    known = controls.controls_of(path, model.digest, sentinels=has_sentinels, trusted=trusted)
    return prompts.make_prompt(
        template, task, kind, augmentation, head=head, tail=tail, controls=known
    )


def _refuse_too_little(spec: ReaderSpec, *, gpu: bool) -> None:
    if not gpu:  # on a GPU the engine measures the memory itself
        call(ENGINES[spec.engine].refuse_memory, spec)
    # Quantised weights are used as stored.
    quantised = spec.quantised_bytes > 0
    loading = 0 if quantised else model_files.loading_bytes(Path(spec.path), spec.dtype)
    if spec.dtype == "bfloat16" and spec.architecture == "causal":  # on any machine
        loading = max(loading, model_files.ordering_bytes(Path(spec.path)))
    least = device.least_memory(spec.weight_bytes, gpu=gpu, loading=loading)
    if spec.memory < least:
        raise InputError(
            f"`memory` of {spec.memory / 2**20:.0f} MiB cannot hold the reader in {spec.dtype}",
            f"give at least {device.as_budget(least)}",
            "settings.memory",
        )


def _room(path: Path, prompt: Prompt) -> int:
    """Tokens for a thought if the model's chat template begins a thought; at most half of its positions."""
    opening, closing = prompt.template.thought
    if prompt.template.choices or prompt.tail.rfind(opening) <= prompt.tail.rfind(closing):
        return 0
    return min(ROOM, (positions(path) or 2 * ROOM) // 2)


def positions(path: Path) -> int | None:
    """The number of a model's positions; None for T5 models, which have no limit."""
    config = json.loads((path / "config.json").read_text(encoding="utf-8"))
    positions = config.get("max_position_embeddings")
    return positions if isinstance(positions, int) else None


def _refuse_too_long(path: Path, prompt: Prompt, room: int) -> None:
    known = positions(path)
    most, generated = prompt.template.max_input_tokens, prompt.max_new_tokens + room
    if known is not None and most + generated > known:
        raise InputError(
            f"max_input_tokens {most} and max_new_tokens {generated} exceed the reader's {known}",
            f"use {known - generated} or fewer, or leave max_input_tokens out",
            "prompt.length",
            path=prompt.template.path,
        )


def load(spec: ReaderSpec) -> Reader:
    """Load a reader in this process; an InputError if the model cannot be loaded.

    A ReadError if weights or code on this machine differ from the specification, or its GPU failed.
    """
    engine = ENGINES[spec.engine]
    reader: Reader
    if spec.api or spec.function:
        reader = call(engine.readers[spec.architecture], spec)
        return reader
    # transformers asks the hub about some tokenizers even if every file is local.
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    # Before torch is loaded: threads that wait for each other should soon sleep. GNU OpenMP lets them
    # spin for long by default, which takes several times as long on a machine that others use.
    os.environ.setdefault("GOMP_SPINCOUNT", "50000")
    call(engine.prepare)
    # On another node of a cluster the path, or its source, must lead to the same weights.
    model = weights.resolve(spec.path if Path(spec.path).is_dir() else spec.source or spec.name)
    if model.digest != spec.weights:
        raise ReadError(f"the weights of {spec.name!r} on this machine are not those asked for")
    if spec.code and model_files.code_digest(model.path) != spec.code:
        problem = f"the code of {spec.name!r} on this machine is not that which was agreed to"
        raise ReadError(problem)
    spec = replace(spec, path=str(model.path))
    from transformers.utils import logging

    logging.disable_progress_bar()  # loading weights takes seconds only
    with model_files.refusals(spec.name):
        reader = call(engine.readers[spec.architecture], spec)
    return reader
