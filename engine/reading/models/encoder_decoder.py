"""Encoder-decoder readers: Fusion-in-Decoder and, for reads of a single input, plain generation.

Fusion-in-Decoder (Izacard & Grave, EACL 2021) encodes every (question, passage) on its own and lets the decoder attend
to all encodings at once. A read is a list of inputs; with one input this is the model's ordinary generation.

The decoder uses the same encoding of a passage alone and fused. So inputs that several reads of a call share are
encoded, and projected to cross-attention keys and values, once; and reads of a query are decoded together. eRAG and
end-to-end evaluation together cost little more than end-to-end evaluation alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property, partial
from itertools import accumulate
from pathlib import Path

from engine.machine import batching, device
from engine.machine.model_files import end_tokens, refusals, shared_model, tokenizer_and_config
from engine.reading.answers import chosen, rule_of, scored, with_own
from engine.reading.models import continuing
from engine.reading.models.decoding import (
    Greedy,
    Row,
    Stops,
    choose,
    first_tokens,
    log_probabilities,
    next_tokens,
)
from engine.reading.models.t5 import T5
from engine.reading.models.t5_attention import Encodings, Part, Slot, padded_length
from engine.reading.models.tokenizing import Input, longest_input, parted, tokenize
from engine.reading.protocol import Finish, ReaderSpec, ReaderStats, ReadOutput

# Tokens that a CPU encodes at once: enough for full speed of its matrix products, few enough for
# intermediate results to stay in its caches.
CPU_CHUNK_TOKENS = 2048


class _ReadInputs(list[Input]):
    """The inputs of a read; and the text to score, if any, with its tokens, the end token included."""

    target: str | None = None
    tokens: Sequence[int] = ()

    @property
    def prompt(self) -> list[int]:
        """The tokens of its inputs."""
        return [token for item in self for token in item.tokens]

    @property
    def truncated(self) -> bool:
        """Whether an input was cut."""
        return any(item.truncated for item in self)


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
        self._end_tokens = end_tokens(settings)
        self._greedy = Greedy(spec, model, spec.max_new_tokens)
        self._start = int(settings.decoder_start_token_id or 0)
        self._special = {*self._tokenizer.all_special_ids, int(model.config.pad_token_id or 0)}
        self._limit = longest_input(spec, model.config)
        self._rule = rule_of(spec)
        self._stops = Stops(self._tokenizer, self._rule)
        self._choices = first_tokens(self._tokenizer, spec.choices, spec.name)
        self._padded = self._device.type == "cuda"
        most = device.max_batch_tokens(self._device) if self._padded else CPU_CHUNK_TOKENS
        self._chunk_tokens = min(spec.batch_tokens or most, most)
        # Memory alone limits decoding; tokens need no limit.
        self._decoded_tokens = spec.batch_tokens or batching.UNBOUNDED

    def prepare(self) -> None:
        """See ``engine.reading.protocol.LoopReader``."""
        with refusals(self._spec.name):
            _ = self._allowance

    @cached_property
    def _model(self) -> T5:
        model, spec = self._weights, self._spec
        loop = T5(model, padded=self._padded, max_new_tokens=spec.max_new_tokens)
        continuing.check_encoder_decoder(model, loop, spec)
        self._encode_cost = loop.encode_cost
        if measured := device.token_cost(self._device, partial(self._probe, loop)):
            # The stored bytes of a token are exact, and bound the measurement from below.
            per_token = max(measured[1], float(loop.kept_per_token))
            self._encode_cost = replace(self._encode_cost, per_token=per_token)
            self.stats.token_bytes = int(measured[1])
        return loop

    @cached_property
    def _allowance(self) -> batching.Allowance:
        """Memory of batches, measured after the model ran: half for encodings, a quarter each to encode and decode."""
        _ = self._model
        weights = sum(p.numel() * p.element_size() for p in self._weights.parameters())
        return batching.Allowance(device.batch_memory(self._spec, self._device, weights))

    def read(self, inputs: Sequence[Sequence[str]]) -> list[ReadOutput]:
        """Generate outputs from reads' inputs. See ``engine.reading.protocol.Reader``."""
        return self.start(inputs)()

    def start(self, inputs: Sequence[Sequence[str]]) -> Finish:
        """Tokenize inputs, each once. See ``engine.reading.protocol.StartingReader``."""
        reads = self._reads(inputs)
        return lambda: self._generated(reads)

    def _reads(self, inputs: Sequence[Sequence[str]]) -> list[_ReadInputs]:
        inputs, targets = parted(inputs, self._spec)
        unique = list(dict.fromkeys(text for texts in inputs for text in texts))
        items = dict(zip(unique, self._tokenize(unique), strict=True))
        reads = [_ReadInputs(items[text] for text in texts) for texts in inputs]
        for read, target in zip(reads, targets, strict=True):
            if target is not None:
                read.target, read.tokens = target, self._tokenizer.encode(target)
        return reads

    def _tokenize(self, texts: Sequence[str]) -> list[Input]:
        special = self._spec.special_tokens
        return tokenize(self._tokenizer, texts, limit=self._limit, special_tokens=special)

    def _generated(self, reads: Sequence[_ReadInputs]) -> list[ReadOutput]:
        outputs: list[ReadOutput] = []
        for first, last in self._held_together(reads):
            before = self.stats.memory_halvings
            outputs += batching.run_halving(
                reads[first:last], self._read_together, _failed, self._count_halving
            )
            if self.stats.memory_halvings > before:
                # Later batches start smaller: the same size would fail again, for a while.
                most = max(sum(map(self._kept_bytes, read)) for read in reads[first:last])
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

    def _held_together(self, reads: Sequence[_ReadInputs]) -> Iterator[tuple[int, int]]:
        """Ranges of reads whose encodings fit half of the memory; at least one read each."""
        first, held, taken = 0, set[Input](), 0
        for position, read in enumerate(reads):
            new = set(read) - held
            more = sum(map(self._kept_bytes, new))
            if position > first and taken + more > self._allowance.bytes / 2:
                yield first, position
                first, held, taken = position, set(), 0
                new = set(read)
                more = sum(map(self._kept_bytes, new))
            held |= new
            taken += more
        if reads:
            yield first, len(reads)

    def _kept_bytes(self, item: Input) -> int:
        return self._model.kept_per_token * padded_length(len(item.tokens))

    def _read_together(self, reads: Sequence[_ReadInputs]) -> list[ReadOutput]:
        items = _placed(reads)
        encodings = self._model.encodings([len(item.tokens) for item in items])
        slots = dict(zip(items, encodings.slots, strict=True))
        reasons = self._encode(items, encodings)
        outputs: list[ReadOutput | None] = [None] * len(reads)
        for i, read in enumerate(reads):
            if bad := [reasons[item] for item in read if item in reasons]:
                outputs[i] = _failed(read, f"an input: {bad[0]}")
        ready = [i for i, output in enumerate(outputs) if output is None]
        for batch in batching.cut_batches(
            [len(reads[i].prompt) for i in ready],
            cost=self._model.decode_cost,
            memory=self._allowance.bytes / 4,
            max_tokens=self._decoded_tokens,
        ):
            # Sorted, so that neighbours in memory are neighbours in the batch.
            batched = sorted(
                (ready[place] for place in batch), key=lambda i: _where(reads[i], slots)
            )
            results = batching.run_halving(
                batched,
                lambda part: self._decode([reads[i] for i in part], encodings, slots),
                lambda i, reason: _failed(reads[i], reason),
                self._count_halving,
            )
            for i, result in zip(batched, results, strict=True):
                outputs[i] = result
        return [output for output in outputs if output is not None]

    def _count_halving(self) -> None:
        self.stats.memory_halvings += 1

    def _encode(self, items: Sequence[Input], encodings: Encodings) -> dict[Input, str]:
        """Fill the encodings of the items; returns reasons of failures by item."""
        reasons = {item: "it has no tokens" for item in items if not item.tokens}
        places = [i for i, item in enumerate(items) if item.tokens]
        for chunk in batching.cut_batches(
            [len(items[i].tokens) for i in places],
            cost=self._encode_cost,
            memory=self._allowance.bytes / 4,
            max_tokens=self._chunk_tokens,
        ):
            failures = batching.run_halving(
                [places[i] for i in chunk],
                lambda part: self._encode_chunk(
                    [items[i] for i in part], [encodings.slots[i] for i in part], encodings
                ),
                lambda i, reason: (items[i], reason),
                self._count_halving,
            )
            reasons |= dict(failure for failure in failures if failure)
        return reasons

    def _encode_chunk(
        self, items: Sequence[Input], slots: Sequence[Slot], encodings: Encodings
    ) -> list[tuple[Input, str] | None]:
        kept = self._model.encode([item.tokens for item in items])
        for slot, states in zip(slots, kept, strict=True):
            encodings.put(slot, states)
        tokens = sum(len(item.tokens) for item in items)
        self.stats.padded_tokens += tokens
        self.stats.prompt_tokens += tokens
        return [None] * len(items)

    def _decode(
        self, reads: Sequence[_ReadInputs], encodings: Encodings, slots: dict[Input, Slot]
    ) -> list[ReadOutput]:
        """Outputs of reads, decoded in lock-step; finished reads leave the batch."""
        decoding = self._model.decoding(encodings, [_parts(read, slots) for read in reads])
        if self._choices:
            logits = decoding.step([self._start] * len(reads))
            made = choose(logits, self._spec.choices, self._choices)
            return [
                chosen(*choice, len(read.prompt), truncated=read.truncated)
                for read, choice in zip(reads, made, strict=True)
            ]
        written: list[list[int]] = [[] for _ in reads]
        alive = list(range(len(reads)))
        latest = [self._start] * len(reads)
        logs: list[list[float]] = [[] for _ in reads]
        ended = ["length"] * len(reads)
        given = reads[0].target is not None  # in all reads of a call, or in none
        while True:
            logits = decoding.step(latest)
            if given:
                tokens = [reads[row].tokens[len(written[row])] for row in alive]
            else:
                rows = (Row([self._start], written[row], reads[row].prompt) for row in alive)
                tokens = next_tokens(self._greedy.scores(logits, rows))
            if self._spec.scores:
                for row, log in zip(alive, log_probabilities(logits, tokens), strict=True):
                    logs[row].append(log)
            going: list[int] = []
            for place, (row, token) in enumerate(zip(alive, tokens, strict=True)):
                if token in self._end_tokens and not given:
                    ended[row] = "end"
                    continue
                written[row].append(token)
                most = len(reads[row].tokens) or self._spec.max_new_tokens
                if len(written[row]) < most and (given or not self._stopped(written[row])):
                    going.append(place)
            if not going:
                break
            if len(going) < len(alive):
                decoding.keep(going)
                alive = [alive[place] for place in going]
            latest = [written[row][-1] for row in alive]
        texts = self._tokenizer.batch_decode(written, skip_special_tokens=True)
        outputs: list[ReadOutput] = []
        for read, tokens, text, by, own in zip(reads, written, texts, ended, logs, strict=True):
            size, cut = len(read.prompt), read.truncated
            if read.target is not None:
                outputs.append(scored(read.target, own, size, truncated=cut))
                continue
            count = sum(token not in self._special for token in tokens)
            output = self._rule.output(text, size, count, truncated=cut, ended=by)
            outputs.append(with_own(output, own))
        return outputs

    def _stopped(self, tokens: list[int]) -> bool:
        if not self._stops.may_end(tokens[-1]):
            return False
        text = self._tokenizer.decode(tokens, skip_special_tokens=True)
        return self._rule.parts(text).is_ended


def _order(item: Input) -> tuple[int, tuple[int, ...]]:
    """The order of inputs if it is free: by padded length."""
    return padded_length(len(item.tokens)), item.tokens


def _placed(reads: Sequence[_ReadInputs]) -> list[Input]:
    """Distinct inputs of reads in the order of storage: inputs of a fused read together, by length; further inputs of
    single reads at the end, by length.
    """
    placed: dict[Input, None] = {}
    for read in reads:
        if len(read) > 1:
            placed |= dict.fromkeys(sorted(set(read) - placed.keys(), key=_order))
    single = {item for read in reads for item in read} - placed.keys()
    return [*placed, *sorted(single, key=_order)]


def _where(read: _ReadInputs, slots: dict[Input, Slot]) -> tuple[int, int, int]:
    """A sort key: single reads by the place of their input in storage, then fused reads."""
    slot = slots[read[0]]
    return len(read), slot.padded, slot.place


def _parts(read: _ReadInputs, slots: dict[Input, Slot]) -> list[Part]:
    """A read's inputs in the order of storage, so that neighbours stay neighbours."""
    offsets = accumulate((len(item.tokens) for item in read), initial=0)
    placed = sorted(zip(read, offsets, strict=False), key=lambda pair: _order(pair[0]))
    return [Part(slots[item], offset) for item, offset in placed]


def _failed(read: _ReadInputs, reason: str) -> ReadOutput:
    return ReadOutput.failed(reason, prompt_tokens=len(read.prompt))
