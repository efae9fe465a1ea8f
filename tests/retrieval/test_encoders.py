"""What an encoder's files specify, and which models are refused."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.messages.errors import EncodeError
from engine.retrieval.encoder import Encoder
from engine.retrieval.encoders import PRESETS, EncoderOptions, specify
from tests.expected import as_expected, refused
from tests.retrieval.tiny_encoder import PICKLE, configure, save_tiny_encoder


@pytest.fixture
def tiny(tmp_path):
    return save_tiny_encoder(tmp_path / "encoder")


def specified(path, **options):
    return specify(EncoderOptions(str(path), **options))


def test_the_bundled_encoder_is_used_as_its_files_specify():
    text = specify(EncoderOptions()).text
    assert text == PRESETS["minilm"]


def test_prompts_and_lengths_come_from_the_models_files(tiny):
    def prefixes(**given):
        configure(tiny, **given)
        text = specified(tiny).text
        return text.query_prefix, text.passage_prefix

    both = {"query": "query: ", "document": "passage: "}
    assert prefixes(prompts=both) == ("query: ", "passage: ")
    assert prefixes(prompts={"all": "x: "}, default_prompt_name="all")[1] == "x: "
    # As decoder-only encoders say that passages have none.
    none = {"query": "", "document": "", "a": "x: "}
    assert prefixes(prompts=none, default_prompt_name="a") == ("", "")
    (tiny / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 32}))
    assert specified(tiny).text.max_tokens == 32


def test_a_model_never_reads_more_tokens_than_it_has_positions(tiny):
    assert specified(tiny, preset="minilm").text.max_tokens == 64


def test_the_newer_format_of_the_pooling_file_is_read(tiny):
    (tiny / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode": "cls"}))
    assert specified(tiny).text.pooling == "cls"


def test_the_fingerprint_covers_every_file_and_setting_that_decides_a_vector(tiny):
    spec = specified(tiny, dtype="float32")
    changed = [
        specified(f"{tiny}@16", dtype="float32"),
        specified(tiny, dtype="bfloat16"),
        specified(tiny, dtype="float32", query_prefix="w1 "),
        specified(tiny, dtype="float32", pooling="cls"),
    ]
    (tiny / "README.md").write_text("a card")
    assert specified(tiny, dtype="float32").fingerprint == spec.fingerprint
    (tiny / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode": ["mean"]}))
    changed.append(specified(tiny, dtype="float32"))
    assert len({spec.fingerprint, *(other.fingerprint for other in changed)}) == 6


def is_refused(path, code, **options):
    with refused(code):
        specified(path, **options)


def test_models_that_are_not_supported_encoders_are_refused(tiny, tiny_t5, tmp_path):
    is_refused(tmp_path / "nothing", "model.unknown")
    is_refused(tiny_t5, "encoder.kind")
    is_refused(f"{tiny}@33", "encoder.dimensions")
    both = {"pooling_mode_max_tokens": True, "pooling_mode_cls_token": True}
    (tiny / "1_Pooling" / "config.json").write_text(json.dumps(both))
    is_refused(tiny, "encoder.pooling")
    modules = json.loads((tiny / "modules.json").read_text())
    for kind in (
        "sentence_transformers.models.Dense",
        "sentence_transformers.models.CNN",
        "own.Normalize",
    ):
        more = [*modules, {"type": kind, "path": "3"}]
        (tiny / "modules.json").write_text(json.dumps(more))
        is_refused(tiny, "encoder.modules")
    (tiny / "modules.json").write_text("{")
    is_refused(tiny, "model.unreadable")
    (tiny / "modules.json").unlink()
    is_refused(tiny, "encoder.unpooled")
    (tiny / "model.safetensors").rename(tiny / PICKLE)
    is_refused(tiny, "model.tensors", preset="mean")


def test_a_model_without_some_of_its_weights_is_refused(tiny):
    weights = load_file(tiny / "model.safetensors")
    kept = {name: tensor for name, tensor in weights.items() if "pooler" not in name}
    save_file(kept, tiny / "model.safetensors", metadata={"format": "pt"})
    Encoder(specified(tiny))  # the pooler is not needed
    kept.pop("encoder.layer.1.output.dense.weight")
    save_file(kept, tiny / "model.safetensors", metadata={"format": "pt"})
    with refused("model.incomplete"):
        Encoder(specified(tiny))


def test_vectors_that_are_not_finite_are_refused(tiny):
    weights = load_file(tiny / "model.safetensors")
    weights["encoder.layer.1.output.dense.weight"][0] = torch.nan
    save_file(weights, tiny / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(EncodeError) as caught:
        Encoder(specified(tiny, dtype="float32")).encode(["w1"])
    as_expected(str(caught.value))


def test_little_memory_makes_smaller_batches_and_the_same_vectors(tiny):
    texts = [f"w{i} " * (1 + i % 20) for i in range(60)]
    spec = specified(tiny, dtype="float32")
    whole = Encoder(spec).encode(texts)
    single = Encoder(replace(spec, batch_tokens=1)).encode(texts)
    assert np.abs(whole - single).max() < 1e-5


@pytest.mark.parametrize(
    ("said", "scaled"),
    [
        ({"similarity_fn_name": "cosine"}, True),
        ({"similarity_fn_name": None}, True),
        ({"similarity_fn_name": "dot"}, False),
        ({}, False),  # files of before there was a choice
        ({"similarity_fn_name": "euclidean"}, None),
        ({"similarity_fn_name": "manhattan"}, None),
        ({"similarity_fn_name": ["cosine"]}, None),
    ],
)
def test_vectors_are_compared_as_the_models_files_say(said, scaled, tiny):
    modules = json.loads((tiny / "modules.json").read_text())
    modules = [module for module in modules if not module["type"].endswith("Normalize")]
    (tiny / "modules.json").write_text(json.dumps(modules))
    configure(tiny, **said)
    if scaled is None:
        with refused("encoder.similarity"):
            specified(tiny)
    else:
        assert specified(tiny).text.normalize is scaled
    assert not specified(tiny, preset="mean").text.normalize  # as it was asked for
