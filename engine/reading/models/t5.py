"""The forward pass of the T5 family as an explicit loop over the modules that transformers loads.

``generate`` pads its batches, projects the encoder's states to cross-attention keys and values anew in every call, and
gives outputs that depend on the batch in bf16. Here texts stand end to end in one matrix, and the decoder starts from
what was kept of its inputs. Outputs then depend on the batch only where the rows of a matrix product do: in bf16 on a
CPU with AMX, or without bf16 arithmetic, where fp32 is the default (``machine.device.bf16_rows_are_steady``). With
AVX-512 alone, oneDNN sums products of one to three rows in another order. Layer norms, feed-forward layers and position
biases are the modules' own, so that T5, Flan-T5, mT5, UMT5 and ``FidT5`` need no special cases.

Importing this module makes transformers' Auto classes know that one's model type.
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
from engine.reading.models.decoding import to_device
from engine.reading.models.t5_attention import STEP, CrossAttention, Encodings, Part, softmax
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
    """T5 as Fusion-in-Decoder's own checkpoints were trained: with a position bias in the decoder's cross-attention.

    T5's decoder had it before transformers 4.0 (github.com/huggingface/transformers/pull/8518 removed it). The code of
    Izacard & Grave (2021) needs 3.0.2, so its checkpoints learned that bias and answer otherwise without.

    The bias is causal: all states at or behind the decoder's own position share one value, which the softmax cancels. What
    differs is the weight of the first input's first tokens, as many as were generated. Positions are those of the states
    end to end. The original pads every input first: the same, as long as the first input is no shorter than the output.
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


# On a GPU reads leave their rows when as large a part of these has ended: else dead rows are computed along, for
# less than what it takes to copy all others.
_ENDED = 0.25


class T5:
    """A loaded model of the T5 family.

    Attributes:
        padded: whether attention runs over padded batches, as a GPU needs it, instead of text by text (``t5_attention``).
        kept_per_token: bytes that the encodings of a token take, padding of the table left aside.
        encode_cost: bytes that encoding takes, per text and its tokens.
        decode_cost: bytes that decoding takes, per read, with the tokens of all its inputs.
    """

    def __init__(self, model: Any, *, padded: bool, max_new_tokens: int) -> None:
        config = model.config
        self.padded = padded
        self.device: torch.device = model.device
        self.dtype: torch.dtype = model.dtype
        self._encoder, self._decoder, self._head = model.encoder, model.decoder, model.lm_head
        self.heads, self.head_width = int(config.num_heads), int(config.d_kv)
        self.inner = self.heads * self.head_width
        self.layers = len(self._decoder.block)
        # As the models of transformers do it.
        scales = getattr(config, "scale_decoder_outputs", config.tie_word_embeddings)
        self._scale = config.d_model**-0.5 if scales and config.model_type != "mt5" else None
        self._encoder_biases: list[torch.Tensor] = []
        self._decoder_biases: list[torch.Tensor] = []
        self._cross_bias: torch.Tensor | None = None

        # The one place that says what memory a token takes.
        item = torch.empty((), dtype=self.dtype).element_size()
        self.kept_per_token = 2 * self.layers * self.inner * item
        # At the widest point of a layer: the states and their normalized copy, in fp32 while the
        # norm is computed; queries, keys, values and their mixture; the feed-forward layer, which
        # has three parts where it is gated. And all keys and values until they are in their tables.
        wide = item * max(4 * self.inner, 3 * config.d_ff)
        self.encode_cost = MemoryCost(
            per_row=0.0,
            per_token=(3 * item + 8) * config.d_model + wide + self.kept_per_token,
            # Bias, scores, weights; and twice in fp32. On a CPU a bound: long texts take less.
            per_pair=self.heads * (3 * item + 8),
        )
        own = 2 * self.layers * self.inner * item * t5_attention.padded_length(max_new_tokens)
        self.decode_cost = MemoryCost(
            # A cache is copied as reads leave the batch. Logits and their greatest.
            per_row=2 * own + (item + 8) * config.vocab_size,
            per_token=self.heads * (2 * item + 8) + (2 * self.kept_per_token if padded else 0),
            per_pair=0.0,
        )

    def encodings(self, lengths: Sequence[int]) -> Encodings:
        """Empty encodings of texts of these lengths."""
        return Encodings(
            lengths,
            layers=self.layers,
            heads=self.heads,
            head_width=self.head_width,
            dtype=self.dtype,
            device=self.device,
        )

    @torch.inference_mode()
    def encode(self, texts: Sequence[Sequence[int]]) -> list[torch.Tensor]:
        """Cross-attention keys and values of each text, from its tokens (one or more).

        Shape of each: (decoder layers, 2, tokens, heads, width of a head).
        """
        lengths = [len(text) for text in texts]
        kind = t5_attention.PaddedTexts if self.padded else t5_attention.TextByText
        attend: t5_attention.EncoderAttention = kind(lengths, self.heads)
        tokens = np.array([token for text in texts for token in text])
        ids, *numbers = to_device(self.device, tokens, *attend.numbers())
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
        kept = states.new_empty((self.layers, 2, len(ids), self.inner))
        for layer, block in enumerate(self._decoder.block):
            cross = block.layer[1].EncDecAttention
            torch.mm(states, cross.k.weight.t(), out=kept[layer, 0])
            torch.mm(states, cross.v.weight.t(), out=kept[layer, 1])
        kept = kept.view(self.layers, 2, len(ids), self.heads, self.head_width)
        return list(kept.split(lengths, dim=2))

    def decoding(self, encodings: Encodings, reads: Sequence[Sequence[Part]]) -> Decoding:
        """The beginning of an output for each read, from where its inputs are kept.

        The order of a read's inputs is that in which their sums are taken.
        """
        kind = t5_attention.PaddedReads if self.padded else t5_attention.ReadByRead
        return Decoding(self, kind(encodings, reads, self.heads), len(reads))

    @torch.inference_mode()
    def step(
        self, tokens: torch.Tensor, caches: torch.Tensor, at: int, cross: CrossAttention
    ) -> torch.Tensor:
        """Logits, (reads, vocabulary), of what follows ``tokens``, one of each read at position ``at``.

        ``caches``, (layers, 2, reads, heads, positions, width), gets the new keys and values.
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
        """Position biases of every layer by distance, (heads, 2 L - 1) with L of ``length`` or more."""
        if not self._encoder_biases or self._encoder_biases[0].shape[1] < 2 * length - 1:
            self._encoder_biases = _of_layers(self._encoder, partial(_by_distance, length=length))
        return self._encoder_biases

    def _biases_of_decoder(self, length: int) -> list[torch.Tensor]:
        if not self._decoder_biases or self._decoder_biases[0].shape[-1] != length:
            self._decoder_biases = _of_layers(self._decoder, partial(_causal, length=length))
        return self._decoder_biases

    def _bias_of_cross(self, length: int) -> torch.Tensor | None:
        """Position bias of cross-attention in all layers, (heads, length, length), where there is one.

        It is causal: tokens at or behind the decoder's own position share one value, which is taken off all: the softmax does
        not tell the rest from the whole.
        """
        own = self._decoder.block[0].layer[1].EncDecAttention
        if not own.has_relative_attention_bias:
            return None
        if self._cross_bias is None or self._cross_bias.shape[-1] != length:
            bias = own.compute_bias(length, length)[0]
            self._cross_bias = bias - bias[:, :1, :1]
        return self._cross_bias


class Decoding:
    """Outputs under way, one token per read and step, all reads at the same position."""

    def __init__(self, model: T5, cross: CrossAttention, rows: int) -> None:
        self._model = model
        self._cross = cross
        self._at = 0
        # Which rows of the caches are reads that go on.
        self._alive = list(range(rows))
        # Widths that are multiples of 32 also keep a batch of one read on the kernel that larger
        # ones run on: torch has another for small products, which rounds otherwise.
        self._caches = torch.zeros(
            (model.layers, 2, rows, model.heads, STEP, model.head_width),
            dtype=model.dtype,
            device=model.device,
        )

    def step(self, tokens: Sequence[int]) -> torch.Tensor:
        """Logits, (reads, vocabulary), of what follows each read's latest token."""
        held, begins = self._caches.shape[2], self._at == 0
        dead_rows = self._alive != list(range(held))
        # Where encodings are copied as reads leave, dead rows stay until they are many.
        leave = dead_rows and not (self._model.padded and len(tokens) > (1 - _ENDED) * held)
        latest = np.array(tokens)
        if dead_rows and not leave:  # any token will do for them
            latest = np.zeros(held, dtype=np.int64)
            latest[self._alive] = tokens
        ids, alive, *numbers = to_device(
            self._model.device,
            latest,
            np.array(self._alive),
            *(self._cross.numbers() if begins else ()),
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
        """Go on with these reads only, in this order, from the next step on."""
        self._alive = [self._alive[row] for row in rows]


def _of_layers(stack: Any, make: Callable[[Any], torch.Tensor]) -> list[torch.Tensor]:
    """Position biases of a stack's layers; one without a table shares that of the last layer before it that has one."""
    biases: list[torch.Tensor] = []
    for block in stack.block:
        own = block.layer[0].SelfAttention
        biases.append(make(own) if own.has_relative_attention_bias else biases[-1])
    return biases


def _by_distance(attention: Any, length: int) -> torch.Tensor:
    """Position biases of an encoder by distance, (heads, 2 length - 1), as ``EncoderAttention`` has them."""
    # Those of a query in the middle of twice as many keys are those of all distances.
    bias: torch.Tensor = attention.compute_bias(1, 2 * length - 1, None, length - 1)
    return bias[0, :, 0].contiguous()


def _causal(attention: Any, length: int) -> torch.Tensor:
    """Position biases of a decoder, (heads, length, length): minus infinity on later positions."""
    bias: torch.Tensor = attention.compute_bias(length, length)[0]
    later = torch.ones((length, length), dtype=torch.bool, device=bias.device).triu(1)
    return bias.masked_fill(later, float("-inf"))


def _bounded(hidden: torch.Tensor) -> torch.Tensor:
    """Without the infinities that sums beyond the range of fp16 give; each value alone, and no whole tensor as by
    transformers, so that a batch does not show in its neighbours.
    """
    if hidden.dtype != torch.float16:
        return hidden
    most = torch.finfo(torch.float16).max - 1000
    return hidden.clamp(-most, most)
