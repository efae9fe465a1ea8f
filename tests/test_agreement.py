"""The comparison with the eRAG package's own ``eval``, with a scripted reader on a few passages."""

import polars as pl
import pytest

from benchmarks import agreement
from benchmarks.agreement import TOLERANCE, compare_with_package, put_together, take_apart
from engine import tables
from engine.evaluation.inputs import EvaluationInputs
from engine.evaluation.settings import Settings
from engine.reading.executors import NamedExecutor, read_by
from engine.reading.readers import specify
from tests.conftest import ScriptedReader, make_run
from tests.tables import CORPUS, QUERIES, say_last

# Two passages with one title and one text; q2 and q3 have one text; q4 has no results.
TWICE = pl.concat([CORPUS, CORPUS.filter(doc_id="d2").with_columns(pl.lit("d5").alias("doc_id"))])
ASKED = pl.concat(
    [
        QUERIES,
        pl.DataFrame([("q4", "nobody knows", ["x"], [])], schema=tables.QUERIES, orient="row"),
    ]
)
RUN = make_run(
    [("q1", "d4", 1), ("q1", "d1", 2), ("q1", "d2", 3), ("q1", "d3", 4)]
    + [("q2", "d3", 1), ("q2", "d5", 2), ("q2", "d2", 3), ("q3", "d2", 1), ("q3", "d3", 2)]
)


def compare(tmp_path, metric, *, queries=ASKED, runs=RUN, answer=say_last, **more):
    reader = ScriptedReader(answer)
    found = compare_with_package(
        EvaluationInputs(queries=queries, corpus=TWICE, runs=runs),
        Settings.of(k=5, metric=metric, dtype="float32"),
        store=tmp_path,
        executor=NamedExecutor("scripted", reader),
        **more,
    )
    return found, reader


def wordy(prompt):
    return say_last(prompt).replace("Bo", "old Bo").replace("Ann", "the Ann of old")


def test_binary_labels_give_the_packages_values(tmp_path):
    found, reader = compare(tmp_path, "em")
    assert found.largest <= TOLERANCE
    # q1 and q2; the second question of one text and the one without results are left out
    assert (found.queries, found.left_out) == (2, 2)
    # AP, RR, nDCG, and five kinds at 1, 3 and 5 (10 is beyond k); means are of other queries
    assert found.values == len(found.measures) * found.queries == 18 * 2
    # The package asked for q1's four and q2's three passages, of which two are one read.
    assert (found.reused, found.done) == (7, 0)
    # 4 of q1, and of q2 and q3 together d3 and the text that d2 and d5 have
    assert len(reader.asked) == 4 + 2


def test_graded_labels_give_the_packages_values(tmp_path):
    found, _ = compare(tmp_path, "f1", answer=wordy)
    assert found.largest <= TOLERANCE
    # of the lists compared the shortest has three passages
    assert found.measures == ("P", "Success", "P@1", "P@3", "Success@1", "Success@3")
    assert found.values == 6 * 2


def test_means_are_compared_where_no_query_is_left_out(tmp_path):
    found, _ = compare(
        tmp_path, "em", queries=QUERIES.head(2), runs=RUN.filter(pl.col("query_id") != "q3")
    )
    assert found.left_out == 0
    assert found.values == 18 * (2 + 1)
    assert found.largest <= TOLERANCE


def test_the_packages_reads_may_be_done_again(tmp_path):
    found, reader = compare(tmp_path / "ours", "em", package_store=tmp_path / "theirs")
    assert found.largest <= TOLERANCE
    # the package asks rank by rank: what q2 has at rank 2 and at rank 3 is read once
    assert (found.reused, found.done) == (1, 6)
    assert len(reader.asked) == 6 + 6


def test_a_difference_is_found(tmp_path, monkeypatch):
    honest = agreement.squad_metric

    def crooked(name):
        return lambda outputs, answers: {
            query: 1 - value for query, value in honest(name)(outputs, answers).items()
        }

    monkeypatch.setattr(agreement, "squad_metric", crooked)
    found, _ = compare(tmp_path, "em")
    assert found.largest > TOLERANCE
    assert found.where


def test_reads_that_are_not_stored_are_done_from_the_packages_texts(tmp_path):
    spec, prompt = specify(
        "bundled", augmentation="in-prompt", task="short-answer", dtype="float32"
    )
    reader = ScriptedReader(say_last)
    generator = agreement.Generator(read_by(spec, reader), prompt, tmp_path, reader)
    document = put_together("A title\nof two lines", "says Ann\nand more")
    assert generator({"who": [document]}) == {"who": "Ann and more"}
    assert (generator.reused, generator.done) == (0, 1)
    assert "Passage: A title of two lines. says Ann and more" in reader.asked[0]


@pytest.mark.parametrize(("title", "text"), [("Aruba", "is an island"), ("", "x\ny"), ("a", "")])
def test_title_and_text_of_a_passage_survive_being_joined_and_split(title, text):
    assert take_apart(put_together(title, text)) == (title, text)
