"""Stage 1: our own loops, which need torch, transformers and polars: outputs, memory, pace, and what runs.

Sums are added in another order on another device, in another batch and by another kernel. In fp32 that changes no
output but where two logits are nearly equal; in bf16 it may, and how many it changes is a figure, not a fault.
"""

from __future__ import annotations

import contextlib
import itertools
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch

from engine.machine import device
from engine.machine.device import Dtype
from engine.reading.models.padded import PaddedModel
from engine.reading.models.t5 import T5
from engine.retrieval.encoder import Encoder
from engine.retrieval.encoders import EncoderOptions, specify
from tests.gpu_first import models
from tests.gpu_first.checks import Check, NotRun, alike
from tests.gpu_first.scale import GIB, MIB, Scale, Shape

# Vectors of the same text may differ by as much; their products are exact again (``flat.exact``).
_VECTORS = 1e-4
# Of outputs in bf16: below this share, something other than rounding is at work.
_LEAST_IN_BF16 = 0.3
# A CPU reads so many of the reads, to be compared with.
_ON_THE_CPU = 4
_WAITS = re.compile(r"cuda\w*Synchronize|_local_scalar_dense|Memcpy DtoH")
_ATTENTION = re.compile(r"flash|fmha|attention|cudnn\w*sdpa|softmax", re.IGNORECASE)


@contextlib.contextmanager
def saved(shape: Shape, dtype: Dtype, scale: Scale, **changes: Any) -> Iterator[Any]:
    """The specification of a random model; it goes, and what it took of the GPU, with the block."""
    with models.folder(4 * shape.words * shape.hidden + 20 * GIB * scale.gpu) as folder:
        models.make(shape, folder, dtype)
        models.free_all()
        try:
            yield models.spec_of(shape, folder, dtype, scale, **changes)
        finally:
            models.free_all()


def inputs_of(shape: Shape, count: int, scale: Scale) -> models.Reads:
    return (models.prompts if shape.family == "llama" else models.lists)(count, scale)


def same_everywhere(which: str, scale: Scale, figures: dict[str, Any]) -> str:
    """In fp32: together, alone, by ``generate``, on the CPU (packed, where decoders are): the same outputs."""
    shape: Shape = getattr(scale, which)
    reads = inputs_of(shape, scale.reads, scale)
    with saved(shape, "float32", scale) as spec:
        reader = models.load(spec)
        together = models.written(reader.read(reads))
        figures["halvings"] = reader.stats.memory_halvings
        alone = [models.written(reader.read([read]))[0] for read in reads[:16]]
        same = partial(alike, gaps=partial(models.gaps, spec, reads))
        figures["alone"] = same(alone, together[:16])
        stop = together[0][-2:]  # within a word that some outputs have
        reader = models.load(replace(spec, stop=(stop,)))
        cut = [text.split(stop, maxsplit=1)[0].strip() for text in together]
        figures["stop string"] = same(models.written(reader.read(reads)), cut)
        del reader
        models.free()
        figures["generate"] = same(together, models.Peer(spec).read(reads))
        models.free()
        with models.on_the_cpu():
            there = models.written(models.load(spec).read(reads[:_ON_THE_CPU]))
        figures["cpu"] = same(together[:_ON_THE_CPU], there)
    return f"alone {figures['alone']}, generate {figures['generate']}, CPU {figures['cpu']}"


def choices(scale: Scale, figures: dict[str, Any]) -> str:
    """A judge's confidence in fp32, on the device and on the CPU."""
    reads = models.prompts(scale.reads, scale)
    with saved(scale.small, "float32", scale, choices=(" w5", " w9", " w77")) as spec:
        there = models.load(spec).read(reads)
        models.free()
        with models.on_the_cpu():
            here = models.load(spec).read(reads[:_ON_THE_CPU])
        gaps = partial(models.gaps, spec, reads)
        found, expected = ([r.output for r in some[: len(here)]] for some in (there, here))
        figures["chosen"] = alike(found, expected, gaps=gaps)
    apart = [abs(a.confidence - b.confidence) for a, b in zip(there, here, strict=False)]
    figures["largest_difference"] = max(apart)
    assert max(apart) < 1e-3, f"confidences differ by {max(apart):.1e}"
    return f"{figures['chosen']}, confidences differ by {max(apart):.1e} at most"


def vectors(scale: Scale, figures: dict[str, Any]) -> str:
    """An encoder of BERT-base's shape in fp32, with and without padding, as on the CPU; its pace in bf16."""
    texts = [read[0] for read in models.prompts(4 * scale.reads, scale)]
    with models.folder() as folder:
        models.make(scale.encoder, folder, "float32")
        spec = specify(EncoderOptions(encoder=str(folder), preset="mean", dtype="float32"))
        encoder = Encoder(spec)
        there = encoder.encode(texts)
        alone = np.concatenate([encoder.encode([text]) for text in texts[:8]])
        with models.on_the_cpu():
            here = Encoder(spec).encode(texts[:16])
        fast = Encoder(replace(spec, dtype="bfloat16"))
        figures |= {
            "from_cpu": float(np.abs(there[: len(here)] - here).max()),
            "from_alone": float(np.abs(there[:8] - alone).max()),
            "texts_a_second_bf16": round(models.timed(fast.encode, texts * 4), 1),  # type: ignore[arg-type]
        }
        del encoder, fast
        models.free()
    worst = max(figures["from_cpu"], figures["from_alone"])
    assert worst <= _VECTORS, f"vectors differ by {worst:.1e}"
    return f"vectors differ by {worst:.1e} at most; {figures['texts_a_second_bf16']:.0f} texts/s in bf16"


def share_in_bf16(scale: Scale, figures: dict[str, Any]) -> str:
    """How many outputs of a decoder are the same in bf16: as fp32's, as ``generate``'s, and alone."""
    reads = models.prompts(scale.reads, scale)
    with saved(scale.small, "bfloat16", scale) as spec:
        whole = models.load(replace(spec, dtype="float32")).read(reads)
        models.free()
        reader = models.load(spec)
        together = models.written(reader.read(reads))
        alone = [models.written(reader.read([read]))[0] for read in reads[:16]]
        del reader
        models.free_all()
        peer = models.Peer(spec).read(reads)
    figures["fp32"] = alike(together, models.written(whole), share=_LEAST_IN_BF16)
    figures["alone"] = alike(together[:16], alone, share=_LEAST_IN_BF16)
    figures["generate"] = alike(together, peer, share=_LEAST_IN_BF16)
    return f"as fp32 {figures['fp32']}, alone {figures['alone']}, generate {figures['generate']}"


def pace(which: str, scale: Scale, figures: dict[str, Any]) -> str:
    """The pace of a large model in bf16, beside ``generate``, within its budget; outputs as its."""
    shape, budget = getattr(scale, which), getattr(scale, f"{which}_budget")
    with saved(shape, "bfloat16", scale, memory=budget) as spec:
        reader = models.load(spec)
        # Nearly all tokens are the prompts', and pass T5's encoder alone: its decoder is not counted.
        passed = shape.layers * models.layer_of(shape)
        passed += 2 * shape.words * shape.hidden * (shape.family == "llama")
        for count in scale.many:
            reads = inputs_of(shape, count, scale)
            reader.read(reads[:2])
            before = reader.stats.prompt_tokens
            paced = models.timed(reader.read, reads, warm=0)
            tokens = reader.stats.prompt_tokens - before
            figures[f"reads_a_second_of_{count}"] = round(paced, 2)
            figures[f"new_tokens_a_second_of_{count}"] = round(paced * scale.new, 1)
            figures[f"prompt_tokens_of_{count}"] = tokens
            if rate := scale.rates.get("bfloat16"):
                work = 2 * passed * (tokens + count * scale.new * (shape.family == "llama"))
                share = work * paced / count / (rate * 1e12)
                figures[f"share_of_matrix_rate_of_{count}"] = round(share, 4)
        within(budget, figures, reader)
        some = inputs_of(shape, min(scale.many[-1], 64), scale)
        found = models.written(reader.read(some))
        figures["reads_a_second_of_some"] = round(models.timed(reader.read, some), 2)
        del reader
        models.free_all()
        peer = models.Peer(spec)
        expected = peer.read(some)
        figures["generate_a_second_of_some"] = round(models.timed(peer.read, some), 2)
        del peer
    figures["generate"] = alike(found, expected, share=_LEAST_IN_BF16)
    shares = [figures.get(f"share_of_matrix_rate_of_{n}", "unknown") for n in scale.many]
    paces = ", ".join(f"{figures[f'reads_a_second_of_{n}']} of {n}" for n in scale.many)
    return (
        f"reads/s {paces}, which is {shares} of the matrix rate; of {len(some)} "
        f"{figures['reads_a_second_of_some']}, generate {figures['generate_a_second_of_some']}, {figures['generate']}; "
        f"{figures['reserved_mib']} of {budget // MIB} MiB"
    )


def within(budget: int, figures: dict[str, Any], reader: Any) -> None:
    """Note the peak, which must be within the budget, where there is one."""
    figures["halvings"] = reader.stats.memory_halvings
    figures["allocated_mib"] = device.peak_memory(models.here()) // MIB
    reserved = torch.cuda.max_memory_reserved() if torch.cuda.is_available() else 0
    figures["reserved_mib"] = reserved // MIB
    assert not budget or reserved <= budget, (
        f"{reserved // MIB} MiB were reserved of {budget // MIB} MiB"
    )


def shortage(scale: Scale, figures: dict[str, Any]) -> str:
    """The GPU has half of the memory that the reads took before: batches are halved, outputs stay."""
    if not torch.cuda.is_available():
        raise NotRun("no GPU")
    reads = models.prompts(4 * scale.reads, scale)
    with saved(scale.small, "float32", scale) as spec:
        reader = models.load(spec)
        reader.read(reads[:1])
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()  # loading may have taken more
        expected = models.written(reader.read(reads))
        taken = torch.cuda.max_memory_allocated() - before
        torch.cuda.empty_cache()
        left, total = torch.cuda.mem_get_info()
        mine = device.gpu_share(spec) * total - torch.cuda.memory_reserved()
        filler = torch.empty(
            max(0, int(min(left, mine) - taken / 2)), dtype=torch.uint8, device="cuda"
        )
        found = models.written(reader.read(reads))
        figures["halvings"] = int(reader.stats.memory_halvings)
        del filler, reader
        assert figures["halvings"], "no batch was halved"
        models.free_all()
        same = alike(found, expected, gaps=partial(models.gaps, spec, reads))
    return f"{same}; batches were halved {figures['halvings']} times"


def kernels(scale: Scale, figures: dict[str, Any]) -> str:
    """Which attention ran, and how often a step makes the host wait, in bf16."""
    said: list[str] = []
    for shape, owner, step in (
        (scale.small, PaddedModel, "_logits"),
        (scale.base, T5, "step"),
    ):
        with saved(shape, "bfloat16", scale) as spec:
            reads = inputs_of(shape, scale.reads, scale)
            reader = models.load(spec)
            reader.read(reads)
            with _counted(owner, step) as steps:
                used = _profile(partial(reader.read, reads))
            del reader
        own = figures[shape.family] = _sorted_out(used, next(steps))
        if scale.gpu:
            assert own["attention"], "the profiler saw no attention kernel"
        said.append(
            f"{shape.family}: {own['waits_a_step']} waits a step, {', '.join(own['attention'][:3])}"
        )
    return "; ".join(said)


@contextlib.contextmanager
def _counted(owner: type, name: str) -> Iterator[Iterator[int]]:
    """How often a method is called in the block: what ``next`` gives after it."""
    through, count = getattr(owner, name), itertools.count()

    def counting(*args: Any, **kwargs: Any) -> Any:
        next(count)
        return through(*args, **kwargs)

    setattr(owner, name, counting)
    try:
        yield count
    finally:
        setattr(owner, name, through)


def _profile(run: Callable[[], Any]) -> Counter[str]:
    """Operations and kernels by their names."""
    from torch.profiler import ProfilerActivity, profile

    activities = [ProfilerActivity.CPU]
    if torch.version.cuda and torch.cuda.is_available():
        activities.append(ProfilerActivity.CUDA)
    with profile(activities=activities) as profiled:
        run()
        models.synchronize()
    return Counter({event.key: event.count for event in profiled.key_averages()})


def _sorted_out(used: Counter[str], steps: int) -> dict[str, Any]:
    waits = {name: count for name, count in used.items() if _WAITS.search(name)}
    attention = {name: count for name, count in used.most_common() if _ATTENTION.search(name)}
    return {
        "steps": steps,
        "waits": waits,
        "waits_a_step": round(sum(waits.values()) / max(1, steps), 2),
        "attention": [f"{count} x {name[:90]}" for name, count in list(attention.items())[:12]],
    }


CHECKS: dict[str, Check] = {
    "decoder of 1B's shape, fp32: alone, generate, CPU": partial(same_everywhere, "small"),
    "Fusion-in-Decoder of T5-base's shape, fp32: alone, generate, CPU": partial(
        same_everywhere, "base"
    ),
    "decoder of 1B's shape, bf16": share_in_bf16,
    "kernels and waits": kernels,
    "decoder of 8B's shape, bf16: pace and memory": partial(pace, "large"),
    "Fusion-in-Decoder of T5-large's shape, bf16: pace and memory": partial(pace, "big"),
    "a lack of memory halves batches": shortage,
    "choices, fp32": choices,
    "encoder of BERT-base's shape": vectors,
}
