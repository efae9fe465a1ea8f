"""An encoder on a server: many texts in a request, many requests at a time, and no text twice.

A file of the cache keeps vectors, so that no vector is paid for twice, whichever index or search needs it.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import sqlite3
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from engine.machine.model_files import cache_directory
from engine.machine.remote.api_settings import ApiSpec, model_of
from engine.machine.remote.client import NO_ANSWER, Client, RefusedError, UnansweredError
from engine.machine.remote.limits import FEWEST_TOKENS, StoppedAskingError, limits_of
from engine.messages.errors import EncodeError, InputError
from engine.messages.wording import counted, quoted
from engine.retrieval.encoders import EncoderSpec, split_name
from engine.sources.io.digests import sealed, unsealed

Vectors = npt.NDArray[np.float32]

# Texts per request, of which OpenAI takes 2,048 with 300,000 tokens: responses of this size stay below the response
# limit, whatever the dimensions and format. Rejected requests are split in halves.
_MOST_TEXTS = 128
# The first text for a server, and the tolerance for vectors of the same model, relative to length: rounding makes 0.01.
_TRIAL, _ALIKE = "What is retrieval?", 0.1
# Seconds to wait for another process' write, which takes some thousandths.
_PATIENCE = 30
_KEPT = "every vector that came is kept: run the same command again to go on from there"


class Embedder:
    """Gives the vectors of texts, as ``Encoder`` does, from a server and from its earlier responses.

    Raises:
        InputError: the server does not take the key, the model, the dimensions or a text, or has another model than
            before; the file of its vectors cannot be used.
        EncodeError: its response has no vectors, or requests fail or are stopped.
    """

    def __init__(self, spec: EncoderSpec) -> None:
        server = spec.server
        assert server
        server.require_server(f"encoder {spec.name!r}")
        self._host, self._limits = server.host, limits_of(server)
        self._client = Client(server, self._limits)
        size = {"dimensions": spec.text.dimensions} if spec.text.dimensions else {}
        sent = json.dumps({"encoding_format": "base64"} | size)
        model = model_of(split_name(spec.source)[0])
        self._api = ApiSpec(model=model, settings=server, system="", parameters=sent, embeds=True)
        self.spec = spec
        try:
            trial = self._request([_TRIAL], calibrates=False)
        except (RefusedError, StoppedAskingError, UnansweredError) as error:
            reason = getattr(error, "problem", error)
            problem = f"{self._host} gives no vectors of {spec.name!r} ({reason})"
            remedy = (
                f"check {server.api_key_env}, `base_url`, the model, and the dimensions behind @"
            )
            raise InputError(problem, remedy, "server.vectors") from None
        identity = json.dumps([self._host, model, trial.shape[1]])
        digest = hashlib.sha256(identity.encode()).hexdigest()
        self._path = cache_directory() / "vectors" / f"{digest[:32]}.sqlite"
        self.spec = replace(spec, digest=digest, dimensions=trial.shape[1])
        former = np.frombuffer(self._keep([_TRIAL], trial)[_key(_TRIAL)], np.float32)
        other = np.linalg.norm(former - trial[0]) > _ALIKE * np.linalg.norm(former)
        if other or spec.digest not in ("", digest):
            model = f"another model {spec.name!r} than the one that made the vectors"
            delete = f"delete {self._path} and " * bool(other)
            remedy = f"ask the same server, or {delete}build the index again"
            raise InputError(f"{self._host} has {model}", remedy, "server.model")

    def queries(self, texts: Sequence[str]) -> Vectors:
        """The vectors of queries, with the prefix added; (texts, dimensions)."""
        return self.encode([self.spec.text.query_prefix + text for text in texts])

    def encode(self, texts: Sequence[str]) -> Vectors:
        """The vectors of texts that already have their prefix; (texts, dimensions), in their order."""
        vectors = self._find([*map(_key, texts)])
        lacking = list({text: None for text in texts if _key(text) not in vectors})
        batches = [lacking[i : i + _MOST_TEXTS] for i in range(0, len(lacking), _MOST_TEXTS)]
        threads = ThreadPoolExecutor(self._limits.settings.concurrency)
        try:
            self._limits.refuse_beyond(len("".join(lacking).encode()), rate=FEWEST_TOKENS)
            for batch in threads.map(self._fetch, batches):
                vectors.update(batch)
        except (StoppedAskingError, UnansweredError) as error:
            raise EncodeError(f"{error}; {_KEPT}") from None
        finally:
            if len(vectors) < len({*texts}):
                self._limits.end()  # no request is repeated; pending ones are paid for
            threads.shutdown(cancel_futures=True)
        numbers = np.frombuffer(b"".join([vectors[_key(text)] for text in texts]), np.float32)
        return numbers.reshape(len(texts), self.spec.dimensions)

    def _fetch(self, texts: list[str]) -> dict[bytes, bytes]:
        """Request vectors and keep them; in halves if the server rejects all texts together."""
        try:
            return self._keep(texts, self._request(texts))
        except RefusedError as error:
            if len(texts) == 1:
                problem = f"{self._host} does not take the text {quoted(texts[0][:80])} ({error})"
                remedy = f"shorten it, or leave it out; {_KEPT}"
                raise InputError(problem, remedy, "server.text") from None
        half = len(texts) // 2
        return self._fetch(texts[:half]) | self._fetch(texts[half:])

    def _request(self, texts: Sequence[str], *, calibrates: bool = True) -> Vectors:
        entries = self._client.ask(self._api, json.dumps(texts), 0, calibrates=calibrates).vectors
        try:
            by_place = {entry["index"]: _numbers(entry["embedding"]) for entry in entries}
            vectors = np.stack([by_place.pop(place) for place in range(len(texts))])
            if by_place or not np.isfinite(vectors).all():
                raise ValueError("too many, or numbers that are not finite")
            if vectors.shape != (len(texts), size := self.spec.dimensions or vectors.shape[1] or 1):
                raise ValueError(f"dimensions {vectors.shape[1:]} instead of {size}")
        except NO_ANSWER as error:
            what = f"{counted(len(entries), 'vector[|s]')} for {counted(len(texts), 'text[|s]')}"
            reason = f"{type(error).__name__}: {error}"[:200]
            problem = f"{self._host} gives {what} that cannot be used ({reason})"
            raise EncodeError(f"{problem}; {_KEPT}") from None
        return vectors

    def _find(self, keys: Sequence[bytes]) -> dict[bytes, bytes]:
        """The kept vectors among some thousand keys, by key; damaged ones are removed."""
        marks = ", ".join("?" * len(keys))
        with self._opened() as file:
            rows = file.execute(f"SELECT * FROM vectors WHERE key IN ({marks})", keys)
            whole = {key: self._whole(vector) for key, vector in dict(rows).items()}
            damaged = [(key,) for key, vector in whole.items() if vector is None]
            file.executemany("DELETE FROM vectors WHERE key = ?", damaged)
        if damaged:
            problem = counted(len(damaged), "kept vector[|s] [was|were] damaged, and removed")
            remedy = "check the disk, and run the same command again: it asks for them once more"
            raise InputError(problem, remedy, "index.vectors", path=self._path)
        return {key: vector for key, vector in whole.items() if vector is not None}

    def _whole(self, stored: object) -> bytes | None:
        """A stored vector; None if it is damaged, or has another length."""
        size = 4 * self.spec.dimensions
        # Earlier versions kept no digest.
        vector = unsealed(stored) if isinstance(stored, bytes) and len(stored) != size else stored
        if not isinstance(vector, bytes) or len(vector) != size:
            return None
        return vector if np.isfinite(np.frombuffer(vector, np.float32)).all() else None

    def _keep(self, texts: Sequence[str], vectors: Vectors) -> dict[bytes, bytes]:
        """Keep the vectors of texts, all or none; the kept ones, by key."""
        rows = [(_key(t), sealed(row.tobytes())) for t, row in zip(texts, vectors, strict=True)]
        with self._opened() as file:
            file.executemany("INSERT OR IGNORE INTO vectors VALUES (?, ?)", rows)
        return self._find([key for key, _ in rows])

    @contextlib.contextmanager
    def _opened(self) -> Iterator[sqlite3.Connection]:
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with contextlib.closing(sqlite3.connect(self._path, timeout=_PATIENCE)) as file, file:
                table = "vectors (key BLOB PRIMARY KEY, vector BLOB NOT NULL)"
                file.execute(f"CREATE TABLE IF NOT EXISTS {table}")
                yield file
        except (sqlite3.Error, OSError) as error:
            remedy = "make room, delete it, or name another folder in ERAG_CACHE"
            if "locked" in str(error):
                remedy = f"another process has held it for {_PATIENCE} seconds: wait until it ends, or end it"
            problem = f"cannot be used ({error})"
            raise InputError(problem, remedy, "index.cache", path=self._path) from None


def _key(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()[:16]


def _numbers(embedding: str | list[float]) -> Vectors:
    if isinstance(embedding, str):
        return np.frombuffer(base64.b64decode(embedding, validate=True), "<f4")
    return np.array(embedding, dtype=np.float32)
