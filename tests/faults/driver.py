"""A driver in a process of its own that reads what it is told and is killed where it is told.

``python -m tests.faults.driver '{"store": …, "log": …, "reads": 60, "on_ray": false, "kill": null}'``
does reads whose outputs follow from their texts alone, and writes every text that is read to the log.
"""

import hashlib
import json
import os
import random
import signal
import sys
import time
from dataclasses import asdict
from pathlib import Path
from unittest.mock import patch

import polars as pl

from benchmarks._reads import get_reads
from engine.machine.pool import PoolSettings
from engine.reading.costs import UnitResult
from engine.reading.local import Local
from engine.reading.plan import INPUTS
from engine.reading.protocol import ReaderStats, ReadOutput
from engine.sources.io import files
from tests.reading.test_backends import SPEC, wanted

SECONDS_PER_READ = 0.004


def texts(count):
    return [f"text {number}" for number in range(count)]


def reader(log, victim):
    """A reader class that logs what it reads; the process that reads ``victim`` first is killed."""

    class Logging:
        def __init__(self):
            self.stats = ReaderStats()

        def read(self, inputs):
            outputs = []
            for (text,) in inputs:
                with open(log, "a") as stream:
                    stream.write(f"{text}\n")
                mark = f"{log}.killed"
                if text == victim and not os.path.exists(mark):
                    open(mark, "w").close()
                    os.kill(os.getpid(), signal.SIGKILL)
                time.sleep(SECONDS_PER_READ)
                answer = hashlib.sha256(text.encode()).hexdigest()[:12]
                outputs.append(ReadOutput(answer, len(text), 1, False))
            return outputs

    return Logging


def on_ray(log, victim):
    made = reader(log, victim)

    class OnActor(Local):
        def load(self, spec):
            return made()

    return {"pool": PoolSettings(actors=2), "host": OnActor}


def in_process(log, victim):
    here = reader(log, victim)()

    def run(plan, units, spec):
        for unit in units:
            inputs = plan[INPUTS].slice(unit.offset, unit.length).to_list()
            yield UnitResult(unit, here.read(inputs), "here", 0.0, asdict(here.stats))

    return {"pool": PoolSettings(), "executor": run}


def die():
    os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)


def armed(kill, seed):
    """What makes the driver die: after some units, or while it writes a file of the store."""
    moment = random.Random(seed)
    units = moment.randint(1, 8)
    finished, written = [], []

    def on_progress(done, total):
        finished.append(done)
        if kill == "driver" and len(finished) == 1 + units:  # the first call is before any read
            time.sleep(moment.random() * 0.05)
            die()

    flush = files.flush

    def half(path):
        written.append(path)
        if kill == "writing" and len(written) == units:
            os.truncate(path, moment.randint(0, os.path.getsize(path) - 1))
            die()
        flush(path)

    return on_progress, half


def get(directory, log, *, count, ray=False, kill=None, seed=0):
    """The reads table, got with a store."""
    victim = f"text {random.Random(seed).randrange(count)}" if kill == "actor" else None
    reading = (on_ray if ray else in_process)(log, victim)
    on_progress, half = armed(kill, seed)
    with patch.object(files, "flush", half):
        got, _ = get_reads(
            wanted(*texts(count)),
            SPEC,
            Path(directory),
            on_progress=on_progress,
            **reading,
        )
    return got


def keys_of(directory):
    """The keys of every row of every file of the store, in no order."""
    return [
        key
        for path in (Path(directory) / SPEC.fingerprint).glob("[!.]*.parquet")
        for key in pl.read_parquet(path)["read_key"]
    ]


def main():
    told = json.loads(sys.argv[1])
    if told["ray"]:
        from engine.machine import cluster

        cluster.start_ray()
    out = Path(told.pop("out"))
    got = get(told.pop("store"), **told)
    got.write_parquet(out)


if __name__ == "__main__":
    main()
