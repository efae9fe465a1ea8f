"""Downstream metrics against hand-made scores and official scripts, and metrics that are functions of a user."""

from __future__ import annotations

import re
import string
from collections import Counter
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.scoring.metrics import METRICS, get_metric, metric_from_function, score_outputs
from tests.expected import refused
from tests.unknown import UNKNOWN_NAME

ROUGE = "rouge-l-kilt"


@pytest.mark.parametrize(
    ("metric", "output", "references", "value"),
    [
        ("em", "The Cat.", ["dog", "cat"], 1),
        ("em", "cat dog", ["cat"], 0),
        ("em", "", ["The"], 0),  # KILT's script says 1: both normalize to nothing
        ("em", "a", ["the", "b"], 0),
        ("match", "It was the cat, I think", ["Cat"], 1),
        ("match", "party", ["art"], 0),
        ("match", "anything", ["The", "x"], 0),
        ("accuracy", " SUPPORTS ", ["SUPPORTS"], 1),
        ("accuracy", "supports", ["SUPPORTS"], 0),
        ("accuracy", "SUPPORTS.", ["SUPPORTS"], 0),
        # 1 common of 2 words and of 3 words: 2 * (1/2 * 1/3) / (1/2 + 1/3) = 0.4
        ("f1", "big cat", ["cat eats mouse"], 0.4),
        # multisets: "cat cat" and "cat" share one word: precision 1/2, recall 1 -> 2/3
        ("f1", "cat cat", ["cat"], 2 / 3),
        ("f1", "big cat", ["x", "the big cat"], 1),
        ("f1", "", ["cat"], 0),
        ("f1", "yes", ["no"], 0),  # no special rule for yes and no
        # KorQuAD: 《 and ‘ are spaces, other ASCII punctuation goes without one, no articles
        ("em-char", "《토지》", ["토지"], 1),
        ("em-char", "‘토지’(소설)", ["토지 소설"], 1),
        ("em-char", "1,392년", ["1392년"], 1),
        ("em-char", "“토지”", ["토지"], 0),  # not in the script's list
        ("em-char", "The Cat", ["cat"], 0),
        ("em-char", "", ["《》"], 0),  # KorQuAD's script says 1: both normalize to nothing
        # 2 of 3 characters and 2 of 2: 2 * (2/3 * 1) / (2/3 + 1) = 0.8
        ("f1-char", "서울은", ["서울"], 0.8),
        # multisets over all words, in any order: {a: 2, b: 1} and {a: 1, b: 1} share 2
        ("f1-char", "ab a", ["b A"], 0.8),
        ("f1-char", "부산", ["서울", "부산시"], 0.8),
        ("f1-char", "", ["서울"], 0),
        ("f1-char", "《》", ["()"], 0),
        # rouge-score: tokens stemmed and lower-cased
        ("rouge-l", "Madrid", ["Madrid, Spain"], 2 / 3),
        ("rouge-l", "hello world", ["Hello World"], 1),
        ("rouge-l", "", ["x"], 0),
        # the package rouge: split at white space, case counts ("Madrid," is not "Madrid")
        (ROUGE, "Madrid", ["Madrid, Spain"], 0),
        (ROUGE, "hello world", ["Hello World"], 0),
        (ROUGE, "I think so . yes", ["yes I think so"], 1),
        # stripped, as KILT does: a space behind the full stop would be another sentence
        (ROUGE, "Paris. ", ["Paris"], 1),
        (ROUGE, "Paris.", [" Paris. \n"], 1),
        (ROUGE, ".", ["x"], 0),
        (ROUGE, "", ["x"], 0),
    ],
)
def test_values_by_hand_and_by_the_reference_scripts(metric, output, references, value):
    assert METRICS[metric](output, references) == pytest.approx(value, abs=1e-6)


def test_rouge_l_takes_the_best_reference():
    one, other = METRICS["rouge-l"]("a b c", ["a b"]), METRICS["rouge-l"]("a b c", ["x"])
    assert METRICS["rouge-l"]("a b c", ["x", "a b"]) == max(one, other) > other


def test_rouge_l_kilt_refuses_texts_that_its_package_cannot_score():
    with refused("metric.length"):
        METRICS[ROUGE]("x " * 1000, ["y " * 1000])


def test_outputs_are_scored_per_query_and_keep_their_order():
    queries = pl.DataFrame({"query_id": ["1", "2"], "answers": [["Ann"], ["Bo"]]})
    outputs = pl.DataFrame({"query_id": ["2", "1", "2", "1"], "output": ["Bo", "Bo", "Ann", "ann"]})
    assert score_outputs(outputs, queries, "em")["value"].to_list() == [1, 0, 0, 1]


def test_unknown_metric_lists_the_known_ones():
    with refused("metric.unknown"):
        get_metric(UNKNOWN_NAME)


# What KorQuAD's script turns into spaces, and what it deletes after that.
BLANKED = ["'", '"', "《", "》", "<", ">", "〈", "〉", "(", ")", "‘", "’"]
KOREAN = st.text(
    st.sampled_from([*"가나다서울은", *BLANKED, *string.punctuation, *"“”「」aB1 \t"]), max_size=9
)


def korquad_words(text):
    for mark in BLANKED:
        text = text.replace(mark, " ")
    kept = [c.lower() for c in text if not ("!" <= c <= "~" and not c.isalnum())]
    return "".join(kept).split()


@settings(max_examples=60, deadline=None)
@given(KOREAN, KOREAN)
def test_em_char_and_f1_char_are_korquads(output, reference):
    ours, theirs = korquad_words(output), korquad_words(reference)
    a, b = Counter("".join(ours)), Counter("".join(theirs))
    # 2 p r / (p + r) is twice what both have, over what they have together.
    f1 = 2 * sum(min(a[c], b[c]) for c in a) / ((a.total() + b.total()) or 1)
    assert METRICS["f1-char"](output, [reference]) == pytest.approx(f1, abs=1e-12)
    assert METRICS["em-char"](output, [reference]) == (bool(ours) and ours == theirs)


ANY = st.text(st.sampled_from([*"aA the서東.!《》'_ \u0301"]), max_size=6).map(str.strip)


@pytest.mark.parametrize("name", METRICS)
@settings(max_examples=30, deadline=None)
@given(output=ANY, reference=ANY)
def test_a_reference_that_a_metric_can_score_scores_1_and_another_0(name, output, reference):
    metric = METRICS[name]
    if metric.can_score(reference):
        assert metric(reference, [reference]) == pytest.approx(1, abs=1e-6)
    elif name != ROUGE or " " not in reference:
        # To the package rouge an empty sentence, as in ". .", is a word of its own.
        assert metric(output, [reference]) == 0 or (name, output, reference) == ("accuracy", "", "")


def test_graded_metrics_are_those_with_values_between_0_and_1():
    between = {n for n, metric in METRICS.items() if 0 < metric("b c", ["b d"]) < 1}
    assert between == {name for name, metric in METRICS.items() if metric.graded}


def test_the_documented_metrics_are_those_there_are():
    text = (Path(__file__).parents[2] / "docs" / "methods.md").read_text(encoding="utf-8")
    table = text.partition("**Downstream metrics**")[2].partition("**The words")[0]
    assert re.findall(r"^\| `([\w-]+)` \|", table, re.MULTILINE) == list(METRICS)


QUERIES = pl.DataFrame({"query_id": ["1", "2"], "answers": [["a", "b"], ["c"]]})
OUTPUTS = pl.DataFrame({"query_id": ["1", "1", "2", "2"], "output": ["a", "x", "a", "a"]})


def test_a_function_is_a_metric_and_is_called_once_for_an_output_and_its_references():
    calls = []

    def holds(output, references):
        calls.append((output, references))
        return output in references

    metric = metric_from_function(holds)
    for _ in range(2):
        assert score_outputs(OUTPUTS, QUERIES, metric)["value"].to_list() == [1, 0, 0, 0]
    assert calls == [("a", ["a", "b"]), ("x", ["a", "b"]), ("a", ["c"])]
    assert get_metric(metric) is metric
    assert metric.name == "holds"


@pytest.mark.parametrize(
    "function",
    [
        lambda o, r: 1.5,
        lambda o, r: -0.1,
        lambda o, r: float("nan"),
        lambda o, r: None,
        lambda o, r: "1",
    ],
)
def test_what_is_no_value_is_refused_naming_the_query(function):
    with refused("metric.value"):
        score_outputs(OUTPUTS, QUERIES, metric_from_function(function, "mine"))


def test_the_place_where_a_function_raises_is_named():
    with refused("metric.value", text=False) as caught:
        score_outputs(OUTPUTS, QUERIES, metric_from_function(lambda o, r: 1 / len(r[1:]), "mine"))
    assert "ZeroDivisionError" in caught.value.problem
    assert f"({__file__}:" in caught.value.problem


def test_a_name_of_the_engine_or_none_is_refused():
    with refused("metric.taken"):
        metric_from_function(lambda o, r: 1, "em")
    with refused("metric.nameless"):
        metric_from_function(lambda o, r: 1, " ")
