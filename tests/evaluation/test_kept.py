"""What evaluations keep for later ones: bounds of inverted tests."""

import numpy as np

from engine.evaluation.kept import bounds_kept
from engine.statistics import methods


def test_bounds_are_found_again_by_the_same_code_on_the_same_numpy(tmp_path, monkeypatch):
    def bounds():
        methods.BOUNDS.clear()
        with bounds_kept():
            sides = np.tile([0.0, 1.0], 6), np.repeat([0.0, 1.0], 6)
            return [*map(tuple, methods.inverted(*sides, confidence=0.9, draws=400, seed=1))]

    def other(*_):
        return (-1, 1), (-1, 1)

    monkeypatch.setenv("ERAG_CACHE", str(tmp_path))
    computed = methods._inverted
    found = bounds()
    monkeypatch.setattr(methods, "_inverted", other)
    assert bounds() == found != [*other()]
    (file,) = (tmp_path / "bounds").iterdir()
    file.write_text("{")  # damaged
    assert bounds() == [*other()]
    monkeypatch.setattr(methods, "_inverted", computed)
    monkeypatch.setattr(np, "__version__", "another")
    assert bounds() == found
    assert len([*(tmp_path / "bounds").iterdir()]) == 2
