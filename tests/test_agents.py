"""The agent of ``benchmarks.agents``: its searches, its answers, and its questions."""

import polars as pl
import pytest

from benchmarks import agents
from engine.labels.dual import tokenize
from engine.sources.bundled import questions
from engine.sources.queries.read import read_queries
from engine.sources.traces.read import read_traces

PASSAGES = {
    "d1": ("Asphalt", "Selenizza is mined in Albania. Roads are black."),
    "d2": ("Albania", "Albania is a country. Its capital is Tirana."),
    "d3": ("Aruba", "Aruba is an island. Its capital is Oranjestad."),
    "d4": ("Abacus", "An abacus has beads."),
    "d5": ("Apollo 8", "Apollo 8 was launched in December."),
}
QUERIES = {
    "q1": "What is the capital of the country with selenizza?",
    "q2": "Which island has the capital Oranjestad?",
    "q3": "Which tool has beads?",
}


@pytest.fixture
def corpus():
    rows = [(doc_id, title, text, title) for doc_id, (title, text) in PASSAGES.items()]
    return pl.DataFrame(rows, schema=["doc_id", "title", "text", "article_id"], orient="row")


@pytest.fixture
def queries():
    rows = [(query_id, text, ["Tirana"], []) for query_id, text in QUERIES.items()]
    kinds = {"query_id": pl.String, "query": pl.String}
    kinds |= dict.fromkeys(("answers", "provenance"), pl.List(pl.String))
    return pl.DataFrame(rows, schema=kinds, orient="row")


def by_words(queries):
    """The passage that shares the most words with a query."""
    rows = []
    for query_id, text in queries.select("query_id", "query").iter_rows():
        words = set(tokenize(text)) - agents.COMMON
        shared = [len(words & set(tokenize(" ".join(passage)))) for passage in PASSAGES.values()]
        rows.append((query_id, [*PASSAGES][shared.index(max(shared))], 1, 1.0, "words"))
    names = ["query_id", "doc_id", "rank", "score", "run"]
    return pl.DataFrame(rows, schema=names, orient="row")


def test_the_second_search_has_the_names_of_the_likeliest_sentence_and_the_words_left():
    # "selenizza" stands in one sentence, "capital" in another with less weight: two sentences have it.
    passages = [agents.Passage(d, *PASSAGES[d]) for d in ("d1", "d3", "d2")]
    second, third = agents.next_searches(QUERIES["q1"], passages)
    assert second == "Albania capital country"
    assert third == "Albania"


def test_a_sentence_without_new_names_gives_its_title():
    passage = agents.Passage("d4", *PASSAGES["d4"])
    assert agents.next_searches(QUERIES["q3"], [passage]) == ("Abacus tool", "Abacus")


def test_without_passages_the_question_is_searched_again():
    assert agents.next_searches("Who?", []) == ("Who?", "Who?")


def test_traces_are_valid_and_the_same_every_time(queries, corpus):
    records = agents.searches(by_words, by_words(queries), queries, corpus)
    assert records == agents.searches(by_words, by_words(queries), queries, corpus)
    traces = read_traces("traces", records=enumerate(records, 1), carried=False)
    searched = traces.steps.select("query_id", "step", "search", "doc_ids").rows()
    # Two words of q1 are in d2; "Albania" and "selenizza" are both in d1, "Albania" and "capital" in d2, which is later.
    assert searched[:2] == [
        ("q1", 1, QUERIES["q1"], ["d2"]),
        ("q1", 2, "Albania capital selenizza", ["d1"]),
    ]
    assert traces.runs.filter(pl.col("query_id") == "q1")["doc_id"].to_list() == ["d2", "d1"]


def test_a_third_search_follows_a_second_that_found_nothing_new(queries, corpus):
    records = agents.searches(by_words, by_words(queries), queries, corpus)
    searched = [(one["query_id"], one["search"], *one["passages"]) for one in records][2:]
    assert searched == [
        ("q2", QUERIES["q2"], "d3"),
        ("q2", "Aruba island", "d3"),
        ("q2", "Aruba", "d3"),
        ("q3", QUERIES["q3"], "d4"),
        ("q3", "Abacus tool", "d4"),
        ("q3", "Abacus", "d4"),
    ]


def test_the_answer_is_the_readers_from_all_passages(queries, corpus, tmp_path):
    records = agents.searches(by_words, by_words(queries), queries, corpus)

    texts = [text for _, text in PASSAGES.values()]
    (tmp_path / "reader.py").write_text(
        f"TEXTS = {texts}\n\ndef count(prompts):\n"
        "    return [f'{sum(text in prompt for text in TEXTS)} passages' for prompt in prompts]\n"
    )
    reader = f"{tmp_path}/reader.py:count"
    answers = agents.answers(
        records, queries, corpus, reader, store=tmp_path, augmentation="in-prompt"
    )
    traces = read_traces("traces", records=enumerate([*records, *answers], 1), carried=False)
    counts = dict(traces.runs.group_by("query_id").len().iter_rows())
    given = dict(traces.outputs.select("query_id", "output").iter_rows())
    assert given == {query_id: f"{counts[query_id]} passages" for query_id in QUERIES}


def test_further_questions_need_two_articles_and_their_answer_stands_in_the_second(bundled_corpus):
    demo, further = read_queries(questions("two-hop")), read_queries(agents.FURTHER)
    assert demo.height + further.height == 100
    for column in ("query_id", "query"):
        assert pl.concat([demo, further])[column].is_unique().all()
    texts = bundled_corpus.group_by("article_id").agg("text")
    passages = {
        title: [f" {' '.join(tokenize(text))} " for text in some]
        for title, some in texts.iter_rows()
    }
    for row in further.iter_rows(named=True):
        bridge, last = row["provenance"]
        assert bridge in passages
        answer = f" {' '.join(tokenize(row['answers'][0]))} "
        assert any(answer in text for text in passages[last]), row["query_id"]
        assert answer not in f" {' '.join(tokenize(row['query']))} "
