"""Read with decoder-only models: prompts to tokens, tokens to answers, within a budget of memory.

Own loops decode greedily: shared beginnings are computed once, and finished reads leave the batch. On a CPU, models
in ``engine.reading.models.attention.FAMILIES`` run without padding. Outputs equal ``generate``'s (tested in fp32).
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

from transformers import PretrainedConfig

from engine.machine import batching, device
from engine.machine.model_files import end_tokens, refusals, shared_model, tokenizer_and_config
from engine.reading.answers import Rule, rule_of
from engine.reading.models import attention, continuing, layers
from engine.reading.models.decoding import Continuation, Writer
from engine.reading.models.packed import PackedModel, WindowedModel
from engine.reading.models.padded import PaddedModel
from engine.reading.models.tokenizing import PromptRead, PromptReader
from engine.reading.protocol import Finish, ReaderSpec, ReaderStats, ReadOutput

_ENDED = object()  # no further pass


class CausalReader(PromptReader):
    """A decoder-only model that continues prompts greedily until a stop string or the end token."""

    def __init__(self, spec: ReaderSpec) -> None:
        self._rule = rule_of(spec)
        self._device = device.prepare(spec)
        tokenizer, config = tokenizer_and_config(spec.path, spec.code)
        # Some models' position codes depend on the longest text of a batch: they read texts one at a time.
        scaling = getattr(config, "rope_parameters", None) or {}
        self._alone = scaling.get("rope_type") in ("dynamic", "longrope")
        window = _window(config)
        known = config.model_type in attention.FAMILIES and not (self._alone or spec.code)
        packs = known and window != 0 and self._device.type == "cpu"
        orders = packs and layers.pays(spec)
        model = shared_model(
            "causal",
            Path(spec.path),
            name=spec.name,
            config=config,
            dtype=spec.dtype,
            code=spec.code,
            digest=spec.weights,
            device=self._device,
            mapped=not orders,
        )
        if packs:
            layers.reuse_tensors(model)
        if orders:
            layers.order_weights(model)
        self.stats = ReaderStats()
        self._writer = Writer(spec, tokenizer, end_tokens(model.generation_config), model)
        self._decoder, self._window, self._packs = model, window, packs
        positions = int(getattr(config, "max_position_embeddings", 0) or 0)
        self._positions = positions or batching.UNBOUNDED
        self._most_tokens = device.max_batch_tokens(self._device)
        longest = max(1, positions - max(1, self._writer.most)) if positions else 0
        super().__init__(spec, tokenizer, spec.max_input_tokens or longest)
        self._waiting: list[weakref.ref[_Call]] = []
        self._ahead: _Call | None = None

    def prepare(self) -> None:
        with refusals(self._spec.name):
            _ = self._allowance

    @cached_property
    def _model(self) -> PackedModel | PaddedModel:
        ways = [] if self._alone else [continuing.OWN, continuing.PADDED, continuing.UNSHARED]
        way = continuing.way_of(
            lambda way, forced: self._loop(way, forced, ReaderStats()),
            [*ways, continuing.ALONE],
            self._decoder,
            self._tokenizer,
            self._spec,
        )
        self.stats.alone = int(way == continuing.ALONE and not self._alone)
        self._alone = self._alone or way == continuing.ALONE
        loop = self._loop(way, self._writer, self.stats)
        bounds = self._positions, self._packs and self._window
        if measured := device.token_cost(self._device, loop.probe, most=min(filter(None, bounds))):
            loop.learn(*measured)
            self.stats.token_bytes = int(measured[1])
        self.stats.prompt_tokens = self.stats.padded_tokens = 0  # do not count the probes
        return loop

    @cached_property
    def _allowance(self) -> batching.Allowance:
        _ = self._model
        # Ordered weights are buffers.
        tensors = chain(self._decoder.parameters(), self._decoder.buffers())
        weights = sum(t.numel() * t.element_size() for t in tensors)
        return batching.Allowance(device.batch_memory(self._spec, self._device, weights))

    def _loop(self, way: int, writer: Any, stats: ReaderStats) -> PackedModel | PaddedModel:
        parts, shares = (self._decoder, writer, stats), self._window is None and not self._alone
        padded = PaddedModel(*parts, shares=shares and way < continuing.UNSHARED)
        if not self._packs or way != continuing.OWN:
            return padded
        options: dict[str, Any] = {"head": self._head, "fused": self._spec.fused_attention}
        if self._window:
            return WindowedModel(*parts, window=self._window, padded=padded, **options)
        return PackedModel(*parts, **options)

    @property
    def reads_ahead(self) -> bool:
        """Only written answers overlap with later reads. See ``engine.reading.protocol.StartingReader``."""
        return self._spec.writes and isinstance(self._model, PackedModel)

    def read(self, inputs: Sequence[Sequence[str]]) -> list[ReadOutput]:
        return self._do(_Call(self._reads(inputs)), ahead=False)

    def start(self, inputs: Sequence[Sequence[str]]) -> Finish:
        """Tokenize prompts; the previous call may read some. See ``engine.reading.protocol.StartingReader``."""
        call = _Call(self._reads(inputs))
        if self.reads_ahead:
            self._waiting.append(weakref.ref(call))
        return lambda: self._do(call)

    def _do(self, call: _Call, *, ahead: bool = True) -> list[ReadOutput]:
        """Do the reads of a call, and read prompts of the next waiting call while the last answers are written."""
        # In place: another thread may be starting a call.
        for waiting in [other for other in self._waiting if other() in (None, call)]:
            self._waiting.remove(waiting)
        if self._ahead not in (None, call):  # out of turn
            self._forget()
        self._ahead = None
        self._charge(call.owed)
        halvings = self.stats.memory_halvings
        try:
            for _ in self._passes_of(call):
                pass
            answers = [a for a in call.answers.values() if isinstance(a, Continuation)]
            while self._model.is_writing(answers):
                self._ahead = self._ahead or (self._next() if ahead else None)
                if self._ahead is None or not self._passes_ahead(self._ahead):
                    self._model.step()
        except BaseException as error:
            # The next call may be at fault, too: it is read again in its turn, not earlier.
            self._forget()
            if batching.is_out_of_memory(error):  # between batches, where nothing can be halved
                self._count_halving()
            if self.stats.memory_halvings > halvings:
                self._allowance.ran_out()
            raise
        if self._ahead is None:
            self._model.drop()  # another reader may have the memory
        self.stats.peak_memory = device.peak_memory(self._device)
        return call.outputs(self._rule)

    def _passes_ahead(self, call: _Call) -> bool:
        """Run a pass of the call; returns whether any was left. The call's own turn is charged for its cost."""
        start, stats = time.perf_counter_ns(), self.stats
        before = stats.prompt_tokens, stats.padded_tokens
        went = next(self._passes_of(call), _ENDED) is not _ENDED
        prompt, padded = stats.prompt_tokens - before[0], stats.padded_tokens - before[1]
        cost = prompt, padded, time.perf_counter_ns() - start
        self._charge(-part for part in cost)
        call.owed = tuple(map(sum, zip(call.owed, cost, strict=True)))
        return went

    def _charge(self, cost: Iterable[int]) -> None:
        prompt, padded, nanoseconds = cost
        self.stats.prompt_tokens += prompt
        self.stats.padded_tokens += padded
        self.stats.nanoseconds_ahead -= nanoseconds

    def _next(self) -> _Call | None:
        calls = (waiting() for waiting in self._waiting)
        return next((call for call in calls if call and not call.failed), None)

    def _forget(self) -> None:
        """Discard reads done ahead of their call's turn."""
        if (call := self._ahead) is not None:
            call.answers, call.passes, call.failed = {}, None, True
        self._ahead = None
        self._model.drop()

    def _passes_of(self, call: _Call) -> Iterator[None]:
        call.passes = call.passes or self._passes(call)
        return call.passes

    def _passes(self, call: _Call) -> Iterator[None]:
        loop, reads = self._model, call.reads
        for i, read in enumerate(reads):
            if (refused := read.refused(self._positions)) is not None:
                call.answers[i] = refused
        readable = [i for i in range(len(reads)) if i not in call.answers]

        def passes(part: Sequence[int]) -> batching.Passes[list[Continuation | ReadOutput]]:
            return (yield from loop.passes([reads[i] for i in part]))

        before = self.stats.memory_halvings
        for places in loop.batches(
            [reads[i] for i in readable],
            memory=self._allowance.bytes,
            max_tokens=1 if self._alone else self._spec.batch_tokens or self._most_tokens,
        ):
            batch = [readable[place] for place in places]
            answers = yield from batching.halving(
                batch, passes, lambda i, reason: reads[i].failed(reason), self._count_halving
            )
            call.answers |= zip(batch, answers, strict=True)
        if self.stats.memory_halvings > before:
            # Reads of later calls start smaller for a while: the same size would probably fail again.
            self._allowance.ran_out()
        elif self._allowance.went_well():
            loop.grow()

    def _count_halving(self) -> None:
        self.stats.memory_halvings += 1
        self._model.shrink()


@dataclass(eq=False)
class _Call:
    """The reads of a call to ``read`` or ``start``.

    Attributes:
        answers: by the places of reads, their answers, perhaps under way, or the outputs of refused and failed reads.
        passes: the passes that do the reads; None before the first.
        failed: whether reads failed ahead of the call's turn.
        owed: cost of passes ahead of the call's turn: tokens of prompts, tokens with padding, and nanoseconds.
    """

    reads: Sequence[PromptRead]
    answers: dict[int, Continuation | ReadOutput] = field(default_factory=dict)
    passes: Iterator[None] | None = None
    failed: bool = False
    owed: tuple[int, ...] = (0, 0, 0)

    def outputs(self, rule: Rule) -> list[ReadOutput]:
        pairs = ((read, self.answers[i]) for i, read in enumerate(self.reads))
        return [a if isinstance(a, ReadOutput) else a.output(read, rule) for read, a in pairs]


def _window(config: PretrainedConfig) -> int | None:
    """The smallest attention window of the model's layers, in tokens; None for all tokens, 0 if unknown."""
    limited = set(getattr(config, "layer_types", None) or []) - {"full_attention"}
    window = getattr(config, "sliding_window", None)
    if not (limited or window):
        return None
    return int(window or 0) if limited <= {"sliding_attention"} else 0
