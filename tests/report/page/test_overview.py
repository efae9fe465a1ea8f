"""The words and tables at the top of a page."""

import csv
import io
import re
from dataclasses import replace

import pytest

from engine.report import verdict
from engine.report.findings import read_findings
from engine.report.layout import Grid, typeset_grid
from engine.report.page import overview, render
from tests.expected import as_expected


@pytest.fixture(scope="module")
def findings(folder):
    return read_findings(folder, None)


def grids(findings):
    return {grid.name: typeset_grid(grid) for grid in overview.overview_grids(findings)}


def test_the_answer_is_the_printed_verdict(findings):
    said = overview.answer(findings)
    sentences = findings.summary["verdict"]["sentences"]
    assert said.headline == "Choose good."
    assert f"{said.headline} {said.reasons[0]}" == sentences[0]
    facts = dict(said.facts)
    assert facts["LLM calls"].startswith("80 distinct, 0 cached")
    as_expected(said.about)


@pytest.mark.parametrize(
    ("low", "most_lost", "figures"),
    [(0.0209, None, {"0.775", "0.021", "0.892"}), (-0.036, 0.29, {"0.036", "0.290"}), (-0.05, 0.05, {"0.050"}), (None, None, set())],
    ids=["clear", "undecided", "tie", "unknown"],
)  # fmt: skip
def test_a_decision_says_once_what_a_choice_may_cost(findings, low, most_lost, figures):
    known, (lead,) = findings.summary["verdict"], findings.summary["verdict"]["leads"]
    lead = lead | {"low": low, "significant": most_lost is None}
    changed = known | {"leads": [lead], "undecided": ["poor"] * bool(most_lost)}
    changed |= {"most_lost": most_lost}
    lost = verdict.loss(changed, 0.95)
    changed["sentences"] = [*known["sentences"], f"Plan for more. {lost}"]
    changed = replace(findings, summary=findings.summary | {"verdict": changed})
    said = overview.answer(changed)
    assert {*re.findall(r"0\.\d+", said.decision)} == figures
    as_expected(said.decision)
    assert said.reasons[-1] == "Plan for more."
    assert overview.verdict_of(changed)[-1].strip() == f"Plan for more. {lost}".strip()


def test_the_leaderboard_has_means_with_intervals_and_the_distance_to_the_best(findings):
    grid = grids(findings)["runs"]
    as_expected(grid.head)
    good, poor = grid.rows
    # 26 of 40 passages say Ann, and the reader says so of 5 more (d3, d30, d33, d36, d39).
    assert good[:2] == ["good", "0.775 [0.615,\N{NO-BREAK SPACE}0.892]"]
    assert good[2] == "\N{EM DASH}"
    assert poor[0] == "poor <&>"
    assert poor[2].startswith("\N{MINUS SIGN}0.775 [\N{MINUS SIGN}")
    assert poor[5] == "40"


def test_agreement_shows_the_best_measure_of_each_annotator(findings):
    rows = {row[0]: row for row in grids(findings)["agreement"].rows}
    cell = findings.agreement("erag")
    assert rows["erag"][1] == cell["measure"]
    assert rows["erag"][2].startswith(f"{cell['tau']:.2f}")


def test_tables_are_written_for_papers_and_programs():
    grid = Grid("t", "50% of a_b", ["run", "x"], [["a|b_c & <d>", "\N{MINUS SIGN}0.1"]])
    assert render.markdown(grid).splitlines() == [
        "| run | x |",
        "| --- | ---: |",
        "| a\\|b_c & &lt;d> | \N{MINUS SIGN}0.1 |",
        "",
        "50% of a_b",
    ]
    text = render.latex(grid)
    assert r"a\textbar{}b\_c \& \textless{}d\textgreater{} & $-$0.1 \\" in text
    assert r"\caption{50\% of a\_b.}" in text
    assert list(csv.reader(io.StringIO(render.comma_separated(grid)))) == [grid.head, *grid.rows]


def test_the_cost_tells_the_memory_of_actors_where_the_summary_does(findings):
    def cost(findings):
        return dict(overview.answer(findings).facts)["LLM calls"]

    assert ("MiB" in cost(findings)) == bool(findings.summary["reading"]["workers"])
    reading = {key: value for key, value in findings.summary["reading"].items() if key != "workers"}
    before = replace(findings, summary=findings.summary | {"reading": reading})
    assert grids(before)["costs"].rows == grids(findings)["costs"].rows
    assert "MiB" not in cost(before)
