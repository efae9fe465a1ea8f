"""Support for readers on vLLM, without vLLM or torch: checks of files, settings, and running requests."""

from __future__ import annotations

import itertools
import json
import os
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from engine.machine import device, model_files
from engine.messages.errors import InputError
from engine.messages.extras import is_installed
from engine.reading.models import weights
from engine.reading.protocol import ReaderSpec

# Memory of a process with vLLM on a CPU, without weights and cache: half are imports, the rest
# activations of the widest batch.
VLLM_PROCESS_MEMORY = 1280 * 2**20
# The smallest useful cache of keys and values: in less, hardly a read would fit.
LEAST_CACHE = 64 * 2**20
# Used part of a budget; the rest stays free for the allocator.
_USED = 0.9
# A quantisation method that vLLM leaves to a package of the same name, and does not install.
_OF_A_PACKAGE = "bitsandbytes"


def stored_bytes(reader: weights.Weights) -> int:
    """Bytes of quantised weights, 0 for others; an InputError if the package to read them is missing."""
    quantised = model_files.quantization(reader.path, reader.name)
    if quantised.get("quant_method") == _OF_A_PACKAGE and not is_installed(_OF_A_PACKAGE):
        problem = f"its weights are quantised by {_OF_A_PACKAGE}, which is not installed"
        remedy = f"run 'pip install {_OF_A_PACKAGE}' wherever it is read"
        raise InputError(problem, remedy, "vllm.quantised", path=reader.name)
    return model_files.stored_bytes(reader.path) if quantised else 0


def refuse_uneven(spec: ReaderSpec) -> None:
    """Refuse, by an InputError, a number of GPUs that does not divide the number of a model's heads."""
    config = model_files.read_config(Path(spec.path), spec.name)
    heads = int(config.get("text_config", config).get("num_attention_heads") or 0)
    if heads % spec.gpus:
        fitting = [str(n) for n in range(1, heads + 1) if heads % n == 0]
        problem = f"`gpus_per_actor` is {spec.gpus}, which cannot share the {heads} attention heads of {spec.name!r}"
        raise InputError(problem, f"use one of {', '.join(fitting)}", "vllm.heads")


def cache_memory(spec: ReaderSpec) -> int:
    """Bytes for keys and values on a CPU, where vLLM allocates its whole cache at the start.

    The default budget is the memory per actor that ``backends.backend_for`` assumes.

    Raises:
        InputError: the memory left beside the weights is too little for the cache of a read.
    """
    total = spec.memory or device.default_actor_memory(spec.weight_bytes)
    room = int(_USED * total) - VLLM_PROCESS_MEMORY - spec.weight_bytes
    if room < LEAST_CACHE:
        least = (VLLM_PROCESS_MEMORY + LEAST_CACHE + spec.weight_bytes) / _USED
        problem = f"`memory` of {spec.memory / 2**20:.0f} MiB cannot hold the reader in {spec.dtype} and vLLM"
        raise InputError(problem, f"give at least {least / 2**20 + 1:.0f}MiB", "vllm.memory")
    return room


def sampling(spec: ReaderSpec) -> dict[str, Any]:
    """The generation settings of a reader on vLLM, as arguments of ``vllm.SamplingParams``."""
    settings = json.loads(spec.generation) if spec.writes and spec.generation else {}
    if least := settings.pop("min_new_tokens", None):  # vLLM refuses a minimum above the maximum
        settings["min_tokens"] = min(least, spec.most_new_tokens)
    return settings


def set_environment() -> None:
    """Set this process up for vLLM; to be called before torch is loaded.

    vLLM runs in the actor's own process, and so ends with the actor. It sends no usage statistics.

    Raises:
        InputError: the machine has a GPU and no C compiler.
    """
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    # Several GPUs of a model have a process each, which must not inherit this process's CUDA state.
    os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = "spawn"
    os.environ["VLLM_NO_USAGE_STATS"] = "1"
    os.environ["VLLM_DO_NOT_TRACK"] = "1"
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    # torch warns of the memory binding that vLLM asks for.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    if device.machine_has_gpu():
        device.require_compiler()  # before weights are read
    else:
        # Threads that spin while they wait take the CPU from others, on shared machines or with an actor per CPU.
        os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
        # Compiling takes a C++ compiler and a minute or more per process.
        os.environ["TORCH_COMPILE_DISABLE"] = "1"


@dataclass(eq=False)
class PromptBatch:
    """Prompts of a unit, as tokens, by the caller's keys; and their results so far, or the error that ended them."""

    prompts: dict[int, list[int]]
    sampling: Any
    results: deque[tuple[int, Any]] = field(default_factory=deque)
    error: BaseException | None = None


class RequestsUnderWay:
    """Running requests of a ``vllm.LLMEngine``: any thread may add prompts; only the reading thread has vLLM work."""

    def __init__(self, engine: Any, device: Any) -> None:
        self.engine, self.device = engine, device
        self._names = itertools.count()  # no two requests may have the same
        self._new: deque[PromptBatch] = deque()
        self._under_way: dict[str, tuple[PromptBatch, int]] = {}

    def ask(self, prompts: dict[int, list[int]], sampling: Any) -> PromptBatch:
        """Queue prompts: vLLM receives them at its next step, after earlier ones."""
        batch = PromptBatch(prompts, sampling)
        self._new.append(batch)
        return batch

    def results(self, batch: PromptBatch) -> Iterator[tuple[int, Any]]:
        """Have vLLM work until these prompts have ended; yields keys and results as prompts end.

        An error of vLLM is raised for all running requests, since any may have caused it.
        """
        for _ in batch.prompts:
            while not batch.results:
                if batch.error is not None:
                    raise batch.error
                self._step()
            yield batch.results.popleft()

    def _step(self) -> None:
        try:
            while self._new:
                batch = self._new.popleft()
                for key, tokens in batch.prompts.items():
                    self._under_way[name := str(next(self._names))] = batch, key
                    self.engine.add_request(name, {"prompt_token_ids": tokens}, batch.sampling)
            results = self.engine.step()
        except BaseException as error:
            for batch, _ in self._under_way.values():
                batch.error = error
            self.engine.abort_request(list(self._under_way))
            self._under_way.clear()
            raise
        for result in results:
            if result.finished:
                batch, key = self._under_way.pop(result.request_id)
                batch.results.append((key, result))
