"""What is behind a label, by hand."""

import polars as pl

from engine import tables
from engine.evaluation.settings import Settings
from engine.labels import dual, erag
from engine.labels.annotator import Material, labels_of
from tests.conftest import make_run
from tests.tables import framed

QUERIES = framed([("1", "q", ["Bo", "Ann Lee"], ["A"]), ("2", "q", ["Bo"], [])], tables.QUERIES)
CORPUS = framed([("x", "", "with Ann Lee.", "A"), ("y", "", "Bo knows", "B")], tables.CORPUS)
RUN = make_run([("1", "x", 1), ("1", "y", 2), ("2", "x", 1)])
PAIRS = pl.DataFrame({"query_id": ["1", "1", "2"], "doc_id": ["x", "y", "x"]})


def reads(outputs, confidence=(None, None, None)):
    rows = zip("abc", ["1", "1", "2"], [["x"], ["y"], ["x"]], outputs, confidence, strict=True)
    return framed(
        [
            (key, q, d, output, 1, 1, False, c, None, None, None, None)
            for key, q, d, output, c in rows
        ],
        tables.READS,
    )


def labelled(annotator, **more):
    """What an annotator makes of the pairs."""
    settings = Settings.of(annotators=(annotator.name,), resamples=0)
    material = Material(
        queries=QUERIES,
        passages=CORPUS,
        runs=RUN,
        run_names=["sys"],
        pairs=PAIRS,
        settings=settings,
        **more,
    )
    return annotator.label(material)


def columns(table, *names):
    assert table.schema == tables.TRACES
    assert table.select("query_id", "doc_id").equals(PAIRS)
    return table.select(names).rows()


def test_an_erag_label_leads_to_its_read_metric_and_answer():
    # token F1: "the lee" has one of the two words of "Ann Lee" (2/3), "bo" all of "Bo", "x" nothing
    read = reads(["the lee", "bo", "x"]).with_columns(value=pl.Series([2 / 3, 1.0, 0.0]))
    labels = labels_of("erag", read, pl.col("value"))
    traced = erag.trace_erag(labels, read, QUERIES, "f1")
    assert columns(traced, "read_key", "output", "metric", "answer") == [
        ("a", "the lee", "f1", "Ann Lee"),
        ("b", "bo", "f1", "Bo"),
        ("c", "x", "f1", None),
    ]
    assert traced["label"].to_list() == [2 / 3, 1.0, 0.0]


def test_a_containment_label_leads_to_the_answer_found():
    for annotator in (dual.CONTAINMENT_ANNOTATOR, dual.BY_SUBSTRING):
        traced = labelled(annotator).traces
        assert columns(traced, "answer", "label") == [("Ann Lee", 1), ("Bo", 1), (None, 0)]


def test_a_provenance_label_leads_to_the_gold_article():
    traced = labelled(dual.PROVENANCE_ANNOTATOR).traces
    assert columns(traced, "article_id", "label") == [("A", 1), (None, 0), (None, 0)]


def test_a_dual_label_leads_to_both_halves():
    halves = (dual.PROVENANCE_ANNOTATOR, dual.CONTAINMENT_ANNOTATOR)
    made = labelled(dual.ANNOTATOR, rests_on={half.name: labelled(half) for half in halves})
    both = made.tables["dual_labels"]
    assert both.select("document_label", "word_label").rows() == [
        (True, True), (False, True), (False, False),
    ]  # fmt: skip
    assert columns(made.traces, "article_id", "answer", "label") == [
        ("A", "Ann Lee", 1), (None, "Bo", 0), (None, None, 0),
    ]  # fmt: skip


def test_a_judges_label_leads_to_its_probability():
    read = reads([" Yes", " No", ""], [0.75, 0.25, None])
    traced = erag.trace_judge(erag.label_judge(read, "binary"), read)
    assert columns(traced, "read_key", "confidence", "label") == [
        ("a", 0.75, 1), ("b", 0.25, 0), ("c", None, 0),
    ]  # fmt: skip
