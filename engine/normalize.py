"""KILT's official answer normalization (``kilt/eval_downstream.py``; from SQuAD)."""

from __future__ import annotations

import re
import string

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(a|an|the)\b")


def normalize_answer(text: str) -> str:
    """Lower-case, delete ASCII punctuation, blank out English articles, collapse white space.

    In this order, and with nothing put in the place of punctuation: "twenty-one" gives "twentyone".
    Accents and non-ASCII punctuation stay. The result may be empty ("The!" gives "").
    """
    without_punctuation = text.lower().translate(_PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", without_punctuation).split())
