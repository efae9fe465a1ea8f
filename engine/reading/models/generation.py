"""Apply the settings of ``generation_config.json`` that change what ``generate`` writes greedily."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch
from transformers import GenerationConfig

from engine.reading.protocol import ReaderSpec

_TOKENS = ("bos_token_id", "decoder_start_token_id", "eos_token_id", "pad_token_id")


class Row(NamedTuple):
    """What a decoder was given, what it wrote, and what the encoder was given: of a decoder-only model, the first again."""

    given: Sequence[int]
    written: Sequence[int]
    encoded: Sequence[int]


class Greedy:
    """Changes logits as ``generate(do_sample=False)`` does, by transformers' own processors.

    Args:
        model: has the end tokens.
        most: tokens that are written at most.

    Raises:
        ValueError: transformers refuses a value.
    """

    def __init__(self, spec: ReaderSpec, model: Any, most: int) -> None:
        self._model, self._most = model, most
        settings = json.loads(spec.generation) if spec.writes and spec.generation else {}
        self._settings: dict[str, Any] = settings
        self._looks_at_input = any(name.startswith("encoder_") for name in settings)
        self._made: dict[int, Any] = {}  # by the length of what was given: nothing else decides
        if settings:
            self._processors(Row([0], [], [0]))

    def scores(self, logits: torch.Tensor, rows: Iterable[Row]) -> torch.Tensor:
        """The logits of next tokens, (rows, vocabulary), as the settings change them."""
        if not self._settings:
            return logits
        # In fp32, as transformers does; each by itself, since lengths differ.
        changed = [
            self._processors(row)(self._tensor([*row.given, *row.written]), of_row[None].float())
            for row, of_row in zip(rows, logits, strict=True)
        ]
        return torch.cat(changed)

    def _tensor(self, tokens: Sequence[int]) -> torch.Tensor:
        return torch.tensor([tokens], device=self._model.device)

    def _processors(self, row: Row) -> Any:
        length = len(row.given)
        if length not in self._made or self._looks_at_input:
            own = self._model.generation_config
            config = GenerationConfig(
                **{name: getattr(own, name) for name in _TOKENS}, **self._settings
            )
            # As ``generate`` completes them from its arguments and its input.
            config.max_length = length + self._most
            if config.min_new_tokens is not None:
                config.min_length = config.min_new_tokens + length
            self._model._prepare_special_tokens(config, device=self._model.device)
            self._made[length] = self._model._get_logits_processor(
                config,
                input_ids_seq_length=length,
                encoder_input_ids=self._tensor(row.encoded),
                device=self._model.device,
            )
        return self._made[length]
