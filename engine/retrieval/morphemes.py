"""Korean texts as morphemes separated by spaces, for BM25.

Korean attaches particles and endings to words: split at white space, "학교에서" (at school) and "학교는"
(school, as the topic) have nothing in common. Kiwi (Lee 2024, https://github.com/bab2min/kiwipiepy)
splits them into morphemes; these are indexed and searched unchanged.
"""

from __future__ import annotations

import importlib.metadata
import os
from collections.abc import Iterable
from typing import Any, Literal

from engine.messages.extras import require

Tokenizer = Literal["kiwi"]


class Kiwi:
    """Splits texts into morphemes with kiwipiepy, which must be installed."""

    def __init__(self) -> None:
        require("`tokenizer` kiwi", "korean")
        import kiwipiepy

        # A positive number, since the meaning of 0 and -1 changed between versions.
        self._kiwi: Any = kiwipiepy.Kiwi(num_workers=os.cpu_count() or 1)

    def split(self, texts: Iterable[str]) -> list[str]:
        """The morphemes of each text, separated by spaces; an empty text stays empty."""
        return [
            " ".join(token.form for token in tokens if token.form.strip())
            for tokens in self._kiwi.tokenize(texts)
        ]


def version() -> str:
    """What decides how texts are split: the versions of Kiwi and of its model."""
    names = ("kiwipiepy", "kiwipiepy_model")
    return " ".join(f"{name} {importlib.metadata.version(name)}" for name in names)
