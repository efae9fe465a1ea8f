"""What of a response is taken: so many bytes, in so many seconds, from the host that was asked and no other."""

from __future__ import annotations

import threading
import time
import zlib
from collections.abc import Iterator
from typing import Any

import httpcore2 as httpcore
import httpx2 as httpx
import openai

# Bytes of a response, unpacked; answers have some thousand.
LARGEST = 16 << 20


class UntakenError(httpx.RequestError):
    """A response that is not taken; asking again would not help.

    Attributes:
        is_final: whether that holds of every request.
    """

    def __init__(self, reason: str, *, is_final: bool = False) -> None:
        super().__init__(reason)
        self.is_final = is_final


def bounded_client(seconds: float) -> httpx.Client:
    """A client whose responses are bounded.

    Args:
        seconds: from when a request is made until its response has come in full, headers and all.
    """
    deadline = _Deadline()

    def begin(request: httpx.Request) -> None:
        deadline.at = time.monotonic() + seconds

    def bound(response: httpx.Response) -> None:
        """Refuse a response, or have its body bounded while it comes."""
        asked = response.request.url
        if response.has_redirect_location:
            try:
                to = asked.join(response.headers["location"])
            except httpx.InvalidURL as error:
                raise UntakenError(f"a redirect to what is no address ({error})") from None
            if to.host != asked.host:
                reason = f"{asked.host} sends requests on to {to.host or to}, which was not asked"
                raise UntakenError(reason, is_final=True)
        packed = response.headers.pop("content-encoding", "identity").lower()
        if packed not in ("identity", "gzip", "deflate"):
            raise UntakenError(f"the answer is packed ({packed}), though it was asked for as it is")
        assert isinstance(response.stream, httpx.SyncByteStream)
        response.stream = _Bounded(response.stream, unpacks=packed != "identity")

    client = openai.DefaultHttpxClient(
        timeout=seconds,
        headers={"Accept-Encoding": "identity"},
        event_hooks={"request": [begin], "response": [bound]},
    )
    # Its own timeout begins anew with every byte. It takes no other network, but through a transport of the
    # caller's, for which it would forget the proxies of the environment.
    transports: list[Any] = [client._transport, *client._mounts.values()]
    for pool in [one._pool for one in transports if one is not None]:
        pool._network_backend = _Network(pool._network_backend, deadline)
    return client


class _Deadline(threading.local):
    """When the request that a thread makes must have ended; a thread makes one at a time."""

    at: float

    def left(self, timeout: float | None) -> float:
        """The seconds until then, or a step's own timeout if that is shorter.

        Raises:
            ReadTimeout: it has passed.
        """
        left = self.at - time.monotonic()
        if left <= 0:
            raise httpcore.ReadTimeout("the answer has not come in full")
        return left if timeout is None else min(left, timeout)


class _Network(httpcore.NetworkBackend):
    """A network whose connections keep a deadline, at every step."""

    def __init__(self, network: httpcore.NetworkBackend, deadline: _Deadline) -> None:
        self._network, self._deadline = network, deadline

    def connect_tcp(
        self, host: str, port: int, timeout: float | None = None, *args: Any, **options: Any
    ) -> httpcore.NetworkStream:
        left = self._deadline.left(timeout)
        return _Stream(
            self._network.connect_tcp(host, port, left, *args, **options), self._deadline
        )


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


class _Bounded(httpx.SyncByteStream):
    """The body of a response as it comes, unpacked, up to a number of bytes."""

    def __init__(self, stream: httpx.SyncByteStream, *, unpacks: bool) -> None:
        self._stream, self._unpacks = stream, unpacks

    def __iter__(self) -> Iterator[bytes]:
        unpacker = zlib.decompressobj(zlib.MAX_WBITS | 32) if self._unpacks else None
        left = LARGEST
        for chunk in self._stream:
            try:
                part = unpacker.decompress(chunk, left + 1) if unpacker else chunk
            except zlib.error as error:
                raise UntakenError(f"the answer cannot be unpacked ({error})") from None
            left -= len(part)
            if left < 0:
                raise UntakenError(f"the answer is larger than {LARGEST >> 20} MiB")
            yield part

    def close(self) -> None:
        self._stream.close()
