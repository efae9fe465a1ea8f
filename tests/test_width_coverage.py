"""The study of what ``--width`` stops at: its numbers of lists are those of the engine's rule."""

import numpy as np
import pytest

from benchmarks.width_coverage import LEVEL, Cell, Sample, covered
from engine.statistics.sampled_lists import Estimate


@pytest.mark.parametrize("pair", [False, True])
def test_reaches_are_foreseen_as_the_engine_computes_them(pair):
    sample = Sample(Cell(0.1, True, pair, 400, 1.5, 0.85, 1), np.random.default_rng(1))
    foreseen = sample.estimate(np.arange(400), 60)
    exact = Estimate(foreseen.known, foreseen.foretold, foreseen.f, foreseen.low, foreseen.high)
    for n, doubt in ((60, 0.0), (95, 1.28), (230, 0.0)):
        found, wanted = (one.reaches(LEVEL, n, 400, doubt) for one in (foreseen, exact))
        assert np.array(found) == pytest.approx(np.array(wanted), rel=0.01)


def test_replays_are_held_or_missed_on_a_side():
    found = covered(Cell(0.3, False, False, 60, 1.5, 0.85, 3))
    assert found["held"] + found["low"] + found["high"] == 3
    assert 40 <= found["lists"] <= 60
