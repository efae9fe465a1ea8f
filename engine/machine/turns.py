"""Loading large models on one node one after another."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock

# Weights in bytes from which on loads take turns: several at once can take a machine's main memory, and
# its disk serves one after another sooner. Smaller ones are loaded before they could wait.
LARGE = 2**30


@contextlib.contextmanager
def loading_turn(weights: int, folder: Path | None = None) -> Iterator[None]:
    """Wait until no other process of this user on this machine loads a large model; small ones pass.

    Args:
        weights: bytes of the model.
        folder: of the lock; the machine's folder for temporary files by default. A process that dies
            gives its turn away.
    """
    if weights < LARGE:
        yield
        return
    path = (folder or Path(tempfile.gettempdir())) / f"erag-loading-{os.getuid()}.lock"
    with contextlib.ExitStack() as held:
        # Somebody else's file of that name, or a full disk: no reason not to load.
        with contextlib.suppress(OSError):
            held.enter_context(FileLock(path, mode=0o600, fallback_to_soft=False))
        yield
