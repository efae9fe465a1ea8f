import operator
import os

import pytest

from engine.sources import parallel
from engine.sources.parallel import map_ordered


def test_results_come_in_order_from_processes_and_without():
    items = range(-40, 40)
    expected = [-n for n in items]
    assert list(map_ordered(operator.neg, items, workers=1)) == expected
    assert list(map_ordered(operator.neg, items, workers=2)) == expected
    assert list(map_ordered(operator.neg, [], workers=2)) == []


def test_few_items_start_no_process(monkeypatch):
    monkeypatch.setattr(parallel, "ProcessPoolExecutor", None)
    assert list(map_ordered(operator.neg, range(7), workers=4)) == [-n for n in range(7)]


def test_items_are_taken_as_results_are_and_errors_come_through():
    taken = []

    def items():
        for n in range(-100, 100):
            taken.append(n)
            yield n

    results = map_ordered(operator.neg, items(), workers=2)
    assert next(results) == 100
    assert len(taken) < 20
    results.close()
    with pytest.raises(TypeError):
        list(map_ordered(operator.neg, ["x"] * 9, workers=2))


def test_a_killed_worker_ends_in_words():
    with pytest.raises(RuntimeError, match="use fewer workers"):
        list(map_ordered(os._exit, [3] * 9, workers=2))
