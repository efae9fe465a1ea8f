"""Random models of real shapes, made where they run; what they are asked; and what transformers answers.

Their weights mean nothing. They are drawn so that answers depend on the prompt, and that the words of the output
layer have lengths that differ much: the best word is then far ahead of the next one, and rounding seldom changes it.
"""

from __future__ import annotations

import contextlib
import gc
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal
from unittest import mock

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import (
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    BertConfig,
    LlamaConfig,
    PreTrainedTokenizerFast,
    T5Config,
)
from transformers.modeling_outputs import BaseModelOutput

from engine.machine import device
from engine.machine.device import Dtype
from engine.reading.models.causal import CausalReader
from engine.reading.models.encoder_decoder import EncoderDecoderReader
from engine.reading.protocol import ReaderSpec, ReadOutput
from tests.gpu_first.scale import GIB, Scale, Shape

Reads = list[list[str]]
Side = Literal["left", "right"]
_PAD, _END, _BEGIN = 0, 1, 2
_LOADERS = {"llama": AutoModelForCausalLM, "t5": AutoModelForSeq2SeqLM, "bert": AutoModel}
# What generate gets at once.
_ROWS = 16


@contextlib.contextmanager
def folder(room: int = 0) -> Iterator[Path]:
    """A folder for models: in main memory where that has so many bytes free, which is read the fastest."""
    memory = Path("/dev/shm")
    with contextlib.suppress(OSError):
        if shutil.disk_usage(memory).free < room + 4 * GIB:
            memory = Path(tempfile.gettempdir())
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as name:
        yield Path(name)


def here() -> torch.device:
    return torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")


def synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def free() -> None:
    """Give back what nobody holds."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def free_all() -> None:
    """Give back what nobody holds; the next model may have all of the GPU, and the peak is its own."""
    free()
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
        torch.cuda.set_per_process_memory_fraction(1.0)


@contextlib.contextmanager
def tf32(on: bool) -> Iterator[None]:
    """Products of fp32 matrices by TF32, or not."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if on else "highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def make(shape: Shape, target: Path, dtype: Dtype) -> None:
    """A random model with a tokenizer of as many words, made on the device and saved.

    The decoder's output layer is its own, also where the model of that shape has it in common with its input: what
    is random would otherwise say the last word again.
    """
    torch.manual_seed(11)
    with torch.device(here()):
        model = _LOADERS[shape.family].from_config(
            _config(shape), dtype=getattr(torch, dtype), trust_remote_code=False
        )
    with torch.no_grad():
        _spread(model, shape)
    model.to("cpu").save_pretrained(target)
    _save_tokenizer(shape, target)
    del model
    free()


def _config(shape: Shape) -> Any:
    special = {"pad_token_id": _PAD, "eos_token_id": _END, "bos_token_id": _BEGIN}
    if shape.family == "llama":
        return LlamaConfig(
            vocab_size=shape.words,
            hidden_size=shape.hidden,
            intermediate_size=shape.feed_forward,
            num_hidden_layers=shape.layers,
            num_attention_heads=shape.heads,
            num_key_value_heads=shape.groups,
            head_dim=shape.width,
            max_position_embeddings=8192,
            tie_word_embeddings=False,
            **special,
        )
    if shape.family == "t5":
        return T5Config(
            vocab_size=shape.words,
            d_model=shape.hidden,
            d_kv=shape.width,
            d_ff=shape.feed_forward,
            num_layers=shape.layers,
            num_heads=shape.heads,
            decoder_start_token_id=_PAD,
            tie_word_embeddings=False,
            pad_token_id=_PAD,
            eos_token_id=_END,
        )
    return BertConfig(
        vocab_size=shape.words,
        hidden_size=shape.hidden,
        intermediate_size=shape.feed_forward,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        pad_token_id=_PAD,
    )


def _spread(model: Any, shape: Shape) -> None:
    """Give the words of the output layer lengths that differ much, and T5 attention that depends on places."""
    if shape.family == "bert":
        return
    weight = model.get_output_embeddings().weight
    lengths = torch.empty(shape.words, 1, device=weight.device).log_normal_(0, 0.3)
    weight.mul_(lengths.to(weight.dtype))
    weight[[_PAD, _END, _BEGIN]] = 0  # no answer ends early, and none is empty
    if (
        shape.family == "t5"
    ):  # a decoder that hears a few words of the encoder rather than its own last one
        model.get_input_embeddings().weight.mul_(0.02)
    for name, module in model.named_modules():
        if getattr(module, "has_relative_attention_bias", False):
            module.relative_attention_bias.weight.normal_(0, 1)
        if name.endswith("EncDecAttention.q"):
            module.weight.mul_(4)


def _save_tokenizer(shape: Shape, target: Path) -> None:
    words = ["<pad>", "</s>", "<s>", *(f"w{i}" for i in range(shape.words - 3))]
    tokenizer = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="<pad>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    begun = shape.family == "llama"
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A" if begun else "$A </s>",
        special_tokens=[("<s>", _BEGIN) if begun else ("</s>", _END)],
    )
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="</s>", bos_token="<s>"
    ).save_pretrained(target)


def spec_of(
    shape: Shape, path: Path, dtype: Dtype, scale: Scale, *, memory: int = 0, **changes: Any
) -> ReaderSpec:
    """The specification of a reader; the digest of its weights is not asked for."""
    decoder = shape.family == "llama"
    spec = ReaderSpec(
        weights=f"random {shape} {dtype}",
        architecture="causal" if decoder else "encoder-decoder",
        dtype=dtype,
        max_new_tokens=scale.new,
        stop=(),
        max_input_tokens=0 if decoder else 250,
        path=str(path),
        parameters=2 * shape.words * shape.hidden
        + (1 if decoder else 3) * shape.layers * layer_of(shape),
        name=f"random {shape.family} of {shape.layers} layers",
        memory=memory,
    )
    return replace(spec, **changes)


def load(spec: ReaderSpec) -> Any:
    """The engine's own reader in this process; a decoder's, or Fusion-in-Decoder's."""
    reader = CausalReader(spec) if spec.architecture == "causal" else EncoderDecoderReader(spec)
    reader.prepare()
    return reader


@contextlib.contextmanager
def on_the_cpu() -> Iterator[None]:
    """Readers and encoders that are loaded in the block are on the CPU, where decoders pack their batches."""
    with mock.patch.object(device, "prepare", return_value=torch.device("cpu")):
        yield


def prompts(count: int, scale: Scale, *, shared: int = 0) -> Reads:
    """Prompts of 8 to 160 words, of which so many are the same in all."""
    words = scale.small.words - 3
    head = " ".join(f"w{(31 * j + 5) % words}" for j in range(shared))
    return [
        [f"{head} " * bool(head) + " ".join(f"w{(7919 * i + 104_729 * j * (i + 3)) % words}" for j in range(8 + 19 * i % 153))]
        for i in range(count)
    ]  # fmt: skip


def lists(count: int, scale: Scale, passages: int = 3, length: int = 0) -> Reads:
    """Fused reads of several passages of 6 to 120 words, or of so many."""
    words = scale.base.words - 3
    return [
        [
            " ".join(f"w{(7919 * i + 6151 * p + 104_729 * j * (i + p + 3)) % words}" for j in range(length or 6 + (37 * i + 11 * p) % 115))
            for p in range(passages)
        ]
        for i in range(count)
    ]  # fmt: skip


def written(done: Sequence[ReadOutput]) -> list[str]:
    """The outputs of reads.

    Raises:
        AssertionError: some failed, which would be alike wherever they are read.
    """
    failures = [read.failure for read in done if read.failure is not None]
    assert not failures, f"{len(failures)} reads failed: {failures[0]}"
    return [read.output for read in done]


class Peer:
    """transformers' ``generate`` in batches of 16, longest first; with several inputs to a read they are fused."""

    def __init__(self, spec: ReaderSpec) -> None:
        self._spec = spec
        causal = spec.architecture == "causal"
        side: Side = "left" if causal else "right"
        self.tokenizer = PreTrainedTokenizerFast.from_pretrained(
            spec.path, padding_side=side, local_files_only=True, trust_remote_code=False
        )
        self.model: Any = _LOADERS["llama" if causal else "t5"].from_pretrained(
            spec.path,
            dtype=getattr(torch, spec.dtype),
            local_files_only=True,
            trust_remote_code=False,
            device_map={"": here()},
        )
        self.model = self.model.eval()

    def read(self, reads: Reads, rows: int = _ROWS) -> list[str]:
        order = sorted(range(len(reads)), key=lambda i: -sum(map(len, reads[i])))
        outputs = [""] * len(reads)
        for start in range(0, len(order), rows):
            places = order[start : start + rows]
            for place, text in zip(places, self._batch([reads[i] for i in places]), strict=True):
                outputs[place] = text
        return outputs

    def _batch(self, reads: Reads) -> list[str]:
        made = self._generated(reads).sequences
        texts = self.tokenizer.batch_decode(made.tolist(), skip_special_tokens=True)
        return [text.strip() for text in texts]

    def gap(self, read: list[str], one: str, other: str) -> tuple[float, int]:
        """The gap of the two best logits where two outputs of a read part, and that token's place.

        That is the first token by which what is generated here is not the beginning of both; of choices, the first.
        """
        made = self._generated([read], output_logits=True)
        logits, place = made.logits, 0
        best = logits[0][0]
        if choices := self._spec.choices:
            known = self.tokenizer(list(choices), add_special_tokens=False).input_ids
            best = best[[tokens[0] for tokens in known]]
        else:
            ids = made.sequences[0, -len(logits) :].tolist()
            for place in range(len(ids)):
                text = self.tokenizer.decode(ids[: place + 1], skip_special_tokens=True).strip()
                if not (one.startswith(text) and other.startswith(text)):
                    break
            best = logits[place][0]
        first, second = best.float().topk(2).values.tolist()
        return first - second, place

    @torch.inference_mode()
    def _generated(self, reads: Reads, **more: Any) -> Any:
        most = self._spec.max_input_tokens
        tokens = self.tokenizer(
            [text for read in reads for text in read],
            return_tensors="pt",
            padding=True,
            truncation=bool(most),
            max_length=most or None,
        )
        ids, mask = (tokens[name].to(here()) for name in ("input_ids", "attention_mask"))
        options: dict[str, Any] = {
            "max_new_tokens": self._spec.max_new_tokens,
            "do_sample": False,
            "pad_token_id": _PAD,
            "return_dict_in_generate": True,
        }
        if self._spec.architecture == "causal":
            made = self.model.generate(input_ids=ids, attention_mask=mask, **options, **more)
            made.sequences = made.sequences[:, ids.shape[1] :]
            return made
        states = self.model.get_encoder()(input_ids=ids, attention_mask=mask)[0]
        return self.model.generate(
            encoder_outputs=BaseModelOutput(
                last_hidden_state=states.reshape(len(reads), -1, states.shape[-1])
            ),
            attention_mask=mask.reshape(len(reads), -1),
            **options,
            **more,
        )


def gaps(
    spec: ReaderSpec, reads: Reads, differ: Sequence[tuple[int, str, str]]
) -> list[tuple[float, int]]:
    """How near to a tie reads are that have two outputs, by ``generate``; see ``Peer.gap``."""
    peer = Peer(spec)
    found = [peer.gap(reads[i], one, other) for i, one, other in differ]
    del peer
    free()
    return found


def layer_of(shape: Shape) -> int:
    """Parameters of a layer; one of T5's decoder has nearly twice as many."""
    attention = 2 * shape.hidden * shape.width * (shape.heads + shape.groups)
    return attention + (3 if shape.family == "llama" else 2) * shape.hidden * shape.feed_forward


def timed(read: Any, reads: Reads, warm: int = 2) -> float:
    """Reads a second; what a first call sets up, of so many reads, is not measured."""
    if warm:
        read(reads[:warm])
    synchronize()
    start = time.perf_counter()
    read(reads)
    synchronize()
    return len(reads) / (time.perf_counter() - start)


def offline() -> None:
    """Nothing is looked up, and nothing said of loading."""
    from transformers.utils import logging

    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    logging.disable_progress_bar()
