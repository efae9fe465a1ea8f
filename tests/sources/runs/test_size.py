import gzip
import json

import polars as pl
import pytest

from engine.sources.runs import size
from engine.sources.runs.size import bytes_of, lists_at_least


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
    scan = size.scan_run

    def counting(given):
        for batch in scan(given):
            batches.append(batch)
            yield batch

    monkeypatch.setattr(size, "scan_run", counting)
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
    monkeypatch.setattr(size, "scan_run", lambda path: pytest.fail("read whole"))
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
