"""Annotators of an evaluation that are more than a column of labels."""

import json
import math
from dataclasses import replace

import polars as pl
import pytest

from engine import tables
from engine.evaluation.evaluate import evaluate
from engine.evaluation.settings import Settings
from engine.labels import from_function
from engine.labels.annotator import Annotator, AnnotatorResult, complete
from engine.labels.dual import PROBABILITIES
from engine.report.printed import answer_parts, full_lines, full_tables
from engine.sources.articles.read import read_source
from engine.sources.io.files import write_parquet
from engine.sources.passages.cut import passages
from engine.sources.runs.qrels import preferences_of
from engine.sources.runs.read import write_run
from tests.commands import evaluate as evaluate_files
from tests.conftest import ScriptedReader, make_run
from tests.expected import as_expected, refused
from tests.tables import findings_of, inputs, label_rows, read_files, say_last, with_qrels


def test_every_label_can_be_traced(tmp_path):
    mine = from_function("mine", lambda *_: 1.0)
    annotators = ("erag", "containment", "provenance", "qrels", mine)
    settings = Settings.of(k=3, annotators=annotators, measures="P@3", resamples=0, dtype="float32")
    given = with_qrels(("q1", "d1", 1.0))
    result = evaluate(given, settings, store=tmp_path, executor=ScriptedReader(say_last))
    assert result.traces.schema == tables.TRACES
    assert label_rows(result.traces) == label_rows(result.labels)
    rows = {(r["annotator"], r["query_id"], r["doc_id"]): r for r in result.traces.to_dicts()}
    traced = rows["erag", "q1", "d1"]
    assert (traced["output"], traced["metric"], traced["answer"]) == ("Ann", "em", "Ann")
    assert (rows["erag", "q1", "d2"]["output"], rows["erag", "q1", "d2"]["answer"]) == ("Bo", None)
    alone = result.reads.filter(pl.col("doc_ids").list.len() == 1)
    assert dict(alone.select("read_key", "output").rows())[traced["read_key"]] == "Ann"
    assert rows["containment", "q2", "d2"]["answer"] == "Bo"
    assert rows["provenance", "q1", "d4"]["article_id"] == "A1"
    assert rows["qrels", "q1", "d1"]["label"] == rows["mine", "q1", "d1"]["label"] == 1


def test_dual_labels_and_probabilities_of_an_evaluation(tmp_path):
    settings = Settings.of(
        k=3, annotators=("dual",), measures="Success@3", end_to_end=False, resamples=0
    )
    result = evaluate(inputs(), settings, store=tmp_path)
    both = {(q, d): (doc, word) for q, d, doc, word in result.further["dual_labels"].iter_rows()}
    assert both == {
        ("q1", "d4"): (True, False), ("q1", "d1"): (True, True), ("q1", "d2"): (False, False),
        ("q2", "d2"): (True, True), ("q2", "d3"): (False, False),
        ("q3", "d2"): (False, False), ("q3", "d3"): (False, True),
    }  # fmt: skip
    found = {(r["k"], r["probability"]): r["value"] for r in result.further["dual"].to_dicts()}
    # at 1: Doc for q1 and q2, Word for q2; at 3 Doc for q1 and q2, Word for all
    assert found[1, "P(Doc)"] == found[3, "P(Doc)"] == pytest.approx(2 / 3)
    *_, doc_of_word, word_of_doc = PROBABILITIES
    assert (found[1, word_of_doc], found[3, word_of_doc]) == (1 / 2, 1)
    assert found[3, doc_of_word] == pytest.approx(2 / 3)
    assert result.query_scores["value"].to_list() == [1, 1, 0]  # q3 has no passage that is both


def test_preferences_of_an_evaluation(tmp_path):
    judged = [("q1", ["d1", "d2"], "d1"), ("q1", ["d1", "d9"], None), ("q2", ["d2", "d3"], "d2")]
    lines = [{"query_id": query, "shown": shown, "best": best} for query, shown, best in judged]
    preferences = preferences_of("p.jsonl", enumerate(lines, 1))
    given = replace(inputs(), tables={"preferences": preferences})
    settings = Settings.of(k=3, annotators=("preference",), end_to_end=False)
    result = evaluate(given, settings, store=tmp_path)
    values = {(m, q): v for _, _, m, q, v in result.query_scores.iter_rows()}
    # q1 lists d4, d1, d2: d1 was chosen once of twice shown; q3 was never judged
    assert values["P@3", "q1"] == pytest.approx(0.5 / 3)
    assert values["nDCG@3", "q1"] == pytest.approx(1 / math.log2(3))
    assert {query for _, query in values} == {"q1", "q2"}
    assert result.means["n"].unique().to_list() == [2]
    assert result.further["preference_labels"].filter(doc_id="d1")["times_shown"].to_list() == [2]
    with refused("settings.table"):
        evaluate(inputs(), settings, store=tmp_path)


def test_own_annotators_are_not_judged_by_qrels_alone(tmp_path):
    settings = Settings.of(
        k=3, annotators=("qrels",), measures="R@3", end_to_end=False, resamples=0
    )
    given = with_qrels(("q1", "d1", 1.0))
    assert evaluate(given, settings, store=tmp_path).relevant == "qrels"
    beside = settings.but(annotators=("qrels", from_function("mine", lambda *_: 1.0)))
    assert evaluate(given, beside, store=tmp_path).relevant == "list"


# One 0.5 among grades: P@3 of q1 would be (2 + 0.5) / 3.
GRADES = with_qrels(("q1", "d1", 2.0), ("q1", "d2", 0.5), ("q2", "d2", 1.0))


@pytest.mark.parametrize(
    ("annotators", "measures"),
    [
        (("qrels",), ""),
        (("erag", "qrels"), "nDCG@3 F1@2 P(rel=1)@3"),
        (("qrels", "containment"), "Success RR(rel=2)"),
    ],
)
def test_a_fractional_grade_asks_for_thresholds_before_any_read(tmp_path, annotators, measures):
    reader = ScriptedReader(say_last)
    settings = Settings.of(k=3, annotators=annotators, measures=measures, resamples=0)
    with refused("measure.threshold"):
        evaluate(GRADES, settings, store=tmp_path, executor=reader)
    assert reader.asked == []


def test_with_thresholds_fractional_grades_are_counted(tmp_path):
    # P@3 is containment's: beside a threshold of its own kind it is an empty cell of qrels.
    settings = Settings.of(
        k=3, annotators=("containment", "qrels"), measures="P@3 P(rel=1)@3 nDCG@3 AP@3",
        end_to_end=False, resamples=0,
    )  # fmt: skip
    result = evaluate(GRADES, settings, store=tmp_path)
    values = {(a, m, q): v for _, a, m, q, v in result.query_scores.iter_rows()}
    assert values["qrels", "P(rel=1)@3", "q1"] == pytest.approx(1 / 3)  # d1
    assert values["containment", "P@3", "q1"] == values["containment", "P(rel=1)@3", "q1"]
    # q1 lists d4, d1, d2: grades 0, 2, 0.5 are gains
    dcg, best = 2 / math.log2(3) + 0.5 / 2, 2 + 0.5 / math.log2(3)
    assert values["qrels", "nDCG@3", "q1"] == pytest.approx(dcg / best)
    undefined = result.undefined.select("annotator", "measure").rows()
    assert undefined == [("qrels", "P@3"), ("qrels", "AP@3")]
    as_expected(result.undefined["note"][0])
    as_expected([(n.code, n.about, n.text) for n in result.notes if n.is_shown])


def test_labels_above_one_of_a_users_own_annotator_ask_for_a_threshold_too(tmp_path):
    def label(material):
        labels = material.pairs.with_columns(annotator=pl.lit("minutes"), label=pl.lit(2.5))
        return AnnotatorResult(labels, complete(labels))

    minutes = Annotator(name="minutes", label=label)
    settings = Settings.of(k=3, annotators=(minutes,), end_to_end=False, measures="P@3")
    with refused("measure.threshold"):
        evaluate(inputs(), settings, store=tmp_path)
    counted = evaluate(inputs(), settings.but(measures="P(rel=2.5)@3"), store=tmp_path)
    assert counted.means["value"].to_list() == [pytest.approx((3 + 2 + 2) / 3 / 3)]


def test_the_command_writes_dual_preferences_traces_and_exports(files, tmp_path, capsys):
    preferences = tmp_path / "p.jsonl"
    preferences.write_text('{"query_id": "1", "shown": ["a", "c"], "best": "a"}\n')
    more = ["--k", 2, "--no-end-to-end", "--measures", "P@2", "--resamples", 100]
    more += ["--store", tmp_path / "store", "--annotators"]
    named = [*more, "dual,preference", "--preferences", preferences, "--full"]
    assert evaluate_files(files, *named, "--preference-labels", "bradley-terry") == 0
    printed = capsys.readouterr().out
    assert "P(Doc ∩ Word)" in printed
    out = files["out"]
    for name in ("traces", "dual", "dual_labels", "preference_labels"):
        assert pl.read_parquet(out / f"{name}.parquet").schema == getattr(tables, name.upper())
    summary = json.loads((out / "summary.json").read_text())
    assert {row["k"] for row in summary["dual"]} == {1, 2}
    exported = {str(p.relative_to(out / "exported")) for p in (out / "exported").rglob("*.*")}
    assert exported == {
        "qrels/dual.txt", "qrels/preference.tsv", "qrels/preference.parquet", "runs/mine.trec",
        "exported.json", "labels.parquet", "runs.parquet", "ir_metadata.yaml", "README.md",
    }  # fmt: skip
    # nothing of it is left to be taken for a later evaluation's
    assert evaluate_files(files, *more, "containment", "--overwrite") == 0
    assert not (out / "dual.parquet").exists()
    assert evaluate_files(files, *more, "preference", "--overwrite") == 2
    as_expected(capsys.readouterr().err)


def test_dual_labels_of_a_squad_document(tmp_path):
    # Two contexts under one title and one under another; the answer stands in both titles.
    def context(text, *questions):
        return {"context": text, "qas": list(questions)}

    answers = [{"text": "서울", "answer_start": 0}]
    question = {"guid": "s1", "question": "수도는?", "answers": answers}
    squad = tmp_path / "squad.json"
    korea = [context("서울 은 수도이다", question), context("부산 은 항구다")]
    data = [
        {"title": "한국", "paragraphs": korea},
        {"title": "음악", "paragraphs": [context("노래 서울 이 있다")]},
    ]
    squad.write_text(json.dumps({"data": data}, ensure_ascii=False))
    corpus = passages(read_source(squad))
    write_parquet(corpus, tmp_path / "corpus.parquet")
    ranked = ["부산", "노래", "서울 은"]  # what the passages begin with, in the order of the list
    ids = [corpus.filter(pl.col("text").str.starts_with(t))["doc_id"].item() for t in ranked]
    write_run(make_run([("s1", d, r) for r, d in enumerate(ids, 1)]), tmp_path / "run.trec")
    given = read_files(squad, tmp_path / "corpus.parquet", [tmp_path / "run.trec"], k=3)
    settings = Settings.of(k=3, annotators=("dual",), end_to_end=False, resamples=0)
    result = evaluate(given, settings, store=tmp_path)
    both = {d: (doc, word) for _, d, doc, word in result.further["dual_labels"].iter_rows()}
    assert [both[d] for d in ids] == [(True, False), (False, True), (True, True)]


def test_cells_without_a_meaning_are_empty_and_say_why(tmp_path):
    half = from_function("half", lambda *_: 0.5)
    options = {"k": 3, "resamples": 100, "metric": "f1", "measures": "AP@3 P@3"}
    settings = Settings.of(**options, annotators=("erag", "containment", half))
    reader = ScriptedReader(say_last)
    result = evaluate(inputs(), settings, store=tmp_path, executor=reader)
    assert result.undefined.select("annotator", "measure").rows() == [
        ("erag", "AP@3"),  # by what f1 can give
        ("half", "AP@3"),  # by what its labels are
    ]
    scored = set(result.query_scores.select("annotator", "measure").iter_rows())
    assert ("containment", "AP@3") in scored
    assert ("erag", "AP@3") not in scored
    cells = result.statistics.correlations.filter(pl.col("measure") == "AP@3")
    empty = {row["annotator"]: row for row in cells.to_dicts()}["erag"]
    assert (empty["n"], empty["best"]) == (0, False)
    assert math.isnan(empty["tau"])
    as_expected(empty["note"])
    as_expected([line for line in full_lines(findings_of(result)) if " of half: " in line])
    # the primary measure, where it is defined; else the next one, and that is said
    assert result.primary_measures == {"erag": "P@3", "containment": "AP@3", "half": "P@3"}
    parts = answer_parts(findings_of(result), "out")
    as_expected([part for part in parts if str(part).startswith("note: half is")])
    (table, *_) = full_tables(findings_of(result))
    rows = list(
        zip(*([str(cell) for cell in column.cells] for column in table.columns), strict=True)
    )
    assert next(row[2:] for row in rows if row[:2] == ("erag", "AP@3")) == ("", "", "")
    # by default each has the measures that its labels have
    everything = Settings.of(k=3, metric="f1", annotators=("erag", "containment"))
    assert "AP@3" in map(str, everything.resolved.measures)
    assert "AP@3" not in map(str, Settings.of(k=3, metric="f1").resolved.measures)
