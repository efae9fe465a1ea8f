"""Optional packages: the extras that install them, and the errors if one is missing.

Evaluating existing runs with labels, or with an LLM behind a function, requires none. pyproject.toml lists the extras'
other packages.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util

from engine.messages.errors import InputError
from engine.messages.wording import agreeing, listed

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
    """Refuse work that needs a missing extra, before it starts.

    Raises:
        InputError: ``what needs pyserini, which is not installed; pip install 'erag-engine[retrieval]'``.
    """
    if lacking := missing(extra, *modules):
        which = agreeing(len(lacking), "which [is|are] not installed")
        problem = f"{what} needs {listed(lacking)}, {which}"
        raise InputError(problem, command(extra), "package.missing")
