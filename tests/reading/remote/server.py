"""A small server that speaks OpenAI's protocol, on this machine, with faults where a test wants them."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import math
import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

# What may go wrong with a request instead of an answer.
FAULTS = ("429", "500", "cut", "slow", "json")


@dataclass(frozen=True)
class Said:
    """What the model behind the server says.

    Attributes:
        text: the answer.
        top: log-probabilities of the likeliest first tokens, the likeliest first.
        tokens: all tokens with their log-probabilities, those of an echoed prompt first.
    """

    text: str
    top: Mapping[str, float] = field(default_factory=dict)
    prompt_tokens: int | None = None
    finish: str = "stop"
    tokens: tuple[tuple[str, float | None], ...] = ()


@dataclass
class Behaviour:
    """How a server behaves, and what it saw.

    Attributes:
        say: the model: from the body of a request to what it says.
        fault: what goes wrong with the n-th request (from 0), if anything; or a function that answers it.
        refuse: a message with which a body is refused (status 400), or None.
        fingerprint: of the server, for the n-th request.
        model: that the n-th answer names; by default that which is asked.
        embed: gives the vector of a text.
        most_texts: texts that are taken together.
        given: changes the records of vectors before they are sent.
        retry_after: seconds that a 429 asks to wait.
        slow: seconds that a slow answer takes.
        usage: whether tokens are reported.
        answered: bodies of requests that got a good answer, in order.
        faults: what went wrong, in order.
        times: when each request came.
        keys: the authorization of each request.
        most: requests that were under way at once, at most.
    """

    say: Callable[[dict[str, Any]], Said]
    fault: Callable[[int], Any] = lambda number: None
    refuse: Callable[[dict[str, Any]], str | None] = lambda body: None
    fingerprint: Callable[[int], str | None] = lambda number: "fp-1"
    model: Callable[[int], str | None] | None = None
    embed: Callable[[str], list[float]] = lambda text: vector_of(text)
    most_texts: int = 2048
    given: Callable[[list[dict[str, Any]]], Any] = lambda records: records
    retry_after: float = 0.05
    slow: float = 1.0
    usage: bool = True
    key: str | None = None
    answered: list[dict[str, Any]] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    keys: list[str | None] = field(default_factory=list)
    under_way: int = 0
    most: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def prompts(self) -> list[str]:
        """What users asked in the requests that were answered, without those that only try the server."""
        return [text for text in map(prompt_of, self.answered) if text != "Reply with OK."]

    @property
    def texts(self) -> list[str]:
        """The texts whose vectors were given, without that which only tries the server."""
        asked = [text for body in self.answered for text in body.get("input", ())]
        return [text for text in asked if text != "What is retrieval?"]


def prompt_of(body: Mapping[str, Any]) -> str:
    """The text of a request: of a chat, its last message."""
    return body["messages"][-1]["content"] if "messages" in body else body["prompt"]


@contextlib.contextmanager
def serving(behaviour: Behaviour) -> Iterator[str]:
    """Serve on a free port; gives the base URL."""

    class Handler(_Handler):
        to = behaviour

    server = _Server(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/v1"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: Any) -> None:
        """Who asked may go away in the middle: that is no news to a test."""


class _Handler(BaseHTTPRequestHandler):
    to: Behaviour
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_POST(self) -> None:
        to = self.to
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with to.lock:
            number = len(to.times)
            to.times.append(time.monotonic())
            to.keys.append(self.headers["Authorization"])
            to.under_way += 1
            to.most = max(to.most, to.under_way)
        try:
            self._answer(number, body)
        finally:
            with to.lock:
                to.under_way -= 1

    def _answer(self, number: int, body: dict[str, Any]) -> None:
        to = self.to
        if to.key is not None and self.headers["Authorization"] != f"Bearer {to.key}":
            said = f"Incorrect API key provided: {self.headers['Authorization']}"
            return self._send(401, {"error": {"message": said, "code": "invalid_api_key"}})
        if (refusal := to.refuse(body)) is not None:
            return self._send(400, {"error": {"message": refusal}})
        fault = to.fault(number)
        if fault is not None:
            with to.lock:
                to.faults.append(fault)
        if callable(fault):
            self.close_connection = True
            return fault(self)
        match fault:
            case "429":
                wait = {"Retry-After": f"{to.retry_after:g}"}
                return self._send(429, {"error": {"message": "slow down"}}, wait)
            case "quota":
                error = {"message": "no credit is left", "code": "insufficient_quota"}
                return self._send(429, {"error": error})
            case "500":
                return self._send(500, {"error": {"message": "out of order"}})
            case "json":
                return self._send(200, '{"choices": [')
            case "cut":
                self.send_response(200)
                self.send_header("Content-Length", "1000")
                self.end_headers()
                self.wfile.write(b'{"choices"')
                self.wfile.flush()
                self.close_connection = True
                return self.connection.close()
            case "slow":
                time.sleep(to.slow)
                self.close_connection = True
                return None
        if "input" in body:
            if len(body["input"]) > to.most_texts or not all(body["input"]):
                return self._send(400, {"error": {"message": "too many inputs, or an empty one"}})
            content = embedded(body, to)
        else:
            content = answer(body, to.say(body), to.fingerprint(number), usage=to.usage)
            content["model"] = body["model"] if to.model is None else to.model(number)
        with to.lock:
            to.answered.append(body)
        return self._send(200, content)

    def _send(self, status: int, content: Any, headers: Mapping[str, str] | None = None) -> None:
        data = (content if isinstance(content, str) else json.dumps(content)).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.end_headers()
        with contextlib.suppress(OSError):
            self.wfile.write(data)

    def log_message(self, *_: Any) -> None:
        """Tests read what the behaviour saw."""


def vector_of(text: str, size: int = 8) -> list[float]:
    """A vector of length 1 that depends on the words of a text, of which texts that share many have alike ones."""
    total = [0.0] * size
    for word in text.lower().split():
        for place, byte in enumerate(hashlib.sha256(word.encode()).digest()[:size]):
            total[place] += byte / 127.5 - 1
    length = math.hypot(*total) or 1.0
    return [number / length for number in total]


def embedded(body: Mapping[str, Any], to: Behaviour) -> dict[str, Any]:
    """The body of an answer with vectors, as bytes where that is asked for; their order is not that of the texts."""
    records = []
    for place, text in enumerate(body["input"]):
        vector: Any = to.embed(text)[: body.get("dimensions")]
        if body.get("encoding_format") == "base64":
            vector = base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()
        records.append({"object": "embedding", "index": place, "embedding": vector})
    content: dict[str, Any] = {"object": "list", "data": to.given(records[::-1])}
    if to.usage:
        content["usage"] = {"prompt_tokens": sum(len(text.split()) for text in body["input"])}
    return content


def answer(
    body: Mapping[str, Any], said: Said, fingerprint: str | None, *, usage: bool
) -> dict[str, Any]:
    """The body of an answer, of a chat or of a completion."""
    choice: dict[str, Any] = {"index": 0, "finish_reason": said.finish}
    asked = body.get("logprobs")
    if "messages" in body:
        choice["message"] = {"role": "assistant", "content": said.text}
        if asked and said.top:
            listed = [{"token": t, "logprob": p} for t, p in said.top.items()]
            first = {**listed[0], "top_logprobs": listed[: body.get("top_logprobs", 0)]}
            choice["logprobs"] = {"content": [first]}
        if asked and said.tokens:
            records = [{"token": text, "logprob": log} for text, log in said.tokens]
            choice["logprobs"] = {"content": records}
    else:
        choice["text"] = said.text
        if asked and said.top:
            choice["logprobs"] = {"top_logprobs": [dict([*said.top.items()][:asked])]}
        if asked and said.tokens:
            texts, logs = zip(*said.tokens, strict=True)
            choice["logprobs"] = {"tokens": texts, "token_logprobs": logs}
    content: dict[str, Any] = {"object": "x", "choices": [choice], "model": body["model"]}
    if fingerprint is not None:
        content["system_fingerprint"] = fingerprint
    if usage:
        prompt = said.prompt_tokens
        if prompt is None:
            prompt = math.ceil(len(prompt_of(body)) / 4)
        generated = len(said.text.split())
        content["usage"] = {"prompt_tokens": prompt, "completion_tokens": generated}
    return content
