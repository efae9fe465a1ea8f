"""Decoder-only models run on padded batches, with transformers' own attention and cache.

Used on GPUs without vLLM, and on a CPU for models that ``engine.reading.models.attention`` does not
support. First tokens shared by a batch are computed once, and their keys and values repeated for its rows.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import groupby, islice
from typing import Any

import numpy as np
import torch
from transformers import DynamicCache

from engine.machine import batching
from engine.reading.models.decoding import Continuation, Writer, log_probabilities, to_device
from engine.reading.models.tokenizing import PromptRead
from engine.reading.protocol import ReaderStats


def layer_sizes(config: Any) -> tuple[int, int, int, int]:
    """Heads, groups, width of a head, and width of the feed-forward layer."""
    heads = config.num_attention_heads
    groups = getattr(config, "num_key_value_heads", None) or heads
    width = getattr(config, "head_dim", None) or config.hidden_size // heads
    return (
        heads,
        groups,
        width,
        getattr(config, "intermediate_size", None) or 4 * config.hidden_size,
    )


def activation_bytes(hidden: int, inner: int, item: int) -> float:
    """Bytes of a token at the widest point of a layer: states in and out, gate, up and product; and a copy in fp32."""
    return float(item * (6 * hidden + 3 * inner) + 4 * hidden)


class PaddedModel:
    """A decoder-only model that answers batch by batch.

    Args:
        shares: whether shared first tokens may be computed separately. Not in models with sliding
            windows: padding stands after the shared part, and their window would count it.
    """

    def __init__(
        self, model: torch.nn.Module, writer: Writer, stats: ReaderStats, *, shares: bool
    ) -> None:
        self._model = model
        self._writer = writer
        self._stats = stats
        self._shares = shares
        self._device: torch.device = model.device
        self._states: tuple[tuple[torch.Tensor, torch.Tensor], ...] = ()
        self._states_of: list[int] = []
        self._batch_bytes = 0.0
        self._token_bytes: float | None = None

    @torch.inference_mode()
    def probe(self, tokens: int) -> None:
        """Run a number of tokens as one text, to measure their memory."""
        ids = torch.zeros((1, tokens), dtype=torch.long, device=self._device)
        self._model(input_ids=ids, use_cache=True, logits_to_keep=1)

    def shrink(self) -> None:
        """Do nothing: the caller halves batches."""

    def grow(self) -> None:
        """Do nothing: batches grow with the memory that they may use."""

    def learn(self, fixed: float, per_token: float) -> None:
        """Store the measured bytes of a probe: a fixed part, and a part per token."""
        self._batch_bytes, self._token_bytes = fixed, per_token

    def cost(self, shared: int, target: int = 0) -> batching.MemoryCost:
        """Bytes of a batch of texts after ``shared`` tokens; at most the last ``target`` tokens per text are scored."""
        config = self._model.config
        item = torch.empty((), dtype=self._model.dtype).element_size()
        # Layers differ in some models (Gemma 4).
        differ = getattr(config, "is_heterogeneous", False)
        layers = [*config.per_layer_config] if differ else [config] * config.num_hidden_layers
        sizes = [layer_sizes(layer) for layer in layers]
        keys_values = 2 * sum(groups * width for _, groups, width, _ in sizes) * item
        inner = max(inner for *_, inner in sizes)
        activations = activation_bytes(config.hidden_size, inner, item)
        if self._token_bytes is not None:
            activations = max(1.0, self._token_bytes - keys_values)
        mask = item * (1 + max(heads // groups for heads, groups, *_ in sizes))
        return batching.MemoryCost(
            # A growing cache is copied once as it grows, hence twice the keys and values.
            # Logits are in the model's precision, and may exist twice if they are scaled.
            per_row=2 * keys_values * (shared + (0 if target else self._writer.most))
            + (4 + 2 * item * target) * config.vocab_size
            + self._batch_bytes,
            per_token=2 * keys_values + activations + mask * shared,
            per_pair=mask,
        )

    def batches(
        self, texts: Sequence[PromptRead], *, memory: float, max_tokens: int
    ) -> Iterator[list[int]]:
        """Indices of ``texts`` in batches that fit ``memory`` bytes; texts of a batch share a head."""

        def head(place: int) -> tuple[int, ...]:
            text = texts[place]
            return tuple(text.tokens[: self._shared([text])])

        for shared, places in groupby(sorted(range(len(texts)), key=head), key=head):
            together = list(places)
            for batch in batching.cut_batches(
                [texts[place].room(1) - 1 - len(shared) for place in together],
                cost=self.cost(len(shared), max(len(texts[place].target) for place in together)),
                memory=memory,
                max_tokens=max_tokens,
            ):
                yield [together[i] for i in batch]

    def _shared(self, reads: Sequence[PromptRead]) -> int:
        """The number of first tokens that the texts of a batch share; the last token of a text is never shared."""
        return min(min(read.head, len(read.tokens) - 1) for read in reads) if self._shares else 0

    def _head_states(self, head: list[int]) -> tuple[tuple[torch.Tensor, torch.Tensor], ...]:
        if head != self._states_of:
            cache = DynamicCache(config=self._model.config)
            ids, positions = to_device(self._device, np.array([head]), np.arange(len(head))[None])
            self._logits(ids, torch.ones_like(ids), positions, cache)
            self._stats.padded_tokens += len(head)
            self._stats.prompt_tokens += len(head)
            self._states = tuple((layer.keys, layer.values) for layer in cache.layers)
            self._states_of = head
        return self._states

    def is_writing(self, answers: Collection[Continuation]) -> bool:
        return False

    def step(self) -> None:
        """Nothing is under way: see ``passes``."""

    def drop(self) -> None:
        """Nothing is under way: see ``passes``."""

    @torch.inference_mode()
    def passes(self, reads: Sequence[PromptRead]) -> batching.Passes[list[Continuation]]:
        """Continue texts that share a head, as one batch, until all are finished."""
        yield
        shared = self._shared(reads)
        rest = [[*read.tokens[shared:], *read.target[:-1]] for read in reads]
        rows, length = len(rest), max(map(len, rest))
        cache = DynamicCache(config=self._model.config)
        if shared:
            for layer, (keys, values) in enumerate(self._head_states(reads[0].tokens[:shared])):
                cache.update(keys.expand(rows, -1, -1, -1), values.expand(rows, -1, -1, -1), layer)
        # Padding stands between the head and the rest, so that every row ends at the same place.
        texts = np.full((rows, length), self._writer.padding, dtype=np.int64)
        seen = np.ones((rows, shared + length), dtype=np.int64)
        for row, tokens in enumerate(rest):
            texts[row, length - len(tokens) :] = tokens
            seen[row, shared : shared + length - len(tokens)] = 0
        step, mask = to_device(self._device, texts, seen)
        positions = (mask.cumsum(1) - 1)[:, shared:].clamp(min=0)
        self._stats.padded_tokens += rows * length
        self._stats.prompt_tokens += sum(len(read.tokens) - shared for read in reads)

        if keep := max(len(read.target) for read in reads):
            logits = self._logits(step, mask, positions, cache, keep).flatten(0, 1)
            own = np.arange(keep) >= keep - np.array([[len(read.target)] for read in reads])
            (places,) = to_device(self._device, np.flatnonzero(own))
            tokens = [token for read in reads for token in read.target]
            left = iter(log_probabilities(logits[places], tokens))
            return [Continuation(logs=list(islice(left, len(read.target)))) for read in reads]
        answers = alive = [Continuation(prompt=read.tokens) for read in reads]
        while going := self._writer.write(alive, self._logits(step, mask, positions, cache)[:, -1]):
            last = positions[:, -1:]
            leaving = len(going) < len(alive)
            alive = [alive[place] for place in going]
            latest = np.array([[answer.tokens[-1]] for answer in alive])
            step, *stays = to_device(self._device, latest, *([np.array(going)] if leaving else []))
            for keep in stays:
                # States of hybrid models have no ``batch_select_indices``.
                cache.reorder_cache(keep)
                mask, last = mask[keep], last[keep]
            mask = torch.cat([mask, mask.new_ones((len(alive), 1))], dim=1)
            positions = last + 1
        return answers

    def _logits(
        self,
        ids: torch.Tensor,
        mask: torch.Tensor,
        positions: torch.Tensor,
        cache: DynamicCache,
        keep: int = 1,
    ) -> torch.Tensor:
        """Logits, (rows, keep, vocabulary), of the tokens after the last ``keep`` tokens."""
        out = self._model(
            input_ids=ids,
            attention_mask=mask,
            position_ids=positions,
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=keep,
        )
        return out.logits[:, -keep:]
