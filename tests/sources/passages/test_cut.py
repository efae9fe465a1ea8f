from engine.sources.articles.article import Article
from engine.sources.passages.cut import passages
from engine.sources.passages.splitting import Cutting


def test_passages_never_cross_articles_and_name_their_article():
    articles = [Article("7", "Cat", "a b c"), Article("8", "Dog", ""), Article("9", "Elk", "d")]
    frame = passages(articles, cutting=Cutting(words=2))
    assert frame.rows() == [
        ("7-0", "Cat", "a b", "Cat"),
        ("7-1", "Cat", "c", "Cat"),
        ("9-0", "Elk", "d", "Elk"),
    ]
    paged = passages(articles, cutting=Cutting(words=2), article_id="page")
    assert paged["article_id"].to_list() == ["7", "7", "9"]


def test_a_source_may_give_its_articles_another_name():
    article = Article("7", "Cat", "a", "Q7")
    assert passages([article])["article_id"].to_list() == ["Q7"]
    assert passages([article], article_id="title")["article_id"].to_list() == ["Cat"]
    assert passages([Article("7", "", "a")])["article_id"].to_list() == ["7"]
