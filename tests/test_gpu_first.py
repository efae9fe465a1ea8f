"""Every stage of the first minutes on a GPU runs here with tiny shapes, so that no minute there finds a typo."""

import contextlib
import importlib.util
import json
import os
import subprocess
import sys
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from pathlib import Path

import pytest

from engine.machine import device
from engine.reading.protocol import ReadOutput
from engine.retrieval import flat
from tests.gpu_first import __main__ as first
from tests.gpu_first import actors, bare, checks, doctor, models, pieces, search, served, table2
from tests.gpu_first.scale import MIB, REAL, TINY
from tests.pretended_cuda import pretended_cuda


def done(all_checks, tmp_path):
    rows = checks.run(all_checks, TINY, tmp_path / "stage.json")
    assert [(row.what, row.outcome, row.said) for row in rows if row.outcome != "holds"] == []
    assert [row.what for row in checks.load(tmp_path / "stage.json")] == list(all_checks)
    return {row.what: row for row in rows}


@pytest.fixture
def in_this_process(monkeypatch):
    """What stages have done by processes of its own is done here."""
    for module in (served, actors):
        monkeypatch.setattr(module, "apart", lambda what, *given: what(*given))


def test_the_machine_is_described(tmp_path):
    with pretended_cuda():
        rows = done(doctor.CHECKS, tmp_path)
    assert rows["GPU"].figures["gpus"] == 1
    assert "not as pinned: " in rows["versions"].said


def test_our_own_loops_on_a_pretended_gpu(tmp_path):
    """Memory is scarce enough for a lack of it to be made."""
    with pretended_cuda(memory=256 * MIB):
        rows = done(bare.CHECKS, tmp_path)
    assert rows["a lack of memory halves batches"].figures["halvings"] > 0
    kernels = rows["kernels and waits"].figures
    assert kernels["llama"]["steps"] == TINY.new
    assert any("scaled_dot_product" in name for name in kernels["t5"]["attention"])


def test_the_papers_table(tmp_path):
    with pretended_cuda():
        rows = done(table2.CHECKS, tmp_path)
    figures = rows["Table 2, Fusion-in-Decoder"].figures
    assert figures["generate, erag, query level"]["reads"] == 6
    assert {"seconds", "mib"} <= figures["engine, end-to-end"].keys()


def test_exact_search(tmp_path, monkeypatch):
    monkeypatch.setattr(flat, "gpu_count", lambda: 1)
    monkeypatch.setattr(flat, "nearest_on_gpu", lambda: flat.nearest_on_cpu)
    all_checks = search.checks(TINY.dimensions)
    several = all_checks.pop("search on several GPUs")
    rows = done(all_checks, tmp_path)
    assert rows["exact search, 48 dimensions"].figures["k_asked"][0] == 26
    with pytest.raises(checks.NotRun, match="fewer than two GPUs"):
        several(TINY, {})


def test_search_by_the_cpu_in_the_place_of_the_gpu_is_no_pass(monkeypatch):
    monkeypatch.setattr(flat, "gpu_count", lambda: 1)
    monkeypatch.setattr(flat, "nearest_on_gpu", lambda: flat.nearest_on_cpu)
    monkeypatch.setattr(flat, "_GPU_MOST", 20)
    with pytest.raises(AssertionError, match="are searched on the CPU"):
        search.exact(24, TINY, {})


class Vllm:
    """Our own loops in the place of vLLM."""

    def __new__(cls, spec):
        return models.load(replace(spec, engine="transformers"))


def test_vllm_by_our_own_loops(tmp_path, monkeypatch, in_this_process):
    monkeypatch.setattr(served, "require", lambda *_: None)
    monkeypatch.setattr(served, "load", Vllm)
    monkeypatch.setattr(served, "whole", lambda spec, reads: [read[0] for read in reads])
    monkeypatch.setattr(served.torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(
        served.concurrent.futures, "ProcessPoolExecutor",
        lambda most, **_: served.concurrent.futures.ThreadPoolExecutor(most),
    )  # fmt: skip

    def run(command, **_):
        settings = json.loads(Path(command[-2]).read_text())
        spec = models.spec_of(TINY.small, settings["model"], settings["dtype"], TINY)
        reads = [[prompt] for prompt in settings["prompts"]]
        outputs = models.written(models.load(spec).read(reads))
        Path(command[-1]).write_text(json.dumps({"seconds": [1.0], "outputs": outputs}))

    monkeypatch.setattr(served.subprocess, "run", run)
    rows = done(served.CHECKS, tmp_path)
    assert rows["units beside LLM.generate, bf16"].figures["units"] == 3


def test_without_vllm_its_stage_says_so(monkeypatch, tmp_path):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    rows = checks.run(served.CHECKS, TINY, tmp_path / "stage.json")
    assert {(row.outcome, row.said) for row in rows} == {("not run", "not installed: vllm")}


@pytest.mark.usefixtures("ray_session")
def test_actors_that_answer_from_a_script(tmp_path, monkeypatch, in_this_process):
    def host(spec):
        from engine.reading.stream import Host

        class Reader:
            def __init__(self):
                from engine.reading.protocol import ReaderStats

                self.stats = ReaderStats()

            def read(self, inputs):
                from engine.reading.protocol import ReadOutput

                return [ReadOutput(text[:9], 1, 1, False) for (text,) in inputs]

        class Scripted(Host):
            def load(self, spec):
                return Reader()

        return Scripted([spec], [None], held=True)

    monkeypatch.setattr(actors, "host", host)
    monkeypatch.setattr(actors, "own_ray", contextlib.nullcontext)
    rows = done(actors.CHECKS, tmp_path)
    assert rows["a killed actor"].figures["workers"] > 1


def test_what_is_settled_is_not_done_again_and_what_was_not_run_is(tmp_path):
    calls = []

    def fails(scale, figures):
        calls.append("fails")
        figures["seen"] = 3
        raise AssertionError("31 of 32 outputs\nand more")

    def not_run(scale, figures):
        calls.append("not run")
        raise checks.NotRun("vLLM is not installed")

    def fatal(scale, figures):
        calls.append("fatal")
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    def last(scale, figures):
        calls.append("last")
        return "fine"

    made = {"one": fails, "two": not_run, "three": fatal, "four": last}
    target = tmp_path / "stage.json"
    rows = checks.run(made, TINY, target)
    assert [(row.outcome, row.said) for row in rows] == [
        ("FAILS", "AssertionError: 31 of 32 outputs"),
        ("not run", "vLLM is not installed"),
        ("FAILS", "RuntimeError: CUDA error: an illegal memory access was encountered"),
    ]
    assert rows[0].figures == {"seen": 3}
    rows = checks.run(made, TINY, target)  # as the next process does, whose GPU works again
    assert calls == ["fails", "not run", "fatal", "not run", "last"]
    assert [row.outcome for row in rows] == ["FAILS", "not run", "FAILS", "holds"]
    target.write_text("{")
    assert checks.load(target) == []


class Process:
    """A stage's process that does what it is told: to hang, or to die of a signal, in its first check."""

    pid = 2**22 + 17  # of no process

    def __init__(self, ends, target):
        self.ends, self.target, self.waited = ends, target, []

    def __call__(self, command, **options):
        assert command[1:5] == ["-m", "tests.gpu_first", "--out", str(self.target.parent)]
        rows = {row.what: row for row in checks.load(self.target)}
        missing = [what for what in doctor.CHECKS if what not in rows]
        outcome = "under way" if self.ends[0] != 0 else "holds"
        for what in missing[: 1 if outcome == "under way" else None]:
            rows[what] = checks.Row(what, outcome)
        checks.save(rows, doctor.CHECKS, self.target)
        return self

    def wait(self, timeout=None):
        if timeout is None:
            return None
        self.waited.append(timeout)
        end = self.ends.pop(0)
        if end is None:
            raise subprocess.TimeoutExpired("stage", timeout)
        return end


@pytest.mark.parametrize(
    ("ends", "outcomes", "said"),
    [
        ([-11, 0], ["FAILS", "holds", "holds"], "its process ended with status -11"),
        ([None], ["not run"], "ended by the stage's limit of 30 s"),
        ([-9, -9, -9], ["FAILS", "FAILS", "FAILS"], "its process ended with status -9"),
    ],
)
def test_a_process_that_dies_or_hangs_costs_its_check_alone(
    ends, outcomes, said, tmp_path, monkeypatch, capsys
):
    monkeypatch.setenv("OUT", str(tmp_path / "taken"))
    process = Process(ends, first.target(tmp_path, 0))
    monkeypatch.setattr(first.subprocess, "Popen", process)
    assert first.do([0], tmp_path, tiny=True) == int("FAILS" in outcomes)
    rows = checks.load(first.target(tmp_path, 0))
    assert [row.outcome for row in rows] == outcomes
    assert rows[0].said == said
    assert sum(process.waited) <= 3 * first.STAGES[0].limit
    report = (tmp_path / "taken" / "report.md").read_text()
    assert f"| machine | {outcomes[0]} | {said} (0 s) |" in report
    assert (tmp_path / "taken" / "stage-0.json").exists()
    assert f"0 {outcomes[0]}: machine: {said}" in capsys.readouterr().out


def test_a_stage_runs_in_a_process_of_its_own(tmp_path):
    assert first.main(["--tiny", "--stage", "0", "--out", str(tmp_path)]) == 0
    rows = checks.load(tmp_path / "stage-0.json")
    assert [row.outcome for row in rows][::2] == ["holds", "holds"]


def test_limits_add_up_to_twenty_minutes_and_none_is_longer_than_eight():
    assert sum(stage.limit for stage in first.STAGES) <= 20 * 60
    assert all(stage.limit <= 8 * 60 for stage in first.STAGES)
    assert all(first.checks_of(number) for number in range(len(first.STAGES)))
    assert len(search.CHECKS) == len(REAL.dimensions) + 1


def test_without_a_gpu_nothing_is_claimed(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(device, "machine_has_gpu", lambda: False)
    assert first.main(["--out", str(tmp_path)]) == 0
    assert capsys.readouterr().out.startswith("There is no GPU on this machine: nothing was check")
    with pytest.raises(AssertionError, match="cannot use the GPU"):
        doctor.gpu(REAL, {})


def test_outputs_are_compared_one_by_one():
    assert checks.alike(["a", "b"], ["a", "b"]) == "2 of 2 the same"
    assert checks.alike(["a", "b"], ["a", "c"], share=0.5) == "1 of 2 the same"
    with pytest.raises(AssertionError, match="0 of 2"):
        checks.alike(["a", "b"], ["b", "a"], share=0.5)
    with pytest.raises(AssertionError, match="hardly two of them differ"):
        checks.alike(["a"] * 8, ["a"] * 8)


def test_reads_that_fail_alike_are_no_equality():
    outputs = [ReadOutput("a", 1, 1, False), ReadOutput.failed("CUDA error")]
    assert models.written(outputs[:1]) == ["a"]
    with pytest.raises(AssertionError, match="1 reads failed: CUDA error"):
        models.written(outputs)


def test_a_check_may_start_processes_and_its_death_is_told():
    daemon = "__import__('multiprocessing').current_process().daemon"
    assert checks.apart(eval, daemon) is False
    with pytest.raises(BrokenProcessPool):
        checks.apart(os._exit, 9)


def test_pieces_are_joined_by_a_python_alone(tmp_path, monkeypatch):
    """What is carried is found damaged or lacking before anything is unpacked."""
    root, folder, there = (tmp_path / name for name in ("root", "parts", "there"))
    big = root / "engine" / "demo" / "fid-reader" / "model.safetensors"
    big.parent.mkdir(parents=True)
    big.write_bytes(b"0" * 100)
    (root / "engine" / "one.py").write_bytes(os.urandom(5000))
    for command in (["init", "-q"], ["add", "."]):
        subprocess.run(["git", *command], cwd=root, check=True)
    wheel = tmp_path / "polars-2.1.0-py3-none-any.whl"
    wheel.write_bytes(os.urandom(9000))
    monkeypatch.setattr(pieces, "PART", 4096)
    names = pieces.pack(root, [wheel], folder)
    assert len(names) == 4
    assert max((folder / name).stat().st_size for name in names) == 4096
    whole = (folder / names[1]).read_bytes()
    for damage in (whole[:-1], None):
        (folder / names[1]).unlink()
        if damage is not None:
            (folder / names[1]).write_bytes(damage)
        with pytest.raises(SystemExit, match="1 parts lack or are damaged: part-001"):
            pieces.join(folder, there)
    (folder / names[1]).write_bytes(whole)
    assert not there.exists()
    join = f"import pieces, pathlib; pieces.join(pathlib.Path('.'), pathlib.Path({str(there)!r}), install=False)"
    subprocess.run([sys.executable, "-I", "-c", f"import sys; sys.path.insert(0, '.'); {join}"], cwd=folder, check=True)  # fmt: skip
    assert (there / "checkout/engine/one.py").read_bytes() == (root / "engine/one.py").read_bytes()
    assert not (there / "checkout/engine/demo").exists()
    assert (there / "wheels" / wheel.name).read_bytes() == wheel.read_bytes()
