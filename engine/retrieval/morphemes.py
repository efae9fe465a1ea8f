"""Korean texts as morphemes between spaces, for BM25.

Korean writes particles and endings onto words: by white space, "학교에서" (at school) and "학교는"
(school, as the topic) share nothing. Kiwi (Lee 2024, https://github.com/bab2min/kiwipiepy) cuts them
into morphemes; these are indexed and searched as they are.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
from collections.abc import Iterable
from typing import Any, Literal

from engine.errors import InputError

Tokenizer = Literal["kiwi"]


class Kiwi:
    """Cuts texts into morphemes with kiwipiepy.

    Args:
        threads: that cut; 0 for every CPU.

    Raises:
        InputError: kiwipiepy is not installed.
    """

    def __init__(self, threads: int = 0) -> None:
        if importlib.util.find_spec("kiwipiepy") is None:
            raise InputError(
                None,
                None,
                "--tokenizer kiwi needs kiwipiepy, which is not installed",
                "pip install 'erag-engine[korean]'",
            )
        import kiwipiepy

        # A number, since what 0 and -1 mean changed between versions.
        self._kiwi: Any = kiwipiepy.Kiwi(num_workers=threads or os.cpu_count() or 1)

    def cut(self, texts: Iterable[str]) -> list[str]:
        """Morphemes of each text, between spaces; an empty text stays empty."""
        return [
            " ".join(token.form for token in tokens if token.form.strip())
            for tokens in self._kiwi.tokenize(texts)
        ]


def version() -> str:
    """What decides how texts are cut: the versions of Kiwi and of its model."""
    names = ("kiwipiepy", "kiwipiepy_model")
    return " ".join(f"{name} {importlib.metadata.version(name)}" for name in names)
