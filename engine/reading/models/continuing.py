"""Check that this engine's loops continue a model as the model alone does, before its first read.

A loop passes a model the keys and values (or other states) of earlier tokens, and texts of other lengths with padding.
Models may ignore either without an error. The check runs a few forced tokens behind two texts in a
batch, and compares their logits with a single forward pass over the same tokens, without a cache or padding.
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

# Tokens of the two texts, of their shared head, and of their answers: few, so that they fit any
# window. One answer ends first, so that the loop must pick out the other one's row.
_LENGTHS, _HEAD, _ANSWERS = (7, 4), 2, (4, 6)
# Largest difference of logits, relative to their spread over the vocabulary; most tokens of a text must meet it, since
# rounding sometimes chooses another expert. Among some 150 families with random weights and a trained model of 30 layers,
# models that loops continue differed by at most 5e-6 in fp32, 0.003 in fp16 and 0.05 in bf16 (the trained one); models
# that ignore a cache or read padding differed by 0.5 or more, mostly 1.
_BOUNDS = {torch.float32: 1e-3, torch.float16: 0.05, torch.bfloat16: 0.2}
# The source of the texts' tokens.
_SAMPLE = "The river runs north of 7 old towns, and boats go there by night."
_DIFFERS = "behind a cache its logits are not those of one pass over the same tokens"
# Ways to run a decoder-only model, the fastest first: the reader's own; padded; without a shared head; and one
# text at a time.
OWN, PADDED, UNSHARED, ALONE = range(4)


class ForcedWriter:
    """Replaces a ``Writer``: forces the given tokens as answers, and keeps their logits."""

    padding, most = 0, max(_ANSWERS)

    def __init__(self, forced: Sequence[int]) -> None:
        self._forced = forced
        self.logits: dict[Continuation, list[torch.Tensor]] = {}

    def write(self, answers: Sequence[Continuation], logits: torch.Tensor) -> list[int]:
        on = []
        for place, (answer, row) in enumerate(zip(answers, logits, strict=True)):
            self.logits.setdefault(answer, []).append(row.float().cpu())
            most = _ANSWERS[list(self.logits).index(answer)]
            answer.tokens.append(self._forced[len(answer.tokens)])
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
    """The first way that continues a model as a forward pass does.

    Args:
        make: makes the loop of a way, with the writer of its answers.

    Raises:
        InputError: no way does.
    """
    # A single repeated token (unknown to a vocabulary of words) would hide errors: all mixtures would be equal.
    tokens = list(dict.fromkeys([*tokenizer.encode(_SAMPLE, add_special_tokens=False), 3, 4, 5]))
    text = (tokens[: _LENGTHS[0] - _LENGTHS[1]] * sum(_LENGTHS) * 2)[: _LENGTHS[0] + max(_ANSWERS)]

    def find() -> tuple[int, str]:
        reason = ""
        for way in ways:
            try:
                if _is_continued(functools.partial(make, way), model, text, alone=way == ALONE):
                    return way, ""
                reason = _DIFFERS
            except Exception as error:  # any error of a model's code
                if batching.is_out_of_memory(error) or device.is_fatal(error):
                    raise
                reason = " ".join(f"{type(error).__name__}: {error}".split())[:150]
        return -1, reason

    return _cached_way(spec, model, find, "use `engine` vllm")


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
    """Refuse an encoder-decoder model that the loop continues unlike a forward pass, by an InputError."""
    texts = [[3 + i % 5 for i in range(length)] for length in _LENGTHS]
    forced = [int(model.generation_config.decoder_start_token_id or 0), *range(4, 7)]

    @torch.inference_mode()
    def find() -> tuple[int, str]:
        encodings = loop.encodings([*_LENGTHS])
        for slot, states in zip(encodings.slots, loop.encode(texts), strict=True):
            encodings.put(slot, states)
        decoding = loop.decoding(encodings, [[Part(slot, 0)] for slot in encodings.slots])
        steps = [decoding.step([token] * len(texts)) for token in forced]
        for text, ours in zip(texts, torch.stack(steps, 1).float().cpu(), strict=True):
            ids, written = (torch.tensor([part], device=model.device) for part in (text, forced))
            right = model(input_ids=ids, decoder_input_ids=written, use_cache=False).logits[0]
            if not _are_alike(ours, right, model.dtype):
                return -1, _DIFFERS
        return OWN, ""

    _cached_way(spec, model, find, "give a model of the T5 family as transformers has it")


def _are_alike(ours: torch.Tensor, right: torch.Tensor, dtype: torch.dtype) -> bool:
    """Whether logits, (tokens, vocabulary), agree at most tokens; NaN and infinity are reported elsewhere."""
    right = right.float().cpu()
    if not right.isfinite().all():
        return True
    spread = (right - right.mean(-1, keepdim=True)).norm(dim=-1)
    return bool(((ours - right).norm(dim=-1) <= _BOUNDS[dtype] * spread).float().mean() > 0.5)


def _cached_way(
    spec: ReaderSpec, model: Any, find: Callable[[], tuple[int, str]], remedy: str
) -> int:
    """The result of ``find``, cached by weights, code, versions, precision and device; an InputError if no way works."""
    identity = (
        f"{spec.weights} {spec.code} {spec.fused_attention} {model.dtype} {READING_VERSION} "
        f"{torch.__version__} {transformers.__version__} {device.describe(gpu=model.device.type == 'cuda')}"
    )
    file = cache_directory() / "loops" / digest(identity.encode())
    way, reason = ALONE + 1, ""
    with contextlib.suppress(OSError, ValueError, TypeError):
        way, reason = json.loads(file.read_text(encoding="utf-8"))
    if way not in range(-1, ALONE + 1):
        way, reason = find()
        with contextlib.suppress(OSError, WriteError):  # a later process finds it again
            write_text(json.dumps([way, reason]), file)
    if way < 0:
        problem = f"a {model.config.model_type!r} model, which the loops of `engine` transformers do not continue ({reason})"
        raise InputError(problem, remedy, "model.loop", path=spec.name)
    return way
