"""KILT's official answer normalization (``kilt/eval_downstream.py``; from SQuAD)."""

from __future__ import annotations

import re
import string

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(a|an|the)\b")


def normalize_answer(text: str) -> str:
    """Lower-case, delete ASCII punctuation, blank out English articles, collapse white space.

    The steps are applied in this order, and punctuation is deleted without a replacement:
    "twenty-one" becomes "twentyone". Accents and non-ASCII punctuation stay. The result may be
    empty ("The!" becomes "").
    """
    without_punctuation = text.lower().translate(_PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", without_punctuation).split())
