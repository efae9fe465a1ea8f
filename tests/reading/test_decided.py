"""Reads that ended early in the store: what they answer for, and what they never do."""

from collections import Counter
from dataclasses import replace
from typing import ClassVar

import polars as pl
import pytest
from polars.testing import assert_frame_equal

from engine import tables
from engine.errors import ReadError
from engine.machine.pool import PoolSettings
from engine.reading import readers, store
from engine.reading.decided import answered, decided_key, with_references
from engine.reading.plan import DECIDED_KEY, REFERENCES, missing_reads
from engine.reading.protocol import ReaderStats, ReadOutput
from engine.reading.reads import Wanted, get_all_reads, get_reads, reads_table
from engine.scoring.decided import goal_of
from engine.sources.io.folders import folder_at
from tests.conftest import SPEC
from tests.reading.test_reads import wanted
from tests.reading.test_store import EARLIER

EM = replace(SPEC, metric="em")
HERE = PoolSettings(actors=0)


class Spelling:
    """Writes its input letter by letter, and ends where its references cannot be met."""

    asked: ClassVar[Counter] = Counter()

    def __init__(self, spec):
        self.metric, self.stats = spec.metric, ReaderStats()

    def read(self, inputs, references=None):
        return [
            self.one(text, known)
            for (text,), known in zip(inputs, references or [None] * len(inputs), strict=True)
        ]

    def one(self, text, references):
        Spelling.asked[text, "full" if references is None else tuple(references)] += 1
        for end in range(1, len(text)):
            goal = references is not None and goal_of(self.metric, tuple(references))
            if goal and not goal.can_score(text[:end]):
                return ReadOutput(text[:end], 1, end, False, decided=True)
        return ReadOutput(text, 1, len(text), False)


@pytest.fixture(autouse=True)
def spelling(monkeypatch):
    Spelling.asked = Counter()
    monkeypatch.setattr(readers, "load", Spelling)


def asked():
    """What was read since the last call."""
    found, Spelling.asked = dict(Spelling.asked), Counter()
    return found


def early(*texts, answers, metric="em", whole=False):
    """Wanted reads of these texts for one query each, all with these answers."""
    frame = wanted(*texts)
    queries = frame.select(tables.QUERY_ID).with_columns(
        pl.lit(answers, pl.List(pl.String)).alias(tables.ANSWERS)
    )
    return with_references(frame, pl.Series([whole] * frame.height), queries, metric)


def read(frame, directory, spec=EM):
    reads, costs = get_reads(frame, spec, directory, pool=HERE)
    return reads.select("output", "decided").rows(), costs


def test_a_read_that_ended_early_answers_for_its_metric_and_references_alone(tmp_path):
    frame = early("lyon", answers=["paris"])
    assert read(frame, tmp_path)[0] == [("l", True)]
    assert asked() == {("lyon", ("paris",)): 1}
    found, costs = read(frame, tmp_path)
    assert (found, asked(), costs.reused, costs.decided) == ([("l", True)], {}, 1, 0)
    # in another order, and twice: the same set
    assert read(early("lyon", answers=["paris", "paris"]), tmp_path)[0] == [("l", True)]
    assert asked() == {}
    for other, output in (
        (early("lyon", answers=["london"]), ("ly", True)),
        (early("lyon", answers=["paris"], metric="accuracy"), ("l", True)),
        (early("lyon", answers=["paris"], whole=True), ("lyon", False)),
    ):
        assert read(other, tmp_path)[0] == [output]
        assert sum(asked().values()) == 1
    # now that it is there in full, it answers for all
    assert read(early("lyon", answers=["rome"]), tmp_path)[0] == [("lyon", False)]
    assert read(wanted("lyon"), tmp_path, SPEC)[0] == [("lyon", False)]
    assert asked() == {}


def test_a_read_that_ended_by_itself_is_one_in_full(tmp_path):
    rows, costs = read(early("paris", "lyon", answers=["paris"]), tmp_path)
    assert rows == [("paris", False), ("l", True)]
    assert (costs.done, costs.decided, costs.output_tokens) == (2, 1, 6)
    asked()
    assert read(wanted("paris", "lyon"), tmp_path, SPEC)[0] == [("paris", False), ("lyon", False)]
    assert asked() == {("lyon", "full"): 1}


def test_reads_have_their_key_in_full_whatever_they_are_kept_by(tmp_path):
    frame = early("lyon", "paris", answers=["paris"])
    first, _ = get_reads(frame, EM, tmp_path, pool=HERE)
    again, _ = get_reads(frame, EM, tmp_path, pool=HERE)
    assert_frame_equal(first, again)
    assert first["read_key"].to_list() == wanted("lyon", "paris")["read_key"].to_list()
    kept = dict(store.load(folder_at(tmp_path), EM.fingerprint).reads["read_key", "decided"].rows())
    key = wanted("lyon")["read_key"][0]
    assert kept == {
        decided_key(key, "em", ["paris"]): True,
        wanted("paris")["read_key"][0]: False,
    }


def test_a_store_of_an_earlier_version_answers_for_both(tmp_path):
    for path in EARLIER.iterdir():
        (tmp_path / SPEC.fingerprint).mkdir(exist_ok=True)
        (tmp_path / SPEC.fingerprint / path.name).write_bytes(path.read_bytes())
    rows, costs = read(early("a", "b", answers=["x"]), tmp_path)
    assert rows == [("A", False), ("B", False)]
    assert (costs.reused, asked()) == (2, {})


def test_what_another_version_merged_without_the_mark_is_still_marked():
    frame = early("lyon", answers=["paris"])
    kept = reads_table(frame, [ReadOutput("l", 1, 1, False, decided=True)])
    unmarked = kept.with_columns(pl.lit(False).alias("decided"))
    assert answered(frame, unmarked)["decided"].to_list() == [True]
    # in full comes first
    whole = reads_table(wanted("lyon"), [ReadOutput("lyon", 1, 4, False)])
    assert answered(frame, pl.concat([kept, whole]))["output"].to_list() == ["lyon"]
    assert answered(wanted("lyon"), kept)["output"].to_list() == [None]
    assert missing_reads(wanted("lyon"), kept).height == 1
    assert missing_reads(frame, kept).height == 0


def test_queries_that_share_a_read_end_it_when_none_of_them_can_be_met():
    frame = pl.concat([wanted("lyon"), wanted("lyon", query="p"), wanted("rome", query="r")])
    queries = pl.DataFrame(
        [("q0", ["paris", "x"]), ("p0", ["x", "london"]), ("r0", [])],
        schema={tables.QUERY_ID: pl.String, tables.ANSWERS: pl.List(pl.String)},
        orient="row",
    )
    found = with_references(frame, pl.Series([False] * 3), queries, "em")
    assert found[REFERENCES].to_list() == [["london", "paris", "x"]] * 2 + [[]]
    assert found[DECIDED_KEY].n_unique() == 2
    assert found.drop(REFERENCES, DECIDED_KEY).equals(frame.drop(REFERENCES, DECIDED_KEY))
    # one that anybody wants in full is read in full
    found = with_references(frame, pl.Series([False, True, False]), queries, "em")
    assert found[REFERENCES].to_list() == [None, None, []]
    assert with_references(frame, pl.Series([False] * 3), queries, "").equals(frame)


@pytest.mark.parametrize("order", [1, -1])
def test_jobs_of_one_reader_share_what_answers_for_both(tmp_path, order):
    """One wants reads in full that the other lets end early, and takes them in full then."""
    jobs = [
        Wanted(early("lyon", "rome", answers=["paris"]), EM),
        Wanted(wanted("lyon", "oslo"), EM),
    ][::order]
    got = [
        reads.select("output", "decided").rows()
        for reads, _ in get_all_reads(jobs, tmp_path, pool=HERE)
    ]
    ended, full = got[::order]
    assert full == [("lyon", False), ("oslo", False)]
    assert ended[1] == ("r", True)
    assert ended[0] == ("lyon", False)
    # done in full before it is asked for, it is not read again
    assert sum(asked().values()) == (3 if order == -1 else 4)


def test_a_reader_that_ends_reads_that_nobody_lets_end_is_an_error():
    with pytest.raises(ReadError, match="ended reads early"):
        reads_table(wanted("lyon"), [ReadOutput("l", 1, 1, False, decided=True)])
