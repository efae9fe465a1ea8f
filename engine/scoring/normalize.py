"""How official scripts normalize answers before they compare them: KILT's, and KorQuAD's for Korean."""

from __future__ import annotations

import re
import string
import unicodedata

import regex

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(a|an|the)\b")
# Marks around titles and quotations, which KorQuAD's script turns into spaces; the ASCII ones too.
_KORQUAD_SPACES = str.maketrans(dict.fromkeys("'\"《》<>〈〉()‘’", " "))


# Quotation marks and dashes as keyboards have them, and letters and digits of full or half width.
_PLAIN = str.maketrans(
    dict.fromkeys("‘’‚‛′`´ʼ", "'") | dict.fromkeys("“”„‟″«»", '"') | dict.fromkeys("‐‑‒–—―−", "-")
)
_WIDE = re.compile("[\uff01-\uffee\u3000]+")
# Characters that show nothing; not the joiners that decide what Persian, Indic scripts and emojis look like.
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
    narrow = _WIDE.sub(lambda found: unicodedata.normalize("NFKC", found[0]), visible)
    return narrow.translate(_PLAIN)


def normalize_answer(text: str) -> str:
    """KILT's normalization (``kilt/eval_downstream.py``; from SQuAD).

    Lower-case, delete ASCII punctuation, blank out English articles, collapse white space.

    The steps are applied in this order, and punctuation is deleted without a replacement:
    "twenty-one" becomes "twentyone". Accents and non-ASCII punctuation stay. The result may be
    empty ("The!" becomes "").

    >>> normalize_answer("The twenty-one  Pilots, an Élan")
    'twentyone pilots élan'
    """
    without_punctuation = text.lower().translate(_PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", without_punctuation).split())


def normalize_korquad(text: str) -> str:
    """KorQuAD 1.0's normalization (``evaluate-korquad_v1.0.py``, ``normalize_answer``).

    Blank out ' " 《 》 < > 〈 〉 ( ) ‘ ’, lower-case, delete other ASCII punctuation, collapse white
    space. There are no articles to leave out, and other marks (“ ” 「 」 ·) stay, as in the script. The
    result may be empty.

    >>> normalize_korquad("《춘향전》, The play")
    '춘향전 the play'
    """
    without_marks = text.translate(_KORQUAD_SPACES)
    return " ".join(without_marks.lower().translate(_PUNCTUATION).split())
