"""Downstream metrics equal those of SQuAD's script, of the package rouge and of KILT's definitions."""

import re
import string
from types import SimpleNamespace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from rouge import Rouge
from transformers.data.metrics import squad_metrics

from engine.scoring.metrics import METRICS
from engine.scoring.normalize import normalize_answer

ROUGE = Rouge(metrics=["rouge-l"])
WORDS = ["Paris", "paris.", "the", "The", "a", "of", "x.", ".", "SUPPORTS", "café", "1,392", "'s"]
TEXT = st.lists(st.sampled_from(WORDS), min_size=1, max_size=6).map(" ".join)


def squad(output, references):
    """SQuAD's exact match and F1; it passes over references that normalize to nothing."""
    question = SimpleNamespace(qas_id="", answers=[{"text": text} for text in references])
    exact, f1 = squad_metrics.get_raw_scores([question], {"": output})
    return exact[""], f1[""]


def rouge(output, references):
    """KILT's ROUGE-L, the best over the references; an empty one is an error of the package."""
    values = []
    for reference in references:
        try:
            values.append(ROUGE.get_scores(output, reference)[0]["rouge-l"]["f"])
        except ValueError:
            values.append(0.0)
    return max(values)


def kilt_words(text):
    """The words that KILT's script compares, by its definition."""
    kept = "".join(letter for letter in text.lower() if letter not in string.punctuation)
    return re.sub(r"\b(a|an|the)\b", " ", kept).split()


@given(TEXT, st.lists(TEXT, min_size=1, max_size=3))
@example("the city of paris.", ["Paris", "City of Paris"])
@example("Orwell", ["George Orwell"])
@example("supports", ["SUPPORTS"])
@example("August 4, 1961", ["café", "4 August 1961"])
@example("z y x", ["x . y z"])
def test_all_references_agree(output, references):
    ours = {name: METRICS[name](output, references) for name in METRICS}
    assert ours["accuracy"] == (output in references)
    assert ours["rouge-l-kilt"] == pytest.approx(rouge(output, references), abs=1e-12)
    exact, f1 = squad(output, references)
    if normalize_answer(output):
        assert (ours["em"], ours["f1"]) == (exact, pytest.approx(f1, abs=1e-12))
        assert ours["em"] == (kilt_words(output) in map(kilt_words, references))
    else:
        # Both scripts take it for an exact match of a reference that normalizes to nothing, SQuAD's if there
        # is no other; here it matches nothing.
        assert (ours["em"], ours["f1"]) == (0, 0)
        assert exact == f1 == (not any(map(normalize_answer, references)))
