"""Optional packages: the extras that install them, errors if one is missing, and parts that other packages add.

Evaluating existing runs with labels, or with an LLM behind a function, requires none. pyproject.toml lists the extras'
other packages.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
from typing import Any

from engine.messages.errors import InputError
from engine.messages.wording import agreeing, listed, reason_of

# By extra, the imported modules of its packages.
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
    """Missing modules of an extra, or among ``modules``."""
    assert set(modules) <= set(EXTRAS[extra])
    return [name for name in modules or EXTRAS[extra] if not is_installed(name)]


def is_installed(module: str) -> bool:
    """Whether a module of this name exists, and not only its folder after an uninstall."""
    spec = importlib.util.find_spec(module)
    return spec is not None and spec.origin is not None


def version_of(*packages: str) -> str | None:
    """The version of the first installed package among these; None without any."""
    for package in packages:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            return importlib.metadata.version(package)
    return None


def command(*extras: str) -> str:
    """The command that installs these extras beside the installed engine."""
    return f"pip install 'erag-engine[{','.join(extras)}]'"


def require(what: str, extra: str, *modules: str) -> None:
    """Refuse work that needs a missing extra, with the command that installs it, before the work starts."""
    if lacking := missing(extra, *modules):
        which = agreeing(len(lacking), "which [is|are] not installed")
        problem = f"{what} needs {listed(lacking)}, {which}"
        raise InputError(problem, command(extra), "package.missing")


def provided(kind: str, name: str) -> Any:
    """The part of this name from an installed package, by an entry point of the group ``erag.kind``; None without any.

    An InputError refuses a package that raises an error, and two packages with parts of one name.
    """
    # A package in two places is listed twice.
    entries = {
        entry.value: entry
        for entry in importlib.metadata.entry_points(group=f"erag.{kind}", name=name)
    }
    if len(entries) > 1:
        places = " and ".join(sorted(entries))
        problem = f"{name!r} of erag.{kind} is {places}"
        raise InputError(problem, "remove one of the packages", "package.twice")
    for place, entry in entries.items():
        try:
            return entry.load()
        except Exception as error:  # a package's code may raise anything
            problem = f"{name!r} of erag.{kind}, {place}, cannot be loaded ({reason_of(error)})"
            remedy = "correct the package, or remove it"
            raise InputError(problem, remedy, "package.unloadable") from error
    return None
