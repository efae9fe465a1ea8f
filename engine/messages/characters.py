"""Characters of texts: composed where they may be, and scripts that put no spaces between words."""

from __future__ import annotations

import unicodedata

import regex

# A letter of theirs is a word: so Unicode's default boundaries cut them (UAX #29; it keeps Katakana together), and
# so ROUGE is commonly taken of Chinese. A few letters, such as the apostrophe U+02BC, are of Latin words, too.
UNSPACED = (
    r"[\p{L}&&[\p{scx=Han}\p{scx=Hiragana}\p{scx=Katakana}\p{scx=Bopomofo}"
    r"\p{scx=Thai}\p{scx=Lao}\p{scx=Khmer}\p{scx=Myanmar}]--\p{scx=Latin}]"
)
_LETTER = rf"{UNSPACED}\p{{M}}*"
_LETTERS = regex.compile(rf"(?V1){_LETTER}")
_BESIDE = r"[^\s\p{L}\p{N}]*"
_WORD = regex.compile(rf"(?V1)\s*(?:{_BESIDE}{_LETTER}{_BESIDE}|(?:(?!{UNSPACED})\S)+)")


def composed(text: str) -> str:
    """A text in Unicode's composed form (NFC): what is equal to the eye is equal.

    >>> composed("Beyonce\\u0301")
    'Beyoncé'
    """
    return unicodedata.normalize("NFC", text)


def spaced(text: str) -> str:
    """A text with single spaces between words, of which each letter of a script without spaces is one.

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
