"""Digests of what is kept, which is compared with them when it is taken up: a disk may have changed it.

Files have their digests in a manifest, which is written last and has one of itself. Values that have no manifest
carry their digest at their end.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from engine.sources.io.fingerprint import file_sha256
from engine.sources.io.json_text import parse_json

# The key of a manifest's own digest.
OWN = "sha256"
# Bytes of the digest at the end of a value.
SEAL = 16


def digest(content: bytes) -> str:
    """The SHA-256 of some bytes, as 64 hexadecimal digits."""
    return hashlib.sha256(content).hexdigest()


def digest_at(place: Path) -> str:
    """The digest of a file, or of all files directly in a folder; an OSError where one cannot be read."""
    if place.is_dir():
        return digest("".join(map(file_sha256, sorted(place.iterdir()))).encode())
    return file_sha256(place)


def json_digest(value: object) -> str:
    """The digest of a JSON value, however it is laid out."""
    return digest(json.dumps(value, sort_keys=True).encode())


def sealed_json(manifest: Mapping[str, Any]) -> bytes:
    """A manifest with the digest of itself."""
    read_back = json.loads(json.dumps(manifest))  # keys are texts, and tuples lists
    whole = {**manifest, OWN: json_digest(read_back)}
    return json.dumps(whole, indent=1, ensure_ascii=False).encode()


def unsealed_json(content: bytes) -> dict[str, Any]:
    """The manifest in some bytes, without its digest; of an earlier version it has none.

    Raises:
        ValueError: it is none, or not what was written.
    """
    manifest = parse_json(content)
    if not isinstance(manifest, dict):
        raise ValueError("no object")
    if manifest.pop(OWN, None) not in (None, json_digest(manifest)):
        raise ValueError("it was changed after it was written")
    return manifest


def sealed(content: bytes) -> bytes:
    """Some bytes with the digest of them at their end."""
    return content + hashlib.sha256(content).digest()[:SEAL]


def unsealed(content: bytes) -> bytes:
    """What ``sealed`` was given; a ValueError where the bytes are not those that it made."""
    if sealed(content[:-SEAL]) != content:
        raise ValueError("damaged")
    return content[:-SEAL]
