"""Weights in oneDNN's order against the same weights as they were."""

import copy
from dataclasses import replace

import pytest
import torch
from transformers import (
    AutoTokenizer,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from engine.reading.models.causal import CausalReader
from engine.reading.models.ordered import order_weights
from tests.conftest import needs_steady_bf16

SHAPE = {
    "vocab_size": 96, "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 2,
    "num_attention_heads": 6, "num_key_value_heads": 2,
}  # fmt: skip


def random_model(config_type, model_type, *, tied):
    torch.manual_seed(1)
    return model_type(config_type(**SHAPE, tie_word_embeddings=tied)).eval()


def held(model):
    return sum(t.numel() * t.element_size() for t in (*model.parameters(), *model.buffers()))


@needs_steady_bf16
@pytest.mark.parametrize(("dtype", "ordered"), [("bfloat16", True), ("float32", False)])
def test_a_reader_on_a_cpu_orders_its_weights_in_bf16(dtype, ordered, bundled_spec, tmp_path):
    model = random_model(LlamaConfig, LlamaForCausalLM, tied=True).to(getattr(torch, dtype))
    model.save_pretrained(tmp_path)
    AutoTokenizer.from_pretrained(bundled_spec.path).save_pretrained(tmp_path)
    spec = replace(bundled_spec, path=str(tmp_path), dtype=dtype, shared_prefix="")
    reader = CausalReader(spec)
    kinds = {type(m).__name__ for m in reader._model._model.modules()}
    assert ("_Ordered" in kinds) is ordered


@needs_steady_bf16
@pytest.mark.parametrize(
    ("family", "tied"),
    [
        ((LlamaConfig, LlamaForCausalLM), True),
        ((Qwen2Config, Qwen2ForCausalLM), False),  # with biases
    ],
)
def test_ordered_weights_give_the_same_bits_and_take_the_same_memory(family, tied):
    plain = random_model(*family, tied=tied).bfloat16()
    for name, bias in plain.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(bias)
    ordered = copy.deepcopy(plain)
    order_weights(ordered)
    order_weights(ordered)  # as a second reader of a shared model does
    assert sum(isinstance(m, torch.nn.Linear) for m in ordered.modules()) == 1  # the output layer
    assert held(ordered) == held(plain)
    with torch.inference_mode():
        for tokens in (2, 5, 64, 331):
            ids = torch.randint(SHAPE["vocab_size"], (1, tokens))
            assert torch.equal(ordered(ids).logits, plain(ids).logits)
