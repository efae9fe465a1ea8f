"""Bundled data: a sample of Wikipedia, and questions that it answers."""

from __future__ import annotations

import importlib.resources
import importlib.util
from pathlib import Path
from typing import Literal

from engine.errors import InputError

QuestionSet = Literal["short-answer", "claims", "two-hop", "dialogue"]

_DUMP = "test/test_data/enwiki-latest-pages-articles1.xml-p000000010p000030302-shortened.bz2"


def wikipedia_dump() -> Path:
    """The MediaWiki dump of 106 articles that the package gensim carries.

    Raises:
        InputError: gensim is not installed.
    """
    spec = importlib.util.find_spec("gensim")  # found, not imported: only its file is needed
    for location in (spec.submodule_search_locations or ()) if spec else ():
        if (path := Path(location) / _DUMP).is_file():
            return path
    raise InputError(
        None,
        None,
        "the bundled Wikipedia articles are not installed",
        "run 'make install', or 'pip install --no-deps gensim'",
    )


def questions(name: QuestionSet) -> Path:
    """A set of questions about the bundled articles, in KILT format."""
    return Path(str(importlib.resources.files("engine") / "demo" / f"{name}.jsonl"))
