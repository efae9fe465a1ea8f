"""Repeating reads: the sample, the batches they come in, and what is found changed."""

import collections
from dataclasses import replace

import polars as pl
import pytest

from engine import tables
from engine.evaluation.evaluate import evaluate
from engine.evaluation.settings import Settings
from engine.inputs.files import EvaluationInputs
from engine.machine.pool import PoolSettings
from engine.messages.errors import ReadError
from engine.reading.costs import UnitResult
from engine.reading.plan import INPUTS, REQUESTED
from engine.reading.protocol import ReadOutput
from engine.reading.repetition import draw, repeat_sample
from engine.tables import FAILURE
from tests import conftest
from tests.conftest import STATS, make_run
from tests.expected import as_expected
from tests.tables import framed

SPEC = replace(conftest.SPEC, dtype="bfloat16", memory=5)


def make_reads(singles=60, lists=6, nothing=2, failed=0):
    """A job's wanted reads and what they gave: the text in capitals."""
    kinds = [["d"]] * singles + [["d", "e", "f"]] * lists + [[]] * nothing
    wanted = [(f"k{i}", f"q{i}", docs, [f"text {i}"]) for i, docs in enumerate(kinds)]
    nothing_else = (None,) * (len(tables.READS) - 7)
    rows = [
        (f"k{i}", f"q{i}", docs, f"TEXT {i}", 2, 2, False, *nothing_else)
        + ("broken" if i < failed else None,)
        for i, docs in enumerate(kinds)
    ]
    return framed(wanted, REQUESTED), framed(rows, tables.READS | {FAILURE: pl.String()})


class Repeating:
    """An executor that answers by a function of the text and of how many are read with it."""

    def __init__(self, answer):
        self.answer = answer
        self.specs, self.lengths, self.asked = [], [], []

    def __call__(self, plan, units, spec):
        self.specs.append(spec)
        for unit in reversed(units):  # as on Ray, in any order
            texts = ["".join(t) for t in plan[INPUTS].slice(unit.offset, unit.length).to_list()]
            self.lengths.append(unit.length)
            self.asked += texts
            outputs = [self.answer(text, unit.length) for text in texts]
            yield UnitResult(unit, outputs, "w", 0.0, STATS)


def says(text):
    return ReadOutput(text, 2, 2, False)


def one_if_even(outputs):
    return pl.Series([float(int(text.split()[1]) % 2 == 0) for text in outputs["output"]])


def certificate(answer, wanted, reads, size=20):
    """Repeat reads by an answer to a text and the number of those read together, or by an executor."""
    return repeat_sample(
        wanted,
        reads,
        SPEC,
        size=size,
        seed=3,
        score=one_if_even,
        pool=PoolSettings(actors=0),
        executor=answer if isinstance(answer, Repeating) else Repeating(answer),
    )


def test_the_sample_spans_all_kinds_and_follows_the_seed():
    wanted, reads = make_reads()
    sample = draw(wanted, reads, 20, 1)
    sizes = collections.Counter(len(docs) for docs in sample["doc_ids"])
    # a third of 20 for each kind, rounded up; what the smaller kinds lack comes from single passages
    assert sizes == {0: 2, 3: 6, 1: 12}
    assert sample["read_key"].n_unique() == 20
    assert draw(wanted, reads, 20, 1).equals(sample)
    assert set(draw(wanted, reads, 20, 2)["read_key"]) != set(sample["read_key"])
    # neither the order of the reads nor one asked for twice changes it
    order = pl.Series(range(wanted.height)).shuffle(5)
    twice = pl.concat([wanted[order], wanted[order]])
    assert draw(twice, pl.concat([reads[order], reads[order]]), 20, 1).equals(sample)
    positions = [int(key[1:]) for key in sample["read_key"]]
    assert positions != sorted(positions)


def test_the_sample_is_capped_and_leaves_failed_reads_out():
    wanted, reads = make_reads(singles=5, lists=2, nothing=0, failed=2)
    sample = draw(wanted, reads, 64, 0)
    assert sorted(sample["read_key"]) == ["k2", "k3", "k4", "k5", "k6"]
    assert draw(*make_reads(singles=2, lists=0, nothing=0, failed=2), 64, 0).is_empty()


@pytest.mark.parametrize("reads", [0, 1, 2, 5, 1000])
def test_every_read_is_repeated_once_and_half_of_them_alone(reads):
    executor = Repeating(lambda text, together: says(text.upper()))
    found = certificate(executor, *make_reads(reads, lists=0, nothing=0), size=reads)
    alone = (reads + 1) // 2
    assert (found["repeated"], found["alone"], found["failed"]) == (reads, alone, 0)
    assert len(set(executor.asked)) == len(executor.asked) == reads
    together = [min(256, reads - first) for first in range(alone, reads, 256)]
    assert sorted(executor.lengths) == sorted([1] * alone + together)


def test_a_reader_that_does_not_depend_on_batches_changes_nothing():
    wanted, reads = make_reads()
    executor = Repeating(lambda text, together: says(text.upper()))
    found = certificate(executor, wanted, reads)
    assert (found["repeated"], found["alone"], found["failed"]) == (20, 10, 0)
    assert (found["changed_outputs"], found["changed_labels"], found["changes"]) == (0, 0, [])
    assert len(set(executor.asked)) == 20
    assert sorted(executor.lengths) == [1] * 10 + [10]
    # a CPU's default is 16384 padded tokens
    assert (found["batches"]["tokens"], found["repeated_batches"]["tokens"]) == (16384, 8192)
    assert found["repeated_batches"]["memory"] == SPEC.memory
    assert [spec.batch_tokens for spec in executor.specs] == [8192]
    assert executor.specs[0].fingerprint == SPEC.fingerprint
    assert (found["seed"], found["dtype"], found["sha256"]["reader"]) == (
        3,
        "bfloat16",
        SPEC.fingerprint,
    )
    assert found["device"].startswith("cpu")


def test_outputs_that_depend_on_the_batch_are_found_and_counted():
    wanted, reads = make_reads()

    def other_when_alone(text, together):
        # in a batch of one, the next number: another output, and the other of two labels
        name, number = text.upper().split()
        return says(f"{name} {int(number) + (together == 1)}")

    found = certificate(other_when_alone, wanted, reads)
    assert (found["repeated"], found["changed_outputs"], found["changed_labels"]) == (20, 10, 10)
    assert len(found["changes"]) == 10
    for change in found["changes"]:
        number = int(change["query_id"][1:])
        assert change["output"] == f"TEXT {number}"
        assert change["repeated"] == f"TEXT {number + 1}"
        assert change["doc_ids"] == wanted["doc_ids"][number].to_list()


def test_changed_outputs_need_not_change_labels():
    wanted, reads = make_reads()
    found = certificate(
        lambda text, together: says(f"{text.upper()} at once" if together > 1 else text),
        wanted,
        reads.with_columns(pl.col("output").str.to_lowercase()),
    )
    assert (found["changed_outputs"], found["changed_labels"]) == (10, 0)


def test_an_output_that_two_queries_share_counts_once_and_both_labels():
    wanted, reads = make_reads(singles=1, lists=0, nothing=0)
    wanted = pl.concat([wanted, wanted.with_columns(query_id=pl.lit("q8"))])
    reads = pl.concat([reads, reads.with_columns(query_id=pl.lit("q8"))])
    found = certificate(lambda text, _: says("TEXT 7"), wanted, reads)
    assert (found["repeated"], found["changed_outputs"], found["changed_labels"]) == (1, 1, 2)


def test_reads_that_fail_when_repeated_are_counted_apart():
    def broken_together(text, together):
        return ReadOutput("", 0, 0, False, "broken") if together > 1 else says(text.upper())

    found = certificate(broken_together, *make_reads())
    assert (found["repeated"], found["failed"]) == (20, 10)
    assert (found["changed_outputs"], found["changed_labels"]) == (0, 0)


def test_confidences_are_compared_where_the_reader_chooses():
    wanted, reads = make_reads()
    reads = reads.with_columns(pl.lit(0.5).alias("confidence"))

    def chosen(text, together):
        return ReadOutput(text.upper(), 2, 1, False, confidence=0.5 if together == 1 else 0.375)

    found = certificate(chosen, wanted, reads)
    assert found["largest_confidence_difference"] == 0.125
    found = certificate(lambda text, _: says(text.upper()), *make_reads())
    assert found["largest_confidence_difference"] is None


def words(i):
    return " ".join(f"w{(7 * i + 3 * j * j) % 97}" for j in range(4 + 9 * i))


TABLES = EvaluationInputs(
    queries=framed([(f"q{i}", f"w{i} w{i + 9}", [f"w{i}"], []) for i in range(6)], tables.QUERIES),
    corpus=framed([(f"d{i}", f"w{i}", words(i), "") for i in range(6)], tables.CORPUS),
    runs=make_run([(f"q{i}", f"d{(i + r) % 6}", r + 1) for i in range(6) for r in range(3)]),
)


def first_query(*ids):
    """The first query alone, with a list."""
    runs = make_run([("q0", doc_id, rank) for rank, doc_id in enumerate(ids, 1)])
    return replace(TABLES, queries=TABLES.queries.head(1), runs=runs)


def judged_by(reader, k, **more):
    """Settings of which only a judge reads."""
    return Settings.of(
        reader=str(reader), k=k, annotators=("judge",), end_to_end=False, resamples=0, **more
    )


def repeated(done, role, executor=None):
    """What changed of all reads of a role of an evaluation."""
    job, inputs = done.readings[role], done.inputs
    reads = done.reads.with_columns(pl.lit(None, pl.String).alias("failure"))
    return repeat_sample(
        job.requested(reads, inputs.queries, inputs.corpus),
        reads,
        job.spec,
        size=64,
        seed=0,
        score=lambda some: job.ask.value(some, inputs.queries),
        pool=PoolSettings(actors=0),
        executor=executor,
    )


@pytest.mark.parametrize("augmentation", ["fid", "in-prompt"])
def test_in_fp32_repeated_reads_have_the_same_outputs(tiny_t5, tmp_path, augmentation):
    given = {"reader": str(tiny_t5), "augmentation": augmentation, "dtype": "float32"}
    settings = Settings.of(k=3, actors=0, resamples=0, **given)
    first = evaluate(TABLES, settings, store=tmp_path)
    found = repeated(first, "reader")
    assert found["repeated"] == first.readings["reader"].costs.wanted == 6 * 3 + 6
    assert (found["changed_outputs"], found["changed_labels"], found["failed"]) == (0, 0, 0)
    assert first.reads["output"].n_unique() > 6
    # outputs that come from the store are repeated too; the inputs' order of rows says nothing
    turned = replace(TABLES, corpus=TABLES.corpus[::-1], runs=TABLES.runs[::-1].sort("query_id"))
    again = evaluate(turned, settings, store=tmp_path)
    assert again.readings["reader"].costs.done == 0
    assert repeated(again, "reader") == found


@pytest.mark.parametrize(("labels", "changed"), [("binary", 1), ("graded", 2)])
def test_labels_of_the_judge_change_with_its_choice_alone(tiny_t5, tmp_path, labels, changed):
    chances = {"d0": (0.75, 0.25), "d1": (0.75, 0.625), "d2": (0.25, 0.25)}

    def judging(plan, units, spec):
        again = spec.batch_tokens > 0
        for unit in units:
            docs = [ids[0] for ids in plan["doc_ids"].slice(unit.offset, unit.length)]
            outputs = [ReadOutput("Yes", 2, 0, False, confidence=chances[d][again]) for d in docs]
            yield UnitResult(unit, outputs, "w", 0.0, STATS)

    settings = judged_by(tiny_t5, 3, judge_labels=labels)
    done = evaluate(first_query("d0", "d1", "d2"), settings, store=tmp_path, executor=judging)
    found = repeated(done, "judge", judging)
    # d0 falls below a half and d1 does not: one label of yes or no changes, two probabilities do
    assert (found["repeated"], found["changed_outputs"], found["changed_labels"]) == (3, 0, changed)
    assert found["largest_confidence_difference"] == 0.5


def test_a_choice_without_a_probability_is_refused(tiny_t5, tmp_path):
    for confidence in (None, float("nan")):
        output = ReadOutput("Yes", 2, 0, False, confidence=confidence)
        judging, store = Repeating(lambda *_, output=output: output), tmp_path / str(confidence)
        with pytest.raises(ReadError) as caught:
            evaluate(first_query("d0"), judged_by(tiny_t5, 1), store=store, executor=judging)
        as_expected(str(caught.value))
