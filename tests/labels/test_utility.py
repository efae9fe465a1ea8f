"""Utilities: what a passage helps, less what it distracts, end to end with a scripted reader."""

import json
import math

import polars as pl
import pytest

from engine import tables
from engine.evaluation.evaluate import evaluate
from engine.evaluation.settings import Settings
from engine.inputs.files import EvaluationInputs
from engine.labels import erag
from engine.reading.costs import UnitResult
from engine.reading.protocol import ReadOutput
from engine.report.printed import full_lines
from engine.report.summary import summarize
from tests.expected import as_expected, refused
from tests.tables import (
    CORPUS,
    QUERIES,
    RUN,
    amount,
    findings_of,
    framed,
    inputs,
    label_rows,
    say_last,
)

# Of what a passage says: how likely the reader is to decline.
DECLINES = {"says Ann": 0.25, "says Bo": 0.5, "says Cy": 0.1, "says nothing": 1.0}


class DecliningReader:
    """An executor that answers as ``say_last`` does, and may decline where it is allowed to."""

    def __init__(self, fails=""):
        self.fails = fails
        self.asked = []  # (the reader's name, choices)

    def __call__(self, plan, units, spec):
        for unit in units:
            rows = plan["inputs"].slice(unit.offset, unit.length).to_list()
            self.asked += [(spec.name, spec.choices)] * len(rows)
            outputs = [self.answer("".join(pieces), spec.choices) for pieces in rows]
            stats = dict.fromkeys(
                ("padded_tokens", "prompt_tokens", "memory_halvings", "peak_memory"), 1
            )
            yield UnitResult(unit, outputs, "w", 0.0, stats)

    def answer(self, text, choices):
        if not choices:
            return ReadOutput(say_last(text), 1, 1, False)
        assert choices == (" NO-RESPONSE",)
        # The examples of the prompt say nothing of these.
        (declines,) = [p for said, p in DECLINES.items() if said in text]
        if self.fails and self.fails in text:
            return ReadOutput("", 0, 0, False, "boom")
        return ReadOutput("NO-RESPONSE" if declines > 0.5 else "", 1, 0, False, None, declines)


def label(tmp_path, reader=None, **options):
    options = {"k": 3, "resamples": 0, "annotators": ("utility",)} | options
    settings = Settings.of(**options)
    reader = reader or DecliningReader()
    return evaluate(inputs(), settings, store=tmp_path, executor=reader), reader, settings


def labels_of(result, annotator="utility"):
    own = result.labels.filter(pl.col("annotator") == annotator)
    return {(q, d): value for q, d, _, value in label_rows(own)}


def test_labels_weigh_what_helps_and_what_distracts(tmp_path):
    result, reader, settings = label(tmp_path)
    helps = {"Ann": "q1", "Bo": "q2"}
    said = {"d1": "Ann", "d2": "Bo", "d3": "Cy", "d4": "nothing"}
    for (query, passage), value in labels_of(result).items():
        word = said[passage]
        weight = 1.0 if helps.get(word) == query else -1 / 3
        if (query, word) == ("q3", "Cy"):
            weight = 1.0
        expected = weight * (1 - DECLINES[f"says {word}"])
        assert value == pytest.approx(expected), (query, passage)
    # seven passages alone, three lists, and each passage once more
    wanted = {role: reading.costs.wanted for role, reading in result.readings.items()}
    assert wanted == {"reader": 7, "abstain": 5}
    assert {choices for _, choices in reader.asked} == {(), (" NO-RESPONSE",)}
    assert settings.resolved.measures
    assert str(settings.resolved.measures[0]) == "UDCG@3"
    scores = dict(result.query_scores.select("query_id", "value").iter_rows())
    own = [value for (query, _), value in labels_of(result).items() if query == "q1"]
    assert scores["q1"] == pytest.approx(1 / (1 + math.exp(-sum(own) / len(own))))
    as_expected([line for line in full_lines(findings_of(result)) if "may decline" in line])


def test_a_trace_names_both_reads(tmp_path):
    result, _, _ = label(tmp_path, annotators=("erag", "utility"))
    (traced,) = result.traces.filter(annotator="utility", query_id="q1", doc_id="d1").to_dicts()
    assert (traced["output"], traced["metric"], traced["answer"]) == ("Ann", "em", "Ann")
    assert traced["confidence"] == 0.25
    assert traced["read_key"] in set(result.reads["read_key"])


@pytest.mark.parametrize("helpful", ["containment", "provenance"])
def test_what_helps_may_be_said_by_others(tmp_path, helpful):
    result, _, _ = label(
        tmp_path, annotators=("utility", helpful), helpful=helpful, end_to_end=False
    )
    assert "reader" not in result.readings  # no passage is read without leave to decline
    given = labels_of(result, helpful)
    for key, value in labels_of(result).items():
        assert value >= 0 if given[key] else value <= 0


def test_the_summary_speaks_of_who_declined(tmp_path):
    result, _, settings = label(tmp_path, annotators=("erag", "utility"))
    written = json.loads(json.dumps(summarize(result, {})))
    assert written["abstain"]["helpful"] == "erag"
    assert written["abstain"]["choices"] == [" NO-RESPONSE"]
    assert written["configuration"]["helpful"] == "erag"
    assert written["undefined"] == []  # utilities have a measure of their own
    own = {(row["annotator"], row["measure"]) for row in written["means"]}
    assert ("utility", "UDCG@3") in own
    assert written["primary_measures"] == {"erag": "nDCG@3", "utility": "UDCG@3"}
    as_expected([line for line in full_lines(findings_of(result)) if "on utilities" in line])
    assert not own & {("utility", "P@3"), ("erag", "UDCG@3")}
    assert amount(result, "real_valued_annotators") == 0


def test_utilities_are_compared_with_every_measure_of_the_rivals(tmp_path):
    result, _, _ = label(tmp_path, annotators=("erag", "utility"), measures="P@3 nDCG@3 UDCG@3")
    compared = result.statistics.comparisons.select(
        "annotator", "measure", "annotator_b", "measure_b"
    ).rows()
    assert compared == [("erag", name, "utility", "UDCG@3") for name in ("P@3", "nDCG@3")]


def test_a_failed_read_counts_as_declined_or_leaves_its_query_out(tmp_path):
    reader = DecliningReader(fails="says Ann")
    result, _, _ = label(tmp_path / "a", reader, failed_reads="zero")
    assert labels_of(result)["q1", "d1"] == 0
    reader = DecliningReader(fails="says Ann")
    result, _, _ = label(tmp_path / "b", reader, failed_reads="skip")
    assert set(result.query_scores["query_id"]) == {"q2", "q3"}


def test_graded_labels_of_a_half_or_more_help():
    reads = pl.DataFrame(
        {"query_id": ["q", "q"], "doc_ids": [["a"], ["b"]], "confidence": [0.5, 0.5]}
    )
    graded = framed([("q", "a", "erag", 0.5), ("q", "b", "erag", 0.49)], tables.LABELS)
    assert erag.label_utility(reads, graded)["label"].to_list() == pytest.approx([0.5, -1 / 6])


UTILITY = ("utility",)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"helpful": "containment"}, "settings.annotator"),
        ({"abstain_prompt": "chat"}, "settings.annotator"),
        ({"annotators": UTILITY, "helpful": "judge"}, "settings.value"),
        ({"annotators": UTILITY, "measures": "P@5"}, "settings.measure"),
        (
            {"annotators": ("erag", "utility"), "measures": "P@5"},
            "measure.undefined",
        ),
        ({"measures": "P@5 UDCG@5"}, "settings.measure"),
        (
            {
                "annotators": UTILITY,
                "task": "claims",
                "metric": "accuracy",
                "helpful": "containment",
            },
            "settings.task",
        ),
        ({"annotators": ("containment",), "erag_reader": "x"}, "settings.annotator"),
    ],
)
def test_settings_that_cannot_work_are_refused(options, words):
    with refused(words):
        Settings.of(**options)


def test_what_utilities_cannot_tell_is_said(tmp_path):
    queries = pl.concat([QUERIES, QUERIES.head(1).with_columns(pl.lit("q4").alias("query_id"))])
    given = EvaluationInputs(queries=queries, corpus=CORPUS, runs=RUN)
    settings = Settings.of(k=3, resamples=0, annotators=("utility",), helpful="provenance")
    result = evaluate(given, settings, store=tmp_path, executor=DecliningReader())
    as_expected([note.text for note in result.notes if note.is_shown])  # who says what helps, too


def test_utilities_of_a_reader_that_never_declines_are_noted(tmp_path):
    class Sure(DecliningReader):
        def answer(self, text, choices):
            if not choices:
                return ReadOutput("nothing right", 1, 1, False)
            return ReadOutput("", 1, 0, False, None, 1e-7 if "says Bo" in text else 2e-7)

    result, _, settings = label(tmp_path, Sure())
    as_expected([note.text for note in result.notes if note.about])


def test_the_prompt_to_decline_follows_the_style_of_a_completion(tmp_path):
    _, reader, _ = label(tmp_path, prompt="completion")
    assert reader.asked
