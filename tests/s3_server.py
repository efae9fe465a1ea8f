"""An S3 server that a test starts, with one bucket."""

import os
import urllib.request

import fsspec
import pytest

KEY, SECRET = "the-id-of-a-key", "the-secret-of-a-key"


class S3:
    """A server of moto's, with one bucket."""

    def __init__(self):
        server = pytest.importorskip(
            "moto.server", reason="needs moto's S3 server and s3fs: make test-slow installs them"
        )
        pytest.importorskip("s3fs", reason="needs s3fs: make test-slow installs it")
        self._make = server.ThreadedMotoServer
        self.start()
        # What a server holds stays in its process, beyond its end.
        self._post("reset", b"")
        self._post("reset-auth", b"inf")

    def start(self):
        """Start, at another port than before, with what there was before."""
        self._server = self._make(ip_address="127.0.0.1", port=0, verbose=False)
        self._server.start()
        host, port = self._server.get_host_and_port()
        self.url = f"http://{host}:{port}"
        self.runs = True
        os.environ["AWS_ENDPOINT_URL"] = self.url
        # Those that there are keep the address of the server before.
        fsspec.get_filesystem_class("s3").clear_instance_cache()

    def demand_credentials(self):
        """From now on, refuse whoever is not known; and nobody is."""
        self._post("reset-auth", b"0")

    def _post(self, what, data):
        headers = {"Content-Type": "text/plain"}
        url = f"{self.url}/moto-api/{what}"
        urllib.request.urlopen(urllib.request.Request(url, data, headers, method="POST")).read()

    def stop(self):
        if self.runs:
            self._server.stop()
            self.runs = False


@pytest.fixture
def s3(monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", "")  # as it was, after the test
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    server = S3()
    fsspec.filesystem("s3").mkdir("bucket")
    yield server
    server.stop()
    fsspec.get_filesystem_class("s3").clear_instance_cache()
