"""Probes: which reads are chosen, and what is made of the batches that were timed."""

import polars as pl
import pytest

from engine.planning.probe import (
    WHOLE,
    Batch,
    Stratum,
    Timed,
    choose,
    peak_memory,
    read_batches,
    start_seconds,
)
from engine.reading.execute import UnitResult
from engine.reading.executors import Backend
from engine.reading.plan import GROUP, INPUTS, SIZE
from engine.reading.protocol import ReadOutput
from engine.reading.stream import UnitDone
from engine.tables import DOC_IDS, QUERY_ID, READ_KEY
from tests.conftest import SPEC


def plan(singles, lists=()):
    """A plan of groups: (size of each read, ...) for single reads; a list with two single reads for lists."""
    rows = []
    for number, group in enumerate([*lists, *singles]):
        for place, size in enumerate(group):
            whole = number < len(lists) and place == 0
            rows.append((f"{number}-{place}", f"q{number}", size, f"g{number}", whole))
    frame = pl.DataFrame(rows, schema=[READ_KEY, QUERY_ID, SIZE, GROUP, WHOLE], orient="row")
    return frame.with_columns(
        pl.lit(["text"]).alias(INPUTS),
        pl.lit(["d"]).alias(DOC_IDS),
    ).sort(pl.col(SIZE).sum().over(GROUP), GROUP, descending=True)


SINGLES = [(size, size) for size in range(100, 300)]
LISTS = [(1000 + size, 100, 100) for size in range(40)]


def test_groups_are_whole_and_strata_apart():
    whole = plan(SINGLES, LISTS)
    batches = choose([whole], 64)
    chosen = pl.concat([batch.reads for batch in batches])
    assert chosen[READ_KEY].is_unique().all()
    of_groups = whole.filter(pl.col(GROUP).is_in(chosen[GROUP].implode()))
    assert sorted(chosen[READ_KEY]) == sorted(of_groups[READ_KEY])
    for batch in batches:
        of_lists = batch.reads.filter(pl.col(WHOLE).any().over(GROUP)).height
        assert of_lists == (batch.reads.height if batch.stratum.whole else 0)
    assert 55 <= chosen.height <= 75


def test_sizes_have_their_share_and_batches_are_small_and_large():
    batches = [batch for batch in choose([plan(SINGLES)], 80) if not batch.warming]
    sizes = pl.concat([batch.reads for batch in batches])[SIZE]
    assert abs(sizes.mean() - 199.5) < 10
    heights = sorted(batch.reads.height for batch in batches)
    assert heights[:3] == [2, 2, 2]
    assert all(height > 15 for height in heights[3:])
    large = [batch.reads[SIZE].mean() for batch in batches if batch.reads.height > 15]
    assert max(large) - min(large) < 20  # each has groups of all sizes


def test_the_largest_group_warms_up_and_a_seed_decides_the_others():
    whole = plan(SINGLES)
    first, *others = choose([whole], 64)
    assert first.warming
    assert set(first.reads[SIZE]) == {299}
    assert not any(batch.warming for batch in others)
    again = choose([whole], 64)
    assert [b.reads[READ_KEY].to_list() for b in again] == [
        b.reads[READ_KEY].to_list() for b in [first, *others]
    ]
    other = choose([whole], 64, seed=1)
    assert [b.reads[READ_KEY].to_list() for b in other[1:]] != [
        b.reads[READ_KEY].to_list() for b in others
    ]


def test_each_actor_has_a_batch_to_warm_up():
    batches = choose([plan(SINGLES)], 128, actors=4)
    assert sum(batch.warming for batch in batches) == 4


@pytest.mark.parametrize("groups", [1, 2, 3, 5])
def test_of_few_reads_all_are_done(groups):
    whole = plan(SINGLES[:groups])
    chosen = pl.concat([batch.reads for batch in choose([whole], 64)])
    assert sorted(chosen[READ_KEY]) == sorted(whole[READ_KEY])


def test_the_first_batch_of_each_worker_and_reader_does_not_count():
    batches = choose([plan(SINGLES), plan(SINGLES[:50])], 64)

    def run(planned, units, specs):
        for unit in units:
            outputs = [ReadOutput("x", 3, 1, False)] * unit.length
            yield UnitResult(
                unit, outputs, f"worker {unit.number // 2 % 2}", 0.0, {"peak_memory": 5}
            )

    timed = list(read_batches(batches, [SPEC, SPEC], Backend(run), begun=0.0))
    by_job = sorted(batches, key=lambda batch: batch.stratum.job)
    assert [one.batch for one in timed] == by_job
    firsts = {(one.done.worker, one.batch.stratum.job) for one in timed if one.first}
    assert len(firsts) == sum(one.first for one in timed) == 4
    assert timed[0].outputs["prompt_tokens"].sum() == 3 * timed[0].batch.reads.height


def timed(worker, at, seconds, *, job=0, size=10, peak=0, first=False):
    frame = plan([(size,)])
    batch = Batch(Stratum(job, False), frame, False)
    done = UnitDone(job, 0, 1, 0, worker=worker, seconds=seconds, stats={"peak_memory": peak})
    return Timed(batch, done, at, first)


def test_the_start_is_until_a_worker_reads_and_loads_another_reader():
    done = [
        timed("a", 11.0, 1.0, first=True),  # began at 10
        timed("b", 13.0, 1.0, first=True),  # began at 12
        timed("a", 14.0, 3.0),
        timed("a", 19.0, 1.0, job=1, first=True),  # loaded from 14 to 18
    ]
    assert start_seconds(done) == (10 + 4 + 12) / 2
    assert start_seconds([]) == 0


def test_memory_rises_with_batches_as_it_did_in_the_probe():
    done = [
        timed("a", 1, 1, size=100, peak=1000),
        timed("a", 2, 1, size=1100, peak=3000),
        timed("a", 3, 1, size=100, peak=3000),
    ]
    assert peak_memory(done, 1100) == 3000
    assert peak_memory(done, 2100) == 5000  # 2 bytes for each beyond
    assert peak_memory(done, 50) == 3000
    assert peak_memory([], 50) == 0
