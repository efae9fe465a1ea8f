import bz2
import gzip
import json
import re
from itertools import product
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.sources.runs import scan
from engine.sources.runs.scan import LAYOUTS, bytes_of, layout_of, lists_at_least, scan_run
from engine.tables import STATED_RANK
from tests.expected import outcome, refused


def scanned(path):
    """What the batches of a run amount to: ids, ranks, scores and lines of its rows, and its names."""
    batches = list(scan_run(path))
    names = set().union(*(batch.names for batch in batches))
    return [row for batch in batches for row in batch.rows.drop(STATED_RANK).rows()], names


@pytest.fixture(autouse=True)
def _arrow_reads_small_texts_too(monkeypatch):
    monkeypatch.setattr(scan, "_SMALL", 0)


def read_by_python(monkeypatch):
    """From now on, TREC text is parsed line by line."""
    monkeypatch.setattr(scan, "_parse_block", lambda *_: None)


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
        (PLAIN.replace("Q0", "Q0\u3000", 1).replace("\u3000 ", "\u3000"), [1, 2, 3]),
        (PLAIN.replace("q1 ", "q1\x1c", 1), [1, 2, 3]),
        (PLAIN.replace("2.5", "+2.5"), [1, 2, 3]),
    ],
)
def test_trec_text_is_split_at_whatever_is_white_space_in_python(tmp_path, text, lines):
    rows, names = scanned(write(tmp_path / "r.trec", text))
    assert [row[:4] for row in rows] == [
        ("q1", "a", None, 2.5),
        ("q1", "b", None, 0.1),
        ("q2", "a", None, -3e-5),
    ]
    assert ([row[4] for row in rows], names) == (lines, {"s"})


@pytest.mark.parametrize(
    "text",
    [
        PLAIN.replace("a", "ä漢"),
        PLAIN.replace("2.5", "+2_5"),
        PLAIN.replace("2.5", "1e-400").replace("a", '"a').replace("b", "\\b"),
        PLAIN.replace("a", "NA").replace("b", "null"),
    ],
)
def test_arrow_and_python_read_ids_and_numbers_alike(tmp_path, monkeypatch, text):
    path = write(tmp_path / "r.trec", text)
    found = scanned(path)
    assert found[0][0][1] == text.split()[2]
    read_by_python(monkeypatch)
    assert scanned(path) == found


def test_small_blocks_give_the_same_rows_and_lines(tmp_path, monkeypatch):
    text = "".join(f"q{i % 7} Q0 d{i} 0 {i * 0.37} s{'' if i % 9 else ' '}\n" for i in range(500))
    text = text.replace("d77 ", "d77\x0b ").replace("d200", "dé\u2003") + "\n\n"
    expected = [(f"q{i % 7}", f"d{i}", None, i * 0.37, i + 1) for i in range(500)]
    expected[200] = ("q4", "dé", None, 200 * 0.37, 201)
    monkeypatch.setattr(scan, "_BLOCK", 64)
    monkeypatch.setattr(scan, "_ROWS", 3)
    for name, pack in (("r", bytes), ("r.gz", gzip.compress), ("r.bz2", bz2.compress)):
        path = write(tmp_path / name, pack(text.replace("dé\u2003", "dé ").encode()))
        assert scanned(path) == (expected, {"s"})


BAD = [
    ("q Q0 a 1 0.5", "runs.columns"),
    ("q Q0 a 1 x s", "runs.score"),
    ("q Q0 a 1 nan s", "runs.score"),
    ("q Q0 a 1 4e38 s", "runs.score"),
    ("q Q0 a 1 inf s", "runs.score"),
    ("\x1c", "runs.columns"),
    (b"q Q0 \xff 1 1 s", "files.encoding"),
]


@pytest.mark.parametrize(("bad", "block"), list(product(BAD, [40, 1 << 20])))
def test_a_bad_line_is_named_after_the_rows_above_it(tmp_path, monkeypatch, bad, block):
    monkeypatch.setattr(scan, "_BLOCK", block)
    line, code = bad
    good = "".join(f"q Q0 d{i} 0 {i} s\n" for i in range(20)).encode()
    line = line if isinstance(line, bytes) else line.encode()
    batches = scan_run(write(tmp_path / "r", good + line + b"\n" + good))
    seen = []
    with refused(code, path=tmp_path / "r", line=21):
        for batch in batches:
            seen += batch.rows["doc_id"].to_list()
    assert seen == [f"d{i}" for i in range(20)]


def test_damaged_files_and_endless_lines_are_named_with_their_line(tmp_path, monkeypatch):
    text = "".join(f"q Q0 d{i} 0 {i * 7919 % 1000} s\n" for i in range(5000)).encode()
    cut = write(tmp_path / "r.gz", gzip.compress(text)[:-3000])
    with refused("files.unreadable", text=False):
        list(scan_run(cut))
    monkeypatch.setattr(scan, "LONGEST_LINE", 100)
    monkeypatch.setattr("engine.sources.io.records.LONGEST_LINE", 100)
    monkeypatch.setattr(scan, "_BLOCK", 64)
    for filler, code in (("x" * 200, "files.line"), ("x" * 30, "runs.columns")):
        long = write(tmp_path / "r", PLAIN + filler + "\n" + PLAIN)
        with refused(code, path=long, line=4):
            list(scan_run(long))


def test_the_documentation_shows_every_layout(tmp_path):
    page = (Path(__file__).parents[3] / "docs/formats.md").read_text(encoding="utf-8")
    table = page.partition("### Runs")[2].partition("\n\n")[2].partition("\n\n")[0]
    shown = set()
    for number, row in enumerate(table.splitlines()[2:]):
        codes = re.findall("`([^`]+)`", row)
        path = tmp_path / f"{number}.txt"
        if codes[0] == ".parquet":
            path = path.with_suffix(".parquet")
            rows = dict(zip(codes[1:5], ("1", "690-0", 1, 12.5), strict=True))
            pl.DataFrame(rows).write_parquet(path)
        else:
            write(path, codes[0].replace(", …]", "]").replace("\\t", "\t"))
        assert sum(batch.rows.height for batch in scan_run(path)), row
        assert lists_at_least([path], 1, k=9), row
        shown.add(layout_of(path))
    # Records of Parquet look like those of JSON.
    assert shown == {layout for layout in LAYOUTS if layout.least}


def test_scores_decide_in_dictionaries_and_ranks_in_parquet(tmp_path, monkeypatch):
    monkeypatch.setattr(scan, "_ROWS", 2)
    path = write(tmp_path / "mine.json", json.dumps({"q2": {"a": 1, "b": 2.5}, "q1": ["x", "y"]}))
    assert scanned(path) == (
        [
            ("q2", "a", None, 1.0, 0),
            ("q2", "b", None, 2.5, 1),
            ("q1", "x", None, 2.0, 2),
            ("q1", "y", None, 1.0, 3),
        ],
        {"mine"},
    )
    frame = pl.DataFrame({"query_id": [1, 2, 1], "doc_id": ["a", "b", "c"], "rank": [9, 1, 4]})
    frame.with_columns(score=pl.lit(0)).write_parquet(tmp_path / "p.parquet")
    assert scanned(tmp_path / "p.parquet") == (
        [("1", "a", 9, 0.0, 0), ("2", "b", 1, 0.0, 1), ("1", "c", 4, 0.0, 2)],
        {"p"},
    )


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"score": [1.0, float("nan"), None, 2.0]}, "runs.score"),
        ({"score": ["1", "2", "x", "y"]}, "table.type"),
        ({"rank": [1, 2, 3, None], "query_id": ["q", "q", None, "q"]}, "table.null"),
        ({"doc_id": [1.0, 2.0, 3.0, 4.0]}, "table.floats"),
        ({"score": [1.0, 2.0, 1e39, 0.0], "run": ["s", "s", "s", None]}, "runs.score"),
    ],
)
def test_a_fault_of_a_parquet_run_is_named_in_whatever_batch(tmp_path, monkeypatch, change, code):
    monkeypatch.setattr(scan, "_ROWS", 1)
    columns = {"query_id": ["q"] * 4, "doc_id": list("abcd"), "rank": [1, 2, 3, 4]}
    columns |= {"score": [4.0, 3.0, 2.0, 1.0], "run": ["s"] * 4}
    path = tmp_path / "r.parquet"
    pl.DataFrame(columns | change).write_parquet(path)
    with refused(code, path=path, text=code != "table.type") as caught:  # Polars' words
        list(scan_run(path))
    assert caught.value.line is None


TOKENS = ["q", "Q0", "a", "b", "1", "0.5", "1e3", "s", "nan", "é", "\x1f", '"', "+1", "1."]
BLANKS = [" ", "\t", "  ", " \t", "\r", "\n", "\n\n", "\n \n", "\u00a0", "\x0c", "\x85"]


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(TOKENS), st.sampled_from(BLANKS)), max_size=40))
def test_any_text_gives_the_rows_or_the_error_of_python(tmp_path_factory, parts):
    """Whatever stands where: against Python on the same file, a line at a time."""
    lines = "".join(token + blank for token, blank in parts).split("\n")
    path = tmp_path_factory.mktemp("run") / "r"
    for number, line in enumerate(lines):
        path.write_bytes(f"q Q0 d 1 1 s\n{line}\n".encode())
        found = outcome(scanned, path)
        with pytest.MonkeyPatch.context() as patch:
            read_by_python(patch)
            assert outcome(scanned, path) == found, (number, line)


@pytest.mark.parametrize("by_python", [False, True])
def test_ranks_that_order_nothing_are_kept_where_they_are_numbers(tmp_path, monkeypatch, by_python):
    if by_python:
        read_by_python(monkeypatch)
    path = write(
        tmp_path / "r", "q Q0 a 7 3 s\nq Q0 b x 2 s\nq Q0 c 99999999999 1 s\nq Q0 d 0 1 s\n"
    )
    (batch,) = scan_run(path)
    assert batch.rows[STATED_RANK].to_list() == [7, None, None, 0]


def write_run(path, lists):
    rows = [(q, f"d{i}") for q, length in lists.items() for i in range(length)]
    if path.suffix == ".parquet":
        columns = {"query_id": [q for q, _ in rows], "doc_id": [d for _, d in rows]}
        columns |= {"rank": range(len(rows)), "score": [0.0] * len(rows)}
        pl.DataFrame(columns).write_parquet(path)
        return path
    # Ungrouped: the rows of a query lie apart.
    text = "".join(f"{q} Q0 {d} 0 1 s\n" for q, d in sorted(rows, key=lambda row: row[1]))
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


@pytest.mark.parametrize("name", ["r.trec", "r.trec.gz", "r.parquet"])
@pytest.mark.parametrize("k", [1, 3, 100])
def test_passages_within_the_cutoff_are_counted(tmp_path, name, k):
    # Lists of 40, 11, 2 and 1 passages.
    expected = sum(min(k, length) for length in (40, 11, 2, 1))
    assert expected == {1: 4, 3: 9, 100: 54}[k]
    path = write_run(tmp_path / name, {"q1": 40, "q2": 11, "q3": 2, "q4": 1})
    assert lists_at_least([path], expected, k=k)
    assert not lists_at_least([path], expected + 1, k=k)
    other = write_run(tmp_path / f"other-{name}", {"q1": 5})
    assert lists_at_least([path, other], expected + min(k, 5), k=k)
    assert not lists_at_least([path, other], expected + min(k, 5) + 1, k=k)


def test_small_runs_are_told_by_their_size_and_large_ones_by_their_beginning(tmp_path, monkeypatch):
    path = write_run(tmp_path / "r", {f"q{i}": 10 for i in range(100)})
    batches = []
    whole = scan.scan_run

    def counting(given):
        for batch in whole(given):
            batches.append(batch)
            yield batch

    monkeypatch.setattr(scan, "scan_run", counting)
    monkeypatch.setattr("engine.sources.runs.scan._BLOCK", 1000)
    assert not lists_at_least([path], 10_000, k=10)
    assert batches == []
    assert lists_at_least([path], 60, k=10)
    assert len(batches) == 1


def test_dictionaries_are_estimated_and_never_parsed(tmp_path, monkeypatch):
    path = tmp_path / "r.json"
    path.write_text(
        json.dumps({f"q{i}": {f"document{j}": 0.5 for j in range(10)} for i in range(9)})
    )
    monkeypatch.setattr(scan, "scan_run", lambda path: pytest.fail("read whole"))
    assert lists_at_least([path], 50, k=10)
    assert not lists_at_least([path], 500, k=10)


def test_what_cannot_be_read_counts_as_far_as_it_can(tmp_path):
    broken = tmp_path / "r"
    broken.write_text("".join(f"q Q0 d{i} 0 1 s\n" for i in range(9)) + "no run\n")
    (tmp_path / "r.parquet").write_text("no Parquet")
    for path in (tmp_path / "none", tmp_path / "none.parquet", tmp_path / "r.parquet"):
        assert not lists_at_least([path], 1, k=5)
        assert lists_at_least([path, broken], 5, k=5)
        assert not lists_at_least([path, broken], 6, k=5)


def test_bytes_are_those_of_the_text(tmp_path):
    plain = write_run(tmp_path / "r", {"q": 100})
    assert bytes_of(plain) == plain.stat().st_size
    for name in ("r.gz", "r.parquet"):
        assert bytes_of(write_run(tmp_path / name, {"q": 100})) > 0
