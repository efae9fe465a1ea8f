"""Check that a loop of the engine's own continues a model as the model alone does, before its first read.

A loop hands a model the keys and values (or other states) of earlier tokens, and texts of other lengths beside padding.
Models may pass over either without an error. Compared are the logits of a few given tokens, behind two texts in one
batch, with those of one forward pass over the same tokens, without a cache and without padding.
"""

from __future__ import annotations

import contextlib
import functools
import json
from collections.abc import Callable, Sequence
from typing import Any

import torch
import transformers

from engine.machine import batching, device
from engine.machine.model_files import cache_directory
from engine.messages.errors import InputError, WriteError
from engine.reading.models.decoding import Continuation
from engine.reading.models.t5 import T5
from engine.reading.models.t5_attention import Part
from engine.reading.models.tokenizing import PromptRead
from engine.reading.protocol import READING_VERSION, ReaderSpec
from engine.sources.io.digests import digest
from engine.sources.io.files import write_text

# Tokens of the two texts, of the head that they share, and of what follows each: few, so that no window ends among
# them. One answer ends first, so that the other one's row is picked out.
_LENGTHS, _HEAD, _GIVEN = (7, 4), 2, (4, 6)
# How far logits may be apart, as a part of their spread over the vocabulary; at most tokens of a text, since rounding
# now and then chooses another expert. Of some 150 families in random weights and a trained model of 30 layers, those
# that loops continue were at most 5e-6 apart in fp32, 0.003 in fp16 and 0.05 in bf16 (the trained one); models that
# pass over a cache or read padding 0.5 or more, mostly 1.
_BOUNDS = {torch.float32: 1e-3, torch.float16: 0.05, torch.bfloat16: 0.2}
# What the texts are made of, token by token.
_SAMPLE = "The river runs north of 7 old towns, and boats go there by night."
_DIFFERS = "behind a cache its logits are not those of one pass over the same tokens"
# Ways of a decoder-only model, the fastest first: the reader's own; padded; without a head that texts share; and one
# text at a time.
OWN, PADDED, UNSHARED, ALONE = range(4)


class ForcedWriter:
    """Stands in for a ``Writer``: answers go on with given tokens, and the logits of each are kept."""

    padding, most = 0, max(_GIVEN)

    def __init__(self, given: Sequence[int]) -> None:
        self._given = given
        self.logits: dict[Continuation, list[torch.Tensor]] = {}

    def write(self, answers: Sequence[Continuation], logits: torch.Tensor) -> list[int]:
        """See ``Writer.write``."""
        on = []
        for place, (answer, row) in enumerate(zip(answers, logits, strict=True)):
            self.logits.setdefault(answer, []).append(row.float().cpu())
            most = _GIVEN[list(self.logits).index(answer)]
            answer.tokens.append(self._given[len(answer.tokens)])
            if len(answer.tokens) < most:
                on.append(place)
        return on


def way_of(
    make: Callable[[int, ForcedWriter], Any],
    ways: Sequence[int],
    model: Any,
    tokenizer: Any,
    spec: ReaderSpec,
) -> int:
    """The first of some ways in which a model is continued as it is without a loop.

    Args:
        make: the loop of a way, with what writes its answers.

    Raises:
        InputError: none of them is.
    """
    # Of one token, unknown to a vocabulary of words, nothing could be told: all that is mixed would be the same.
    tokens = list(dict.fromkeys([*tokenizer.encode(_SAMPLE, add_special_tokens=False), 3, 4, 5]))
    text = (tokens[: _LENGTHS[0] - _LENGTHS[1]] * sum(_LENGTHS) * 2)[: _LENGTHS[0] + max(_GIVEN)]

    def find() -> tuple[int, str]:
        reason = ""
        for way in ways:
            try:
                if _is_continued(functools.partial(make, way), model, text, alone=way == ALONE):
                    return way, ""
                reason = _DIFFERS
            except Exception as error:  # whatever a model's code raises on what it is given
                if batching.is_out_of_memory(error) or device.is_fatal(error):
                    raise
                reason = " ".join(f"{type(error).__name__}: {error}".split())[:150]
        return -1, reason

    return _kept(spec, model, find, "use `engine` vllm")


@torch.inference_mode()
def _is_continued(
    make: Callable[[ForcedWriter], Any], model: Any, text: Sequence[int], *, alone: bool
) -> bool:
    # The text repeats itself at the distance of the lengths, so that the same tokens follow both.
    prompts = [PromptRead(list(text[:length]), _HEAD) for length in _LENGTHS]
    ids = torch.tensor([text[:-1]], device=model.device)
    mask, positions = torch.ones_like(ids), torch.arange(ids.shape[1], device=model.device)[None]
    whole = model(input_ids=ids, attention_mask=mask, position_ids=positions, use_cache=False)
    for batch in [[prompt] for prompt in prompts] if alone else [prompts]:
        writer = ForcedWriter(text[_LENGTHS[0] :])
        loop = make(writer)
        for _ in loop.passes(batch):
            pass
        while loop.is_writing(writer.logits):
            loop.step()
        for _, (answer, rows) in zip(batch, writer.logits.items(), strict=True):
            ours, first = torch.stack(rows), len(answer.prompt) - 1
            if not _are_alike(ours, whole.logits[0, first : first + len(ours)], model.dtype):
                return False
    return True


def check_encoder_decoder(model: Any, loop: T5, spec: ReaderSpec) -> None:
    """Refuse, by an InputError, an encoder-decoder model that the loop does not continue as one forward pass does."""
    texts = [[3 + i % 5 for i in range(length)] for length in _LENGTHS]
    given = [int(model.generation_config.decoder_start_token_id or 0), *range(4, 7)]

    @torch.inference_mode()
    def find() -> tuple[int, str]:
        encodings = loop.encodings([*_LENGTHS])
        for slot, states in zip(encodings.slots, loop.encode(texts), strict=True):
            encodings.put(slot, states)
        decoding = loop.decoding(encodings, [[Part(slot, 0)] for slot in encodings.slots])
        steps = [decoding.step([token] * len(texts)) for token in given]
        for text, ours in zip(texts, torch.stack(steps, 1).float().cpu(), strict=True):
            ids, written = (torch.tensor([part], device=model.device) for part in (text, given))
            right = model(input_ids=ids, decoder_input_ids=written, use_cache=False).logits[0]
            if not _are_alike(ours, right, model.dtype):
                return -1, _DIFFERS
        return OWN, ""

    _kept(spec, model, find, "give a model of the T5 family as transformers has it")


def _are_alike(ours: torch.Tensor, right: torch.Tensor, dtype: torch.dtype) -> bool:
    """Whether logits, (tokens, vocabulary), are the same at most tokens; those that are no numbers are told elsewhere."""
    right = right.float().cpu()
    if not right.isfinite().all():
        return True
    spread = (right - right.mean(-1, keepdim=True)).norm(dim=-1)
    return bool(((ours - right).norm(dim=-1) <= _BOUNDS[dtype] * spread).float().mean() > 0.5)


def _kept(spec: ReaderSpec, model: Any, find: Callable[[], tuple[int, str]], remedy: str) -> int:
    """The way that is found, once for weights, code, versions, precision and device; an InputError where there is none."""
    of = (
        f"{spec.weights} {spec.code} {spec.fused_attention} {model.dtype} {READING_VERSION} "
        f"{torch.__version__} {transformers.__version__} {device.describe(gpu=model.device.type == 'cuda')}"
    )
    file = cache_directory() / "loops" / digest(of.encode())
    way, reason = ALONE + 1, ""
    with contextlib.suppress(OSError, ValueError, TypeError):
        way, reason = json.loads(file.read_text(encoding="utf-8"))
    if way not in range(-1, ALONE + 1):
        way, reason = find()
        with contextlib.suppress(OSError, WriteError):  # it is found anew then
            write_text(json.dumps([way, reason]), file)
    if way < 0:
        raise InputError(
            f"a {model.config.model_type!r} model, which the loops of `engine` transformers do not continue ({reason})",
            remedy,
            "model.loop",
            path=spec.name,
        )
    return way
