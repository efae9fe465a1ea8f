"""What the engine takes a machine for, by its flags and by what its environment allows."""

import os
import platform
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from engine.machine import device
from engine.messages.errors import InputError, ReadError
from tests.expected import as_expected, refused
from tests.pretended_cuda import pretended_cuda

ROOT = Path(__file__).parents[2]
# The variables that limit oneDNN; the first precedes.
NEWER, OLDER = "ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA"
# Names of instruction sets, and whether oneDNN has bf16 arithmetic within them.
LIMITS = {
    "": True,
    "SSE41": False,
    "AVX": False,
    "AVX2": False,
    "AVX2_VNNI": False,
    "AVX2_VNNI_2": False,
    "AVX512_CORE": False,
    "avx512_core_vnni": False,
    "AVX512_CORE_BF16": True,
    "AVX512_CORE_AMX": True,
    "ALL": True,
    "no such set": True,  # oneDNN ignores it
}
# Tests of what runs on oneDNN, whose outcome could depend on the processor.
DEPENDENT = (
    "tests/machine",
    "tests/reading/models",
    "tests/reading/test_repetition.py",
    "tests/reading/test_readers.py",
    "tests/retrieval/test_encoders.py",
    "tests/jobs/test_demo.py",
)

# Tests of what holds in bf16 without AMX.
STEADY = (
    "tests/reading/models/test_causal.py",
    "tests/reading/models/test_encoder_decoder.py",
)


@pytest.fixture
def without_limit(monkeypatch):
    monkeypatch.setattr(device, "machine_has_gpu", lambda: False)
    for name in (NEWER, OLDER):
        monkeypatch.delenv(name, raising=False)


def has_flags(monkeypatch, flags, vendor="AuthenticAMD"):
    """Two processors with these flags, beside what all have."""
    all_flags = f"fpu avx2 avx512f avx512_vnni {flags} sse2"
    words = {"flags": [all_flags] * 2, "vendor_id": [vendor] * 2}
    monkeypatch.setattr(device, "_processor", lambda name: words.get(name, []))


@pytest.mark.parametrize(
    ("flags", "dtype"),
    [
        ("", "float32"),
        ("avx512_bf16", "bfloat16"),
        ("amx_tile amx_bf16", "bfloat16"),
        ("avx512_bf16x", "float32"),
    ],
)
def test_bf16_is_the_default_where_the_processor_has_its_arithmetic(
    monkeypatch, without_limit, flags, dtype
):
    has_flags(monkeypatch, flags)
    assert device.has_bf16_arithmetic() == (dtype == "bfloat16")
    assert device.best_dtype() == dtype


@pytest.mark.parametrize(
    ("vendor", "flags", "limit", "dtype"),
    [
        ("GenuineIntel", "avx512_bf16 avx512_fp16", "", "float32"),
        ("GenuineIntel", "avx512_bf16 avx512_fp16 amx_bf16", "", "bfloat16"),
        ("GenuineIntel", "avx512_bf16 avx512_fp16 amx_bf16", "AVX512_CORE_BF16", "float32"),
        ("GenuineIntel", "avx512_bf16 avx512_fp16 amx_bf16", "AVX512_CORE_AMX", "bfloat16"),
        ("GenuineIntel", "avx512_bf16", "", "bfloat16"),  # Cooper Lake
        ("AuthenticAMD", "avx512_bf16 avx512_fp16", "", "bfloat16"),
    ],
)
def test_bf16_is_no_default_where_amx_is_hidden_from_who_was_made_for_it(
    monkeypatch, without_limit, vendor, flags, limit, dtype
):
    has_flags(monkeypatch, flags, vendor=vendor)
    monkeypatch.setenv(NEWER, limit)
    assert device.has_bf16_arithmetic()
    assert device.best_dtype() == dtype


def test_a_system_that_lists_no_flags_has_none(monkeypatch, without_limit):
    monkeypatch.setattr(device, "_processor", lambda name: [])
    assert device.best_dtype() == "float32"
    assert device.describe(gpu=False) == "cpu"


@pytest.mark.parametrize("name", [NEWER, OLDER])
@pytest.mark.parametrize(("limit", "expected"), LIMITS.items())
def test_what_onednn_may_not_use_the_machine_does_not_have(
    monkeypatch, without_limit, name, limit, expected
):
    has_flags(monkeypatch, "avx512_bf16")
    monkeypatch.setenv(name, limit)
    assert device.has_bf16_arithmetic() is expected


def test_the_newer_name_of_the_limit_precedes_the_older(monkeypatch, without_limit):
    has_flags(monkeypatch, "avx512_bf16")
    monkeypatch.setenv(NEWER, "ALL")
    monkeypatch.setenv(OLDER, "AVX2")
    assert device.has_bf16_arithmetic()


def kernels(**environment):
    """The lines in which oneDNN names its kernels for a product of bf16."""
    product = "import torch; a = torch.ones(64, 64).bfloat16(); torch.nn.functional.linear(a, a)"
    done = subprocess.run(
        [sys.executable, "-c", product], env=os.environ | {"ONEDNN_VERBOSE": "1"} | environment,
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return [line for line in done.stdout.splitlines() if ",exec,cpu,matmul," in line]


@pytest.mark.slow
@pytest.mark.skipif(not device.has_bf16_arithmetic(), reason="there is nothing to take away")
@pytest.mark.parametrize(("limit", "expected"), LIMITS.items())
def test_onednn_has_bf16_arithmetic_where_the_engine_says_so(limit, expected):
    found = kernels(ONEDNN_MAX_CPU_ISA=limit)
    assert any("avx512_core_bf16" in line or "amx" in line for line in found) is expected


@pytest.mark.parametrize(
    ("flags", "limit", "expected"),
    [
        ("avx512_bf16", "", True),
        ("avx512_bf16", "AVX512_CORE_AMX", True),
        ("avx512_bf16", "AVX512_CORE", False),
        ("avx512_bf16 amx_bf16", "", False),
        ("avx512_bf16 amx_bf16", "ALL", False),
        ("avx512_bf16 amx_bf16", "AVX512_CORE_AMX", False),
        ("avx512_bf16 amx_bf16", "avx512_core_bf16", True),
        ("avx512_bf16 amx_bf16", "AVX10_1_512", True),
        ("", "", False),
    ],
)
def test_rows_of_bf16_are_not_steady_with_amx(monkeypatch, without_limit, flags, limit, expected):
    has_flags(monkeypatch, flags)
    monkeypatch.setenv(NEWER, limit)
    assert device.bf16_rows_are_steady() is expected


@pytest.mark.slow
@pytest.mark.skipif(
    not device.has_bf16_arithmetic() or device.bf16_rows_are_steady(), reason="has no AMX"
)
@pytest.mark.parametrize("limit", ["", "AVX512_CORE_BF16", "AVX512_CORE_AMX", "AVX10_1_512", "ALL"])
def test_onednn_has_amx_where_the_engine_says_so(monkeypatch, limit):
    monkeypatch.setenv(NEWER, limit)
    found = kernels()
    assert found
    assert any("amx" in line for line in found) is not device.bf16_rows_are_steady()


def passing(limit, *arguments):
    """What pytest says of tests that pass within a limit of oneDNN's."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-rs", *arguments], cwd=ROOT,
        env=os.environ | {NEWER: limit}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library")
def test_a_process_that_reads_keeps_the_memory_of_freed_tensors():
    """They come from its heap; what is mapped alone goes back to the system when it is freed."""
    places = r"""
import re, types, torch
from pathlib import Path
from engine.machine import device
def in_heap():
    tensor = torch.empty(20 * 2**20, dtype=torch.uint8)
    heap = re.search(r"^(\w+)-(\w+) .*\[heap\]", Path("/proc/self/maps").read_text(), re.M)
    return int(heap[1], 16) <= tensor.data_ptr() < int(heap[2], 16)
before = in_heap()
device.prepare(types.SimpleNamespace(threads=1, memory=0))
print([before, in_heap()])
"""
    done = subprocess.run(
        [sys.executable, "-c", places], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[False, True]"


@pytest.mark.slow
@pytest.mark.skipif(
    not device.has_bf16_arithmetic() or device.bf16_rows_are_steady(), reason="has no AMX"
)
def test_with_amx_taken_away_no_output_depends_on_the_batch():
    said = passing("AVX512_CORE_BF16", "-k", "bit or batch", *STEADY)
    assert "product can depend on its number of rows" not in said


@pytest.mark.slow
def test_a_processor_without_bf16_arithmetic_passes_too():
    """The tests that could depend on it, with oneDNN and the engine as on a processor without it."""
    said = passing("AVX512_CORE", "-m", "not slow and not faults", *DEPENDENT)
    assert "product can depend on its number of rows" in said  # these were skipped, said why


@pytest.mark.parametrize(
    ("error", "fatal"),
    [
        (RuntimeError("CUDA error: an illegal memory access was encountered"), True),
        (RuntimeError("cuDNN error: CUDNN_STATUS_EXECUTION_FAILED"), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED"), True),
        (RuntimeError("NCCL error in: ProcessGroupNCCL.cpp"), True),
        (type("EngineDeadError", (Exception,), {})("engine core died"), True),
        (type("AcceleratorError", (RuntimeError,), {})("x"), True),
        (RuntimeError("Executor failed."), True),
        (
            RuntimeError(
                "Worker failed with error 'illegal address', please check the stack trace above"
                " for the root cause"
            ),
            True,
        ),
        (TimeoutError("RPC call to execute_model timed out."), True),
        (TimeoutError("timed out"), False),
        (RuntimeError("RPC call to a tokenizer timed out"), False),
        (RuntimeError("CUDA out of memory. Tried to allocate 2 GiB"), False),
        (ValueError("a prompt of 9 tokens"), False),
    ],
)
def test_errors_after_which_a_process_can_do_nothing_are_told_from_others(error, fatal):
    assert device.is_fatal(error) is fatal


ECC = "CUDA error: uncorrectable ECC error encountered"


@pytest.mark.parametrize(
    ("error", "computing", "fault"),
    [
        (RuntimeError(ECC), None, True),
        (InputError(f"broken ({ECC})", "fetch it"), None, True),
        (RuntimeError("CUDA error: out of memory"), None, False),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED"), None, False),
        (ValueError("unknown architecture"), None, False),
        # No words say it: the GPU itself does, whatever it says.
        (RuntimeError("Engine core initialization failed"), RuntimeError("unspecified"), True),
        (ValueError("unknown architecture"), RuntimeError("CUDA error: out of memory"), False),
    ],
)
def test_a_gpu_is_at_fault_where_it_says_so_or_computes_no_more(
    error, computing, fault, monkeypatch
):
    def ones(*_, **__):
        if computing:
            raise computing
        return torch.tensor([1.0, 1.0])

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch, "ones", ones)
    assert device.is_at_fault(error) is fault


@pytest.mark.parametrize(("cuda", "visible", "fault"), [("13.0", "0", True), ("13.0", "", False), (None, "0", False)])  # fmt: skip
def test_a_gpu_that_was_given_and_is_gone_is_at_fault(cuda, visible, fault, monkeypatch):
    monkeypatch.setattr(torch.version, "cuda", cuda)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    spec = SimpleNamespace(threads=0, memory=0)
    error = ReadError("a weight is missing")
    if visible:
        with pytest.raises(ReadError, match=re.escape(torch.__version__)) as caught:
            device.prepare(spec)
        error = caught.value
    assert device.is_at_fault(error) is fault


def test_a_gpu_that_does_not_show_as_nvidias_is_asked_for_through_torch(monkeypatch, tmp_path):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(device, "_PERHAPS_GPU", (str(tmp_path / "dxg"),))
    asked = []
    monkeypatch.setattr(device, "_torch_has_gpu", lambda: asked.append(1) or True)
    if not any(Path("/dev").glob("nvidia[0-9]*")):
        assert not device.machine_has_gpu()
        assert not asked
    (tmp_path / "dxg").touch()
    assert device.machine_has_gpu()
    with monkeypatch.context() as worker:  # of Ray's, which was assigned none
        worker.setattr(device, "_assigned_share", lambda: 0.0)
        assert not device.machine_has_gpu()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert not device.machine_has_gpu()


def test_a_process_takes_what_others_leave_of_a_gpu_and_its_share_of_it(monkeypatch):
    spec = SimpleNamespace(memory=0, threads=0)
    gib = 2**30
    with pretended_cuda(memory=16 * gib):
        where = device.prepare(spec)
        assert str(where) == "cuda:0"
        assert device.batch_memory(spec, where, gib) == pytest.approx(0.9 * 0.9 * 16 * gib - gib)
    with pretended_cuda(memory=16 * gib, others=10 * gib) as gpu:
        where = device.prepare(spec)
        assert gpu.share == pytest.approx(6 / 16)
        assert device.batch_memory(spec, where, gib) == pytest.approx(0.9 * 6 * gib - gib)
        given = SimpleNamespace(memory=4 * gib, threads=0)
        assert device.batch_memory(given, where, gib) == pytest.approx(0.9 * 4 * gib - gib)
    monkeypatch.setattr(device, "_assigned_share", lambda: 0.5)
    with pretended_cuda(memory=16 * gib):
        found = device.batch_memory(spec, device.prepare(spec), 0)
        assert found == pytest.approx(0.9 * 0.9 * 8 * gib)


def test_a_compiler_is_found_that_has_headers(tmp_path, monkeypatch):
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    as_expected(device.lacking_compiler())
    with refused("machine.compiler"):
        device.require_compiler()
    monkeypatch.setenv("CC", str(tmp_path / "cc"))
    as_expected(device.lacking_compiler())
    for name, status in (("gcc", 1), ("clang", 0)):
        made = tmp_path / name
        made.write_text(
            f"#!/bin/sh\nread -r line && test \"$line\" = '#include <Python.h>' && exit {status}\n"
        )
        made.chmod(0o700)
        monkeypatch.setenv("CC", str(made))
        assert bool(device.lacking_compiler()) == (status == 1)
        as_expected(device.lacking_compiler())
    monkeypatch.delenv("CC")
    assert device.lacking_compiler()  # gcc goes before clang
