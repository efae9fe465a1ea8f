"""The call of the eRAG package: equal to the package on lists of any length and labels of any kind."""

import itertools

import numpy as np
import pytest

from engine.compat import eval as ours
from engine.ranking.measures import KINDS
from tests.expected import refused
from tests.unknown import UNKNOWN_NAME

NAMES = [measure.references for measure in KINDS.values()]
BINARY = {name.trec_eval_cut.format(k) for name in NAMES for k in (1, 3, 20)}
BINARY = (BINARY | {name.trec_eval for name in NAMES}) - {""}


def lists(seed, *, empty=False):
    """Twenty queries with one to nine passages each; texts occur twice, in one list and in several."""
    random = np.random.default_rng(seed)
    lengths = random.integers(1, 10, 20)
    if empty:
        lengths[3] = 0
    return {
        f"query {i} @1": [f"passage {number}" for number in random.integers(0, 40, length)]
        for i, length in enumerate(lengths)
    }


def stateful():
    """A generator whose outputs depend on how often it was called, and on what for."""
    calls = itertools.count()

    def generate(asked):
        call = next(calls)
        return {query: f"{query}|{documents[0]}|{call}" for query, documents in asked.items()}

    return generate


def values(kind):
    """A metric that is a fixed function of the output."""

    def score(outputs, expected):
        assert all(expected[query] == ["gold", query] for query in outputs)
        raw = {query: sum(map(ord, output)) * 2654435761 % 997 for query, output in outputs.items()}
        if kind == "shares":
            return {query: value / 996 for query, value in raw.items()}
        return {query: kind(value % 3 == 0) for query, value in raw.items()}

    return score


def both(retrieved, kind, measures):
    from erag import eval as theirs

    expected = {query: ["gold", query] for query in retrieved}
    return [
        function(retrieved, expected, stateful(), values(kind), measures)
        for function in (ours, theirs)
    ]


def assert_equal(own, other):
    assert own["per_input"].keys() == other["per_input"].keys()
    for query, row in other["per_input"].items():
        assert own["per_input"][query] == pytest.approx(row, abs=1e-9), query
    assert own["aggregated"] == pytest.approx(other["aggregated"], abs=1e-9)


@pytest.mark.parametrize("kind", [bool, int, float])
@pytest.mark.parametrize("empty", [False, True])
def test_labels_of_0_and_1_give_what_the_package_gives(kind, empty):
    own, other = both(lists(7, empty=empty), kind, BINARY)
    assert_equal(own, other)
    assert len({value for row in own["per_input"].values() for value in row.values()}) > 10


def test_labels_between_0_and_1_give_what_the_package_gives():
    own, other = both(lists(8), "shares", {"P", "success", "P_1", "success_1"})
    assert_equal(own, other)


def test_metrics_of_the_package_may_be_given_by_position_or_by_name():
    retrieved = {"q": ["a", "b"]}
    named = ours(
        retrieval_results=retrieved,
        expected_outputs={"q": ["x"]},
        text_generator=lambda asked: {q: documents[0] for q, documents in asked.items()},
        downstream_metric=lambda outputs, _: {q: float(o == "b") for q, o in outputs.items()},
        retrieval_metrics={"recip_rank"},
    )
    assert named == {"per_input": {"q": {"recip_rank": 0.5}}, "aggregated": {"recip_rank": 0.5}}


def constant(value):
    return lambda outputs, _: dict.fromkeys(outputs, value)


@pytest.mark.parametrize(
    ("changed", "code"),
    [
        ({"expected_outputs": {"q": ["x"], "other": ["x"]}}, "python.queries"),
        ({"text_generator": lambda asked: {}}, "python.value"),
        ({"downstream_metric": lambda outputs, _: {**dict.fromkeys(outputs, 1), "r": 1}}, "python.value"),
        ({"downstream_metric": constant(2)}, "python.metric"),
        ({"retrieval_metrics": {UNKNOWN_NAME}}, "python.measure"),
        ({"downstream_metric": constant(0.5), "retrieval_metrics": {"map"}}, "python.graded"),
        ({"downstream_metric": constant(0.5), "retrieval_metrics": {"P_5"}}, "python.length"),
    ],
)  # fmt: skip
def test_what_the_package_fails_on_is_refused_in_a_line(changed, code):
    given = {
        "retrieval_results": {"q": ["a"]},
        "expected_outputs": {"q": ["x"]},
        "text_generator": lambda asked: {q: documents[0] for q, documents in asked.items()},
        "downstream_metric": lambda outputs, _: dict.fromkeys(outputs, 1.0),
        "retrieval_metrics": {"P_1"},
    }
    with refused(code):
        ours(**(given | changed))
