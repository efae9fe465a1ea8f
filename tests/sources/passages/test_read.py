import gzip
import itertools
import json
import os
import random

import polars as pl
import pyarrow as pa
import pytest

from engine.sources.io import ids as distinct
from engine.sources.io.files import write_parquet
from engine.sources.io.records import SkipBad
from engine.sources.passages import read as corpus
from engine.sources.passages.read import read_corpus, scan_corpus, split_corpus
from tests.expected import refused


def write(path, *records):
    path.write_text("".join(json.dumps(r) + "\n" for r in records), encoding="utf-8")
    return path


def test_field_names_of_the_usual_layouts_are_recognized(tmp_path):
    path = write(
        tmp_path / "c.jsonl",
        {"doc_id": "1", "title": "T", "text": "a", "article_id": "A"},
        {"_id": "2", "title": "T", "text": "b"},
        {"id": 3, "contents": "c"},
        {"id": "4", "title": "T", "text": "d", "wikipedia_id": "77"},
    )
    frame = read_corpus(path)
    assert frame["doc_id"].to_list() == ["1", "2", "3", "4"]
    assert frame["article_id"].to_list() == ["A", "T", "3", "77"]


def test_a_data_frames_export_is_read(tmp_path):
    path = tmp_path / "c.csv"
    # as pandas writes it: the index has no name; a text may span lines, and be empty
    path.write_text(',doc_id,title,text\n0,1,T,"a, ""b""\nc"\n1,02,,\n')
    frame = read_corpus(path)
    assert frame.rows() == [("1", "T", 'a, "b"\nc', "T"), ("02", "", "", "02")]
    assert read_corpus(path, ids={"02"}).height == 1
    path.write_text("doc_id,text\n1,a,b\n2,c\n")
    with refused("table.fields", path=path, line=2):
        read_corpus(path)
    assert read_corpus(path, skip_bad=1)["doc_id"].to_list() == ["2"]
    for content, line, code in (
        ("doc_id,body\n1,a\n", 1, "table.header"),
        ("text,title\na,b\n", 2, "corpus.unnamed"),
        ("doc_id,text\n1,a\n1,b\n", 3, "corpus.twice"),
        ('doc_id,text\n1,"a\n', 2, "table.quotes"),
    ):
        path.write_text(content)
        with refused(code, path=path, line=line):
            read_corpus(path)


def test_only_wanted_passages_are_kept_from_either_format(tmp_path):
    path = write(tmp_path / "c.jsonl", *({"id": str(i), "text": f"t{i}"} for i in range(5)))
    write_parquet(read_corpus(path), tmp_path / "c.parquet")
    for source in (path, tmp_path / "c.parquet"):
        assert read_corpus(source, ids={"3", "1"})["doc_id"].to_list() == ["1", "3"]


@pytest.mark.parametrize(
    ("records", "line", "code"),
    [
        ([{"id": "1", "text": "a"}, {"id": "1", "text": "b"}], 2, "corpus.twice"),
        ([{"text": "a"}], 1, "corpus.unnamed"),
        ([{"id": "1"}], 1, "corpus.text"),
        ([{"id": "1", "text": None}], 1, "corpus.text"),
        ([{"id": "1", "text": "a", "title": 5}], 1, "corpus.title"),
        ([], None, "corpus.empty"),
    ],
)
def test_bad_corpora_are_refused(tmp_path, records, line, code):
    path = write(tmp_path / "c.jsonl", *records)
    with refused(code, path=path, line=line):
        read_corpus(path, ids={"9"})


COLUMNS = {"doc_id": [1, 1], "title": ["", ""], "text": ["a", "b"], "article_id": ["x", "y"]}


@pytest.mark.parametrize("wanted", [None, {"1"}])
@pytest.mark.parametrize(
    ("table", "words"),
    [
        (pl.DataFrame(COLUMNS), "corpus.twice"),
        (pl.DataFrame(COLUMNS).clear(), "corpus.empty"),
        (pl.DataFrame({"doc_id": ["1"], "title": ["a"]}), "table.column"),
    ],
)
def test_bad_parquet_corpora_are_refused(tmp_path, table, words, wanted):
    table.write_parquet(tmp_path / "c.parquet")
    with refused(words):
        read_corpus(tmp_path / "c.parquet", ids=wanted)


def test_integer_ids_in_parquet_are_read_as_text(tmp_path):
    path = tmp_path / "c.parquet"
    pl.DataFrame(COLUMNS | {"doc_id": [1, 2]}).write_parquet(path)
    assert read_corpus(path, ids={"2"})["doc_id"].to_list() == ["2"]
    assert read_corpus(path)["doc_id"].to_list() == ["1", "2"]


def dpr(path, *lines):
    text = "id\ttext\ttitle\n" + "".join(f"{line}\n" for line in lines)
    data = text.encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


@pytest.mark.parametrize("name", ["psgs_w100.tsv", "psgs_w100.tsv.gz"])
def test_dpr_passages_are_unquoted_and_belong_to_their_title(tmp_path, name):
    path = dpr(tmp_path / name, '1\t"the ""second"" plague"\tAaron', "2\tplain\t")
    assert read_corpus(path).rows() == [
        ("1", "Aaron", 'the "second" plague', "Aaron"),
        ("2", "", "plain", "2"),
    ]


def test_a_tsv_with_another_header_is_read_like_csv(tmp_path):
    (tmp_path / "c.tsv").write_text("text\tdoc_id\na\t1\n")
    assert read_corpus(tmp_path / "c.tsv").rows() == [("1", "", "a", "1")]
    (tmp_path / "c.tsv").write_text("1\ta\n2\tb\n")
    with refused("table.header", path=tmp_path / "c.tsv", line=1):
        read_corpus(tmp_path / "c.tsv", skip_bad=9)


def test_a_beir_directory_is_read_by_its_corpus(tmp_path):
    write(tmp_path / "corpus.jsonl", {"_id": "d1", "title": "T", "text": "a", "metadata": {}})
    write(tmp_path / "queries.jsonl", {"_id": "q1", "text": "x"})
    assert read_corpus(tmp_path).rows() == [("d1", "T", "a", "T")]


def test_shards_are_read_in_the_order_of_their_names(tmp_path):
    for name, doc_id in (("b", "2"), ("a", "1"), ("c", "3")):
        row = {"doc_id": [doc_id], "title": [""], "text": ["t"], "article_id": ["x"]}
        pl.DataFrame(row).write_parquet(tmp_path / f"{name}.parquet")
    assert read_corpus(tmp_path)["doc_id"].to_list() == ["1", "2", "3"]
    (tmp_path / "d.parquet").write_bytes((tmp_path / "b.parquet").read_bytes())
    with refused("corpus.twice"):
        read_corpus(tmp_path)
    with refused("corpus.files"):
        read_corpus(tmp_path.parent / tmp_path.name / "..")


def test_batches_joined_are_the_corpus_and_duplicates_far_apart_are_found(tmp_path, monkeypatch):
    monkeypatch.setattr(corpus, "_ROWS", 7)
    records = [{"id": str(i), "text": f"t{i}"} for i in range(50)]
    path = write(tmp_path / "c.jsonl", *records)
    batches = list(scan_corpus(path))
    assert [b.height for b in batches] == [7] * 7 + [1]
    assert pl.concat(batches).equals(read_corpus(path))
    write_parquet(pl.concat(batches), tmp_path / "c.parquet")
    assert [b.height for b in scan_corpus(tmp_path / "c.parquet")] == [7] * 7 + [1]
    assert read_corpus(tmp_path / "c.parquet").equals(pl.concat(batches))
    write(path, *records, {"id": "3", "text": "again"})
    with refused("corpus.twice"):
        list(scan_corpus(path, distinct=True))


def test_different_ids_with_equal_hashes_are_not_duplicates(tmp_path, monkeypatch):
    def same(ids):
        return pl.Series([7] * len(ids), dtype=pl.UInt64)

    monkeypatch.setattr(distinct, "hash_ids", same)
    path = write(tmp_path / "c.jsonl", *({"id": str(i), "text": "t"} for i in range(5)))
    assert read_corpus(path).height == 5
    write(path, *({"id": str(i), "text": "t"} for i in (0, 1, 2, 1)))
    with refused("corpus.twice"):
        read_corpus(path)


def test_bad_records_are_skipped_up_to_a_limit_and_counted(tmp_path):
    path = tmp_path / "c.jsonl"
    path.write_bytes(
        b'{"id": "1", "text": "a"}\n{"id": "2", "te\n{"id": "3"}\n\xff\n{"id": "5", "text": "e"}\n'
    )
    skip = SkipBad(3)
    assert read_corpus(path, skip_bad=skip)["doc_id"].to_list() == ["1", "5"]
    assert skip.count == 3
    assert skip.described().startswith(f"3 bad records skipped ({path}:2: broken JSON")
    with refused("files.intolerable"):
        read_corpus(path, skip_bad=2)
    with refused("json.broken"):
        read_corpus(path)


def test_a_truncated_file_is_refused_for_any_number_of_tolerated_records(tmp_path):
    path = tmp_path / "c.jsonl.gz"
    lines = "".join(json.dumps({"id": str(i), "text": f"{i * i}"}) + "\n" for i in range(999))
    path.write_bytes(gzip.compress(lines.encode())[:-60])
    with refused("files.unreadable", text=False) as caught:
        read_corpus(path, skip_bad=10**6)
    assert caught.value.line > 1


def test_quoted_dpr_texts_may_span_lines(tmp_path):
    path = dpr(tmp_path / "c.tsv", '1\t"one\n\ntwo"\tT', "2\tb\u2028c\tT", '3\t"x\n""y"""\tT')
    assert read_corpus(path)["text"].to_list() == ["one\n\ntwo", "b\u2028c", 'x\n"y"']


def test_a_scan_runs_in_constant_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(corpus, "_ROWS", 1000)
    path = tmp_path / "c.parquet"
    texts = [random.Random(n).randbytes(500).hex() for n in range(20_000)]
    ids = [str(n) for n in range(20_000)]
    table = pl.DataFrame({"doc_id": ids, "title": ids, "text": texts, "article_id": ids})
    table.write_parquet(path, row_group_size=500)
    before, most = pa.total_allocated_bytes(), 0
    for batch in scan_corpus(path):
        most = max(most, pa.total_allocated_bytes() - before)
        del batch
    # 20 batches; Arrow, left to itself, keeps the whole file.
    assert 0 < most < path.stat().st_size / 2


# A passage as others write it, and the row of the corpus table that it is.
NAMES = [
    ({"_id": "1", "title": "T", "text": "x"}, ("1", "T", "x", "T")),
    ({"id": "1", "contents": "x"}, ("1", "", "x", "1")),
    ({"docid": "1", "content": "x", "title": None, "wikipedia_id": "9"}, ("1", "", "x", "9")),
    ({"passage_id": 1, "page_content": "x", "title": "", "article_id": "A"}, ("1", "", "x", "A")),
    ({"doc_id": "1", "title": "T", "text": "", "article_id": None}, ("1", "T", "", "T")),
]


@pytest.mark.parametrize(("record", "row"), NAMES)
def test_names_of_fields_are_the_same_in_every_layout(tmp_path, record, row):
    (tmp_path / "c.jsonl").write_text(json.dumps(record) + "\n")
    (tmp_path / "c.json").write_text(json.dumps([record], indent=2))
    pl.DataFrame([record]).write_parquet(tmp_path / "c.parquet")
    for name in ("c.jsonl", "c.json", "c.parquet"):
        assert read_corpus(tmp_path / name).rows() == [row], name


def test_bad_items_of_an_array_can_be_skipped_and_broken_json_cannot(tmp_path):
    path = tmp_path / "c.json"
    path.write_text('[{"id": "1", "text": "x"},\n 5,\n {"id": "2"},\n {"id": "3", "text": "y"}]')
    with refused("json.object"):
        read_corpus(path)
    assert read_corpus(path, skip_bad=2)["doc_id"].to_list() == ["1", "3"]
    path.write_text('[{"id": "1", "text": "x"},\n {"id": "2", "text": }]')
    with refused("json.broken"):
        read_corpus(path, skip_bad=9)


@pytest.mark.parametrize("rows", [1, 7, 64, 1000])
@pytest.mark.parametrize("heights", [[50], [20, 1, 0, 2, 27], [3] * 16 + [2]])
def test_parts_of_parquet_are_the_corpus_and_begin_at_multiples(
    heights, rows, tmp_path, monkeypatch
):
    monkeypatch.setattr(corpus, "_ROWS", 7)
    texts = [f"e\u0301 {i}" for i in range(50)]  # to be composed
    whole = pl.DataFrame({"id": range(50), "text": texts})
    for number, height in enumerate(heights):
        first = sum(heights[:number])
        write_parquet(whole[first : first + height], tmp_path / f"{number:02}.parquet")
    parts = split_corpus(tmp_path, rows)
    assert all(first % rows == 0 for first, _ in parts)
    assert len(parts) <= len(heights)
    read = [pl.concat(scan()) for _, scan in parts]
    firsts = [0, *itertools.accumulate(part.height for part in read)]
    assert firsts == [first for first, _ in parts] + [50]
    assert pl.concat(read).equals(read_corpus(tmp_path))


def test_only_stored_parquet_has_parts(tmp_path):
    """A pipe gives its content once, and others are read from their beginning."""
    write(tmp_path / "c.jsonl", {"id": "1", "text": "t"})
    os.mkfifo(tmp_path / "p.parquet")
    for path in (tmp_path / "c.jsonl", tmp_path / "p.parquet", "irds:nothing"):
        assert split_corpus(path, 10) == []
