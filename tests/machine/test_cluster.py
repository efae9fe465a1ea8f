"""The Ray that the engine starts: closed to strangers, private, and gone with its driver."""

import contextlib
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from engine.machine import cluster, nodes
from engine.machine.nodes import Node
from engine.messages.errors import WriteError
from engine.sources.io.folders import Folder, folder_at
from engine.sources.io.locations import entries
from tests.expected import as_expected, refused

# Knows the address, as anybody does who looks at the open ports, and not the token.
STRANGER = """
import sys
import ray

address, marker = sys.argv[1:]
ray.init(address=address, log_to_driver=False, logging_level="ERROR")


@ray.remote
def intrude():
    open(marker, "w").write("ran")


ray.get(intrude.remote())
"""
DRIVER = """
import sys, time
from engine.machine import cluster
from engine.messages.errors import InputError

cluster.start_ray()
print(cluster._folder.path, flush=True)
time.sleep(float(sys.argv[1]))
"""


@pytest.mark.slow
@pytest.mark.usefixtures("ray_session")
@pytest.mark.parametrize("mode", ["disabled", "token"])
def test_a_stranger_who_knows_the_port_runs_nothing(mode, tmp_path):
    import ray

    marker = tmp_path / "marker"
    known = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")}
    own = {
        cluster._MODE: mode,
        "HOME": str(tmp_path),
        "RAY_gcs_server_request_timeout_seconds": "5",
    }
    done = subprocess.run(
        [sys.executable, "-c", STRANGER, ray.get_runtime_context().gcs_address, str(marker)],
        env=known | own, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode != 0
    assert not marker.exists()
    assert "authenti" in done.stderr.lower() or "token" in done.stderr.lower(), done.stderr


@pytest.mark.usefixtures("ray_session")
def test_a_task_without_a_gpu_sees_none_and_its_models_stay_on_the_cpu():
    import ray

    from engine.machine import device
    from tests.pretended_cuda import pretended_cuda

    def look():
        with pretended_cuda():
            where = str(device.prepare(SimpleNamespace(threads=0, memory=0)))
        return os.environ.get("CUDA_VISIBLE_DEVICES"), device.machine_has_gpu(), where

    assert ray.get(ray.remote(num_gpus=0)(look).remote()) == ("", False, "cpu")
    with pretended_cuda():  # a driver, to which Ray assigns nothing, may use what there is
        assert str(device.prepare(SimpleNamespace(threads=0, memory=0))) == "cuda:0"


@pytest.mark.parametrize(
    ("address", "code"),
    [
        ("http://127.0.0.1:8265", "cluster.address"),
        ("ray://127.0.0.1:10001", "cluster.address"),
        ("anyscale://x", "cluster.address"),
        ("127.0.0.1:1", "cluster.unreachable"),
        ("127.0.0.1", "cluster.unreachable"),
        ("127.0.0.1:99999999999999999999", "cluster.unreachable"),
    ],
)
def test_an_address_where_no_cluster_is_ends_with_one_line(monkeypatch, address, code):
    monkeypatch.setenv("RAY_ADDRESS", address)
    monkeypatch.setattr(cluster.ray, "is_initialized", lambda: False)
    with refused(code, text=False) as caught:
        cluster.start_ray()
    as_expected(str(caught.value).partition(" (")[0])  # then it says what the system says


class OtherNode:
    """Ray with another node: a task is called when it is asked for, with the folder that it sees there."""

    exceptions = cluster.ray.exceptions

    def __init__(self, sees):
        self.sees = sees

    def get_runtime_context(self):
        return SimpleNamespace(get_node_id=lambda: "0" * 56)

    def remote(self, **options):
        assert options["scheduling_strategy"].node_id == "1" * 56
        return lambda function: SimpleNamespace(
            remote=lambda folder, *given: function(self.sees(folder), *given)
        )

    def wait(self, asked, **options):
        return asked, []

    def get(self, answer):
        return answer


class WritesElsewhere(Folder):
    """As one in a container, whose changes to what the image holds stay its own."""

    def write(self, name, content):
        pass


class MayNotWrite(Folder):
    def write(self, name, content):
        raise WriteError("read-only file system")


SEEN = {
    "the same disk": lambda folder: folder,
    "another disk": lambda folder: folder / "elsewhere",
    "a folder that is not there": lambda folder: Folder(Path("/no/such/folder")),
    "its own copy": lambda folder: WritesElsewhere(folder.at),
    "a disk that it may not write": lambda folder: MayNotWrite(folder.at),
}


@pytest.mark.parametrize("kind", ["folder", "absent", "bucket"])
@pytest.mark.parametrize("what", SEEN)
def test_a_folder_that_another_node_does_not_share_is_refused_in_one_line(
    what, kind, tmp_path, monkeypatch
):
    monkeypatch.setattr(cluster, "time", SimpleNamespace(sleep=lambda seconds: None))
    monkeypatch.setattr(cluster, "ray", OtherNode(SEEN[what]))
    monkeypatch.setattr(cluster, "is_joined", lambda: True)
    both = [
        Node(2, 0, 1.0, frozenset(), id=digit * 56, address=f"10.0.0.{digit}") for digit in "01"
    ]
    monkeypatch.setattr(nodes, "alive", lambda: both)
    there = f"memory://{tmp_path.name}" if kind == "bucket" else tmp_path
    written = folder_at(there) / "not" / "yet" if kind == "absent" else folder_at(there)
    shared = what == "the same disk"
    unshared = refused("cluster.unshared", path=there, text=False)
    with contextlib.nullcontext() if shared else unshared as caught:
        cluster.require_shared([written])
    if not shared:
        as_expected(str(caught.value).replace(str(there), "THERE"))
    assert list(tmp_path.iterdir()) == []
    assert [name for name, _ in entries(folder_at(there).at, "file")] == []


@pytest.mark.parametrize(
    ("other", "joined"),
    [
        ([], True),
        ([Node(0, 0, 1.0, frozenset(), id="1" * 56)], True),  # a head that is given no work
        ([Node(2, 1, 1.0, frozenset(), id="1" * 56)], False),
    ],
)
def test_nothing_is_tried_without_another_node_that_works(other, joined, tmp_path, monkeypatch):
    monkeypatch.setattr(cluster, "ray", OtherNode(None))
    monkeypatch.setattr(cluster, "is_joined", lambda: joined)
    own = Node(2, 0, 1.0, frozenset(), id="0" * 56)
    monkeypatch.setattr(nodes, "alive", lambda: [own, *other])
    cluster.require_shared([Folder(tmp_path / "nothing is read or written")])


def test_workers_of_a_joined_cluster_are_asked_to_hide_gpus_and_a_submitted_job_is_not_asked_twice(
    monkeypatch,
):
    asked = []
    monkeypatch.setattr(cluster.ray, "is_initialized", lambda: False)
    monkeypatch.setattr(cluster.ray, "init", lambda **settings: asked.append(settings))
    monkeypatch.setattr(cluster, "_refuse_unreachable", lambda address: None)
    monkeypatch.setenv("RAY_ADDRESS", "head:6379")
    names = (cluster._HIDES, cluster._THREADS)
    for name in names:
        monkeypatch.delenv(name, raising=False)
    cluster.start_ray()
    assert asked[0]["runtime_env"] == {"env_vars": dict.fromkeys(names, "1")}
    assert cluster._THREADS not in os.environ
    for name in names:
        monkeypatch.setenv(name, "1")
    cluster.start_ray()
    assert "runtime_env" not in asked[1]


@pytest.mark.usefixtures("ray_session")
def test_a_task_has_one_thread_of_polars_and_this_process_all_of_them():
    import polars as pl
    import ray

    def threads():
        return os.environ.get("POLARS_MAX_THREADS"), pl.thread_pool_size()

    assert ray.get(ray.remote(num_cpus=0)(threads).remote()) == ("1", 1)
    assert threads() == (None, max(1, len(os.sched_getaffinity(0))))


@pytest.mark.usefixtures("ray_session")
def test_no_command_line_shows_the_token_and_nobody_else_enters_the_folder():
    token = os.environ[cluster._TOKEN].encode()
    assert len(token) == 64
    lines = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            lines.append(file.read_bytes())
        except OSError:  # ended meanwhile
            continue
    folder = cluster._folder.path
    assert any(os.fsencode(folder) in line for line in lines)  # Ray does use the folder
    assert not any(token in line for line in lines)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def parents():
    """The parent of every process, by its id and the time at which it started."""
    found = {}
    for file in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = file.read_text(errors="replace").rpartition(")")[2].split()
        except OSError:  # ended meanwhile
            continue
        if fields[0] != "Z":
            found[int(file.parent.name), fields[19]] = int(fields[1])
    return found


def below(ancestor):
    """All processes that one started, directly or not. Some rename themselves, so names would not do."""
    known, ids, grown = parents(), {ancestor}, True
    while grown:
        found = {process for process, parent in known.items() if parent in ids}
        grown = not {pid for pid, _ in found} <= ids
        ids |= {pid for pid, _ in found}
    return found


@pytest.mark.slow
def test_nothing_of_ray_stays_behind_a_killed_driver_or_one_that_ends():
    place = tempfile.mkdtemp(prefix="e", dir="/tmp")  # sockets need a short path
    environment = os.environ | {"RAY_TMPDIR": place}
    try:
        killed = subprocess.Popen(
            [sys.executable, "-c", DRIVER, "600"],
            env=environment, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        with killed:
            folder = killed.stdout.readline().strip()
            started = below(killed.pid)
            assert len(started) >= 5  # the raylet, the control store, and agents of each
            os.kill(killed.pid, signal.SIGKILL)
        start = time.monotonic()
        while started & parents().keys() and time.monotonic() < start + 240:
            time.sleep(0.2)
        print(f"the last process of Ray ended {time.monotonic() - start:.1f} s after its driver")
        assert not started & parents().keys()
        assert os.path.isdir(folder)
        # The next one removes what the first left, and itself leaves nothing.
        done = subprocess.run(
            [sys.executable, "-c", DRIVER, "0"],
            env=environment, capture_output=True, text=True, check=True,
        )  # fmt: skip
        assert done.stdout.strip() != folder
        assert not os.listdir(place)
    finally:
        shutil.rmtree(place, ignore_errors=True)
