import pytest

from engine.scoring.normalize import normalize_answer


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
