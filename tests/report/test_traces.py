"""Tables of traces, against plain loops over the same traces."""

import math
from collections import defaultdict
from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine import tables
from engine.evaluation.settings import Settings
from engine.inputs.files import NO_INPUTS
from engine.report.traces import (
    trace_credit,
    trace_questions,
    trace_runs,
    trace_steps,
    without_steps,
)
from engine.statistics.correlation import Bootstrap
from engine.statistics.runs import mean_interval
from tests.tables import framed

BOOTSTRAP = Bootstrap(resamples=200)
LISTS = st.lists(st.sampled_from("abcdef"), max_size=4, unique=True)
# Traces by run and question: the passages of each step.
TRACES = st.dictionaries(
    st.tuples(st.sampled_from(["r", "s"]), st.sampled_from(["q1", "q2", "q3"])),
    st.lists(LISTS, min_size=1, max_size=5),
    min_size=1,
)
LABELS = st.dictionaries(
    st.tuples(
        st.sampled_from(["q1", "q2", "q3"]),
        st.sampled_from("abcdef"),
        st.sampled_from(["one", "two"]),
    ),
    st.sampled_from([0.0, 0.4, 0.5, 1.0]),
    min_size=1,
)


def steps_of(traces):
    return framed(
        [
            (run, query, number, f"search {number}", docs)
            for (run, query), lists in traces.items()
            for number, docs in enumerate(lists, 1)
        ],
        tables.STEPS,
    )


def labels_of(labels):
    return framed([(*key, label) for key, label in labels.items()], tables.LABELS)


def made(traces, labels, answers=()):
    steps = steps_of(traces)
    used = labels_of(labels).join(steps, on="query_id", how="semi")
    downstream = framed([(r, q, 3, "", v) for r, q, v in answers], tables.DOWNSTREAM)
    by_step = trace_steps(steps, used, ["one", "two"], 2)
    return by_step, trace_questions(by_step, downstream)


def edited(runs, steps):
    """The lists of the second evaluation, and their rows."""
    ids = steps["query_id"].unique(maintain_order=True)
    queries = framed([(own, f"question {own}", [], []) for own in ids], tables.QUERIES)
    inputs = replace(NO_INPUTS, queries=queries, runs=runs, k=100)
    inputs, settings, lists = without_steps(inputs, steps, Settings.of(k=100))
    unread = inputs.unread.select(name="run", query_id="query_id")
    assert inputs.lists().height == lists.height + unread.height
    assert settings.reader.end_to_end is True
    return lists, inputs.runs


def ranks(docs):
    return {doc: rank for rank, doc in enumerate(dict.fromkeys(docs), 1)}


@settings(deadline=None, max_examples=60)
@given(TRACES, LABELS)
def test_steps_are_counted_as_by_plain_loops(traces, labels):
    by_step, _ = made(traces, labels)
    expected = {}
    for (run, query), lists in traces.items():
        for annotator in ("one", "two"):
            seen, was_useful = set(), False
            for number, docs in enumerate(lists, 1):
                known = {
                    d: labels[query, d, annotator] for d in docs if (query, d, annotator) in labels
                }
                fresh = {d: label for d, label in known.items() if d not in seen}
                useful = {d for d, label in fresh.items() if label >= 0.5}
                once = {d for d in useful if sum(d in other for other in lists) == 1}
                hits = [rank for d, rank in ranks(docs).items() if known.get(d, 0) >= 0.5]
                expected[run, query, number, annotator] = (
                    len(set(docs)),
                    len(set(docs) - seen),
                    len(known),
                    len(useful),
                    len(once),
                    pytest.approx(sum(known.values()) / len(known)) if known else None,
                    pytest.approx(sum(fresh.values()) / len(fresh)) if fresh else None,
                    bool(hits) and not was_useful,
                    1 / min(hits) if hits else 0.0,
                    float(any(rank <= 2 for rank in hits)),
                )
                seen |= set(docs)
                was_useful = was_useful or bool(hits)
    columns = [
        "passages",
        "new",
        "labelled",
        "useful",
        "not_again",
        "label",
        "new_label",
        "first_useful",
        "RR",
        "Success@2",
    ]
    found = {
        (r, q, s, a): tuple(values)
        for r, q, s, a, *values in by_step.select(
            "run", "query_id", "step", "annotator", *columns
        ).iter_rows()
    }
    assert found == expected
    assert by_step.columns == [*tables.TRACE_STEPS, "RR", "Success@2"]


@settings(deadline=None, max_examples=60)
@given(TRACES, LABELS)
def test_questions_are_counted_as_by_plain_loops(traces, labels):
    answers = [(run, query, 1.0) for run, query in traces if query != "q1"] + [("other", "q1", 1.0)]
    if any(run == "r" for run, _ in traces):
        answers.append(("r", "unasked", 0.0))
    _, by_question = made(traces, labels, answers)
    known = {(run, query): value for run, query, value in answers}
    expected = {}
    for annotator in ("one", "two"):
        for (run, query), lists in traces.items():
            useful = [
                {d for d in docs if labels.get((query, d, annotator), 0) >= 0.5} for docs in lists
            ]
            first = [number for number, docs in enumerate(useful, 1) if docs]
            every = set().union(*useful)
            expected[run, query, annotator] = (
                len(lists),
                len(set().union(*lists)),
                min(first, default=None),
                len(every),
                sum(sum(d in docs for docs in useful) == 1 for d in every),
                known.get((run, query)),
            )
    found = {(r, q, a): tuple(values) for r, q, a, *values in by_question.iter_rows()}
    assert found == expected
    assert dict(by_question.schema) == tables.TRACE_QUESTIONS


def test_runs_have_means_over_their_questions():
    rows = [
        ("r", "q1", "one", 2, 5, 1, 2, 1, 1.0),
        ("r", "q2", "one", 4, 5, 3, 1, 1, 0.0),
        ("r", "q3", "one", 1, 5, None, 0, 0, 0.0),
    ]
    found = trace_runs(framed(rows, tables.TRACE_QUESTIONS), (BOOTSTRAP, None))
    figures = {row["figure"]: row for row in found.to_dicts()}
    # (2 + 4 + 1) / 3 steps; (1 + 3) / 2 until a useful passage, in two questions; one of three without.
    expected = {"steps": 7 / 3, "first_useful": 2.0, "useful": 1.0, "not_again": 2 / 3}
    expected |= {"without_useful": 1 / 3, "score": 1 / 3}
    assert {name: row["value"] for name, row in figures.items()} == pytest.approx(expected)
    assert [figures[name]["n"] for name in expected] == [3, 2, 3, 3, 3, 3]
    # The interval of every mean score: Clopper & Pearson's of one of three.
    exact = mean_interval(pl.Series([1.0, 0.0, 0.0]), 0.95)
    assert (figures["score"]["low"], figures["score"]["high"]) == (exact.low, exact.high)
    assert 0.0 < figures["steps"]["low"] < 7 / 3 < figures["steps"]["high"] <= 4.0


def test_counts_have_the_intervals_of_means_by_cluster():
    rows = [("r", f"q{i}", "one", 1 if i < 5 else 4, 1, 1, 1, 1, 1.0) for i in range(10)]
    questions, clusters = framed(rows, tables.TRACE_QUESTIONS), {f"q{i}": i // 2 for i in range(10)}
    found = [
        trace_runs(questions, (bootstrap, clusters)).filter(figure="steps").row(0, named=True)
        for bootstrap in (BOOTSTRAP, Bootstrap(resamples=0))
    ]
    # Shares of the four steps that a question has at most.
    shares = pl.Series([0.25] * 5 + [1.0] * 5)
    by_cluster = mean_interval(shares, 0.95, np.arange(10) // 2)
    assert [found[0][name] for name in ("value", "low", "high")] == pytest.approx(
        [2.5, 4 * by_cluster.low, 4 * by_cluster.high]
    )
    assert (found[1]["value"], math.isnan(found[1]["low"])) == (2.5, True)


@settings(deadline=None, max_examples=60)
@given(TRACES, st.randoms(use_true_random=False))
def test_credit_is_counted_as_by_plain_loops(traces, random):
    """A reader that is right if the list has ``a``, or two passages."""
    steps, most = steps_of(traces), 3
    lists = {
        key: list(dict.fromkeys(d for docs in made for d in docs))[:most]
        for key, made in traces.items()
    }
    runs = framed(
        [
            (query, doc, rank, -float(rank), run)
            for (run, query), docs in lists.items()
            for rank, doc in enumerate(docs, 1)
        ],
        tables.RUNS,
    )

    def score(docs):
        return float("a" in docs or len(docs) > 1)

    lists_read, rows = edited(runs, steps)
    read = defaultdict(list)
    for name, query, doc in rows.sort("rank").select("run", "query_id", "doc_id").iter_rows():
        read[name, query].append(doc)
    named = lists_read.select("name", "query_id").rows()
    downstream = framed(
        [(name, query, most, "", score(read[name, query])) for name, query in named],
        tables.DOWNSTREAM,
    )
    found = trace_credit(steps, lists_read, downstream, (Bootstrap(resamples=0), None))
    expected = defaultdict(list)
    for (run, query), made in traces.items():
        for number, docs in enumerate(made if lists[run, query] else (), 1):
            others = {d for other, docs in enumerate(made, 1) if other != number for d in docs}
            left = [d for d in lists[run, query] if d in others or d not in docs]
            expected[run, number].append((score(lists[run, query]), score(left)))
    assert found.drop("low", "high").rows() == [
        (
            run,
            step,
            len(of),
            sum(a >= 0.5 for a, _ in of),
            sum(a >= 0.5 > b for a, b in of),
            pytest.approx(sum(a - b for a, b in of) / len(of)),
        )
        for (run, step), of in sorted(expected.items())
    ]


def test_many_steps_of_a_question_make_few_edited_runs():
    traces = {
        ("r", "q1"): [[f"d{number % 50}"] for number in range(100_000)],
        ("r", "q2"): [["d1"], ["d2"]],
    }
    steps = steps_of(traces)
    runs = framed(
        [("q1", f"d{i}", i + 1, 0.0, "r") for i in range(10)] + [("q2", "d1", 1, 0.0, "r")],
        tables.RUNS,
    )
    # No step of q1 alone brought a passage; the second of q2 brought one that the list lacks.
    lists, rows = edited(runs, steps)
    named = lists.select("name", "query_id").rows()
    assert sorted(named) == [("r 0", "q1"), ("r 0", "q2"), ("r 1", "q2")]
    assert dict(rows["run"].value_counts().iter_rows()) == {"r 0": 11}
