"""Simulations of intervals: a cell of each study runs, and those that the documentation cites are there."""

import json
from dataclasses import replace

import numpy as np
import pytest
import scipy.stats

from benchmarks import intervals
from benchmarks._simulated import MEASURES, correlation_for, true_correlations
from benchmarks.intervals import CELLS, QUICK, computed, faults, main

# Of docs/methods.md, by what is said there.
CITED = {
    "intervals of tau, from 19 queries and 3% right answers on": "tau 19 0.03 nDCG 0 right",
    "F1 that is mostly 0": "tau 120 0.05 hit 0.2 0.3 F1",
    "sizes of tests of differences": "difference 64 0.1 P@10 nDCG spread",
    "few right answers": "difference 60 4 right P@10 nDCG spread",
    "40 articles of five questions": "clusters 40 5 0.9 P@10 right 0.3",
    "12 clusters with nearly one answer each": "clusters 12 5 0.9 nDCG F1 0.3",
    "runs nearly alike": "alike equal means 0.06 300",
    "ten equal runs with 5% right answers and 64 queries": "several 10 equal runs, 5% right 64",
    "gates": "gate ties, and the candidate wrong alone 0.02 300",
    "power of planned numbers of queries": "plan the best of four, 30%, others 20% right",
    "lists for a width": "width 0.03 graded pair 400 1.5 0.85",
    "1,500 queries with 3% right answers": "width 0.03 1500 1.5 0.85",
    "what people are asked": "ask nearly alike, labels right in 70% 30",
    "tasks in replays": "ask replay of FiD, bm25 and noise30 120",
}


@pytest.mark.parametrize("name", CITED.values(), ids=CITED)
def test_a_cited_cell_is_there(name):
    assert CELLS[name].samples >= 25


def test_there_are_as_many_cells_as_are_cited():
    kinds = [name.split()[0] for name in CELLS]
    counts = {kind: kinds.count(kind) for kind in dict.fromkeys(kinds)}
    assert counts["tau"] == 192 + 72
    assert counts["difference"] == 336 + 66
    assert (counts["clusters"], counts["alike"], counts["several"]) == (27, 60, 24)


@pytest.mark.parametrize("name", ["difference 19 0.1 Success P@10 none", *QUICK])
def test_a_cell_of_each_study_holds(name, monkeypatch, tmp_path):
    few = max(10, QUICK.get(name, 100) // 5)
    monkeypatch.setattr(intervals, "CELLS", {name: CELLS[name]})
    report = tmp_path / "report.json"
    assert main(["--cells", name, "--samples", str(few), "--json", str(report)]) == 0
    ((cell,), (line,)) = (json.loads(report.read_text())[key] for key in ("cells", "page"))
    assert cell["cell"] == name
    assert line["figure"] == "0 of 1"
    assert all(count <= few for _, count in cell["figures"].values())


def test_a_share_beyond_its_limit_is_a_fault_where_chance_does_not_explain_it():
    cell = CELLS["alike alike 0.06 100"]
    found = {"holds": [0.95, 2000], "first": [0.02, 2000], "second": [0.02, 2000]}
    assert not faults(cell, found)
    assert faults(cell, found | {"holds": [0.93, 2000]}) == ["holds"]
    assert not faults(cell, found | {"holds": [0.93, 100]})
    assert faults(cell, found | {"second": [0.05, 2000]}) == ["second"]


def test_saved_cells_are_not_computed_again(tmp_path):
    saved = tmp_path / "cells.jsonl"
    cells = [replace(CELLS[f"several 2 equal runs, 5% right {n}"], samples=3) for n in (19, 64)]
    first = dict(computed(cells, saved, workers=1))
    with saved.open("a") as file:
        file.write('["half a line')  # killed while it wrote
    changed = saved.read_text().replace('"all": [1.0', '"all": [0.5', 1)
    saved.write_text(changed)
    again = dict(computed(cells, saved, workers=1))
    assert sorted(found["all"][0] for found in again.values()) == [0.5, 1.0]
    assert len(first) == len(saved.read_text().splitlines()) == 2


@pytest.mark.parametrize("measure", MEASURES)
def test_the_true_values_are_those_of_a_large_sample(measure):
    r = correlation_for(measure, 0.1, 0.3)
    cell = replace(CELLS[f"tau 1000 0.1 {measure} 0.3 right"], n=200_000)
    x, y = cell.draw(np.random.default_rng(0), r)
    tau, rho = true_correlations(measure, 0.1, r)
    assert tau == pytest.approx(scipy.stats.kendalltau(x, y).statistic, abs=0.008)
    assert rho == pytest.approx(scipy.stats.spearmanr(x, y).statistic, abs=0.008)
