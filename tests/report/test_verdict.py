"""Which retriever to choose, in words, on scores made so that the figures are known."""

import json
import re
from types import SimpleNamespace

import pytest
from rich.console import Console

from engine.evaluation.settings import Settings
from engine.report import verdict
from engine.report.printed import full_tables
from engine.statistics.choice import Choice, Lead, primary_measures
from engine.statistics.table import analyse
from tests.report.made import made_findings
from tests.statistics.made_scores import ALIKE, WHOLE, first, read_whole, scored

CLEAR = {"s": first(25), "t": first(50)}


def evaluation(rows, whole=None, *, relevant="pool", settings=None):
    query_scores = scored(rows)
    downstream = read_whole(whole) if whole else read_whole({}).clear()
    return SimpleNamespace(
        primary_measures=primary_measures(query_scores.select("annotator", "measure").iter_rows()),
        statistics=analyse(query_scores, downstream, (settings or Settings.of()).bootstrap),
        downstream=downstream,
        relevant=relevant,
        queries=60,
        settings=settings or Settings.of(),
    )


def said(rows, whole=None, *, relevant="pool", **options):
    settings = Settings.of(**({"resamples": 1000} | options))
    return verdict.sentences(evaluation(rows, whole, relevant=relevant, settings=settings))


def test_a_run_that_is_clearly_better_is_to_be_chosen():
    choice, labels = said([("erag", "P@3", CLEAR)], CLEAR)
    assert re.fullmatch(
        r"Choose t\. End to end \(em, 60 queries; 95% interval\): "
        r"t leads s by 0\.417 \[0\.\d+, 0\.\d+\], p <0\.001\.",
        choice,
    )
    assert labels.startswith("erag P@3 also prefers t: t leads s by 0.417 [")


def test_what_the_data_do_not_decide_is_said_with_the_queries_that_would():
    choice, needed, labels = said([("erag", "P@3", ALIKE)], WHOLE)
    assert choice.startswith("The data do not decide between t and u, only against s. End to end")
    assert "t leads u by 0.050 [" in choice
    assert "t leads s by 0.417 [" in choice
    assert "60 queries; 95% intervals and p adjusted for 3 pairs of runs" in choice
    # 3 wins and no losses of 60, three pairs: about 9 wins are needed for p below 0.05 / 3 (3 x 2 / 2^9 = 0.01),
    # and 11 expected for 80%
    assert re.fullmatch(
        r"60 queries are too few: plan for about (199|2\d0) to separate t from u \(80% power, if the true "
        r"difference is as large as here\)\.",
        needed,
    )
    assert labels == "erag P@3 finds no difference between t and u"


def test_labels_may_lean_to_a_run_or_contradict():
    contrary = {"s": first(50), "t": first(25)}
    choice, labels = said([("erag", "P@3", contrary)], CLEAR)
    assert choice.startswith("Choose t.")
    assert labels.startswith("erag P@3 prefers s instead: s leads t by 0.417 [")
    # the data do not decide, and labels are sure of the other run
    near = {"s": first(25), "t": first(27)}
    choice, _, labels = said([("erag", "P@3", contrary)], near)
    assert choice.startswith("The data do not decide between t and s. ")
    assert labels.startswith("erag P@3 prefers s: s leads t by 0.417 [")
    faint = {"s": first(27), "t": first(25)}
    _, labels = said([("erag", "P@3", faint)], CLEAR)
    assert labels.startswith("erag P@3 has s ahead, but not significantly: s leads t by 0.033 [")


def test_of_further_annotators_those_that_contradict_are_heard():
    contrary = {"s": first(50), "t": first(25)}
    rows = [("erag", "P@3", CLEAR), ("a", "P@3", CLEAR), ("b", "P@3", contrary)]
    _, labels = said(rows, CLEAR)
    first_one, other = labels.split("; ")
    assert first_one.startswith("erag P@3 also prefers t")
    assert other.startswith("b P@3 prefers s instead: s leads t")


def test_without_end_to_end_scores_it_says_that_labels_alone_speak():
    rows = [("erag", "P@3", CLEAR), ("a", "P@3", {"s": first(50), "t": first(25)})]
    choice, other = said(rows)
    assert choice.startswith(
        "Choose t (labels only: no list was read end to end). By erag P@3 (60 queries; "
    )
    assert other.startswith("a P@3 prefers s instead")
    (choice,) = said(rows[:1])
    assert "labels only" in choice


def test_labels_that_excuse_what_was_not_found_compare_no_runs():
    rows = [("erag", "P@3", {"s": first(50), "t": first(25)})]
    assert said(rows, relevant="list") == []
    labels_alone = {
        "verdict": None,
        "configuration": {"relevant": "list"},
        "means": [{"run": "s"}, {"run": "t"}],
        "end_to_end": [],
        "edits": [],
    }
    (only,) = verdict.said(labels_alone)
    assert only == "Labels where `relevant` is list do not compare runs; `relevant` pool lets them."
    assert verdict.said(labels_alone | {"edits": [{"run": "t"}]}) == []
    (choice,) = said(rows, CLEAR, relevant="list")
    assert choice.startswith("Choose t.")


def test_without_resamples_nothing_is_said_to_be_sure():
    choice, labels = said([("erag", "P@3", CLEAR)], CLEAR, resamples=0)
    assert choice == (
        "t is ahead; without resamples, the certainty is unknown. "
        "End to end (em, 60 queries): t leads s by 0.417."
    )
    assert labels == "erag P@3 also has t ahead: t leads s by 0.417"
    choice, _ = said([("erag", "P@3", CLEAR)], ALIKE, resamples=0)
    assert choice.startswith("s, t and u are equally far ahead; without resamples")


def test_few_queries_are_called_too_few_and_equal_runs_equal():
    choice, few, _ = said(
        [("erag", "P@3", {"s": [0] * 3, "t": [1] * 3})], {"s": [0] * 3, "t": [1] * 3}
    )
    assert choice.startswith("The data do not decide between t and s. ")
    assert "(em, 3 of 60 queries, those that all runs have; 95% interval)" in choice
    assert re.match(
        r"3 queries are too few: plan for about [67] to separate t from s \(80% power", few
    )
    choice, labels = said([("erag", "P@3", CLEAR)], {"s": first(20), "t": first(20)})
    assert choice.endswith(": s and t are equal.")


def test_of_many_runs_the_nearest_are_named():
    many = {f"r{i}": first(30 - i) for i in range(6)}
    choice, needed, _ = said([("erag", "P@3", many)], many)
    assert choice.startswith("The data do not decide between r0, r1, r2 and 3 more. ")
    assert choice.endswith("; 2 more.")
    assert needed.count("from ") == 3
    assert needed.endswith("(80% power, if the true differences are as large as here).")


def test_on_a_complete_tie_no_label_prefers_a_run_too():
    tied = {"s": first(20), "t": first(20)}
    for labels in (CLEAR, {"s": first(50), "t": first(25)}):
        ahead = "t" if labels is CLEAR else "s"
        choice, opinion = said([("erag", "P@3", labels)], tied)
        assert choice.startswith("The data do not decide between s and t. ")
        assert opinion.startswith(f"erag P@3 prefers {ahead}: {ahead} leads")


@pytest.mark.parametrize(
    ("needed", "said_of_it"),
    [
        (2_961, "about 3,000"),
        (164, "about 160"),
        (66, "about 66"),
        (60, "about 65"),
        (1_000_000, "at least 1,000,000"),
    ],
)
def test_numbers_of_queries_have_two_digits_and_are_more_than_there_are(needed, said_of_it):
    lead = Lead(
        run="t", over="s", difference=0.1, low=-0.1, high=0.3, p=0.4, significant=False,
        queries_needed=needed,
    )  # fmt: skip
    choice = Choice(
        annotator=None, measure=None, n=64, pairs=1, means={"t": 0.5, "s": 0.4}, best="t",
        leads=(lead,), opinions=(),
    )  # fmt: skip
    lines = verdict.sentences(
        SimpleNamespace(
            statistics=SimpleNamespace(choice=choice),
            relevant="pool",
            queries=64,
            settings=Settings.of(),
        )
    )
    assert lines[1].startswith(
        f"64 queries are too few: plan for {said_of_it} to separate t from s ("
    )


def test_one_run_gets_no_verdict():
    alone = evaluation([("erag", "P@3", {"s": first(3)})], {"s": first(3)})
    assert verdict.sentences(alone) == []
    assert verdict.summarize_verdict(alone) is None


def test_the_summary_holds_fields_and_sentences():
    settings = Settings.of(resamples=1000)
    found = verdict.summarize_verdict(
        evaluation([("erag", "P@3", ALIKE)], WHOLE, settings=settings)
    )
    found = json.loads(json.dumps(found))
    assert (found["best"], found["undecided"], found["n"]) == ("t", ["u"], 60)
    assert list(found["means"]) == ["t", "u", "s"]
    assert 180 <= found["leads"][0]["queries_needed"] <= 300
    assert found["opinions"][0]["lead"]["difference"] == 0
    assert len(found["sentences"]) == 3


@pytest.mark.parametrize("whole", [WHOLE, None])
def test_the_table_has_the_score_and_each_annotators_primary_measure_or_all(whole):
    rows = [("erag", "P@3", ALIKE), ("erag", "RR@3", WHOLE)]
    settings = Settings.of(resamples=100)
    console = Console(width=100, record=True, file=None)
    made = evaluation(rows, whole, settings=settings)
    findings = made_findings(
        scored(rows), made.downstream, made.statistics, settings, queries=made.queries
    )
    (table,) = (t for t in full_tables(findings) if str(t.title) == "Means of s, less those of:")
    with console.capture() as captured:
        console.print(table)
    text = captured.get()
    if whole:
        assert text.count("end to end em") == 2
        assert text.count("erag P@3") == 2  # the first, though RR@3 follows the end-to-end score
        assert "RR@3" not in text
    else:
        assert "end to end" not in text
        assert text.count("P@3") == text.count("RR@3") == 2
