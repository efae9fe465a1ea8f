"""Evaluations in shards go on when nodes and processes are lost, with the figures of those undisturbed."""

import re

import pytest

from tests.cluster.play import play
from tests.cluster.shards import READS, UNIT_READS
from tests.expected import as_expected

pytestmark = pytest.mark.faults
SCENES = "tests.cluster.shard_scene"


def check(found, *, repeated, done=READS):
    """Scores, tables and notes as undisturbed, no label twice, all reads stored, few done again."""
    assert found.get("error") is None
    assert found["equal"] is True
    assert (found["doubled"], found["stored"]) == (0, done)
    assert found["repeated"] <= repeated
    # What a process commits that dies with its node, after another has done it and the shard's files were
    # merged, lies in the store twice. It counts once.
    assert found["stored_twice"] <= found["repeated"]


def test_a_killed_node_loses_no_read_at_any_moment(tmp_path):
    for moment, found in play("nodes_killed", tmp_path, of=SCENES).items():
        # A unit of its one actor; units of a shard are larger, once the pace is known.
        check(found, repeated=UNIT_READS)
        assert found["lost_nodes"] == 1, moment


@pytest.mark.parametrize(("scene", "actors"), [("node_drained", 1), ("all_lost", 2)])
def test_lost_nodes_lose_no_read(tmp_path, scene, actors):
    (found,) = play(scene, tmp_path, of=SCENES).values()
    check(found, repeated=actors * UNIT_READS)
    assert found["lost_nodes"] == actors


def test_without_any_node_the_job_waits_says_so_and_uses_those_that_join(tmp_path):
    (found,) = play("from_zero", tmp_path, of=SCENES).values()
    check(found, repeated=0)
    as_expected(found["events"][0])
    assert found["waited_seconds"] > 0
    assert found["nodes"] == 2


def test_a_killed_process_loses_no_read_whatever_it_did(tmp_path):
    found = play("processes_killed", tmp_path, of=SCENES)
    for what, repeated in [("ledger", 0), ("actor", UNIT_READS), ("judging", 0), ("planning", 0)]:
        check(found[what], repeated=repeated)
    assert found["actor"]["restarted_actors"] == 1
    assert found["judging"]["judged"] > found["actor"]["judged"]
    assert found["planning"]["planned"] > found["actor"]["planned"]


def test_what_always_kills_its_process_is_told_and_the_rest_is_done(tmp_path):
    found = play("fatal", tmp_path, of=SCENES)
    # Two deaths of the unit, and two of each read; each time reads of the unit are done again.
    check(found["read"], repeated=6 * UNIT_READS, done=READS - found["read"]["failed"])
    assert found["read"]["failed"] == 2  # the passage alone, and the list that it is in
    for what in ("load", "plan", "judge"):
        error, again, _ = found[what]["error"].partition(" again and ")
        assert again
        as_expected(re.sub(r"shard \d", "shard N", error))


def test_planning_reading_and_judging_share_two_cpus_that_actors_could_take(tmp_path):
    for found in play("two_cpus", tmp_path, of=SCENES).values():
        check(found, repeated=0, done=READS // 2)


def test_prompts_larger_than_the_object_store_pass_through_it(tmp_path):
    (found,) = play("little_memory", tmp_path, of=SCENES).values()
    check(found, repeated=0)
    # Of 300 MB of prompts, fewer than the object store has room for.
    assert found["spilled"] <= 150 * 2**20


def test_a_lost_driver_costs_what_was_under_way(tmp_path):
    play("driver_killed", tmp_path, survives=False, of=SCENES)
    found = play("resumed", tmp_path, of=SCENES)["resumed"]
    # The log has the reads of both; two actors worked at a unit each.
    check(found, repeated=2 * UNIT_READS)
    assert found["done"] < READS - 20
