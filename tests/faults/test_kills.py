"""Killing actors and drivers loses nothing that was stored, doubles nothing, and changes no result."""

import collections
import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import polars as pl
import pytest

from jobs._signals import children
from tests.faults import driver

KILLS = ("driver", "writing", "actor")
COUNT = 60
SEEDS = range(20)
# Drivers in one process, or with two actors on Ray; an actor can only be killed on Ray.
MODES = [("driver", False), ("writing", False), ("driver", True), ("actor", True)]


@dataclass(frozen=True)
class Losses:
    """What one kill cost: reads that were stored and done again, rows twice, reads begun twice."""

    lost: int
    doubled: int
    repeated: int


def told(directory, out, **more):
    names = {"store": str(directory / "store"), "log": str(directory / "log")}
    return json.dumps(names | {"out": str(directory / out), "count": COUNT, "ray": False} | more)


def run(arguments):
    """Run a driver until it ends; its exit status."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.faults.driver", arguments],
        start_new_session=True,
        stdout=subprocess.DEVNULL,
    )
    below = set()
    while process.poll() is None:
        below |= set(children(process.pid))
        time.sleep(0.1)
    # Helpers of Ray can outlive a killed driver; they have no part in reads, and the next kill should
    # find the machine as this one did.
    deadline = time.monotonic() + 10
    while any(map(is_alive, below)) and time.monotonic() < deadline:
        time.sleep(0.1)
    for left in filter(is_alive, below):
        with contextlib.suppress(ProcessLookupError):
            os.kill(left, signal.SIGKILL)
    return process.returncode


def is_alive(process):
    try:
        return (Path("/proc") / str(process) / "stat").read_text().rpartition(")")[2].split()[
            0
        ] != "Z"
    except OSError:
        return False


def losses(directory, got, before, begun_before):
    """Compare the store and the log with what they should be after the run that followed a kill."""
    stored = driver.keys_of(directory / "store")
    log = (directory / "log").read_text().splitlines()
    begun_again = set(log[begun_before:])
    key_of = dict(zip(driver.texts(COUNT), got["read_key"], strict=True))
    lost = sum(key_of[text] in before for text in begun_again)
    lost += COUNT - got["read_key"].n_unique() + got["failure"].count()
    doubled = len(stored) - len(set(stored))
    repeated = sum(times - 1 for times in collections.Counter(log).values())
    return Losses(lost, doubled, repeated)


def killed_and_run_again(tmp_path, kill, ray, seed):
    """Kill one thing, run again, and compare the reads with those of an undisturbed run."""
    undisturbed = driver.get(tmp_path / "other", str(tmp_path / "other.log"), count=COUNT)
    status = run(told(tmp_path, "first.parquet", kill=kill, ray=ray, seed=seed))
    assert status == (0 if kill == "actor" else -9)
    before = set(driver.keys_of(tmp_path / "store"))
    log = tmp_path / "log"
    begun = len(log.read_text().splitlines()) if log.exists() else 0  # killed before the first read
    assert run(told(tmp_path, "second.parquet", ray=ray)) == 0
    got = pl.read_parquet(tmp_path / "second.parquet")
    assert got.equals(undisturbed)
    (folder,) = (tmp_path / "store").iterdir()
    left = os.listdir(folder)
    assert not [name for name in left if name.startswith(".")]
    return losses(tmp_path, got, before, begun)


@pytest.mark.parametrize(("kill", "seed"), [("driver", 1), ("writing", 2)])
def test_a_killed_driver_loses_and_doubles_nothing(tmp_path, kill, seed):
    found = killed_and_run_again(tmp_path, kill, False, seed)
    assert (found.lost, found.doubled) == (0, 0)
    assert found.repeated <= 8  # two units: one that is read, one that is written


@pytest.mark.usefixtures("ray_session")
def test_a_killed_actor_loses_and_doubles_nothing(tmp_path):
    undisturbed = driver.get(tmp_path / "other", str(tmp_path / "other.log"), count=COUNT)
    log = str(tmp_path / "log")
    got = driver.get(tmp_path / "store", log, count=COUNT, ray=True, kill="actor", seed=3)
    assert os.path.exists(f"{log}.killed")
    assert got.equals(undisturbed)
    found = losses(tmp_path, got, set(), COUNT * 3)
    assert (found.lost, found.doubled) == (0, 0)


@pytest.mark.faults
@pytest.mark.usefixtures("ray_session")
def test_two_evaluations_into_one_store_at_once_do_each_other_no_harm(tmp_path):
    undisturbed = driver.get(tmp_path / "other", str(tmp_path / "other.log"), count=COUNT)
    second = subprocess.Popen(
        [sys.executable, "-m", "tests.faults.driver", told(tmp_path, "second.parquet")]
    )
    first = driver.get(tmp_path / "store", str(tmp_path / "log"), count=COUNT, ray=True)
    assert second.wait() == 0
    assert first.equals(undisturbed)
    assert pl.read_parquet(tmp_path / "second.parquet").equals(undisturbed)
    assert set(driver.keys_of(tmp_path / "store")) == set(first["read_key"])


@pytest.mark.faults
def test_twenty_kills(tmp_path, capsys):
    """What ``make test-faults`` prints: reads lost, doubled and repeated, by what was killed."""
    total: dict[str, list[Losses]] = {}
    for seed in SEEDS:
        kill, ray = MODES[seed % len(MODES)]
        directory = tmp_path / str(seed)
        directory.mkdir()
        found = killed_and_run_again(directory, kill, ray, seed)
        total.setdefault(f"{kill} ({'Ray' if ray else 'in process'})", []).append(found)
    with capsys.disabled():
        print(f"\n{'killed':26} kills   lost doubled repeated (of {COUNT} reads each)")
        for what, of in [*total.items(), ("all", [*itertools.chain(*total.values())])]:
            sums = [
                sum(getattr(one, name) for one in of) for name in ("lost", "doubled", "repeated")
            ]
            print(f"{what:26} {len(of):5} {sums[0]:6} {sums[1]:7} {sums[2]:8}")
    assert not any(one.lost or one.doubled for of in total.values() for one in of)
