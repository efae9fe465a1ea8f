"""Several data sets in one table."""

import math

import polars as pl
import pytest

from engine import tables
from engine.report import across_data_sets as across
from engine.statistics.correlation import Bootstrap
from engine.tables import TAU, p_holm_of
from tests.expected import as_expected


def rows(schema, *given):
    """A table of the columns that matter here; the others are NaN, empty or false."""
    usual = {pl.Float64(): math.nan, pl.String(): "", pl.Int64(): 10, pl.Boolean(): False}
    full = [{name: row.get(name, usual[kind]) for name, kind in schema.items()} for row in given]
    return pl.DataFrame(full, schema=schema)


def correlation(annotator, tau, note="", run="bm25", measure="nDCG@5", n=10):
    names = {"run": run, "annotator": annotator, "measure": measure, "note": note, "n": n}
    return {**names, "k": 5, "tau": tau, "rho": tau / 2}


def comparison(rival, difference, p, run="bm25", measure="nDCG@5", run_b=None):
    names = {"run": run, "run_b": run_b or run, "annotator": "erag", "annotator_b": rival}
    figures = {"tau_difference": difference, "tau_p": p, "rho_p": p, "tau_p_holm": 0.0}
    more = {"measure": measure, "measure_b": measure, "k": 5, "method": "permutation"}
    return {**names, **more, **figures}


def cell(data_set, correlations, comparisons, **other):
    annotators = dict.fromkeys(row["annotator"] for row in correlations)
    known = {
        "data_set": data_set,
        "reader": "llm",
        "augmentation": "in-prompt",
        "task": "short-answer",
        "queries": 10,
        "primary": dict.fromkeys(annotators, "nDCG@5"),
        "correlations": rows(tables.CORRELATIONS, *correlations),
        "comparisons": rows(tables.COMPARISONS, *comparisons),
    }
    return across.Cell(**known | other)


@pytest.fixture
def found():
    nq = cell(
        "nq",
        [
            correlation("erag", 0.5),
            correlation("erag", 0.3, measure="P@5"),
            correlation("containment", 0.2),
            correlation("judge", 0.1, n=9),
        ],
        [
            comparison("containment", 0.3, 0.01),
            comparison("judge", 0.4, 0.02),
            comparison("judge", 0.4, 0.001, measure="P@5"),
            comparison("judge", 0.1, 0.001, run_b="dense"),
        ],
    )
    claims = cell(
        "claims",
        [correlation("erag", 0.1), correlation("judge", math.nan, "undefined: all alike")],
        [comparison("judge", math.nan, math.nan)],
        task="claims",
    )
    dense = cell(
        "dense",
        [correlation("erag", 0.1, run="dense"), correlation("judge", 0.2, run="dense")],
        [comparison("judge", -0.1, 0.04, run="dense")],
    )
    return across.together([nq, claims, dense], Bootstrap(resamples=1000))


def test_one_family_of_comparisons_holds_all_data_sets(found):
    # Three tests: 0.01 * 3, 0.02 * 2, and 0.04 * 1 which may not fall below 0.04; NaN does not count.
    corrected = found.comparisons[p_holm_of(TAU)].to_list()
    assert corrected[:2] == pytest.approx([0.03, 0.04])
    assert math.isnan(corrected[2])
    assert corrected[3] == pytest.approx(0.04)
    assert found.tests == 3
    assert found.comparisons["measure"].unique().to_list() == ["nDCG@5"]


def test_rows_are_runs_annotators_and_measures_and_columns_data_sets(found):
    grid = across.grid(found)
    heads = ["nq (n = 10)", "claims (n = 10)", "dense (n = 10)"]
    assert grid.head == ["run", "annotator", "measure", *heads]
    assert grid.rows == [
        ["bm25", "erag", "nDCG@5", "0.50", "0.10", ""],
        ["bm25", "erag", "P@5", "0.30", "", ""],
        ["bm25", "containment", "nDCG@5", "0.20", "", ""],
        ["bm25", "judge", "nDCG@5", "0.10 (n = 9)", "undefined", ""],
        ["dense", "erag", "nDCG@5", "", "", "0.10"],
        ["dense", "judge", "nDCG@5", "", "", "0.20"],
    ]
    assert len(across.grid(found, primary=True).rows) == 5
    assert across.grid(found, "rho").rows[0][3] == "0.25"


def test_empty_and_undefined_cells_have_their_reasons(found):
    said = across.missing_cells(found)
    as_expected(said)
    assert not any(one.startswith("nq, erag") for one in said)


def test_measures_of_other_cutoffs_of_a_data_set_are_not_missing():
    cells = [cell("nq", [correlation("erag", 0.5, measure=f"nDCG@{k}")], []) for k in (2, 4)]
    assert across.missing_cells(across.together(cells, Bootstrap(resamples=0))) == []


def test_the_answer_counts_where_the_first_annotator_is_ahead(found):
    # Of two columns with rivals, nq is led by erag, with p 0.03 and 0.04; in dense the judge is ahead.
    answer = across.answer(found)
    as_expected([answer.headline, *answer.reasons])


def test_conditions_make_rows():
    cells = [
        cell("nq", [correlation("erag", 0.5)], []),
        cell("nq", [correlation("erag", 0.4)], [], reader="other"),
    ]
    grid = across.grid(across.together(cells, Bootstrap(resamples=0)), TAU)
    assert grid.head == ["reader", "run", "annotator", "measure", "nq (n = 10)"]
    assert [(row[0], row[-1]) for row in grid.rows] == [("llm", "0.50"), ("other", "0.40")]


def test_too_few_resamples_for_the_family_are_noted(found):
    # 3 tests, each p at least 1 / 1001: 0.003 after correction; of 100 permutations, 3 / 101 = 0.030.
    few = Bootstrap(resamples=100, confidence=0.98)
    assert across.notes(across.together(found.cells, Bootstrap())) == []
    as_expected(across.notes(across.together(found.cells, few)))
    # Studentized p-values do not depend on how many there are.
    kind = pl.lit("studentized").alias("method")
    known = [one._replace(comparisons=one.comparisons.with_columns(kind)) for one in found.cells]
    assert across.notes(across.together(known, few)) == []
