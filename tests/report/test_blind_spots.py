"""What the answer and the page say of what single labels cannot see, and of where passages stand."""

from pathlib import Path

import polars as pl
import pytest

from engine import tables
from engine.report import grids
from engine.report.findings import Findings
from tests.expected import as_expected

NAN = float("nan")
NO_RHO = "undefined: the label is 0 for every query"
IN_PROMPT = {"best_last": True, "fused": False}


def found(right=(1, 0.0004, 0.08), wrong=(14, 0.12, 0.34), rhos=(), n=64, prompt=IN_PROMPT, tau=0.6, known=None):  # fmt: skip
    """Findings of a run: counts with their bounds, and rho with its bounds by place."""
    counts = {"wrong_despite_label": wrong, "right_without_label": right}
    counts |= {"right_without_passage": known} if known else {}
    unseen = [
        ("bm25", 3, n, name, count / n, low, high, "")
        for name, (count, low, high) in counts.items()
    ]
    why = "undefined: a reason" * (tau != tau)
    unseen.append(("bm25", 3, n, "tau_ceiling", tau, NAN, NAN, why))
    places = [
        ("bm25", 3, place, n, 0.1, *rho, "percentile" if rho[0] == rho[0] else "", "" if rho[0] == rho[0] else NO_RHO)
        for place, rho in enumerate(rhos, 1)
    ]  # fmt: skip
    held = {
        "unseen": pl.DataFrame(unseen, tables.UNSEEN, orient="row"),
        "by_place": pl.DataFrame(places, tables.BY_PLACE, orient="row"),
    }
    settings = {"resamples": 100, "confidence": 0.95, "seed": 0}
    summary = {
        "configuration": settings,
        "means": [{"run": "bm25"}],
        "end_to_end": [],
        "verdict": None,
        "reader": {"prompt_parts": prompt},
    }
    return Findings(summary, Path(), None, held)


def test_the_answer_says_in_words_what_labels_miss_where_that_is_certainly_much():
    as_expected(grids.advice(found()))
    assert grids.advice(found(wrong=(4, 0.02, 0.15))) == []
    as_expected(grids.advice(found(wrong=(0, 0.0, 0.05), known=(20, 0.2, 0.44))))
    # Without intervals the shares themselves decide.
    assert len(grids.advice(found(right=(5, NAN, NAN), wrong=(1, NAN, NAN)))) == 1
    as_expected(grids.advice(found(right=(9, 0.07, 0.25), wrong=(0, 0.0, 0.05))))


LAST = ((0.91, 0.8, 0.96), (0.24, 0.0, 0.4), (0.13, -0.1, 0.3))


@pytest.mark.parametrize(
    ("rhos", "prompt", "is_told"),
    [
        (LAST, IN_PROMPT, True),
        (LAST, {"best_last": False, "fused": False}, True),
        (LAST[::-1], IN_PROMPT, True),
        # In the middle, each by itself, with no reader, within the intervals, or with nothing beside it: no advice.
        ((LAST[1], LAST[0], LAST[2]), IN_PROMPT, False),
        (LAST, {"best_last": True, "fused": True}, False),
        (LAST, {}, False),
        ((LAST[0], (0.5, 0.3, 0.85)), IN_PROMPT, False),
        ((LAST[0], (NAN, NAN, NAN)), IN_PROMPT, False),
    ],
)
def test_an_end_of_the_prompt_that_decides_alone_is_told(rhos, prompt, is_told):
    said = grids.advice(found(wrong=(0, 0.0, 0.05), rhos=rhos, prompt=prompt))
    assert len(said) == is_told
    as_expected(said)


def test_the_tables_have_every_figure_and_a_reason_for_what_has_none():
    grid = grids.unseen(found())
    assert grid.rows == [["bm25", "0.22 [0.12, 0.34]", "0.02 [0.00, 0.08]", "0.60", "64"]]
    known = grids.unseen(found(known=(20, 0.2, 0.44)))
    assert known.rows[0][3] == "0.31 [0.20, 0.44]"
    as_expected(known.head)
    undefined = grids.unseen(found(tau=NAN))
    assert undefined.rows[0][3] == "undefined"
    assert undefined.caption.endswith("bm25: undefined: a reason.")
    places = grids.by_place(found(rhos=(*LAST[:2], (NAN, NAN, NAN))))
    assert places.rows == [
        ["1", "0.100", "0.91 [0.80, 0.96] p", "64"],
        ["2", "0.100", "0.24 [0.00, 0.40] p", "64"],
        ["3", "0.100", NO_RHO, "64"],
    ]
    close = grids.by_place(found(rhos=(LAST[0], (0.5, 0.3, 0.85))))
    as_expected([places.caption, close.caption])


def test_an_evaluation_without_these_tables_has_nothing_to_say():
    """Results of earlier versions, and of annotators that are not the reader's own labels."""
    empty = found()
    for table in empty.frames:
        empty.frames[table] = empty.frames[table].clear()
    assert grids.advice(empty) == []
    assert grids.unseen(empty).rows == grids.by_place(empty).rows == []
