"""Encoder-decoder readers: Fusion-in-Decoder and, for reads of a single input, plain generation.

Fusion-in-Decoder (Izacard & Grave, EACL 2021) encodes every (question, passage) on its own and lets the decoder attend
to all encodings at once. A read is a list of inputs; with one input this is the model's ordinary generation.

The decoder uses the same encoding of a passage alone and fused. So inputs that several reads of a call share are
encoded, and projected to cross-attention keys and values, once; and reads of a query are decoded together. eRAG and
end-to-end evaluation together cost little more than end-to-end evaluation alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import accumulate
from pathlib import Path

from engine.machine import batching, device
from engine.machine.model_files import end_tokens, refusals, shared_model, tokenizer_and_config
from engine.reading.answers import rule_of
from engine.reading.models import continuing
from engine.reading.models.decoding import Continuation, Writer, padded_length
from engine.reading.models.t5 import T5
from engine.reading.models.t5_attention import Encodings, Part, Slot
from engine.reading.models.tokenizing import Input, PromptRead, longest_input, parted, tokenize
from engine.reading.protocol import Finish, ReaderSpec, ReaderStats, ReadOutput

# Tokens that a CPU encodes at once: enough for full speed of its matrix products, few enough for
# intermediate results to stay in its caches.
CPU_CHUNK_TOKENS = 2048


@dataclass(frozen=True)
class _EncoderRead(PromptRead):
    """A read; its ``tokens`` are those of all ``inputs``."""

    inputs: Sequence[Input] = ()


class EncoderDecoderReader:
    """A T5-type model that encodes each input alone and decodes greedily from all encodings."""

    reads_ahead = False

    def __init__(self, spec: ReaderSpec) -> None:
        self._spec = spec
        self._device = device.prepare(spec)
        self._tokenizer, config = tokenizer_and_config(spec.path, spec.code)
        self._weights = model = shared_model(
            "encoder-decoder",
            Path(spec.path),
            name=spec.name,
            config=config,
            dtype=spec.dtype,
            code=spec.code,
            digest=spec.weights,
            device=self._device,
        )
        self.stats = ReaderStats()
        settings = model.generation_config
        self._writer = Writer(spec, self._tokenizer, end_tokens(settings), model)
        self._start = int(settings.decoder_start_token_id or 0)
        self._special = {*self._tokenizer.all_special_ids, int(model.config.pad_token_id or 0)}
        self._limit = longest_input(spec, model.config)
        self._rule = rule_of(spec)
        self._padded = self._device.type == "cuda"
        most = device.max_batch_tokens(self._device) if self._padded else CPU_CHUNK_TOKENS
        self._chunk_tokens = min(spec.batch_tokens or most, most)
        # Memory alone limits decoding; tokens need no limit.
        self._decoded_tokens = spec.batch_tokens or batching.UNBOUNDED

    def prepare(self) -> None:
        with refusals(self._spec.name):
            _ = self._allowance

    @cached_property
    def _model(self) -> T5:
        model, spec = self._weights, self._spec
        loop = T5(model, padded=self._padded, max_new_tokens=spec.max_new_tokens)
        continuing.check_encoder_decoder(model, loop, spec)
        if measured := device.token_cost(self._device, partial(self._probe, loop)):
            # The stored bytes of a token are exact, and bound the measurement from below.
            per_token = max(measured[1], float(loop.kept_per_token))
            loop.encode_cost = replace(loop.encode_cost, per_token=per_token)
            self.stats.token_bytes = int(measured[1])
        return loop

    @cached_property
    def _allowance(self) -> batching.Allowance:
        """Memory of batches, measured after the model ran: half for encodings, a quarter each to encode and decode."""
        _ = self._model
        weights = sum(p.numel() * p.element_size() for p in self._weights.parameters())
        return batching.Allowance(device.batch_memory(self._spec, self._device, weights))

    def read(self, inputs: Sequence[Sequence[str]]) -> list[ReadOutput]:
        return self.start(inputs)()

    def start(self, inputs: Sequence[Sequence[str]]) -> Finish:
        """Tokenize inputs, each once. See ``engine.reading.protocol.StartingReader``."""
        reads = self._reads(inputs)
        return lambda: self._generated(reads)

    def _reads(self, inputs: Sequence[Sequence[str]]) -> list[_EncoderRead]:
        inputs, targets = parted(inputs, self._spec)
        unique = list(dict.fromkeys(text for texts in inputs for text in texts))
        items = dict(zip(unique, self._tokenize(unique), strict=True))
        reads: list[_EncoderRead] = []
        for texts, target in zip(inputs, targets, strict=True):
            own = [items[text] for text in texts]
            tokens = [token for item in own for token in item.tokens]
            whole = len(tokens) + any(item.truncated for item in own)
            scored = () if target is None else self._tokenizer.encode(target)
            reads.append(_EncoderRead(tokens, 0, scored, target, whole, own))
        return reads

    def _tokenize(self, texts: Sequence[str]) -> list[Input]:
        special = self._spec.special_tokens
        return tokenize(self._tokenizer, texts, limit=self._limit, special_tokens=special)

    def _generated(self, reads: Sequence[_EncoderRead]) -> list[ReadOutput]:
        outputs: list[ReadOutput] = []
        for part in self._parts_in_memory(reads):
            before = self.stats.memory_halvings
            outputs += batching.run_halving(
                part, self._read_together, _EncoderRead.failed, self._count_halving
            )
            if self.stats.memory_halvings > before:
                # Later batches start smaller: the same size would fail again, for a while.
                most = max(sum(map(self._kept_bytes, read.inputs)) for read in part)
                self._allowance.ran_out(least=2.0 * most)
            else:
                self._allowance.went_well()
        self.stats.peak_memory = device.peak_memory(self._device)
        return outputs

    def _probe(self, loop: T5, tokens: int) -> None:
        """Encode made-up texts of this many tokens in total, to measure their memory."""
        whole, rest = divmod(tokens, self._limit)
        lengths = [self._limit] * whole + [rest] * (rest > 0)
        loop.encode([[self._start] * length for length in lengths])

    def _parts_in_memory(self, reads: Sequence[_EncoderRead]) -> Iterator[Sequence[_EncoderRead]]:
        """Reads in a row whose encodings fit half of the memory; at least one read each."""
        first, items, taken = 0, set[Input](), 0
        for position, read in enumerate(reads):
            new = set(read.inputs) - items
            more = sum(map(self._kept_bytes, new))
            if position > first and taken + more > self._allowance.bytes / 2:
                yield reads[first:position]
                first, items, taken = position, set(), 0
                new = set(read.inputs)
                more = sum(map(self._kept_bytes, new))
            items |= new
            taken += more
        if reads:
            yield reads[first:]

    def _kept_bytes(self, item: Input) -> int:
        return self._model.kept_per_token * padded_length(len(item.tokens))

    def _read_together(self, reads: Sequence[_EncoderRead]) -> list[ReadOutput]:
        items = _placed(reads)
        encodings = self._model.encodings([len(item.tokens) for item in items])
        slots = dict(zip(items, encodings.slots, strict=True))
        reasons = self._encode(encodings, slots)
        outputs: dict[int, ReadOutput] = {}
        for i, read in enumerate(reads):
            if bad := [reasons[item] for item in read.inputs if item in reasons]:
                outputs[i] = read.failed(f"an input: {bad[0]}")
        ready = [i for i in range(len(reads)) if i not in outputs]
        for batch in batching.cut_batches(
            [len(reads[i].tokens) for i in ready],
            cost=self._model.decode_cost,
            memory=self._allowance.bytes / 4,
            max_tokens=self._decoded_tokens,
        ):
            # Sorted, so that neighbours in memory are neighbours in the batch.
            places = sorted((ready[at] for at in batch), key=lambda i: _where(reads[i], slots))
            results = batching.run_halving(
                [reads[i] for i in places],
                lambda part: self._decode(part, encodings, slots),
                _EncoderRead.failed,
                self._count_halving,
            )
            outputs |= zip(places, results, strict=True)
        return [outputs[i] for i in range(len(reads))]

    def _count_halving(self) -> None:
        self.stats.memory_halvings += 1

    def _encode(self, encodings: Encodings, slots: dict[Input, Slot]) -> dict[Input, str]:
        """Fill the encodings of the items; returns reasons of failures by item."""
        reasons = {item: "it has no tokens" for item in slots if not item.tokens}
        items = [item for item in slots if item.tokens]

        def encode(part: Sequence[Input]) -> list[str]:
            texts = [item.tokens for item in part]
            for item, states in zip(part, self._model.encode(texts), strict=True):
                encodings.put(slots[item], states)
            tokens = sum(map(len, texts))
            self.stats.padded_tokens += tokens
            self.stats.prompt_tokens += tokens
            return [""] * len(part)

        for chunk in batching.cut_batches(
            [len(item.tokens) for item in items],
            cost=self._model.encode_cost,
            memory=self._allowance.bytes / 4,
            max_tokens=self._chunk_tokens,
        ):
            batch = [items[i] for i in chunk]
            failures = batching.run_halving(
                batch, encode, lambda _, reason: reason, self._count_halving
            )
            reasons |= {item: why for item, why in zip(batch, failures, strict=True) if why}
        return reasons

    def _decode(
        self, reads: Sequence[_EncoderRead], encodings: Encodings, slots: dict[Input, Slot]
    ) -> list[ReadOutput]:
        """Outputs of reads, decoded in lock-step; finished reads leave the batch."""
        decoding = self._model.decoding(encodings, [_parts(read, slots) for read in reads])
        answers = [
            Continuation(prompt=[self._start], encoded=read.tokens, target=read.target)
            for read in reads
        ]
        alive, latest = answers, [self._start] * len(reads)
        while going := self._writer.write(alive, decoding.step(latest)):
            if len(going) < len(alive):
                decoding.keep(going)
                alive = [alive[place] for place in going]
            latest = [answer.tokens[-1] for answer in alive]
        pairs = zip(answers, reads, strict=True)
        return [answer.output(read, self._rule, self._special) for answer, read in pairs]


def _order(item: Input) -> tuple[int, tuple[int, ...]]:
    """The order of inputs if it is free: by padded length."""
    return padded_length(len(item.tokens)), item.tokens


def _placed(reads: Sequence[_EncoderRead]) -> list[Input]:
    """Distinct inputs in the order of storage: those of a fused read together, then those of single reads; by length."""
    placed: dict[Input, None] = {}
    for read in reads:
        if len(read.inputs) > 1:
            placed |= dict.fromkeys(sorted(set(read.inputs) - placed.keys(), key=_order))
    single = {item for read in reads for item in read.inputs} - placed.keys()
    return [*placed, *sorted(single, key=_order)]


def _where(read: _EncoderRead, slots: dict[Input, Slot]) -> tuple[int, int, int]:
    """A sort key: single reads by the place of their input in storage, then fused reads."""
    slot = slots[read.inputs[0]]
    return len(read.inputs), slot.padded, slot.place


def _parts(read: _EncoderRead, slots: dict[Input, Slot]) -> list[Part]:
    """A read's inputs in the order of storage, so that neighbours stay neighbours."""
    offsets = accumulate((len(item.tokens) for item in read.inputs), initial=0)
    placed = sorted(zip(read.inputs, offsets, strict=False), key=lambda pair: _order(pair[0]))
    return [Part(slots[item], offset) for item, offset in placed]
