"""Costs by kind: what a unit of both kinds took is split, all else is as it was measured."""

import random

import polars as pl
import pytest

from engine import tables
from engine.reading.costs import (
    SINGLE,
    WHOLE,
    KindCosts,
    ReadingCosts,
    UnitResult,
    merge_kinds,
    requested_kinds,
    set_requested,
    unit_kinds,
)
from engine.reading.plan import Unit


def reads(*rows):
    """(passages, prompt tokens, output tokens) each."""
    return pl.DataFrame(
        {
            "read_key": [f"key{i}" for i in range(len(rows))],
            "doc_ids": [[f"d{j}" for j in range(passages)] for passages, _, _ in rows],
            "prompt_tokens": [prompt for _, prompt, _ in rows],
            "output_tokens": [output for _, _, output in rows],
        },
        schema_overrides={"doc_ids": tables.READS["doc_ids"]},
    )


def result(seconds, computed=0, padded=0):
    return UnitResult(Unit(0, 0, 1), [], "w", seconds, {}, computed, padded)


def test_a_unit_of_one_kind_is_as_it_was_measured():
    kinds = unit_kinds(reads((1, 10, 1), (1, 20, 2)), result(3.0, 25, 30))
    assert kinds == {
        SINGLE: KindCosts(
            done=2,
            prompt_tokens=30,
            output_tokens=3,
            computed_tokens=25,
            padded_tokens=30,
            reader_seconds=3.0,
        )
    }


def test_a_unit_of_both_kinds_is_split_by_tokens():
    kinds = unit_kinds(reads((1, 29, 1), (3, 88, 2)), result(4.0, 80, 80))
    assert (kinds[SINGLE].reader_seconds, kinds[WHOLE].reader_seconds) == (1.0, 3.0)
    assert (kinds[SINGLE].split_seconds, kinds[WHOLE].split_seconds) == (1.0, 3.0)
    assert (kinds[SINGLE].computed_tokens, kinds[WHOLE].computed_tokens) == (20, 60)


def test_reads_without_tokens_are_split_by_their_number():
    kinds = unit_kinds(reads((1, 0, 0), (1, 0, 0), (1, 0, 0), (2, 0, 0)), result(4.0))
    assert (kinds[SINGLE].reader_seconds, kinds[WHOLE].reader_seconds) == (3.0, 1.0)


@pytest.mark.parametrize("seed", range(20))
def test_nothing_is_lost_or_counted_twice(seed):
    chance = random.Random(seed)
    units = [
        reads(
            *(
                (chance.choice([1, 1, 1, 4]), chance.randrange(50), chance.randrange(5))
                for _ in range(chance.randrange(1, 9))
            )
        )
        for _ in range(12)
    ]
    took = [chance.random() * 9 for _ in units]
    merged = merge_kinds(
        unit_kinds(unit, result(seconds)) for unit, seconds in zip(units, took, strict=True)
    )
    everything = pl.concat(units)
    assert sum(kind.done for kind in merged.values()) == everything.height
    assert sum(kind.prompt_tokens for kind in merged.values()) == everything["prompt_tokens"].sum()
    assert sum(kind.reader_seconds for kind in merged.values()) == pytest.approx(sum(took))


def test_wanted_reads_are_counted_once_by_kind():
    asked = pl.concat([reads((1, 0, 0), (3, 0, 0)), reads((1, 0, 0), (3, 0, 0), (2, 0, 0))])
    assert requested_kinds(asked) == {SINGLE: 1, WHOLE: 2}
    costs = ReadingCosts(kinds={WHOLE: KindCosts(done=1)})
    set_requested(costs, requested_kinds(asked))
    assert costs.kinds == {
        SINGLE: KindCosts(wanted=1, reused=1),
        WHOLE: KindCosts(wanted=2, reused=1, done=1),
    }
