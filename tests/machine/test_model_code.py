"""Python code of models: it runs only where the user agreed, and only as it was then."""

import io
import json
from dataclasses import replace

import pytest

from engine.machine.model_code import agreed_code, code_digest
from engine.messages.errors import InputError, ReadError
from engine.reading import readers
from engine.retrieval import encoders
from tests.commands import evaluate
from tests.retrieval.tiny_encoder import save_tiny_encoder

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


def specify(path, **options):
    return readers.specify(
        str(path), augmentation="in-prompt", task="short-answer", dtype="float32", **options
    )[0]


def test_a_reader_that_needs_code_is_refused_whatever_is_typed(
    foreign, files, marker, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n" * 100))
    more = ["--reader", foreign, "--actors", 0, "--store", tmp_path / "store"]
    assert evaluate(files, *more) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "cannot be loaded without running Python code of its own" in line
    assert "--trust-remote-code" in line
    assert not marker.exists()


def test_with_the_flag_it_warns_and_reads(foreign, files, marker, tmp_path, capsys):
    more = ["--reader", foreign, "--actors", 0, "--store", tmp_path / "store", "--dtype", "float32"]
    assert evaluate(files, *more, "--trust-remote-code", "--k", 2, "--resamples", 100) == 0
    assert "erag: warning: --trust-remote-code runs Python code" in capsys.readouterr().err
    assert marker.exists()
    summary = json.loads((files["out"] / "summary.json").read_text())
    assert summary["reader"]["code_sha256"] == code_digest(foreign)


def test_what_actors_call_runs_the_agreed_code_and_no_other(foreign, marker):
    spec = specify(foreign, trust_remote_code=True)
    with pytest.raises(InputError, match="Python code of its own.*`trust_remote_code`"):
        readers.load(replace(spec, code=""))
    assert not marker.exists()
    (foreign / "foreign.py").write_text((foreign / "foreign.py").read_text() + "\nX = 1\n")
    with pytest.raises(ReadError, match="the code of .* is not that which was agreed to"):
        readers.load(spec)
    assert not marker.exists()
    changed = specify(foreign, trust_remote_code=True)
    assert changed.fingerprint != spec.fingerprint != replace(spec, code="").fingerprint
    assert changed.weights == spec.weights


def test_code_that_is_not_needed_does_not_run_and_changes_no_key(tiny_t5, tmp_path, marker):
    import shutil

    path = shutil.copytree(tiny_t5, tmp_path / "t5")
    before = specify(path)
    assert before.code == ""
    assert specify(path, trust_remote_code=True) == before  # it names none
    (path / "evil.py").write_text(CODE.format(marker=str(marker)))
    change(path / "config.json", auto_map={"AutoModelForSeq2SeqLM": "evil.Evil"})
    change(path / "tokenizer_config.json", auto_map={"AutoTokenizer": ["evil.Evil", None]})
    readers.load(specify(path))
    assert not marker.exists()


def test_code_of_another_model_is_refused(foreign):
    auto_map = {"AutoConfig": "someone/else--code.Config"}
    change(foreign / "config.json", auto_map=auto_map)
    with pytest.raises(InputError, match=r"outside its own files \(someone/else--code.Config\)"):
        specify(foreign, trust_remote_code=True)


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
    with pytest.raises(InputError, match="its code differs"):
        Encoder(spec)
    change(path / "config.json", model_type="foreign")
    with pytest.raises(InputError, match="`trust_remote_code`"):
        encoders.specify(encoders.EncoderOptions(encoder=str(path)))
    assert not marker.exists()


def test_files_that_cannot_be_read_name_no_code(tmp_path):
    assert agreed_code(tmp_path, "x", trusted=True) == ""
    (tmp_path / "config.json").write_text("[")
    assert agreed_code(tmp_path, "x", trusted=True) == ""
