"""Stage 5: the paper's Table 2 on this machine: what end-to-end evaluation and eRAG cost, in time and memory.

T5-base's shape with random weights, lists of 50 passages: Fusion-in-Decoder, and all passages in one prompt; by the
engine's reader, which shares what reads have in common, and by ``generate``, which shares nothing: one list at a time
for end-to-end evaluation, and the passages of a list as one batch ("query level") or one at a time ("document level")
for eRAG. Source: Salemi and Zamani, SIGIR 2024, Table 2.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from engine.machine import device
from engine.machine.device import Dtype
from tests.gpu_first import models
from tests.gpu_first.bare import saved
from tests.gpu_first.checks import Check
from tests.gpu_first.scale import MIB, Scale


def measured(read: Callable[[models.Reads], Any], reads: models.Reads) -> dict[str, Any]:
    """Seconds, and bytes by which the peak rose above what is held."""
    models.free()
    models.synchronize()
    start = time.perf_counter()
    rise = device.peak_above(models.here(), lambda: read(reads))
    models.synchronize()
    return {
        "seconds": round(time.perf_counter() - start, 3),
        "mib": None if rise is None else rise // MIB,
    }


# End to end over eRAG, as the paper has it for T5-small.
_PAPER = {
    "time": "1.232 to 3.252, mean 2.468",
    "memory of erag, query level": "7 to 15",
    "memory of erag, document level": "30 to 48",
}
_LEVELS = {
    "engine": ("erag",),
    "generate": ("erag, query level", "erag, document level"),
}


def costs(augmentation: str, dtype: Dtype, scale: Scale, figures: dict[str, Any]) -> str:
    queries, k, words = scale.lists
    passages = models.lists(queries, scale, passages=k, length=words)
    fused = augmentation == "fid"
    lists = passages if fused else [[" ".join(read)] for read in passages]
    singles = [[passage] for read in passages for passage in read]
    limit = 0 if fused else 10**6  # a prompt of 50 passages is not cut
    with saved(scale.base, dtype, scale) as spec:
        if limit:
            spec = replace(spec, max_input_tokens=limit)
        reader = models.load(spec)
        for name, reads in (("end-to-end", lists), ("erag", singles)):
            reader.read(reads[:1])
            figures[f"engine, {name}"] = measured(reader.read, reads)
        figures["engine, both"] = measured(reader.read, [*lists, *singles])
        del reader
        models.free_all()
        peer = models.Peer(spec)
        peer.read(singles[:1])
        for name, reads, rows in (
            ("end-to-end", lists, 1),
            ("erag, query level", singles, k),
            ("erag, document level", singles[: 2 * k], 1),
        ):
            figures[f"generate, {name}"] = measured(partial(peer.read, rows=rows), reads)
            figures[f"generate, {name}"]["reads"] = len(reads)
        del peer
    ratios: dict[str, dict[str, Any]] = {"paper, T5-small": _PAPER}
    said: list[str] = []
    for name, levels in _LEVELS.items():
        whole, parts = figures[f"{name}, end-to-end"], [figures[f"{name}, {one}"] for one in levels]
        ratios[name] = {"time": round(whole["seconds"] / parts[0]["seconds"], 3)}
        for level, part in zip(levels, parts, strict=True):
            if whole["mib"] and part["mib"]:
                ratios[name][f"memory of {level}"] = round(whole["mib"] / part["mib"], 2)
        costs = (f"{one['seconds']} s, {one['mib']} MiB" for one in (whole, parts[0]))
        said.append(f"{name} {' and '.join(costs)}")
    figures["end-to-end over erag"] = ratios
    return f"{queries} queries, k = {k}: {'; '.join(said)}; end-to-end over erag: {json.dumps(ratios)[1:-1]}"


CHECKS: dict[str, Check] = {
    f"Table 2, {name}, {dtype}": partial(costs, augmentation, dtype)
    for dtype in ("float32", "bfloat16")
    for augmentation, name in (
        ("fid", "Fusion-in-Decoder"),
        ("in-prompt", "all passages in one prompt"),
    )
}
