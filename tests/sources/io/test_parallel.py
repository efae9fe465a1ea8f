import operator
import os

import pytest

from engine.sources.io import parallel
from engine.sources.io.parallel import map_ordered


def _exit_elsewhere(pid):
    if os.getpid() != pid:
        os._exit(3)


def impatient(function, items, *, workers):
    """Processes are started after the first item."""
    return map_ordered(function, items, workers=workers, patience=0)


def test_results_come_in_order_from_processes_and_without():
    items = range(-40, 40)
    expected = [-n for n in items]
    assert list(impatient(operator.neg, items, workers=1)) == expected
    assert list(impatient(operator.neg, items, workers=2)) == expected
    assert list(impatient(operator.neg, [], workers=2)) == []


def test_little_work_starts_no_process(monkeypatch):
    monkeypatch.setattr(parallel, "ProcessPoolExecutor", None)
    assert list(map_ordered(operator.neg, range(99), workers=4)) == [-n for n in range(99)]
    assert list(impatient(operator.neg, [1], workers=4)) == [-1]
    with pytest.raises(TypeError):
        list(impatient(operator.neg, [1, 2], workers=4))


def test_items_are_taken_lazily_and_errors_are_passed_on():
    taken = []

    def items():
        for n in range(-100, 100):
            taken.append(n)
            yield n

    results = impatient(operator.neg, items(), workers=2)
    assert [next(results), next(results)] == [100, 99]
    assert len(taken) < 20
    results.close()
    with pytest.raises(TypeError):
        list(impatient(operator.neg, ["x"] * 9, workers=2))


def test_a_killed_worker_gives_a_clear_error():
    with pytest.raises(RuntimeError, match="use fewer workers"):
        list(impatient(_exit_elsewhere, [os.getpid()] * 9, workers=2))
