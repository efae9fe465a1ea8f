"""Move numbers from the host to the device of a model."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

Numbers = npt.NDArray[np.int64]


def to_device(device: torch.device, *parts: Numbers) -> list[torch.Tensor]:
    """Whole numbers on a device, in one copy that nobody waits for; of the shapes that they have here."""
    host = torch.from_numpy(np.concatenate([part.ravel() for part in parts]))
    if device.type == "cuda":
        host = host.pin_memory()
    there = host.to(device, non_blocking=True)
    split = there.split([part.size for part in parts])
    return [one.view(part.shape) for one, part in zip(split, parts, strict=True)]


def ramps(sizes: Numbers) -> Numbers:
    """0 to each size less one, behind each other."""
    return np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes)
