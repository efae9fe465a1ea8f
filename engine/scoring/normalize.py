"""Text normalization as in official scripts (KILT's, and KorQuAD's for Korean), and ROUGE's words in any script."""

from __future__ import annotations

import functools
import re
import string
import unicodedata
from typing import Any

import regex

from engine.messages.characters import UNSPACED, composed

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(a|an|the)\b")
# Marks around titles and quotations, which KorQuAD's script turns into spaces; the ASCII ones too.
_KORQUAD_SPACES = str.maketrans(dict.fromkeys("'\"《》<>〈〉()‘’", " "))


# Quotation marks and dashes as on keyboards, and letters and digits of full or half width.
_PLAIN = str.maketrans(
    dict.fromkeys("‘’‚‛′`´ʼ", "'") | dict.fromkeys("“”„‟″«»", '"') | dict.fromkeys("‐‑‒–—―−", "-")
)
_WIDE = re.compile("[\uff01-\uffee\u3000]+")
# Invisible characters, except joiners that affect the form of Persian, Indic scripts and emojis.
_INVISIBLE = regex.compile(
    r"(?V1)[[\p{Cf}\p{DI}]--[\p{PCM}\u200c\u200d]]"
    r"|(?<![\p{ccc=9}\p{Arabic}\p{Syriac}\p{Nko}\p{Mongolian}\p{Emoji}\ufe0f])[\u200c\u200d]"
)


def without_marks(text: str) -> str:
    """The text with plain quotation marks, dashes and width, without invisible characters; no metric does so.

    >>> without_marks("“１９９９–2001\\u200b”")
    '"1999-2001"'
    """
    visible = _INVISIBLE.sub("", text)
    narrow = _WIDE.sub(lambda wide: unicodedata.normalize("NFKC", wide[0]), visible)
    return narrow.translate(_PLAIN)


def normalize_answer(text: str) -> str:
    """KILT's normalization (``kilt/eval_downstream.py``; from SQuAD).

    In this order: lower-case, delete ASCII punctuation ("twenty-one" becomes "twentyone"), blank out English articles,
    collapse white space. Accents and non-ASCII punctuation stay. The result may be empty ("The!" becomes "").

    >>> normalize_answer("The twenty-one  Pilots, an Élan")
    'twentyone pilots élan'
    """
    without_punctuation = text.lower().translate(_PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", without_punctuation).split())


def normalize_korquad(text: str) -> str:
    """KorQuAD 1.0's normalization (``evaluate-korquad_v1.0.py``, ``normalize_answer``).

    Blank out ' " 《 》 < > 〈 〉 ( ) ‘ ’, lower-case, delete other ASCII punctuation, collapse white space. Other marks
    (“ ” 「 」 ·) stay, as in the script. The result may be empty.

    >>> normalize_korquad("《춘향전》, The play")
    '춘향전 the play'
    """
    return " ".join(text.translate(_KORQUAD_SPACES).lower().translate(_PUNCTUATION).split())


# A word begins with a letter or a number. Marks belong to the character before them, so that a vowel
# sign of Hindi or Thai cuts no word in two; one that stands alone, as behind an emoji, is not a word.
_WORD = regex.compile(
    rf"(?V1){UNSPACED}\p{{M}}*"
    rf"|[[\p{{L}}\p{{N}}]--{UNSPACED}]"
    rf"[[\p{{L}}\p{{N}}\p{{M}}]--{UNSPACED}]*"
)
# Invisible characters, such as joiners and soft hyphens, are written within words or omitted at will. Only the
# zero-width space separates words.
_UNSHOWN = regex.compile(r"(?V1)[\p{Cf}--\u200b]+")
# Words up to this length are not stemmed (rouge-score's rule).
_SHORT = 3


def words(text: str) -> list[str]:
    """The words of a text, in their order, in lower case, stemmed.

    On ASCII text these are the tokens of the package rouge-score 0.1.2 with ``use_stemmer=True``: runs of letters and
    digits, longer than three characters without their English endings (Porter's stemmer, as NLTK has it). In other text
    letters, digits and marks of every script make words, composed or not (NFC). In scripts without spaces between words
    (Chinese, Japanese, Thai, Lao, Khmer, Burmese) each character is one. Accents count: "café" is not "cafe".
    """
    visible = _UNSHOWN.sub("", composed(text.lower()))
    stems = (word if len(word) <= _SHORT else _stem(word) for word in _WORD.findall(visible))
    return [word for word in stems if word]


# Many outputs share few words, and stemming takes longer than all the rest.
@functools.lru_cache(maxsize=65536)
def _stem(word: str) -> str:
    return str(_stemmer().stem(word))


@functools.cache
def _stemmer() -> Any:
    from nltk.stem.porter import PorterStemmer

    return PorterStemmer()
