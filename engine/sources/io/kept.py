"""Digests of what is kept: a disk may have changed it by the time when it is taken up.

Files have their digests in a manifest, which is written last and has its own. Other values end in theirs.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from engine.messages.errors import InputError
from engine.sources.io.fingerprint import file_sha256
from engine.sources.io.json_text import parse_json
from engine.sources.io.locations import Location

# The key of a manifest's own digest, and the bytes of one at the end of a value.
_OWN, _BYTES = "sha256", 16


def digest(content: bytes) -> str:
    """The SHA-256 of some bytes, as 64 hexadecimal digits."""
    return hashlib.sha256(content).hexdigest()


def json_digest(value: object) -> str:
    """The digest of a JSON value, however it is laid out."""
    return digest(json.dumps(value, sort_keys=True).encode())


def digest_at(place: Path) -> str:
    """The digest of a file, or of the files directly in a folder; an OSError where one cannot be read."""
    if place.is_dir():
        return json_digest([*map(file_sha256, sorted(place.iterdir()))])
    return file_sha256(place)


def require_whole(
    path: Path, written: str | None, remedy: str, *, called: Location | None = None
) -> None:
    """Refuse a file or folder that is gone or has another digest; all is taken where an earlier version wrote none."""
    try:
        if not written or digest_at(path) == written:
            return
        problem = "is not what was written: it was changed, or the disk damaged it"
    except OSError as error:
        problem = f"cannot be read ({error.strerror or error})"
    raise InputError(problem, remedy, path=called or path)


def sealed_json(manifest: Mapping[str, Any]) -> bytes:
    """A manifest with its own digest."""
    own = json_digest(json.loads(json.dumps(manifest)))  # of what is read: of tuples, lists
    return json.dumps({**manifest, _OWN: own}, indent=1, ensure_ascii=False).encode()


def unsealed_json(content: bytes) -> dict[str, Any]:
    """The manifest in some bytes, without its digest; a ValueError where it was changed, or is none."""
    manifest = parse_json(content)
    if not isinstance(manifest, dict):
        raise ValueError("it is not a manifest")
    if manifest.pop(_OWN, None) not in (None, json_digest(manifest)):  # None: an earlier version's
        raise ValueError("it was changed after it was written")
    return manifest


def sealed(content: bytes) -> bytes:
    """Some bytes, and behind them their digest."""
    return content + hashlib.sha256(content).digest()[:_BYTES]


def unsealed(content: bytes) -> bytes | None:
    """The bytes without their digest; None where it is not theirs."""
    return content[:-_BYTES] if sealed(content[:-_BYTES]) == content else None
