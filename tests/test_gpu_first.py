"""Every stage of the first minutes on a GPU runs here with tiny shapes, so that no minute there finds a typo."""

import contextlib
import importlib.metadata
import importlib.util
import json
import os
import subprocess
import sys
import time
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch

from engine.machine import device
from engine.messages.errors import EncodeError
from engine.reading import readers
from engine.reading.local import Local
from engine.reading.protocol import ReadOutput
from engine.retrieval import flat
from tests.expected import as_expected
from tests.gpu_first import __main__ as first
from tests.gpu_first import (
    actors,
    bare,
    checks,
    doctor,
    models,
    pieces,
    real,
    search,
    served,
    table2,
)
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
    assert {"filelock", "polars", "ray", "torch"} <= rows["versions"].figures.keys()
    assert min(rows["matrix products"].figures.values()) > 0


def test_a_version_out_of_bounds_and_a_package_that_lacks_are_told_before_a_model_is_made(
    monkeypatch, tmp_path, capsys
):
    old = {"filelock": "3.20.3"}
    monkeypatch.setattr(
        doctor, "version", lambda name: old.get(name) or importlib.metadata.version(name)
    )
    with pytest.raises(AssertionError, match=r"^filelock 3\.20\.3, not >=3\.30$"):
        doctor.versions(TINY, {})
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "ray" else find(name)
    )
    rows = checks.run(
        {doctor.OF.format("actors"): doctor.CHECKS["modules of actors"]},
        TINY,
        tmp_path / "stage-0.json",
    )
    assert [(row.outcome, row.said) for row in rows] == [("not run", "not installed: ray")]
    assert first.do(["4"], tmp_path, tiny=True) == 0  # no process is started
    assert capsys.readouterr().out.startswith("4 not begun: not installed: ray (")


def test_our_own_loops_on_a_pretended_gpu(tmp_path):
    """Memory is scarce enough for a lack of it to be made."""
    with pretended_cuda(memory=256 * MIB):
        rows = done(bare.CHECKS, tmp_path)
    assert sum(row.figures.get("halvings", 0) for row in rows.values()) > 0
    kernels = rows["kernels and waits"].figures
    assert kernels["llama"]["steps"] == TINY.new
    assert any("scaled_dot_product" in name for name in kernels["t5"]["attention"])


def test_the_papers_table(tmp_path):
    with pretended_cuda():
        rows = done(table2.CHECKS, tmp_path)
    assert len(rows) == 4
    for row in rows.values():
        assert row.figures["generate, erag, query level"]["reads"] == 6
        ratios = row.figures["end-to-end over erag"]
        assert ratios["paper, T5-small"]["time"] == "1.232 to 3.252, mean 2.468"
        for name, level in (("engine", ""), ("generate", ", query level")):
            whole, part = (row.figures[f"{name}, {of}"] for of in ("end-to-end", f"erag{level}"))
            assert ratios[name]["time"] == pytest.approx(
                whole["seconds"] / part["seconds"], abs=1e-3
            )


def test_exact_search(tmp_path, monkeypatch):
    """Also by FAISS as on a GPU, here by that of the CPU."""
    monkeypatch.setattr(flat, "gpu_count", lambda: 1)
    monkeypatch.setattr(flat, "nearest_on_gpu", lambda: flat.nearest_on_cpu)
    all_checks = search.checks(TINY.dimensions)
    several = all_checks.pop("search on several GPUs")
    figures = done(all_checks, tmp_path)["exact search, 48 dimensions"].figures
    for way in ("TF32 off", "TF32 on"):
        assert figures[way]["k_asked"][0] == 26
        assert 0 < figures[way]["largest_error_of_the_bound"] < 1
        assert 0 < figures[way]["a_sum_loses"] < 4
    assert figures["FAISS"]["seconds"] > 0
    with pytest.raises(checks.NotRun) as caught:
        several(TINY, {})
    as_expected(str(caught.value))


def test_search_by_the_cpu_in_the_place_of_the_gpu_is_no_pass(monkeypatch):
    monkeypatch.setattr(flat, "gpu_count", lambda: 1)
    monkeypatch.setattr(flat, "nearest_on_gpu", lambda: flat.nearest_on_cpu)
    monkeypatch.setattr(flat, "_GPU_MOST", 20)
    with pytest.raises(AssertionError) as caught:
        search.exact(24, TINY, {})
    as_expected(str(caught.value).splitlines()[0])


def test_products_that_round_more_than_is_assumed_fail(monkeypatch):
    """Inputs of four bits."""
    on_device = search.on_device

    def rounded(numbers, dtype):
        there = on_device(numbers, dtype)
        return there.to(torch.float8_e4m3fn).to(dtype) if dtype == torch.float32 else there

    monkeypatch.setattr(search, "on_device", rounded)
    with pytest.raises((AssertionError, EncodeError), match="bound|rounds more"):
        search.exact(48, TINY, {})


def test_outputs_of_the_bundled_reader_are_those_that_are_kept(bundled_articles):
    """On another processor, near ties may fall otherwise; ``python -m tests.gpu_first.real`` writes them anew."""
    reads = real.made(bundled_articles)
    assert len(reads) == 256
    spec, _ = real.specified("float32")
    found = models.written(readers.load(spec).read(reads))
    kept = json.loads(real.EXPECTED.read_text(encoding="utf-8"))
    checks.alike(found, kept, gaps=partial(models.gaps, spec, reads))


def test_the_bundled_reader_by_reads_that_were_carried(tmp_path, monkeypatch, bundled_articles):
    (tmp_path / real.CARRIED).write_text(json.dumps(real.made(bundled_articles)), encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(real, "made", None)
    real.reads.cache_clear()
    with pretended_cuda():
        rows = done(real.CHECKS, tmp_path)
    for row in rows.values():
        assert min(row.figures["exact_match_on_cpu"], row.figures["reads_a_second"]) > 0
    real.reads.cache_clear()


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

        class Reader:
            def __init__(self):
                from engine.reading.protocol import ReaderStats

                self.stats = ReaderStats()

            def read(self, inputs):
                from engine.reading.protocol import ReadOutput

                return [ReadOutput(text[:9], 1, 1, False) for (text,) in inputs]

        class Scripted(Local):
            def load(self, spec):
                actors.note(spec)
                return Reader()

        return Scripted([spec], [None])

    monkeypatch.setattr(actors, "host", host)
    monkeypatch.setattr(actors, "own_ray", contextlib.nullcontext)
    rows = done(actors.CHECKS, tmp_path)
    assert rows["a killed actor"].figures["workers"] > 1
    assert rows["an actor without a GPU"].figures["visible"] == ""


def test_what_is_settled_is_not_done_again_and_what_was_not_run_is(tmp_path):
    calls = []

    def fails(scale, figures):
        calls.append("fails")
        figures["seen"] = 3
        raise AssertionError("31 of 32 outputs\nand more")

    def not_run(scale, figures):
        calls.append("not run")
        raise checks.NotRun("no vLLM")

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
        ("not run", "no vLLM"),
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
        ([None], ["not run"], "ended by the stage's limit of 40 s"),
        ([-9, -9, -9], ["FAILS", "FAILS", "FAILS"], "its process ended with status -9"),
    ],
)
def test_a_process_that_dies_or_hangs_costs_its_check_alone(
    ends, outcomes, said, tmp_path, monkeypatch, capsys
):
    monkeypatch.setenv("OUT", str(tmp_path / "taken"))
    some = {name: doctor.CHECKS[name] for name in ("machine", "GPU", "versions")}
    monkeypatch.setattr(doctor, "CHECKS", some)
    process = Process(ends, first.target(tmp_path, "0"))
    monkeypatch.setattr(first.subprocess, "Popen", process)
    assert first.do(["0"], tmp_path, tiny=False) == int("FAILS" in outcomes)
    rows = checks.load(first.target(tmp_path, "0"))
    assert [row.outcome for row in rows] == outcomes
    assert rows[0].said == said
    assert sum(process.waited) <= 3 * first.STAGES["0"].limit
    report = (tmp_path / "taken" / "report.md").read_text()
    assert f"| machine | {outcomes[0]} | {said} (0 s) |" in report
    assert (tmp_path / "taken" / "stage-0.json").exists()
    assert f"0 {outcomes[0]}: machine: {said}" in capsys.readouterr().out


def test_limits_add_up_to_one_command_of_ten_minutes():
    assert sum(first.STAGES[number].limit for number in first.USUAL) == 540
    assert first.USUAL == ("0", "real", "5", "exact", "1", "4")
    assert all(first.checks_of(number) for number in first.STAGES)
    assert len(search.CHECKS) == len(REAL.dimensions) + 1


def test_a_command_that_is_killed_takes_its_stage_along_and_the_next_goes_on(tmp_path, monkeypatch):
    taken, target = tmp_path / "taken", first.target(tmp_path, "0")
    command = ["-m", "tests.gpu_first", "--tiny", "--stage", "0", "--out", str(tmp_path)]
    process = subprocess.Popen([sys.executable, *command], env=os.environ | {"OUT": str(taken)})
    while [row.outcome for row in checks.load(target)][1:] != ["not run", "under way"]:
        assert process.poll() is None
        time.sleep(0.02)
    (stage,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    process.kill()
    process.wait()
    while Path("/proc", stage).exists():
        time.sleep(0.02)
    before = checks.load(target)
    assert checks.load(taken / target.name) == before
    assert first.main(command[2:]) == 0
    after = checks.load(target)
    assert [row.what for row in after] == list(doctor.CHECKS)
    assert after[0] == before[0]  # to the hundredth of a second that it took
    assert (after[2].what, after[2].outcome) == (before[2].what, "holds")


def test_without_a_gpu_nothing_is_claimed(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(device, "machine_has_gpu", lambda: False)
    assert first.main(["--out", str(tmp_path)]) == 0
    as_expected(capsys.readouterr().out.splitlines()[0])
    with pytest.raises(AssertionError, match="cannot use the GPU"):
        doctor.gpu(REAL, {})


def test_outputs_are_compared_one_by_one():
    as_expected(checks.alike(["a", "b"], ["a", "b"]))
    as_expected(checks.alike(["a", "b"], ["a", "c"], share=0.5))
    with pytest.raises(AssertionError, match="0 of 2"):
        checks.alike(["a", "b"], ["b", "a"], share=0.5)
    with pytest.raises(AssertionError, match="hardly two of them differ"):
        checks.alike(["a"] * 8, ["a"] * 8)


def test_outputs_that_part_where_two_logits_are_nearly_equal_are_no_fault():
    near = checks.alike(["a", "b"], ["a", "c"], gaps=lambda differ: [(9e-4, 2)] * len(differ))
    as_expected(near)
    with pytest.raises(
        AssertionError, match=r"^0 of 2.*2\.0e-03 at token 1 of read 1, 1\.0e-03 at"
    ):
        checks.alike(["a", "b"], ["b", "a"], gaps=lambda _: [(1e-3, 1), (2e-3, 1)])


@pytest.mark.parametrize("shape", [TINY.small, TINY.base])
def test_the_gap_is_that_of_the_token_by_which_two_outputs_part(shape, tmp_path):
    """As the logits of one pass over the prompt and the answer's first tokens say."""
    models.make(shape, tmp_path, "float32")
    spec = models.spec_of(shape, tmp_path, "float32", TINY)
    reads = bare.inputs_of(shape, 4, TINY)
    peer = models.Peer(spec)
    (output,) = peer.read(reads[3:])
    words = output.split()
    other = " ".join([*words[:2], "w1", *words[3:]])
    (found,) = models.gaps(spec, reads, [(3, output, other)])
    assert found[1] == 2
    tokens = peer.tokenizer([*reads[3], *[" ".join(words[:2])]], add_special_tokens=False).input_ids
    if shape.family == "llama":
        given = [2, *tokens[0], *tokens[-1]]
        logits = peer.model(torch.tensor([given])).logits[0, -1]
    else:
        states = torch.cat(
            [peer.model.encoder(torch.tensor([[*one, 1]]))[0] for one in tokens[:-1]], 1
        )
        made = peer.model(
            encoder_outputs=(states,), decoder_input_ids=torch.tensor([[0, *tokens[-1]]])
        )
        logits = made.logits[0, -1]
    best = logits.topk(2).values
    assert found[0] == pytest.approx((best[0] - best[1]).item(), abs=1e-4)


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


def test_pieces_hold_files_that_python_alone_unpacks(tmp_path, monkeypatch):
    """What the machine has is not carried, nor what of Ray is not used; what one archive has, no other has again."""
    asked = []

    def run(command, **_):
        asked.append(command)
        if "--report" in command:
            names = ["polars", "numpy"] if "polars" in command else ["ray", "filelock", "PyYAML"]
            if "polars" in command:
                names.append("filelock")
            report = {"install": [{"metadata": {"name": n, "version": "1"}} for n in names]}
            Path(command[command.index("--report") + 1]).write_text(json.dumps(report))
            return
        for one in command[command.index("--target") + 2 :]:
            name = one.partition("==")[0]
            for file in ("__init__.py", "jars/big.jar"):
                made = Path(command[command.index("--target") + 1], name, file)
                made.parent.mkdir(parents=True, exist_ok=True)
                made.write_bytes(os.urandom(3000))

    monkeypatch.setattr(pieces.subprocess, "run", run)
    monkeypatch.setattr(real, "made", lambda: [["a read"]])
    assert pieces.main(["make", str(tmp_path / "made")]) == 0
    assert {"--python-version=3.12", "--only-binary=:all:"} <= set(asked[0])
    monkeypatch.undo()
    there = {}
    for name in pieces.ARCHIVES:
        archive, into = tmp_path / "made" / f"{name}.tar.xz", tmp_path / name
        subprocess.run(
            [sys.executable, "-I", "-m", "tarfile", "-e", str(archive), str(into)], check=True
        )
        there[name] = {str(file.relative_to(into)) for file in into.rglob("*") if file.is_file()}
    assert there["ray"] == {"ray/__init__.py"}
    assert {name.split("/")[0] for name in there["first"]} == {"polars", "filelock", real.CARRIED}
    assert json.loads((tmp_path / "first" / real.CARRIED).read_text()) == [["a read"]]
