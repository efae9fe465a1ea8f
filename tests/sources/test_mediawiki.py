import bz2

import pytest

from engine.errors import InputError
from engine.sources.mediawiki import plain_text, read_articles

DUMP = """<mediawiki xmlns="http://www.mediawiki.org/xml/export-0.10/">
<page><title>Cat</title><ns>0</ns><id>7</id><revision><id>1</id><text>A '''cat''' purrs.</text></revision></page>
<page><title>Kitty</title><ns>0</ns><id>8</id><redirect title="Cat"/><revision><id>2</id><text>#REDIRECT [[Cat]]</text></revision></page>
<page><title>Talk:Cat</title><ns>1</ns><id>9</id><revision><id>3</id><text>hello</text></revision></page>
</mediawiki>"""


def test_redirects_and_other_namespaces_are_left_out(tmp_path):
    plain, packed = tmp_path / "d.xml", tmp_path / "d.xml.bz2"
    plain.write_text(DUMP)
    packed.write_bytes(bz2.compress(DUMP.encode()))
    for path in (plain, packed):
        (article,) = read_articles(path)
        assert (article.page_id, article.title, article.text) == ("7", "Cat", "A cat purrs.")


@pytest.mark.parametrize(
    ("markup", "text"),
    [
        ("[[Dog|Dogs]] and [[cat]]s<ref>Smith 1999</ref>.", "Dogs and cats."),
        ("It is {{convert|120|km|mi}} long.", "It is 120 km long."),
        ("From {{convert|5|to|7|ft|m}} tall.", "From 5 to 7 ft tall."),
        ("Called {{lang|fr|chat}} ({{IPA|ʃa}}).", "Called chat."),
        ("One.{{citation needed}}<!-- no --> Two&nbsp;dogs.", "One. Two dogs."),
        ("[[File:Cat.jpg|thumb|A [[cat]] sleeps]]Text.", "Text."),
        ("{| class=x\n| cell\n|}\nText.", "Text."),
        ("* one\n* two", "one\ntwo"),
        ("A [http://x.org site] and [http://y.org].", "A site and."),
        ("[[Category:Cats]]\n[[fr:Chat]]\nText.", "Text."),
        ("x<sub>2</sub> and <math>a^2</math>b", "x2 and b"),
        ("Lead.\n== History ==\nOld.\n== References ==\nSmith\n=== Books ===\nB\n", "Lead.\nOld."),
        ("Lead.\n== See also ==\nX\n== Later ==\nMore.", "Lead.\nMore."),
    ],
)
def test_wikitext_becomes_prose(markup, text):
    assert plain_text(markup) == text


def test_files_that_are_no_dump_are_refused(tmp_path):
    path = tmp_path / "d.xml"
    path.write_text("<mediawiki><page>")
    with pytest.raises(InputError, match="not well-formed XML"):
        list(read_articles(path))
    path.write_text("<html></html>")
    with pytest.raises(InputError, match="holds no <page>"):
        list(read_articles(path))
    (tmp_path / "d.xml.bz2").write_bytes(bz2.compress(DUMP.encode())[:-20])
    with pytest.raises(InputError, match="cannot be read|not well-formed"):
        list(read_articles(tmp_path / "d.xml.bz2"))
    with pytest.raises(InputError, match="no such file"):
        list(read_articles(tmp_path / "none.xml"))
