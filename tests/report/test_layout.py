from typing import get_args

import pytest

from engine.report import layout
from engine.report.layout import Grid, typeset, typeset_grid
from engine.statistics.methods import Method
from tests.expected import as_expected


def cell(method, low=0.0):
    return {"tau": 0.1, "tau_low": low, "tau_high": 0.2, "method": method}


def test_an_interval_says_which_method_made_it():
    assert layout.interval(cell("inverted"), "tau") == "0.10 [0.00, 0.20] i"
    assert layout.interval(cell(""), "tau") == "0.10 [0.00, 0.20]"
    assert layout.interval(cell("", low=float("nan")), "tau") == "0.10"
    as_expected(layout.methods_line(["studentized", "", "percentile", "studentized"]))
    assert layout.methods_line([""]) == ""


def test_every_method_has_a_letter_of_its_own():
    names = [*get_args(Method), "permutation", "resampling", "bca"]
    letters = {layout.interval(cell(name), "tau") for name in names}
    assert len(letters) == len(names) == len(layout.METHODS)


@pytest.mark.parametrize(
    ("figure", "shown"),
    [
        (
            "-0.10 [-0.30, +0.10] i",
            "\N{MINUS SIGN}0.10 [\N{MINUS SIGN}0.30,\N{NO-BREAK SPACE}+0.10] i",
        ),
        ("12,345", "12,345"),
        ("P-1 of a-2", "P-1 of a-2"),
        ("", "\N{EM DASH}"),
    ],
)
def test_figures_have_minus_signs_and_stay_in_a_line(figure, shown):
    assert typeset(figure) == shown


def test_names_stay_as_they_are():
    grid = typeset_grid(Grid("t", "", ["run", "x"], [["-1, a", "-1"], ["", ""]]))
    assert grid.rows == [["-1, a", "\N{MINUS SIGN}1"], ["", "\N{EM DASH}"]]
