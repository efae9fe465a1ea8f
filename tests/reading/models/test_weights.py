import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import transformers
from transformers import AutoTokenizer, BartConfig
from transformers.utils import ADAPTER_CONFIG_NAME, WEIGHTS_NAME

from engine.machine import model_files
from engine.messages.errors import ReadError
from engine.reading import readers
from engine.reading.models import weights
from engine.sources import bundled
from tests.expected import as_expected, refused


def test_names_of_models_that_are_not_here_are_refused(tmp_path):
    for name in ("no/such-model", "x y", "gpt2"):
        with refused("model.unknown"):
            weights.resolve(name)
    with refused("function.nameless"):
        weights.resolve("my.py")
    for name in ("gpt-4o", "o3-mini", "claude-sonnet-4"):
        with refused("model.api"):
            weights.resolve(name)
    with refused("files.missing"):
        weights.resolve(str(tmp_path / "m.gguf"))
    with refused("model.unconfigured"):
        weights.resolve(str(tmp_path))
    (tmp_path / "config.json").write_text("{")
    with refused("model.unreadable"):
        weights.resolve(str(tmp_path))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    (tmp_path / WEIGHTS_NAME).write_bytes(b"pickle")
    with refused("model.weightless"):
        weights.resolve(str(tmp_path))


def test_other_encoder_decoders_are_refused(tmp_path):
    BartConfig().save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"")
    with refused("model.kind"):
        weights.resolve(str(tmp_path))


def test_the_digest_follows_the_weights(tiny_t5, tmp_path):
    copy = shutil.copytree(tiny_t5, tmp_path / "copy")
    assert weights.resolve(str(copy)).digest == weights.resolve(str(tiny_t5)).digest
    data = bytearray((copy / "model.safetensors").read_bytes())
    data[-1] ^= 1
    (copy / "model.safetensors").write_bytes(data)
    assert weights.resolve(str(copy)).digest != weights.resolve(str(tiny_t5)).digest


def test_the_bundled_reader_is_causal_and_converted_once(bundled_spec, monkeypatch):
    assert bundled_spec.architecture == "causal"

    def converted_again(*_, **__):
        raise AssertionError("converted again")

    monkeypatch.setattr("transformers.AutoModelForCausalLM.from_pretrained", converted_again)
    assert str(weights.resolve("bundled").path) == bundled_spec.path


def test_stored_reads_of_the_bundled_reader_are_still_found(bundled_spec):
    """Its header says that no begin token is added: its files are what they were before that was looked at."""
    digest = "6a16bb8f3779fc63f3d1b28d60ebccfa88b457d37939f010e53a6959d43187f2"
    assert (
        bundled_spec.weights == digest or transformers.__version__ != "5.19.0"
    )  # which files name
    assert not bundled_spec.begun
    assert AutoTokenizer.from_pretrained(bundled_spec.path)("")["input_ids"] == []


def test_models_without_a_generative_head_are_refused(tmp_path):
    (tmp_path / "config.json").write_text(
        json.dumps({"model_type": "bert", "architectures": ["BertModel"]})
    )
    (tmp_path / "model.safetensors").write_bytes(b"")
    with refused("model.textless"):
        weights.resolve(str(tmp_path))


@pytest.mark.parametrize("whole", [True, False])
def test_adapters_are_refused_and_not_left_out(tmp_path, whole):
    for name in (ADAPTER_CONFIG_NAME, "adapter_model.safetensors"):
        (tmp_path / name).write_bytes(b"{}")
    if whole:
        (tmp_path / "config.json").write_text('{"model_type": "llama"}')
        (tmp_path / "model.safetensors").write_bytes(b"")
    with refused("model.adapter"):
        weights.resolve(str(tmp_path))


def test_models_with_missing_weights_are_refused(tiny_t5, tmp_path):
    from safetensors.torch import load_file, save_file

    copy = shutil.copytree(tiny_t5, tmp_path / "copy")
    tensors = load_file(copy / "model.safetensors")
    name = next(n for n in tensors if "layer.0.SelfAttention.q" in n)
    del tensors[name]
    save_file(tensors, copy / "model.safetensors", metadata={"format": "pt"})
    spec, _ = readers.specify(str(copy), augmentation="fid", task="short-answer")
    with refused("model.incomplete"):
        readers.load(spec)


def test_damaged_weights_are_refused_in_one_line(tiny_t5, tmp_path):
    copy = shutil.copytree(tiny_t5, tmp_path / "copy")
    weights_file = copy / "model.safetensors"
    whole = weights_file.read_bytes()
    weights_file.write_bytes(b"garbage that is not a safetensors file")
    with refused("model.safetensors"):
        readers.specify(str(copy), augmentation="fid", task="short-answer")
    weights_file.write_bytes(whole[: len(whole) // 2])  # its header is whole
    spec, _ = readers.specify(str(copy), augmentation="fid", task="short-answer")
    with refused("model.unloadable", path=copy, text=False):
        readers.load(spec)


def test_weights_that_changed_since_the_plan_are_refused(tiny_t5):
    spec, _ = readers.specify(str(tiny_t5), augmentation="fid", task="short-answer")
    with pytest.raises(ReadError) as caught:
        readers.load(replace(spec, weights="0" * 64))
    as_expected(str(caught.value))


def test_a_budget_that_cannot_hold_the_weights_is_refused(tiny_t5):
    from transformers import T5ForConditionalGeneration

    model = T5ForConditionalGeneration.from_pretrained(tiny_t5)
    assert model_files.parameters(tiny_t5) == sum(p.numel() for p in model.parameters())
    with refused("settings.memory"):
        given = {"augmentation": "fid", "task": "short-answer", "dtype": "float32"}
        readers.specify(str(tiny_t5), **given, memory=100 * 2**20)


def test_fid_needs_an_encoder_decoder(tiny_t5):
    with refused("reader.fid"):
        readers.specify("bundled", augmentation="fid", task="short-answer")
    spec, prompt = readers.specify(str(tiny_t5), augmentation="fid", task="short-answer")
    assert (spec.architecture, spec.max_input_tokens, prompt.fused) == (
        "encoder-decoder",
        250,
        True,
    )


@pytest.mark.slow
def test_a_gguf_file_is_converted_alike_with_and_without_a_hub(bundled_spec, tmp_path):
    # Stored reads are named by the digest of what it is converted to.
    code = (
        "import sys; from pathlib import Path; from engine.sources.bundled import reader_file; "
        "from engine.reading.models.conversion import convert_gguf; convert_gguf(reader_file(), Path(sys.argv[1]))"
    )
    environment = os.environ | {"HF_HUB_OFFLINE": "0"}
    subprocess.run([sys.executable, "-c", code, tmp_path], check=True, env=environment)
    of_command = sorted(Path(bundled_spec.path).iterdir())
    assert [path.name for path in sorted(tmp_path.iterdir())] == [path.name for path in of_command]
    for path in of_command:
        assert (tmp_path / path.name).read_bytes() == path.read_bytes(), path.name


@pytest.mark.parametrize("length", [0, 20, 1_000, 200_000])
def test_a_gguf_file_that_was_cut_is_refused_in_one_line(tmp_path, monkeypatch, length):
    monkeypatch.setenv("ERAG_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "m.gguf"
    with bundled.reader_file().open("rb") as stream:
        path.write_bytes(stream.read(length))
    with refused("model.unconvertible", path=path, text=False):
        weights.resolve(str(path))
    assert not list((tmp_path / "cache" / "readers").iterdir())


def test_a_reader_without_a_name_is_refused():
    for name in ("", " ", "\0"):
        with refused("settings.reader"):
            weights.resolve(name)
