"""Requests in a file that a provider answers later, in OpenAI's batch format, and the file with its answers."""

from __future__ import annotations

import hashlib
import json
import operator
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from engine.machine.remote.api_settings import ApiSettings
from engine.machine.remote.spec import ApiSpec
from engine.messages.errors import InputError, LaterError
from engine.messages.wording import counted, listed, quoted
from engine.sources.io.files import write_text
from engine.sources.io.json_records import read_json_records
from engine.sources.io.locations import locate

# What OpenAI takes in a file, which has requests to one model (https://platform.openai.com/docs/guides/batch).
MOST_REQUESTS, MOST_BYTES = 50_000, 200_000_000
# Why a read is not done yet.
WRITTEN = "its request was written into the file of `batch_out`"


class Batch:
    """The files of an evaluation; safe for threads.

    Raises:
        InputError: a file of answers that is none, or one of requests that is there.
    """

    def __init__(self, settings: ApiSettings) -> None:
        given, self._out = settings.batch_in, settings.batch_out
        self._in = (given,) if isinstance(given, Path) else given
        # By their name: the model, and the line of the file.
        self._requests: dict[str, tuple[str, str]] = {}
        self._lock = threading.Lock()
        self._answers: dict[str, Any] = {}
        self._errors: dict[str, str] = {}
        if self._out is not None:
            _refuse_present([self._out, _numbered(self._out, 1)])
        for path in map(locate, self._in):
            for line, record in read_json_records(path, "answers to a batch"):
                name = record.get("custom_id")
                response = record.get("response") or record.get("error")
                if not isinstance(name, str) or not isinstance(response, dict):
                    raise InputError(
                        "no answer of a batch: it lacks custom_id, or response and error",
                        "give the file that the provider wrote, with a line for each request",
                        path=path,
                        line=line,
                    )
                if response.get("status_code") == 200:
                    self._answers[name] = response.get("body")
                else:
                    self._errors[name] = f"{path} has an error in its place: {quoted(response)}"

    def answer(self, spec: ApiSpec, text: str) -> Any:
        """The body of the answer to a prompt; where there is none, a text that says why, and the request is written."""
        body = spec.body(text)
        name = f"erag-{hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()[:40]}"
        if name in self._answers:
            return self._answers[name]
        if self._out is not None:
            path = "chat/completions" if spec.endpoint == "chat" else "completions"
            request = {"custom_id": name, "method": "POST", "url": f"/v1/{path}", "body": body}
            with self._lock:
                self._requests[name] = (spec.model, f"{json.dumps(request)}\n")
            return WRITTEN
        if name in self._errors:
            return self._errors[name]
        return f"no answer to it is in {listed([*map(str, self._in)])}"

    def write(self) -> None:
        """Write the requests, each file whole or not at all.

        Raises:
            LaterError: there are some; the text says what to do with them.
            InputError: a file of a part is there.
            WriteError: a file cannot be written.
        """
        if self._out is None or not self._requests:
            return
        parts: list[list[str]] = []
        part_model, size = "", 0
        for model, line in sorted(self._requests.values(), key=operator.itemgetter(0)):
            size += len(line)
            if model != part_model or len(parts[-1]) == MOST_REQUESTS or size > MOST_BYTES:
                parts.append([])
                part_model, size = model, len(line)
            parts[-1].append(line)
        paths = [_numbered(self._out, n) for n in range(1, len(parts) + 1)]
        paths = paths if len(parts) > 1 else [self._out]
        _refuse_present(paths)
        for path, part in zip(paths, parts, strict=True):
            write_text("".join(part), path)
        requests, files = counted(len(self._requests), "request[|s]"), listed([*map(str, paths)])
        answering = "file that answers" if len(paths) == 1 else "files that answer"
        raise LaterError(f"{requests} in {files}; give the {answering} them as `batch_in`")


def _numbered(path: Path, number: int) -> Path:
    return path.with_name(f"{path.stem}-{number}{path.suffix}")


def _refuse_present(paths: Iterable[Path]) -> None:
    """Refuse to write over requests, which a provider may be answering."""
    for path in paths:
        if path.exists():
            raise InputError("is there already", "give another file, or delete it", path=path)
