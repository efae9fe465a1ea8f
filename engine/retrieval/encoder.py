"""An encoder: turns texts into vectors, in batches of similar length."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as functional
from safetensors.torch import load_file

from engine.machine import batching, device, model_files
from engine.machine.batching import MemoryCost
from engine.messages.errors import EncodeError, InputError
from engine.retrieval.encoders import EncoderSpec, Pooling, layer_files, layer_of, locate

Vectors = npt.NDArray[np.float32]

# Maximum of tokens in a batch on a CPU: activations of this many stay in its caches.
CPU_BATCH_TOKENS = 2048


class Encoder:
    """A loaded encoder.

    Batches depend only on the texts of a call and on the specification, never on free memory or on
    measurements: a repeated call gives the same vectors.

    Raises:
        InputError: the model is not on this machine, is not the one specified, or cannot be loaded.
    """

    def __init__(self, spec: EncoderSpec) -> None:
        spec = locate(spec)
        os.environ.setdefault("HF_HUB_OFFLINE", "1")
        self.spec = spec
        self._device = device.prepare(spec)
        self._tokenizer, self._model = _load(spec, self._device)
        self._model.eval()
        self._layers = _layers(spec, self._model.config.hidden_size, self._device)
        self._padding = self._tokenizer.pad_token_id or 0
        self._cost, self._memory = _memory(spec, self._model.config, self._device)
        on_gpu = self._device.type == "cuda"
        most = batching.GPU_BATCH_TOKENS if on_gpu else CPU_BATCH_TOKENS
        self._tokens = spec.batch_tokens or most

    def queries(self, texts: Sequence[str]) -> Vectors:
        """The vectors of queries, with the prefix added; (texts, dimensions)."""
        prefix = self.spec.text.query_prefix
        return self.encode([prefix + text for text in texts], prefix)

    def encode(self, texts: Sequence[str], prefix: str | None = None) -> Vectors:
        """The vectors of texts that already have their prefix; (texts, dimensions), in their order.

        Texts longer than the model reads are truncated.

        Args:
            prefix: the texts' prefix; None for the prefix of passages.

        Raises:
            EncodeError: a single text does not fit into memory, or a vector is not finite.
        """
        vectors = np.empty((len(texts), self.spec.dimensions), dtype=np.float32)
        if not texts:
            return vectors
        token_ids = self._token_ids(texts)
        left_out = self._tokens_of(self.spec.text.passage_prefix if prefix is None else prefix)
        limits: dict[str, Any] = {"memory": self._memory, "max_tokens": self._tokens}

        def forward(rows: Sequence[int]) -> list[Vectors]:
            return list(self._forward([token_ids[row] for row in rows], left_out))

        with torch.inference_mode():
            for batch in batching.cut_batches([*map(len, token_ids)], cost=self._cost, **limits):
                vectors[batch] = batching.run_halving(batch, forward, _refuse, lambda: None)
        if not np.isfinite(vectors).all():
            problem = f"the encoder {self.spec.name!r} gives vectors that are not finite"
            raise EncodeError(f"{problem} in {self.spec.dtype}; use `dtype` float32")
        return vectors

    def _token_ids(self, texts: Sequence[str]) -> list[list[int]]:
        if self.spec.text.lower_case:
            texts = [text.lower() for text in texts]
        ids_alone = {"return_attention_mask": False, "return_token_type_ids": False}
        cut = {"truncation": True, "max_length": self.spec.text.max_tokens, "padding": False}
        return self._tokenizer(list(texts), verbose=False, **ids_alone, **cut)["input_ids"]

    def _tokens_of(self, prefix: str) -> int:
        """Number of leading tokens, from the prefix, that do not count, without an end token."""
        if self.spec.text.include_prompt or not prefix:
            return 0
        ids = self._token_ids([prefix])[0]
        return len(ids) - (ids[-1] in self._tokenizer.all_special_ids)

    def _forward(self, token_ids: Sequence[Sequence[int]], left_out: int) -> Vectors:
        """The vectors of a batch, whose first tokens may be left out of pooling: (texts, dimensions) in fp32."""
        length = max(1, max(map(len, token_ids)))
        # Tokens and the padding mask: to the device in one copy.
        host = np.zeros((2, len(token_ids), length), dtype=np.int64)
        host[0] = self._padding
        for row, ids in enumerate(token_ids):
            host[:, row, : len(ids)] = ids, [1] * len(ids)
        tokens, attention = torch.from_numpy(host).to(self._device)
        # No mask if there is no padding: attention then takes its fastest path.
        mask = None if host[1].all() else attention
        states = self._model(input_ids=tokens, attention_mask=mask).last_hidden_state.float()
        pooled = pool(states, attention, self.spec.text.pooling, left_out)
        pooled = self._layers(pooled)[:, : self.spec.dimensions]
        if self.spec.text.normalize:
            pooled = functional.normalize(pooled, dim=1)
        return pooled.cpu().numpy()


def pool(
    states: torch.Tensor, attention: torch.Tensor, pooling: Pooling, left_out: int = 0
) -> torch.Tensor:
    """The vectors of texts from token vectors: (texts, length, size) to (texts, size).

    Args:
        states: of the tokens, in fp32.
        attention: 1 for tokens, 0 after the last; (texts, length).
        left_out: leading tokens of a text that do not count.
    """
    counted = attention.clone() if left_out else attention
    counted[:, :left_out] = 0
    if pooling in ("cls", "lasttoken"):
        place = counted.argmax(1) if pooling == "cls" else (attention.sum(1) - 1).clamp(min=0)
        return states[torch.arange(len(states), device=states.device), place]
    weight = counted.unsqueeze(-1).float()
    if pooling == "max":
        return states.masked_fill(weight == 0, -torch.inf).amax(1)
    if pooling == "weightedmean":
        weight = weight * torch.arange(1, states.shape[1] + 1, device=states.device).view(1, -1, 1)
    total = weight.sum(1).clamp(min=1e-9)
    return (states * weight).sum(1) / (total.sqrt() if pooling.startswith("mean_sqrt") else total)


def _layers(spec: EncoderSpec, width: int, where: torch.device) -> torch.nn.Sequential:
    """The ``Dense`` modules of an encoder: matrix products with activations, in fp32."""
    layers = torch.nn.Sequential()
    for name in spec.text.layers:
        config = layer_of(folder := Path(spec.path) / name, width)
        linear = torch.nn.Linear(width, config["out_features"], bias=config.get("bias", True))
        try:
            activation = getattr(torch.nn, config["activation_function"].rsplit(".", 1)[-1])()
            (file,) = layer_files(folder)
            unpickle = partial(torch.load, map_location="cpu", weights_only=True)
            weights = unpickle(file) if file.suffix == ".bin" else load_file(file)
            linear.load_state_dict({key.removeprefix("linear."): weights[key] for key in weights})
            layers.extend([linear, activation])
        except Exception as error:  # a damaged file can make the libraries raise anything
            reason = f"{type(error).__name__}: {error}".split("\n")[0][:200]
            problem = f"holds no dense layer ({reason})"
            remedy = "fetch the model again"
            raise InputError(problem, remedy, "encoder.layerless", path=folder) from None
        width = config["out_features"]
    return layers.to(where)


def _load(spec: EncoderSpec, where: torch.device) -> tuple[Any, Any]:
    from transformers.utils import logging

    logging.disable_progress_bar()
    settings: dict[str, Any] = {"dtype": spec.dtype, "code": spec.code, "device": where}
    with model_files.refusals(spec.name):
        tokenizer, config = model_files.tokenizer_and_config(spec.path, spec.code)
        config.use_cache = False  # decoder-only models keep keys and values otherwise
        load = model_files.load_model
        model, loading = load("encoder", Path(spec.path), config=config, **settings)
    # BERT's pooler has no effect on the vectors; many encoders are saved without it.
    missing = {key for key in loading.get("missing_keys", ()) if "pooler." not in str(key)}
    model_files.refuse_missing({**loading, "missing_keys": missing}, spec.name)
    return tokenizer, model


def _memory(spec: EncoderSpec, config: Any, where: torch.device) -> tuple[MemoryCost, float]:
    """The cost of a batch, by the model's shape, and the bytes that batches may use.

    Estimated, not measured, so that batches are the same each time: a layer holds about ten states
    of the hidden size, two of the inner size, and a mask of every pair; pooling holds two in fp32.
    """
    size = device.weight_bytes(1, spec.dtype)
    hidden = config.hidden_size
    inner = getattr(config, "intermediate_size", None) or 4 * hidden
    per_token = float(size * (10 * hidden + 2 * inner) + 8 * hidden)
    cost = MemoryCost(per_row=0.0, per_token=per_token, per_pair=float(size))
    if spec.memory:
        total = float(spec.memory)
    elif where.type == "cuda":
        total = 0.9 * torch.cuda.get_device_properties(0).total_memory
    else:
        total = max(batching.machine_memory() / 4, 2.0 * 2**30)
    weights = device.weight_bytes(model_files.encoder_parameters(Path(spec.path)), spec.dtype)
    return cost, max(0.0, 0.9 * total - device.least_memory(weights, gpu=where.type == "cuda"))


def _refuse(_: int, reason: str) -> Vectors:
    raise EncodeError(f"a single text does not fit into memory: {reason}; give more `memory`")
