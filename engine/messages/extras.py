"""Packages that the engine can do without: what brings them, and what is said where one is missing.

Whoever evaluates given runs with labels alone, or with an LLM behind a function, needs none of them.
pyproject.toml says what else an extra brings.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util

from engine.messages.errors import InputError
from engine.messages.wording import agreeing, listed

# By extra, the modules that are imported of what it brings.
EXTRAS: dict[str, tuple[str, ...]] = {
    "api": ("openai",),
    "articles": ("langchain_text_splitters", "mwparserfromhell"),
    "datasets": ("datasets", "ir_datasets"),
    "korean": ("kiwipiepy",),
    "local": ("torch", "transformers"),
    "page": ("jinja2", "matplotlib"),
    "ray": ("ray",),
    "retrieval": ("faiss", "pyserini"),
    "training": ("pydantic", "ray", "torch", "transformers"),
}


def missing(extra: str, *modules: str) -> list[str]:
    """Those of an extra's modules, or of the ones that are asked for, that are not installed."""
    assert set(modules) <= set(EXTRAS[extra])
    return [name for name in modules or EXTRAS[extra] if not is_installed(name)]


def is_installed(module: str) -> bool:
    """Whether there is a module of this name, and not only the folder that an uninstalled one left."""
    spec = importlib.util.find_spec(module)
    return spec is not None and spec.origin is not None


def version_of(*packages: str) -> str | None:
    """The version of the first of these packages that is installed; None where none is."""
    for package in packages:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            return importlib.metadata.version(package)
    return None


def command(*extras: str) -> str:
    """What installs these extras beside an engine that is installed."""
    return f"pip install 'erag-engine[{','.join(extras)}]'"


def require(what: str, extra: str, *modules: str) -> None:
    """Refuse what cannot be done without an extra, before any work is done for it.

    Raises:
        InputError: ``what needs pyserini, which is not installed; pip install 'erag-engine[retrieval]'``.
    """
    if lacking := missing(extra, *modules):
        which = agreeing(len(lacking), "which [is|are] not installed")
        problem = f"{what} needs {listed(lacking)}, {which}"
        raise InputError(problem, command(extra), "package.missing")
