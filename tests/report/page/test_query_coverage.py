"""The page of what users ask that the evaluation does not."""

import json

import numpy as np
import pytest

from engine.messages.errors import InputError
from engine.query_coverage.measure import measure
from engine.report.page.query_coverage import read_coverage, write_coverage_page
from engine.report.page.remake import remake
from engine.report.query_coverage import summarize
from engine.retrieval.encoders import EncoderOptions, specify
from engine.sources.io.files import write_parquet
from tests.query_coverage.topics import EVALUATION, asked, encode, queries

SCRIPT = "songs <script>alert(1)</script>"
FILES = {"queries": "q.jsonl", "user_queries": "u.txt"}


def named(texts):
    """Texts of a topic that are not a topic and a number."""
    return encode([text if text.split(" ")[1].isdigit() else "songs 7" for text in texts])


def write(folder, users, *, evaluation=EVALUATION, clusters=5):
    folder.mkdir()
    found = measure(evaluation, queries(*users), named, clusters=clusters)
    summary = summarize(found, specify(EncoderOptions(), threads=1), FILES, {"queries": 0})
    write_parquet(found.clusters, folder / "coverage.parquet")
    write_parquet(found.assignments, folder / "assignments.parquet")
    (folder / "summary.json").write_text(json.dumps(summary))
    return write_coverage_page(found, summary, folder)


@pytest.fixture(scope="module")
def gap(tmp_path_factory):
    folder = tmp_path_factory.mktemp("coverage") / "out"
    written = write(folder, [*asked(), SCRIPT])
    assert written.page == folder / "report.html"
    return folder


def test_the_page_says_how_much_is_left_out_and_lists_it(gap):
    page = (gap / "report.html").read_text()
    share = json.loads((gap / "summary.json").read_text())["figures"]["share"]
    assert 0.1 < share < 0.25
    said = f"The evaluation leaves out {share:.1%} of what users ask, more than chance explains."
    assert said in page
    assert "Cluster 1: 41 user queries" in page
    assert page.count("<svg") == 2
    # All of the cluster's queries, as texts.
    assert all(f'<li dir="auto">songs {number}</li>' in page for number in range(40))
    assert '<li dir="auto">songs &lt;script&gt;alert(1)&lt;/script&gt;</li>' in page
    assert "<script>alert" not in page
    assert "films 3</li>" not in page


def test_pictures_and_tables_stand_beside_it(gap):
    listed = json.loads((gap / "report" / "report.json").read_text())
    tables = [
        f"tables/{name}.{kind}"
        for name in ("clusters", "uncovered")
        for kind in ("csv", "md", "tex")
    ]
    assert {"figures/clusters.svg", "figures/share.png", *tables} <= set(listed)
    rows = (gap / "report" / "tables" / "uncovered.csv").read_text().splitlines()
    assert rows[1].startswith("1,")
    assert "41 (20.4%),0," in rows[1]


def test_the_page_is_the_same_when_it_is_made_again(gap):
    before = (gap / "report.html").read_bytes()
    remake(gap, single_file=False, passages=True)
    assert (gap / "report.html").read_bytes() == before


def test_a_table_that_is_gone_is_named(gap, tmp_path):
    summary = json.loads((gap / "summary.json").read_text())
    with pytest.raises(InputError, match=r"coverage\.parquet"):
        read_coverage(tmp_path, summary)


@pytest.mark.parametrize(
    ("users", "evaluation", "clusters", "headline"),
    [
        (asked(), queries(*asked()), 5, "Every cluster of what users ask has an evaluation query."),
        (asked(), EVALUATION, 1, "A single cluster says nothing"),
        (asked(6, ["films", "songs"]), queries("films 50", "law 50"), 3, "which could be chance."),
    ],
)
def test_the_headline_claims_no_more_than_the_figures(
    tmp_path, users, evaluation, clusters, headline
):
    write(tmp_path / "out", users, evaluation=evaluation, clusters=clusters)
    page = (tmp_path / "out" / "report.html").read_text()
    assert headline in page.partition("</h1>")[0]


def test_clusters_with_few_evaluation_queries_have_a_table_of_their_own(tmp_path):
    evaluation = queries(*EVALUATION["query"], "songs 200")
    write(tmp_path / "out", asked(80), evaluation=evaluation)
    page = (tmp_path / "out" / "report.html").read_text()
    assert "Table: Clusters with fewer evaluation queries than expected by chance" in page
    assert "has fewer than by chance" in page


def test_many_clusters_are_cut_and_the_page_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr("engine.report.page.query_coverage._LISTED", 7)
    monkeypatch.setattr("engine.report.page.query_coverage._ROWS", 3)
    monkeypatch.setattr("engine.report.page.query_coverage._DRAWN", 4)
    write(tmp_path / "out", [*asked(), SCRIPT])
    page = (tmp_path / "out" / "report.html").read_text()
    assert "Cluster 1: 41 user queries, the 7 nearest to its centroid" in page
    assert "The 3 largest; coverage.parquet has all." in page
    assert "The 4 largest of 5." in page
    assert np.sum([f"songs {n}</li>" in page for n in range(40)]) <= 7
