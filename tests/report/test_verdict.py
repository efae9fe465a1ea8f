"""Which retriever to choose, in words, on scores made so that the figures are known."""

import json
import re
from types import SimpleNamespace

import polars as pl
import pytest
from rich.console import Console

from engine import tables
from engine.evaluation.settings import Settings
from engine.messages.notes import Note
from engine.report import verdict
from engine.report.printed import full_tables
from engine.statistics.table import Choice, Lead, analyse, primary_measures
from tests.expected import as_expected
from tests.report.made import made_findings, sentences
from tests.statistics.made_scores import ALIKE, WHOLE, first, read_whole, scored

CLEAR = {"s": first(25), "t": first(50)}


def evaluation(rows, whole=None, *, relevant="pool", queries=60, failed=0, apart=False, **options):
    query_scores = scored(rows)
    downstream = read_whole(whole or {})
    if apart:  # no query of t is one of s
        own = pl.when(pl.col("run") == "t").then("t" + pl.col("query_id"))
        query_scores, downstream = (
            table.with_columns(own.otherwise("query_id").alias("query_id"))
            for table in (query_scores, downstream)
        )
    settings = Settings.of(**({"resamples": 1000} | options))
    statistics = analyse(query_scores, downstream, settings.bootstrap)
    by = ["run", "annotator", "measure"]
    return SimpleNamespace(
        primary_measures=primary_measures(query_scores.select("annotator", "measure").iter_rows()),
        statistics=statistics,
        query_scores=query_scores,
        means=query_scores.group_by(by, maintain_order=True).agg(pl.col("value").mean()),
        downstream=downstream,
        end_to_end=pl.DataFrame(),
        clusters=tables.empty(tables.CLUSTERS),
        notes=[Note("failed_reads", failed, "")],
        relevant=relevant,
        queries=queries,
        settings=settings,
    )


P = "P@3"
CONTRARY = {"s": first(50), "t": first(25)}
NEAR = {"s": first(25), "t": first(27)}
TIED = {"s": first(20), "t": first(20)}
# Equal means, each right on 10 queries on which the other is wrong.
SWAPPED = {"s": first(20), "t": [0] * 10 + first(20, 50)}
RIVALS = [("erag", P, CLEAR), ("a", P, CLEAR), ("b", P, CONTRARY)]
FIGURE = r"0\.\d{3} \[-?0\.\d{3}, 0\.\d{3}\], p ([<=] 0\.\d{3}|= 1\.000)"
LEADS = rf"t leads s by {FIGURE}"
BY_READER = r"End to end \(em, 60 queries; 95% interval\): "

# Every case: what was scored, and the sentences that it has, as regular expressions.
CASES = {
    "clear": (
        evaluation([("erag", P, CLEAR)], CLEAR),
        [rf"Choose t\. {BY_READER}{LEADS}\.", rf"The erag labels also prefer t \(P@3: {LEADS}\)\."],
    ),
    "annotators disagree": (
        evaluation([("erag", P, CONTRARY)], CLEAR),
        [
            rf"Choose t\. {BY_READER}{LEADS}\.",
            rf"The erag labels prefer s instead \(P@3: s leads t by {FIGURE}\)\.",
        ],
    ),
    "further annotators contradict": (
        evaluation(RIVALS, CLEAR),
        [
            r"Choose t\. .*",
            r"The erag labels also prefer t \(.*\)\. The b labels prefer s instead \(.*\)\.",
        ],
    ),
    "an annotator leans another way": (
        evaluation([("erag", P, {"s": first(27), "t": first(25)})], CLEAR),
        [
            r"Choose t\. .*",
            rf"By the erag labels, s is ahead, but not significantly \(P@3: s leads t by {FIGURE}\)\.",
        ],
    ),
    "labels only": (
        evaluation(RIVALS),
        [
            r"Choose t \(labels only: no list was read end to end\)\. "
            rf"By erag P@3 \(60 queries; 95% interval\): {LEADS}\.",
            r"The b labels prefer s instead \(.*\)\.",
        ],
    ),
    # 3 wins and no losses of 60, three pairs: about 9 wins are needed for p below 0.05 / 3 (3 x 2 / 2^9 = 0.01),
    # and 11 expected for 80%
    "undecided in part": (
        evaluation([("erag", P, ALIKE)], WHOLE),
        [
            r"The data do not decide between t and u; t is significantly ahead of s\. End to end \(em, 60 queries; 95% "
            r"intervals and p adjusted for 3 pairs of runs\): t leads u by 0\.050 .*; t leads s by 0\.417 .*\.",
            r"60 queries are too few: plan for about 2,\d00 to separate t from u \(80% power.*; about (19\d|2\d0) if the true "
            r"difference is as large as here\)\. Whichever of t and u you choose, you lose at most 0\.1\d\d \(95%\)\.",
            r"By the erag labels, t and u have the same mean \(P@3\)\.",
        ],
    ),
    "undecided, and labels are sure": (
        evaluation(RIVALS, NEAR),
        [
            r"The data do not decide between t and s\. .*",
            r"60 queries are too few: .* Whichever you choose, you lose at most 0\.1\d\d \(95%\)\.",
            r"The erag labels prefer t \(P@3: t leads s by .*\)\. The b labels prefer s \(P@3: s leads t by .*\)\.",
        ],
    ),
    "many runs": (
        evaluation([("erag", P, {f"r{i}": first(30 - i) for i in range(6)})]),
        [
            r"The data do not decide between r0, r1, r2 and 3 more \(labels only: .*\)\. .*; 2 more\.",
            r"60 queries are too few: plan for (at least|about) .* from r1, .* from r2, .* from r3 and 2 more "
            r"\(80% power.*; about .*, .*, .* and 2 more if the true differences are as large as here\)\. "
            r"Whichever you choose, you lose at most 0\.\d{3} \(95%\)\.",
        ],
    ),
    # On a tie no run leads that labels could also prefer.
    "tie": (
        evaluation([("erag", P, CLEAR)], TIED),
        [
            rf"All runs are tied\. {BY_READER}s and t have the same mean\.",
            r"Whichever you choose, you lose at most 0\.0\d\d \(95%\)\.",
            r"The erag labels prefer t \(P@3: .*\)\.",
        ],
    ),
    "equal means of unequal scores": (
        evaluation([("erag", P, CLEAR)], SWAPPED),
        [
            rf"The data do not decide: the means are equal, but a difference of up to 0\.1\d\d either way remains possible\. {BY_READER}"
            r"s and t have the same mean, 0\.333, difference 0\.000 \[-0\.1\d\d, \+0\.1\d\d\]\.",
            r"Whichever you choose, you lose at most 0\.1\d\d \(95%\)\.",
            r"The erag labels prefer t \(P@3: .*\)\.",
        ],
    ),
    "equal means of unequal labels": (
        evaluation([("erag", P, SWAPPED)]),
        [
            r"The data do not decide: the means are equal, but .* either way remains possible \(labels only: .*\)\. By erag P@3 .*",
            r"Whichever you choose, .*",
        ],
    ),
    "equal means, read until a verdict": (
        evaluation([], SWAPPED, until="verdict"),
        [
            r"The data do not decide: the means are equal, but .* \(em, 60 queries; 95% confidence sequences.*\): .* same mean, .*\.",
            r"Whichever you choose, .*",
        ],
    ),
    "few queries": (
        evaluation([("erag", P, {"s": [0] * 3, "t": [1] * 3})], {"s": [0] * 3, "t": [1] * 3}),
        [
            r"The data do not decide .* \(em, 3 of 60 queries, those with a score in every run; 95% interval\): .*",
            r"3 queries are too few: plan for about [67] to separate t from s \(80% power.*\)\. "
            r"Whichever you choose, you lose at most 1\.000 \(95%\)\.",
            r"By the erag labels, t is also ahead, but not significantly \(P@3: .*, p = .*\)\.",
        ],
    ),
    "one query": (
        evaluation([("erag", P, {"s": [0], "t": [1]})], {"s": [0], "t": [1]}, queries=1),
        [
            r"One query cannot decide between t and s\. End to end \(em, 1 query\): t leads s by 1\.000\.",
            r"By the erag labels, t is also ahead \(P@3: t leads s by 1\.000\)\.",
        ],
    ),
    "no intervals": (
        evaluation([("erag", P, CLEAR)], CLEAR, resamples=0),
        [
            r"Without resamples the certainty is unknown; t is ahead\. End to end \(em, 60 queries\): t leads s by 0\.417\.",
            r"By the erag labels, t is also ahead \(P@3: t leads s by 0\.417\)\.",
        ],
    ),
    "no intervals, and a tie": (
        evaluation([("erag", P, CLEAR)], ALIKE, resamples=0),
        [
            r"Without resamples .*; s, t and u are tied for the lead\. .*",
            r"By the erag labels, t is ahead \(.*\)\.",
        ],
    ),
    # 25 of 60 are 0.4167, by Clopper and Pearson from 0.291 to 0.551
    "one run": (
        evaluation([("erag", P, {"s": first(24)})], {"s": first(25)}),
        [
            r"End to end \(em, 60 queries; 95% interval\): s scores 0\.417 \[0\.291, 0\.551\]\. "
            r"There is no other run to choose from\.",
            r"Kendall's \u03c4 of erag P@3 with the end-to-end score is 0\.97 \[0\.\d\d, 1\.00\]\.",
        ],
    ),
    "one run, labels only": (
        evaluation([("erag", P, {"s": first(30)})]),
        [
            r"By erag P@3 \(60 queries; 95% interval\): s scores 0\.500 \[0\.368, 0\.632\]\. "
            r"There is no other run to choose from \(labels only: no list was read end to end\)\.",
        ],
    ),
    "labels that excuse what was not found": (
        evaluation([("erag", P, CLEAR)], relevant="list"),
        [r"With `relevant` list, labels do not compare runs; use `relevant` pool\."],
    ),
    "no common query": (
        evaluation([("erag", P, CLEAR)], CLEAR, apart=True),
        [r"No query has a score in every run, so the runs cannot be compared\."],
    ),
    "LLM calls failed, as 0": (
        evaluation([("erag", P, CLEAR)], CLEAR, failed=1, failed_reads="zero"),
        [r"Choose t\. .*", r"The erag labels .*", r"1 LLM call failed and counts as 0\."],
    ),
    "LLM calls failed, left out": (
        evaluation([("erag", P, CLEAR)], CLEAR, failed=2, failed_reads="skip"),
        [
            r"Choose t\. .*",
            r"The erag labels .*",
            r"2 LLM calls failed; their queries are left out of the figures that need them\.",
        ],
    ),
    "no score": (
        evaluation([], failed=80, failed_reads="skip"),
        [
            r"No query has a score: failed LLM calls leave all of them out\.",
            r"80 LLM calls failed; their queries are left out of the figures that need them\.",
        ],
    ),
    "no label": (
        evaluation([]),
        [r"No query has a score, since no listed passage has a label\."],
    ),
}


@pytest.mark.parametrize(("made", "expected"), CASES.values(), ids=CASES)
def test_every_case_has_its_sentences(made, expected):
    said = sentences(made)
    print(*said, sep="\n")  # pytest -s shows them
    assert len(said) == len(expected)
    for sentence, pattern in zip(said, expected, strict=True):
        assert re.fullmatch(pattern, sentence), sentence
        assert not sentence[0].islower()


def test_every_sentence_is_that_of_a_case():
    said = "\n".join(sentence for made, _ in CASES.values() for sentence in sentences(made))
    templates = {key: re.escape(text) for key, text in verdict.SENTENCES.items()}
    unsaid = [
        key
        for key, text in templates.items()
        if not re.search(re.sub(r"\\{\w+\\}", ".*", text), said)
    ]
    assert unsaid == []


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
        run="t", over="s", n=64, difference=0.1, low=-0.1, high=0.3, p=0.4, significant=False,
        queries_needed=needed, queries_as_here=65,
    )  # fmt: skip
    choice = Choice(
        annotator=None, measure=None, n=64, pairs=1, means={"t": 0.5, "s": 0.4}, best="t",
        leads=(lead,), opinions=(),
    )  # fmt: skip
    _, line = verdict.sentences_on(
        choice, "em", Settings.of().bootstrap
    )  # no bound, no sentence on losses
    assert f" {said_of_it} " in line
    as_expected(line)


def test_the_summary_holds_fields_and_sentences():
    found = verdict.summarize_verdict(CASES["undecided in part"][0])
    found = json.loads(json.dumps(found))
    assert (found["best"], found["undecided"], found["n"]) == ("t", ["u"], 60)
    assert list(found["means"]) == ["t", "u", "s"]
    lead = found["leads"][0]
    assert 180 <= lead["queries_as_here"] <= 300 < lead["queries_needed"]
    assert found["most_lost"] == pytest.approx(max(-lead["low"], lead["high"]))
    assert found["opinions"][0]["lead"]["difference"] == 0
    assert len(found["sentences"]) == 3
    alone = json.loads(json.dumps(verdict.summarize_verdict(CASES["one run"][0])))
    assert alone.keys() == found.keys()
    assert (found["case"], alone["case"], alone["best"]) == ("undecided_some", "one_run", "s")
    assert (alone["n"], alone["leads"], list(alone["means"])) == (60, [], ["s"])
    nothing = verdict.summarize_verdict(CASES["no score"][0])
    assert nothing.keys() == found.keys()
    assert (nothing["case"], nothing["best"], nothing["means"]) == ("no_score", None, {})


@pytest.mark.parametrize("whole", [WHOLE, None])
def test_the_table_has_the_score_and_each_annotators_primary_measure_or_all(whole):
    rows = [("erag", "P@3", ALIKE), ("erag", "RR@3", WHOLE)]
    settings = Settings.of(resamples=100)
    console = Console(width=100, record=True, file=None)
    made = evaluation(rows, whole, resamples=100)
    findings = made_findings(
        scored(rows), made.downstream, made.statistics, settings, queries=made.queries
    )
    (table,) = (t for t in full_tables(findings) if str(t.title).startswith("Means"))
    with console.capture() as captured:
        console.print(table)
    text = captured.get()
    names = [[str(cell) for cell in column.cells] for column in table.columns[:2]]
    as_expected([str(table.title), *names])
    if whole:
        # t has 50 of 60, s 25: as the leaderboard, the page, compare and gate have it.
        assert "+0.417 [+0." in text
        assert text.count("erag P@3") == 2  # the first, though RR@3 follows the end-to-end score
        assert "RR@3" not in text
    else:
        assert text.count("P@3") == text.count("RR@3") == 2
