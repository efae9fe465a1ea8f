"""Stage 3: vLLM as the engine uses it, beside vLLM's own ``LLM.generate``, and two of it on one GPU.

Each measurement has a process of its own: vLLM keeps the GPU's memory until its process ends.
"""

from __future__ import annotations

import concurrent.futures
import json
import multiprocessing
import os
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch

from engine.machine.device import Dtype
from engine.machine.model_files import loading_turn
from engine.reading import readers
from engine.reading.models import vllm_support
from engine.reading.protocol import Finish, ReaderSpec, ReadOutput
from tests.gpu_first import models
from tests.gpu_first.checks import Check, NotRun, alike, apart, require
from tests.gpu_first.scale import Scale

ROOT = Path(__file__).parents[2]
# Units cost so much of the pace of all prompts at once, at most.
_MOST_LOST = 0.15
# vLLM's kernels add in another order, which near ties show.
_LEAST_ALIKE = 0.9


class Served(NamedTuple):
    """What a reader gave: outputs, confidences, seconds, and tokens of prompts that were computed."""

    outputs: list[str]
    confidences: list[float | None]
    seconds: float
    computed: int


def load(spec: ReaderSpec) -> Any:
    """A reader on vLLM or on our own loops, as an actor loads it; the digest of its weights is not asked for."""
    if spec.engine != "vllm":
        return models.load(spec)
    vllm_support.set_environment()
    from engine.reading.models.vllm_reader import VllmReader

    return VllmReader(spec)


def serve(spec: ReaderSpec, reads: models.Reads, unit: int = 0) -> Served:
    """Read in units of so many, 0 for all at once, each started before the one before it is done, as in an actor."""
    models.offline()
    with loading_turn(spec.weight_bytes, always=spec.engine == "vllm"):
        reader = load(spec)
    reader.read(reads[:2])
    before = reader.stats.prompt_tokens
    start = time.perf_counter()
    step = unit or len(reads)
    started: deque[Finish] = deque()
    done: list[ReadOutput] = []
    for at in range(0, len(reads), step):
        started.append(reader.start(reads[at : at + step]))
        if len(started) > 1:
            done += started.popleft()()
    done += started.popleft()()
    seconds = time.perf_counter() - start
    return Served(
        models.written(done),
        [output.confidence for output in done],
        seconds,
        reader.stats.prompt_tokens - before,
    )


@contextmanager
def saved(scale: Scale, dtype: Dtype, **changes: Any) -> Iterator[ReaderSpec]:
    """The specification of a small decoder on vLLM."""
    require("vllm")
    with models.folder() as folder:
        apart(models.make, scale.small, folder, dtype)
        spec = models.spec_of(scale.small, folder, dtype, scale, engine="vllm", **changes)
        yield spec


def peer(spec: ReaderSpec, reads: models.Reads, scale: Scale) -> dict[str, Any]:
    """``LLM.generate`` of all prompts at once, by the benchmarks' own peer, which imports nothing of the engine."""
    with models.folder() as folder:
        settings = {
            "model": spec.path,
            "dtype": spec.dtype,
            "prompts": [read[0] for read in reads],
            "max_tokens": scale.new,
            "stop": [],
            "threads": os.cpu_count() or 1,
        }
        (folder / "in.json").write_text(json.dumps(settings), encoding="utf-8")
        command = [sys.executable, "-m", "benchmarks._vllm_peer"]
        subprocess.run(
            [*command, str(folder / "in.json"), str(folder / "out.json")], check=True, cwd=ROOT
        )
        measured: dict[str, Any] = json.loads((folder / "out.json").read_text(encoding="utf-8"))
        return measured


def as_own_loops(scale: Scale, figures: dict[str, Any]) -> str:
    """Outputs in fp32 as those of our own loops."""
    reads = models.prompts(scale.reads, scale)
    with saved(scale, "float32") as spec:
        own = apart(serve, replace(spec, engine="transformers"), reads)
        there = apart(serve, spec, reads)
    figures["alike"] = alike(there.outputs, own.outputs, share=_LEAST_ALIKE)
    return f"{figures['alike']}"


def units(scale: Scale, figures: dict[str, Any]) -> str:
    """What units cost: the same prompts in units, all at once, and by ``LLM.generate``, in bf16."""
    count, unit = scale.served
    reads = models.prompts(count, scale)
    with saved(scale, "bfloat16") as spec:
        in_units = apart(serve, spec, reads, unit)
        at_once = apart(serve, spec, reads)
        theirs = peer(spec, reads, scale)
    best = min(theirs["seconds"])
    figures |= {
        "reads": count,
        "units": -(-count // unit),
        "seconds_in_units": round(in_units.seconds, 3),
        "seconds_at_once": round(at_once.seconds, 3),
        "seconds_of_llm_generate": round(best, 3),
        "tokens_a_second": round(count * scale.new / in_units.seconds, 1),
        "lost_by_units": round(1 - best / in_units.seconds, 4),
    }
    figures["alike"] = alike(in_units.outputs, theirs["outputs"], share=0.3)
    said = (
        f"{figures['units']} units {in_units.seconds:.2f} s, at once {at_once.seconds:.2f} s, LLM.generate {best:.2f} s: "
        f"units lose {figures['lost_by_units']:.1%}; {figures['alike']}"
    )
    assert not scale.gpu or figures["lost_by_units"] <= _MOST_LOST, said
    return said


def prefixes(scale: Scale, figures: dict[str, Any]) -> str:
    """How much of the prompts' tokens vLLM's prefix cache saves, where half of each is the same in all."""
    reads = models.prompts(scale.reads * 4, scale, shared=96)
    with saved(scale, "bfloat16") as spec:
        found = apart(serve, spec, reads)
    whole = sum(len(read[0].split()) + 1 for read in reads)
    figures |= {"tokens": whole, "computed": found.computed}
    assert not scale.gpu or found.computed < 0.8 * whole, f"{found.computed} of {whole} computed"
    return f"{found.computed} of {whole} tokens were computed"


def choices(scale: Scale, figures: dict[str, Any]) -> str:
    """A judge's confidences in fp32, by several choices and by one, as those of our own loops."""
    reads = models.prompts(scale.reads, scale)
    worst = 0.0
    for words in ((" w5", " w9", " w77"), (" w5",)):
        with saved(scale, "float32", choices=words) as spec:
            there = apart(serve, spec, reads)
            own = apart(serve, replace(spec, engine="transformers"), reads)
        pairs = zip(there.confidences, own.confidences, strict=True)
        worst = max(worst, *(abs(a - b) for a, b in pairs if a is not None and b is not None))
    figures["largest_difference"] = worst
    assert worst < 1e-3, f"confidences differ by {worst:.1e}"
    return f"confidences differ by {worst:.1e} at most"


def two_on_one(scale: Scale, figures: dict[str, Any]) -> str:
    """Two of vLLM with 0.45 of a GPU each, started at once: both start, and answer as one does."""
    reads = models.prompts(scale.reads, scale)
    with saved(scale, "bfloat16") as spec:
        whole = apart(_memory)
        part = replace(spec, memory=int(0.45 * whole)) if whole else spec
        expected = apart(serve, part, reads)
        new = multiprocessing.get_context("spawn")
        with concurrent.futures.ProcessPoolExecutor(2, mp_context=new) as pool:
            both = [pool.submit(serve, part, reads) for _ in range(2)]
            found = [one.result() for one in both]
    figures["seconds"] = [round(one.seconds, 3) for one in found]
    figures["alike"] = [alike(one.outputs, expected.outputs, share=_LEAST_ALIKE) for one in found]
    return f"both started; {', '.join(figures['alike'])}"


def tensor_parallel(scale: Scale, figures: dict[str, Any]) -> str:
    """Two GPUs hold a reader together: each adds up its half of the heads, and NCCL adds the halves."""
    require("vllm")
    if apart(torch.cuda.device_count) < 2:
        raise NotRun("one GPU")
    reads = models.prompts(scale.reads, scale)
    with saved(scale, "float32") as spec:
        one, two = apart(serve, spec, reads), apart(serve, replace(spec, gpus=2), reads)
    return alike(two.outputs, one.outputs, share=_LEAST_ALIKE)


def real(scale: Scale, figures: dict[str, Any]) -> str:
    """The bundled reader as an evaluation loads it, on vLLM as on our own loops, in fp32."""
    require("vllm")
    from engine.messages.errors import InputError

    try:
        spec, _ = readers.specify(
            "bundled", augmentation="in-prompt", task="short-answer", dtype="float32"
        )
    except InputError as error:
        raise NotRun(str(error)) from None
    reads = [[f"Question: what is {i}?\nAnswer:"] for i in range(scale.reads)]
    own, there = (apart(whole, replace(spec, engine=e), reads) for e in ("transformers", "vllm"))
    return alike(there, own, share=_LEAST_ALIKE)


def whole(spec: ReaderSpec, reads: models.Reads) -> list[str]:
    """Outputs of a reader that is loaded as an actor does it, digest and compiler included."""
    return models.written(readers.load(spec).read(reads))


def _memory() -> int:
    if not torch.cuda.is_available():
        return 0
    return int(torch.cuda.get_device_properties(0).total_memory)


CHECKS: dict[str, Check] = {
    "vLLM, fp32, as our own loops": as_own_loops,
    "units beside LLM.generate, bf16": units,
    "prefix cache": prefixes,
    "choices on vLLM, fp32": choices,
    "two of vLLM on one GPU": two_on_one,
    "the bundled reader on vLLM, fp32": real,
    "vLLM on two GPUs (tensor parallelism), fp32, as on one": tensor_parallel,
}
