"""What an encoder's own files say of its use, and what is refused."""

import json

import numpy as np
import pytest
import torch

from engine.errors import EncodeError, InputError
from engine.retrieval.encoders import PRESETS, specify
from tests.retrieval.tiny_encoder import save_tiny_encoder


@pytest.fixture
def tiny(tmp_path):
    return save_tiny_encoder(tmp_path / "encoder")


def test_the_bundled_encoder_is_what_its_files_say():
    text = specify("bundled").text
    assert text == PRESETS["minilm"]


def test_prompts_and_lengths_come_from_the_models_files(tiny):
    (tiny / "config_sentence_transformers.json").write_text(
        json.dumps({"prompts": {"query": "query: ", "document": "passage: "}})
    )
    (tiny / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 32}))
    text = specify(str(tiny)).text
    assert (text.query_prefix, text.passage_prefix) == ("query: ", "passage: ")
    assert text.max_tokens == 32
    (tiny / "config_sentence_transformers.json").write_text(
        json.dumps({"prompts": {"all": "x: "}, "default_prompt_name": "all"})
    )
    assert specify(str(tiny)).text.passage_prefix == "x: "


def test_a_model_never_reads_more_tokens_than_it_has_positions(tiny):
    assert specify(str(tiny), preset="minilm").text.max_tokens == 64


def test_the_newer_form_of_the_pooling_file_is_read(tiny):
    (tiny / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode": "cls"}))
    assert specify(str(tiny)).text.pooling == "cls"


def test_every_file_and_setting_that_decides_a_vector_is_in_the_fingerprint(tiny):
    one = specify(str(tiny), dtype="float32")
    others = [
        specify(str(tiny), dtype="bfloat16"),
        specify(str(tiny), dtype="float32", query_prefix="w1 "),
        specify(str(tiny), dtype="float32", pooling="cls"),
    ]
    (tiny / "README.md").write_text("a card")
    assert specify(str(tiny), dtype="float32").fingerprint == one.fingerprint
    (tiny / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode": ["mean"]}))
    others.append(specify(str(tiny), dtype="float32"))
    assert len({one.fingerprint, *(other.fingerprint for other in others)}) == 5


def refused(path, words, **options):
    with pytest.raises(InputError, match=words):
        specify(str(path), **options)


def test_what_is_no_encoder_of_a_known_kind_is_refused(tiny, tiny_t5, tmp_path):
    refused(tmp_path / "nothing", "unknown encoder")
    refused(tiny_t5, "which is no encoder")
    (tiny / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode_max_tokens": True}))
    refused(tiny, "pools by max")
    modules = json.loads((tiny / "modules.json").read_text())
    modules.append({"type": "sentence_transformers.models.Dense", "path": "3_Dense"})
    (tiny / "modules.json").write_text(json.dumps(modules))
    refused(tiny, "module Dense, which is not known")
    (tiny / "modules.json").write_text("{")
    refused(tiny, "modules.json: cannot be read")
    (tiny / "modules.json").unlink()
    refused(tiny, "pooled .it has no modules.json.")
    (tiny / "model.safetensors").rename(tiny / "pytorch_model.bin")
    refused(tiny, "holds no \\*.safetensors", preset="mean")


def test_a_model_without_some_of_its_weights_is_refused(tiny):
    from safetensors.torch import load_file, save_file

    from engine.retrieval.encoder import Encoder

    weights = load_file(tiny / "model.safetensors")
    kept = {name: tensor for name, tensor in weights.items() if "pooler" not in name}
    save_file(kept, tiny / "model.safetensors", metadata={"format": "pt"})
    Encoder(specify(str(tiny)))  # the pooler takes no part
    kept.pop("encoder.layer.1.output.dense.weight")
    save_file(kept, tiny / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(InputError, match="lacks 1 of its weights"):
        Encoder(specify(str(tiny)))


def test_vectors_that_are_no_numbers_are_refused(tiny):
    from safetensors.torch import load_file, save_file

    from engine.retrieval.encoder import Encoder

    weights = load_file(tiny / "model.safetensors")
    weights["encoder.layer.1.output.dense.weight"][0] = torch.nan
    save_file(weights, tiny / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(EncodeError, match="no numbers in float32"):
        Encoder(specify(str(tiny), dtype="float32")).encode(["w1"])


def test_little_memory_makes_smaller_batches_and_the_same_vectors(tiny):
    from dataclasses import replace

    from engine.retrieval.encoder import Encoder

    texts = [f"w{i} " * (1 + i % 20) for i in range(60)]
    spec = specify(str(tiny), dtype="float32")
    whole = Encoder(spec).encode(texts)
    single = Encoder(replace(spec, batch_tokens=1)).encode(texts)
    assert np.abs(whole - single).max() < 1e-5
