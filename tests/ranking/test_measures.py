import ir_measures
import pytest

from engine.errors import InputError
from engine.ranking.measures import Measure, parse_measure, parse_measures


@pytest.mark.parametrize(
    ("text", "measure"),
    [
        ("nDCG@10", Measure("nDCG", 10)),
        ("AP", Measure("AP")),
        ("AP(rel=2)@50", Measure("AP", 50, 2)),
        ("P(rel=0.5)@5", Measure("P", 5, 0.5)),
        ("Success@1", Measure("Success", 1)),
    ],
)
def test_names_are_parsed_and_written_back(text, measure):
    assert parse_measure(text) == measure
    assert str(measure) == text


@pytest.mark.parametrize(
    "text", ["nDCG@10", "P@5", "RR", "RR@10", "AP", "AP(rel=2)@50", "R@50", "Success@1"]
)
def test_names_are_those_of_ir_measures(text):
    assert str(ir_measures.parse_measure(text)) == str(parse_measure(text))


@pytest.mark.parametrize(
    "text",
    [
        "MRR",
        "ndcg@10",
        "P@0",
        "P@-1",
        "P@x",
        "AP(rel=x)",
        "AP(rel=0)",
        "AP(cut=2)",
        "nDCG(rel=1)",
        "P(rel=1",
        "",
    ],
)
def test_unknown_measures_are_refused(text):
    with pytest.raises(InputError):
        parse_measure(text)


def test_lists_may_have_spaces_inside_parentheses():
    assert parse_measures("P@1 AP(rel = 0.5)@3  P@1") == (Measure("P", 1), Measure("AP", 3, 0.5))
    with pytest.raises(InputError, match="no measures"):
        parse_measures("  ")
    with pytest.raises(InputError, match="unknown measure"):
        parse_measures("P@2 ( AP")


def test_thresholds_keep_their_digits():
    one, other = parse_measures("AP(rel=0.12345671) AP(rel=0.12345672)")
    assert str(one) != str(other)
