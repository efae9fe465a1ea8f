"""The report of a machine with a GPU, as far as it goes without one."""

import pytest

from engine.machine import device
from engine.reading import readers
from engine.retrieval import flat
from tests import gpu
from tests.pretended_cuda import pretended_cuda
from tests.reading.models.test_causal import save_random_model


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
    monkeypatch.setattr(gpu, "apart", lambda what, *given, gpu=True: what(*given))
    assert gpu.main() == 1
    assert "install a CUDA build of torch" in capsys.readouterr().out


def test_a_check_that_fails_decides_the_status_and_hides_no_other(monkeypatch, capsys):
    def fails():
        raise AssertionError("31 of 32 outputs\nand more")

    def not_run():
        raise gpu.NotRun("vLLM is not installed")

    monkeypatch.setattr(device, "machine_has_gpu", lambda: True)
    monkeypatch.setattr(gpu, "apart", lambda what, *given, gpu=True: ["A GPU"])
    checks = {"one": fails, "two": not_run, "three": lambda: "all the same"}
    for names, status in ((checks, 1), (["two", "three"], 0)):
        monkeypatch.setattr(gpu, "CHECKS", {name: checks[name] for name in names})
        assert gpu.main() == status
    first, _, head, _, one, two, three, *_ = capsys.readouterr().out.splitlines()
    assert ", A GPU, Python 3." in first
    assert head == "| | | |"
    assert one == "| one | FAILS | AssertionError: 31 of 32 outputs (0 s) |"
    assert two == "| two | not run | vLLM is not installed (0 s) |"
    assert three == "| three | holds | all the same (0 s) |"


def test_outputs_are_compared_one_by_one():
    assert gpu.as_expected(["a", "b"], ["a", "b"], of=0) == "2 of 2 outputs are the same"
    assert gpu.as_expected(["a", "b"], ["a", "c"], of=1) == "1 of 2 outputs are the same"
    with pytest.raises(AssertionError, match="0 of 2"):
        gpu.as_expected(["a", "b"], ["b", "a"], of=1)


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


def test_what_is_searched_does_not_depend_on_pretended_gpus(monkeypatch):
    monkeypatch.setattr(flat, "nearest_on_gpu", lambda number: flat.nearest_on_cpu)
    assert gpu.searched(2, vectors=2000).equals(gpu.searched(0, vectors=2000))
