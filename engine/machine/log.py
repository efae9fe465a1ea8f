"""Events on a worker, in one line of ``key=value`` each, by ``logging``: Ray keeps a worker's standard error as a file."""

from __future__ import annotations

import json
import logging
import re
import sys
from typing import Any

from engine.messages.errors import masked

_LOG = logging.getLogger("erag")
# Values that need no quotes.
_PLAIN = re.compile(r"[^\s=\"]+")


def log(event: str, **about: object) -> None:
    """Log what happened; in the driver's process nothing is shown unless a program of the user's asks for it."""
    ray: Any = sys.modules.get("ray")
    # Whoever asks for the context of a Ray that was not started starts it.
    joined = not _LOG.handlers and ray and ray.is_initialized()
    if joined and ray.get_runtime_context().worker.mode == ray.WORKER_MODE:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(asctime)s %(name)s %(message)s"))
        _LOG.addHandler(handler)
        _LOG.setLevel(logging.INFO)
        _LOG.propagate = False
    fields = {"event": event} | {name: masked(str(value)) for name, value in about.items()}
    words = (f"{k}={v if _PLAIN.fullmatch(v) else json.dumps(v)}" for k, v in fields.items())
    _LOG.info(" ".join(words))
