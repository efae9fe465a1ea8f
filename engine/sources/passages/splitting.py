"""Texts cut into pieces: so many words each, or recursively into so many characters."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

from engine.errors import InputError


@dataclass(frozen=True)
class Cutting:
    """How texts are cut.

    Attributes:
        words: words per piece at most; used where ``characters`` is None.
        characters: characters per piece at most.
        overlap: characters that a piece may share with the one before it.
    """

    words: int = 100
    characters: int | None = None
    overlap: int = 20

    def __post_init__(self) -> None:
        if self.words < 1:
            raise InputError(None, None, f"--words is {self.words}", "use 1 or more")
        if self.characters is not None and not 0 <= self.overlap < self.characters:
            raise InputError(
                None,
                None,
                f"--characters is {self.characters}, --overlap {self.overlap}",
                "use 1 character or more, and a smaller overlap of 0 or more",
            )


def cut(text: str, cutting: Cutting) -> list[str]:
    """Cut a text into pieces; one that is only white space gives none."""
    if cutting.characters is None:
        return cut_words(text, cutting.words)
    return cut_characters(text, cutting.characters, cutting.overlap)


def cut_words(text: str, words: int) -> list[str]:
    """Cut a text into pieces of ``words`` words, the last one shorter (Karpukhin et al. 2020).

    Words are what white space separates; joined again, the pieces give the text's words.
    """
    tokens = text.split()
    return [" ".join(tokens[start : start + words]) for start in range(0, len(tokens), words)]


def cut_characters(text: str, characters: int, overlap: int) -> list[str]:
    """Cut a text recursively: at empty lines, else at line ends, spaces, or anywhere.

    What LangChain's RecursiveCharacterTextSplitter gives with its own separators. Pieces have at most
    ``characters`` characters, and none is empty.
    """
    pieces: list[str] = _splitter(characters, overlap).split_text(text)
    return pieces


@functools.lru_cache(maxsize=8)
def _splitter(characters: int, overlap: int) -> Any:
    # 0.3 s to import, for those who cut by characters.
    from langchain_text_splitters import RecursiveCharacterTextSplitter

    return RecursiveCharacterTextSplitter(chunk_size=characters, chunk_overlap=overlap)
