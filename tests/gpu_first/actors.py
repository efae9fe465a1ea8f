"""Stage 4: reads on Ray's actors, and how much of the time the GPU is busy meanwhile."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl

from engine.reading.local import Local
from engine.reading.protocol import ReaderSpec
from tests.gpu_first import models
from tests.gpu_first.checks import Check, alike, apart, require
from tests.gpu_first.scale import Scale

# Beside a model: what GPUs the actor was shown that loaded it last.
_SEEN = "seen.json"


@dataclass
class Busy:
    """How much of the time the GPU was busy, as its driver says ten times a second."""

    samples: list[int] = field(default_factory=list)

    def share(self) -> float | None:
        return round(sum(self.samples) / 100 / len(self.samples), 3) if self.samples else None


@contextlib.contextmanager
def busy() -> Iterator[Busy]:
    """Ask the driver while the block runs; nothing is known where it cannot be asked."""
    found, over = Busy(), threading.Event()
    try:
        import pynvml  # type: ignore[import-not-found, unused-ignore]

        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    except Exception:  # no package, no driver, no GPU
        yield found
        return

    def ask() -> None:
        while not over.wait(0.1):
            found.samples.append(int(pynvml.nvmlDeviceGetUtilizationRates(handle).gpu))

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    try:
        yield found
    finally:
        over.set()
        thread.join()


def plan(reads: models.Reads) -> pl.DataFrame:
    """The plan of these reads, each of a query of its own."""
    names = [f"r{i}" for i in range(len(reads))]
    return pl.DataFrame(
        {
            "read_key": names,
            "query_id": names,
            "doc_ids": [[name] for name in names],
            "inputs": reads,
            "size": [max(1, sum(map(len, read)) // 4) for read in reads],
            "group": range(len(reads)),
        }
    )


def host(spec: ReaderSpec) -> Any:
    """What an actor hosts; it loads the reader without asking for the digest of its weights, and notes its GPUs."""

    class Loads(Local):
        def load(self, spec: ReaderSpec) -> Any:
            from tests.gpu_first import models

            models.offline()
            note(spec)
            return models.load(spec)

    return Loads([spec], [None])


def note(spec: ReaderSpec) -> None:
    """Write down beside the model which GPUs this process is shown."""
    seen = {"visible": os.environ.get("CUDA_VISIBLE_DEVICES"), "device": models.here().type}
    Path(spec.path, _SEEN).write_text(json.dumps(seen), encoding="utf-8")


@contextlib.contextmanager
def saved(scale: Scale) -> Iterator[ReaderSpec]:
    """The specification of a small decoder in bf16."""
    require("ray")
    with models.folder() as folder:
        apart(models.make, scale.small, folder, "bfloat16")
        yield models.spec_of(scale.small, folder, "bfloat16", scale)


@contextlib.contextmanager
def own_ray() -> Iterator[None]:
    """Ray on this machine, for the block."""
    from engine.machine.cluster import start_ray, stop_ray

    start_ray()
    try:
        yield
    finally:
        stop_ray()


@dataclass
class Trial:
    """What came of reads on actors."""

    outputs: dict[str, str]
    workers: set[str]
    seconds: float
    reading: float
    busy: float | None


def trial(
    spec: ReaderSpec, reads: models.Reads, scale: Scale, *, actors: int, gpus: float | None, kill: bool = False
) -> Trial:  # fmt: skip
    """Have reads done on so many actors; a process is killed once two units are done, where asked.

    Raises:
        AssertionError: a read was done twice, or failed.
    """
    from engine.machine.pool import PoolSettings, decide
    from engine.reading.plan import PlansInMemory, ReadPlan
    from engine.reading.stream_on_ray import OnRay

    made = plan(reads)
    size = scale.on_ray[1] * max(1, int(made["size"].mean() or 1))  # type: ignore[arg-type]
    settings = PoolSettings(actors=actors, gpus_per_actor=gpus)
    plan_of_all = ReadPlan(reads=made, wanted=made.height, least=size, first=size, most=size)
    plans = PlansInMemory([plan_of_all])
    outputs: dict[str, str] = {}
    workers: dict[str, float] = {}
    start = first = time.perf_counter()
    with busy() as asked:
        for done in OnRay(host(spec), decide(settings, spec.weight_bytes)).read(plans):
            if not workers:
                first = time.perf_counter()
                asked.samples.clear()  # loading is not reading
            assert not done.failures, f"a read failed: {next(iter(done.failures.values()))[1]}"
            assert done.reads is not None
            new = dict(done.reads.select("read_key", "output").iter_rows())
            assert not new.keys() & outputs.keys(), "a read came twice"
            outputs |= new
            workers[done.worker] = workers.get(done.worker, 0.0) + done.seconds
            if kill and len(outputs) >= 2 * scale.on_ray[1]:
                kill = False
                os.kill(int(done.worker.split()[-1]), signal.SIGKILL)
    end = time.perf_counter()
    assert len(outputs) == len(reads), f"{len(outputs)} of {len(reads)} reads came"
    return Trial(outputs, set(workers), end - start, end - first, asked.share())


def one_and_quarters(scale: Scale, figures: dict[str, Any]) -> str:
    """One actor with the GPU, and four with a quarter each: outputs, pace, share of time that it is busy."""
    reads = models.prompts(scale.on_ray[0], scale)
    said: list[str] = []
    with saved(scale) as spec, own_ray():
        expected: list[str] = []
        for name, actors, gpus in (("one", 1, 1.0), ("quarters", 4, 0.25)):
            found = trial(spec, reads, scale, actors=actors, gpus=gpus if scale.gpu else None)
            figures[name] = {
                "seconds": round(found.seconds, 2),
                "reads_a_second": round(len(reads) / found.reading, 2),
                "busy": found.busy,
                "workers": len(found.workers),
            }
            outputs = [found.outputs[f"r{i}"] for i in range(len(reads))]
            expected = expected or outputs
            said.append(f"{name}: {figures[name]['reads_a_second']} reads/s, busy {found.busy}")
        figures["alike"] = alike(outputs, expected, share=0.3)
    return f"{'; '.join(said)}; {figures['alike']}"


def without_gpu(scale: Scale, figures: dict[str, Any]) -> str:
    """``--gpus-per-actor 0``: an actor is shown no GPU; where the driver can be asked, it is idle meanwhile."""
    reads = models.prompts(scale.reads, scale)
    with saved(scale) as spec, own_ray():
        found = trial(spec, reads, scale, actors=1, gpus=0.0)
        figures |= json.loads(Path(spec.path, _SEEN).read_text(encoding="utf-8"))
    figures["busy"] = found.busy
    assert figures["device"] == "cpu", "the actor read on the GPU"
    assert figures["visible"] == "", f"CUDA_VISIBLE_DEVICES was {figures['visible']!r}, not empty"
    assert not found.busy or found.busy < 0.05, f"the GPU was busy for {found.busy:.0%}"
    return f"{len(reads)} reads on the CPU in {found.seconds:.0f} s, no GPU shown, GPU busy {found.busy}"


def killed(scale: Scale, figures: dict[str, Any]) -> str:
    """An actor's process is killed: every read comes once, and another process goes on."""
    reads = models.prompts(scale.on_ray[0], scale)
    with saved(scale) as spec, own_ray():
        found = trial(spec, reads, scale, actors=1, gpus=1.0 if scale.gpu else None, kill=True)
    figures |= {"seconds": round(found.seconds, 2), "workers": len(found.workers)}
    assert len(found.workers) > 1, "no other process went on"
    return (
        f"{len(reads)} reads once each, by {len(found.workers)} processes, in {found.seconds:.0f} s"
    )


CHECKS: dict[str, Check] = {
    "one actor, and four of a quarter": one_and_quarters,
    "an actor without a GPU": without_gpu,
    "a killed actor": killed,
}
