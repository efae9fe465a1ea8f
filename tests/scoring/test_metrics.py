import polars as pl
import pytest

from engine.errors import InputError
from engine.scoring.metrics import METRICS, get_metric, score_outputs


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
        # rouge-score: tokens stemmed and lower-cased
        ("rouge-l", "Madrid", ["Madrid, Spain"], 2 / 3),
        ("rouge-l", "hello world", ["Hello World"], 1),
        ("rouge-l", "", ["x"], 0),
        # the package rouge: split at white space, case counts ("Madrid," is not "Madrid")
        ("rouge-l-kilt", "Madrid", ["Madrid, Spain"], 0),
        ("rouge-l-kilt", "hello world", ["Hello World"], 0),
        ("rouge-l-kilt", "I think so . yes", ["yes I think so"], 1),
        ("rouge-l-kilt", ".", ["x"], 0),
        ("rouge-l-kilt", "", ["x"], 0),
    ],
)
def test_values_by_hand_and_by_the_reference_scripts(metric, output, references, value):
    assert METRICS[metric](output, references) == pytest.approx(value, abs=1e-6)


def test_rouge_l_takes_the_best_reference():
    one, other = METRICS["rouge-l"]("a b c", ["a b"]), METRICS["rouge-l"]("a b c", ["x"])
    assert METRICS["rouge-l"]("a b c", ["x", "a b"]) == max(one, other) > other


def test_rouge_l_kilt_refuses_texts_that_its_package_cannot_score():
    with pytest.raises(InputError, match="use rouge-l"):
        METRICS["rouge-l-kilt"]("x " * 1000, ["y " * 1000])


def test_outputs_are_scored_per_query_and_keep_their_order():
    queries = pl.DataFrame({"query_id": ["1", "2"], "answers": [["Ann"], ["Bo"]]})
    outputs = pl.DataFrame({"query_id": ["2", "1", "2", "1"], "output": ["Bo", "Bo", "Ann", "ann"]})
    assert score_outputs(outputs, queries, "em")["value"].to_list() == [1, 0, 0, 1]


def test_unknown_metric_lists_the_known_ones():
    with pytest.raises(InputError, match="unknown metric 'bleu'; use one of em, match"):
        get_metric("bleu")
