import operator
import os
import threading

import pytest

from engine.sources.io import parallel
from engine.sources.io.parallel import ahead, map_ordered, mapped
from tests.expected import as_expected


def numbers(count, fault=None):
    yield from range(count)
    if fault is not None:
        raise fault


def squared(number):
    if number == 7:
        raise ValueError("seven")
    return number**2


def taken(results):
    """What is yielded, and the error that ends it."""
    found = []
    try:
        for result in results:
            found.append(result)
    except (ValueError, OSError) as error:
        return found, str(error)
    return found, None


def test_items_come_in_order_and_the_next_is_made_meanwhile():
    begun = threading.Event()

    def items():
        yield 0
        begun.set()
        yield 1

    source = ahead(items())
    assert next(source) == 0
    assert begun.wait(60)
    assert list(source) == [1]
    assert list(ahead([])) == []


def test_an_error_comes_behind_the_items_before_it():
    assert taken(ahead(numbers(3, OSError("end")))) == ([0, 1, 2], "end")


@pytest.mark.parametrize("count", [0, 1, 2, 7])
def test_results_are_in_the_order_of_the_items(count):
    assert taken(mapped(squared, numbers(count))) == ([n**2 for n in range(count)], None)


@pytest.mark.parametrize(("count", "given", "error"), [(5, 5, "end"), (8, 7, "seven"), (20, 7, "seven")])  # fmt: skip
def test_the_first_error_in_that_order_is_raised_after_what_is_before_it(count, given, error):
    found = taken(mapped(squared, numbers(count, OSError("end"))))
    assert found == ([n**2 for n in range(given)], error)


def test_some_are_under_way_at_a_time_and_no_more(monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda process: set(range(64)))
    made, used = [], []

    def items():
        for number in range(40):
            made.append(number)
            yield number

    for number in mapped(lambda number: number, items()):
        used.append(number)
        # Four threads' and the one that is used; the next is asked for later.
        assert len(made) - len(used) <= 5
    assert used == list(range(40))


def test_results_that_nobody_takes_end_the_work():
    begun = []
    results = mapped(begun.append, iter(range(1000)))
    next(results)
    results.close()
    assert len(begun) < 10


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
    with pytest.raises(RuntimeError) as caught:
        list(impatient(_exit_elsewhere, [os.getpid()] * 9, workers=2))
    as_expected(str(caught.value))
