import bz2
import gzip
import json
from itertools import product

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.errors import InputError
from engine.sources.runs import stream
from engine.sources.runs.read import by_rank, by_score, read_run
from engine.sources.runs.stream import LINE, is_ranked, scan_run

RUN_COLUMNS = ["query_id", "doc_id", "rank", "score"]


def streamed(path):
    """What the batches of a run amount to: the run as ``read_run`` gives it, and its lines."""
    batches = list(scan_run(path))
    rows = pl.concat(batch.rows for batch in batches)
    names = set().union(*(batch.names for batch in batches))
    ordered = by_rank(rows) if is_ranked(path) else by_score(rows)
    return ordered.select(RUN_COLUMNS), rows[LINE].to_list(), names


def error_of(function, *arguments):
    with pytest.raises(InputError) as caught:
        function(*arguments)
    error = caught.value
    return str(error.path), error.line, error.problem, error.remedy


def outcome(function):
    """What a function gives, or the error that it raises."""
    try:
        return function()
    except InputError as error:
        return str(error.path), error.line, error.problem, error.remedy


def write(path, text):
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


PLAIN = "q1 Q0 a 1 2.5 s\nq1 Q0 b 2 0.1 s\nq2 Q0 a 1 -3e-5 s\n"


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        (PLAIN, [1, 2, 3]),
        (PLAIN.rstrip("\n"), [1, 2, 3]),
        (PLAIN.replace(" ", "\t"), [1, 2, 3]),
        (PLAIN.replace("\n", "\r\n"), [1, 2, 3]),
        ("﻿" + PLAIN, [1, 2, 3]),
        (PLAIN.replace(" ", " \t  ").replace("\n", " \n"), [1, 2, 3]),
        ("\n  \n" + PLAIN.replace("\n", "\n\n \t\n"), [3, 6, 9]),
        (PLAIN.replace("a", "ä漢"), [1, 2, 3]),
        (PLAIN.replace("Q0", "Q0\u3000", 1).replace("\u3000 ", "\u3000"), [1, 2, 3]),
        (PLAIN.replace("q1 ", "q1\x1c", 1), [1, 2, 3]),
        (PLAIN.replace("2.5", "+2_5"), [1, 2, 3]),
        (PLAIN.replace("2.5", "1e-400").replace("a", '"a').replace("b", "\\b"), [1, 2, 3]),
        (PLAIN.replace("a", "NA").replace("b", "null"), [1, 2, 3]),
    ],
)
def test_trec_text_is_read_as_python_splits_it(tmp_path, text, lines):
    path = write(tmp_path / "r.trec", text)
    rows, found, names = streamed(path)
    expected = read_run(path)
    assert rows.equals(expected.select(RUN_COLUMNS))
    assert (found, names) == (lines, {"s"})


def test_small_blocks_give_the_same_rows_and_lines(tmp_path, monkeypatch):
    text = "".join(f"q{i % 7} Q0 d{i} 0 {i * 0.37} s{'' if i % 9 else ' '}\n" for i in range(500))
    text = text.replace("d77 ", "d77\x0b ").replace("d200", "dé\u2003") + "\n\n"
    monkeypatch.setattr(stream, "_BLOCK", 64)
    monkeypatch.setattr(stream, "_ROWS", 3)
    for name, pack in (("r", bytes), ("r.gz", gzip.compress), ("r.bz2", bz2.compress)):
        path = write(tmp_path / name, pack(text.replace("dé\u2003", "dé ").encode()))
        rows, lines, _ = streamed(path)
        assert rows.equals(read_run(path).select(RUN_COLUMNS))
        assert lines == list(range(1, 501))


BAD = [
    "q Q0 a 1 0.5",
    "q Q0 a 1 x s",
    "q Q0 a 1 nan s",
    "q Q0 a 1 4e38 s",
    "q Q0 a 1 inf s",
    "\x1c",
]


@pytest.mark.parametrize(("bad", "block"), list(product([*BAD, b"q Q0 \xff 1 1 s"], [40, 1 << 20])))
def test_a_bad_line_is_the_error_of_read_run_after_the_rows_above_it(
    tmp_path, monkeypatch, bad, block
):
    monkeypatch.setattr(stream, "_BLOCK", block)
    good = "".join(f"q Q0 d{i} 0 {i} s\n" for i in range(20)).encode()
    path = write(
        tmp_path / "r", good + (bad if isinstance(bad, bytes) else bad.encode()) + b"\n" + good
    )
    expected = error_of(read_run, path)
    assert expected[1] == 21
    batches = scan_run(path)
    seen = []
    with pytest.raises(InputError):
        for batch in batches:
            seen += batch.rows["doc_id"].to_list()
    assert seen == [f"d{i}" for i in range(20)]
    assert error_of(lambda: list(scan_run(path))) == expected


def test_damaged_files_and_endless_lines_are_the_errors_of_read_run(tmp_path, monkeypatch):
    text = "".join(f"q Q0 d{i} 0 {i * 7919 % 1000} s\n" for i in range(5000)).encode()
    cut = write(tmp_path / "r.gz", gzip.compress(text)[:-3000])
    assert error_of(lambda: list(scan_run(cut))) == error_of(read_run, cut)
    monkeypatch.setattr(stream, "LONGEST_LINE", 100)
    monkeypatch.setattr("engine.sources.io.lines.LONGEST_LINE", 100)
    monkeypatch.setattr(stream, "_BLOCK", 64)
    for filler in ("x" * 200, "x" * 30):
        long = write(tmp_path / "r", PLAIN + filler + "\n" + PLAIN)
        assert error_of(lambda path=long: list(scan_run(path))) == error_of(read_run, long)


def test_files_that_are_not_there_are_the_errors_of_read_run(tmp_path):
    for path in (tmp_path / "none", tmp_path, tmp_path / "none.parquet"):
        assert error_of(lambda path=path: list(scan_run(path))) == error_of(read_run, path)


def test_dictionaries_and_parquet_come_with_ranks(tmp_path, monkeypatch):
    monkeypatch.setattr(stream, "_ROWS", 2)
    scores = {"q2": {"a": 1, "b": 2.5, "c": 2.5}, "q1": {"x": 0.5}}
    path = write(tmp_path / "mine.json", json.dumps(scores))
    rows, _, names = streamed(path)
    assert rows.equals(read_run(path).select(RUN_COLUMNS))
    assert names == {"mine"}
    frame = pl.DataFrame({"query_id": [1, 2, 1], "doc_id": ["a", "b", "c"], "rank": [9, 1, 4]})
    frame.with_columns(score=pl.lit(0)).write_parquet(tmp_path / "p.parquet")
    rows, lines, names = streamed(tmp_path / "p.parquet")
    assert rows.equals(read_run(tmp_path / "p.parquet").select(RUN_COLUMNS))
    assert (lines, names) == ([0, 1, 2], {"p"})


@pytest.mark.parametrize(
    "change",
    [
        {"score": [1.0, float("nan"), None, 2.0]},
        {"score": ["1", "2", "x", "y"]},
        {"rank": [1, 2, 3, None], "query_id": ["q", "q", None, "q"]},
        {"doc_id": [1.0, 2.0, 3.0, 4.0]},
        {"score": [1.0, 2.0, 1e39, 0.0], "run": ["s", "s", "s", None]},
    ],
)
def test_the_first_fault_of_a_parquet_run_is_that_of_read_run(tmp_path, monkeypatch, change):
    monkeypatch.setattr(stream, "_ROWS", 1)
    columns = {"query_id": ["q"] * 4, "doc_id": list("abcd"), "rank": [1, 2, 3, 4]}
    columns |= {"score": [4.0, 3.0, 2.0, 1.0], "run": ["s"] * 4}
    path = tmp_path / "r.parquet"
    pl.DataFrame(columns | change).write_parquet(path)
    assert error_of(lambda: list(scan_run(path))) == error_of(read_run, path)
    monkeypatch.setattr(
        stream, "_READ_WHOLE", 0
    )  # as in a large run, a fault is named all the same
    assert error_of(lambda: list(scan_run(path)))[0] == str(path)


def test_a_parquet_run_without_rows_or_columns_is_refused_alike(tmp_path):
    path = tmp_path / "r.parquet"
    pl.DataFrame({"query_id": ["q"]}).write_parquet(path)
    assert error_of(lambda: list(scan_run(path))) == error_of(read_run, path)
    pl.DataFrame({"query_id": []}, schema={"query_id": pl.String()}).write_parquet(path)
    assert error_of(lambda: list(scan_run(path))) == error_of(read_run, path)
    write(path, "no Parquet")
    assert error_of(lambda: list(scan_run(path))) == error_of(read_run, path)


TOKENS = ["q", "Q0", "a", "b", "1", "0.5", "1e3", "s", "nan", "é", "\x1f", '"', "+1", "1."]
BLANKS = [" ", "\t", "  ", " \t", "\r", "\n", "\n\n", "\n \n", "\u00a0", "\x0c", "\x85"]


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(TOKENS), st.sampled_from(BLANKS)), max_size=40))
def test_any_text_gives_the_rows_or_the_error_of_python(tmp_path_factory, parts):
    """Whatever stands where: against ``read_run`` on the same file, a line at a time."""
    lines = "".join(token + blank for token, blank in parts).split("\n")
    path = tmp_path_factory.mktemp("run") / "r"
    for number, line in enumerate(lines):
        path.write_bytes(f"q Q0 d 1 1 s\n{line}\n".encode())
        found = outcome(lambda: streamed(path)[0].rows())
        expected = outcome(lambda: read_run(path).select(RUN_COLUMNS).rows())
        # What is compared beyond one row is left to whoever reads the batches.
        if not any(words in str(expected) for words in ("twice", "several")):
            assert found == expected, (number, line)
