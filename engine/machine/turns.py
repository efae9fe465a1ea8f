"""Loading large models on one node one after another."""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

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
    try:
        lock = os.open(path, os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError:  # somebody else's file of that name, or a full disk: no reason not to load
        yield
        return
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)
