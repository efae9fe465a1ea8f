import pytest

from engine.sources.articles.read import BACK_MATTER
from engine.sources.articles.wikitext import plain_text


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
    assert plain_text(markup, BACK_MATTER) == text
