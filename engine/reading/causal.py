"""Decoder-only readers, with what their prompts share computed once.

Greedy decoding with our own loop instead of ``generate``, for three things that it does not do:
keys and values of the shared prefix are computed once per reader and not per read, finished reads
leave the batch, and grouped-query attention runs without copying keys and values for every head.
Outputs equal ``generate``'s (tested in fp32).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import (
    AttentionInterface,
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    DynamicCache,
    PretrainedConfig,
)
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, AttentionMaskInterface

from engine.reading import batching, device
from engine.reading.protocol import ReaderSpec, ReaderStats, ReadOutput
from engine.reading.weights import refuse_missing

# What some models add to attention, and scaled_dot_product_attention does not do.
_UNSUPPORTED = ("softcap", "s_aux", "position_bias", "sink")
# Models whose attention is known to be the plain one; others run as transformers chooses.
_GROUPED = frozenset(
    [
        "llama",
        "mistral",
        "mixtral",
        "qwen2",
        "qwen2_moe",
        "qwen3",
        "phi3",
        "granite",
        "olmo2",
        "smollm3",
    ]
)


def grouped_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    **others: object,
) -> tuple[torch.Tensor, None]:
    """Grouped-query attention in which the heads of a group are further query rows of one head.

    transformers repeats keys and values for every query head whenever there is a mask; on a CPU
    those copies cost more than the attention itself. Folding the group into the query axis is the
    same arithmetic without a copy.

    Shapes: query (B, H, L, D), key and value (B, G, T, D) with G dividing H, mask (B, 1, L, T).

    Raises:
        ValueError: the model asks for a kind of attention that this is not.
    """
    if unknown := [name for name in _UNSUPPORTED if others.get(name) is not None]:
        raise ValueError(f"grouped attention has no {', '.join(unknown)}")
    rows, heads, length, width = query.shape
    groups = key.shape[1]
    per_group = heads // groups
    if attention_mask is None:
        out = scaled_dot_product_attention(
            query, key, value, is_causal=length > 1, scale=scaling, enable_gqa=per_group > 1
        )
    else:
        folded = query.reshape(rows, groups, per_group * length, width)
        mask = attention_mask[..., : key.shape[2]]
        if per_group > 1 and length > 1:
            mask = mask.repeat(1, 1, per_group, 1)
        out = scaled_dot_product_attention(folded, key, value, attn_mask=mask, scale=scaling)
        out = out.reshape(rows, heads, length, width)
    return out.transpose(1, 2), None


_DOES_NOT_FIT = "the prompt exceeds the reader's longest input even without passages"

AttentionInterface.register("grouped_sdpa", grouped_attention)
AttentionMaskInterface.register("grouped_sdpa", ALL_MASK_ATTENTION_FUNCTIONS["sdpa"])


@dataclass(frozen=True)
class _Prompt:
    """A tokenized prompt without the shared prefix."""

    suffix: list[int]
    tokens: int  # of the whole prompt, prefix included
    truncated: bool


class CausalReader:
    """A decoder-only model that continues prompts greedily until a stop string or the end token."""

    def __init__(self, spec: ReaderSpec) -> None:
        self._spec = spec
        self._device = device.prepare(spec)
        self._tokenizer = AutoTokenizer.from_pretrained(spec.path, local_files_only=True)
        config = AutoConfig.from_pretrained(spec.path, local_files_only=True)
        model, loading = AutoModelForCausalLM.from_pretrained(
            spec.path,
            config=config,
            dtype=getattr(torch, spec.dtype),
            local_files_only=True,
            attn_implementation="grouped_sdpa" if config.model_type in _GROUPED else None,
            output_loading_info=True,
        )
        refuse_missing(loading, spec.name)
        self._model = model.to(self._device).eval()
        self.stats = ReaderStats()
        ends = self._model.generation_config.eos_token_id
        self._end_tokens = {ends} if isinstance(ends, int) else set(ends or ())
        self._pad = next(iter(self._end_tokens), 0)
        self._positions = int(getattr(config, "max_position_embeddings", 0) or 0)
        # Padding stands behind a shared prefix, where a sliding window would count it as text.
        share = bool(spec.shared_prefix) and not _has_window(config)
        self._prefix = self._encode([spec.shared_prefix])[0] if share else []
        self._prefix_cache: tuple[tuple[torch.Tensor, torch.Tensor], ...] = ()
        self._cached_prefix: list[int] = []

        item = torch.empty((), dtype=self._model.dtype).element_size()
        heads = config.num_attention_heads
        groups = getattr(config, "num_key_value_heads", None) or heads
        head = getattr(config, "head_dim", None) or config.hidden_size // heads
        inner = getattr(config, "intermediate_size", None) or 4 * config.hidden_size
        keys_values = 2 * config.num_hidden_layers * groups * head * item
        # Held at the widest point of a layer: the states in and out, the gate and up projections
        # and their product, in the model's precision, and one copy of the states in fp32 (norms).
        activations = item * (6 * config.hidden_size + 3 * inner)
        activations += 4 * config.hidden_size
        mask = item * (1 + heads // groups)
        fixed = len(self._prefix) + spec.max_new_tokens
        self._cost = batching.MemoryCost(
            # A growing cache is copied once as it grows, hence twice the keys and values.
            per_row=2 * keys_values * fixed + 4 * config.vocab_size,
            per_token=2 * keys_values + activations + mask * len(self._prefix),
            per_pair=mask,
        )
        weights = sum(p.numel() * p.element_size() for p in self._model.parameters())
        self._memory = device.batch_memory(spec, self._device, weights)

    def read(self, inputs: Sequence[Sequence[str]]) -> list[ReadOutput]:
        """Continue each read's one prompt. See ``engine.reading.protocol.Reader``."""
        texts = ["".join(pieces) for pieces in inputs]
        encoded = self._encode(texts)
        # Tokens may merge across the end of the prefix text, so what is shared is decided on tokens.
        shared = _common_length([self._prefix, *encoded])
        shared = min([shared, *(len(tokens) - 1 for tokens in encoded)])
        prompts = [
            self._fit(tokens, shared, text) for tokens, text in zip(encoded, texts, strict=True)
        ]
        outputs: list[ReadOutput | None] = [
            None if p.suffix else ReadOutput("", p.tokens, 0, True, _DOES_NOT_FIT) for p in prompts
        ]
        readable = [i for i, p in enumerate(prompts) if p.suffix]
        batches = batching.cut_batches(
            [len(prompts[i].suffix) for i in readable],
            cost=self._cost,
            memory=self._memory,
            max_tokens=self._spec.batch_tokens or device.max_batch_tokens(self._device),
        )
        for places in batches:
            batch = [readable[place] for place in places]
            before = self.stats.memory_halvings
            results = batching.run_halving(
                batch,
                lambda part: self._generate([prompts[i] for i in part], encoded[part[0]][:shared]),
                lambda i, reason: ReadOutput("", prompts[i].tokens, 0, False, reason),
                self._count_halving,
            )
            for i, result in zip(batch, results, strict=True):
                outputs[i] = result
            if self.stats.memory_halvings > before:
                # Reads that come later start smaller: what failed once would fail again.
                self._memory = max(
                    self._memory / 2, self._cost.of(1, len(prompts[batch[0]].suffix))
                )
        self.stats.peak_memory = device.peak_memory(self._device)
        return [output for output in outputs if output is not None]

    def _count_halving(self) -> None:
        self.stats.memory_halvings += 1

    def _encode(self, texts: list[str]) -> list[list[int]]:
        return self._tokenizer(texts, return_attention_mask=False)["input_ids"]

    def _fit(self, tokens: list[int], shared: int, text: str) -> _Prompt:
        """The part of a prompt behind the shared prefix, cut where the model's input ends.

        Passages are cut, those first that stand first: the best ones and the question stand last.
        Where even the question does not fit, the suffix is empty.
        """
        limit = self._spec.max_input_tokens or (
            self._positions - self._spec.max_new_tokens if self._positions else len(tokens)
        )
        suffix = tokens[shared:]
        excess = len(tokens) - limit
        if excess <= 0:
            return _Prompt(suffix, len(tokens), False)
        at = text.rfind(self._spec.tail_marker) if self._spec.tail_marker else -1
        tail = len(self._encode([text[at:]])[0]) if at >= 0 else 1
        kept = suffix[excess:]
        if len(kept) < tail:
            return _Prompt([], len(tokens), True)
        return _Prompt(kept, limit, True)

    def _prefix_states(self, prefix: list[int]) -> tuple[tuple[torch.Tensor, torch.Tensor], ...]:
        if prefix != self._cached_prefix:
            cache = DynamicCache(config=self._model.config)
            ids = torch.tensor([prefix], device=self._device)
            self._model(input_ids=ids, past_key_values=cache, use_cache=True, logits_to_keep=1)
            self._prefix_cache = tuple((layer.keys, layer.values) for layer in cache.layers)
            self._cached_prefix = prefix
        return self._prefix_cache

    @torch.inference_mode()
    def _generate(self, prompts: Sequence[_Prompt], prefix: list[int]) -> list[ReadOutput]:
        rows, length = len(prompts), max(len(p.suffix) for p in prompts)
        shared = len(prefix)
        cache = DynamicCache(config=self._model.config)
        if shared:
            for layer, (keys, values) in enumerate(self._prefix_states(prefix)):
                cache.update(keys.expand(rows, -1, -1, -1), values.expand(rows, -1, -1, -1), layer)
        # Padding stands between the prefix and the suffix, so that every row ends at the same place.
        ids = torch.full((rows, length), self._pad, dtype=torch.long)
        mask = torch.ones((rows, shared + length), dtype=torch.long)
        for row, prompt in enumerate(prompts):
            padding = length - len(prompt.suffix)
            ids[row, padding:] = torch.tensor(prompt.suffix)
            mask[row, shared : shared + padding] = 0
        mask = mask.to(self._device)
        positions = (mask.cumsum(1) - 1)[:, shared:].clamp(min=0)
        self.stats.padded_tokens += rows * length
        self.stats.prompt_tokens += sum(len(p.suffix) for p in prompts)

        generated: list[list[int]] = [[] for _ in prompts]
        texts: list[str] = [""] * rows
        alive = list(range(rows))
        step = ids.to(self._device)
        while True:
            logits = self._model(
                input_ids=step,
                attention_mask=mask,
                position_ids=positions,
                past_key_values=cache,
                use_cache=True,
                logits_to_keep=1,
            ).logits[:, -1]
            chosen = logits.argmax(-1).tolist()
            going: list[int] = []
            for place, (row, token) in enumerate(zip(alive, chosen, strict=True)):
                if token in self._end_tokens:
                    continue
                generated[row].append(token)
                text = self._tokenizer.decode(generated[row], skip_special_tokens=True)
                texts[row], stopped = _cut_at_stop(text, self._spec.stop)
                if not stopped and len(generated[row]) < self._spec.max_new_tokens:
                    going.append(place)
            if not going:
                break
            last = positions[:, -1:]
            if len(going) < len(alive):
                keep = torch.tensor(going, device=self._device)
                cache.batch_select_indices(keep)
                mask, last = mask[keep], last[keep]
                alive = [alive[place] for place in going]
            step = torch.tensor([[generated[row][-1]] for row in alive], device=self._device)
            mask = torch.cat([mask, mask.new_ones((len(alive), 1))], dim=1)
            positions = last + 1
        return [
            ReadOutput(texts[row].strip(), prompt.tokens, len(generated[row]), prompt.truncated)
            for row, prompt in enumerate(prompts)
        ]


def _has_window(config: PretrainedConfig) -> bool:
    """Whether some layer of the model looks back only so far."""
    kinds = getattr(config, "layer_types", None) or []
    return bool(getattr(config, "sliding_window", None)) or any(
        kind != "full_attention" for kind in kinds
    )


def _common_length(sequences: Sequence[list[int]]) -> int:
    """How many tokens all sequences begin with."""
    first, last = min(sequences), max(sequences)  # the two that differ soonest
    same = 0
    while same < min(len(first), len(last)) and first[same] == last[same]:
        same += 1
    return same


def _cut_at_stop(text: str, stops: Sequence[str]) -> tuple[str, bool]:
    """The text before the first stop string, and whether there was one."""
    places = [at for stop in stops if (at := text.find(stop)) >= 0]
    return (text[: min(places)], True) if places else (text, False)
