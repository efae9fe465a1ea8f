"""Layers that reuse tensors, and weights in oneDNN's order, against transformers' own."""

import copy
from dataclasses import replace

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from engine.reading.models import layers
from engine.reading.models.causal import CausalReader
from engine.reading.models.layers import order_weights, reuse_tensors
from engine.reading.readers import load
from tests.conftest import needs_steady_bf16

SHAPE = {
    "vocab_size": 96, "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 2,
    "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 8, "pad_token_id": 0,
}  # fmt: skip


def random_model(family, dtype, **more):
    torch.manual_seed(1)
    config = AutoConfig.for_model(family, **(SHAPE | more))
    model = AutoModelForCausalLM.from_config(config, dtype=getattr(torch, dtype)).eval()
    for name, weight in model.named_parameters():
        if "norm" in name or name.endswith("bias"):  # else 1 or 0, by which much is the same
            torch.nn.init.normal_(weight)
    return model


def kinds(model):
    return {type(module).__name__ for module in model.modules()}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("family", "ours", "theirs"),
    [
        ("llama", {"_FeedForward", "_Norm"}, set()),
        ("mistral", {"_FeedForward", "_Norm"}, set()),
        ("qwen2", {"_FeedForward", "_Norm"}, set()),
        ("qwen3", {"_FeedForward", "_Norm"}, set()),  # with norms of queries and keys
        ("smollm3", {"_FeedForward", "_Norm"}, set()),
        ("granite", {"_FeedForward", "_Norm"}, set()),
        ("gemma2", {"_FeedForward"}, {"Gemma2RMSNorm"}),
        ("olmo2", {"_FeedForward"}, {"Olmo2RMSNorm"}),
        ("gemma3_text", {"_FeedForward"}, {"Gemma3RMSNorm"}),
        ("mixtral", {"_Norm"}, {"MixtralExperts"}),
        ("qwen2_moe", {"_FeedForward", "_Norm"}, {"Qwen2MoeExperts"}),  # an expert that all share
        ("phi3", {"_Norm"}, {"Phi3MLP"}),
    ],
)
def test_bits_and_weights_are_those_of_transformers(family, ours, theirs, dtype):
    check(random_model(family, dtype), ours, theirs)


def test_biases_and_an_activation_that_gives_what_it_got():
    more = {"mlp_bias": True, "attention_bias": True, "hidden_act": "linear"}
    check(random_model("llama", "float32", **more), {"_FeedForward", "_Norm"}, {"LinearActivation"})


def check(plain, ours, theirs):
    model = copy.deepcopy(plain)
    held = {name: tensor.data_ptr() for name, tensor in model.state_dict().items()}
    reuse_tensors(model)
    reuse_tensors(model)  # as a second reader of a shared model does
    assert kinds(model) & {"_FeedForward", "_Norm"} == ours
    assert theirs <= kinds(model)
    assert {name: tensor.data_ptr() for name, tensor in model.state_dict().items()} == held
    with torch.inference_mode():
        for tokens in (1, 2, 64, 331):
            ids = torch.randint(SHAPE["vocab_size"], (1, tokens))
            assert torch.equal(model(ids).logits, plain(ids).logits)


def test_norms_whose_weights_have_another_precision_are_left():
    plain = random_model("llama", "bfloat16")
    plain.model.norm.float()
    reuse_tensors(plain)
    assert type(plain.model.norm).__name__ == "LlamaRMSNorm"


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU reads here")
def test_a_reader_on_a_cpu_makes_no_further_tensor_in_its_feed_forward_layers(bundled_spec):
    reader = load(bundled_spec)
    layer = reader._model._model.model.layers[0].mlp
    places = []
    hooks = [
        layer.gate_proj.register_forward_hook(lambda _, __, made: places.append(made.data_ptr())),
        layer.down_proj.register_forward_pre_hook(lambda _, got: places.append(got[0].data_ptr())),
    ]
    try:
        reader.read([["a question"]])
    finally:  # others share the model
        for hook in hooks:
            hook.remove()
    assert len(places) >= 2
    assert places[::2] == places[1::2]


def held(model):
    return sum(t.numel() * t.element_size() for t in (*model.parameters(), *model.buffers()))


@needs_steady_bf16
@pytest.mark.parametrize(("dtype", "ordered"), [("bfloat16", True), ("float32", False)])
def test_a_reader_on_a_cpu_orders_its_weights_in_bf16(dtype, ordered, bundled_spec, tmp_path):
    model = random_model("llama", dtype, tie_word_embeddings=True, vocab_size=49_152)
    model.save_pretrained(tmp_path)
    AutoTokenizer.from_pretrained(bundled_spec.path).save_pretrained(tmp_path)
    spec = replace(bundled_spec, path=str(tmp_path), dtype=dtype, shared_prefix="")
    reader = CausalReader(spec)
    modules = reader._model._model.modules()
    assert any(isinstance(module, layers._OneDnnLinear) for module in modules) is ordered


@needs_steady_bf16
@pytest.mark.parametrize(
    ("family", "tied"),
    [
        ("llama", True),
        ("qwen2", False),  # with biases
    ],
)
def test_ordered_weights_give_the_same_bits_and_take_the_same_memory(family, tied):
    plain = random_model(family, "bfloat16", tie_word_embeddings=tied)
    ordered = copy.deepcopy(plain)
    order_weights(ordered)
    order_weights(ordered)  # as a second reader of a shared model does
    assert sum(isinstance(m, torch.nn.Linear) for m in ordered.modules()) == 1  # the output layer
    assert held(ordered) == held(plain)
    with torch.inference_mode():
        for tokens in (2, 5, 64, 331):
            ids = torch.randint(SHAPE["vocab_size"], (1, tokens))
            assert torch.equal(ordered(ids).logits, plain(ids).logits)
