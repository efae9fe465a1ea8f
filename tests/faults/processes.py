"""Processes found by a variable of their environment: those of one cluster, by its token."""

import contextlib
from pathlib import Path


def with_variable(name, value):
    """The processes that have a variable, with their command lines."""
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # ended meanwhile, or another user's
            if f"{name}={value}".encode() in (folder / "environ").read_bytes().split(b"\0"):
                yield int(folder.name), (folder / "cmdline").read_bytes().decode(errors="replace")
