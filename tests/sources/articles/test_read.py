import bz2
import gzip
import json

import polars as pl
import pytest

from engine.messages.errors import InputError
from engine.sources.articles.article import Article
from engine.sources.articles.read import (
    article_chunks,
    parse_chunk,
    read_source,
    source_files,
)
from engine.sources.io.skipping import SkipBad

RECORDS = [{"id": str(n), "title": f"T{n}", "text": f"x{n}"} for n in range(5)]
ARTICLES = [Article(str(n), f"T{n}", f"x{n}") for n in range(5)]
JSONL = "".join(json.dumps(record) + "\n" for record in RECORDS).encode()
XML = (
    "<mediawiki>"
    + "".join(
        f"<page><title>T{n}</title><ns>0</ns><id>{n}</id><revision><text>x{n}</text></revision></page>"
        for n in range(5)
    )
    + "</mediawiki>"
).encode()


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.jsonl", JSONL),
        ("a.jsonl.gz", gzip.compress(JSONL, mtime=0)),
        ("a.json", JSONL),
        ("wiki_00", b"\xef\xbb\xbf" + JSONL),
        ("a.xml", XML),
        ("a.xml.bz2", bz2.compress(XML)),
        ("a.xml-p1p5.bz2", bz2.compress(XML)),
        ("a.xml.gz", gzip.compress(XML, mtime=0)),
    ],
)
def test_the_layout_follows_from_the_content(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    assert list(read_source(tmp_path / name)) == ARTICLES
    assert in_chunks(tmp_path / name, size=1) == [[article] for article in ARTICLES]


def in_chunks(path, **sizes):
    """The articles of each chunk, of which those without articles are left out."""
    chunks = article_chunks(path, skip=SkipBad(0), **sizes)
    return [found for chunk in chunks if (found := [one for _, one in parse_chunk(chunk)])]


def test_parquet_articles(tmp_path):
    path = tmp_path / "a.parquet"
    pl.DataFrame(RECORDS).with_columns(url=pl.lit("u")).write_parquet(path)
    assert list(read_source(path)) == ARTICLES
    assert in_chunks(path, rows=2) == [ARTICLES[:2], ARTICLES[2:4], ARTICLES[4:]]
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(InputError, match="not a readable Parquet file"):
        list(read_source(path))


def test_the_files_of_a_directory_are_ordered_by_name(tmp_path):
    for name in ("b.xml.bz2", "a.jsonl", "c.parquet", "README.md", ".hidden.jsonl"):
        (tmp_path / name).write_bytes(b"x")
    assert [f.name for f in source_files([tmp_path])] == ["a.jsonl", "b.xml.bz2", "c.parquet"]
    (tmp_path / "corpus.jsonl").write_bytes(b"x")
    files = source_files([tmp_path, tmp_path / "b.xml.bz2"])
    assert [f.name for f in files] == ["corpus.jsonl", "b.xml.bz2"]
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="a directory without articles"):
        source_files([tmp_path / "empty"])
    with pytest.raises(InputError, match="no such file"):
        source_files([tmp_path / "none"])


def test_bad_records_are_named_and_may_be_skipped(tmp_path):
    path = tmp_path / "a.jsonl"
    lines = JSONL.splitlines(keepends=True)
    path.write_bytes(b"".join([lines[0], b'{"id": "9"\n', b"\xff\n", b'{"id": 1}\n', *lines[1:]]))
    with pytest.raises(InputError, match=":2: broken JSON"):
        list(read_source(path))
    with pytest.raises(InputError, match=":4: an article without id or text"):
        list(read_source(path, skip_bad=2))
    skip = SkipBad(3)
    assert list(read_source(path, skip_bad=skip)) == ARTICLES
    assert skip.count == 3


@pytest.mark.parametrize("content", [b"plain words", b"\x00\x01", b"id\ttext\ttitle\n"])
def test_other_files_are_refused(tmp_path, content):
    (tmp_path / "a").write_bytes(content)
    with pytest.raises(InputError, match="starts with"):
        list(read_source(tmp_path / "a"))


def test_a_file_that_is_not_compressed_as_its_name_says_is_refused(tmp_path):
    for name in ("a.jsonl.gz", "a.xml.bz2"):
        (tmp_path / name).write_bytes(JSONL)
        with pytest.raises(InputError, match="cannot be read"):
            list(read_source(tmp_path / name))
