"""Decoder-only readers on vLLM, which batches continuously and caches shared parts of prompts.

Prompts are tokenized and cut, and outputs decoded, as in ``CausalReader``: in fp32 the outputs are
the same (tested). Written for vLLM 0.32.
"""

from __future__ import annotations

import gc
import logging
import os
import warnings
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import torch
from vllm import EngineArgs, LLMEngine, RequestOutput, SamplingParams
from vllm.distributed import cleanup_dist_env_and_memory
from vllm.usage.usage_lib import UsageContext

from engine.machine import device
from engine.machine.batching import MORE_MEMORY
from engine.machine.model_files import end_tokens, generation_config, tokenizer_and_config
from engine.messages.errors import InputError
from engine.reading.answers import ended_by, not_ended, rule_of, weighed
from engine.reading.models.decoding import Continuation, first_tokens
from engine.reading.models.tokenizing import PromptRead, PromptReader
from engine.reading.models.vllm_support import PromptBatch, RequestsUnderWay, cache_memory, sampling
from engine.reading.protocol import Finish, ReaderSpec, ReaderStats, ReadOutput

# The default share of memory that vLLM takes per GPU of several; vLLM itself checks that it is free.
_SHARE_OF_SEVERAL = 0.9
# vLLM does not start if less than its share is free after its own setup (vllm/v1/worker/utils.py).
_SPARE = 512 * 2**20
# Prefixes are shared in whole blocks; vLLM's 128 on a CPU are more than an instruction with examples.
_CPU_BLOCK = 32


# Engines in use, by ``ReaderSpec.model``; an engine goes with the last of its readers.
_IN_USE: WeakValueDictionary[tuple[object, ...], RequestsUnderWay] = WeakValueDictionary()


class VllmReader(PromptReader):
    """A decoder-only model that vLLM runs in this process.

    Readers of the same model share vLLM and the model. A process holds one model at a time: vLLM's process groups are
    global, and go with the last reader of the model.
    """

    reads_ahead = True

    def __init__(self, spec: ReaderSpec) -> None:
        tokenizer, config = tokenizer_and_config(spec.path, spec.code)
        running = _IN_USE.get(spec.model)
        if running is None:
            on = _prepare(spec)
            running = _IN_USE[spec.model] = RequestsUnderWay(_start(spec, on), on)
        self._running = running
        self._engine = self._running.engine
        self._longest = int(self._engine.model_config.max_model_len)
        self.stats = ReaderStats()
        self._first = first_tokens(tokenizer, spec.choices, spec.name)
        self._new_tokens = spec.most_new_tokens
        self._rule = rule_of(spec)
        positions = int(getattr(config, "max_position_embeddings", 0) or self._longest)
        super().__init__(spec, tokenizer, spec.max_input_tokens or positions - self._new_tokens)
        self._sampling = SamplingParams(
            temperature=0.0,
            max_tokens=self._new_tokens,
            # Chats may begin with a stop string, or with a thought that contains one: they are cut below.
            stop=[] if self._rule.chat else list(spec.stop),
            # Only the model's own end tokens: vLLM would add the tokenizer's.
            ignore_eos=True,
            stop_token_ids=sorted(end_tokens(generation_config(Path(spec.path), config))),
            logprob_token_ids=sorted(set(self._first)) or None,
            logprobs=0 if spec.scores == "own" else None,
            **sampling(spec),
        )
        if spec.scores == "target":  # the prompt ends with the target's tokens
            self._sampling = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=0)

    def read(self, inputs: Sequence[Sequence[str]]) -> list[ReadOutput]:
        return self.start(inputs)()

    def start(self, inputs: Sequence[Sequence[str]]) -> Finish:
        """Hand prompts to vLLM. See ``engine.reading.protocol.StartingReader``."""
        reads = self._reads(inputs)
        tokens = {
            i: [*read.tokens, *read.target]
            for i, read in enumerate(reads)
            if self._refused(read) is None
        }
        return partial(self._continued, reads, self._running.ask(tokens, self._sampling))

    def _continued(self, reads: list[PromptRead], batch: PromptBatch) -> list[ReadOutput]:
        outputs = [self._refused(read) for read in reads]
        for i, result in self._running.results(batch):
            computed = len(batch.prompts[i]) - (result.num_cached_tokens or 0)
            self.stats.prompt_tokens += computed
            self.stats.padded_tokens += computed
            outputs[i] = self._output(reads[i], result)
        self.stats.peak_memory = device.peak_memory(self._running.device)
        return [output for output in outputs if output is not None]

    def _refused(self, read: PromptRead) -> ReadOutput | None:
        if (failed := read.refused(self._longest - 1)) is not None:
            return failed
        if read.length + self._new_tokens > self._longest:
            # Cutting it would make outputs depend on the memory at hand.
            reason = f"{read.length} tokens, vLLM has room for {self._longest - self._new_tokens}"
            return read.failed(f"{reason}; {MORE_MEMORY}")
        return None

    def _output(self, read: PromptRead, result: RequestOutput) -> ReadOutput:
        (completion,) = result.outputs
        reason = str(getattr(completion, "finish_reason", None) or "")
        answer = Continuation(list(completion.token_ids), ended=ended_by(reason))
        if reason and answer.ended is None:  # abort, error
            return read.failed(not_ended(reason))
        if read.scored is not None:
            answer.logs = _logs(read.target, result.prompt_logprobs[-len(read.target) :])
        elif self._first:
            scores = [completion.logprobs[0][token].logprob for token in self._first]
            # a single choice is weighed among all tokens, see _start
            answer.text, answer.confidence, answer.mass = weighed(self._spec.choices, scores)
        else:
            if self._spec.scores == "own":
                answer.logs = _logs(answer.tokens, completion.logprobs)
            if isinstance(completion.stop_reason, int):  # an end token, no part of the output
                answer.tokens.pop()
                answer.ended = "end"
            answer.text = self._tokenizer.decode(answer.tokens, skip_special_tokens=True)
        return answer.output(read, self._rule)


def _logs(tokens: Sequence[int], rows: Sequence[Any]) -> list[float]:
    return [row[token].logprob for token, row in zip(tokens, rows, strict=True)]


def _prepare(spec: ReaderSpec) -> torch.device:
    """The device, as from ``device.prepare``; with several GPUs, this process touches none."""
    if spec.gpus == 1:
        return device.prepare(spec)
    if spec.threads:
        torch.set_num_threads(spec.threads)
    if device.machine_has_gpu():
        return torch.device("cuda")
    # vLLM would give each process its own NUMA node, and there may be fewer nodes (tests).
    os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
    return torch.device("cpu")


def _share_of_each(spec: ReaderSpec) -> float:
    if spec.gpus == 1:
        return device.gpu_share(spec, spare=_SPARE)
    if not spec.memory:
        return _SHARE_OF_SEVERAL
    from vllm.platforms import current_platform

    return min(1.0, spec.memory / spec.gpus / current_platform.get_device_total_memory(0))


def _start(spec: ReaderSpec, on: torch.device) -> LLMEngine:
    """Load the model into vLLM; an InputError if memory does not suffice."""
    gc.collect()  # free unreferenced readers now, not together with this one's groups
    options: dict[str, Any]
    if on.type == "cuda":
        options = {"gpu_memory_utilization": _share_of_each(spec)}
    else:
        options = {
            "kv_cache_memory_bytes": cache_memory(spec) // spec.gpus,
            "block_size": _CPU_BLOCK,
            "enforce_eager": True,
        }
        # vLLM takes a single thread by default.
        os.environ["OMP_NUM_THREADS"] = str(torch.get_num_threads())
    if spec.gpus > 1:
        # Ray has given this actor its GPUs: vLLM must start its processes itself, without Ray.
        options |= {"tensor_parallel_size": spec.gpus, "distributed_executor_backend": "mp"}
    # triton, which only GPUs need, and names of torch that vLLM still uses
    logging.getLogger("torch._library").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", category=FutureWarning, module="vllm")
    set_threads = torch.set_num_threads
    try:
        return _profiled_again(
            EngineArgs(
                model=spec.path,
                dtype=spec.dtype,
                max_model_len=-1,  # as long as the model's positions and the cache allow
                enable_prefix_caching=True,
                # A single choice is weighed among all tokens. Several are weighed among themselves, and
                # differ like their logits, up to rounding.
                logprobs_mode="raw_logprobs",
                # the files that transformers would read, and never a pickle
                config_format="hf",
                tokenizer_mode="hf",
                load_format="safetensors",
                trust_remote_code=bool(spec.code),
                generation_config="vllm",  # no settings that change sampling
                seed=0,
                use_tqdm_on_load=False,
                disable_log_stats=True,
                **options,
            )
        )
    except (ValueError, torch.OutOfMemoryError) as error:
        if "memory" not in str(error):
            raise
        reason = " ".join(str(error).split())[:300]
        problem = f"vLLM has too little memory ({reason})"
        remedy = "change `memory`, or the memory that other processes take"
        raise InputError(problem, remedy, "vllm.memory", path=spec.name) from None
    finally:
        torch.set_num_threads = set_threads  # vLLM's CPU worker replaces it


def _profiled_again(options: EngineArgs, tries: int = 4) -> LLMEngine:
    """vLLM, restarted if other processes freed memory of the GPU while vLLM measured its model's memory."""
    start = partial(LLMEngine.from_engine_args, options, usage_context=UsageContext.LLM_CLASS)
    for _ in range(tries - 1):
        try:
            return start()
        except AssertionError as error:
            if "memory profiling" not in str(error):  # vllm/v1/worker/gpu_worker.py
                raise
        # Not within the block: its traceback holds the weights, and vLLM's groups are global.
        cleanup_dist_env_and_memory()
    return start()
