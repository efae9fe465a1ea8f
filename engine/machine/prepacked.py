"""Linear layers on a CPU whose weights stand in the order that oneDNN's products want.

As torch keeps weights, every product of bf16 first brings them into that order, which with few rows takes as long
as the product. Here that is done once, when the model is loaded. In bf16 the products are the same to the bit
(tested). In fp32 torch multiplies by MKL, which gives processors of other makers than Intel half of what they
can do; oneDNN's products differ from it in the last bits, and give the same rows however many there are.
"""

from __future__ import annotations

import torch

from engine.machine.device import (
    give_back_freed_memory,
    has_bf16_arithmetic,
    is_slow_with_mkl,
)

# Rows for which oneDNN chooses the order; it was the right one for 2 to 1,024.
_ROWS = 256


class Prepacked(torch.nn.Module):
    """A linear layer with its weights in oneDNN's order.

    Attributes:
        weight: opaque to all but oneDNN.
    """

    def __init__(self, linear: torch.nn.Linear) -> None:
        super().__init__()
        packed = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach(), _ROWS)
        self.weight = torch.nn.Parameter(packed, requires_grad=False)
        self.bias = linear.bias

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """Shapes: (…, features in) to (…, features out)."""
        product: torch.Tensor = torch.ops.mkldnn._linear_pointwise(
            states, self.weight, self.bias, "none", [], ""
        )
        return product


def is_faster(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether products with such weights are faster than torch's own."""
    if device.type != "cpu":
        return False
    if dtype == torch.bfloat16:
        return has_bf16_arithmetic()
    return dtype == torch.float32 and is_slow_with_mkl()


def prepack(model: torch.nn.Module) -> None:
    """Replace a model's linear layers one after the other, so that few are there twice.

    One whose weights are those of an embedding stays as it is, for it would have to be there twice from then on.
    """
    tied = {id(part.weight) for part in model.modules() if isinstance(part, torch.nn.Embedding)}
    of = [
        (parent, name)
        for parent in model.modules()
        for name, part in parent.named_children()
        if type(part) is torch.nn.Linear and id(part.weight) not in tied
    ]
    for parent, name in of:
        setattr(parent, name, Prepacked(getattr(parent, name)))
        give_back_freed_memory()  # what lies between what is in use would stay resident
