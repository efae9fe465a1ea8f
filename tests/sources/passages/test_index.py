import json
import pickle
import sqlite3

import polars as pl
import pytest

from engine.messages.errors import InputError
from engine.sources.io.digests import Fingerprint
from engine.sources.io.folders import folder_at
from engine.sources.passages import index as index_module
from engine.sources.passages.index import CorpusInMemory, PassageMarks, index_corpus
from engine.sources.passages.read import read_corpus
from engine.tables import DOC_ID, TEXT, TITLE
from tests.expected import refused

PASSAGES = [
    {"id": "b", "text": "first", "title": "T"},
    {"id": "a", "text": " \n"},
    {"id": "a\0", "text": "nul\0inside", "title": "漢"},
    {"id": 7, "text": "seven", "wikipedia_id": "W"},
    {"id": "A", "text": ""},
]


def write(path, records):
    path.write_text("".join(f"{json.dumps(record)}\n" for record in records))
    return path


@pytest.fixture(params=["path", "address"])
def folder(request, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return folder_at(tmp_path / "work" if request.param == "path" else f"memory://{tmp_path.name}")


def test_listed_passages_come_in_the_order_of_the_corpus(folder, tmp_path, monkeypatch):
    corpus = write(tmp_path / "c.jsonl", PASSAGES)
    index = index_corpus(corpus, folder, "k")
    whole = read_corpus(corpus)
    assert index.find([*whole["doc_id"], "none", ""]).equals(whole)
    assert index.find(["7", "a\0", "b", "b"])["doc_id"].to_list() == ["b", "a\0", "7"]
    assert index.find([]).schema == whole.schema
    assert pl.concat(index.scan()).equals(whole)
    assert pl.concat(index.scan(["title", "doc_id"])).equals(whole.select("title", "doc_id"))
    asked = pl.Series(["A", "x", "b", "A"])
    assert index.rows_of(asked).to_list() == [4, None, 0, 4]
    assert index.finder()(asked).to_list() == [4, None, 0, 4]
    monkeypatch.setattr(index_module, "_HELD", 4)
    assert index.finder()(asked).to_list() == [4, None, 0, 4]
    assert index.empty_rows().tolist() == [1, 4]
    fingerprint = Fingerprint()
    fingerprint.update(whole)
    assert (index.passages, index.skipped) == (5, 0)
    assert index.fingerprint == fingerprint.hexdigest()


def test_more_ids_than_one_statement_takes_are_found(folder, tmp_path):
    corpus = write(tmp_path / "c.jsonl", [{"id": i, "text": f"t{i}"} for i in range(5000)])
    index = index_corpus(corpus, folder, "k")
    ids = [str(i) for i in range(0, 6000, 2)]
    assert index.find(reversed(ids))["doc_id"].to_list() == ids[:2500]
    assert index.rows_of(pl.Series(ids)).to_list() == [*range(0, 5000, 2), *[None] * 500]


def test_an_index_is_built_once_and_known_by_its_key(folder, tmp_path, monkeypatch):
    corpus = write(tmp_path / "c.jsonl", PASSAGES)
    first = index_corpus(corpus, folder, "k")
    with monkeypatch.context() as patch:
        patch.setattr(index_module, "scan_corpus", lambda *a, **b: pytest.fail("read again"))
        assert index_corpus(corpus, folder, "k") == first
    write(corpus, PASSAGES[:1])
    assert index_corpus(corpus, folder, "another").passages == 1
    # Without its manifest, which comes last, a file counts as unfinished.
    folder.delete(["k.json"])
    assert index_corpus(corpus, folder, "k").passages == 1


@pytest.mark.parametrize(
    ("records", "skip_bad"),
    [
        ([*PASSAGES, {"id": "b", "text": "again"}], 0),
        ([*PASSAGES, {"id": "b", "text": "again"}, {"id": "c"}], 0),
        ([*PASSAGES, {"id": "c"}, {"id": "b", "text": "again"}], 0),
        ([{"id": "c"}, *PASSAGES, {"id": "d"}], 1),
        ([], 0),
    ],
)
def test_faults_of_the_corpus_are_those_of_reading_it(folder, tmp_path, records, skip_bad):
    corpus = write(tmp_path / "c.jsonl", records)
    errors = []
    for read in (
        lambda: read_corpus(corpus, ids=["b"], skip_bad=skip_bad),
        lambda: index_corpus(corpus, folder, "k", skip_bad=skip_bad),
    ):
        with pytest.raises(InputError) as caught:
            read()
        error = caught.value
        errors.append((str(error.path), error.line, error.problem, error.remedy))
    assert errors[0] == errors[1]
    assert folder.names() == []


def test_bad_records_are_counted_and_tolerated_no_more_than_asked(folder, tmp_path):
    corpus = write(tmp_path / "c.jsonl", [{"id": "c"}, *PASSAGES])
    assert index_corpus(corpus, folder, "k", skip_bad=3).skipped == 1
    assert index_corpus(corpus, folder, "k", skip_bad=1).skipped == 1
    with refused("corpus.text"):
        index_corpus(corpus, folder, "k")


def test_what_a_killed_builder_leaves_is_no_index(tmp_path):
    corpus = write(tmp_path / "c.jsonl", PASSAGES)
    folder = folder_at(tmp_path / "work")
    folder.at.mkdir()
    (folder.at / "k-1.sqlite").write_bytes(b"SQLite format 3\0 and no more")
    assert index_corpus(corpus, folder, "k").find(["b"]).height == 1
    (folder.at / "k.json").write_text("{")
    assert index_corpus(corpus, folder, "k").find(["b"]).height == 1
    assert folder.names() == ["k-1.sqlite", "k.json"]


def test_a_damaged_or_lost_index_is_one_line(tmp_path):
    folder = folder_at(tmp_path / "work")
    index = index_corpus(write(tmp_path / "c.jsonl", PASSAGES), folder, "k")
    path = folder.at / index.name
    path.write_bytes(path.read_bytes()[:100] + b"\xff" * 9000)
    with refused("corpus.cache"):
        index.find(["b"])
    path.unlink()
    with refused("corpus.cache"):
        index.find(["b"])


def test_a_machine_fetches_an_index_from_an_address_once(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    folder = folder_at(f"memory://{tmp_path.name}")
    index = index_corpus(write(tmp_path / "c.jsonl", PASSAGES), folder, "k")
    (kept,) = tmp_path.glob("erag-passages-*")
    assert kept.stat().st_mode & 0o777 == 0o700
    (kept / index.name).unlink()  # as on another machine
    assert index.find(["b"]).height == 1
    folder.delete([index.name])
    assert pickle.loads(pickle.dumps(index)).find(["a"]).height == 1
    (kept / index.name).unlink()
    with refused("files.missing"):
        index.find(["b"])
    kept.chmod(0o755)
    with refused("corpus.owner", text=False):
        index.find(["b"])


def test_passages_are_found_through_the_index_of_ids(tmp_path, monkeypatch):
    """A lookup that reads the whole table would take minutes for millions of passages."""
    folder = folder_at(tmp_path / "work")
    index = index_corpus(write(tmp_path / "c.jsonl", PASSAGES), folder, "k")
    asked, connect = [], sqlite3.connect

    def traced(*place, **options):
        connection = connect(*place, **options)
        connection.set_trace_callback(asked.append)
        return connection

    monkeypatch.setattr(sqlite3, "connect", traced)
    index.find(["b", "a"])
    with connect(folder.at / index.name) as connection:
        plan = connection.execute(f"EXPLAIN QUERY PLAN {asked[-1]}").fetchall()
    assert "SEARCH passages USING INDEX ids" in str(plan)


CORPUS = [
    ("d1", "one text", "T"),
    ("d2", " ", "T"),
    ("d3", "one text", ""),
    ("d4", "another", "U"),
    ("d5", "the last", ""),
]


@pytest.fixture(params=["collected", "held", "marked"])
def passages(request, tmp_path):
    path = tmp_path / "c.jsonl"
    rows = [{"id": i, "text": text, "title": title} for i, text, title in CORPUS]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows) + '{"id": "bad"}\n')
    if request.param == "marked":
        return PassageMarks(index_corpus(path, folder_at(tmp_path), "k", skip_bad=1))
    collected = CorpusInMemory.from_corpus(path, skip_bad=1)
    if request.param == "held":
        collected.look_up(pl.Series([i for i, *_ in CORPUS]))
        (table,) = collected.scan()
        return CorpusInMemory(lambda skip: [table])
    return collected


def listed(passages, column=DOC_ID):
    return [value for batch in passages.scan([column]) for value in batch[column]]


def test_what_was_looked_up_is_noted_in_the_order_of_the_corpus(passages):
    assert passages.look_up(pl.Series(["d4", "lost", "d2"])).to_list() == ["lost"]
    assert listed(passages) == ["d2", "d4"]
    assert listed(passages, TITLE) == ["T", "U"]
    assert passages.count_empty() == 1
    assert passages.look_up(pl.Series(["d4"])).is_empty()
    assert sorted(listed(passages)) == ["d2", "d4"]


def test_a_text_stands_for_the_first_passage_that_has_it_and_comes_last(passages):
    passages.look_up(pl.Series(["d4"]))
    found = passages.look_up_texts(pl.Series(["the last", "one text", "no such"]))
    assert sorted(found.select(TEXT, DOC_ID).rows()) == [("one text", "d1"), ("the last", "d5")]
    assert listed(passages) == ["d4", "d1", "d5"]


def test_a_passage_that_has_both_its_id_and_its_text_given_is_noted_once(passages):
    passages.look_up(pl.Series(["d1"]))
    passages.look_up_texts(pl.Series(["one text"]))
    assert listed(passages) == ["d1"]


def test_ids_are_unknown_that_are_not_those_of_passages(passages):
    passages.look_up(pl.Series(["d1", "lost"]))
    assert passages.unknown(pl.Series(["lost", "d1"])).to_list() == ["lost"]


def test_bad_records_are_counted(passages, request):
    passages.look_up(pl.Series(["d1"]))
    expected = 0 if "held" in request.node.name else 1
    assert passages.skipped == expected
