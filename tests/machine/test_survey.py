"""Precision and engine are those of the nodes that read, where all of them agree."""

import importlib.util
from importlib.machinery import ModuleSpec

import pytest

from engine.machine import cluster, device, nodes, survey
from engine.machine.nodes import Node
from engine.machine.pool import PoolSettings
from engine.messages.errors import ReadError
from tests.expected import as_expected, refused

H100, T4 = (Node(8, 1, 1.0, frozenset({kind})) for kind in ("H100", "T4"))

OF_DTYPES = {"differ": "they differ", "option": "dtype"}


def test_nodes_that_agree_decide():
    assert survey.agreed([("bfloat16", H100)] * 2, **OF_DTYPES) == "bfloat16"


def test_nodes_that_differ_are_named_and_nothing_is_guessed():
    with refused("cluster.unlike"):
        survey.agreed([("float16", T4), ("bfloat16", H100), ("bfloat16", H100)], **OF_DTYPES)


def test_without_an_answer_nothing_is_guessed():
    with pytest.raises(ReadError) as caught:
        survey.agreed([], **OF_DTYPES)
    as_expected(str(caught.value))


@pytest.mark.parametrize("settings", [PoolSettings(), PoolSettings(actors=0)])
def test_this_machine_is_asked_where_it_reads_itself(settings, monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    assert survey.reading_dtype(settings) == device.best_dtype()
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    assert survey.reading_dtype(PoolSettings(actors=0)) == device.best_dtype()


@pytest.mark.parametrize(("gpu", "installed"), [(True, True), (True, False), (False, True)])
def test_vllm_reads_where_it_is_installed_beside_a_gpu_that_is_used(gpu, installed, monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(device, "machine_has_gpu", lambda: gpu)
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name: ModuleSpec(name, None, origin=name) if installed else None,
    )
    monkeypatch.setattr(device, "lacking_compiler", lambda: "")
    assert survey.reading_on_vllm(PoolSettings()) == (gpu and installed)
    assert not survey.reading_on_vllm(PoolSettings(gpus_per_actor=0))


def test_whether_actors_have_gpus_is_what_was_asked_or_what_their_nodes_have(monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    monkeypatch.setattr(device, "machine_has_gpu", lambda: False)  # a head without one
    monkeypatch.setattr(cluster, "start_ray", lambda: None)
    monkeypatch.setattr(cluster, "is_joined", lambda: True)
    monkeypatch.setattr(cluster, "cpus_per_actor", lambda actors: 1.0)
    monkeypatch.setattr(nodes, "promised", lambda: None)
    monkeypatch.setattr(nodes, "alive", lambda: [Node(8, 0, 1.0, frozenset()), H100])
    assert survey.reads_on_gpus(PoolSettings())
    assert not survey.reads_on_gpus(PoolSettings(gpus_per_actor=0))
    monkeypatch.setattr(nodes, "alive", lambda: [Node(8, 0, 1.0, frozenset())])
    assert not survey.reads_on_gpus(PoolSettings())
    assert survey.reads_on_gpus(PoolSettings(gpus_per_actor=0.5))
    assert survey.reads_on_gpus(PoolSettings(accelerator_type="L4"))
    assert not survey.reads_on_gpus(PoolSettings(actors=0))  # this process reads


def test_nodes_that_differ_in_vllm_are_named_only_where_the_engine_is_theirs_to_choose(monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    answers = [(survey.Ability("bfloat16", True), H100), (survey.Ability("bfloat16", False), T4)]
    monkeypatch.setattr(survey, "_abilities", lambda settings, on_event: answers)
    assert survey.reading_dtype(PoolSettings()) == "bfloat16"
    with refused("cluster.unlike"):
        survey.reading_on_vllm(PoolSettings())
    answers.pop()
    assert survey.reading_on_vllm(PoolSettings())
    assert not survey.reading_on_vllm(PoolSettings(gpus_per_actor=0))


def test_a_missing_compiler_is_one_line_where_vllm_would_read_and_none_elsewhere(monkeypatch):
    monkeypatch.setattr(device, "reads_on_vllm", lambda: True)
    monkeypatch.setattr(device, "lacking_compiler", lambda: "none")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with refused("machine.compiler"):
        survey.reading_on_vllm(PoolSettings())
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    here = survey.ability()
    answers = [(here, H100), (here._replace(lacks=""), H100)]
    monkeypatch.setattr(survey, "_abilities", lambda settings, on_event: answers)
    with refused("cluster.compiler"):
        survey.reading_on_vllm(PoolSettings())
    assert survey.reading_dtype(PoolSettings()) == here.dtype
    monkeypatch.setattr(device, "reads_on_vllm", lambda: False)
    assert survey.ability().lacks == ""
