"""The study of intervals: what it calls a fault, that it goes on, and a quick grid of it."""

import json

import numpy as np
import pytest
import scipy.stats

from benchmarks._cells import beyond, figures_of
from benchmarks._simulated import MEASURES, correlation_for, draw, true_correlations
from benchmarks.interval_coverage import Cell, cells_of, faults, main

CELL = Cell(64, 0.3, "nDCG", "0", "right", 2000, 1000)


def figures(held, printed=2000, withheld=0, many=None):
    many = printed if many is None else many
    holds = dict.fromkeys(("tau", "rho"), held) | dict.fromkeys(
        ("tau of many", "rho of many"), held
    )
    return {
        "methods": {"studentized": printed, "none": 2000 - printed},
        "holds": holds, "withheld": withheld, "many": many,
    }  # fmt: skip


def test_faults_are_what_chance_does_not_explain():
    assert not list(faults(CELL, figures(1900)))
    assert not list(faults(CELL, figures(1840)))  # 92.0%, with an interval that reaches 93%
    assert any("held in 91.0%" in fault for fault in faults(CELL, figures(1820)))
    assert any("98.5% of samples not inverted" in fault for fault in faults(CELL, figures(1970)))
    # Two binary sides may be held more often, and cells that print nothing have nothing to hold.
    assert not list(faults(CELL, figures(1970, many=0)))
    assert not list(faults(CELL, figures(0, printed=0)))
    assert list(faults(CELL, figures(1000, printed=1000, withheld=3)))
    assert not beyond(0, 0, least=0.9)


def test_figures_are_saved_cell_by_cell_and_not_computed_again(tmp_path):
    saved = tmp_path / "cells.jsonl"
    cells = cells_of(quick=True, extreme=False, samples=1, draws=1)
    asked = []

    def compute(cell):
        asked.append(cell)
        if len(asked) == 3:
            raise RuntimeError("stopped")
        return {"n": cell.n}

    with pytest.raises(RuntimeError):
        list(figures_of(cells, compute, saved, workers=1))
    with saved.open("a") as file:
        file.write('{"cell": {"n": 1')  # killed while it wrote
    assert len(list(figures_of(cells, compute, saved, workers=1))) == len(cells)
    assert asked == [*cells[:3], *cells[2:]]
    again = list(figures_of(cells, compute, saved, workers=1))
    assert [row["n"] for _, row in again] == [cell.n for cell in cells]
    assert len(asked) == len(cells) + 1


@pytest.mark.parametrize("measure", MEASURES)
def test_the_true_values_are_those_of_a_large_sample(measure):
    r = correlation_for(measure, 0.1, 0.3)
    tau, rho = true_correlations(measure, 0.1, r)
    x, y = draw(np.random.default_rng(0), 200_000, measure, 0.1, r)
    assert tau == pytest.approx(scipy.stats.kendalltau(x, y).statistic, abs=0.008)
    assert rho == pytest.approx(scipy.stats.spearmanr(x, y).statistic, abs=0.008)


@pytest.mark.slow
def test_a_quick_grid_has_no_fault(tmp_path, capsys):
    report = tmp_path / "coverage.json"
    assert main(["--quick", "--json", str(report)]) == 0
    assert "0 of 4 cells fail" in capsys.readouterr().out
    methods = [set(cell["figures"]["methods"]) for cell in json.loads(report.read_text())["cells"]]
    assert {"inverted", "studentized"} <= set.union(*methods)
