"""Settings of ``generation_config.json`` that change what ``generate`` writes greedily: which are applied.

Found before torch is loaded; ``engine.reading.models.generation`` applies them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from engine.machine.model_files import read_object
from engine.reading.protocol import Engine, ReaderSpec

# By the values that change nothing, None beside them. Of the first, transformers changes the logits of a step.
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
# These are another search than for the likeliest next token, or run the model otherwise.
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
# What vLLM does likewise, and how it calls that.
_IN_VLLM = {"repetition_penalty": "repetition_penalty", "min_new_tokens": "min_tokens"}


def greedy_settings(path: Path, engine: Engine) -> tuple[str, tuple[str, ...]]:
    """The settings of a model that its reader applies, as JSON (empty for none), and the names of those that it does not.

    Where there is no ``generation_config.json``, they are looked for in ``config.json``, as transformers does.
    """
    found = read_object(path / "generation_config.json")
    if found is None:
        config = read_object(path / "config.json") or {}
        found = {**(config.get("text_config") or {}), **config}
    known = {**_PROCESSED, **_NOT_APPLIED}
    given = {name: found[name] for name in known if found.get(name) not in (None, known[name])}
    applies = _PROCESSED if engine == "transformers" else _IN_VLLM
    applied = {name: value for name, value in given.items() if name in applies}
    passed_over = tuple(name for name in given if name not in applies)
    return json.dumps(applied) if applied else "", passed_over


def sampling(spec: ReaderSpec) -> dict[str, Any]:
    """The settings that a reader on vLLM applies, as ``vllm.SamplingParams`` takes them."""
    settings = json.loads(spec.generation) if spec.writes and spec.generation else {}
    named = {_IN_VLLM[name]: value for name, value in settings.items()}
    if "min_tokens" in named:  # it refuses more than it may write
        named["min_tokens"] = min(named["min_tokens"], spec.most_new_tokens)
    return named
