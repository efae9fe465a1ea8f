"""``erag compare``: what it prints, and its JSON."""

import json
import re

from tests.commands import erag
from tests.expected import as_expected
from tests.report.made import ANSWERED, values, write_evaluation


def test_pairs_flips_and_what_differs_are_printed(tmp_path, capsys):
    old = write_evaluation(tmp_path / "old", {"bm25": values(60), "dense": values(70)})
    new = write_evaluation(
        tmp_path / "new", {"bm25": values(80, 10)}, answers=("a", "long " * 20), reader="0" * 32
    )
    assert erag("compare", old, new) == 0
    printed = capsys.readouterr().out
    lines = [" ".join(line.split()) for line in printed.splitlines()]
    assert "baseline run mean (baseline) mean (run) difference [95%] p" in lines
    assert any(line.startswith("old:bm25 new:bm25 0.300 0.400 0.100 [0.0") for line in lines)
    assert "30 won by new:bm25, 10 lost" in lines
    assert "query answers output of old:bm25 output of new:bm25" in lines
    assert lines.count("question 1 a right wrong") == 1
    assert sum(line.endswith("right wrong") for line in lines) == 10
    assert "10 of 40 shown" in lines
    assert f"reader {'f' * 8}… {'0' * 8}…" in lines
    as_expected(lines[-3:])
    assert erag("compare", old, new, "--allow", "answers") == 0
    as_expected(" ".join(capsys.readouterr().out.split("\n\n")[0].split()))


def test_files_are_named_and_changed_references_are_a_warning_in_colour(
    tmp_path, capsys, monkeypatch
):
    for name, digest in (("old", "0" * 64), ("new", "1" * 64)):
        files = [{"role": "queries", "path": f"data/{name}.csv", "sha256": digest}]
        audit = {"files": files, "tables_sha256": {"corpus": "c"}}
        write_evaluation(tmp_path / name, {"bm25": values(60)}, answers=(name,), audit=audit)
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert erag("compare", tmp_path / "old", tmp_path / "new") == 0
    printed = capsys.readouterr().out
    assert "\x1b[33mwarning: 200 shared queries have different reference answers\x1b[0m" in printed
    assert re.search("queries .*old.csv 00000000….*new.csv 11111111…", printed)


def test_the_same_is_json_in_full(tmp_path, capsys):
    old = write_evaluation(tmp_path / "old", {"bm25": values(60)})
    new = write_evaluation(tmp_path / "new", {"bm25": values(80, 10)})
    assert erag("compare", old, f"{new}:bm25", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found.keys() == {"verdict", "pairs", "flipped", "differing", "notes"}
    assert len(found["flipped"]) == 40
    assert found["flipped"][0] == {
        "run": "old:bm25", "run_b": "new:bm25", "query_id": "q0", "query": "question 0", "answers": ["a"],
        "output": "right", "value": 1.0, "output_b": "wrong", "value_b": 0.0,
    }  # fmt: skip


def test_the_page_has_every_row_in_one_file_and_runs_nothing_of_the_data(tmp_path, capsys):
    texts = {f"q{i}": f"<script>question {i}</script>" for i in range(ANSWERED)}
    old = write_evaluation(tmp_path / "old", {"bm25": values(60)}, texts=texts)
    new = write_evaluation(tmp_path / "new", {"bm25": values(80, 10)}, texts=texts)
    assert erag("compare", old, new, "--out", tmp_path / "page.html", "--quiet") == 0
    assert capsys.readouterr().out == ""
    page = (tmp_path / "page.html").read_text()
    assert "Comparison of old and new" in page
    assert "new minus old" in page  # in the picture
    assert "30 won by new, 10 lost</h3>" in page
    assert ">Flipped</a>" in page
    assert "<summary>Settings" not in page  # it has none
    assert '<dl class="facts">' not in page  # an empty box
    assert page.count("&lt;script&gt;question") == 40
    assert "<script>question" not in page
    assert not re.search('(src|href)="(?!#|data:)', page)


def test_a_page_of_a_folder_lists_its_evaluations_with_their_pages(tmp_path):
    for name, right in (("a b#", 80), ("b", 60)):
        folder = write_evaluation(tmp_path / "results" / name, {"bm25": values(right)})
        (folder / "report.html").touch()
    (folder / "report.html").unlink()
    (tmp_path / "pages").mkdir()
    out = tmp_path / "pages" / "history.html"
    assert erag("compare", tmp_path / "results", "--out", out, "--quiet") == 0
    page = out.read_text()
    # The first alone has a page; its means are those of its own summary.
    assert re.findall('<a href="([^#][^"]*)">(.*?)</a>', page) == [
        ("../results/a%20b%23/report.html", "a b#")
    ]
    row = page[page.index('<th scope="row" dir="auto">b</th>') :].partition("</tr>")[0]
    assert re.findall("<td.*?>(.*?)</td>", row) == ["2026-11-25", "", "1", "200", "0.500"]
    assert page.index('<h2 id="evaluations') < page.index('<h2 id="pairs')
    assert '<h1 id="headline" dir="auto">Choose a b#.</h1>' in page
    assert '<td class="figure">\N{MINUS SIGN}0.100 [' in page  # 60 of 200 less 80


def test_a_folder_without_results_is_one_line(tmp_path, capsys):
    assert erag("compare", tmp_path, tmp_path / "none") == 2
    (line,) = capsys.readouterr().err.splitlines()
    as_expected(line)


def test_a_broken_folder_beside_others_is_left_out_and_passes_no_gate(tmp_path, capsys):
    for name, right in (("a", 60), ("b", 80), ("broken", 60)):
        folder = write_evaluation(tmp_path / "results" / name, {"bm25": values(right)})
    (folder / "evaluated_queries.parquet").unlink()
    assert erag("compare", tmp_path / "results") == 0
    printed = "".join(capsys.readouterr().out.split())
    assert "note:leftout:" in printed
    assert "broken:lacksevaluated_queries.parquet" in printed
    (tmp_path / "results" / "b" / "summary.json").unlink()
    results = tmp_path / "results"
    gate = ("gate", "--baseline", results / "a", "--candidate", results, "--margin", 0.02)
    assert erag(*gate) == 2
    as_expected(capsys.readouterr().err)


def test_no_evaluation_that_is_compared_is_written_over(tmp_path, capsys):
    a = write_evaluation(tmp_path / "a", {"bm25": values(60)})
    b = write_evaluation(tmp_path / "b", {"bm25": values(80)})
    before = (b / "summary.json").read_bytes()
    assert erag("compare", a, b, "--out", b / "summary.json") == 2
    as_expected(capsys.readouterr().err)
    junit = ("--margin", 0.02, "--junit", b / "summary.json")
    assert erag("gate", "--baseline", a, "--candidate", b, *junit) == 2
    as_expected(capsys.readouterr().err)
    assert (b / "summary.json").read_bytes() == before
