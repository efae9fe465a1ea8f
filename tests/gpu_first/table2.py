"""Stage 5: the paper's Table 2 on this machine: what end-to-end evaluation and eRAG cost, in time and memory.

T5-base's shape with random weights, lists of 50 passages: Fusion-in-Decoder, and all passages in one prompt; by the
engine's reader, which shares what reads have in common, and by ``generate``, which shares nothing: one list at a time
for end-to-end evaluation, and the passages of a list as one batch ("query level") or one at a time ("document level")
for eRAG. Source: Salemi and Zamani, SIGIR 2024, Table 2.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from engine.machine import device
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


def costs(augmentation: str, scale: Scale, figures: dict[str, Any]) -> str:
    queries, k, words = scale.lists
    passages = models.lists(queries, scale, passages=k, length=words)
    fused = augmentation == "fid"
    lists = passages if fused else [[" ".join(read)] for read in passages]
    singles = [[passage] for read in passages for passage in read]
    limit = 0 if fused else 10**6  # a prompt of 50 passages is not cut
    with saved(scale.base, "float32", scale) as spec:
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
    whole, single = figures["generate, end-to-end"], figures["generate, erag, query level"]
    figures["speedup_of_erag"] = round(whole["seconds"] / single["seconds"], 3)
    own, both = figures["engine, end-to-end"], figures["engine, erag"]
    return (
        f"{queries} queries, k = {k}: generate end-to-end {whole['seconds']} s and {whole['mib']} MiB, eRAG "
        f"{single['seconds']} s and {single['mib']} MiB ({figures['speedup_of_erag']:.2f} times as fast); engine "
        f"{own['seconds']} s and {own['mib']} MiB, {both['seconds']} s and {both['mib']} MiB"
    )


CHECKS: dict[str, Check] = {
    "Table 2, Fusion-in-Decoder": partial(costs, "fid"),
    "Table 2, all passages in one prompt": partial(costs, "in-prompt"),
}
