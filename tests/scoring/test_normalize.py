"""Normalization as official scripts have it, and words as ROUGE counts them."""

from __future__ import annotations

import string

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nltk.stem.porter import PorterStemmer
from rouge_score.rouge_scorer import RougeScorer
from rouge_score.tokenize import tokenize

from engine.scoring.metrics import METRICS
from engine.scoring.normalize import normalize_answer, words


# Values of KILT's normalize_answer (kilt/eval_downstream.py).
@pytest.mark.parametrize(
    ("text", "normalized"),
    [
        ("The  Cat!", "cat"),
        ("twenty-one", "twentyone"),
        ("U.S.", "us"),
        ("an apple a day", "apple day"),
        ("café’s", "café’s"),  # no folding of accents, and ’ is not ASCII punctuation
        ("The.", ""),
        ("theatre", "theatre"),
        ("a-b", "ab"),  # punctuation goes first, so this "a" is no article
    ],
)
def test_kilt_normalization(text, normalized):
    assert normalize_answer(text) == normalized


STEMMER = PorterStemmer()
PACKAGE = RougeScorer(["rougeL"], use_stemmer=True)
# Pieces of English, so that stems, apostrophes, underscores and digits meet, and every ASCII character.
ENGLISH = ["relational", "cats", "don't", "snake_case", "3,000", "U.S.", "x2", "The", "-"]
ASCII = st.lists(
    st.one_of(st.sampled_from(ENGLISH), st.text(st.characters(max_codepoint=127), max_size=6)),
    max_size=8,
).map(" ".join)
# Punctuation that English is set with; rouge-score takes it for spaces.
TYPESET = st.text(
    st.sampled_from([*string.ascii_letters, *string.digits, *"' _-‘’“”–—…€°•«»\u2009"])
)


@settings(deadline=None)
@given(st.one_of(ASCII, TYPESET))
def test_words_of_ascii_text_are_the_tokens_of_rouge_score(text):
    assert words(text) == tokenize(text, STEMMER)


@settings(max_examples=60, deadline=None)
@given(ASCII, ASCII)
def test_rouge_l_of_ascii_text_is_that_of_rouge_score(output, reference):
    theirs = PACKAGE.score(reference, output)["rougeL"].fmeasure
    assert METRICS["rouge-l"](output, [reference]) == theirs


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("서울은 대한민국의 수도", ["서울은", "대한민국의", "수도"]),
        ("Москва — столица", ["москва", "столица"]),
        ("Αθήνα, Ελλάδα", ["αθήνα", "ελλάδα"]),
        ("القاهرة عاصمة", ["القاهرة", "عاصمة"]),
        ("हिन्दी में", ["हिन्दी", "में"]),  # vowel signs and the virama are marks
        ("Café de l'Été", ["café", "de", "l", "été"]),
        ("Cafe\u0301", ["café"]),  # composed and decomposed
        ("東京は日本の首都，1999年", [*"東京は日本の首都", "1999", "年"]),
        ("コーヒー", [*"コーヒー"]),
        ("ก็ ๒๕๖๔", ["ก็", "๒๕๖๔"]),  # a Thai letter with its mark; digits stay together
        ("北京大学 PhD students", [*"北京大学", "phd", "student"]),
        ("می\u200cخواهم", ["میخواهم"]),  # a joiner within a word
        ("co\u00adoperate x\u200by", ["cooper", "x", "y"]),  # soft hyphen; zero-width space
        ("good \u2764\ufe0f day", ["good", "day"]),  # a sign with a mark is not a word
        ("_ … 《》 \u0301", []),
    ],
)
def test_words_of_every_script(text, expected):
    assert words(text) == expected


@settings(max_examples=60, deadline=None)
@given(
    st.text(st.characters(categories=["L", "N", "M"], min_codepoint=0x370, max_codepoint=0x1CFF))
)
def test_the_english_stemmer_changes_no_other_script(text):
    for word in words(text):
        assert STEMMER.stem(word) == word


@pytest.mark.parametrize(
    ("output", "reference", "value"),
    [
        ("서울", "서울", 1),
        ("Москва", "москва", 1),
        ("Αθήνα", "Αθήνα", 1),
        # one of two words, one of one: 2 * (1/2 * 1) / (1/2 + 1)
        ("수도 서울", "서울", 2 / 3),
        # 3 of 4 characters in a row, 3 of 3: 2 * (3/4 * 1) / (3/4 + 1)
        ("東京都庁", "東京都", 6 / 7),
        # in order: 2 of 2 characters, but the wrong way round gives 1: 2 * (1/2 * 1/2) / 1
        ("京東", "東京", 1 / 2),
        ("café", "cafe", 0),
    ],
)
def test_rouge_l_scores_every_script(output, reference, value):
    assert METRICS["rouge-l"](output, [reference]) == pytest.approx(value)
