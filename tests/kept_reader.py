"""The bundled reader, converted once for all sessions of tests: converting it takes most of a minute."""

import hashlib
import os
import shutil
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

ROOT = Path(__file__).parent.parent
_CONVERSION = ROOT / "engine" / "reading" / "models" / "conversion.py"
# Tests convert models of their own, too, all of them tiny.
_LARGE = 2**26


def kept() -> Path | None:
    """Where the converted reader stays, for this code and these versions of its libraries; None without them."""
    try:
        libraries = [version("gguf"), version("transformers")]
    except PackageNotFoundError:
        return None
    made_by = [_CONVERSION.read_text(encoding="utf-8"), *libraries]
    return ROOT / "build" / "tests" / hashlib.sha256("\n".join(made_by).encode()).hexdigest()[:16]


def lend(cache: Path) -> None:
    """Show a session's cache the reader that an earlier session left."""
    place = kept()
    if place is not None and place.is_dir():
        (cache / "readers").mkdir()
        for reader in place.iterdir():
            (cache / "readers" / reader.name).symlink_to(reader)


def keep(cache: Path) -> None:
    """Leave the reader of a session's cache to later ones, in the place of what other code made."""
    place = kept()
    if place is None:
        return
    for reader in (cache / "readers").glob("*"):
        weights = reader / "model.safetensors"
        if reader.is_symlink() or not weights.is_file() or weights.stat().st_size < _LARGE:
            continue
        part = place.with_name(f"{os.getpid()}.part")
        shutil.rmtree(place.parent, ignore_errors=True)
        shutil.copytree(reader, part / reader.name)
        os.replace(part, place)
