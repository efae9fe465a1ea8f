"""Limits on a response, in bytes and seconds, from one host; proxies and certificates of the connection."""

from __future__ import annotations

import os
import re
import threading
import time
import zlib
from collections.abc import Iterator
from typing import Any

import httpcore2 as httpcore
import httpx2 as httpx
import openai

from engine.messages.errors import InputError

# The begin of server-sent events, which JSON cannot have.
_EVENTS, _LONGEST_FIELD = re.compile(rb"(?:data|event|id|retry)?:"), 6
LARGEST = 16 << 20  # bytes of a response, unpacked; answers have some thousand


class UntakenError(httpx.RequestError):
    """A rejected response without a retry: ``is_final`` for all requests, ``streams`` for a stream of events."""

    def __init__(self, reason: str, *, is_final: bool = False, streams: bool = False) -> None:
        super().__init__(reason)
        self.is_final, self.streams = is_final, streams


def bounded_client(seconds: float) -> httpx.Client:
    """A client whose responses, headers included, must be complete so many seconds after the request.

    An InputError if proxies or certificates that the environment names cannot be used.
    """
    deadline = _Deadline()

    def begin(request: httpx.Request) -> None:
        deadline.at = time.monotonic() + seconds

    def bound(response: httpx.Response) -> None:
        url = response.request.url
        if response.has_redirect_location:
            try:
                to = url.join(response.headers["location"])
            except httpx.InvalidURL as error:
                raise UntakenError(f"a redirect to what is no address ({error})") from None
            if to.host != url.host:
                reason = f"{url.host} sends requests on to {to.host or to}, which was not asked"
                raise UntakenError(reason, is_final=True)
        packed = response.headers.pop("content-encoding", "identity").lower()
        if packed not in ("identity", "gzip", "deflate"):
            raise UntakenError(f"the answer is packed ({packed}), though it was asked for as it is")
        response.stream = _BoundedBody(response, unpacks=packed != "identity")

    try:
        client = openai.DefaultHttpxClient(
            timeout=seconds,
            headers={"Accept-Encoding": "identity"},
            event_hooks={"request": [begin], "response": [bound]},
        )
    except (ImportError, OSError, ValueError, httpx.InvalidURL):
        _refuse_environment()
        raise
    # Its own timeout begins anew with every byte. It accepts another network only through a caller's transport, but
    # would then ignore the proxies of the environment.
    transports: list[Any] = [client._transport, *client._mounts.values()]
    for pool in [transport._pool for transport in transports if transport is not None]:
        pool._network_backend = _Network(pool._network_backend, deadline)
    return client


def _refuse_environment() -> None:
    """Refuse invalid certificates and proxies of the environment. No address is printed: it may hold a password."""
    variable = certificates_variable()
    try:
        httpx.create_ssl_context()
    except OSError as error:
        problem = f"{variable} is {os.environ.get(variable)}, which holds no certificates ({error})"
        remedy = "name a file of certificates, or unset it"
        raise InputError(problem, remedy, "server.certificates") from None
    for variable in filter(os.environ.get, map(_variable, ("http", "https", "all"))):
        address = os.environ[variable]
        try:
            proxy = httpx.Proxy(address if "://" in address else f"http://{address}")
            httpx.HTTPTransport(proxy=proxy)
        except ImportError:
            raise InputError(
                f"{variable} names a SOCKS proxy, which needs socksio, and that is not installed",
                "pip install socksio, or unset it",
                "server.socks",
            ) from None
        except (ValueError, httpx.InvalidURL):
            problem = f"{variable} is not the address of a proxy"
            raise InputError(problem, "write it like http://host:3128", "server.proxy") from None


def _variable(scheme: str) -> str:
    """The environment variable that names the proxy of a scheme; lower case wins, as everywhere."""
    low = f"{scheme}_proxy"
    names = [name for name, value in os.environ.items() if name.lower() == low and value]
    return max(names, default=low)


def proxy_variable(client: httpx.Client, address: str) -> str:
    """The environment variable whose proxy requests to an address go through; empty for none."""
    if client._transport_for_url(httpx.URL(address)) is client._transport:
        return ""
    names = [_variable(scheme) for scheme in (address.partition(":")[0].lower(), "all")]
    return next((name for name in names if name in os.environ), "the system")


def certificates_variable() -> str:
    """The environment variable that names the certificates for checking servers' certificates; empty for none."""
    return next((name for name in ("SSL_CERT_FILE", "SSL_CERT_DIR") if os.environ.get(name)), "")


class _Deadline(threading.local):
    """Deadline of a thread's request; a thread makes one at a time."""

    at: float

    def left(self, timeout: float | None) -> float:
        """The seconds until then, or a step's own timeout if that is shorter; raises a ReadTimeout afterwards."""
        left = self.at - time.monotonic()
        if left <= 0:
            raise httpcore.ReadTimeout("the answer has not come in full")
        return left if timeout is None else min(left, timeout)


class _Network(httpcore.NetworkBackend):
    def __init__(self, network: httpcore.NetworkBackend, deadline: _Deadline) -> None:
        self._network, self._deadline = network, deadline

    def connect_tcp(
        self, host: str, port: int, timeout: float | None = None, *args: Any, **options: Any
    ) -> httpcore.NetworkStream:
        left = self._deadline.left(timeout)
        stream = self._network.connect_tcp(host, port, left, *args, **options)
        return _Stream(stream, self._deadline)


class _Stream(httpcore.NetworkStream):
    def __init__(self, stream: httpcore.NetworkStream, deadline: _Deadline) -> None:
        self._stream, self._deadline = stream, deadline

    def close(self) -> None:
        self._stream.close()

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return self._stream.read(max_bytes, self._deadline.left(timeout))

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._stream.write(buffer, self._deadline.left(timeout))

    def start_tls(
        self, ssl_context: Any, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.NetworkStream:
        left = self._deadline.left(timeout)
        return _Stream(self._stream.start_tls(ssl_context, server_hostname, left), self._deadline)


class _BoundedBody(httpx.SyncByteStream):
    """The body of a response, streamed and unpacked, up to a number of bytes; an answer must not be events."""

    def __init__(self, response: httpx.Response, *, unpacks: bool) -> None:
        self._stream: Any = response.stream
        self._unpacks, self._is_answer = unpacks, response.status_code == 200

    def __iter__(self) -> Iterator[bytes]:
        unpacker = zlib.decompressobj(zlib.MAX_WBITS | 32) if self._unpacks else None
        left, begun = LARGEST, b""
        for chunk in self._stream:
            try:
                part = unpacker.decompress(chunk, left + 1) if unpacker else chunk
            except zlib.error as error:
                raise UntakenError(f"the answer cannot be unpacked ({error})") from None
            left -= len(part)
            if left < 0:
                raise UntakenError(f"the answer is larger than {LARGEST >> 20} MiB")
            begun = begun if len(begun) > _LONGEST_FIELD else (begun + part).lstrip()
            if self._is_answer and _EVENTS.match(begun):
                raise UntakenError("its answer is a stream of events", streams=True)
            yield part

    def close(self) -> None:
        self._stream.close()
