import re

import polars as pl
import pytest

from engine.messages.errors import InputError
from engine.scoring.metrics import get_metric, score_outputs
from engine.scoring.own import metric_from_function

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
    ("function", "words"),
    [
        (lambda o, r: 1.5, "the metric mine gives 1.5 for the output 'a' of query '1'; return"),
        (lambda o, r: -0.1, "gives -0.1"),
        (lambda o, r: float("nan"), "gives nan"),
        (lambda o, r: None, "gives None"),
        (lambda o, r: "1", "gives '1'"),
        (lambda o, r: 1 / len(r[1:]), f"raises ZeroDivisionError: division by zero ({__file__}:"),
    ],
)  # fmt: skip
def test_what_is_no_value_is_refused_naming_the_query(function, words):
    with pytest.raises(InputError, match=re.escape(words)):
        score_outputs(OUTPUTS, QUERIES, metric_from_function(function, "mine"))


def test_a_name_of_the_engine_or_none_is_refused():
    with pytest.raises(InputError, match="a metric of the engine is called 'em'; rename"):
        metric_from_function(lambda o, r: 1, "em")
    with pytest.raises(InputError, match="a metric without a name"):
        metric_from_function(lambda o, r: 1, " ")
