"""Evaluations in shards whose reads end early, against those held whole."""

import polars as pl
import pytest

from engine.reading import readers, store
from engine.reading.protocol import ReadOutput
from engine.reading.stream import Host
from engine.scoring.decided import goal_of
from engine.sources.io.folders import folder_at
from tests.evaluation.sharded.test_stream import (
    FEW,
    Scripted,
    all_shards,
    assert_same,
    in_shards,
    settings,
    the_whole,
)


class Ending(Scripted):
    """Ends a read at the first letter by which its references cannot be met."""

    def __init__(self, spec, fails=()):
        super().__init__(spec, fails)
        self.metric = spec.metric

    def read(self, inputs, references=None):
        outputs = super().read(inputs)
        known = references or [None] * len(inputs)
        return [self.ended(*pair) for pair in zip(outputs, known, strict=True)]

    def ended(self, output, references):
        if references is None or self.choices:
            return output
        goal = goal_of(self.metric, tuple(references))
        text = output.output
        for end in range(1, len(text)):
            if not goal.can_score(text[:end]):
                cut = (text[:end], output.prompt_tokens, 1, output.truncated, None, None, True)
                return ReadOutput(*cut)
        return output

    def one(self, text):
        found = super().one(text)
        if self.choices or len(text) % 2:
            return found
        return ReadOutput(f"not {found.output}", 5, 1, found.truncated)


@pytest.fixture(autouse=True)
def ending(monkeypatch):
    Scripted.asked = []
    monkeypatch.setattr(readers, "load", Ending)


def early(folder, result):
    return all_shards(folder / "shards", result, "reads").filter("decided")


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"annotators": ("erag",), "k": 2, "end_to_end_k": 1, "measures": "RR Judged@2"},
        {"annotators": ("erag",), "measures": "P@3", "erag_reader": "bundled"},
        {"annotators": ("erag", "utility"), "end_to_end": False, "measures": "P@3 UDCG@6"},
        {"annotators": ("erag",), "measures": "P@3", "metric": "accuracy", "missing": "skip"},
    ],
    ids=["all", "lists of one", "another reader", "without lists", "accuracy"],
)
def test_reads_end_early_in_shards_as_in_the_whole(tmp_path, more):
    asked = settings(**more)
    whole, parts = the_whole(tmp_path, asked), in_shards(tmp_path, asked)
    assert_same(whole, parts, tmp_path / "shards")
    decided = whole.reads.filter("decided")
    assert decided.height == early(tmp_path, parts).height > 20
    assert (decided["doc_ids"].list.len() == 1).all()
    for role, reading in whole.readings.items():
        assert parts.readings[role].costs.decided == reading.costs.decided


def test_shards_find_reads_that_ended_early_again_and_no_other_metric_does(tmp_path):
    first = in_shards(tmp_path, settings(**FEW))
    costs, ended = first.readings["reader"].costs, early(tmp_path, first)
    assert costs.decided == ended["read_key"].n_unique() > 20
    count = len(Scripted.asked)
    (tmp_path / "shards").rename(tmp_path / "before")
    again = in_shards(tmp_path, settings(**FEW))
    assert len(Scripted.asked) == count
    assert again.readings["reader"].costs.reused == costs.done
    assert early(tmp_path, again).sort("read_key").equals(ended.sort("read_key"))
    in_shards(tmp_path, settings(**FEW, metric="f1"))
    assert len(Scripted.asked) == count + costs.decided


def test_the_same_evaluation_in_full_has_a_folder_of_its_own(tmp_path):
    ended = in_shards(tmp_path, settings(**FEW))
    full = in_shards(tmp_path, settings(**FEW, decide=False))
    named = in_shards(tmp_path, settings(**FEW, decide=True))
    assert ended.shards != full.shards
    assert ended.shards == named.shards
    assert not all_shards(tmp_path / "shards", full, "reads")["decided"].any()
    for name in ("query_scores", "downstream"):
        assert getattr(ended, name).equals(getattr(full, name))


def test_merged_files_of_shards_keep_both_kinds_of_reads(tmp_path):
    result = in_shards(tmp_path, settings(**FEW))
    fingerprint = result.readings["reader"].spec.fingerprint
    kept = store.load(folder_at(tmp_path / "store-of-shards"), fingerprint).reads
    assert kept["decided"].sum() == result.readings["reader"].costs.decided
    ended = early(tmp_path, result)["read_key"]
    assert not pl.Series(kept.filter("decided")["read_key"]).is_in(ended.implode()).any()


def ending_host():
    """What hosts the reader on actors; by value, since workers lack this module."""

    class OnActor(Host):
        def load(self, spec):
            import hashlib

            from engine.reading.protocol import ReaderStats, ReadOutput
            from engine.scoring.decided import goal_of

            class Reader:
                def __init__(self):
                    self.stats = ReaderStats()

                def read(self, inputs, references=None):
                    known = references or [None] * len(inputs)
                    return [self.one("\n".join(t), r) for t, r in zip(inputs, known, strict=True)]

                def one(self, text, references):
                    digest = hashlib.sha256(text.encode()).digest()
                    output, truncated = f"a{digest[0] % 4}", digest[1] < 20
                    if len(text) % 2 == 0:
                        output = f"not {output}"
                    for end in range(1, len(output)):
                        goal = (
                            None if references is None else goal_of(spec.metric, tuple(references))
                        )
                        if goal and not goal.can_score(output[:end]):
                            return ReadOutput(output[:end], 5, 1, truncated, decided=True)
                    return ReadOutput(output, 5, 1, truncated)

            return Reader()

    return OnActor


@pytest.mark.slow
@pytest.mark.usefixtures("ray_session")
def test_reads_end_early_on_ray_too(tmp_path):
    asked = settings(annotators=("erag",), measures="P@3", actors=1)
    whole = the_whole(tmp_path, asked.but(actors=0))
    parts = in_shards(tmp_path, asked, host=ending_host())
    assert_same(whole, parts, tmp_path / "shards")
    assert early(tmp_path, parts).height > 20
