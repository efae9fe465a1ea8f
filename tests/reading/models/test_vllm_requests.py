"""The next unit enters vLLM before the one before it has ended; checked with an engine that is played."""

from typing import NamedTuple

import pytest

from engine.reading.models.vllm_support import RequestsUnderWay


class Result(NamedTuple):
    request_id: str
    finished: bool = True


class Played:
    """Ends the oldest requests, so many in a step; says what it held when it was asked, and may fail."""

    def __init__(self, a_step=1):
        self.a_step, self.held, self.steps, self.fails = a_step, [], [], None

    def add_request(self, name, prompt, params):
        if prompt["prompt_token_ids"] == [0]:
            raise ValueError("unknown token")
        self.held.append((name, prompt["prompt_token_ids"][0]))

    def step(self):
        self.steps.append([token for _, token in self.held])
        if self.fails:
            raise self.fails
        ended, self.held = self.held[: self.a_step], self.held[self.a_step :]
        going = [Result(name, False) for name, _ in self.held]
        return [*going, *(Result(name) for name, _ in ended)]

    def abort_request(self, names):
        self.held = [one for one in self.held if one[0] not in names]


def asked_of(under_way, *tokens):
    return under_way.ask({token: [token] for token in tokens}, None)


def taken(under_way, asked):
    return [key for key, _ in under_way.results(asked)]


def test_a_unit_that_was_started_runs_beside_the_last_requests_of_the_one_before():
    engine = Played(a_step=2)
    under_way = RequestsUnderWay(engine, None)
    first, second = asked_of(under_way, 1, 2, 3), asked_of(under_way, 4, 5)
    assert taken(under_way, first) == [1, 2, 3]
    # The step that ended the first unit had the second one's requests, and ended one of them.
    assert engine.steps == [[1, 2, 3, 4, 5], [3, 4, 5]]
    assert taken(under_way, second) == [4, 5]
    assert engine.steps[2:] == [[5]]
    assert taken(under_way, asked_of(under_way)) == []
    assert len(engine.steps) == 3


def test_a_unit_may_be_started_while_another_is_read():
    engine = Played()
    under_way = RequestsUnderWay(engine, None)
    results = under_way.results(asked_of(under_way, 1, 2))
    next(results)
    second = asked_of(under_way, 3)
    assert [key for key, _ in results] == [2]
    assert engine.steps == [[1, 2], [2, 3]]
    assert taken(under_way, second) == [3]


def test_after_an_error_nothing_is_left_of_what_was_under_way():
    engine = Played()
    under_way = RequestsUnderWay(engine, None)
    first, second = asked_of(under_way, 1, 2), asked_of(under_way, 3)
    engine.fails = RuntimeError("a kernel failed")
    for asked in (first, second):  # it may have been at a request of either
        with pytest.raises(RuntimeError, match="kernel"):
            taken(under_way, asked)
    assert engine.held == []
    engine.fails = None
    assert taken(under_way, asked_of(under_way, 4)) == [4]


def test_a_prompt_that_vllm_refuses_leaves_nothing_either():
    engine = Played()
    under_way = RequestsUnderWay(engine, None)
    first, second = asked_of(under_way, 1, 2), asked_of(under_way, 3, 0)
    for asked in (first, second):  # each is then done read by read, where the prompt fails alone
        with pytest.raises(ValueError, match="unknown token"):
            taken(under_way, asked)
    assert engine.held == []
    assert taken(under_way, asked_of(under_way, 1)) == [1]
