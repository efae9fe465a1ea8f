import polars as pl
import pytest
from pyserini.eval.evaluate_dpr_retrieval import SimpleTokenizer, has_answers
from transformers.data.metrics.squad_metrics import normalize_answer

from engine import tables
from engine.labels import dual, erag
from engine.labels.annotator import labels_of
from tests.tables import framed, label_rows

QUERIES = framed([("1", "q", ["Ann Lee"], ["A"]), ("2", "q", ["Bo"], [])], tables.QUERIES)
CORPUS = framed([("x", "Bo", "with ann  lee.", "A"), ("y", "", "Bo knows", "B")], tables.CORPUS)
PAIRS = pl.DataFrame({"query_id": ["1", "1", "2", "2"], "doc_id": ["x", "y", "y", "x"]})


def test_erag_labels_are_the_values_of_single_passage_reads():
    reads = pl.DataFrame({"query_id": ["1", "1"], "doc_ids": [["x"], ["y"]], "value": [0.25, 1.0]})
    labels = labels_of("erag", reads, pl.col("value"))
    assert label_rows(labels) == [("1", "x", "erag", 0.25), ("1", "y", "erag", 1.0)]


def test_containment_searches_the_text_and_not_the_title():
    labels = dual.find_answers(PAIRS, QUERIES, CORPUS)
    assert labels["answer"].to_list() == ["Ann Lee", None, "Bo", None]
    assert labels.select("query_id", "doc_id").equals(PAIRS)


def holds(text, answer, name="containment"):
    """Whether a passage of this text is labelled relevant to a query with this answer."""
    queries = framed([("1", "q", [answer], [])], tables.QUERIES)
    corpus = framed([("x", "", text, "A")], tables.CORPUS)
    pairs = pl.DataFrame({"query_id": ["1"], "doc_id": ["x"]})
    return dual.find_answers(pairs, queries, corpus, name=name)["answer"].item() is not None


def test_provenance_marks_all_passages_of_gold_articles():
    is_gold = dual.gold_articles(PAIRS, QUERIES, CORPUS).is_not_null()
    assert is_gold.to_list() == [True, False, False, False]


@pytest.mark.parametrize(
    ("text", "answer", "found"),
    [
        ("a party", "art", False),
        ("in the U.S. today", "US", False),
        ("in the U.S. today", "u.s.", True),
        ("Café noir", "cafe\u0301", True),  # composed and decomposed accents are the same
        ("Cafe noir", "Café", False),
        ("it's 3,000 m high", "3,000", True),
        ("New  York\nCity", "new york city", True),
        ("100", "10", False),
    ],
)
def test_containment_agrees_with_dpr(text, answer, found):
    assert holds(text, answer) is found
    assert bool(has_answers(text, [answer], SimpleTokenizer())) is found


def test_an_answer_without_tokens_is_nowhere():
    assert not holds("some text", " ")


@pytest.mark.parametrize(
    ("text", "answer", "found"),
    [
        ("a party", "art", True),
        ("thus", "U.S.", True),
        ("the New  York\nCity", "new york, a city", True),  # the article and the comma are no part
        ("Cafe noir", "Café", False),
        ("some text", "The!", False),  # normalizes to nothing
    ],
)
def test_containment_by_substring(text, answer, found):
    assert holds(text, answer, "containment-substring") is found
    # SQuAD's, which KILT took
    normalized, within = normalize_answer(answer), normalize_answer(text)
    assert (normalized != "" and normalized in within) is found


def test_answers_that_text_may_run_on_after_are_counted():
    answers = [["Seoul", "서울"], ["서울 "], ["東京"], ["Paris"], ["1945년."], []]
    queries = framed([(str(i), "q", given, []) for i, given in enumerate(answers)], tables.QUERIES)
    assert dual.count_running_on(queries) == 2  # Seoul can be found
    assert dual.count_running_on(queries.clear()) == 0


def test_a_judges_labels_are_its_probabilities_or_whether_they_exceed_a_half():
    reads = pl.DataFrame({"query_id": list("1122"), "doc_ids": [["x"], ["y"]] * 2})
    reads = reads.with_columns(confidence=pl.Series([0.5, 0.51, None, 1.0]))
    binary, graded = erag.label_judge(reads, "binary"), erag.label_judge(reads, "graded")
    assert label_rows(binary) == [
        ("1", "x", "judge", 0.0), ("1", "y", "judge", 1.0),
        ("2", "x", "judge", 0.0), ("2", "y", "judge", 1.0),
    ]  # fmt: skip
    assert graded["label"].to_list() == [0.5, 0.51, 0.0, 1.0]
    assert binary.schema == graded.schema == tables.LABELS
