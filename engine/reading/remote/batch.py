"""Requests in a file that a provider answers later, in OpenAI's batch format, and the file with its answers."""

from __future__ import annotations

import hashlib
import json
import threading
from typing import Any

from engine.messages.errors import InputError, LaterError
from engine.messages.wording import counted
from engine.reading.remote.api_settings import ApiSettings
from engine.reading.remote.spec import ApiSpec
from engine.sources.io.files import write_text
from engine.sources.io.json_records import read_json_records
from engine.sources.io.locations import locate

# Why a read is not done yet.
WRITTEN = "its request was written into the file of `batch_out`"


class Batch:
    """The files of an evaluation; safe for threads.

    Args:
        settings: with their paths.

    Raises:
        InputError: a file of answers that is none.
    """

    def __init__(self, settings: ApiSettings) -> None:
        self._in, self._out = settings.batch_in, settings.batch_out
        self._lines: dict[str, str] = {}
        self._lock = threading.Lock()
        self._answers: dict[str, Any] = {}
        self._errors: dict[str, Any] = {}
        if self._in is None:
            return
        path = locate(self._in)
        for line, record in read_json_records(path, "answers to a batch"):
            name, response = record.get("custom_id"), record.get("response") or record.get("error")
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
                self._errors[name] = response

    def answer(self, spec: ApiSpec, text: str) -> Any:
        """The body of the answer to a prompt; where there is none, a text that says why, and the request is written."""
        body = spec.body(text)
        content = json.dumps(body, sort_keys=True)
        name = f"erag-{hashlib.sha256(content.encode()).hexdigest()[:40]}"
        if name in self._answers:
            return self._answers[name]
        if self._out is not None:
            path = "chat/completions" if spec.endpoint == "chat" else "completions"
            request = {"custom_id": name, "method": "POST", "url": f"/v1/{path}", "body": body}
            with self._lock:
                self._lines[name] = json.dumps(request)
            return WRITTEN
        if name in self._errors:
            return f"{self._in} has an error in its place: {json.dumps(self._errors[name])[:200]}"
        return f"{self._in} has no answer to it"

    def write(self) -> None:
        """Write the requests, whole or not at all.

        Raises:
            LaterError: there are some; the text says what to do with them.
            WriteError: the file cannot be written.
        """
        if self._out is None or not self._lines:
            return
        write_text("".join(f"{line}\n" for line in self._lines.values()), self._out)
        raise LaterError(
            f"{counted(len(self._lines), 'request[|s]')} in {self._out}; give the file that answers "
            "them as `batch_in`"
        )
