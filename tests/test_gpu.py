"""The report of a machine with a GPU, as far as it goes without one."""

import importlib.util
import os
from concurrent.futures.process import BrokenProcessPool
from typing import NamedTuple

import pytest

from engine.machine import device
from engine.reading import readers
from engine.reading.protocol import ReadOutput
from engine.retrieval import flat
from tests import gpu
from tests.pretended_cuda import pretended_cuda
from tests.reading.models.test_causal import save_random_model


class Asked(NamedTuple):
    """What the check asks of a reader's specification."""

    dtype: str
    gpus: int
    engine: str


@pytest.fixture
def spec(bundled_spec, tmp_path):
    """A random reader of the bundled one's family."""
    save_random_model("llama", bundled_spec, tmp_path)
    made, _ = readers.specify(
        str(tmp_path), augmentation="in-prompt", task="short-answer", dtype="float32",
        engine="transformers",
    )  # fmt: skip
    return made


def test_without_a_gpu_nothing_is_claimed(monkeypatch, capsys):
    monkeypatch.setattr(device, "machine_has_gpu", lambda: False)
    assert gpu.main() == 0
    assert capsys.readouterr().out == "There is no GPU on this machine: nothing was checked.\n"


def test_a_gpu_that_torch_cannot_use_is_no_pass(monkeypatch, capsys):
    monkeypatch.setattr(device, "machine_has_gpu", lambda: True)
    assert gpu.main(apart=lambda what: what()) == 1
    assert "install a CUDA build of torch" in capsys.readouterr().out


def test_a_check_that_fails_decides_the_status_and_hides_no_other(monkeypatch, capsys):
    def fails():
        raise AssertionError("31 of 32 outputs\nand more")

    def not_run():
        raise gpu.NotRun("vLLM is not installed")

    monkeypatch.setattr(device, "machine_has_gpu", lambda: True)
    checks = {"one": fails, "two": not_run, "three": lambda: "all the same"}
    for names, status in ((checks, 1), (["two", "three"], 0)):
        chosen = {name: checks[name] for name in names}
        assert gpu.main(chosen, apart=lambda what: ["A GPU"]) == status
    first, _, head, _, one, two, three, _, total, *_ = capsys.readouterr().out.splitlines()
    assert ", A GPU, Python 3." in first
    assert head == "| | | |"
    assert one == "| one | FAILS | AssertionError: 31 of 32 outputs (0 s) |"
    assert two == "| two | not run | vLLM is not installed (0 s) |"
    assert three == "| three | holds | all the same (0 s) |"
    assert total == "All of it took 0 s."


def test_outputs_are_compared_one_by_one():
    assert gpu.as_expected(["a", "b"], ["a", "b"], of=0) == "2 of 2 outputs are the same"
    assert gpu.as_expected(["a", "b"], ["a", "c"], of=1) == "1 of 2 outputs are the same"
    with pytest.raises(AssertionError, match="0 of 2"):
        gpu.as_expected(["a", "b"], ["b", "a"], of=1)


def test_reads_that_fail_alike_are_no_equality():
    done = [ReadOutput("a", 1, 1, False), ReadOutput.failed("CUDA error")]
    assert gpu.written(done[:1]) == ["a"]
    with pytest.raises(AssertionError, match="1 reads failed: CUDA error"):
        gpu.written(done)


def test_a_check_may_start_processes_and_its_death_is_told():
    daemon = "__import__('multiprocessing').current_process().daemon"
    assert gpu.apart(eval, daemon) is False
    with pytest.raises(BrokenProcessPool):
        gpu.apart(os._exit, 9)


def test_one_reader_on_two_gpus_is_compared_with_one_where_there_are_two(monkeypatch):
    names, asked = ["A GPU"], []

    def apart(what, *given, gpu=True):
        if what is device.gpu_names:
            return names
        spec, reads = given
        asked.append((spec.dtype, spec.gpus, spec.engine))
        alike = 30 if spec.gpus == 2 else 32
        return [f"{i if i < alike else i + 1}" for i in range(len(reads))]

    monkeypatch.setattr(gpu, "random_llama", lambda folder, dtype, gpus: Asked(dtype, gpus, "vllm"))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(gpu.NotRun, match="vLLM is not installed"):
        gpu.tensor_parallel(apart)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: "found")
    with pytest.raises(gpu.NotRun, match="^one GPU$"):
        gpu.tensor_parallel(apart)
    names.append("A GPU")
    assert gpu.tensor_parallel(apart) == "30 of 32 outputs are the same"
    assert [(dtype, gpus) for dtype, gpus, _ in asked] == [("float32", 1), ("float32", 2)]


def test_half_of_the_memory_makes_a_shortage_on_a_pretended_gpu(spec):
    reads = gpu.prompts(24)
    expected = gpu.outputs(spec, reads)
    with pretended_cuda(memory=2**30):
        assert gpu.outputs(spec, reads) == expected
        found, halvings = gpu.shortage(spec, reads)
    assert found == expected
    assert halvings > 0


def test_fusion_in_decoder_is_read_alike_on_a_pretended_gpu(tmp_path):
    spec, reads = gpu.random_t5(tmp_path), gpu.lists(12)
    expected = gpu.outputs(spec, reads)
    assert len(set(expected)) > 3
    with pretended_cuda():
        assert gpu.outputs(spec, reads) == expected


def test_what_is_searched_does_not_depend_on_a_pretended_gpu(monkeypatch):
    monkeypatch.setattr(flat, "nearest_on_gpu", lambda: flat.nearest_on_cpu)
    assert gpu.searched("GPU", vectors=2000).equals(gpu.searched("CPU", vectors=2000))
