"""``erag gate``: its exit status, and what it says and writes."""

import json
import re
from xml.etree import ElementTree

import pytest

from engine import compare
from tests.commands import erag
from tests.expected import as_expected
from tests.report.made import values, write_evaluation


@pytest.fixture
def gate(tmp_path):
    """Runs the gate on a baseline with 60 right answers and a candidate with others; the exit status."""

    def run(right, *more, first=0, **candidate):
        old = write_evaluation(tmp_path / "main", {"bm25": values(60)})
        new = write_evaluation(tmp_path / "branch", {"bm25": values(right, first)}, **candidate)
        return erag("gate", "--baseline", old, "--candidate", new, "--margin", 0.02, *more)

    return run


@pytest.mark.parametrize(
    ("right", "status", "tag"),
    [(60, 0, "system-out"), (20, 1, "failure"), (57, 3, "error")],
)
def test_the_exit_status_says_whether_the_candidate_may_pass_and_junit_has_it(
    gate, tmp_path, right, status, tag, capsys
):
    assert gate(right, "--junit", tmp_path / "gate.xml") == status
    as_expected(capsys.readouterr().out)
    suites = ElementTree.parse(tmp_path / "gate.xml").getroot()
    (((of_case,),),) = suites
    assert of_case.tag == tag
    assert suites[0].get("skipped") == "0"
    for counted in (suites, suites[0]):
        counts = {name: int(counted.get(name)) for name in ("tests", "failures", "errors")}
        assert counts == {"tests": 1, "failures": tag == "failure", "errors": tag == "error"}


def test_a_gate_has_markdown_for_a_pull_request_and_a_page(gate, tmp_path):
    out = ("--out", tmp_path / "gate.md", "--out", tmp_path / "gate.html")
    more = {"answers": ("a", "b"), "audit": {"tables_sha256": {"queries": "0" * 64}}}
    assert gate(20, *out, "--allow", "queries", **more) == 1
    answer, *folded = (tmp_path / "gate.md").read_text().split("<details>")
    as_expected(answer.split("\n\n"))
    assert [part.partition("</summary>")[0][9:] for part in folded] == ["Flipped", "Differing"]
    assert "| question 20 | a | right | wrong |" in folded[0]
    page = (tmp_path / "gate.html").read_text()
    assert '<h1 id="headline" dir="auto">No pass: worse at a margin of 0.02.</h1>' in page
    assert "<strong>Warning:</strong> 200 shared queries have different reference answers." in page
    # One that is refused leaves none of an earlier decision; a file that is none stays.
    (tmp_path / "notes.md").write_text("# Notes")
    assert gate(60, *out, "--out", tmp_path / "notes.md", reader="0" * 32) == 2
    assert [path.name for path in tmp_path.glob("*.*")] == ["notes.md"]


def test_a_name_that_is_of_neither_is_refused(gate, tmp_path, capsys):
    assert gate(60, "--out", tmp_path / "gate.pdf") == 2
    as_expected(capsys.readouterr().err)


@pytest.mark.parametrize(
    "name", ["m\x01ine", "\x1b[31m", "a\ufffeb\uffff", '<b>&"\r\n\t', "\u202e\x9b"]
)
def test_any_name_of_a_run_is_well_formed_xml(tmp_path, name):
    folders = [write_evaluation(tmp_path / one, {name: values(60)}) for one in "ab"]
    named = ("--baseline", folders[0], "--candidate", folders[1], "--junit", tmp_path / "gate.xml")
    assert erag("gate", *named, "--margin", 0.02) == 0
    ((case,),) = ElementTree.parse(tmp_path / "gate.xml").getroot()
    assert case.get("name").startswith("b:")


def test_a_gate_that_is_refused_leaves_no_report_of_an_earlier_pass(gate, tmp_path):
    junit = ("--junit", tmp_path / "gate.xml")
    assert gate(60, *junit) == 0
    assert gate(60, *junit, reader="0" * 32) == 2
    (suite,) = ElementTree.parse(tmp_path / "gate.xml").getroot()
    assert (suite.get("errors"), suite[0][0].tag) == ("1", "error")
    # A file that is no report is never written over by a gate that is refused.
    (tmp_path / "gate.xml").write_text("<data/>")
    assert gate(60, *junit, reader="0" * 32) == 2
    assert (tmp_path / "gate.xml").read_text() == "<data/>"


def test_undecided_says_how_many_queries_would_decide(gate, tmp_path, capsys):
    assert gate(57, "--json", "--junit", tmp_path / "gate.xml") == 3
    found = json.loads(capsys.readouterr().out)
    assert (found["decision"], found["margin"], found["notes"]) == ("undecided", 0.02, [])
    (pair,) = found["pairs"]
    (compared,) = compare(tmp_path / "main", tmp_path / "branch").pairs
    assert (pair["low"], pair["high"], pair["confidence"]) == (
        compared["low"],
        compared["high"],
        0.95,
    )
    assert pair["low"] < pair["bounds"][0] < -0.02 < pair["bounds"][1] < pair["high"]
    assert pair["level"] == 0.05
    assert pair["run"] == "main:bm25"
    assert pair["queries_needed"] > 200
    ((case,),) = ElementTree.parse(tmp_path / "gate.xml").getroot()
    assert (case.get("name"), case[0].tag) == ("branch:bm25", "error")
    assert f" {pair['queries_needed']} queries would" in case[0].text


def test_another_reader_is_refused_unless_it_is_allowed(gate, capsys):
    assert gate(60, reader="0" * 32) == 2
    as_expected(capsys.readouterr().err)
    assert gate(60, "--allow", "corpus,reader", reader="0" * 32) == 0
    capsys.readouterr()
    assert gate(60, "--allow", "corpus,raeder", reader="0" * 32) == 2
    as_expected(capsys.readouterr().err)


@pytest.mark.parametrize(("candidate", "status"), [("good", 0), ("poor", 1)])
def test_two_runs_of_one_folder_are_tested(tmp_path, candidate, status, capsys):
    runs = {"old": values(60), "good": values(60), "poor": values(20)}
    folder = write_evaluation(tmp_path / "main", runs)
    named = ("--baseline", f"{folder}:old", "--candidate", f"{folder}:{candidate}")
    assert erag("gate", *named, "--margin", 0.02) == status
    assert f"worse: main:{candidate} minus main:old is " in capsys.readouterr().out


@pytest.mark.parametrize(("cluster", "status"), [([], 3), (["--cluster", "none"], 0)])
def test_copied_questions_decide_as_one_and_the_output_says_so(tmp_path, cluster, status, capsys):
    folders = [
        write_evaluation(tmp_path / name, {"bm25": values(60)}, cluster=lambda i: i // 20)
        for name in ("main", "branch")
    ]
    named = ("--baseline", folders[0], "--candidate", folders[1], "--margin", 0.02)
    assert erag("gate", *named, *cluster) == status
    (told,) = re.findall("note: 200 queries .*", capsys.readouterr().out)
    as_expected(told)
    assert erag("compare", *folders, *cluster) == 0
    assert told.replace(" ", "") in "".join(capsys.readouterr().out.split())
    assert erag("gate", *named, "--cluster", "topic") == 2
    as_expected(capsys.readouterr().err)
