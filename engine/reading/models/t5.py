"""The forward pass of the T5 family as an explicit loop over the modules that transformers loads.

``generate`` pads its batches, projects the encoder's states to cross-attention keys and values anew in every call, and
gives outputs that depend on the batch in bf16. Here texts stand end to end in one matrix, and the decoder starts from
stored keys and values of its inputs. Outputs then depend on the batch only if the rows of a matrix product do: in bf16
on a CPU with AMX, or without bf16 arithmetic, where fp32 is the default (``machine.device.bf16_rows_are_steady``). With
AVX-512 alone, oneDNN sums products of one to three rows in another order. Layer norms, feed-forward layers and position
biases are the modules' own, so that T5, Flan-T5, mT5, UMT5 and ``FidT5`` need no special cases.

Importing this module registers the model type of ``FidT5`` with transformers' Auto classes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar

import numpy as np
import torch
from torch.nn.functional import pad
from transformers import AutoConfig, AutoModelForSeq2SeqLM, T5Config, T5ForConditionalGeneration
from transformers.models.t5.modeling_t5 import T5Attention

from engine.machine.batching import MemoryCost
from engine.reading.models import t5_attention
from engine.reading.models.decoding import STEP, padded_length, to_device
from engine.reading.models.t5_attention import CrossAttention, Encodings, Part, softmax
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
        # ``past_seen_tokens`` includes these queries: self-attention has already cached them.
        before = past_seen_tokens - query_length if past_seen_tokens else 0
        return super().compute_bias(query_length, key_length, device, before)


class FidT5(T5ForConditionalGeneration):
    """T5 as Fusion-in-Decoder's own checkpoints were trained: with a position bias in the decoder's cross-attention.

    T5's decoder had this bias until transformers 4.0 (github.com/huggingface/transformers/pull/8518 removed it). The
    code of Izacard & Grave (2021) needs 3.0.2, so its checkpoints learned the bias and give other answers without it.

    The bias is causal: all states at or after the decoder's own position share one value, which the softmax cancels. So
    the bias only weighs the first input's first tokens, as many as were generated. Positions count the states end to
    end. The original pads every input first: the same, as long as the first input is no shorter than the output.
    """

    config_class = FidT5Config
    _keys_to_ignore_on_load_unexpected: ClassVar[list[str]] = []

    def __init__(self, config: FidT5Config) -> None:
        super().__init__(config)
        self.decoder.block[0].layer[1].EncDecAttention = _CrossAttention(
            self.decoder.config, has_relative_attention_bias=True, layer_idx=0
        )


AutoConfig.register(BIASED, FidT5Config)
AutoModelForSeq2SeqLM.register(FidT5Config, FidT5)


# On a GPU, rows of finished reads are dropped once they are this share: computing dead rows costs less than copying
# all others.
_ENDED = 0.25


class T5:
    """A loaded model of the T5 family.

    Attributes:
        options: ``dtype`` and ``device`` of its tensors.
        padded: whether attention runs over padded batches, as a GPU needs it, instead of text by text (``t5_attention``).
        kept_per_token: bytes of a token's encodings, without the table's padding.
        encode_cost: bytes for encoding, per text and its tokens.
        decode_cost: bytes for decoding, per read and the tokens of all its inputs.
    """

    def __init__(self, model: Any, *, padded: bool, max_new_tokens: int) -> None:
        config = model.config
        self.padded = padded
        self.device: torch.device = model.device
        self.options: dict[str, Any] = {"dtype": model.dtype, "device": model.device}
        self._encoder, self._decoder, self._head = model.encoder, model.decoder, model.lm_head
        self.heads, self.head_width = int(config.num_heads), int(config.d_kv)
        self.inner = self.heads * self.head_width
        self.layers = len(self._decoder.block)
        # As in transformers' models.
        scales = getattr(config, "scale_decoder_outputs", config.tie_word_embeddings)
        self._scale = config.d_model**-0.5 if scales and config.model_type != "mt5" else None
        self._encoder_biases: list[torch.Tensor] = []
        self._decoder_biases: list[torch.Tensor] = []
        self._cross_bias: torch.Tensor | None = None

        # The memory that a token takes is defined here only.
        item = torch.empty((), dtype=model.dtype).element_size()
        self.kept_per_token = 2 * self.layers * self.inner * item
        # At the widest point of a layer: the states and their normalized copy, in fp32 while the
        # norm is computed; queries, keys, values and their mixture; the feed-forward layer, which
        # has three parts if gated. And all keys and values until they are in their tables.
        wide = item * max(4 * self.inner, 3 * config.d_ff)
        self.encode_cost = MemoryCost(
            per_row=0.0,
            per_token=(3 * item + 8) * config.d_model + wide + self.kept_per_token,
            # Bias, scores, weights; and twice in fp32. On a CPU an upper bound: long texts take less.
            per_pair=self.heads * (3 * item + 8),
        )
        own = 2 * self.layers * self.inner * item * padded_length(max_new_tokens)
        self.decode_cost = MemoryCost(
            # The cache is copied as reads leave the batch. Logits and their maximum.
            per_row=2 * own + (item + 8) * config.vocab_size,
            per_token=self.heads * (2 * item + 8) + (2 * self.kept_per_token if padded else 0),
            per_pair=0.0,
        )

    def encodings(self, lengths: Sequence[int]) -> Encodings:
        return Encodings(lengths, self.layers, self.heads, self.head_width, **self.options)

    @torch.inference_mode()
    def encode(self, texts: Sequence[Sequence[int]]) -> list[torch.Tensor]:
        """Cross-attention keys and values by text, from its tokens (one or more).

        Shape per text: (decoder layers, 2, tokens, heads, width of a head).
        """
        lengths = [len(text) for text in texts]
        kind = t5_attention.PaddedTexts if self.padded else t5_attention.TextByText
        attend: t5_attention.EncoderAttention = kind(lengths, self.heads)
        tokens = np.array([token for text in texts for token in text])
        ids, *numbers = to_device(self.device, tokens, *attend.numbers)
        attend.begin(numbers)
        hidden = self._encoder.embed_tokens(ids)
        biases = self._biases_of_encoder(max(lengths))
        for block, bias in zip(self._encoder.block, biases, strict=True):
            norm, attention = block.layer[0].layer_norm, block.layer[0].SelfAttention
            states = norm(hidden)
            mixed = attend(attention.q(states), attention.k(states), attention.v(states), bias)
            hidden = _bounded(hidden + attention.o(mixed))
            hidden = _bounded(block.layer[-1](hidden))
        states = self._encoder.final_layer_norm(hidden)
        projected = states.new_empty((self.layers, 2, len(ids), self.inner))
        for layer, block in enumerate(self._decoder.block):
            cross = block.layer[1].EncDecAttention
            torch.mm(states, cross.k.weight.t(), out=projected[layer, 0])
            torch.mm(states, cross.v.weight.t(), out=projected[layer, 1])
        projected = projected.view(self.layers, 2, len(ids), self.heads, self.head_width)
        return list(projected.split(lengths, dim=2))

    def decoding(self, encodings: Encodings, reads: Sequence[Sequence[Part]]) -> DecodingState:
        """Begin an output for each read, from the stored encodings of its inputs.

        Sums over a read's inputs follow their order.
        """
        kind = t5_attention.PaddedReads if self.padded else t5_attention.ReadByRead
        return DecodingState(self, kind(encodings, reads, self.heads), len(reads))

    @torch.inference_mode()
    def step(
        self, tokens: torch.Tensor, caches: torch.Tensor, at: int, cross: CrossAttention
    ) -> torch.Tensor:
        """Logits, (reads, vocabulary), of the tokens after ``tokens``, one per read, at position ``at``.

        New keys and values are written to ``caches``, (layers, 2, reads, heads, positions, width).
        """
        rows = len(tokens)
        shape = (rows, self.heads, self.head_width)
        hidden = self._decoder.embed_tokens(tokens)
        biases = self._biases_of_decoder(caches.shape[4])
        cross_bias = self._bias_of_cross(caches.shape[4])
        first = None if cross_bias is None else cross_bias[:, at, :at]
        for layer, (block, bias) in enumerate(zip(self._decoder.block, biases, strict=True)):
            norm, own = block.layer[0].layer_norm, block.layer[0].SelfAttention
            keys, values = caches[layer]
            states = norm(hidden)
            keys[:, :, at] = own.k(states).view(shape)
            values[:, :, at] = own.v(states).view(shape)
            scores = torch.matmul(own.q(states).view(shape)[:, :, None], keys.transpose(2, 3))
            scores += bias[:, at : at + 1]
            mixed = torch.matmul(softmax(scores), values)
            hidden = _bounded(hidden + own.o(mixed.view(rows, -1)))
            norm, other = block.layer[1].layer_norm, block.layer[1].EncDecAttention
            hidden = _bounded(hidden + other.o(cross(layer, other.q(norm(hidden)), first)))
            hidden = _bounded(block.layer[-1](hidden))
        states = self._decoder.final_layer_norm(hidden)
        if self._scale is not None:
            states = states * self._scale
        return self._head(states)

    def _biases_of_encoder(self, length: int) -> list[torch.Tensor]:
        """Position biases of every layer by distance, (heads, 2 L - 1), with L at least ``length``."""
        if not self._encoder_biases or self._encoder_biases[0].shape[1] < 2 * length - 1:
            self._encoder_biases = _biases(self._encoder, partial(_by_distance, length=length))
        return self._encoder_biases

    def _biases_of_decoder(self, length: int) -> list[torch.Tensor]:
        if not self._decoder_biases or self._decoder_biases[0].shape[-1] != length:
            self._decoder_biases = _biases(self._decoder, partial(_causal, length=length))
        return self._decoder_biases

    def _bias_of_cross(self, length: int) -> torch.Tensor | None:
        """Position bias of cross-attention in all layers, (heads, length, length); None if the model has none.

        The bias is causal: tokens at or after the decoder's own position share one value. It is subtracted from all
        values, which leaves the softmax unchanged.
        """
        own = self._decoder.block[0].layer[1].EncDecAttention
        if not own.has_relative_attention_bias:
            return None
        if self._cross_bias is None or self._cross_bias.shape[-1] != length:
            bias = own.compute_bias(length, length)[0]
            self._cross_bias = bias - bias[:, :1, :1]
        return self._cross_bias


class DecodingState:
    """Unfinished outputs, one token per read and step, all reads at the same position."""

    def __init__(self, model: T5, cross: CrossAttention, rows: int) -> None:
        self._model = model
        self._cross = cross
        self._at = 0
        # Rows of the caches with unfinished reads.
        self._alive = list(range(rows))
        # Widths in multiples of 32 also keep single reads on the kernel of larger batches: torch has
        # another kernel for small products, which rounds differently.
        shape = (model.layers, 2, rows, model.heads, STEP, model.head_width)
        self._caches = torch.zeros(shape, **model.options)

    def step(self, tokens: Sequence[int]) -> torch.Tensor:
        """Logits, (reads, vocabulary), of the token after each read's latest."""
        rows, begins = self._caches.shape[2], self._at == 0
        dead_rows = self._alive != list(range(rows))
        # Dead rows stay until they are many if dropping them copies encodings.
        leave = dead_rows and not (self._model.padded and len(tokens) > (1 - _ENDED) * rows)
        latest = np.array(tokens)
        if dead_rows and not leave:  # dead rows get any token
            latest = np.zeros(rows, dtype=np.int64)
            latest[self._alive] = tokens
        ids, alive, *numbers = to_device(
            self._model.device,
            latest,
            np.array(self._alive),
            *(self._cross.numbers if begins else ()),
        )
        if begins:
            self._cross.begin(numbers)
        if leave:
            self._caches = self._caches.index_select(2, alive)
            self._cross.keep(self._alive, alive)
            self._alive, dead_rows = list(range(len(tokens))), False
        if self._at == self._caches.shape[4]:
            self._caches = pad(self._caches, (0, 0, 0, STEP))
        logits = self._model.step(ids, self._caches, self._at, self._cross)
        self._at += 1
        return logits.index_select(0, alive) if dead_rows else logits

    def keep(self, rows: Sequence[int]) -> None:
        """Continue only these reads, in this order, from the next step on."""
        self._alive = [self._alive[row] for row in rows]


def _biases(stack: Any, make: Callable[[Any], torch.Tensor]) -> list[torch.Tensor]:
    """Position biases of a stack's layers; a layer without a table shares the bias of the layer before it."""
    biases: list[torch.Tensor] = []
    for block in stack.block:
        own = block.layer[0].SelfAttention
        biases.append(make(own) if own.has_relative_attention_bias else biases[-1])
    return biases


def _by_distance(attention: Any, length: int) -> torch.Tensor:
    """Position biases of an encoder by distance, (heads, 2 length - 1), as in ``EncoderAttention``."""
    # A query in the middle of 2 length - 1 keys has all distances.
    bias: torch.Tensor = attention.compute_bias(1, 2 * length - 1, None, length - 1)
    return bias[0, :, 0].contiguous()


def _causal(attention: Any, length: int) -> torch.Tensor:
    """Position biases of a decoder, (heads, length, length): minus infinity on later positions."""
    bias: torch.Tensor = attention.compute_bias(length, length)[0]
    later = torch.ones((length, length), dtype=torch.bool, device=bias.device).triu(1)
    return bias.masked_fill(later, float("-inf"))


def _bounded(hidden: torch.Tensor) -> torch.Tensor:
    """Clamp infinities from sums beyond the range of fp16; value by value, not whole tensors as in transformers, so
    that texts of a batch do not affect each other.
    """
    if hidden.dtype != torch.float16:
        return hidden
    most = torch.finfo(torch.float16).max - 1000
    return hidden.clamp(-most, most)
