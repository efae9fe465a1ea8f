"""Cells of ``benchmarks.efficiency`` in processes of their own, with a limit of time.

Each is forked from a server that has imported the modules of cells and has run nothing: a process begins in a
fraction of a second, and inherits neither a model nor a peak.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
import traceback
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.efficiency.grid import SHAPES, Cell, Conditions, Shape

if TYPE_CHECKING:
    from benchmarks.efficiency.models import Subject

_ENDING = 10.0  # seconds that a process may take to end after its outcome
_SERVER = multiprocessing.get_context("forkserver")


def start_server() -> None:
    """Start the server's imports while this process prepares the models.

    A terminal sends Ctrl-C to all processes. Processes of cells inherit that it is blocked here, in a thread that does
    nothing else: this process ends them. The resource tracker lets such signals through at its start.
    """
    resource_tracker.ensure_running()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    # As ``readers.load`` sets them, before torch is loaded anywhere: threads that wait should soon sleep.
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("GOMP_SPINCOUNT", "50000")
    _SERVER.set_forkserver_preload(["benchmarks.efficiency.cell", "engine.reading.models.causal"])
    process = _SERVER.Process(target=_nothing)
    process.start()
    process.join()


def _nothing() -> None:
    """The first process starts the server."""


def run(
    cell: Cell, conditions: Conditions, subject: Subject, folder: Path, *, limit: float
) -> dict[str, Any]:
    """The outcome of a cell: ``status`` (done, stopped or failed), ``wall``, and its figures.

    Args:
        limit: seconds after which the process is ended.
    """
    start = time.perf_counter()
    here, there = _SERVER.Pipe(duplex=False)
    shape = SHAPES[cell.model]
    arguments = (there, cell, conditions, subject, folder, shape)
    process = _SERVER.Process(target=_measure, args=arguments)
    process.start()
    there.close()
    outcome: dict[str, Any]
    ended = False
    try:
        ended = here.poll(limit)
        outcome = here.recv() if ended else {"status": "stopped", "limit": limit}
    except EOFError:
        process.join()
        outcome = {"status": "failed", "why": f"its process ended with {process.exitcode}"}
    finally:
        # Open files of a killed process stay with the system until the benchmark ends.
        process.join(_ENDING if ended else 0)
        process.kill()
        process.join()
        here.close()
    return outcome | {"wall": time.perf_counter() - start}


def _measure(
    there: Connection,
    cell: Cell,
    conditions: Conditions,
    subject: Subject,
    folder: Path,
    shape: Shape,
) -> None:
    from benchmarks.efficiency.cell import measure

    SHAPES[shape.name] = shape  # the user's own models are unknown in this process

    try:
        there.send({"status": "done", "figures": measure(cell, conditions, subject, folder)})
    except Exception as error:  # any error ends this cell, and no other
        last = traceback.extract_tb(error.__traceback__)[-1]
        why = f"{type(error).__name__}: {error} ({Path(last.filename).name}:{last.lineno})"
        there.send({"status": "failed", "why": " ".join(why.split())[:500]})
