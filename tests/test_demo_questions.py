"""The bundled question sets hold what they promise, against the bundled articles."""

import collections

import pytest

from engine.labels.dual import tokenize
from engine.sources.bundled import questions
from engine.sources.io.records import read_json_lines
from engine.sources.queries.read import read_queries

SIZES = {"short-answer": 100, "claims": 40, "two-hop": 30, "dialogue": 20}


@pytest.fixture(scope="module")
def articles(bundled_corpus):
    frame = bundled_corpus.group_by("article_id", maintain_order=True).agg("text")
    return {title: " ".join(texts) for title, texts in frame.iter_rows()}


@pytest.mark.parametrize("name", SIZES)
def test_sets_are_large_enough_and_name_articles_that_exist(name, articles):
    frame = read_queries(questions(name))  # refuses duplicate ids and missing answers
    assert frame.height >= SIZES[name]
    assert frame["query"].str.to_lowercase().is_unique().all()
    for row in frame.iter_rows(named=True):
        assert row["provenance"], row["query_id"]
        assert set(row["provenance"]) <= articles.keys(), row["query_id"]


def test_ids_are_unique_over_all_sets():
    ids = [r["id"] for name in SIZES for _, r in read_json_lines(questions(name), "questions")]
    assert len(ids) == len(set(ids))


@pytest.mark.parametrize("name", ["short-answer", "two-hop"])
def test_answers_are_short_and_the_first_occurs_in_an_article(name, articles):
    for row in read_queries(questions(name)).iter_rows(named=True):
        first = row["answers"][0]
        assert 1 <= len(first.split()) <= 5, row["query_id"]
        looked_for = f" {' '.join(tokenize(first))} "
        texts = [f" {' '.join(tokenize(articles[a]))} " for a in row["provenance"]]
        assert any(looked_for in text for text in texts), (row["query_id"], first)


def test_questions_do_not_copy_their_article(articles):
    for row in read_queries(questions("short-answer")).iter_rows(named=True):
        words = tokenize(row["query"])
        grams = [" ".join(words[i : i + 5]) for i in range(len(words) - 4)]
        for article in row["provenance"]:
            text = f" {' '.join(tokenize(articles[article]))} "
            assert not [g for g in grams if f" {g} " in text], row["query_id"]


def test_questions_spread_over_articles():
    frame = read_queries(questions("short-answer"))
    uses = collections.Counter(frame["provenance"].list.first())
    assert len(uses) >= 60
    assert max(uses.values()) <= 3


def test_claims_are_balanced():
    frame = read_queries(questions("claims"))
    verdicts = collections.Counter(frame["answers"].list.first())
    assert verdicts == {"SUPPORTS": frame.height / 2, "REFUTES": frame.height / 2}


def test_most_two_hop_questions_need_two_articles():
    frame = read_queries(questions("two-hop"))
    assert (frame["provenance"].list.len() == 2).sum() >= 20


def test_dialogue_replies_are_sentences():
    for answers in read_queries(questions("dialogue"))["answers"]:
        assert 10 <= len(answers[0].split()) <= 45
