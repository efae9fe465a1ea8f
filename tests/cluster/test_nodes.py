"""Nodes of a pretended cluster are lost, drained and added while reads are done; no read is."""

import re

import pytest

from engine.machine.device import best_dtype
from tests.cluster.play import IN_FLIGHT, READS, play
from tests.expected import as_expected


def check(found, *, repeated):
    """Outputs as undisturbed, nothing lost, nothing twice in the result, few reads done twice."""
    assert found["equal"]
    assert (found["lost"], found["doubled"]) == (0, 0)
    assert found["repeated"] <= repeated


def test_a_killed_ledger_and_a_killed_node_lose_no_read(tmp_path):
    found = play("ledger_killed", tmp_path)
    check(found, repeated=IN_FLIGHT)
    assert (found["lost_nodes"], found["restarted_actors"]) == (1, 1)
    assert any("is lost; 1 node left" in line for line in found["events"])
    assert any("started again" in line for line in found["events"])


def test_a_sick_gpu_costs_its_node_and_the_job_ends_when_no_node_can_load(tmp_path):
    found = play("sick", tmp_path)
    check(found, repeated=0)
    one, other = (name[:8] for name in found["sick"])
    assert list(found["workers"]) == [f"node {other}"]
    ecc = "CUDA error: uncorrectable ECC error encountered"
    (told,) = {line for line in found["events"] if one in line and "left alone" in line}
    assert told.startswith("GPU 0 of node")
    assert told.endswith(ecc)
    as_expected(re.split(f"{one}|{other}", found["ended"])[0])
    assert one in found["ended"]
    assert other in found["ended"]
    assert ecc in found["ended"]


@pytest.mark.faults
@pytest.mark.parametrize(
    ("scene", "lost"),
    [
        ("killed", 1),
        ("removed", 1),
        ("drained", 1),
        ("killed_while_loading", 1),
        ("removed_while_loading", 1),
        ("all_lost", 2),
    ],
)
def test_lost_nodes_lose_no_read(tmp_path, scene, lost):
    found = play(scene, tmp_path)
    check(found, repeated=lost * IN_FLIGHT)
    assert found["lost_nodes"] == lost


@pytest.mark.faults
def test_without_any_node_that_reads_the_job_waits_and_says_so(tmp_path):
    found = play("from_zero", tmp_path)
    check(found, repeated=0)
    as_expected(found["events"][0])
    assert found["waited_seconds"] > 0


@pytest.mark.faults
def test_precision_is_that_of_nodes_that_are_still_to_come(tmp_path):
    found = play("precision_from_zero", tmp_path)
    assert found["early"] == []
    # The pretended GPU is a CPU of this machine.
    assert found["answers"] == [best_dtype()]
    as_expected(found["events"][0])


@pytest.mark.faults
def test_a_pool_of_gpu_actors_grows_shrinks_and_replaces_with_its_cluster(tmp_path):
    """Ray issue 59144 tells of such pools that never grow."""
    found = play("grows_and_shrinks", tmp_path)
    check(found, repeated=2 * IN_FLIGHT)
    assert found["most_at_once"] >= 3
    assert len(found["workers"]) == 4


@pytest.mark.faults
@pytest.mark.parametrize("scene", ["encoding", "encoding_parquet"])
def test_a_killed_desk_and_a_killed_node_lose_no_shard(scene, tmp_path):
    found = play(scene, tmp_path)
    check(found, repeated=1)
    assert any("is lost; 2 nodes left" in line for line in found["events"])


@pytest.mark.faults
def test_a_killed_process_and_a_killed_node_change_no_search(tmp_path):
    found = play("searching", tmp_path)
    check(found, repeated=2)
    assert any("is lost; 3 nodes left" in line for line in found["events"])
    assert any("started again" in line for line in found["events"])


@pytest.mark.faults
def test_a_lost_head_costs_what_was_under_way(tmp_path):
    play("head_lost", tmp_path, survives=False)
    found = play("resumed", tmp_path)
    # A unit is a sixteenth; two actors work at one each, and one of each may be on its way to the driver.
    check(found, repeated=READS // 4)
    assert READS // 4 <= found["resumed"] < READS


@pytest.mark.faults
def test_workers_that_train_on_a_node_have_a_gpu_each(tmp_path):
    found = play("trains", tmp_path)
    # The GPU of each is the first of those that it sees.
    assert found["seen"] == ["0 0", "1 0"]
