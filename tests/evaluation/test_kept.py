"""What a shard leaves is taken for its own evaluation's, whole, or not at all."""

import shutil
from dataclasses import replace

import polars as pl
import pytest
from polars.testing import assert_frame_equal

from engine import tables
from engine.evaluation.evaluate import evaluate
from engine.inputs.read import read_inputs
from engine.messages.errors import InputError
from tests.evaluation.test_stream import (
    FEW,
    Scripted,
    assert_same,
    in_shards,
    made,
    scripted,
    settings,
)

__all__ = ["scripted"]  # a fixture


def held_whole(tmp_path, files, asked):
    return evaluate(read_inputs(files, k=asked.ranking.k), asked, store=tmp_path / "whole")


def with_short_run(files):
    """The files with one run more, which lists something for a single query."""
    path = files.run[0].parent / "short.parquet"
    rows = pl.read_parquet(files.run[0]).head(1).with_columns(pl.lit("short").alias(tables.RUN))
    rows.write_parquet(path)
    return replace(files, run=(*files.run, path))


def test_what_was_scored_of_some_lists_or_queries_is_not_taken_for_all(tmp_path):
    files, asked = made(tmp_path), settings(**FEW)
    for some in ({"lists": 0.5}, {"lists": 0.5, "seed": 1}, {"until": "verdict"}, {}):
        parts = in_shards(tmp_path, asked.but(**some), files=files)
        whole = held_whole(tmp_path, files, asked.but(**some))
        assert_frame_equal(parts.downstream, whole.downstream, check_row_order=False)
    assert parts.downstream.height == 3 * 40


def test_a_run_that_lists_nothing_for_a_shard_is_scored_there_after_an_evaluation_without_it(
    tmp_path,
):
    files, asked = made(tmp_path), settings(**FEW)
    in_shards(tmp_path, asked, files=files)
    more = with_short_run(files)
    parts = in_shards(tmp_path, asked, files=more)
    whole = held_whole(tmp_path, more, asked)
    for name in ("means", "end_to_end"):
        assert_frame_equal(getattr(whole, name), getattr(parts, name), check_row_order=False)


def test_files_of_another_evaluation_under_the_same_settings_are_not_taken_for_its_own(tmp_path):
    files, asked = made(tmp_path), settings(**FEW)
    fewer = replace(files, run=files.run[:1], limit=9)
    first = in_shards(tmp_path, asked, files=files)
    between = in_shards(tmp_path, asked, files=fewer)
    again = in_shards(tmp_path, asked, files=files)
    assert again.parts.name == first.parts.name != between.parts.name
    assert_frame_equal(again.query_scores, first.query_scores)
    for result, of in ((again, files), (between, fewer)):
        whole = held_whole(tmp_path, of, asked)
        for reading in (whole.readings, result.readings):
            reading["reader"].costs.done = 0
        assert_same(whole, result, tmp_path / "shards")


def test_who_reads_where_changes_nothing_that_was_scored(tmp_path, monkeypatch):
    files = made(tmp_path)
    first = in_shards(tmp_path, settings(**FEW), files=files)
    monkeypatch.setattr("engine.evaluation.read.score_shard", None)
    elsewhere = {"gpus_per_actor": 1, "cpus_per_actor": 2, "accelerator_type": "L4"}
    again = in_shards(tmp_path, settings(**FEW, **elsewhere, memory=2**40), files=files)
    assert again.parts.name == first.parts.name


def test_a_shard_without_one_of_its_tables_is_scored_again(tmp_path):
    """Of each of five shards another table is gone."""
    files, asked = made(tmp_path), settings(**FEW)
    first = in_shards(tmp_path, asked, files=files, pairs=60)
    count = len(Scripted.asked)
    contents = {}
    for shard, name in enumerate(("labels", "traces", "reads", "query_scores", "undefined")):
        gone = tmp_path / "shards" / first.parts.name / name / f"{shard:06}.parquet"
        contents[gone] = gone.read_bytes()
        gone.unlink()
    again = in_shards(tmp_path, asked, files=files, pairs=60)
    assert {gone: gone.read_bytes() for gone in contents} == contents
    assert len(Scripted.asked) == count
    assert_frame_equal(again.query_scores, first.query_scores)


def test_files_that_another_evaluation_takes_away_are_one_line(tmp_path, monkeypatch):
    files, asked = made(tmp_path), settings(**FEW)
    one = Scripted.one

    def removed(self, text):
        for plans in (tmp_path / "shards").glob("*/plans"):
            shutil.rmtree(plans)
        return one(self, text)

    monkeypatch.setattr(Scripted, "one", removed)
    with pytest.raises(InputError, match="files of shard 0 are gone, as where another evaluation"):
        in_shards(tmp_path, asked, files=files)


def test_plans_that_a_killed_evaluation_left_are_removed(tmp_path, monkeypatch):
    files, asked = made(tmp_path), settings(**FEW)
    with monkeypatch.context() as patched:
        patched.setattr("engine.evaluation.kept.ShardFolder.clear_plans", lambda parts: None)
        first = in_shards(tmp_path, asked, files=files)
    plans = tmp_path / "shards" / first.parts.name / "plans" / "reader"
    assert any(plans.iterdir())
    in_shards(tmp_path, asked, files=files)
    assert not any(plans.iterdir())
