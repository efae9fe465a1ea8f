"""The plain way of ``benchmarks.efficiency``: transformers' ``generate`` on padded batches, nothing shared.

The paper measured both methods this way. Fusion-in-Decoder encodes the passages of its lists as one padded batch
and decodes from their states end to end; one input is the model's ordinary generation.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM, AutoTokenizer
from transformers.modeling_outputs import BaseModelOutput

from benchmarks.efficiency.grid import Way
from engine.machine import device
from engine.reading.protocol import ReaderSpec, ReadOutput

ATTENTION: dict[Way, str] = {"generate-sdpa": "sdpa", "generate-eager": "eager"}


class Generate:
    """A model that reads batches by ``generate``."""

    def __init__(self, spec: ReaderSpec, way: Way) -> None:
        self._spec = spec
        self._fuses = spec.architecture == "encoder-decoder"
        self.device = device.prepare(spec)
        self.tokenizer = AutoTokenizer.from_pretrained(
            spec.path, padding_side="right" if self._fuses else "left", trust_remote_code=False
        )
        if self.tokenizer.pad_token_id is None:
            self.tokenizer.pad_token = self.tokenizer.eos_token
        loader = AutoModelForSeq2SeqLM if self._fuses else AutoModelForCausalLM
        self.model: Any = loader.from_pretrained(
            spec.path,
            dtype=getattr(torch, spec.dtype),
            attn_implementation=ATTENTION[way],
            trust_remote_code=False,
        )
        self.model = self.model.to(self.device).eval()

    def weights(self) -> int:
        """Bytes of the weights."""
        return sum(p.numel() * p.element_size() for p in self.model.parameters())

    @torch.inference_mode()
    def read(self, inputs: Sequence[Sequence[str]]) -> list[ReadOutput]:
        """The answers of a batch; with Fusion-in-Decoder all reads have the same number of inputs."""
        texts = inputs if self._fuses else [["".join(pieces)] for pieces in inputs]
        batch = self.tokenizer(
            [text for read in texts for text in read],
            return_tensors="pt",
            padding=True,
            add_special_tokens=self._spec.special_tokens,
        ).to(self.device)
        mask = batch["attention_mask"]
        counts = mask.view(len(inputs), -1).sum(1).tolist()
        options = {
            "max_new_tokens": self._spec.max_new_tokens,
            "do_sample": False,
            "pad_token_id": self.tokenizer.pad_token_id,
        }
        if self._fuses:
            states = self.model.get_encoder()(
                input_ids=batch["input_ids"], attention_mask=mask
            ).last_hidden_state
            rows = len(inputs)
            out = self.model.generate(
                encoder_outputs=BaseModelOutput(
                    last_hidden_state=states.reshape(rows, -1, states.shape[-1])
                ),
                attention_mask=mask.reshape(rows, -1),
                **options,
            )[:, 1:]  # without the token that the decoder starts from
        else:
            out = self.model.generate(input_ids=batch["input_ids"], attention_mask=mask, **options)[
                :, batch["input_ids"].shape[1] :
            ]
        outputs = self.tokenizer.batch_decode(out, skip_special_tokens=True)
        special = set(self.tokenizer.all_special_ids)
        return [
            ReadOutput(text.strip(), int(count), sum(t not in special for t in row), False)
            for text, count, row in zip(outputs, counts, out.tolist(), strict=True)
        ]
