"""Fusion-in-Decoder on every kind of T5, and on each the layout of Fusion-in-Decoder's own code."""

import pytest
import torch
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer
from transformers.modeling_outputs import BaseModelOutput

from engine.machine import model_files
from engine.reading import readers
from engine.reading.models import weights
from tests.reading.models import t5_family

NEW_TOKENS = 16
TEXTS = [" ".join(f"w{(7 * i + 3 * j * j) % 97}" for j in range(2 + 11 * i)) for i in range(5)]
READS = [TEXTS[:1], TEXTS, TEXTS[3:], [TEXTS[4]], TEXTS[1:3], [TEXTS[2], TEXTS[0]], TEXTS[::-1]]


@pytest.fixture(scope="module", params=list(t5_family.KINDS))
def plain(request, tiny_t5, tmp_path_factory):
    return t5_family.make(request.param, tmp_path_factory.mktemp(request.param), tiny_t5)


@pytest.fixture(scope="module")
def expected(plain):
    """Each read alone: every input encoded by itself, the states end to end, transformers' generate."""
    tokenizer = AutoTokenizer.from_pretrained(plain)
    model = AutoModelForSeq2SeqLM.from_pretrained(plain).eval()
    outputs = []
    with torch.inference_mode():
        for texts in READS:
            states = [
                model.get_encoder()(**tokenizer(text, return_tensors="pt")).last_hidden_state
                for text in texts
            ]
            tokens = model.generate(
                encoder_outputs=BaseModelOutput(last_hidden_state=torch.cat(states, dim=1)),
                max_new_tokens=NEW_TOKENS,
                do_sample=False,
                num_beams=1,
            )
            outputs.append(tokenizer.decode(tokens[0], skip_special_tokens=True))
    return outputs


def read(directory):
    spec, _ = readers.specify(
        str(directory), augmentation="fid", task="short-answer", dtype="float32"
    )
    assert spec.max_new_tokens == NEW_TOKENS
    return [output.output for output in readers.load(spec).read(READS)]


def test_models_differ_in_what_makes_their_kind(plain):
    model = AutoModelForSeq2SeqLM.from_pretrained(plain)
    kind = model.config.model_type
    tied = model.lm_head.weight is model.shared.weight
    gated = hasattr(model.encoder.block[0].layer[1].DenseReluDense, "wi_0")
    assert (kind, tied, gated) in {
        ("t5", True, False),
        ("t5", False, True),
        ("mt5", False, True),
        ("umt5", False, True),
    }
    later = model.encoder.block[1].layer[0].SelfAttention.has_relative_attention_bias
    assert later == (kind == "umt5")  # a bias in every layer


def test_fusion_equals_encoding_apart_and_generate(plain, expected):
    assert len(set(expected)) > 4  # random models, but no constant ones
    assert read(plain) == expected


@pytest.mark.parametrize("legacy_zip", [False, True])
def test_the_original_layout_gives_the_same_outputs(plain, expected, tiny_t5, tmp_path, legacy_zip):
    original = t5_family.make_original(plain, tmp_path / "fid", legacy_zip=legacy_zip)
    t5_family.add_tokenizer(original, tiny_t5)
    assert read(original) == expected
    found = weights.resolve(str(original))
    assert model_files.parameters(found.path) == model_files.parameters(plain)
