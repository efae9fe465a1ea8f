"""How official scripts normalize answers before they compare them: KILT's, and KorQuAD's for Korean."""

from __future__ import annotations

import re
import string

PUNCTUATION = str.maketrans("", "", string.punctuation)
ARTICLES = re.compile(r"\b(a|an|the)\b")
# Marks around titles and quotations, which KorQuAD's script turns into spaces; the ASCII ones too.
KORQUAD_SPACES = str.maketrans(dict.fromkeys("'\"《》<>〈〉()‘’", " "))


def normalize_answer(text: str) -> str:
    """KILT's normalization (``kilt/eval_downstream.py``; from SQuAD).

    Lower-case, delete ASCII punctuation, blank out English articles, collapse white space.

    The steps are applied in this order, and punctuation is deleted without a replacement:
    "twenty-one" becomes "twentyone". Accents and non-ASCII punctuation stay. The result may be
    empty ("The!" becomes "").
    """
    without_punctuation = text.lower().translate(PUNCTUATION)
    return " ".join(ARTICLES.sub(" ", without_punctuation).split())


def normalize_korquad(text: str) -> str:
    """KorQuAD 1.0's normalization (``evaluate-korquad_v1.0.py``, ``normalize_answer``).

    Blank out ' " 《 》 < > 〈 〉 ( ) ‘ ’, lower-case, delete other ASCII punctuation, collapse white
    space. There are no articles to leave out, and other marks (“ ” 「 」 ·) stay, as in the script. The
    result may be empty.
    """
    without_marks = text.translate(KORQUAD_SPACES)
    return " ".join(without_marks.lower().translate(PUNCTUATION).split())
