"""The searches of an agent on the page: above the list of their run, in the details of a query."""

import json
import re

import pytest

from engine import tables
from engine.evaluation.evaluate import evaluate
from engine.evaluation.settings import Settings
from engine.inputs.read import read_inputs
from engine.report.page import remake
from engine.report.traces import with_traces
from jobs import _evaluating
from tests.conftest import ScriptedReader
from tests.report.page.results import SCRIPT, say_last, write_inputs
from tests.tables import framed

make_page = remake.make_page
MANY = 10_000


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    """The results of two runs, one of them of traces: q00 with a script for a search, q01 with very many searches."""
    folder = tmp_path_factory.mktemp("traced")
    inputs = read_inputs(write_inputs(folder), k=2)
    settings = Settings.of(k=2, measures="P@1", resamples=0, relevant="pool")
    reader = ScriptedReader(say_last)
    result = evaluate(inputs, settings, store=folder / "store", executor=reader)
    of_q04 = [
        ("good", "q04", 1, "first", ["e4"]),
        ("good", "q04", 2, "second", ["d4", "e4", "far"]),
    ]
    rows = [("good", "q00", 1, SCRIPT, ["d0"]), *of_q04]
    rows += [("good", "q01", number, "again", ["d1"]) for number in range(1, MANY + 1)]
    result = with_traces(result, framed(rows, tables.STEPS), [])
    found = _evaluating.results.write_results(result, {}, folder / "out")
    make_page(found, folder / "out")
    return folder / "out"


def test_details_have_the_searches_of_their_query_up_to_a_number(out):
    script = (out / "report" / "queries-0001.js").read_text()
    assert len(script) < 200_000
    found = json.loads(re.fullmatch(r"details\(\d+, (.*)\);\n", script, re.DOTALL)[1])
    shown = {
        query_id: {len(run.get("steps", ())): run.get("taken") for run in of_query["runs"]}
        for query_id, of_query in found.items()
    }
    assert (shown["q00"], shown["q01"], shown["q02"]) == (
        {1: 1, 0: None},
        {50: MANY, 0: None},
        {0: None},
    )
    steps = next(run["steps"] for run in found["q04"]["runs"] if "steps" in run)
    assert steps == [["first", ["e4"], False], ["second", ["d4", "e4", "far"], True]]


def test_a_query_opens_with_the_searches_of_its_trace(browser, out):
    with browser.new_context() as context:
        page, faults = context.new_page(), []
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.goto((out / "report.html").as_uri() + "#query=q04")
        trace = page.locator("#dialog details", has_text="Trace:")
        assert trace.count() == 1
        searches = trace.locator(".passage")
        assert searches.all_inner_texts() == [
            "Search 1: first\nB4 \u2717 erag",
            "Search 2: second\nfirst useful passage\nA<i>4 \u2713 erag\nB4 seen before \u2717 erag\nfar",
        ]
        assert trace.locator(":scope > p").inner_text() == "Answer: Ann"
        page.goto((out / "report.html").as_uri() + "#query=q01")
        page.reload()
        assert (
            "9,950 more searches" in page.locator("#dialog details", has_text="Trace:").inner_text()
        )
        page.goto((out / "report.html").as_uri() + "#query=q00")
        page.reload()
        assert SCRIPT in page.locator("#dialog .passage h4").first.inner_text()
        assert faults == []
