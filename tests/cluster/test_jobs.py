"""Evaluations as jobs of a cluster: submitted to a head's job server, watched, stopped and taken up again.

The head is a process of the tests' own, with ports, a folder and a token of its own. It is ended by its
session: `ray stop` would end every Ray on the machine.
"""

import contextlib
import importlib.util
import json
import os
import re
import secrets
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path

import polars as pl
import pytest

from tests.cluster.shards import inputs_in
from tests.cluster.test_files import commands_of_the_page
from tests.faults.test_kills import is_alive

ROOT = Path(__file__).parent.parent.parent
RAY = (sys.executable, "-m", "ray.scripts.scripts")
QUERIES, PASSAGES = 8, 2
READS = QUERIES * PASSAGES

pytestmark = [
    pytest.mark.faults,
    pytest.mark.skipif(
        importlib.util.find_spec("aiohttp_cors") is None,
        reason="the extra cluster (ray[default]) is not installed; make test-faults installs it",
    ),
]


@dataclass(frozen=True)
class Head:
    """A head that runs: where its job server is, the environment of who may use it, its session."""

    address: str
    environment: dict[str, str]
    session: int

    def ray(self, *arguments, environment=None):
        """Run `ray job …` to its end."""
        verb, *rest = arguments
        return subprocess.run(
            [*RAY, "job", verb, "--address", self.address, *rest],
            env=environment or self.environment,
            capture_output=True,
            text=True,
            timeout=600,
        )

    def ask(self, path, token=None, method="GET"):
        """What the job server answers: the status, and the body where it lets one in."""
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        request = urllib.request.Request(f"{self.address}{path}", headers=headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as refusal:
            return refusal.code, None

    @property
    def token(self):
        return Path(self.environment["RAY_AUTH_TOKEN_PATH"]).read_text()


def free_ports(count):
    """Ports that nobody listens on."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def wait_until(condition, seconds, what):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.2)


def processes():
    """The ids of all processes."""
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def session_of(process):
    """The session of a process; None if it has ended."""
    with contextlib.suppress(ProcessLookupError):
        return os.getsid(process)
    return None


def killed(session):
    """Kill what a session consists of; whether there was nothing left to kill."""
    left = [one for one in processes() if session_of(one) == session and is_alive(one)]
    for process in left:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
    return not left


@pytest.fixture(scope="module")
def head():
    """A head with two CPUs whose job server answers on 127.0.0.1 who knows its token."""
    # A short path: Ray's sockets, of 107 bytes at most, go below it.
    with tempfile.TemporaryDirectory(prefix="eh-", dir="/tmp") as folder:
        token = Path(folder, "token")
        token.touch(mode=0o600)
        token.write_text(secrets.token_hex(32))
        paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")} | {
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN_PATH": str(token),
            "PYTHONPATH": os.pathsep.join(paths),
        }
        port, dashboard, agent, client = free_ports(4)
        options = {
            "port": port,
            "dashboard-host": "127.0.0.1",
            "dashboard-port": dashboard,
            "dashboard-agent-listen-port": agent,
            "ray-client-server-port": client,
            "include-dashboard": "true",
            "num-cpus": 2,
            "object-store-memory": 100_000_000,
            "temp-dir": f"{folder}/r",
        }
        started = [*RAY, "start", "--head", "--block", "--disable-usage-stats"]
        log = Path(folder, "head.log")
        with log.open("w") as output:
            process = subprocess.Popen(
                [*started, *(f"--{name}={value}" for name, value in options.items())],
                env=environment,
                start_new_session=True,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        running = Head(f"http://127.0.0.1:{dashboard}", environment, process.pid)

        def answers():
            assert process.poll() is None, log.read_text()
            try:
                return running.ask("/api/version")[0] == 401
            except OSError:
                return False

        try:
            wait_until(answers, 120, "the head does not answer")
            yield running
        finally:
            # A head may take half a minute to end by itself; all that it started is in its session.
            wait_until(lambda: killed(process.pid), 60, "something of the head is left")
            process.wait()


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    """Eight queries, and a run that lists two passages for each."""
    folder = tmp_path_factory.mktemp("inputs")
    inputs_in(folder, QUERIES, PASSAGES)
    return folder


def submission(inputs, store, out, *options):
    """What follows `ray job submit` on the page, with these files: an evaluation of `READS` reads by one actor."""
    (command,) = (line for line in commands_of_the_page() if "job submit" in line)
    (*_, in_cluster) = shlex.split(command)
    _, _, _, *words = shlex.split(in_cluster)
    at = words.index("--address")
    del words[at : at + 2]
    here = {
        "queries": inputs / "q.jsonl",
        "corpus": inputs / "c.jsonl",
        "run": inputs / "r.trec",
        "store": store,
        "out": out,
        "reader": "bundled",
        "actors": 1,
        "gpus-per-actor": 0,
    }
    for name, value in here.items():
        words[words.index(f"--{name}") + 1] = str(value)
    words[words.index("python")] = sys.executable
    return [*options, *words, "--no-end-to-end", "--dtype=float32", "--resamples=0"]


def stored(store):
    """The keys of every row of the store's finished files, in no order."""
    files = [path for path in store.rglob("*.parquet") if not path.name.startswith(".")]
    return [key for path in files for key in pl.read_parquet(path)["read_key"]]


def shown_reads(log):
    """The counts of reads in a job's log: distinct, cached, new."""
    (found,) = re.findall(r"LLM calls: (\d+) distinct, (\d+) cached, (\d+) new", log)
    return tuple(map(int, found))


def actors_of(head):
    """Processes of the head that host a reader."""
    hosts = []
    for process in processes():
        with contextlib.suppress(OSError):
            name = Path("/proc", str(process), "cmdline").read_bytes()
            if b"MapBatches(_Actor)" in name and session_of(process) == head.session:
                hosts.append(process)
    return hosts


def status_of(head, job):
    return head.ask(f"/api/jobs/{job}", head.token)[1]["status"]


def labels(out):
    return pl.read_parquet(out / "labels.parquet").sort("query_id", "doc_id")


def test_nobody_submits_without_the_token(head, tmp_path):
    environment = {**head.environment, "HOME": str(tmp_path)}  # where no token lies either
    del environment["RAY_AUTH_TOKEN_PATH"]
    mark = tmp_path / "mark"
    for mode in ("token", "disabled"):
        environment["RAY_AUTH_MODE"] = mode
        refused = head.ray("submit", "--", "touch", str(mark), environment=environment)
        assert refused.returncode != 0
        assert "AuthenticationError" in refused.stderr
    assert head.ask("/api/jobs/")[0] == 401
    assert head.ask("/api/jobs/", head.token[::-1])[0] in {401, 403}
    assert head.ask("/api/jobs/", head.token) == (200, [])
    assert not mark.exists()


def test_the_job_server_listens_on_this_machine_alone(head):
    port = int(head.address.rpartition(":")[2])
    listening = {
        line.split()[1]
        for table in ("/proc/net/tcp", "/proc/net/tcp6")
        for line in Path(table).read_text().splitlines()[1:]
        if line.split()[3] == "0A" and line.split()[1].endswith(f":{port:04X}")
    }
    assert listening == {f"0100007F:{port:04X}"}  # 127.0.0.1, its bytes in the processor's order


def test_evaluations_are_submitted_watched_stopped_and_taken_up_again(head, inputs, tmp_path):
    # Undisturbed: the job succeeds, its log shows progress, its results are where it was told.
    out = tmp_path / "undisturbed"
    done = head.ray("submit", *submission(inputs, tmp_path / "other", out))
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"reading: 0/{READS} LLM calls" in done.stdout
    assert f"reading: {READS}/{READS} LLM calls" in done.stdout
    assert shown_reads(done.stdout) == (READS, 0, READS)
    assert json.loads((out / "summary.json").read_text())["counts"]["queries"] == QUERIES
    assert len(labels(out)) == READS

    # Stopped half-way: what was stored stays, and nothing is left half-written where results go. What
    # `ray job stop` sends is sent here, because the program takes as long to start as these reads do.
    store, out = tmp_path / "store", tmp_path / "out"
    half = submission(inputs, store, out, "--submission-id", "half", "--no-wait")
    assert head.ray("submit", *half).returncode == 0
    wait_until(lambda: store.exists() and stored(store), 600, "no read was stored")
    assert actors_of(head)
    assert head.ask("/api/jobs/half/stop", head.token, "POST") == (200, {"stopped": True})
    wait_until(lambda: status_of(head, "half") != "RUNNING", 60, "the job still runs")
    assert "was stopped" in head.ray("status", "half").stdout
    assert f"/{READS} LLM calls" in head.ask("/api/jobs/half/logs", head.token)[1]["logs"]
    wait_until(lambda: not actors_of(head), 60, "the stopped job's actor still runs")
    kept = stored(store)
    assert 0 < len(kept) < READS
    assert not (out / "summary.json").exists()

    # The page's command, submitted again: no stored read is done again, none is stored twice, labels are as undisturbed.
    again = head.ray("submit", *submission(inputs, store, out))
    assert again.returncode == 0, again.stdout + again.stderr
    assert shown_reads(again.stdout) == (READS, len(kept), READS - len(kept))
    assert len(stored(store)) == len(set(stored(store))) == READS
    assert set(kept) < set(stored(store))
    assert labels(out).equals(labels(tmp_path / "undisturbed"))
