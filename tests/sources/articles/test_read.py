import bz2
import gzip
import json

import polars as pl
import pytest

from engine.sources.articles.read import (
    Article,
    article_chunks,
    is_squad,
    kilt_text,
    parse_chunk,
    parse_record,
    raw_pages,
    read_source,
    read_squad,
    source_files,
)
from engine.sources.io.records import SkipBad
from tests.expected import refused


def test_articles_of_the_usual_layouts_are_read():
    for record, expected in (
        ({"id": 1, "title": "T", "text": "x"}, Article("1", "T", "x")),
        ({"_id": "a", "title": "", "text": "x", "metadata": {}}, Article("a", "", "x")),
        ({"doc_id": "d", "contents": "x", "article_id": "A"}, Article("d", "", "x", "A")),
        (
            {"_id": "7", "wikipedia_id": "7", "wikipedia_title": "T", "text": ["T\n", "x\n"]},
            Article("7", "T", "x", "7"),
        ),
    ):
        assert parse_record("a.jsonl", 1, record) == expected


def test_kilt_paragraphs_lose_title_headings_markers_and_back_matter():
    paragraphs = [
        "Cat\n",
        "A cat purrs.\n",
        "Section::::History.\n",
        "Old.\n",
        "Section::::History.:Ancient Egypt.\n",
        "BULLET::::- A goddess\n",
        "Section::::References.\n",
        "Smith\n",
        "Section::::References.:Books.\n",
        "BULLET::::- A book\n",
        "Section::::Later.\n",
        "More.\n",
    ]
    assert kilt_text(paragraphs, "Cat") == "A cat purrs.\nOld.\nA goddess\nMore."
    assert kilt_text(["A cat purrs.\n"], "Cat") == "A cat purrs."


@pytest.mark.parametrize(
    ("record", "words"),
    [
        ({"id": "1"}, "articles.text"),
        ({"text": "x"}, "articles.text"),
        ({"id": ["1"], "text": "x"}, "articles.text"),
        ({"id": "1", "text": ["x", 3]}, "articles.text"),
        ({"id": "1", "text": "\ud800"}, "articles.surrogate"),
    ],
)
def test_bad_records_are_refused(record, words):
    with refused(words) as caught:
        parse_record("a.jsonl", 5, record)
    assert caught.value.line == 5


def document(*entries):
    return {"version": "1", "data": list(entries)}


def entry(title, *contexts):
    return {"title": title, "paragraphs": [{"context": c, "qas": []} for c in contexts]}


def test_contexts_are_articles_that_share_their_title(tmp_path):
    path = tmp_path / "s.json"
    path.write_text(json.dumps(document(entry("Cat", "a", "b"), entry("", "c"))))
    assert [article for article, _ in read_squad(path)] == [
        Article("s-0.0", "Cat", "a", "Cat"),
        Article("s-0.1", "Cat", "b", "Cat"),
        Article("s-1.0", "", "c", "1"),
    ]


def test_squad_documents_are_distinguished_from_json_lines(tmp_path):
    whole = document(entry("Cat", "a"))
    for name, text, expected in (
        ("a.json", json.dumps(whole), True),
        ("b.jsonl", json.dumps(whole), True),
        ("c.txt", json.dumps(whole, indent=1), True),
        ("d.json", '{"version": "1",\n"data": []}', True),
        ("e.json", '{"id": "1", "text": "x"}\n{"id": "2"}\n', False),
        ("f.jsonl", '{"id": "1", "te\n', False),
        ("g.jsonl", '{"id": "1", "data": "x"}\n', False),
        ("h.jsonl", "", False),
    ):
        (tmp_path / name).write_text(text)
        assert is_squad(tmp_path / name) is expected, name


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ('{\n"data": [\n{"title": }]}', 3, "json.broken"),
        ('{"data": 3}', None, "articles.data"),
        ('{"data": [{"title": "x"}]}', None, "articles.paragraphs"),
        ('{"data": [{"paragraphs": [{"qas": []}]}]}', None, "articles.context"),
        (
            '{"data": [{"paragraphs": [{"context": "x", "qas": [1]}]}]}',
            None,
            "articles.questions",
        ),
    ],
)
def test_bad_documents_are_refused(tmp_path, text, line, words):
    path = tmp_path / "s.json"
    path.write_text(text)
    with refused(words) as caught:
        list(read_squad(path))
    assert caught.value.line == line


DUMP = """<mediawiki xmlns="http://www.mediawiki.org/xml/export-0.10/">
<page><title>Cat</title><ns>0</ns><id>7</id><revision><id>1</id><text>A '''cat''' purrs.</text></revision></page>
<page><title>Kitty</title><ns>0</ns><id>8</id><redirect title="Cat"/><revision><id>2</id><text>#REDIRECT [[Cat]]</text></revision></page>
<page><title>Talk:Cat</title><ns>1</ns><id>9</id><revision><id>3</id><text>hello</text></revision></page>
</mediawiki>"""


def test_redirects_and_other_namespaces_are_left_out(tmp_path):
    plain, packed, zipped = (tmp_path / f"d.xml{end}" for end in ("", ".bz2", ".gz"))
    plain.write_text(DUMP)
    packed.write_bytes(bz2.compress(DUMP.encode()))
    zipped.write_bytes(gzip.compress(DUMP.encode()))
    for path in (plain, packed, zipped):
        (article,) = read_source(path)
        assert (article.page_id, article.title, article.text) == ("7", "Cat", "A cat purrs.")


def test_files_that_are_not_dumps_are_refused(tmp_path):
    path = tmp_path / "d.xml"
    path.write_text("<html></html>")
    with refused("articles.page"):
        list(read_source(path))


def page(number, text="words", end="</page>"):
    return (
        f"<page><title>T{number}</title><ns>0</ns><id>{number}</id>"
        f"<revision><text>{text}</text></revision>{end}\n"
    )


def dump(path, *pages):
    path.write_text("<mediawiki>\n<siteinfo/>\n" + "".join(pages) + "</mediawiki>\n")
    return path


def test_pages_do_not_depend_on_the_size_of_the_blocks_read(tmp_path):
    path = dump(tmp_path / "d.xml", *(page(n, f"a{n}\nb") for n in range(40)))
    assert [article.page_id for article in read_source(path)] == [str(n) for n in range(40)]
    whole = list(raw_pages(path, skip=SkipBad(0)))
    for block in (1, 7, 100):
        assert list(raw_pages(path, skip=SkipBad(0), block=block)) == whole


@pytest.mark.parametrize(
    ("bad", "line", "words"),
    [
        (page(8, "a & b"), 4, "articles.xml"),
        (page(8, "a\nb < c"), 5, "articles.xml"),
        (page(8, end=""), 4, "articles.xml"),
        ("scrap\n", 4, "articles.xml"),
        ("</page>\n", 4, "articles.xml"),
    ],
)
def test_broken_pages_are_named_by_line_and_may_be_skipped(tmp_path, bad, line, words):
    path = dump(tmp_path / "d.xml", page(1), bad, page(2), page(3))
    with refused(words) as caught:
        list(read_source(path))
    assert caught.value.line == line
    skip = SkipBad(1)
    assert [a.page_id for a in read_source(path, skip_bad=skip)] == ["1", "2", "3"]
    assert skip.count == 1


def test_a_truncated_dump_is_refused_for_any_number_of_tolerated_pages(tmp_path):
    path = dump(tmp_path / "d.xml", page(1), page(2))
    whole = path.read_text()
    for cut in (whole.index("T2"), -13):
        path.write_text(whole[:cut])
        with refused("articles.xml"):
            list(read_source(path, skip_bad=100))
    packed = tmp_path / "d.xml.gz"
    packed.write_bytes(gzip.compress(whole.encode())[:-9])
    with refused("files.unreadable"):
        list(read_source(packed, skip_bad=100))


def test_concatenated_dumps_are_read_as_one(tmp_path):
    first, second = dump(tmp_path / "a.xml", page(1)), dump(tmp_path / "b.xml", page(2))
    packed = tmp_path / "c.xml.bz2"
    packed.write_bytes(bz2.compress(first.read_bytes()) + bz2.compress(second.read_bytes()))
    assert [a.page_id for a in read_source(packed)] == ["1", "2"]


def test_a_page_without_an_end_tag_does_not_fill_the_memory(tmp_path):
    path = dump(tmp_path / "d.xml", page(1), "<page>" + "x" * (5 << 20))
    with refused("articles.length"):
        list(raw_pages(path, skip=SkipBad(0), largest=3 << 20))


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
    with refused("files.parquet", text=False):
        list(read_source(path))


def test_a_file_that_is_packed_twice_is_not_passed_over(tmp_path):
    for name in ("a.jsonl", "b.jsonl.bz2.gz"):
        (tmp_path / name).touch()
    assert [f.name for f in source_files([tmp_path])] == ["a.jsonl", "b.jsonl.bz2.gz"]


def test_the_files_of_a_directory_are_ordered_by_name(tmp_path):
    for name in ("b.xml.bz2", "a.jsonl", "c.parquet", "README.md", ".hidden.jsonl"):
        (tmp_path / name).write_bytes(b"x")
    assert [f.name for f in source_files([tmp_path])] == ["a.jsonl", "b.xml.bz2", "c.parquet"]
    (tmp_path / "corpus.jsonl").write_bytes(b"x")
    files = source_files([tmp_path, tmp_path / "b.xml.bz2"])
    assert [f.name for f in files] == ["corpus.jsonl", "b.xml.bz2"]
    (tmp_path / "empty").mkdir()
    with refused("articles.none"):
        source_files([tmp_path / "empty"])
    with refused("files.missing"):
        source_files([tmp_path / "none"])


def test_bad_records_are_named_and_may_be_skipped(tmp_path):
    path = tmp_path / "a.jsonl"
    lines = JSONL.splitlines(keepends=True)
    path.write_bytes(b"".join([lines[0], b'{"id": "9"\n', b"\xff\n", b'{"id": 1}\n', *lines[1:]]))
    with refused("json.broken"):
        list(read_source(path))
    with refused("files.intolerable"):
        list(read_source(path, skip_bad=2))
    skip = SkipBad(3)
    assert list(read_source(path, skip_bad=skip)) == ARTICLES
    assert skip.count == 3


@pytest.mark.parametrize("content", [b"plain words", b"\x00\x01", b"id\ttext\ttitle\n"])
def test_other_files_are_refused(tmp_path, content):
    (tmp_path / "a").write_bytes(content)
    with refused("articles.layout"):
        list(read_source(tmp_path / "a"))


def test_a_file_that_is_not_compressed_as_its_name_says_is_refused(tmp_path):
    for name in ("a.jsonl.gz", "a.xml.bz2"):
        (tmp_path / name).write_bytes(JSONL)
        with refused("files.unreadable"):
            list(read_source(tmp_path / name))
