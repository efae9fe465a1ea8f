"""A pool and the autoscaler that both recipes for clusters use."""

import pytest

from tests.cluster.play import play
from tests.expected import as_expected


@pytest.mark.faults
def test_a_pool_from_nothing_gets_its_nodes_from_the_autoscaler(tmp_path):
    found = play("grows", tmp_path, of="tests.cluster.autoscaling")
    assert found["equal"]
    assert (found["lost"], found["doubled"]) == (0, 0)
    assert found["most_at_once"] == 2
    waits = next(line for line in found["events"] if line.startswith("waiting"))
    as_expected(waits.partition(":")[0])


@pytest.mark.faults
def test_a_dead_autoscaler_is_told(tmp_path):
    found = play("dies", tmp_path, of="tests.cluster.autoscaling")
    (line,) = [line for line in found["events"] if "`ray status`" in line][:1]
    assert "monitor.err: " in line or "monitor.log: " in line
    assert "No module named 'no'" in line
