"""Packages that the engine can do without: what brings them, and what is said where one is missing.

Whoever evaluates given runs with labels alone, or with an LLM behind a function, needs none of them.
pyproject.toml says what else an extra brings.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
from collections.abc import Mapping

from engine.messages.errors import InputError
from engine.messages.wording import agreeing, listed
from engine.version import __version__

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


def versions(*packages: str) -> dict[str, str]:
    """The versions of the engine and of those packages that are installed, without a build's own part (``+cpu``)."""
    found = {name: (version_of(name) or "").partition("+")[0] for name in packages}
    return {"erag-engine": __version__} | {name: one for name, one in found.items() if one}


def refuse_other_versions(driver: Mapping[str, str], here: Mapping[str, str], where: str) -> None:
    """Refuse, with an InputError, to work for a driver that has other versions."""
    if other := [name for name in driver if here.get(name) != driver[name]]:
        has = listed([f"{name} {here.get(name, '(none)')}" for name in other])
        problem = f"{where} has {has}, the driver {listed([driver[name] for name in other])}"
        raise InputError(problem, "start all nodes with the driver's versions, as from one image")


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
        raise InputError(problem, command(extra))
