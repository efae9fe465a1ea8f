"""The weights that the bundled reader starts from: random ones, arranged so that it can copy.

What a reader must find out before it can learn anything else is how to copy: to look for what stood
next to these words elsewhere. Transformers come upon that late (induction heads, Olsson et al. 2022,
arXiv:2209.11895): from usual random weights, models of 2 and 6 million parameters had not begun to after five
minutes on a core. Attention can be arranged for it from the start, as Trockman & Kolter (ICML 2023, "Mimetic
initialization of self-attention layers") do with products of queries and keys, and of values and outputs,
near to the identity. Here:

- In the encoder's first layer one head takes over what stands before each token, another what stands
  behind it, each into dimensions of its own.
- Heads of the later layers look for tokens with the same neighbour, or for the same token, and take
  over what stands there.
- The decoder's heads look for what follows the token that was written last.

All of it is trained like any other weight.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from transformers import T5ForConditionalGeneration

# A head's logit for two equal tokens with random embeddings of unit variance; in the decoder, whose keys
# have much else in them, less of it remains.
_MATCH, _DECODER_MATCH = 6.0, 18.0
# Position bias of the heads that look at a neighbour: e^6, of some 200 tokens.
_NEIGHBOUR = 6.0


def arrange(model: T5ForConditionalGeneration, generator: torch.Generator) -> None:
    """Arrange the attention of a T5 with random weights so that it copies; four heads or more.

    Args:
        model: as its configuration made it; changed.
        generator: draws the dimensions.
    """
    import torch

    config = model.config
    heads, width, dimensions = config.num_heads, config.d_kv, config.d_model
    scale, sharper = (_MATCH / width) ** 0.5, (_DECODER_MATCH / width) ** 0.5

    def orthonormal(rows: int) -> torch.Tensor:
        drawn = torch.randn(dimensions, rows, generator=generator)
        return torch.linalg.qr(drawn)[0].T

    before, behind = orthonormal(width), orthonormal(width)
    kept_before, kept_behind = orthonormal(2 * width).split(width)
    every = orthonormal(heads * width).split(width)

    def put(attention: torch.nn.Module, head: int, **weights: torch.Tensor) -> None:
        rows = slice(head * width, (head + 1) * width)
        for name, weight in weights.items():
            matrix = getattr(attention, name).weight
            (matrix[:, rows] if name == "o" else matrix[rows]).copy_(weight)

    with torch.no_grad():
        first = model.encoder.block[0].layer[0].SelfAttention
        bias = first.relative_attention_bias.weight
        bias.zero_()
        # Half of the buckets is for what stands before, by distance, and half for what stands behind.
        bias[1, 0] = bias[config.relative_attention_num_buckets // 2 + 1, 1] = _NEIGHBOUR
        put(first, 0, v=before, o=kept_before.T)
        put(first, 1, v=behind, o=kept_behind.T)
        for head in range(2, heads):
            own = every[head]
            put(first, head, q=scale * own, k=scale * own, v=0.3 * own, o=0.3 * own.T)
        for number, block in enumerate(model.encoder.block[1:], 1):
            attention = block.layer[0].SelfAttention
            for head in range(2, heads):
                neighbour = kept_behind if head % 2 else kept_before
                sought = neighbour if number % 2 else every[head]
                taken = every[(head + number) % heads]
                put(
                    attention,
                    head,
                    q=scale * sought,
                    k=scale * sought,
                    v=0.7 * taken,
                    o=0.7 * taken.T,
                )
        for block in model.decoder.block:
            attention = block.layer[1].EncDecAttention
            for head in range(heads):
                put(attention, head, v=every[head], o=every[head].T)
                if head % 2 == 0:
                    put(attention, head, q=sharper * before, k=sharper * kept_before)
