"""Characters of texts: composed where they may be, and scripts that put no spaces between words."""

from __future__ import annotations

import unicodedata

import regex

# A letter of these scripts is a word: as in Unicode's default boundaries (UAX #29; it keeps Katakana together), and as
# is common for ROUGE in Chinese. A few letters, such as the apostrophe U+02BC, belong to Latin words, too.
UNSPACED = (
    r"[\p{L}&&[\p{scx=Han}\p{scx=Hiragana}\p{scx=Katakana}\p{scx=Bopomofo}"
    r"\p{scx=Thai}\p{scx=Lao}\p{scx=Khmer}\p{scx=Myanmar}]--\p{scx=Latin}]"
)
_LETTER = rf"{UNSPACED}\p{{M}}*"
_LETTERS = regex.compile(rf"(?V1){_LETTER}")
_BESIDE = r"[^\s\p{L}\p{N}]*"
_WORD = regex.compile(rf"(?V1)\s*(?:{_BESIDE}{_LETTER}{_BESIDE}|(?:(?!{UNSPACED})\S)+)")


def composed(text: str) -> str:
    """A text in Unicode's composed form (NFC): texts that look equal are equal.

    >>> composed("Beyonce\\u0301")
    'Beyoncé'
    """
    return unicodedata.normalize("NFC", text)


def spaced(text: str) -> str:
    """A text with single spaces between words, with each letter of a script without spaces as a word.

    >>> spaced("Tokyo  東京。")
    'Tokyo 東 京 。'
    """
    padded = text if text.isascii() else _LETTERS.sub(r" \g<0> ", text)
    return " ".join(padded.split())


def words_within(text: str) -> list[str]:
    """The words of a text, each with the white space before it as one space, and with the punctuation beside it.

    >>> words_within("Tokyo  (東京) is")
    ['Tokyo', ' (東', '京)', ' is']
    """
    return _WORD.findall(" ".join(text.split()))


def count_letters(text: str) -> int:
    """How many letters of scripts without spaces a text has."""
    return 0 if text.isascii() else len(_LETTERS.findall(text))
