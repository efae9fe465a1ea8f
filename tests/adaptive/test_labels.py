"""Lazy labels against full evaluations: every measure asked is bit-equal, and no label stands that was not read."""

import random
from dataclasses import replace
from operator import attrgetter

import polars as pl
import pytest
from polars.testing import assert_frame_equal

from engine.adaptive.labels import next_pairs
from engine.evaluation import plan
from engine.evaluation.evaluate import evaluate
from engine.evaluation.score import UNREAD
from engine.evaluation.settings import Settings, refuse_unfit
from engine.evaluation.study import Sweep, vary
from engine.python.result import Result
from engine.ranking.measures import KINDS, parse_measures
from engine.reading.backends import NamedExecutor
from engine.reading.protocol import ReadOutput
from engine.report.page.drawings import by_rank
from engine.report.page.queries import filters
from engine.report.printed import answer_parts
from engine.report.results import write_results
from engine.tables import END_TO_END
from tests.conftest import ScriptedReader, make_run
from tests.expected import as_expected, refused
from tests.ranking.ragged import Case, score
from tests.tables import amount, framed, inputs_of

BINARY = (
    "RR@8", "Success@3", "RR@2 Success@8", "P@3", "R@8", "R@3 RR@5", "F1@4", "AP@5", "nDCG@3", "Rprec",
    "DCG@2 Success", "RR R nDCG@2", "nDCG(dcg='exp-log2')@4", "Judged@8 Success@4",
)  # fmt: skip
GRADED = (
    "Success@3", "P@3 Success@8", "nDCG@3", "R@8 F1@4", "AP(rel=0.5)@4 Judged@8", "RR(rel=1)@8 Success@2",
    "DCG(dcg='exp-log2')@3 Success@1",
)  # fmt: skip


@pytest.fixture(autouse=True)
def rank_by_rank(monkeypatch):
    """Texts are a few letters long: half a batch of them would be everything."""
    monkeypatch.setattr(plan, "CPU_BATCH_TOKENS", 2)


def made(chance, runs):
    """Lists of up to eight of twelve passages, of which some share scores; two queries ask the same."""
    queries = [(f"q{q}", f"what is {q % 5}", ["yes"], []) for q in range(6)]
    corpus = [(f"d{d}", "", f"text {d}", f"A{d}") for d in range(12)]
    rows = [
        (query, f"d{d}", rank, float(-(rank // chance.choice((1, 1, 3)))), f"run{run}")
        for run in range(runs)
        for query, *_ in queries
        if chance.random() < 0.9
        for rank, d in enumerate(chance.sample(range(12), chance.randint(1, 8)), start=1)
    ]
    return inputs_of(queries, corpus, rows)


def reader_of(seed, words):
    """Answers by what it is given alone."""
    return ScriptedReader(lambda text: random.Random(f"{seed}{text}").choice(words))


def run(inputs, settings, store, reader):
    return evaluate(inputs, settings, store=store, executor=NamedExecutor("scripted", reader))


# Each twice, once among the slow tests: alone, and beside labels that need no reads.
@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(seed, marks=[pytest.mark.slow] if (seed + seed // 2) % 2 else [])
        for seed in range(2 * len(BINARY + GRADED))
    ],
)
def test_every_measure_asked_is_that_of_the_full_evaluation(tmp_path, seed):
    chance = random.Random(seed)
    measures = (BINARY + GRADED)[seed // 2]
    graded = measures in GRADED
    words = ["no", "yes", "no"] + ["yes and more"] * graded
    options = {
        "k": 8,
        "metric": "f1" if graded else "em",
        "annotators": ("erag", "containment") if not graded and seed % 2 else ("erag",),
        "relevant": "pool" if "Judged" in measures else chance.choice((None, "list", "pool")),
        "measures": measures,
        END_TO_END: seed % 4 > 0,
        "resamples": 0,
    }
    inputs = made(chance, 1 + seed % 3)
    full = run(inputs, Settings.of(**options), tmp_path / "full", reader_of(seed, words))
    reader = reader_of(seed, words)
    settings = Settings.of(**options, lazy=True)
    lazy = run(inputs, settings, tmp_path / "lazy", reader)
    for name in (
        "query_scores", "downstream", "means", "statistics.correlations", "statistics.run_pairs"
    ):  # fmt: skip
        table = attrgetter(name)
        assert_frame_equal(table(lazy), table(full), check_exact=True)
    tied = [[n.text for n in one.notes if n.code == "tied_scores"] for one in (lazy, full)]
    assert tied[0] == tied[1]
    # What has a label has that of the full evaluation; what has none was not read, and is counted.
    both = lazy.labels.join(full.labels, on=["query_id", "doc_id", "annotator"], suffix="_full")
    assert both.height == full.labels.height == lazy.labels.height
    assert both.filter(pl.col("label") != pl.col("label_full")).is_empty()
    unread = lazy.labels["label"].null_count()
    assert amount(lazy, UNREAD) == unread
    assert lazy.traces.height == full.traces.height - unread
    costs = lazy.readings["reader"].costs
    assert (costs.done, costs.wanted, costs.reused) == (len(reader.asked), len(reader.asked), 0)
    # The store alone tells where an evaluation is: nothing is read again.
    again = reader_of(seed, words)
    assert_frame_equal(run(inputs, settings, tmp_path / "lazy", again).labels, lazy.labels)
    assert again.asked == []


def test_passages_that_are_encoded_for_a_sampled_list_are_labelled_with_it(tmp_path):
    inputs = made(random.Random(8), 2)
    settings = Settings.of(k=8, measures="RR@8", lists=3, augmentation="fid", reader="bundled-fid")
    rounds = []

    class Watched(ScriptedReader):
        def __call__(self, plan, units, spec):
            rounds.append(set(zip(plan["query_id"], plan["doc_ids"].list.join(" "), strict=True)))
            yield from super().__call__(plan, units, spec)

    def read(place, reader, **options):
        return run(inputs, settings.but(**options), tmp_path / place, reader)

    answer = reader_of(8, ["no", "no", "no", "yes"]).answer
    full = read("full", ScriptedReader(answer))
    lazy = read("lazy", Watched(answer), lazy=True)
    assert_frame_equal(lazy.query_scores, full.query_scores, check_exact=True)
    assert_frame_equal(lazy.end_to_end, full.end_to_end, check_exact=True)
    drawn = lazy.downstream["query_id"].unique()
    labels = lazy.labels.with_columns(listed=pl.col("query_id").is_in(drawn.implode()))
    assert labels.filter("listed")["label"].null_count() == 0
    assert labels.filter(~pl.col("listed"))["label"].null_count() > 0
    # All of these queries are read in the first round, beside the first ranks of the others.
    first, *later = rounds
    assert {query for query, _ in first} == set(inputs.runs["query_id"])
    assert not {query for one in later for query, _ in one} & set(drawn)


USUAL = {"k": 8, "measures": "RR@8 Success@3", "resamples": 0}


@pytest.mark.parametrize("failed", ["zero", "skip"])
def test_reads_that_fail_are_no_answer_as_in_a_full_evaluation(tmp_path, failed):
    inputs, settings = made(random.Random(3), 2), Settings.of(**USUAL, failed_reads=failed)
    reader = reader_of(1, ["no", "yes"])
    full = run(inputs, settings, tmp_path / "full", _failing(reader_of(1, ["no", "yes"])))
    lazy = run(inputs, settings.but(lazy=True), tmp_path / "lazy", _failing(reader))
    assert len(set(reader.asked)) == len(reader.asked) == lazy.readings["reader"].costs.done
    if failed == "zero":
        assert_frame_equal(lazy.query_scores, full.query_scores, check_exact=True)
    assert lazy.readings["reader"].costs.failed > 0
    assert lazy.labels["label"].null_count() > 0


def _failing(reader):
    """Fails on some passages: a failure is a result, and no reason to read again."""

    def units(plan, units, spec):
        for result in reader(plan, units, spec):
            texts = reader.asked[-len(result.outputs) :]
            outputs = [
                ReadOutput.failed("lost") if "text 1" in text else output
                for text, output in zip(texts, result.outputs, strict=True)
            ]
            yield replace(result, outputs=outputs)

    return units


def test_an_interrupted_evaluation_goes_on_by_the_store(tmp_path):
    inputs, settings = made(random.Random(5), 2), Settings.of(**USUAL, lazy=True)
    whole = reader_of(5, ["no", "no", "yes"])
    expected = run(inputs, settings, tmp_path / "whole", whole)

    first = ScriptedReader(whole.answer, most=15)
    with pytest.raises(KeyboardInterrupt):
        run(inputs, settings, tmp_path / "store", first)
    rest = ScriptedReader(whole.answer)
    result = run(inputs, settings, tmp_path / "store", rest)
    assert_frame_equal(result.labels, expected.labels)
    assert sorted(first.asked + rest.asked) == sorted(whole.asked)


def pairs(*rows):
    return framed(rows, {"query_id": pl.String, "doc_id": pl.String, "label": pl.Float64})


@pytest.mark.parametrize(
    ("measure", "labels", "own_list", "needed"),
    [
        # The list of q is a b c d, that of the other run is e a.
        ("RR@4", {}, True, "ae"),
        ("RR@4", {"a": 0, "e": 1}, True, "b"),
        ("RR@4", {"c": 1, "e": 1}, True, "a"),  # the first useful one may stand before c
        ("Success@4", {"c": 1, "e": 1}, True, ""),
        ("Success@2", {"c": 1, "e": 1}, True, "a"),
        ("P@2", {"a": 1}, True, "be"),
        ("Judged@3", {}, False, ""),
        ("R@4", {"a": 1, "e": 0}, True, ""),  # whatever is relevant of its own list is in it
        ("R@4", {"a": 1, "e": 0}, False, "bcd"),  # how many are relevant decides, of the pool
        ("AP@2", {"a": 0, "b": 0, "e": 0}, True, ""),  # nothing counts: 0 over any number
        ("AP@2", {"a": 0, "b": 1, "e": 0}, True, "cd"),
        ("AP@2", {"a": 0, "b": 1, "e": 0}, False, "cd"),
        ("nDCG@2", {"a": 1, "b": 1, "e": 0}, True, ""),  # no order is better than two useful ones
        ("nDCG@2", {"a": 1, "b": 0, "e": 0}, True, "cd"),
        ("nDCG@2", {"a": 0.5, "b": 0.5, "e": 0}, True, "cd"),
        ("Success@4", {"a": 0.5, "e": 1}, True, "b"),  # a larger one may come
        ("Success(rel=0.5)@4", {"a": 0.5, "e": 1}, True, ""),
    ],
)
def test_what_is_needed_next_by_hand(measure, labels, own_list, needed):
    runs = {"one": "abcd", "two": "ea"}
    rows = [("q", run, d, rank) for run, ids in runs.items() for rank, d in enumerate(ids, 1)]
    lists = framed(rows, ["query_id", "run", "doc_id", "rank"])
    known = pairs(*(("q", d, float(label)) for d, label in labels.items()))
    found = next_pairs([lists], known, parse_measures(measure), own_list=own_list)
    assert "".join(sorted(found["doc_id"])) == needed


@pytest.mark.parametrize("own_list", [True, False])
@pytest.mark.parametrize("kind", [k for k, one in KINDS.items() if one.labels != "utilities"])
def test_labels_left_out_decide_no_registered_measure(kind, own_list):
    chance, base = random.Random(kind), "list" if own_list else "pool"
    if own_list and KINDS[kind].trivial_on_list:
        return
    for cutoff in ("", "@3") if KINDS[kind].has_cutoff else ("",):
        lists = {run: {f"q{q}": chance.sample("abcdefgh", 6) for q in range(20)} for run in "st"}
        case = Case(list(lists["s"]), lists, {})
        truth = {(q, d): float(chance.random() < 0.2) for q in case.queries for d in "abcdefgh"}
        known, new, measure = {}, {("", "")}, parse_measures(kind + cutoff)
        while new:
            rows = pairs(*((q, d, label) for (q, d), label in known.items()))
            new = {*next_pairs([case.runs_table()], rows, measure, own_list=own_list).iter_rows()}
            assert not new & known.keys()
            known |= {pair: truth[pair] for pair in new}
        values = []
        for other in (0.0, 1.0):
            labels = {q: {d: known.get((q, d), other) for d in "abcdefgh"} for q in case.queries}
            values.append(score(replace(case, labels=labels), [kind + cutoff], base))
        assert values[0] == values[1]


def test_few_lists_go_several_ranks_at_a_time():
    lists = make_run([("q", f"d{rank}", rank) for rank in range(1, 9)])
    measures, nothing = parse_measures("RR@8"), pairs()

    def asked(known, **pace):
        return next_pairs([lists], known, measures, own_list=True, **pace).height

    assert [asked(nothing, least=least) for least in (1, 3, 20)] == [1, 3, 8]
    known = pairs(*(("q", f"d{rank}", 0.0) for rank in (1, 2, 3)))
    assert (asked(known, doubles=True), asked(known, least=4, doubles=True)) == (3, 4)


@pytest.mark.parametrize(
    "options",
    [
        {"annotators": ("containment",)},
        {"measures": ""},
        {"annotators": ("erag", "utility"), "measures": "RR UDCG"},
    ],
)
def test_what_needs_all_labels_is_refused(options):
    with refused("settings.lazy"):
        Settings.of(**{**USUAL, "lazy": True, **options})


def test_studies_and_batches_are_refused():
    settings = Settings.of(**USUAL, lazy=True)
    with refused("settings.study"):
        vary(settings, Sweep(augmentations=("in-prompt", "fid")))
    batch = settings.but(reader="openai:x", base_url="http://127.0.0.1:9", batch_out="batch")
    with refused("settings.batch"):
        refuse_unfit([batch])


def test_what_is_written_says_which_labels_were_not_needed(tmp_path):
    """No null is exported as a judgment, and the page shows no share over the passages that were read."""
    inputs, settings = made(random.Random(7), 1), Settings.of(**USUAL, lazy=True)
    result = run(inputs, settings, tmp_path / "store", reader_of(7, ["no", "yes"]))
    found = write_results(result, {}, tmp_path / "out")
    unread = result.labels["label"].null_count()
    lines = (tmp_path / "out/exported/qrels/erag.txt").read_text().splitlines()
    assert 0 < len(lines) == result.labels.height - unread
    as_expected([part for part in answer_parts(found, "out") if str(part).startswith("note: ")])
    assert found.summary["notes"][UNREAD][0]["amount"] == unread
    assert by_rank(found).is_empty()
    assert [one.key for one in filters(found)] == []
    assert sum(map(len, Result.of(result, {}).qrels().values())) == len(lines)
