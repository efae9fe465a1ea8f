"""What of a response is taken: so many bytes, in so many seconds, from the host that was asked and no other."""

from __future__ import annotations

import time
import zlib
from collections.abc import Iterator

import httpx2 as httpx
import openai

# Bytes of a response, unpacked; answers have some thousand.
LARGEST = 16 << 20
_BEGUN = "erag_begun"


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
        seconds: from when a request is made until its response has come in full.
    """

    def begin(request: httpx.Request) -> None:
        request.extensions[_BEGUN] = time.monotonic()

    def bound(response: httpx.Response) -> None:
        """Refuse a response, or have its body bounded while it comes."""
        asked = response.request.url
        if response.has_redirect_location:
            to = asked.join(response.headers["location"])
            if to.host != asked.host:
                reason = f"{asked.host} sends requests on to {to.host or to}, which was not asked"
                raise UntakenError(reason, is_final=True)
        packed = response.headers.pop("content-encoding", "identity").lower()
        if packed not in ("identity", "gzip", "deflate"):
            raise UntakenError(f"the answer is packed ({packed}), though it was asked for as it is")
        assert isinstance(response.stream, httpx.SyncByteStream)
        until = response.request.extensions[_BEGUN] + seconds
        response.stream = _Bounded(response.stream, until, unpacks=packed != "identity")

    return openai.DefaultHttpxClient(
        timeout=seconds,
        headers={"Accept-Encoding": "identity"},
        event_hooks={"request": [begin], "response": [bound]},
    )


class _Bounded(httpx.SyncByteStream):
    """The body of a response as it comes, unpacked, up to a time and a number of bytes."""

    def __init__(self, stream: httpx.SyncByteStream, until: float, *, unpacks: bool) -> None:
        self._stream, self._until, self._unpacks = stream, until, unpacks

    def __iter__(self) -> Iterator[bytes]:
        unpacker = zlib.decompressobj(zlib.MAX_WBITS | 32) if self._unpacks else None
        left = LARGEST
        for chunk in self._stream:
            if time.monotonic() > self._until:
                raise httpx.ReadTimeout("the answer has not come in full")
            part = unpacker.decompress(chunk, left + 1) if unpacker else chunk
            left -= len(part)
            if left < 0:
                raise UntakenError(f"the answer is larger than {LARGEST >> 20} MiB")
            yield part

    def close(self) -> None:
        self._stream.close()
