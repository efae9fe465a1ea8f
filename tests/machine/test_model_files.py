"""Models are loaded in no more memory than their weights take, readers keep to their budgets, and code of models runs
only where the user agreed, and only as it was then."""

import gc
import io
import json
import os
import subprocess
import sys
import threading
import time
import weakref
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from engine.machine import device, model_files
from engine.machine.model_files import (
    LARGE,
    agreed_code,
    code_digest,
    load_model,
    loading_turn,
    shared_model,
)
from engine.messages.errors import InputError, ReadError
from engine.reading import readers
from engine.reading.readers import specify
from engine.retrieval import encoders
from tests.commands import evaluate
from tests.expected import as_expected, refused
from tests.retrieval.tiny_encoder import save_tiny_encoder

CPU = torch.device("cpu")

MIB = 2**20
# Reads within a budget in processes forked from one that has imported what readers import, so that each
# has its own peak. Prints the peak and the outputs of each.
READING = """
import json, os, sys
from dataclasses import replace

from engine.machine import device
from engine.reading import readers
from engine.reading.models import causal, encoder_decoder

name, least, *dtypes = sys.argv[1:]
PASSAGES = [("T%d" % i, "w1 w2 of it " * (3 + 7 * i)) for i in range(10)]
for dtype in dtypes:
    spec, prompt = readers.specify(
        name, augmentation="in-prompt", task="short-answer", dtype=dtype, memory=int(least)
    )
    reads = [prompt.render("w3 w4", [passage]) for passage in PASSAGES]
    reads.append(prompt.render("w3 w4", PASSAGES))
    child = os.fork()
    if child == 0:
        try:
            reader = readers.load(replace(spec, threads=1))
            outputs = [output.output for output in reader.read(reads)]
            peak = device.status_bytes("VmHWM")
            print(json.dumps([dtype, spec.memory, peak, outputs]), flush=True)
        finally:
            os._exit(0)
    os.waitpid(child, 0)
"""


def peaks(name, memory, *dtypes):
    done = subprocess.run(
        [sys.executable, "-c", READING, str(name), str(memory), *dtypes],
        capture_output=True, text=True, check=True, env=os.environ | {"OMP_NUM_THREADS": "1"},
        cwd=Path(__file__).parents[2],
    )  # fmt: skip
    return [json.loads(line) for line in done.stdout.splitlines()]


def least(name, dtype):
    """The least budget that is accepted, as the refusal of a smaller one names it."""
    options = {"augmentation": "in-prompt", "task": "short-answer", "dtype": dtype}
    with pytest.raises(InputError, match="give at least") as refused:
        specify(str(name), **options, memory=1)
    (amount,) = [int(word.removesuffix("MiB")) for word in str(refused.value).split()[-1:]]
    specify(str(name), **options, memory=amount * MIB)
    with pytest.raises(InputError):
        specify(str(name), **options, memory=amount * MIB - MIB)
    return amount * MIB


@pytest.mark.slow
def test_a_tiny_reader_keeps_to_the_least_budget_in_fp32_and_bf16(tiny_t5):
    dtypes = ("float32", "bfloat16")
    memory = max(least(tiny_t5, dtype) for dtype in dtypes)
    found = peaks(tiny_t5, memory, *dtypes)
    assert [dtype for dtype, *_ in found] == list(dtypes)
    for dtype, budget, peak, outputs in found:
        assert peak <= budget == memory, f"{dtype}: {peak / MIB:.0f} MiB"
        assert len(outputs) == 11


@pytest.mark.slow
def test_the_bundled_reader_keeps_to_small_budgets_in_fp32_and_bf16(bundled_spec):
    for dtype, budget in (
        ("float32", int(1.3 * 2**30)),
        ("bfloat16", least("bundled", "bfloat16")),
    ):
        ((_, memory, peak, outputs),) = peaks("bundled", budget, dtype)
        print(f"{dtype}: {peak / MIB:.0f} MiB of {memory / MIB:.0f}")
        assert peak <= memory
        ((_, _, _, roomy),) = peaks("bundled", 4 * 2**30, dtype)
        if dtype == "float32" or device.has_bf16_arithmetic():
            assert outputs == roomy


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    """A decoder-only model of 34 million parameters, stored in bf16 (64 MiB)."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=1000, hidden_size=512, intermediate_size=2048, num_hidden_layers=8,
        num_attention_heads=8, tie_word_embeddings=True,
    )  # fmt: skip
    torch.manual_seed(1)
    model = LlamaForCausalLM(config).to(torch.bfloat16)
    model.generation_config.eos_token_id = [7, 9]
    path = tmp_path_factory.mktemp("stored")
    model.save_pretrained(path)
    return path


def loaded(path, dtype, where=CPU):
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(path)
    return load_model("causal", path, config=config, dtype=dtype, code="", device=where)


def test_a_model_in_use_is_not_loaded_again(stored):
    from transformers import AutoConfig

    def shared(dtype="float32", digest="a"):
        config = AutoConfig.from_pretrained(stored)
        return shared_model(
            "causal",
            stored,
            name="",
            config=config,
            dtype=dtype,
            code="",
            digest=digest,
            device=CPU,
        )

    first, second = shared(), shared()
    assert second is first
    assert shared("bfloat16") is not first
    # Another model has come to the same place.
    assert shared(digest="b") is not first
    gone = weakref.ref(first)
    del first, second
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_every_tensor_goes_to_the_device(stored, dtype):
    """To one that holds no data, where there is no GPU; whether files are mapped or read."""
    model, told = loaded(stored, dtype, torch.device("meta"))
    assert not told["missing_keys"]
    assert {t.device.type for t in (*model.parameters(), *model.buffers())} == {"meta"}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_loaded_model_is_that_of_transformers(stored, dtype):
    import torch
    from transformers import AutoModelForCausalLM

    reference = AutoModelForCausalLM.from_pretrained(stored, dtype=getattr(torch, dtype))
    model, loading = loaded(stored, dtype)
    assert not loading["missing_keys"]
    assert model.config._attn_implementation == reference.config._attn_implementation
    assert (
        model.generation_config.eos_token_id == reference.generation_config.eos_token_id == [7, 9]
    )
    theirs = dict(reference.state_dict())
    ours = dict(model.state_dict())
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    assert all(ours[name].dtype == theirs[name].dtype for name in theirs)
    ids = torch.tensor([[1, 2, 3]])
    with torch.inference_mode():
        assert torch.equal(model(ids).logits, reference.eval()(ids).logits)


def test_casting_while_loading_takes_no_second_copy_of_the_weights(stored):
    def load():
        load.model = loaded(stored, "float32")

    rise = device.peak_above(device.prepare(SimpleNamespace(threads=0, memory=0)), load)
    if rise is None:
        pytest.skip("unknown on this system")
    weights = sum(p.numel() * p.element_size() for p in load.model[0].parameters())
    assert weights > 120 * MIB
    # Files that are mapped while they are cast add 64 MiB; the tensors in flight are 2 MiB each.
    assert rise < weights + 32 * MIB


def test_the_least_budget_has_room_for_the_tensors_that_are_cast(stored):
    # By hand: all matrices of a feed-forward layer have 512 x 2048 numbers, 2 MiB in bf16.
    assert model_files.loading_bytes(stored, "float32") == 4 * 2 * MIB
    assert model_files.loading_bytes(stored, "bfloat16") == 0
    assert model_files.ordering_bytes(stored) == 2 * MIB
    weights = device.weight_bytes(model_files.parameters(stored), "float32")
    plain = device.least_memory(weights, gpu=False)
    assert device.least_memory(weights, gpu=False, loading=64 * MIB) == plain
    assert device.least_memory(weights, gpu=False, loading=1064 * MIB) == plain + 1000 * MIB
    assert device.least_memory(weights, gpu=True, loading=1064 * MIB) == weights
    assert device.as_budget(MIB + 1) == "2MiB"


def test_shards_are_found_by_their_index_and_files_beside_them_are_not_read(stored, tmp_path):
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(stored)
    model.save_pretrained(tmp_path, max_shard_size="20MB")
    files = model_files.weight_files(tmp_path)
    assert len(files) > 2
    (tmp_path / "consolidated.safetensors").write_bytes(b"another form of the same")
    assert model_files.weight_files(tmp_path) == files
    assert model_files.are_cast(files, "float32")
    ours, _ = loaded(tmp_path, "float32")
    assert len(list(ours.parameters())) == len(list(model.parameters()))
    files[0].unlink()
    assert model_files.weight_files(tmp_path) == []


def most_at_once(folder, asked, expected):
    """The most of some loads that are under way at the same time, of which so many are expected."""
    changing, enough = threading.Lock(), threading.Event()
    together, seen = [], []

    def load(gpus, weights, always):
        GPUS.names = gpus
        with loading_turn(weights, folder, always=always):
            with changing:
                together.append(1)
                seen.append(len(together))
                if len(together) >= expected:
                    enough.set()
            assert enough.wait(60)
            time.sleep(0.1)  # others that wrongly do not wait come
            with changing:
                together.pop()

    loads = [threading.Thread(target=load, args=one) for one in asked]
    for one in loads:
        one.start()
    for one in loads:
        one.join()
    assert len(seen) == len(asked)
    return max(seen)


class Environment(dict):
    """The environment of a process, of which each thread is one here."""

    def get(self, name, default=None):
        return GPUS.names if name == "CUDA_VISIBLE_DEVICES" else super().get(name, default)


GPUS = threading.local()
EIGHT = [str(number) for number in range(8)]
# GPUs that each load sees, weights in units of LARGE, whether on vLLM, free memory in such units, and how
# many load at the same time.
TURNS = {
    "vLLM on GPUs of its own": (EIGHT, 0.1, True, 0, 8),
    "large models on GPUs of their own": (EIGHT, 2, True, 16, 8),
    "large models without vLLM": (EIGHT, 2, False, 16, 8),
    "more than memory holds": (EIGHT, 2, True, 7, 3),
    "one that memory does not hold": (EIGHT[:3], 2, False, 1, 1),
    "vLLM on one GPU": (["0", "0", " 0"], 0.1, True, 9, 1),
    "large ones on one GPU": (["MIG-1/2"] * 3, 1, False, 9, 1),
    "small ones": (["0"] * 3, 0.9, False, 0, 3),
    "several GPUs, of which they share one": (["0,1", "2,1", "2, 0"], 1, True, 9, 1),
    "several GPUs, of which they share none": (["1,0", "3,2"], 1, True, 9, 2),
    "all GPUs": ([None, "1", None], 1, True, 9, 1),
    "no GPU": ([""] * 3, 1, False, 9, 1),
    "vLLM without a GPU": (["-1"] * 3, 0.1, True, 9, 1),
}


@pytest.mark.parametrize("what", TURNS)
def test_loads_wait_for_their_gpus_and_for_memory_alone(what, tmp_path, monkeypatch):
    gpus, size, always, free, most = TURNS[what]
    monkeypatch.setattr(os, "environ", Environment(os.environ))
    monkeypatch.setattr(model_files, "gpu_count", lambda: 2 if None in gpus else 0)
    monkeypatch.setattr(model_files, "status_bytes", lambda *of: free * LARGE)
    monkeypatch.setattr(model_files, "machine_memory", lambda: 99 * LARGE)
    asked = [(seen, int(size * LARGE), always) for seen in gpus]
    assert most_at_once(tmp_path, asked, most) == most


def test_a_control_groups_limit_bounds_what_loads_together(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "environ", Environment(os.environ))
    monkeypatch.setattr(model_files, "machine_memory", lambda: 2 * LARGE)
    assert most_at_once(tmp_path, [(gpu, LARGE, False) for gpu in EIGHT[:3]], 2) == 2


def test_a_lock_that_cannot_be_made_stops_nobody(tmp_path):
    with loading_turn(LARGE, tmp_path / "missing"):
        pass


CODE = """
from pathlib import Path
from transformers import LlamaConfig, LlamaForCausalLM

Path({marker!r}).write_text("ran")


class ForeignConfig(LlamaConfig):
    model_type = "foreign"


class ForeignForCausalLM(LlamaForCausalLM):
    config_class = ForeignConfig
"""


def change(file, **values):
    file.write_text(json.dumps(json.loads(file.read_text()) | values))


@pytest.fixture
def marker(tmp_path):
    return tmp_path / "marker"


@pytest.fixture
def foreign(tiny_t5, tmp_path, marker, monkeypatch):
    """A decoder-only model of a type that transformers does not know, and its code."""
    import torch
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM, dynamic_module_utils

    # transformers copies code that it runs to a folder of the user's.
    monkeypatch.setattr(dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path / "modules"))
    path = tmp_path / "foreign"
    torch.manual_seed(3)
    config = LlamaConfig(
        vocab_size=100, hidden_size=32, intermediate_size=48, num_hidden_layers=1,
        num_attention_heads=4, max_position_embeddings=4096, bos_token_id=0, eos_token_id=1,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(path)
    AutoTokenizer.from_pretrained(tiny_t5).save_pretrained(path)
    change(
        path / "config.json",
        model_type="foreign",
        architectures=["ForeignForCausalLM"],
        auto_map={
            "AutoConfig": "foreign.ForeignConfig",
            "AutoModelForCausalLM": "foreign.ForeignForCausalLM",
        },
    )
    (path / "foreign.py").write_text(CODE.format(marker=str(marker)))
    return path


def specified(path, **options):
    return readers.specify(
        str(path), augmentation="in-prompt", task="short-answer", dtype="float32", **options
    )[0]


def test_a_reader_that_needs_code_is_refused_whatever_is_typed(
    foreign, files, marker, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n" * 100))
    more = ["--reader", foreign, "--actors", 0, "--store", tmp_path / "store"]
    assert evaluate(files, *more) == 2
    as_expected(capsys.readouterr().err.splitlines())
    assert not marker.exists()


def test_with_the_flag_it_warns_and_reads(foreign, files, marker, tmp_path, capsys):
    more = ["--reader", foreign, "--actors", 0, "--store", tmp_path / "store", "--dtype", "float32"]
    assert evaluate(files, *more, "--trust-remote-code", "--k", 2, "--resamples", 100) == 0
    as_expected([x for x in capsys.readouterr().err.splitlines() if "Python code" in x])
    assert marker.exists()
    summary = json.loads((files["out"] / "summary.json").read_text())
    assert summary["reader"]["code_sha256"] == code_digest(foreign)


def test_what_actors_call_runs_the_agreed_code_and_no_other(foreign, marker):
    spec = specified(foreign, trust_remote_code=True)
    with refused("model.code"):
        readers.load(replace(spec, code=""))
    assert not marker.exists()
    (foreign / "foreign.py").write_text((foreign / "foreign.py").read_text() + "\nX = 1\n")
    with pytest.raises(ReadError) as caught:
        readers.load(spec)
    as_expected(str(caught.value))
    assert not marker.exists()
    changed = specified(foreign, trust_remote_code=True)
    assert changed.fingerprint != spec.fingerprint != replace(spec, code="").fingerprint
    assert changed.weights == spec.weights


def test_code_that_is_not_needed_does_not_run_and_changes_no_key(tiny_t5, tmp_path, marker):
    import shutil

    path = shutil.copytree(tiny_t5, tmp_path / "t5")
    before = specified(path)
    assert before.code == ""
    assert specified(path, trust_remote_code=True) == before  # it names none
    (path / "evil.py").write_text(CODE.format(marker=str(marker)))
    change(path / "config.json", auto_map={"AutoModelForSeq2SeqLM": "evil.Evil"})
    change(path / "tokenizer_config.json", auto_map={"AutoTokenizer": ["evil.Evil", None]})
    readers.load(specified(path))
    assert not marker.exists()


def test_code_of_another_model_is_refused(foreign):
    auto_map = {"AutoConfig": "someone/else--code.Config"}
    change(foreign / "config.json", auto_map=auto_map)
    with refused("model.foreign"):
        specified(foreign, trust_remote_code=True)


def test_an_encoder_runs_agreed_code_alone(tmp_path, marker):
    path = save_tiny_encoder(tmp_path / "encoder")
    plain = encoders.specify(encoders.EncoderOptions(encoder=str(path)))
    (path / "evil.py").write_text(CODE.format(marker=str(marker)))
    change(path / "config.json", auto_map={"AutoModel": "evil.Evil"})
    from engine.retrieval.encoder import Encoder

    Encoder(encoders.specify(encoders.EncoderOptions(encoder=str(path))))
    assert not marker.exists()
    trusted = encoders.EncoderOptions(encoder=str(path), trust_remote_code=True)
    spec = encoders.specify(trusted)
    assert spec.code == code_digest(path)
    assert plain.code == ""
    assert spec.fingerprint != replace(spec, code="").fingerprint
    (path / "evil.py").write_text("other")
    with refused("encoder.other"):
        Encoder(spec)
    change(path / "config.json", model_type="foreign")
    with refused("model.code"):
        encoders.specify(encoders.EncoderOptions(encoder=str(path)))
    assert not marker.exists()


def test_files_that_cannot_be_read_name_no_code(tmp_path):
    assert agreed_code(tmp_path, "x", trusted=True) == ""
    (tmp_path / "config.json").write_text("[")
    assert agreed_code(tmp_path, "x", trusted=True) == ""
