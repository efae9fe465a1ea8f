"""The table of queries, its filters, and the scripts that stand behind it."""

import json
import re

import pytest

from engine.evaluation.inputs import InputFiles, read_inputs
from engine.report.findings import Sources, read_findings
from engine.report.page.queries import as_json, escaped, filters, parts
from tests.report.page.results import SCRIPT


@pytest.fixture(scope="module")
def findings(folder):
    given = folder.parent
    files = InputFiles(
        queries=given / "q.jsonl",
        corpus=given / "c.parquet",
        run=(given / "de.parquet", given / "ed.parquet"),
    )
    inputs = read_inputs(files, k=2)
    return read_findings(folder, Sources(inputs.queries, inputs.corpus, inputs.runs))


def of(script):
    """The details that a script hands to the page."""
    content = re.fullmatch(r"details\(\d+, (.*)\);\n", script, re.DOTALL)[1]
    return json.loads(content)


def test_every_query_has_its_scores_labels_and_kinds(findings):
    (part,) = parts(findings)
    rows = {row.query_id: row for row in part.rows}
    assert len(rows) == 40
    # By hand: d4 says Ann and contains it, e4 says nothing; good gives d4 to the reader, poor e4.
    assert rows["q04"].scores == [1.0, 0.0]
    assert rows["q04"].measures == [1.0, 0.0]
    assert (rows["q04"].useful, rows["q04"].holding) == (1, 1)
    assert rows["q04"].kinds == ["runs_differ"]
    # d6 says Bo; nothing is useful, and nothing contains the answer.
    assert (rows["q06"].scores, rows["q06"].kinds) == ([0.0, 0.0], [])
    # The reader answers Ann of every passage with A<i>3 in its title: of d3, whose text does not hold it.
    assert (rows["q03"].useful, rows["q03"].holding) == (1, 0)
    assert rows["q03"].kinds == ["useful_absent", "runs_differ"]


def test_details_have_lists_labels_outputs_and_texts(findings):
    (part,) = parts(findings)
    found = of(part.script)["q04"]
    assert found["answers"] == ["Ann", "Anne-Marie"]
    assert [run["list"] for run in found["runs"]] == [["d4", "e4"], ["e4", "d4"]]
    assert [run["output"] for run in found["runs"]] == ["Ann", "nothing"]
    title, text, labels = found["passages"]["d4"]
    assert (title, text.strip()) == ("A<i>4", "It is known that one says Ann")
    assert labels["erag"][:3] == [1.0, "Ann", "Ann"]
    assert labels["containment"] == [1.0, None, "Ann"]


def test_no_text_can_end_a_script(findings):
    (part,) = parts(findings)
    assert "<" not in part.script
    assert SCRIPT in of(part.script)["q00"]["passages"]["d0"][1]
    assert escaped("</script>\u2028") == "\\u003c/script>\\u2028"


def test_the_table_begins_with_the_greatest_disagreement(findings):
    (part,) = parts(findings)
    content = as_json(part.rows, findings)
    assert content["measure"] == "erag P@1"
    assert content["runs"] == ["good", "poor <&>"]
    assert [one[0] for one in content["filters"]] == [one.key for one in filters(findings)]
    ordered = sorted(part.rows, key=lambda row: -row.disagreement)
    assert [query[0] for query in content["queries"]] == [row.query_id for row in ordered]
    # The last number of a row says which filters let it through, a bit each.
    bits = {query[0]: query[6] for query in content["queries"]}
    keys = [one[0] for one in content["filters"]]
    assert bits["q03"] == (1 << keys.index("useful_absent")) + (1 << keys.index("runs_differ"))


def test_without_passages_there_are_rows_and_no_details(folder):
    (part,) = parts(read_findings(folder, None))
    assert part.script == ""
    assert {row.part for row in part.rows} == {0}
    assert [one.key for one in filters(read_findings(folder, None))] == ["runs_differ"]


def test_of_more_queries_than_the_table_holds_those_of_least_disagreement_are_left_out(
    folder, monkeypatch
):
    findings = read_findings(folder, None)
    (whole,) = parts(findings)
    monkeypatch.setattr("engine.report.page.queries.MOST_QUERIES", 7)
    (part,) = parts(findings)
    assert part.left_out == 33
    most = sorted((row.disagreement for row in whole.rows), reverse=True)[:7]
    assert sorted((row.disagreement for row in part.rows), reverse=True) == most
    assert as_json(part.rows, findings, part.left_out)["left_out"] == 33
