"""Queries read until the verdict: what was read decides alone, and no interval stands that a stop would break."""

import random
import re
from dataclasses import replace
from itertools import combinations

import numpy as np
import polars as pl
import pytest
from polars.testing import assert_frame_equal

from engine.adaptive.queries import DECIDED, STOPPED, keep_order, reading_order
from engine.evaluation.evaluate import evaluate, evaluate_shards
from engine.evaluation.jobs import Context
from engine.evaluation.settings import Settings, refuse_unfit
from engine.evaluation.study import Sweep, vary
from engine.inputs.files import InputFiles
from engine.inputs.partition import partition
from engine.reading import readers
from engine.reading.backends import NamedExecutor
from engine.reading.protocol import ReaderStats, ReadOutput
from engine.report.printed import answer_parts
from engine.report.results import refuse_another, write_results
from engine.report.verdict import summarize_verdict
from engine.sources.io.folders import folder_at
from engine.statistics.correlation import Bootstrap
from engine.statistics.runs import comparer, place_of
from engine.statistics.until import decided
from engine.tables import END_TO_END, high_of, low_of
from tests.conftest import ScriptedReader
from tests.expected import as_expected, refused
from tests.tables import amount, framed, inputs_of

LABELS_ALONE = {END_TO_END: False}
UNTIL = {"k": 3, "measures": "RR@3 P@3", "until": "verdict", "actors": 0, "dtype": "float32"}


def made(queries=200, better=0.5, seed=1, **others):
    """Runs that list the answer first for a share of the queries; ``poor`` never does."""
    shares = {"good": better, "poor": 0, **others}
    chance = random.Random(seed)
    corpus = [(f"d{d}", "", f"text {d}", f"A{d}") for d in range(40)]
    corpus += [(f"a{q}", "", f"says yes{q}", f"B{q}") for q in range(queries)]
    rows = []
    for q in range(queries):
        for run, share in shares.items():
            ids = [f"a{q}"] if share and chance.random() < share else []
            ids = ids + [f"d{d}" for d in chance.sample(range(40), 3 - len(ids))]
            rows += [(f"q{q}", d, rank, -float(rank), run) for rank, d in enumerate(ids, 1)]
    asked = [(f"q{q}", f"what is {q}", [f"yes{q}"], []) for q in range(queries)]
    return inputs_of(asked, corpus, rows)


def in_order(ids):
    """Queries in the order in which they are read."""
    ids = pl.DataFrame({"query_id": list(ids)})
    return ids.sort(place_of(ids["query_id"], 0))["query_id"].to_list()


def by_run_and_query(scores):
    return {(r, q): v for r, q, v in scores.select("run", "query_id", "value").iter_rows()}


def comparison(rows):
    """Runs compared by the scores of (run, query)."""
    compare = comparer(Bootstrap(until="verdict"), lambda *_: 1.0, None)
    return compare(framed(rows, ["run", "query_id", "value"]), None, None)


def says(text):
    return "yes" + text.partition("says yes")[2].split()[0] if "says yes" in text else "no"


def run(tmp_path, inputs, reader=None, **options):
    executor = NamedExecutor("scripted", reader or ScriptedReader(says))
    settings = Settings.of(**{**UNTIL, **options})
    return evaluate(inputs, settings, store=tmp_path, executor=executor)


@pytest.mark.parametrize(
    "options", [{}, {"lazy": True}, LABELS_ALONE], ids=["usual", "lazy", "labels"]
)
def test_a_clear_lead_is_told_from_some_of_the_queries(tmp_path, options):
    inputs, reader = made(), ScriptedReader(says)
    result = run(tmp_path, inputs, reader, **options)
    left_out = amount(result, STOPPED)
    assert result.queries == 200 - left_out == result.inputs.queries.height < 100
    # The queries that were read are the first ones of an order that the seed draws.
    order = in_order(inputs.queries["query_id"])
    assert set(result.query_scores["query_id"]) == set(order[: result.queries])
    asked = {int(text.rsplit("what is ")[1].split()[0].strip("?")) for text in reader.asked}
    assert {f"q{number}" for number in asked} == set(order[: result.queries])
    assert result.statistics.choice.best == "good"
    as_expected(summarize_verdict(result)["sentences"][0])
    # Intervals of differences are those of the confidence sequence, in the order of reading.
    scores = result.downstream if options != LABELS_ALONE else result.query_scores
    scores = scores.filter(pl.col("measure") == "RR@3") if "measure" in scores.columns else scores
    values = by_run_and_query(scores)
    paired = np.array([values["good", q] - values["poor", q] for q in order[: result.queries]])
    (expected,) = decided([paired], confidence=0.95)
    lead = result.statistics.choice.leads[0]
    assert (lead.low, lead.high) == pytest.approx((expected.low, expected.high), abs=1e-9)
    assert expected.decided_at <= result.queries
    for table in (result.statistics.correlations, result.statistics.comparisons):
        bounds = table.select(pl.selectors.matches("_(low|high|p)$"))
        assert all(column.is_nan().all() for column in bounds)
    # The rest of a full evaluation is what is missing, and its figures are as ever.
    rest = ScriptedReader(says)
    full = run(tmp_path, inputs, rest, **{**options, "until": None, "resamples": 0})
    assert full.queries == 200
    assert not set(rest.asked) & set(reader.asked)


@pytest.mark.parametrize("lazy", [False, True])
def test_equal_runs_are_read_to_the_end_as_in_a_full_evaluation(tmp_path, lazy):
    inputs = made(queries=60, better=0.05)
    found = run(tmp_path / "until", inputs, lazy=lazy)
    full = run(tmp_path / "full", inputs, until=None, lazy=lazy, resamples=0)
    assert amount(found, STOPPED) == 0
    for name in ("query_scores", "downstream", "labels"):
        assert_frame_equal(getattr(found, name), getattr(full, name), check_exact=True)
    as_expected(summarize_verdict(found)["sentences"])


@pytest.mark.parametrize(
    ("options", "labels"),
    [
        ({"measures": "nDCG@3 P@3"}, True),
        ({"measures": "RR@3 P@3", "lazy": True}, False),
        ({"measures": "nDCG@3", "relevant": "list"}, False),
        ({"measures": "RR@3", **LABELS_ALONE}, False),
        ({"measures": "nDCG@3", **LABELS_ALONE}, True),
    ],
    ids=["pool", "lazy", "list", "labels", "labels of the pool"],
)
def test_a_run_told_apart_from_all_others_is_read_no_further_at_the_same_verdict(
    tmp_path, options, labels
):
    """Against the full evaluation, whose scores decide every pair at its number of queries."""
    inputs, reader = made(100, 0.6, near=0.5, mid=0.25), ScriptedReader(says)
    result = run(tmp_path, inputs, reader, **options)
    full = run(tmp_path / "full", inputs, **{**options, "until": None, "resamples": 0})
    order = in_order(inputs.queries["query_id"])
    # What was made is as in the full evaluation, of the first queries for each run.
    read = {}
    for name in ("downstream", "query_scores"):
        ours, theirs = getattr(result, name), getattr(full, name)
        keys = [key for key in ours.columns if key in ("run", "measure", "query_id")]
        theirs = theirs.join(ours, on=keys, how="semi", maintain_order="left")
        assert_frame_equal(ours, theirs, check_exact=True)
        by_run = {one: set(rows["query_id"]) for (one,), rows in ours.group_by("run")}
        assert all(queries == set(order[: len(queries)]) for queries in by_run.values())
        read[name] = {one: len(queries) for one, queries in by_run.items()}
    if labels:
        assert set(read["query_scores"].values()) == {result.queries}
    # Every pair is decided as if all runs had been read as far, and each run as far as its pairs take.
    whole = options.get(END_TO_END, True)
    scores, what = (full.downstream, END_TO_END) if whole else (full.query_scores, "difference")
    values = by_run_and_query(scores)
    pairs = list(combinations(result.shards.runs, 2))
    paired = [[values[a, q] - values[b, q] for q in order[: result.queries]] for a, b in pairs]
    expected = dict(zip(pairs, decided(np.array(paired), confidence=0.95), strict=True))
    n, found = read["downstream" if whole else "query_scores"], result.statistics
    for row in found.run_pairs.iter_rows(named=True):
        leads = (row[f"{what}_low"] > 0) - (row[f"{what}_high"] < 0)
        assert leads == expected[row["run"], row["run_b"]].leads
        assert row[f"{what}_n" if whole else "n"] == min(n[row["run"]], n[row["run_b"]])
    for one in n:
        times = [pair.decided_at for key, pair in expected.items() if one in key]
        assert n[one] >= max(time or result.queries for time in times)
    best = found.choice.best
    assert {lead.over: lead.n for lead in found.choice.leads} == {
        one: min(n[one], n[best]) for one in n if one != best
    }
    (note,) = [note for note in result.notes if note.code == DECIDED]
    stopped = {one for one in n if n[one] < result.queries}
    assert (note.amount, set(note.about)) == (len(stopped), stopped)
    assert bool(stopped) == ("nDCG" not in options["measures"] or whole)
    said = " ".join(summarize_verdict(result)["sentences"])
    assert all(f", on {n[one]} queries" in said for one in stopped)


def test_the_best_run_is_the_one_that_leads_not_the_one_with_the_easier_queries():
    """Run a leads b where both were read; b, read on, has the higher mean."""
    ids = in_order(f"q{n}" for n in range(90))
    values = {"c": [0.0] * 90, "b": [0.0] * 30 + [1.0] * 60, "a": [0.5] * 30}
    rows = [(r, q, v) for r, of in values.items() for q, v in zip(ids, of, strict=False)]
    found = comparison(rows)
    assert [found.mean(run) for run in "abc"] == [0.5, 0.666666666667, 0.0]
    assert found.ranked("bca") == ["a", "b", "c"]
    assert (found.shared("a", "b"), found.shared("b", "c")) == (30, 90)


def test_leads_are_of_the_queries_that_every_run_has_which_was_read_as_far():
    """Each of three runs leads another on queries of their own; where all have scores, they do not."""
    ids = in_order(f"q{n}" for n in range(301))
    rows = [(run, ids[300], 0.5) for run in "abc"]
    for n, query_id in enumerate(ids[:300]):
        best, other = ("ab", "bc", "ca")[n % 3]
        rows += [(best, query_id, 1.0), (other, query_id, 0.0)]
    found = comparison(rows)
    assert found.values.tolist() == [[0.5]] * 3
    # A run that was stopped lacks what comes later, and nothing else.
    rows = [
        (run, q, float(run == "a")) for run in "abc" for q in ids if run != "c" or q in ids[:50]
    ]
    rows.remove(("b", ids[20], 0.0))
    found = comparison(rows)
    assert [found.shared(*pair) for pair in ("ab", "ac", "bc")] == [300, 49, 49]


@pytest.mark.parametrize("share", [2, 4])
def test_queries_that_a_run_lacks_count_in_the_number_that_is_needed(tmp_path, share):
    inputs = made(160, 0.6, near=0.5)
    lacking = (pl.col("run") == "near") & (pl.col("query_id").str.slice(1).cast(int) % share != 0)
    inputs = replace(inputs, runs=inputs.runs.filter(~lacking & (pl.col("run") != "poor")))
    result = run(tmp_path, inputs, missing="skip")
    (lead,) = result.statistics.choice.leads
    n = result.statistics.choice.n
    # Up to the last query that the run has, only those count that both have.
    assert lead.difference >= 0
    assert 160 // share == lead.n <= n < 160 // share + 10
    (needed,) = re.findall("plan for about ([0-9,]+) to", summarize_verdict(result)["sentences"][1])
    assert int(needed.replace(",", "")) == pytest.approx(lead.queries_needed * n / lead.n, rel=0.06)


def test_an_interrupted_evaluation_comes_to_the_same_verdict(tmp_path):
    inputs, whole, rest = made(120, 0.4, near=0.3), ScriptedReader(says), ScriptedReader(says)
    first = ScriptedReader(says, most=250)
    expected = run(tmp_path / "whole", inputs, whole)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "store", inputs, first)
    result = run(tmp_path / "store", inputs, rest)
    assert result.statistics.choice == expected.statistics.choice
    assert amount(result, DECIDED) == amount(expected, DECIDED) > 0
    assert sorted(first.asked + rest.asked) == sorted(whole.asked)


def test_a_rerun_with_more_queries_reads_the_new_ones_alone_and_behind_the_others(tmp_path):
    few = made(queries=40, better=0.02)
    reader = ScriptedReader(says)
    first = run(tmp_path, few, reader)
    more, again = made(queries=80, better=0.02), ScriptedReader(says)
    new = more.runs.join(few.runs, on="query_id", how="anti", maintain_order="left")
    more = replace(more, runs=pl.concat([few.runs, new]), queries=more.queries.reverse())
    second = run(tmp_path, more, again)
    assert again.asked
    assert not set(again.asked) & set(reader.asked)
    assert first.clusters.sort("cluster")["query_id"].to_list() == in_order(few.queries["query_id"])
    order = second.clusters.sort("cluster")["query_id"].to_list()
    rest = [query_id for query_id in order if query_id not in set(few.queries["query_id"])]
    assert order == [*in_order(few.queries["query_id"]), *in_order(rest)]


@pytest.mark.parametrize(("share", "cluster"), [(0.7, None), (0.1, "article"), (0.1, None)])
def test_queries_that_share_much_are_read_by_whole_clusters_which_are_bet_on(
    tmp_path, share, cluster
):
    inputs, shared = made(120, 0.9), round(120 * share)
    codes = [n // 4 if n < shared else n for n in range(120)]
    inputs = replace(inputs, queries=inputs.queries.with_columns(cluster=pl.Series(codes)))
    result = run(tmp_path, inputs, cluster=cluster)
    of = dict(zip(inputs.queries["query_id"], codes, strict=True))
    used = cluster or share > 0.2
    read, order = set(result.inputs.queries["query_id"]), dict(result.clusters.iter_rows())
    assert len(read) < 120 == len(order)
    for one, other in combinations(of, 2):
        together = used and of[one] == of[other]
        assert (order[one] == order[other]) == together
        assert not together or (one in read) == (other in read)
    values = by_run_and_query(result.downstream)
    scored = sorted({q for _, q in values}, key=order.get)
    names = result.shards.runs
    paired = np.array(
        [[values.get((r, q), np.nan) - values.get((o, q), np.nan) for q in scored]
         for r, o in combinations(names, 2)]
    )  # fmt: skip
    numbers = np.array([order[q] for q in scored])
    expected = decided(paired, confidence=0.95, clusters=numbers, most=4 if used else 1)
    found = result.statistics.run_pairs.filter(measure="RR@3", annotator="erag")
    assert found[low_of(END_TO_END)].to_list() == pytest.approx([e.low for e in expected])
    assert found[high_of(END_TO_END)].to_list() == pytest.approx([e.high for e in expected])


class Loaded:
    """Answers as ``says``; counts how often it is loaded."""

    times = 0

    def __init__(self, spec):
        self.stats = ReaderStats()
        Loaded.times += 1

    def read(self, inputs):
        return [ReadOutput(says("\n".join(texts)), 5, 1, False) for texts in inputs]


def test_shards_come_to_the_verdict_of_the_whole_with_a_reader_that_is_loaded_once(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(readers, "load", Loaded)
    Loaded.times = 0
    inputs, settings = made(120, 0.9, near=0.3), Settings.of(**UNTIL)
    whole = evaluate(inputs, settings, store=tmp_path / "store")
    assert Loaded.times == 1
    runs = {name: inputs.runs.filter(run=name) for name in ("good", "poor", "near")}
    paths = {name: tmp_path / f"{name}.parquet" for name in ("queries", "corpus", *runs)}
    for name, path in paths.items():
        (runs[name] if name in runs else getattr(inputs, name)).write_parquet(path)
    queries, corpus, *run = paths.values()
    files = InputFiles(queries=queries, corpus=corpus, run=tuple(run))
    shards = partition(files, folder_at(tmp_path / "inputs"), k=3, pairs_per_shard=200)
    assert len(shards.shards) > 3
    (parts,) = evaluate_shards(
        shards, [settings], Context(store=tmp_path / "other"), folder_at(tmp_path / "shards")
    )[0]
    assert Loaded.times == 2
    assert parts.statistics.choice == whole.statistics.choice
    for code in (DECIDED, STOPPED):
        assert amount(parts, code) == amount(whole, code) > 0
    assert (parts.queries, parts.passages) == (whole.queries, whole.passages)
    found = write_results(parts, {}, tmp_path / "out")
    as_expected([part for part in answer_parts(found, "out") if str(part).startswith("note: ")])
    # Means have confidence sequences, too: wider than an interval of so many queries.
    mean = found.end_to_end("good")
    assert 0 <= mean.low < mean.value < mean.high
    assert found.sources is None or found.sources.queries.height == parts.queries


def test_results_of_all_queries_are_not_replaced_by_those_of_some(tmp_path):
    inputs = made(queries=40)
    write_results(run(tmp_path / "store", inputs, until=None), {}, tmp_path / "out")
    settings = Settings.of(**UNTIL)
    with refused("results.occupied"):
        refuse_another(tmp_path / "out", vary(settings, Sweep()))


def test_what_has_no_verdict_or_other_intervals_is_refused(tmp_path):
    for options in (
        {"resamples": 0},
        {"annotators": ("dual",), "measures": "P@3"},
        {**LABELS_ALONE, "relevant": "list"},
    ):
        with refused("settings.until"):
            Settings.of(**{**UNTIL, **options})
    settings = Settings.of(**UNTIL)
    with refused("settings.study"):
        vary(settings, Sweep(augmentations=("in-prompt", "fid")))
    batch = settings.but(reader="openai:x", base_url="http://127.0.0.1:9", batch_out="batch")
    with refused("settings.batch"):
        refuse_unfit([batch])
    alone = made(queries=5)
    with refused("settings.until"):
        run(tmp_path, replace(alone, runs=alone.runs.filter(pl.col("run") == "good")))


# --- the order of reading ---------------------------------------------------------------------------------------


def queries_of(ids, text="what is {}"):
    rows = [(one, text.format(one)) for one in ids]
    return pl.DataFrame(rows, ["query_id", "query"], orient="row")


def ids_of(order):
    return order.sort("cluster", "query_id")["query_id"].to_list()


def test_what_was_read_comes_first_in_the_order_in_which_it_was_read(tmp_path):
    store, order = folder_at(tmp_path), []
    for end in (5, 9, 14):
        queries = queries_of(f"q{n}" for n in range(end))
        found = reading_order(queries, 0, store=store)
        assert ids_of(found)[: len(order)] == order
        keep_order(queries, found, end - 3, store, 0)
        order = ids_of(found)[: end - 2]
    by_seed = reading_order(queries, 0)
    assert ids_of(by_seed) == queries.sort(place_of(queries["query_id"], 0))["query_id"].to_list()
    # Other texts, and another seed, are another order.
    others = queries_of(queries["query_id"], "who is {}")
    assert reading_order(others, 0, store=store).equals(by_seed)
    assert reading_order(queries, 1, store=store).equals(reading_order(queries, 1))


def test_a_cluster_has_the_place_of_its_first_query_whatever_its_size():
    queries = queries_of("abcdef").with_columns(cluster=pl.Series([0, 1, 0, 2, 2, 2]))
    numbers = reading_order(queries, 0, by_cluster=True)["cluster"].to_list()
    first = reading_order(queries_of("abd"), 0)["cluster"].to_list()
    assert numbers == [first[code] for code in (0, 1, 0, 2, 2, 2)]
