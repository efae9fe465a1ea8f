"""Tokenize inputs of encoder-decoder readers, in one way for reading and for training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from engine.reading.protocol import ReaderSpec

# What T5, whose config.json names no largest position, was trained with.
_USUAL_LIMIT = 512


@dataclass(frozen=True)
class Input:
    """One tokenized encoder input."""

    tokens: tuple[int, ...]
    truncated: bool


def longest_input(spec: ReaderSpec, config: Any) -> int:
    """Tokens of the longest input: as specified, else as many as the model's configuration has positions."""
    # T5 has no largest position; other models say theirs.
    return spec.max_input_tokens or int(
        getattr(config, "max_position_embeddings", 0) or _USUAL_LIMIT
    )


def tokenize(
    tokenizer: Any, texts: Sequence[str], *, limit: int, special_tokens: bool
) -> list[Input]:
    """Encoder inputs of texts, cut to ``limit`` tokens: the question is first, and a token that ends inputs stays."""
    if not texts:
        return []
    encoded = tokenizer(
        list(texts), return_attention_mask=False, add_special_tokens=special_tokens
    )["input_ids"]
    end = tokenizer.eos_token_id
    items: list[Input] = []
    for tokens in encoded:
        is_cut = len(tokens) > limit
        kept = [*tokens[: limit - 1], end] if is_cut and tokens[-1] == end else tokens
        items.append(Input(tuple(kept[:limit]), is_cut))
    return items
