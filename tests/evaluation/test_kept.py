"""What a shard leaves is taken for its own evaluation's, whole, or not at all."""

import shutil
from dataclasses import replace

import polars as pl
import pytest
from polars.testing import assert_frame_equal

from engine import tables
from engine.evaluation import plan as plans
from engine.messages.errors import InputError
from tests.evaluation.in_shards import (
    FEW,
    Scripted,
    compared,
    in_shards,
    made,
    scripted,
    settings,
)

__all__ = ["scripted"]  # a fixture


def with_short_run(files):
    """The files with one run more, which lists something for a single query, and so nothing for most shards."""
    path = files.run[0].parent / "short.parquet"
    rows = pl.read_parquet(files.run[0]).head(1).with_columns(pl.lit("short").alias(tables.RUN))
    rows.write_parquet(path)
    return replace(files, run=(*files.run, path))


def test_what_was_scored_of_other_files_lists_or_queries_is_not_taken_for_this_evaluations(
    tmp_path,
):
    files, names = made(tmp_path), []
    fewer = replace(files, run=files.run[:1], limit=9)
    some = ({"lists": 0.5}, {"lists": 0.5, "seed": 1}, {"until": "verdict"})
    for more, own in (
        *((more, files) for more in some),
        *(({}, own) for own in (fewer, with_short_run(files), files)),
        (some[0], files),
    ):
        _, parts = compared(tmp_path, [settings(**FEW, **more)], 150, own)
        names.append(parts[0][0].parts.name)
    assert names.pop() == names[0]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize(
    ("more", "is_same"),
    [
        ({"seed": 5, "confidence": 0.9}, True),
        ({"gpus_per_actor": 1, "cpus_per_actor": 2, "accelerator_type": "L4"}, True),
        ({"memory": 2**40}, True),
        ({"metric": "f1"}, False),
    ],
)
def test_settings_that_change_no_score_take_up_all_and_others_the_reads(
    tmp_path, monkeypatch, more, is_same
):
    first = in_shards(tmp_path, settings(**FEW))
    count = len(Scripted.asked)
    if is_same:
        monkeypatch.setattr(plans, "wanted_of", None)
        monkeypatch.setattr("engine.evaluation.read.score_shard", None)
    again = in_shards(tmp_path, settings(**FEW, **more))
    assert len(Scripted.asked) == count
    assert (again.parts.name == first.parts.name) == is_same
    assert again.query_scores.equals(first.query_scores) or not is_same
    costs = again.readings["reader"].costs
    assert (costs.done, costs.reused) == (0, first.readings["reader"].costs.done)


def test_a_shard_without_one_of_its_tables_is_scored_again(tmp_path):
    """Of each of five shards another table is gone."""
    first = in_shards(tmp_path, settings(**FEW), 60)
    count, contents = len(Scripted.asked), {}
    for shard, name in enumerate(("labels", "traces", "reads", "query_scores", "undefined")):
        gone = tmp_path / "shards" / first.parts.name / name / f"{shard:06}.parquet"
        contents[gone] = gone.read_bytes()
        gone.unlink()
    again = in_shards(tmp_path, settings(**FEW), 60)
    assert {gone: gone.read_bytes() for gone in contents} == contents
    assert len(Scripted.asked) == count
    assert_frame_equal(again.query_scores, first.query_scores)


def test_files_that_another_evaluation_takes_away_are_one_line(tmp_path, monkeypatch):
    def removed(self, text, one=Scripted.one):
        for folder in (tmp_path / "shards").glob("*/plans"):
            shutil.rmtree(folder)
        return one(self, text)

    monkeypatch.setattr(Scripted, "one", removed)
    with pytest.raises(InputError, match="files of shard 0 are gone, as where another evaluation"):
        in_shards(tmp_path, settings(**FEW))


def test_plans_that_a_killed_evaluation_left_are_removed(tmp_path, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr("engine.evaluation.kept.ShardFolder.clear_plans", lambda parts: None)
        first = in_shards(tmp_path, settings(**FEW))
    left = tmp_path / "shards" / first.parts.name / "plans" / "reader"
    assert any(left.iterdir())
    in_shards(tmp_path, settings(**FEW))
    assert not any(left.iterdir())
