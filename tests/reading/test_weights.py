import json
import shutil

import pytest

from engine.errors import InputError
from engine.reading import readers, weights


def test_names_that_lead_nowhere(tmp_path):
    with pytest.raises(InputError, match="unknown reader 'no/such-model'"):
        weights.resolve("no/such-model")
    with pytest.raises(InputError, match="unknown reader 'x y'"):
        weights.resolve("x y")
    with pytest.raises(InputError, match="no such file"):
        weights.resolve(str(tmp_path / "m.gguf"))
    with pytest.raises(InputError, match=r"holds no config\.json"):
        weights.resolve(str(tmp_path))
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(InputError, match="cannot be read"):
        weights.resolve(str(tmp_path))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    (tmp_path / "pytorch_model.bin").write_bytes(b"pickle")
    with pytest.raises(InputError, match=r"holds no \*\.safetensors"):
        weights.resolve(str(tmp_path))


def test_other_encoder_decoders_are_refused(tmp_path):
    config = {"model_type": "bart", "is_encoder_decoder": True}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "model.safetensors").write_bytes(b"")
    with pytest.raises(InputError, match="a 'bart' model; encoder-decoder readers are mt5, t5"):
        weights.resolve(str(tmp_path))


def test_the_digest_follows_the_weights(tiny_t5, tmp_path):
    copy = shutil.copytree(tiny_t5, tmp_path / "copy")
    assert weights.resolve(str(copy)).digest == weights.resolve(str(tiny_t5)).digest
    data = bytearray((copy / "model.safetensors").read_bytes())
    data[-1] ^= 1
    (copy / "model.safetensors").write_bytes(data)
    assert weights.resolve(str(copy)).digest != weights.resolve(str(tiny_t5)).digest


def test_the_bundled_reader_is_causal_and_converted_once(bundled_spec):
    assert bundled_spec.architecture == "causal"
    assert weights.resolve("bundled").path == weights.resolve(str(weights.bundled_file())).path


def test_fid_needs_an_encoder_decoder(tiny_t5):
    with pytest.raises(InputError, match="decoder-only and cannot do Fusion-in-Decoder"):
        readers.specify("bundled", augmentation="fid", task="short-answer")
    spec, prompt = readers.specify(str(tiny_t5), augmentation="fid", task="short-answer")
    assert (spec.architecture, spec.max_input_tokens, prompt.fused) == (
        "encoder-decoder",
        250,
        True,
    )
