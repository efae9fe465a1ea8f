"""The words of a text in any script, as ROUGE counts them."""

from __future__ import annotations

import functools
from typing import Any

import regex

from engine.messages.characters import UNSPACED, composed

# A word begins with a letter or a number. Marks belong to the character before them, so that a vowel
# sign of Hindi or Thai cuts no word in two; one that stands alone, as behind an emoji, is not a word.
_WORD = regex.compile(
    rf"(?V1){UNSPACED}\p{{M}}*"
    rf"|[[\p{{L}}\p{{N}}]--{UNSPACED}]"
    rf"[[\p{{L}}\p{{N}}\p{{M}}]--{UNSPACED}]*"
)
# Characters that show nothing, such as joiners and soft hyphens, are written within words or left out at
# will. Only the zero-width space separates words.
_INVISIBLE = regex.compile(r"(?V1)[\p{Cf}--\u200b]+")
# Words up to this length are not stemmed (rouge-score's rule).
_SHORT = 3


def words(text: str) -> list[str]:
    """The words of a text, in their order, in lower case, stemmed.

    On ASCII text these are the tokens of the package rouge-score 0.1.2 with ``use_stemmer=True``: runs
    of letters and digits, those of more than three characters without their English endings (Porter's
    stemmer, as NLTK has it). In other text letters, digits and marks of every script make words, where
    rouge-score knows a to z and 0 to 9 alone; composed and decomposed characters are the same (NFC). In
    scripts without spaces between words (Chinese, Japanese, Thai, Lao, Khmer, Burmese) each character is
    a word. Accents count: "café" is not "cafe".
    """
    visible = _INVISIBLE.sub("", composed(text.lower()))
    found = (word if len(word) <= _SHORT else _stem(word) for word in _WORD.findall(visible))
    return [word for word in found if word]


# Many outputs are made of few words, and a stem takes longer than all the rest.
@functools.lru_cache(maxsize=65536)
def _stem(word: str) -> str:
    return str(_stemmer().stem(word))


@functools.cache
def _stemmer() -> Any:
    from nltk.stem.porter import PorterStemmer

    return PorterStemmer()
