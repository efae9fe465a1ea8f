"""Nodes as Ray describes them, and those that an autoscaler may add."""

import math
from types import SimpleNamespace

import pytest
import ray

from engine.machine import nodes
from engine.machine.nodes import Needs, Node
from tests.expected import as_expected


def test_a_node_has_room_by_the_scarcest_of_what_is_taken():
    node = Node(8, 2, 10.0, frozenset({"L4"}))
    assert node.room(Needs(1, 0, 0, None)) == 8
    assert node.room(Needs(1, 0.5, 0, None)) == 4
    assert node.room(Needs(0, 0.1, 0, None)) == 20  # 2 / 0.1 is a little less in floating point
    assert node.room(Needs(1, 1, 6, None)) == 1
    assert node.room(Needs(0, 1, 0, "L4")) == 2
    assert not node.fits(Needs(0, 1, 0, "T4"))
    assert node.fits(Needs(0, 0, 0, None))


@pytest.mark.parametrize(
    "needs",
    [
        Needs(0, 1, 0, None),
        Needs(2, 0.5, 0, None),
        Needs(1, 0, 0, None),
        Needs(0, 4, 0, "L4"),
        Needs(2, 1, 20 * 2**30, None),
    ],
)
def test_needs_are_told_in_words(needs):
    as_expected(str(needs))


@pytest.mark.usefixtures("ray_session")
def test_the_nodes_of_this_machines_ray_are_read():
    (here,) = nodes.alive()
    assert here.is_head
    assert here.id == ray.get_runtime_context().get_node_id()
    assert here.cpus >= 1
    assert here.memory > 2**20


@pytest.mark.usefixtures("ray_session")
def test_nothing_says_that_this_machines_ray_grows(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert nodes.promised() is None
    (tmp_path / "ray_bootstrap_config.yaml").write_text("not: [a, cluster")
    assert nodes.promised() is None


@pytest.mark.usefixtures("ray_session")
def test_the_file_that_ray_up_leaves_names_types_of_nodes(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "ray_bootstrap_config.yaml").write_text(
        "available_node_types:\n"
        "  head: {resources: {CPU: 0}, max_workers: 0}\n"
        "  reader: {resources: {CPU: 48, GPU: 4, 'accelerator_type:L4': 1}, max_workers: 4}\n"
        "  other: {resources: {CPU: 8}}\n"
        "max_workers: 6\n"
    )
    reader = Node(48, 4, math.inf, frozenset({"L4"}), most=4)
    assert nodes.promised() == [reader, Node(8, 0, math.inf, frozenset(), most=6)]


@pytest.mark.usefixtures("ray_session")
def test_the_configuration_in_the_control_store_names_types_of_nodes(monkeypatch):
    groups = [
        SimpleNamespace(resources={"CPU": 8, "GPU": 1, "memory": 100}, max_count=-1),
        SimpleNamespace(resources={"CPU": 64}, max_count=0),
    ]
    monkeypatch.setattr(
        ray._private.state.state,
        "get_cluster_config",
        lambda: SimpleNamespace(node_group_configs=groups),
    )
    assert nodes.promised() == [Node(8, 1, 100, frozenset(), most=math.inf)]
