"""Decoder-only readers: prompts to tokens, tokens to answers, within the memory that was given.

Greedy decoding with our own loops instead of ``generate``: what prompts share is computed once,
finished reads leave the batch, and on a CPU, for the models that ``engine.reading.models.attention`` knows,
nothing is padded. Outputs equal ``generate``'s (tested in fp32).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from pathlib import Path

from transformers import AutoConfig, AutoTokenizer, PretrainedConfig

from engine.machine import batching, device
from engine.machine.model_files import refuse_missing
from engine.machine.model_loading import shared_model
from engine.reading.answers import Rule, rule_of, scored, with_own
from engine.reading.models import attention, ordered
from engine.reading.models.decoding import Step, TokenizedPrompt, Writer, Written
from engine.reading.models.grounding import Weighed, finish
from engine.reading.models.packed import PackedModel
from engine.reading.models.padded import PaddedModel
from engine.reading.models.sharing import common_length
from engine.reading.models.targets import PromptRead, PromptReader
from engine.reading.models.windowed import WindowedModel
from engine.reading.protocol import Finish, ReaderSpec, ReaderStats, ReadOutput


class CausalReader(PromptReader):
    """A decoder-only model that continues prompts greedily until a stop string or the end token."""

    def __init__(self, spec: ReaderSpec) -> None:
        self._rule = rule_of(spec)
        self._device = device.prepare(spec)
        # Said wherever something is loaded: unless told, transformers asks, and takes "y" from stdin.
        runs_code = bool(spec.code)
        tokenizer = AutoTokenizer.from_pretrained(
            spec.path, local_files_only=True, trust_remote_code=runs_code
        )
        config = AutoConfig.from_pretrained(
            spec.path, local_files_only=True, trust_remote_code=runs_code
        )
        # Some models' position codes follow from the longest text of a batch: they read one at a time.
        self._alone = _positions_vary(config)
        window = _window(config)
        known = config.model_type in attention.FAMILIES and not (self._alone or runs_code)
        packs = known and window != 0 and self._device.type == "cpu"
        orders = packs and ordered.pays(spec)
        model, loading = shared_model(
            "causal",
            Path(spec.path),
            config=config,
            dtype=spec.dtype,
            code=spec.code,
            digest=spec.weights,
            device=self._device,
            mapped=not orders,
        )
        refuse_missing(loading, spec.name)
        model = model.eval()
        if orders:
            ordered.order_weights(model)
        self.stats = ReaderStats()
        ends = model.generation_config.eos_token_id
        writer = Writer(
            spec,
            tokenizer,
            frozenset({ends} if isinstance(ends, int) else set(ends or ())),
        )
        positions = int(getattr(config, "max_position_embeddings", 0) or 0)
        self._positions = positions or batching.UNBOUNDED
        longest = max(1, positions - max(1, writer.most)) if positions else 0
        super().__init__(spec, tokenizer, spec.max_input_tokens or longest)
        shares = window is None and not self._alone
        of = (model, writer, self.stats)
        padded = PaddedModel(*of, shares=shares)
        self._model: PackedModel | PaddedModel = padded
        fused = spec.fused_attention
        if packs and window:
            self._model = WindowedModel(
                *of, window=window, padded=padded, head=self._head, fused=fused
            )
        elif packs:
            self._model = PackedModel(*of, head=self._head, fused=fused)
        most = min(filter(None, (positions, packs and window)), default=None)
        if measured := device.token_cost(self._device, self._model.probe, most=most):
            self._model.learn(*measured)
            self.stats.token_bytes = int(measured[1])
        self.stats.prompt_tokens = self.stats.padded_tokens = 0  # without those of the probes
        self._most_tokens = device.max_batch_tokens(self._device)
        tensors = chain(model.parameters(), model.buffers())  # ordered weights are the latter
        weights = sum(t.numel() * t.element_size() for t in tensors)
        self._allowance = batching.Allowance(device.batch_memory(spec, self._device, weights))

    def read(self, inputs: Sequence[Sequence[str]]) -> list[ReadOutput]:
        """Continue each read's prompt. See ``engine.reading.protocol.Reader``."""
        return self.start(inputs)()

    def start(self, inputs: Sequence[Sequence[str]]) -> Finish:
        """Tokenize prompts. See ``engine.reading.protocol.StartingReader``."""
        return finish(self._spec, inputs, self._reads, self._continued)

    def _continued(self, reads: Sequence[PromptRead]) -> list[Weighed]:
        outputs = [read.refused(self._positions) for read in reads]
        steps: list[Sequence[Step]] = [()] * len(reads)
        readable = [
            # Tokens may merge across the end of a head's text, so what is shared is decided on tokens.
            (i, TokenizedPrompt(tokens, common_length(read.head, tokens), read.tokens))
            for i, read in enumerate(reads)
            if outputs[i] is None and (tokens := read.prompt.tokens) is not None
        ]
        before = self.stats.memory_halvings
        for places in self._model.batches(
            [asked for _, asked in readable],
            memory=self._allowance.bytes,
            max_tokens=1 if self._alone else self._spec.batch_tokens or self._most_tokens,
        ):
            results: list[Written | str] = batching.run_halving(
                places,
                lambda part: self._model.answer([readable[place][1] for place in part]),
                lambda _, reason: reason,
                self._count_halving,
            )
            for place, result in zip(places, results, strict=True):
                i, _ = readable[place]
                outputs[i] = _output(reads[i], result, self._rule)
                steps[i] = () if isinstance(result, str) else result.steps
        if self.stats.memory_halvings > before:
            # Reads of later calls start smaller: what failed once would fail again, for a while.
            self._allowance.ran_out()
        elif self._allowance.went_well():
            self._model.grow()
        self.stats.peak_memory = device.peak_memory(self._device)
        pairs = zip(outputs, steps, strict=True)
        return [Weighed(output, of) for output, of in pairs if output is not None]

    def _count_halving(self) -> None:
        self.stats.memory_halvings += 1
        self._model.shrink()


def _output(read: PromptRead, result: Written | str, rule: Rule) -> ReadOutput:
    prompt = read.prompt
    if isinstance(result, str):
        return ReadOutput.failed(result, prompt_tokens=prompt.length)
    if read.target is not None:
        logs = [step.log for step in result.steps]
        return scored(read.target, logs, prompt.length, truncated=prompt.truncated)
    tokens, truncated = len(result.tokens), prompt.truncated
    if result.confidence is None:
        output = rule.output(result.text, prompt.length, tokens, truncated=truncated)
        return with_own(output, [step.log for step in result.steps])
    return ReadOutput(
        result.text.strip(), prompt.length, tokens, truncated, confidence=result.confidence
    )


def _positions_vary(config: PretrainedConfig) -> bool:
    """Whether position codes depend on the longest text of a forward pass."""
    kind = (getattr(config, "rope_parameters", None) or {}).get("rope_type")
    return kind in ("dynamic", "longrope")


def _window(config: PretrainedConfig) -> int | None:
    """Tokens that every layer of the model sees, from the last one back; None for all, 0 where it is not known."""
    limited = set(getattr(config, "layer_types", None) or []) - {"full_attention"}
    window = getattr(config, "sliding_window", None)
    if not (limited or window):
        return None
    return int(window or 0) if limited <= {"sliding_attention"} else 0
