"""The bundled reader, converted once for all sessions of tests: converting it takes most of a minute."""

import hashlib
import os
import shutil
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).parent.parent
_CONVERSION = ROOT / "engine" / "reading" / "models" / "conversion.py"
# Tests convert models of their own, too, all of them tiny.
_LARGE = 2**26


def kept() -> Path:
    """Where the converted reader stays, for this code and these versions of what converts it."""
    made_by = [_CONVERSION.read_text(encoding="utf-8"), version("gguf"), version("transformers")]
    return ROOT / "build" / "tests" / hashlib.sha256("\n".join(made_by).encode()).hexdigest()[:16]


def lend(cache: Path) -> None:
    """Show a session's cache the reader that an earlier session left."""
    if kept().is_dir():
        (cache / "readers").mkdir()
        for reader in kept().iterdir():
            (cache / "readers" / reader.name).symlink_to(reader)


def keep(cache: Path) -> None:
    """Leave the reader of a session's cache to later ones, in the place of what other code made."""
    for reader in (cache / "readers").glob("*"):
        weights = reader / "model.safetensors"
        if reader.is_symlink() or not weights.is_file() or weights.stat().st_size < _LARGE:
            continue
        part = kept().with_name(f"{os.getpid()}.part")
        shutil.rmtree(kept().parent, ignore_errors=True)
        shutil.copytree(reader, part / reader.name)
        os.replace(part, kept())
