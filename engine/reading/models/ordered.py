"""Weights in the order in which oneDNN multiplies by them: made once, instead of for each product.

The products are the same to the bit; those of few rows, where answers are written, take half of the time. Each
takes the place of what it was, so that a process never has more than one matrix twice.
"""

from __future__ import annotations

import torch

from engine.machine.device import bf16_rows_are_steady
from engine.reading.protocol import ReaderSpec

# The rows that the order is chosen for: those of a chunk of prompts.
_ROWS = 1024


class _Ordered(torch.nn.Module):
    """A linear layer whose weights are in that order."""

    def __init__(self, layer: torch.nn.Linear) -> None:
        super().__init__()
        weight = torch.ops.mkldnn._reorder_linear_weight(layer.weight.detach(), _ROWS)
        self.register_buffer("weight", weight, persistent=False)
        self.bias = layer.bias

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """The product with the weights: (..., outputs)."""
        product: torch.Tensor = torch.ops.mkldnn._linear_pointwise(
            states, self.weight, self.bias, "none", [], ""
        )
        return product


def pays(spec: ReaderSpec) -> bool:
    """Whether a reader's weights are put in order: in bf16 with AVX512-BF16 and without AMX, where it was measured."""
    return spec.dtype == "bfloat16" and not spec.quantised_bytes and bf16_rows_are_steady()


def order_weights(model: torch.nn.Module) -> None:
    """Put the weights of a model's linear layers in order, but for the output layer's, which may be the embeddings, too."""
    output = model.get_output_embeddings()
    # Only of what holds them: a list of layers would keep all of them until the end.
    places = [
        (module, name)
        for module in model.modules()
        for name, layer in module.named_children()
        if type(layer) is torch.nn.Linear and layer is not output
    ]
    for module, name in places:
        setattr(module, name, _Ordered(getattr(module, name)))
