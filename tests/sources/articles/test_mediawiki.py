import bz2
import gzip

import pytest

from engine.messages.errors import InputError
from engine.sources.articles.mediawiki import raw_pages
from engine.sources.articles.read import read_source
from engine.sources.io.skipping import SkipBad

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
    with pytest.raises(InputError, match="holds no <page>"):
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
        (page(8, "a & b"), 4, "not well-formed"),
        (page(8, "a\nb < c"), 5, "not well-formed"),
        (page(8, end=""), 4, "a page without an end"),
        ("scrap\n", 4, "text between pages: b'scrap'"),
        ("</page>\n", 4, "an end tag of a page without its start tag"),
    ],
)
def test_broken_pages_are_named_by_line_and_may_be_skipped(tmp_path, bad, line, words):
    path = dump(tmp_path / "d.xml", page(1), bad, page(2), page(3))
    with pytest.raises(InputError, match=words) as caught:
        list(read_source(path))
    assert caught.value.line == line
    skip = SkipBad(1)
    assert [a.page_id for a in read_source(path, skip_bad=skip)] == ["1", "2", "3"]
    assert skip.count == 1


def test_a_truncated_dump_is_refused_for_any_number_of_tolerated_pages(tmp_path):
    path = dump(tmp_path / "d.xml", page(1), page(2))
    whole = path.read_text()
    for cut, where in ((whole.index("T2"), "within a page"), (-13, "before </mediawiki>")):
        path.write_text(whole[:cut])
        with pytest.raises(InputError, match=f"ends {where}"):
            list(read_source(path, skip_bad=100))
    packed = tmp_path / "d.xml.gz"
    packed.write_bytes(gzip.compress(whole.encode())[:-9])
    with pytest.raises(InputError, match="cannot be read"):
        list(read_source(packed, skip_bad=100))


def test_concatenated_dumps_are_read_as_one(tmp_path):
    first, second = dump(tmp_path / "a.xml", page(1)), dump(tmp_path / "b.xml", page(2))
    packed = tmp_path / "c.xml.bz2"
    packed.write_bytes(bz2.compress(first.read_bytes()) + bz2.compress(second.read_bytes()))
    assert [a.page_id for a in read_source(packed)] == ["1", "2"]


def test_a_page_without_an_end_tag_does_not_fill_the_memory(tmp_path):
    path = dump(tmp_path / "d.xml", page(1), "<page>" + "x" * (5 << 20))
    with pytest.raises(InputError, match=":4: a page of more than 3 MiB"):
        list(raw_pages(path, skip=SkipBad(0), largest=3 << 20))
