"""Large models are loaded on one machine one after another, and small ones as they come."""

import threading

from engine.machine.turns import LARGE, loading_turn


def most_at_once(weights, folder):
    """The most of three loads that are under way at the same time."""
    begun = threading.Semaphore(0)
    go_on = threading.Event()
    together, seen = [], []
    changing = threading.Lock()

    def load():
        with loading_turn(weights, folder):
            with changing:
                together.append(1)
                seen.append(len(together))
            begun.release()
            go_on.wait()
            with changing:
                together.pop()

    loads = [threading.Thread(target=load) for _ in range(3)]
    for one in loads:
        one.start()
    begun.acquire()
    if weights < LARGE:
        begun.acquire()
        begun.acquire()
    go_on.set()
    for one in loads:
        one.join()
    return max(seen), len(seen)


def test_large_models_take_turns(tmp_path):
    assert most_at_once(LARGE, tmp_path) == (1, 3)


def test_small_models_do_not(tmp_path):
    assert most_at_once(LARGE - 1, tmp_path) == (3, 3)


def test_a_lock_that_cannot_be_made_stops_nobody(tmp_path):
    with loading_turn(LARGE, tmp_path / "missing"):
        pass
