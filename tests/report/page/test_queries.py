"""The table of queries, its filters, and the scripts that stand behind it."""

import json
import re
from dataclasses import replace

import polars as pl
import pytest

from engine.inputs.files import InputFiles
from engine.inputs.read import read_inputs
from engine.report.findings import read_findings
from engine.report.page.overview import WORDS, sections, slices, slices_grid
from engine.report.page.queries import as_json, escaped, filters, parts
from tests.expected import as_expected
from tests.report.made import as_earlier
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
    return read_findings(folder, inputs)


def of(script):
    """The details that a script hands to the page."""
    content = re.fullmatch(r"details\(\d+, (.*)\);\n", script, re.DOTALL)[1]
    return json.loads(content)


def test_every_query_has_its_scores_labels_and_kinds(findings):
    ((rows, script),) = parts(findings)
    rows = {row.query_id: row for row in rows}
    assert len(rows) == 40
    # By hand: d4 says Ann and contains it, e4 says nothing; good gives d4 to the reader, poor e4.
    assert rows["q04"].scores == [1.0, 0.0]
    assert rows["q04"].measures == [1.0, 0.0]
    assert (rows["q04"].useful, rows["q04"].holding) == (1, 1)
    assert rows["q04"].kinds == []
    assert (rows["q04"].answers, rows["q04"].outputs) == ("Ann +1 more", ["Ann", "nothing"])
    # d6 says Bo; nothing is useful, and nothing contains the answer.
    assert (rows["q06"].scores, rows["q06"].kinds) == ([0.0, 0.0], [])
    # The reader answers Ann of every passage with A<i>3 in its title: of d3, whose text does not hold it.
    assert (rows["q03"].useful, rows["q03"].holding) == (1, 0)
    assert rows["q03"].kinds == ["useful_absent"]


def test_details_have_lists_labels_outputs_and_texts(findings):
    ((rows, script),) = parts(findings)
    found = of(script)["q04"]
    assert found["answers"] == ["Ann", "Anne-Marie"]
    assert [run["list"] for run in found["runs"]] == [["d4", "e4"], ["e4", "d4"]]
    assert [run["output"] for run in found["runs"]] == ["Ann", "nothing"]
    title, text, labels, _ = found["passages"]["d4"]
    assert (title, text.strip()) == ("A<i>4", "It is known that one says Ann")
    assert labels["erag"][:3] == [1.0, "Ann", "Ann"]
    assert labels["containment"] == [1.0, None, "Ann"]


def test_no_text_can_end_a_script(findings):
    ((rows, script),) = parts(findings)
    assert "<" not in script
    assert SCRIPT in of(script)["q00"]["passages"]["d0"][1]
    assert escaped("</script>\u2028") == "\\u003c/script>\\u2028"


def test_every_call_has_its_tokens_and_the_prompt_whose_text_was_sent(findings):
    ((rows, script),) = parts(findings)
    found = of(script)["q04"]
    _, _, labels, calls = found["passages"]["d4"]
    reads = findings.table("reads").filter(query_id="q04")
    tokens = {tuple(ids): n for ids, n in reads.select("doc_ids", "prompt_tokens").iter_rows()}
    # Of the prompt of the first role, the reader: the trace of erag leads to its one call, the last of its values.
    assert labels["erag"][4] == 1
    assert calls == [[0, tokens[("d4",)], 1, 0]]
    assert [run["call"][:2] for run in found["runs"]] == [
        [0, tokens[("d4",)]],
        [0, tokens[("e4",)]],
    ]
    # With another prompt in the record, no call is taken for one of its.
    other = json.loads(json.dumps(dict(findings.summary)))
    other["reader"]["prompt_parts"]["tail"] = "!"
    ((rows, script),) = parts(replace(findings, summary=other))
    assert [run["call"][0] for run in of(script)["q04"]["runs"]] == [None, None]


@pytest.mark.parametrize("seconds", [0.41237, None, "no column"])
def test_a_call_has_its_own_seconds_where_they_are_known(findings, tmp_path, seconds):
    reads = findings.table("reads")
    own = (pl.col("query_id") == "q04") & (pl.col("doc_ids").list.join(" ") == "d4")
    timed = pl.when(own).then(seconds if seconds != "no column" else None).otherwise(None)
    reads = reads.with_columns(timed.cast(pl.Float64).alias("seconds"))
    if seconds == "no column":  # results of an earlier version
        reads = reads.drop("seconds")
    for path in findings.folder.glob("*.*"):
        (tmp_path / path.name).symlink_to(path)
    (tmp_path / "reads.parquet").unlink()
    reads.write_parquet(tmp_path / "reads.parquet")
    summary = as_earlier(findings.summary)
    ((rows, script),) = parts(replace(findings, folder=tmp_path, summary=summary))
    (call,) = of(script)["q04"]["passages"]["d4"][3]
    assert call[3:] == ([0, None, 0.4124] if seconds == 0.41237 else [0])


def test_seconds_of_a_kind_are_those_of_readers_that_read_in_batches(findings):
    costs = {
        "single": {"done": 8, "reader_seconds": 2.0},
        "whole": {"done": 0, "reader_seconds": 0.0},
    }
    reader, reading = dict(findings.summary["reader"]), {"kinds": costs}
    known = replace(findings, summary={**findings.summary, "reading": reading})
    assert as_json([], known)["seconds"] == {"single": 0.25}
    served = replace(known, summary={**known.summary, "reader": reader | {"api": {"host": "h"}}})
    assert as_json([], served)["seconds"] == {}


def test_the_table_begins_with_queries_in_which_runs_differ(findings):
    made = slices(findings)
    ((rows, script),) = parts(findings, made)
    content = as_json(rows, findings, made)
    assert content["measure"] == "erag P@1"
    assert content["runs"] == ["good", "poor <&>"]
    assert content["filters"] == filters(findings)
    differ = [query[2][0] != query[2][1] for query in content["queries"]]
    assert differ == sorted(differ, reverse=True)
    assert 0 < sum(differ) < 40
    # One number of a row says which filters let it through, a bit each.
    bits = {query[0]: query[6] for query in content["queries"]}
    assert bits["q03"] == 1 << content["filters"].index("useful_absent")
    assert content["slices"][0] == ["type", ["<i>odd", "even"]]
    assert {query[0]: query[10][0] for query in content["queries"]}["q04"] == 1


def test_queries_are_grouped_by_the_fields_of_their_file(findings):
    made = {one.field: one for one in slices(findings)}
    # All 40 questions have three words, so that their length makes no groups.
    assert list(made) == ["type", "length", "day"]
    assert WORDS not in made
    assert made["length"].names == ["0 to 9", "10 to 19", "20 to 29", "30 to 39"]
    assert made["day"].names == ["2000", "2001", "2002", "2003"]
    grid = slices_grid(findings, list(made.values()))
    rows = {tuple(row[:2]): row[2:] for row in grid.rows}
    # By hand: good answers unless i is a multiple of 3 but for 3 itself and 30 to 39, whose titles begin with A<i>3.
    odd = [i for i in range(1, 40, 2) if i % 3 or str(i)[0] == "3"]
    n, good, poor = rows["type", "<i>odd"]
    assert n == "20"
    assert good.startswith(f"{len(odd) / 20:.3f} [")
    assert poor.startswith("0.000 [0.000, ")
    assert slices(replace(findings, sources=None)) == []


def test_groups_of_few_queries_and_fields_with_one_other_are_left_out(findings):
    rare = {f"q{i:02}": {"rare": "yes" if i < 4 else "no"} for i in range(40)}
    fields = {one: of | {"year": str(7 + int(one[1:]) % 5)} for one, of in rare.items()}
    made = slices(replace(findings, sources=replace(findings.sources, fields=fields)))
    grid = slices_grid(findings, made)
    # Eight queries have each of 7 to 11: the quartiles are 8, 9 and 10.
    assert [row[:3] for row in grid.rows] == [
        ["year", name, n] for name, n in (("7", "8"), ("8", "8"), ("9", "8"), ("10 to 11", "16"))
    ]
    as_expected(grid.caption)
    alone = replace(findings, sources=replace(findings.sources, fields=rare))
    assert "groups" not in {part.name for part in sections(alone, slices(alone))}


def test_without_passages_there_are_rows_and_no_details(folder):
    ((rows, script),) = parts(read_findings(folder, None))
    assert script == ""
    assert {row.part for row in rows} == {0}
    assert filters(read_findings(folder, None)) == []


def test_of_more_queries_than_the_table_holds_the_last_are_left_out(folder, monkeypatch):
    findings = read_findings(folder, None)
    ((whole, _),) = parts(findings)
    table = as_json(whole, findings)
    assert table["left_out"] == 0
    monkeypatch.setattr("engine.report.page.queries.MOST_QUERIES", 7)
    ((rows, script),) = parts(findings)
    assert len(rows) == 7
    assert as_json(rows, findings) == {
        **table,
        "left_out": 33,
        "queries": table["queries"][:7],
    }
