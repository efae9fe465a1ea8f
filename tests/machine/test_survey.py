"""The precision of reads is that of the nodes that read, where all of them agree."""

import pytest

from engine.errors import InputError, ReadError
from engine.machine import device, survey
from engine.machine.nodes import Node
from engine.machine.pool import PoolSettings

H100, T4 = (Node(8, 1, 1.0, frozenset({kind})) for kind in ("H100", "T4"))


def test_nodes_that_agree_decide():
    assert survey.agreed({"bfloat16": [H100, H100]}) == "bfloat16"


def test_nodes_that_differ_are_named_and_nothing_is_guessed():
    with pytest.raises(InputError) as caught:
        survey.agreed({"float16": [T4], "bfloat16": [H100, H100]})
    assert "bfloat16 on 2 nodes (H100); float16 on 1 node (T4)" in str(caught.value)
    assert "`dtype`" in caught.value.remedy


def test_without_an_answer_nothing_is_guessed():
    with pytest.raises(ReadError, match="no node answered"):
        survey.agreed({})


@pytest.mark.parametrize("settings", [PoolSettings(), PoolSettings(actors=0)])
def test_this_machine_is_asked_where_it_reads_itself(settings, monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    assert survey.reading_dtype(settings) == device.best_dtype()
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    assert survey.reading_dtype(PoolSettings(actors=0)) == device.best_dtype()
