"""Replace layers of decoder-only models by faster ones for CPUs, with the same bits as transformers.

Norms and feed-forward layers reuse their tensors, since the system clears the memory of new ones: a feed-forward
layer allocates three instead of five, a norm two instead of three (in bf16, three instead of five).

Weights are reordered once for oneDNN, not for every product, which halves the time of products
with few rows (answers). Reordered weights replace the originals: a process holds at most one matrix twice.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers.activations import SiLUActivation
from transformers.models.llama.modeling_llama import LlamaMLP, LlamaRMSNorm

from engine.machine.device import bf16_rows_are_steady
from engine.reading.protocol import ReaderSpec


class _FeedForward(torch.nn.Module):
    """Llama's gated feed-forward layer (Shazeer 2020, "GLU variants improve transformer")."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = layer.gate_proj, layer.up_proj
        self.down_proj = layer.down_proj
        is_silu = type(layer.act_fn) is SiLUActivation
        self.act_fn = torch.nn.SiLU(inplace=True) if is_silu else layer.act_fn

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """Input and output: (..., width)."""
        inner = self.act_fn(self.gate_proj(states)).mul_(self.up_proj(states))
        out: torch.Tensor = self.down_proj(inner)
        return out


class _Norm(torch.nn.Module):
    """Llama's norm by the root of the mean square (Zhang and Sennrich 2019), in fp32."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.weight, self.variance_epsilon = layer.weight, layer.variance_epsilon

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """Input and output: (..., width)."""
        wide = states.to(torch.float32)
        scale = wide.pow(2).mean(-1, keepdim=True).add_(self.variance_epsilon).rsqrt_()
        scaled = wide * scale if wide is states else wide.mul_(scale)
        return scaled.to(states.dtype).mul_(self.weight)


def reuse_tensors(model: torch.nn.Module) -> None:
    """Let a model's layers reuse their tensors if their code equals Llama's, under any class name.

    The model can then neither be trained nor run under autocast.
    """
    known = {_code(LlamaMLP): _FeedForward, _code(LlamaRMSNorm): _Norm}
    places = [
        (module, name, known[code])
        for module in model.modules()
        for name, layer in module.named_children()
        if (code := _code(type(layer))) in known
        and {tensor.dtype for tensor in layer.parameters()} == {model.dtype}
    ]
    for module, name, ours in places:
        setattr(module, name, ours(getattr(module, name)))


def _code(layer: type[torch.nn.Module]) -> object:
    """Identity of a layer's computation: equal for classes with the same compiled code; the class itself if unclear."""
    code = getattr(layer.forward, "__code__", None)
    if code is None or code.co_freevars:  # the functions in its closure may differ
        return layer
    return code.co_code, code.co_names, code.co_consts


# Rows that the order of weights is chosen for: a chunk of prompts.
_ROWS = 1024


class _OneDnnLinear(torch.nn.Module):
    """A linear layer whose weights are in oneDNN's order."""

    def __init__(self, layer: torch.nn.Linear) -> None:
        super().__init__()
        weight = torch.ops.mkldnn._reorder_linear_weight(layer.weight.detach(), _ROWS)
        self.register_buffer("weight", weight, persistent=False)
        self.bias = layer.bias

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """The product with the weights: (..., outputs)."""
        linear = torch.ops.mkldnn._linear_pointwise
        product: torch.Tensor = linear(states, self.weight, self.bias, "none", [], "")
        return product


def pays(spec: ReaderSpec) -> bool:
    """Whether reordering pays for a reader's weights: in bf16 with AVX512-BF16 and without AMX, as measured."""
    return spec.dtype == "bfloat16" and not spec.quantised_bytes and bf16_rows_are_steady()


def order_weights(model: torch.nn.Module) -> None:
    """Reorder the weights of a model's linear layers, except the output layer's, which may be the embeddings, too."""
    output = model.get_output_embeddings()
    # Parents and names only: a list of layers would keep all old weights until the end.
    places = [
        (module, name)
        for module in model.modules()
        for name, layer in module.named_children()
        if type(layer) is torch.nn.Linear and layer is not output
    ]
    for module, name in places:
        setattr(module, name, _OneDnnLinear(getattr(module, name)))
