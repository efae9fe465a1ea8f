"""Faults of GPUs while models are loaded count against the GPU, and end a job only where no node has another."""

import os
from types import SimpleNamespace

import pytest
import ray

from engine.machine import attempts
from engine.machine.attempts import Attempt, Counts
from engine.messages.errors import ReadError
from engine.retrieval import distribute
from engine.retrieval.distribute import EncoderActor, SearchActor
from tests.expected import as_expected

ONE, TWO, GONE = ("a" * 56, "b" * 56, "c" * 56)


def node(name, gpus, alive=True):
    return {"NodeID": name, "Alive": alive, "Resources": {"CPU": 8.0, "GPU": gpus}}


@pytest.fixture
def counts(monkeypatch):
    """Who counts for a cluster of two nodes, with two GPUs and one, that has lost a third; keepers are listed."""
    kept = []

    class Keeper:
        def remote(self):
            kept.append((options["scheduling_strategy"].node_id, options["num_gpus"]))
            return SimpleNamespace(placed=SimpleNamespace(remote=lambda: "placed"))

    options = {}
    monkeypatch.setattr(ray, "nodes", lambda: [node(ONE, 2), node(TWO, 1), node(GONE, 8, False)])
    monkeypatch.setattr(
        ray, "remote", lambda **given: options.update(given) or (lambda _: Keeper())
    )
    made = Counts()
    made.kept, made.waiting = kept, []
    monkeypatch.setattr(
        ray, "wait", lambda those, timeout: ([], those) if made.waiting else (those, [])
    )
    return made


def failed(counts, process, where, gpu, needs=1.0):
    name = f"GPU {gpu} of node {where[:8]}"
    attempt = Attempt(str(process), where)
    return counts.fault(attempt, name, [str(gpu)], {"CPU": 1.0, "GPU": needs}, f"ECC {process}")


def test_a_gpu_is_kept_at_its_second_fault_and_the_job_ends_with_the_last_gpu(counts):
    assert [failed(counts, process, ONE, 0) for process in (1, 1)] == ["", ""]
    assert failed(counts, 2, ONE, 1) == ""  # another GPU: may have been an accident, too
    assert counts.kept == []
    assert [failed(counts, process, ONE, 0) for process in (3, 3)] == ["", ""]
    assert counts.kept == [(ONE, 1.0)]
    assert [failed(counts, process, TWO, 0) for process in (4, 5)] == ["", ""]
    assert counts.kept == [(ONE, 1.0), (TWO, 1.0)]
    as_expected([failed(counts, 6, ONE, 1), counts.tally().faults[0]])


def test_a_gpu_that_fails_again_and_again_is_one_gpu(counts):
    """As where its keeper stands on another, which was free: the other GPUs of the node are as they were."""
    assert [failed(counts, process, ONE, 0) for process in range(9)] == [""] * 9
    assert counts.kept == [(ONE, 1.0)] * 8
    counts.waiting.append("a keeper, for the GPU to be free")
    assert failed(counts, 9, ONE, 0) == ""
    assert len(counts.kept) == 8


def test_of_a_shared_gpu_shares_are_kept(counts):
    assert [failed(counts, process, TWO, 0, 1 / 3) for process in range(4)] == [""] * 4
    assert counts.kept == [(TWO, 1 / 3)] * 3
    assert [failed(counts, process, ONE, process % 2, 1 / 3) != "" for process in range(4)] == [
        False, False, False, True,
    ]  # fmt: skip


def test_many_gpus_are_not_all_named(counts, monkeypatch):
    monkeypatch.setattr(ray, "nodes", lambda: [node(ONE, 8)])
    said = [failed(counts, process, ONE, process // 2) for process in range(16)]
    assert said[:15] == [""] * 15
    assert "GPU 4 of node aaaaaaaa and 3 others failed" in said[15]


@pytest.mark.parametrize("needs", [{}, {"CPU": 8.0}])
def test_where_actors_have_no_gpus_the_job_ends_too(counts, monkeypatch, needs):
    monkeypatch.setattr(ray, "nodes", lambda: [node(ONE, 0)])
    said = [counts.fault(Attempt(one, ONE), "GPU ", [], needs, "dead") for one in "ab"]
    assert said[0] == ""
    assert "(the last: dead)" in said[1]


def test_what_is_no_fault_of_a_gpu_is_the_users(counts):
    with pytest.raises(ValueError, match="unknown architecture"), attempts.ending_if_fatal(counts):
        raise ValueError("unknown architecture")


def test_that_no_node_can_load_is_told_through_the_work_that_asked_for_the_model():
    with pytest.raises(ReadError, match="CUDA error"), attempts.ending_if_fatal():
        raise ReadError("no node loads it (the last: CUDA error: ECC)")


def raising(*_):
    raise RuntimeError("CUDA error: uncorrectable ECC error encountered")


class Encodes(EncoderActor):
    load = raising


def loads(counts):
    with attempts.ending_if_fatal(counts):
        raising()


@pytest.mark.parametrize(
    "load",
    [
        loads,
        lambda counts: Encodes(counts, None, "fp32"),
        lambda counts: SearchActor(counts, None).encode(["a"]),
    ],
)
@pytest.mark.parametrize("ended", ["", "no node loads it"])
def test_a_fault_while_loading_ends_the_process_or_else_the_job(load, ended, monkeypatch):
    asked = []

    class Counting:
        def __getattr__(self, name):
            return SimpleNamespace(remote=lambda *told: asked.append((name, *told)))

    class Ended(BaseException):
        pass

    def end(status):
        raise Ended(status)

    here = SimpleNamespace(
        get_accelerator_ids=lambda: {"GPU": ["3"]},
        get_assigned_resources=lambda: {"GPU": 1.0},
        get_node_id=lambda: ONE,
    )
    monkeypatch.setattr("engine.retrieval.encoder.Encoder", raising)
    monkeypatch.setattr(distribute, "started_here", lambda: None)
    monkeypatch.setattr(ray, "is_initialized", lambda: False)  # whatever ran before in this process
    monkeypatch.setattr(ray, "get_runtime_context", lambda: here)
    monkeypatch.setattr(ray.util, "get_node_ip_address", lambda: "10.0.0.7")
    monkeypatch.setattr(attempts, "answer", lambda call, otherwise, seconds: ended)
    monkeypatch.setattr(attempts, "_SECONDS_TO_QUEUE", 0.0)
    monkeypatch.setattr(attempts.os, "_exit", end)
    with pytest.raises(ReadError if ended else Ended, match=ended or "1"):
        load(Counting())
    said = "CUDA error: uncorrectable ECC error encountered"
    process = Attempt(str(os.getpid()), ONE)
    gpu = "GPU 3 of node aaaaaaaa (10.0.0.7)"
    assert asked[-1] == ("fault", process, gpu, ["3"], {"GPU": 1.0}, said)
