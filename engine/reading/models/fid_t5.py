"""T5 as Fusion-in-Decoder's own checkpoints were trained: with a position bias in cross-attention.

Before transformers 4.0 T5's decoder added a relative position bias to its attention over the encoder's
states, which T5 does not have (github.com/huggingface/transformers/pull/8518 removed it). The code of
Izacard & Grave (2021) needs 3.0.2, so its checkpoints learned that bias and answer otherwise without.

The bias is causal: all states at or behind the decoder's own position share one value, which the
softmax cancels. What differs is the weight of the first input's first tokens, as many as were
generated. Positions are those of the states end to end. The original pads every input before it
joins them; that comes to the same as long as the first input is no shorter than the output.

Importing this module makes transformers' Auto classes know the model type.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from transformers import AutoConfig, AutoModelForSeq2SeqLM, T5Config, T5ForConditionalGeneration
from transformers.models.t5.modeling_t5 import T5Attention

from engine.reading.protocol import BIASED


class FidT5Config(T5Config):
    """T5's configuration under another name."""

    model_type = BIASED


class _CrossAttention(T5Attention):
    """The first layer's cross-attention, whose bias all layers share."""

    def compute_bias(
        self,
        query_length: int,
        key_length: int,
        device: torch.device | None = None,
        past_seen_tokens: int = 0,
    ) -> torch.Tensor:
        """Bias of shape (1, heads, query_length, key_length); see ``T5Attention.compute_bias``."""
        # Counted in the decoder's cache, to which self-attention has added these queries by now.
        before = past_seen_tokens - query_length if past_seen_tokens else 0
        return super().compute_bias(query_length, key_length, device, before)


class FidT5(T5ForConditionalGeneration):
    """T5 with a relative position bias in the decoder's cross-attention."""

    config_class = FidT5Config
    _keys_to_ignore_on_load_unexpected: ClassVar[list[str]] = []

    def __init__(self, config: FidT5Config) -> None:
        super().__init__(config)
        self.decoder.block[0].layer[1].EncDecAttention = _CrossAttention(
            self.decoder.config, has_relative_attention_bias=True, layer_idx=0
        )


AutoConfig.register(BIASED, FidT5Config)
AutoModelForSeq2SeqLM.register(FidT5Config, FidT5)
