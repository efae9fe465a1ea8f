"""Vectors of encoders of every kind, against sentence-transformers with the same files."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from transformers import Gemma3TextConfig, Gemma3TextModel

from engine.messages.errors import EncodeError
from engine.retrieval.encoder import Encoder
from engine.retrieval.encoders import PassageEncoderOptions, locate, specify
from tests.expected import refused
from tests.retrieval.tiny_encoder import (
    PICKLE,
    add_dense,
    configure,
    save_tiny_encoder,
    save_tiny_qwen3,
    write_json,
)

# Texts of many lengths, so that batches are padded; the last is truncated.
TEXTS = [" ".join(f"w{(i * j) % 190}" for j in range(1, 2 + i)) for i in range(30)] + ["w5 " * 99]


def specified(path, **options):
    return specify(PassageEncoderOptions(str(path), dtype="float32", **options))


def bert(pooling, **options):
    return lambda folder: save_tiny_encoder(folder, pooling=pooling, **options)


def dense(folder):
    """Two layers that make a vector longer and shorter, with weights in both kinds of file."""
    save_tiny_encoder(folder)
    add_dense(folder, 48, activation="linear.Identity", bias=False)
    add_dense(folder, 16, activation="activation.Tanh", bias=True, pickled=True)
    return folder


def embedding_gemma(folder):
    """A decoder that attends both ways, with the mean of its tokens and two layers."""
    save_tiny_qwen3(folder)
    config = Gemma3TextConfig(
        vocab_size=210, hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=8, intermediate_size=64, max_position_embeddings=64,
        initializer_range=0.5, sliding_window=8, use_bidirectional_attention=True, pad_token_id=0,
    )  # fmt: skip
    torch.manual_seed(7)
    Gemma3TextModel(config).save_pretrained(folder)
    pooling = {"embedding_dimension": 32, "pooling_mode": "mean", "include_prompt": True}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    add_dense(folder, 96, activation="linear.Identity", bias=False)
    add_dense(folder, 32, activation="linear.Identity", bias=False)
    return folder


def prompted(pooling, make=save_tiny_encoder, **options):
    """A model whose prompts do not count where vectors are pooled, as INSTRUCTOR's."""

    def save(folder):
        make(folder, **options)
        own = {"embedding_dimension": 32, "pooling_mode": pooling, "include_prompt": False}
        write_json(folder, "1_Pooling/config", **own)
        prompts = {"query": "w1 w2 w3 ", "document": "w7 "}
        configure(folder, prompts=prompts)
        return folder

    return save


MODELS = {
    "first token": bert("cls", normalize=False),
    "mean": bert("mean", normalize=False),
    "largest": bert("max"),
    "mean over root": bert("mean_sqrt_len_tokens", normalize=False),
    "weighted mean": bert("weightedmean", normalize=False),
    "last token": bert("lasttoken"),
    "dense layers": dense,
    "decoder both ways, dense layers": embedding_gemma,
    "decoder padded left": save_tiny_qwen3,
    "decoder padded right": lambda folder: save_tiny_qwen3(folder, padding_side="right"),
    "without prompts, mean": prompted("mean"),
    "without prompts, first token": prompted("cls", normalize=False),
    "without prompts, weighted mean": prompted("weightedmean", normalize=False),
    "without prompts, decoder": prompted("mean", save_tiny_qwen3),
}


@pytest.mark.parametrize("kind", MODELS)
def test_vectors_are_those_of_sentence_transformers(kind, tmp_path):
    path = MODELS[kind](tmp_path / "model")
    spec = specified(path)
    encoder, theirs = Encoder(spec), SentenceTransformer(str(path), device="cpu")
    prefixes = theirs.prompts["query"], theirs.prompts["document"]
    assert (spec.text.query_prefix, spec.text.passage_prefix) == prefixes
    queries, passages = encoder.queries(TEXTS), encoder.encode([prefixes[1] + t for t in TEXTS])
    np.testing.assert_allclose(queries, theirs.encode_query(TEXTS), atol=1e-5)
    np.testing.assert_allclose(passages, theirs.encode_document(TEXTS), atol=1e-5)
    assert (
        np.abs(np.diff(queries, axis=0)).max(axis=1).min() > 1e-3
    )  # texts differ, and so do vectors


@pytest.mark.parametrize("named", [True, False], ids=["by name", "by files"])
@pytest.mark.parametrize("make", [save_tiny_qwen3, bert("mean", normalize=False)])
def test_of_each_vector_the_first_dimensions_are_kept(named, make, tmp_path):
    path = make(tmp_path / "model")
    if not named:
        configure(path, truncate_dim=8)
    spec = specified(f"{path}@8" if named else path)
    assert (spec.dimensions, spec.text.dimensions, spec.source) == (8, 8, str(path))
    theirs = SentenceTransformer(str(path), device="cpu", truncate_dim=8)
    expected = theirs.encode(TEXTS, normalize_embeddings=spec.text.normalize)
    np.testing.assert_allclose(Encoder(spec).encode(TEXTS), expected, atol=1e-5)
    elsewhere = replace(spec, path="")
    assert locate(replace(elsewhere, source=f"{path}@8")).path == spec.path
    with refused("encoder.other"):
        locate(replace(elsewhere, source=f"{path}@16"))


def test_dense_layers_that_were_saved_on_a_gpu_are_read_without_one(tmp_path, monkeypatch):
    path = dense(tmp_path / "model")
    before = Encoder(specified(path)).encode(["w1 w2"])
    file = path / "3_Dense" / PICKLE
    held = torch.load(file, weights_only=True)
    with monkeypatch.context() as patch:
        patch.setattr(torch.serialization, "location_tag", lambda storage: "cuda:0")
        torch.save(held, file)
    assert (Encoder(specified(path)).encode(["w1 w2"]) == before).all()


def test_dense_layers_are_part_of_what_an_encoder_is(tmp_path):
    path = dense(tmp_path / "model")
    before = specified(path)
    assert (before.dimensions, before.text.layers) == (16, ("2_Dense", "3_Dense"))
    assert specified(path, preset="minilm").text.layers == before.text.layers
    for name in ("2_Dense/model.safetensors", f"3_Dense/{PICKLE}"):
        (path / name).write_bytes(b"anything")
        spec = specified(path)
        assert spec.digest != before.digest
        with refused("encoder.layerless", path=path / "2_Dense", text=False):
            Encoder(spec)
        before = spec
    write_json(path, "2_Dense/config", in_features=31, out_features=48)
    with refused("encoder.layer"):
        specified(path)


def test_a_text_without_tokens_is_a_vector_of_its_own_or_an_error(tmp_path):
    path = save_tiny_qwen3(tmp_path / "model")
    tokenizer = json.loads((path / "tokenizer.json").read_text())
    (path / "tokenizer.json").write_text(json.dumps(tokenizer | {"post_processor": None}))
    alone, beside = (Encoder(specified(path)).encode(texts)[0] for texts in ([""], ["", "w1 w2"]))
    assert np.isfinite(alone).all()
    assert alone.shape == beside.shape == (32,)
    with pytest.raises(EncodeError, match="not finite"):
        Encoder(specified(path, pooling="max")).encode([""])
