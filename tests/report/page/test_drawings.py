"""Pictures: which figures stand in them."""

import math
from dataclasses import replace

import pytest

from engine.report.findings import read_findings
from engine.report.page.drawings import drawings
from engine.report.page.plotting import add_legend, figure_of, forest
from tests.expected import as_expected


def drawn(drawing):
    """The points, and the bounds of the intervals, of the first series."""
    (axes,) = figure_of(drawing).axes
    (series,) = axes.containers
    points, _, (bars,) = series.lines
    return (
        points.get_xdata().tolist(),
        [tuple(bar[:, 0].tolist()) for bar in bars.get_segments()],
        axes,
    )


def test_a_forest_plot_has_its_rows_from_the_top_and_marks_0():
    rows = [("b", -0.1, -0.3, 0.1), ("c", 0.25, math.nan, math.nan)]
    values, bounds, axes = drawn(forest("f", "t", "c", rows, "difference"))
    assert values == [-0.1, 0.25]
    assert bounds == [pytest.approx((-0.3, 0.1)), (0.25, 0.25)]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["b", "c"]
    assert axes.get_ylim()[0] > axes.get_ylim()[1]
    assert [line.get_xdata() for line in axes.lines if line.get_linestyle() == "--"] == [[0, 0]]


def test_differences_come_first_with_the_intervals_of_the_verdict(folder):
    findings = read_findings(folder, None)
    first, *others = drawings(findings)
    lead = findings.leads["poor <&>"]
    values, bounds, _ = drawn(first)
    assert first.name == "differences"
    assert values == [-lead["difference"]]
    assert bounds == [pytest.approx((-lead["high"], -lead["low"]))]
    as_expected(first.caption)
    tied = findings.summary["verdict"] | {"leads": [lead | {"difference": 0.0}]}
    tied = replace(findings, summary=findings.summary | {"verdict": tied})
    assert next(drawings(tied)).name == "differences"
    assert not [other.caption for other in others if "{" in other.caption]


@pytest.mark.parametrize(("few", "shown"), [(5, True), (30, False)])
def test_a_measure_is_drawn_against_the_score_where_groups_are_large_enough(
    folder, monkeypatch, few, shown
):
    monkeypatch.setattr("engine.report.page.drawings._FEW", few)
    found = {drawing.name: drawing for drawing in drawings(read_findings(folder, None))}
    assert ("measures" in found) == shown
    if shown:
        (axes,) = figure_of(found["measures"]).axes
        assert all(len(of.lines[0].get_xdata()) > 1 for of in axes.containers)


def test_all_of_a_picture_lies_within_it(folder):
    long = [("the run with the longest name of all " * 3, 0.0, -1e-3, 1e3)] * 8
    for drawing in (*drawings(read_findings(folder, None)), forest("f", "t", "c", long, "x")):
        figure = figure_of(drawing)
        inner = figure.get_tightbbox()
        assert min(inner.x0, inner.y0) >= 0
        assert inner.x1 <= drawing.width
        assert inner.y1 <= drawing.height


def test_a_legend_of_long_names_stays_within_the_picture():
    drawing = forest("f", "t", "c", [("a", 0.0, -1.0, 1.0)] * 8, "x")
    figure = figure_of(drawing)
    (axes,) = figure.axes
    for name in ("first " * 12, "second " * 12, "third " * 12):
        axes.plot([0], [0], label=name)
    add_legend(figure, axes, 3)
    figure.draw_without_rendering()
    (legend,) = figure.legends
    box = legend.get_window_extent()
    assert box.x0 >= 0
    assert box.x1 <= figure.bbox.width
