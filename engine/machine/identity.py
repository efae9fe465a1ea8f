"""Identify this machine, for the record of a result."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from engine.machine import device
from engine.messages.errors import InputError
from engine.messages.extras import version_of
from engine.messages.wording import listed
from engine.version import __version__

# Where NVIDIA's driver describes each GPU; read without loading torch.
_GPUS = Path("/proc/driver/nvidia/gpus")


@dataclass(frozen=True)
class Machine:
    """A machine, as its users would recognize it.

    Attributes:
        processor: the processor's model, or its architecture where the model is not known.
        cpus: how many of its CPUs this process may use.
        gpus: the models of its NVIDIA GPUs; none where they are hidden from this process.
    """

    host: str
    processor: str
    cpus: int
    gpus: tuple[str, ...]


def this_machine() -> Machine:
    """The machine that this process runs on; on a cluster, actors may run on others."""
    model = device.describe(gpu=False).removeprefix("cpu").removeprefix(", ")
    # The processors that this process may run on, fewer than there are in a container.
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return Machine(
        host=platform.node(),
        processor=model or platform.machine(),
        cpus=cpus or 1,
        gpus=_gpu_models() if device.machine_has_gpu() else (),
    )


def versions(*packages: str) -> dict[str, str]:
    """The versions of the engine and of those packages that are installed, without a build's own part (``+cpu``)."""
    found = {name: (version_of(name) or "").partition("+")[0] for name in packages}
    return {"erag-engine": __version__} | {name: one for name, one in found.items() if one}


def refuse_other_versions(driver: Mapping[str, str], here: Mapping[str, str], where: str) -> None:
    """Refuse, with an InputError, to work for a driver that has other versions."""
    if other := [name for name in driver if here.get(name) != driver[name]]:
        has = listed([f"{name} {here.get(name, '(none)')}" for name in other])
        problem = f"{where} has {has}, the driver {listed([driver[name] for name in other])}"
        raise InputError(problem, "start all nodes with the driver's versions, as from one image")


def _gpu_models() -> tuple[str, ...]:
    texts = (path.read_text(errors="replace") for path in sorted(_GPUS.glob("*/information")))
    lines = (line.partition(":") for text in texts for line in text.splitlines())
    return tuple(value.strip() for name, _, value in lines if name == "Model")
