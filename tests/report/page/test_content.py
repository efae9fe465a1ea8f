"""Figures and tables as a page shows them."""

import pytest

from engine.report.layout import Grid
from engine.report.page.content import typeset, typeset_grid


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
