"""``erag coverage`` as a user runs it."""

import gzip
import json
import re

import polars as pl
import pytest

from engine import tables
from tests.commands import erag
from tests.expected import as_expected
from tests.retrieval.tiny_encoder import save_tiny_encoder

WHO = [f"who {verb} the song {title}" for verb in ("sang", "wrote", "sings") for title in
       ("yesterday", "hallelujah", "imagine", "let it be", "africa", "respect")]  # fmt: skip
WHERE = [f"{ask} the capital of {land}" for ask in ("what is", "name", "where is") for land in
         ("aruba", "chad", "peru", "norway", "laos", "mali")]  # fmt: skip


@pytest.fixture
def files(tmp_path):
    queries, users = tmp_path / "q.jsonl", tmp_path / "log.txt"
    rows = [{"id": f"e{i}", "input": text} for i, text in enumerate(WHERE[::2])]
    queries.write_text("".join(json.dumps(row) + "\n" for row in rows))
    users.write_text("".join(f"{text}\n" for text in [*WHO, *WHERE, *WHO[:4]]))
    return {"queries": queries, "user-queries": users}


def coverage(files, *more):
    return erag("coverage", *[p for name, f in files.items() for p in (f"--{name}", f)], *more)


def test_topics_without_evaluation_queries_are_found_with_the_bundled_encoder(
    files, tmp_path, capsys
):
    out = tmp_path / "out"
    assert coverage(files, "--clusters", 2, "--out", out) == 0
    printed = capsys.readouterr().out
    as_expected(re.findall(r"User queries .*?55\.0%|22 user queries, in 1 cluster", printed))
    assert f"results -> {out}" in printed
    assert all(words in printed for words in ("the song", "evaluation: "))
    assert {path.name for path in out.iterdir()} == {
        "coverage.parquet", "assignments.parquet", "summary.json",
    }  # fmt: skip
    for name in ("coverage", "assignments"):
        frame = pl.read_parquet(out / f"{name}.parquet")
        assert dict(frame.schema) == getattr(tables, name.upper())
    clusters = pl.read_parquet(out / "coverage.parquet")
    assert clusters["user_queries"].to_list() == [22, 18]
    assert clusters["evaluation_queries"].to_list() == [0, 9]
    summary = json.loads((out / "summary.json").read_text())
    assert summary["figures"]["uncovered_queries"] == 22
    assert summary["configuration"]["user_queries"] == str(files["user-queries"])
    assert summary["encoder"]["dtype"] == "float32"
    audit = summary["audit"]
    as_expected(audit["command"])
    assert [file["role"] for file in audit["files"]] == ["queries", "user_queries"]
    assert summary["counts"]["distinct_user_queries"] == 36
    # the same on another run, from a packed log, and with another number of threads
    packed = tmp_path / "log.txt.gz"
    packed.write_bytes(gzip.compress(files["user-queries"].read_bytes()))
    again = tmp_path / "again"
    more = ["--clusters", 2, "--threads", 1, "--out", again]
    assert coverage(files | {"user-queries": packed}, *more) == 0
    for name in ("coverage", "assignments"):
        one, other = (pl.read_parquet(d / f"{name}.parquet") for d in (out, again))
        assert one.equals(other)
    repeated = json.loads((again / "summary.json").read_text())["audit"]
    assert repeated["tables_sha256"] == audit["tables_sha256"]
    assert repeated["files"][1]["sha256"] != audit["files"][1]["sha256"]  # it is packed


def test_coverage_has_no_page_and_one_of_an_earlier_version_goes(files, tmp_path, capsys):
    out, more = tmp_path / "out", ["--encoder", save_tiny_encoder(tmp_path / "encoder")]
    (out / "report" / "figures").mkdir(parents=True)
    listed = out / "report" / "figures" / "share.svg"
    for path in (out / "report.html", listed):
        path.touch()
    (out / "report" / "report.json").write_text('["figures/share.svg"]')
    assert coverage(files, *more, "--clusters", 2, "--out", out) == 0
    assert not (out / "report.html").exists()
    assert not listed.exists()
    capsys.readouterr()
    assert erag("report", out) == 2
    as_expected(capsys.readouterr().err)


def test_options_of_the_encoder_reach_it(files, tmp_path):
    encoder = save_tiny_encoder(tmp_path / "encoder")
    files["queries"].write_text('{"query": "w1 w2"}\n{"query": "w4 w5"}\n')
    files["user-queries"].write_text("".join(f"w{i} w{i + 1}\n" for i in range(30)))
    found = []
    for more in ([], ["--query-prefix", "w9 ", "--seed", 2**40], ["--pooling", "cls"]):
        out = tmp_path / f"out{len(found)}"
        assert coverage(files, "--encoder", encoder, *more, "--out", out) == 0
        found.append(json.loads((out / "summary.json").read_text()))
    assert found[1]["encoder"]["text"]["query_prefix"] == "w9 "
    assert found[2]["encoder"]["text"]["pooling"] == "cls"
    assert found[1]["configuration"]["seed"] == 2**40
    assert found[0]["configuration"]["clusters"] == 5  # the root of 30
    means = [tuple(row["similarity"] for row in one["clusters"]) for one in found]
    assert len(set(means)) == 3


def test_an_unanswerable_question_is_left_out_and_counted(files, tmp_path, capsys):
    encoder = save_tiny_encoder(tmp_path / "encoder")
    questions = [
        {"id": "1", "question": "w1 w2", "answers": [{"text": "w3"}]},
        {"id": "2", "question": "w4 w5", "answers": [], "is_impossible": True},
    ]
    document = {"data": [{"title": "w", "paragraphs": [{"context": "w3", "qas": questions}]}]}
    files["queries"].write_text(json.dumps(document))
    assert coverage(files, "--encoder", encoder, "--clusters", 2) == 0
    printed = capsys.readouterr().out
    assert printed.splitlines()[-1] == "note: 1 unanswerable question left out"


def test_bad_options_and_files_give_one_line(files, tmp_path, capsys):
    encoder = save_tiny_encoder(tmp_path / "encoder")
    (tmp_path / "empty.txt").write_text("\n")
    (tmp_path / "taken").write_text("")
    for more in (
        ["--clusters", 0],
        ["--clusters", 37],
        ["--threads", 0],
        ["--seed", -1],
        ["--preset", "best"],
        ["--encoder", tmp_path / "none"],
        ["--user-queries", tmp_path / "none.txt"],
        ["--user-queries", tmp_path / "empty.txt"],
        ["--queries", files["user-queries"]],
        ["--out", tmp_path / "taken"],
    ):
        given = {"--encoder": encoder} | {f"--{name}": path for name, path in files.items()}
        given |= {more[0]: more[1]}
        assert erag("coverage", *[part for pair in given.items() for part in pair]) == 2, more
        (line,) = capsys.readouterr().err.splitlines()
        as_expected(line)


def test_json_is_the_summary_also_where_nothing_is_written(files, tmp_path, capsys):
    given = ("--clusters", 2, "--encoder", save_tiny_encoder(tmp_path / "encoder"), "--json")
    assert coverage(files, *given) == 0
    alone = json.loads(capsys.readouterr().out)
    assert coverage(files, *given, "--out", tmp_path / "out") == 0
    written = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert json.loads(capsys.readouterr().out) == written
    assert alone["figures"] == written["figures"]
