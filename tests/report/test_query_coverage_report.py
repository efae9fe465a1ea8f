"""What is printed of query coverage."""

import json
import re

import numpy as np
import pytest

from engine.report.query_coverage import lines, measure, shown_tables, summarize
from engine.retrieval.encoders import EncoderOptions, specify
from jobs._terminal import Terminal
from tests.expected import as_expected
from tests.report.query_coverage_topics import EVALUATION, asked, encode, queries


def printed(found):
    console = Terminal(width=160)
    with console.capture() as captured:
        for table in shown_tables(found):
            console.print(table)
    return captured.get()


def test_uncovered_clusters_are_shown_with_their_queries_and_the_nearest_evaluation_query():
    found = measure(EVALUATION, queries(*asked()), encode, clusters=5)
    text = printed(found)
    as_expected(text.splitlines()[0].split("  ")[0])
    assert "40 (20.0%)" in text
    assert text.count("songs") == 3
    assert text.count("evaluation: ") == 1
    assert "films" not in text.split("evaluation: ")[0]
    as_expected(lines(found))


def test_a_cluster_with_too_few_evaluation_queries_is_shown_apart():
    evaluation = queries(*EVALUATION["query"], "songs 200")
    found = measure(evaluation, queries(*asked(80)), encode, clusters=5)
    assert found.figures.uncovered_clusters == 0
    text = printed(found)
    as_expected(text.splitlines()[0].split("  ")[0])
    (row,) = [line.split() for line in text.splitlines() if "80 (20.0%)" in line]
    assert row[3] == "1"


def test_notes_tell_what_the_figures_can_show():
    users = queries(*asked(6, ["films", "songs"]))
    few = measure(queries("films 50", "law 50"), users, encode, clusters=3)
    # Which clusters are found, and so p, can depend on the version of FAISS.
    as_expected([re.sub(r"p = [0-9.]+", "p", line) for line in lines(few)[-2:]])
    all_ = measure(users, users, encode, clusters=5)
    as_expected(lines(all_)[-1])
    one = measure(EVALUATION, users, encode, clusters=1)
    as_expected(lines(one)[-1])
    same = measure(queries("films 1"), queries("films 01", "films 001"), encode)
    as_expected(lines(same)[0])


def test_texts_cannot_break_the_table():
    odd = ["[red]films[/red]\x1b[2J\x07 \u202e", "wide 東京" * 40, "x" * 10_000]
    vectors = {text.strip(): np.eye(4, dtype=np.float32)[row] for row, text in enumerate(odd)}
    vectors["other"] = np.eye(4, dtype=np.float32)[3]
    found = measure(
        queries("other"), queries(*odd), lambda t: np.array([vectors[x] for x in t]), clusters=4
    )
    text = printed(found)
    assert "[red]films[/red]\N{REPLACEMENT CHARACTER}[2J" in text
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert "x…" in text
    assert max(map(len, text.splitlines())) <= 160


def test_the_summary_is_json_with_all_figures_and_the_encoder():
    spec = specify(EncoderOptions(dtype="float32"))
    found = measure(queries("law 1"), queries("films 1", "law 2"), encode, clusters=3)
    content = summarize(
        found, spec.described(), {"queries": "a"}, {"queries": 0, "user_queries": 2}
    )
    again = json.loads(json.dumps(content, allow_nan=False))
    assert again["configuration"] == {"queries": "a", "clusters": 3, "seed": 0}
    assert again["figures"]["share"] == pytest.approx(found.figures.share)
    assert again["figures"]["shares"] == [found.figures.share]
    assert again["encoder"]["fingerprint"] == spec.fingerprint
    assert again["counts"]["unanswerable"] == {"queries": 0, "user_queries": 2}
    assert [row["cluster"] for row in again["clusters"]] == [1, 2, 3]
