"""A reader behind vLLM's own server reads as it does in this process. Needs vLLM (make vllm)."""

import importlib.util
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from engine.machine.remote.api_settings import KEY_VARIABLE
from tests.reading.remote.test_bundled import compare

# On a busy machine with two cores the server takes minutes until it answers.
PATIENCE = 600
pytestmark = [
    pytest.mark.slow,
    # Once it was installed, that it cannot be found is a fault.
    pytest.mark.skipif(
        importlib.util.find_spec("vllm") is None
        and not Path(sys.prefix, ".installed-vllm").exists(),
        reason="vLLM is not installed (make vllm)",
    ),
]
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "OMP_WAIT_POLICY": "PASSIVE",
    "TORCH_COMPILE_DISABLE": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_DO_NOT_TRACK": "1",
    "VLLM_NO_USAGE_STATS": "1",
}


def free_port():
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return listening.getsockname()[1]


def answers(address):
    try:
        with urllib.request.urlopen(address, timeout=5) as answer:
            return answer.status == 200
    except (urllib.error.URLError, OSError):
        return False


@pytest.fixture(scope="module")
def server(bundled_spec, tmp_path_factory):
    """The address of ``vllm serve`` with the bundled reader in fp32."""
    port = free_port()
    log = tmp_path_factory.mktemp("server") / "log"
    command = [
        sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", bundled_spec.path,
        "--served-model-name", "served", "--host", "127.0.0.1", "--port", str(port),
        "--dtype", "float32", "--max-model-len", "2048", "--max-num-seqs", "8", "--enforce-eager",
    ]  # fmt: skip
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, env=os.environ | ENVIRONMENT, start_new_session=True
        )  # fmt: skip
    try:
        end = time.monotonic() + PATIENCE
        while not answers(f"http://127.0.0.1:{port}/health"):
            assert process.poll() is None, log.read_text(errors="replace")[-3000:]
            assert time.monotonic() < end, log.read_text(errors="replace")[-3000:]
            time.sleep(1)
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)


@pytest.mark.parametrize(("endpoint", "prompt"), [("completions", "completion"), ("chat", "chat")])
def test_the_bundled_reader_reads_alike_behind_vllm(
    server, files, tmp_path, endpoint, prompt, monkeypatch
):
    monkeypatch.delenv(KEY_VARIABLE, raising=False)
    compare("bundled", files, tmp_path, endpoint, prompt, url=server)
