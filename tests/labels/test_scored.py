"""Labels from log-probabilities, and gains, against their formulas, end to end with a scripted reader."""

import math
from functools import partial

import polars as pl
import pytest

from engine.evaluation.evaluate import evaluate
from engine.evaluation.settings import Settings
from engine.inputs.files import EvaluationInputs
from engine.labels import erag
from engine.reading.costs import UnitResult
from engine.reading.function import ReaderFunction
from engine.reading.protocol import ReadOutput
from engine.report.summary import summarize
from engine.statistics.single_labels import RIGHT_CLOSED
from tests.expected import refused
from tests.tables import CORPUS, QUERIES, RUN, inputs, label_rows, say_last

ALL = ("erag", "gain", "likelihood", "dig", "pmi", "perplexity")
# One more reference answer, which the reader finds likelier where the passage says so.
TWO = QUERIES.with_columns(
    pl.when(pl.col("query_id") == "q1")
    .then(pl.lit(["Ann", "our own dear Bo"]))
    .otherwise("answers")
    .alias("answers")
)
STATS = dict.fromkeys(("padded_tokens", "prompt_tokens", "memory_halvings", "peak_memory"), 1)


def said(prompt):
    """What the prompt's own passage says; empty without one."""
    lines = [line for line in prompt.splitlines() if line.startswith("Passage: A")]
    return lines[-1].partition("says ")[2] if lines else ""


def log_of(prompt, target):
    """The mean log-probability of a target's tokens, which are its words."""
    likelier = said(prompt) and said(prompt) in target
    return (-0.1 if likelier else -1.5) - 0.01 * len(target) - 0.02 * len(said(prompt))


class ScoringReader:
    """An executor that answers from the last passage, and knows the second question's answer without one."""

    def __init__(self, fails=""):
        self.fails = fails
        self.asked = []

    def __call__(self, plan, units, spec):
        for unit in units:
            rows = plan["inputs"].slice(unit.offset, unit.length).to_list()
            self.asked += rows
            yield UnitResult(unit, [self.answer(r, spec.scores) for r in rows], "w", 0.0, STATS)

    def answer(self, pieces, scores):
        if scores == "target":
            *prompt, target = pieces
            prompt = "".join(prompt)
            if self.fails and said(prompt) == self.fails:
                return ReadOutput.failed("boom")
            mean = log_of(prompt, target)
            return ReadOutput(target.strip(), 9, len(target.split()), False, None, math.exp(mean))
        prompt = "".join(pieces)
        text = say_last(prompt) if said(prompt) else "Bo"
        confidence = math.exp(log_of(prompt, text)) if scores else None
        return ReadOutput(text, 9, 1, False, None, confidence)


def label(tmp_path, annotators=ALL, reader=None, queries=TWO, **options):
    options = {"k": 3, "resamples": 0, "annotators": annotators} | options
    reader = reader or ScoringReader()
    runs = RUN.join(queries, on="query_id", how="semi")
    given = EvaluationInputs(queries=queries, corpus=CORPUS, runs=runs)
    return evaluate(given, Settings.of(**options), store=tmp_path, executor=reader), reader


def labels_of(result, annotator):
    own = result.labels.filter(pl.col("annotator") == annotator)
    return {(q, d): value for q, d, _, value in label_rows(own)}


def test_labels_are_those_of_the_formulas(tmp_path):
    result, _ = label(tmp_path)
    texts = {d: (f"Passage: {t}. {x}\n" if x else "") for d, t, x, _ in CORPUS.iter_rows()}
    words = {d: texts[d].partition("says ")[2].strip() for d in texts}
    answers = dict(TWO.select("query_id", "answers").iter_rows())
    asked = dict(TWO.select("query_id", "query").iter_rows())
    got = {name: labels_of(result, name) for name in ALL}

    def mean(passage, text):  # the blank before it counts as written
        return log_of(passage, f" {text}")

    def whole(passage, query):
        return max(math.exp(mean(passage, y) * len(y.split())) for y in answers[query])

    assert all(len(of_one) == RUN.height for of_one in got.values())
    for query, passage in got["erag"]:
        text, key = texts[passage], (query, passage)
        best = max(math.exp(mean(text, y)) for y in answers[query])
        assert got["likelihood"][key] == pytest.approx(best)
        assert got["dig"][key] == pytest.approx(whole(text, query) - whole("", query))
        pmi = mean(text, asked[query]) - mean("", asked[query])
        assert got["pmi"][key] == pytest.approx(pmi)
        own = words[passage]
        assert got["perplexity"][key] == pytest.approx(math.exp(log_of(text, own)))
        known = float("Bo" in answers[query])
        assert got["gain"][key] == float(own in answers[query]) - known
    assert got["gain"]["q2", "d3"] == -1.0  # answered right without it, and wrong from it
    assert min(got["dig"].values()) < 0 < max(got["dig"].values())
    # each reference answer behind each passage and behind none, but for what two queries share
    read = {role: reading.costs.wanted for role, reading in result.readings.items()}
    assert read == {"reader": 9, "score": 14, "question": 7, "own": 5}


def test_the_harm_rate_is_the_share_of_passages_that_spoil_a_right_answer(tmp_path):
    result, _ = label(tmp_path, ("gain",), resamples=200)
    summary = summarize(result, {})
    (harm,), (known,) = summary["harm"], summary["unseen"]
    # q2 alone is answered without a passage; of its two, d3 turns the answer wrong
    counts = {name: harm[name] for name in ("n", "known", "passages", "harmed", "value")}
    assert counts == {"n": 3, "known": 1, "passages": 2, "harmed": 1, "value": 0.5}
    assert harm["low"] < 0.5 < harm["high"]
    # Without eRAG's labels beside it, what is known anyway is the one thing to say of the lists.
    assert (known["figure"], known["n"]) == (RIGHT_CLOSED, 3)
    assert known["value"] == pytest.approx(1 / 3)
    assert known["low"] < known["value"] < known["high"]
    shown = erag.display_harm(pl.DataFrame([harm]), " [95%]")
    ((_, (passages, spoilt, rate)),) = shown.rows
    assert (shown.rows[0][0], passages, spoilt) == (["1 of 3"], "2", "1")
    assert (shown.values[-1], rate[:7]) == ("harm rate [95%]", "0.500 [")
    none, _ = label(tmp_path, ("gain",), queries=QUERIES.filter(pl.col("query_id") != "q2"))
    (harm,) = summarize(none, {})["harm"]
    assert (harm["known"], harm["value"]) == (0, None)


def test_a_second_evaluation_takes_everything_from_the_store(tmp_path):
    from engine.reading.backends import NamedExecutor

    first = ScoringReader()
    one, _ = label(tmp_path, ("likelihood", "dig"), NamedExecutor("scripted", first))
    again = ScoringReader()
    two, _ = label(tmp_path, ("likelihood", "dig"), NamedExecutor("scripted", again))
    assert first.asked
    assert not again.asked
    assert two.labels.equals(one.labels)


def test_traces_name_the_read_and_the_answer_that_is_likeliest(tmp_path):
    result, _ = label(tmp_path)
    of_both = result.traces.filter((pl.col("query_id") == "q1") & (pl.col("doc_id") == "d2"))
    traced = {row["annotator"]: row for row in of_both.to_dicts()}
    assert traced["likelihood"]["output"] == "our own dear Bo"
    assert traced["likelihood"]["label"] == traced["likelihood"]["confidence"]
    assert traced["likelihood"]["read_key"] in set(result.reads["read_key"])
    assert traced["gain"]["output"] == "Bo"
    assert traced["pmi"]["output"] == "first question"


def test_a_failed_read_counts_as_a_probability_of_nothing(tmp_path):
    fails = ScoringReader(fails="Cy")
    result, _ = label(tmp_path, ("likelihood", "pmi"), fails, failed_reads="zero")
    for name in ("likelihood", "pmi"):
        assert labels_of(result, name)["q2", "d3"] == 0.0
    skipped, _ = label(tmp_path, ("likelihood",), ScoringReader("Cy"), failed_reads="skip")
    assert set(skipped.query_scores["query_id"]) == {"q1"}


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (
            {"annotators": ("pmi",), "measures": "nDCG@3"},
            "settings.measure",
        ),
        (
            {"annotators": ("likelihood",), "measures": "RR(rel=0.5)@3", "lazy": True},
            "settings.lazy",
        ),
    ],
)
def test_what_has_no_meaning_is_refused(options, problem):
    with refused(problem):
        Settings.of(k=3, **options)


def test_a_function_that_reads_gives_no_log_probabilities(tmp_path):
    mine = ReaderFunction(name="mine", version="1", function=lambda prompts: ["Ann"] * len(prompts))
    settings = partial(Settings.of, k=3, resamples=0, reader="mine", functions=(mine,))
    with refused("reader.scores"):
        evaluate(inputs(), settings(annotators=("dig",)), store=tmp_path)
