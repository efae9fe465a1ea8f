from typing import get_args

from engine.report import layout
from engine.statistics.methods import Method


def cell(method, low=0.0):
    return {"tau": 0.1, "tau_low": low, "tau_high": 0.2, "method": method}


def test_an_interval_says_which_method_made_it():
    assert layout.interval(cell("inverted"), "tau") == "0.10 [0.00, 0.20] i"
    assert layout.interval(cell(""), "tau") == "0.10 [0.00, 0.20]"
    assert layout.interval(cell("", low=float("nan")), "tau") == "0.10"
    assert layout.methods_line(["studentized", "", "percentile", "studentized"]) == (
        "intervals: p percentile of resamples, s studentized"
    )
    assert layout.methods_line([""]) == ""


def test_every_method_has_a_letter_of_its_own():
    names = [*get_args(Method), "permutation", "resampling", "bca"]
    letters = {layout.letter(name) for name in names}
    assert len(letters) == len(names) == len(layout._METHODS)
