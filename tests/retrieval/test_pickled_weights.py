"""bge-m3 as it is published: its own configuration, and weights in ``pytorch_model.bin``, read as tensors alone."""

import pickle
import shutil

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from sentence_transformers import SentenceTransformer

from engine.retrieval.encoder import Encoder
from engine.retrieval.encoders import EncoderOptions, Preset, specify
from tests.expected import refused
from tests.retrieval.tiny_encoder import PICKLE, save_tiny_bge_m3

WORDS = ["서울", "수도", "는", "대한민국", "의", "부산", "항구"]
TEXTS = ["서울 는 대한민국 의 수도", "부산", "부산 는 항구", "서울 서울 서울 서울 서울 서울 서울"]


@pytest.fixture
def bge_m3(tmp_path):
    return save_tiny_bge_m3(tmp_path / "bge-m3", WORDS)


def specified(path, **options):
    return specify(EncoderOptions(str(path), dtype="float32", **options))


def test_its_own_configuration_is_used(bge_m3):
    spec = specified(bge_m3)
    assert spec.text == Preset("cls", normalize=True, max_tokens=8192)
    assert spec.dimensions == 32


def test_vectors_are_those_of_sentence_transformers(bge_m3):
    vectors = Encoder(specified(bge_m3)).encode(TEXTS)
    expected = SentenceTransformer(str(bge_m3), device="cpu").encode(TEXTS)
    np.testing.assert_allclose(vectors, expected, atol=2e-6)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)


def test_vectors_are_those_of_the_same_weights_in_safetensors(bge_m3, tmp_path):
    other = tmp_path / "other"
    shutil.copytree(bge_m3, other)
    weights = torch.load(other / PICKLE, weights_only=True)
    save_file(weights, other / "model.safetensors", metadata={"format": "pt"})
    vectors = [Encoder(specified(path)).encode(TEXTS) for path in (bge_m3, other)]
    np.testing.assert_array_equal(*vectors)
    # Beside safetensors, the pickle is not read: it does not even count for what the vectors are.
    with_pickle = specified(other).digest
    (other / PICKLE).write_bytes(b"anything")
    assert specified(other).digest == with_pickle


def test_other_weights_are_another_encoder(bge_m3):
    before = specified(bge_m3)
    weights = torch.load(bge_m3 / PICKLE, weights_only=True)
    weights["embeddings.word_embeddings.weight"] += 1
    torch.save(weights, bge_m3 / PICKLE)
    assert specified(bge_m3).fingerprint != before.fingerprint
    with refused("encoder.other"):
        Encoder(before)


class Harmful:
    """What runs code when it is unpickled."""

    def __init__(self, place):
        self.place = place

    def __reduce__(self):
        return (type(self.place).touch, (self.place,))


def test_a_pickle_that_would_run_code_is_refused_and_does_not(bge_m3, tmp_path):
    weights = bge_m3 / PICKLE
    for save in (torch.save, lambda value, path: path.write_bytes(pickle.dumps(value))):
        save({"x": Harmful(tmp_path / "ran")}, weights)
        with refused("model.tensors") as caught:
            specified(bge_m3)
        assert "\n" not in str(caught.value)
        assert not (tmp_path / "ran").exists()


def test_damaged_and_missing_weights_are_refused(bge_m3):
    weights = bge_m3 / PICKLE
    whole = torch.load(weights, weights_only=True)
    torch.save([1], weights)
    with refused("model.tensors"):
        specified(bge_m3)
    torch.save({k: v for k, v in whole.items() if "encoder.layer.1" not in k}, weights)
    with refused("model.incomplete"):
        Encoder(specified(bge_m3))
    weights.write_bytes(b"PK" + bytes(100))
    with refused("model.tensors"):
        specified(bge_m3)
    weights.unlink()
    with refused("encoder.weights"):
        specified(bge_m3)
