"""Find the Python code that a model brings with it, and run only what the user agreed to.

``config.json`` and ``tokenizer_config.json`` may say in ``auto_map`` that classes are defined by Python
files beside them. Loading such a model runs these files. They run only if the user says so
(``trust_remote_code``), and then only as they were then: the specification of a reader or an encoder
carries their digest to every process, and no other code is run.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from engine.machine import device
from engine.machine.model_files import file_digest
from engine.messages.errors import InputError, ReadError

_NAMING = ("config.json", "tokenizer_config.json")
_REMEDY = "give a model that transformers knows; or read its *.py files and set `trust_remote_code`"


def agreed_code(path: Path, name: str, *, trusted: bool) -> str:
    """The digest of the code that may run when a model is loaded; empty where none may or is named.

    Args:
        trusted: whether the user agreed that its code is run.

    Raises:
        InputError: the model cannot be loaded without code that the user did not agree to, or its
            code is another model's, which would not be covered by the digest.
    """
    named = _named_code(path)
    if not named:
        return ""
    if not trusted:
        from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

        if _object(path / "config.json").get("model_type") not in CONFIG_MAPPING_NAMES:
            raise needs_code(name)
        return ""
    if foreign := sorted(reference for reference in named if "--" in reference):
        raise InputError(
            f"names code outside its own files ({foreign[0]})",
            "put that code beside the model, and name it in auto_map without '--'",
            path=name,
        )
    return code_digest(path)


def code_digest(path: Path) -> str:
    """SHA-256 over the names and contents of all Python files in a model's directory."""
    files = sorted(path.rglob("*.py"))
    listing = "".join(
        f"{file.relative_to(path).as_posix()} {file_digest(file)}\n" for file in files
    )
    return hashlib.sha256(listing.encode()).hexdigest()


def needs_code(name: str) -> InputError:
    """The error for a model that cannot be loaded without its own code."""
    return InputError("cannot be loaded without running Python code of its own", _REMEDY, path=name)


def is_need_of_code(error: BaseException) -> bool:
    """Whether transformers refused to load a model because that would run its code."""
    return isinstance(error, ValueError) and "trust_remote_code" in str(error)


def refusal(error: Exception, name: str, what: str = "") -> InputError | ReadError:
    """The error for a model, or what of it, that cannot be loaded: for want of its code, for the GPU, or else for its
    files, which can make the libraries raise anything.
    """
    if is_need_of_code(error):
        return needs_code(name)
    reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
    if device.is_at_fault(error):
        return ReadError(f"{name}: the GPU failed while it was loaded ({reason}); see `nvidia-smi`")
    remedy = "check or fetch the model again"
    return InputError(f"{what} cannot be loaded ({reason})".lstrip(), remedy, path=name)


def _named_code(path: Path) -> set[str]:
    """What the ``auto_map`` of a model's files refers to, as in ``modeling_x.XModel``."""
    references: set[str] = set()
    for file in _NAMING:
        classes = _object(path / file).get("auto_map")
        for value in classes.values() if isinstance(classes, dict) else ():
            values = value if isinstance(value, list) else [value]
            references |= {one for one in values if isinstance(one, str)}
    return references


def _object(file: Path) -> dict[str, Any]:
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):  # what cannot be read is for the loader
        return {}
    return value if isinstance(value, dict) else {}
