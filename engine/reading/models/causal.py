"""Decoder-only readers: prompts to tokens, tokens to answers, within the memory that was given.

Greedy decoding with our own loops instead of ``generate``: what prompts share is computed once,
finished reads leave the batch, and on a CPU, for the models that ``engine.reading.models.attention`` knows,
nothing is padded. Outputs equal ``generate``'s (tested in fp32).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from transformers import AutoConfig, AutoTokenizer, PretrainedConfig

from engine.machine import batching, device
from engine.machine.model_files import refuse_missing
from engine.machine.model_loading import shared_model
from engine.reading.answers import Rule, rule_of
from engine.reading.models import attention
from engine.reading.models.decoding import TokenizedPrompt, Writer, Written
from engine.reading.models.packed import PackedModel
from engine.reading.models.padded import PaddedModel
from engine.reading.models.sharing import common_length
from engine.reading.prompting.truncation import DOES_NOT_FIT, Fitted, fit
from engine.reading.protocol import Finish, ReaderSpec, ReaderStats, ReadOutput


class CausalReader:
    """A decoder-only model that continues prompts greedily until a stop string or the end token."""

    def __init__(self, spec: ReaderSpec) -> None:
        self._spec = spec
        self._rule = rule_of(spec)
        self._device = device.prepare(spec)
        # Said wherever something is loaded: unless told, transformers asks, and takes "y" from stdin.
        runs_code = bool(spec.code)
        self._tokenizer = AutoTokenizer.from_pretrained(
            spec.path, local_files_only=True, trust_remote_code=runs_code
        )
        config = AutoConfig.from_pretrained(
            spec.path, local_files_only=True, trust_remote_code=runs_code
        )
        # Some models' position codes follow from the longest text of a batch: they read one at a time.
        self._alone = _positions_vary(config)
        shares = not (_has_window(config) or self._alone)
        plain = config.model_type in attention.FAMILIES and shares and not runs_code
        packs = plain and self._device.type == "cpu"
        model, loading = shared_model(
            "causal",
            Path(spec.path),
            config=config,
            dtype=spec.dtype,
            code=spec.code,
            digest=spec.weights,
            device=self._device,
            attn_implementation=attention.ATTENTION if packs else None,
        )
        refuse_missing(loading, spec.name)
        model = model.eval()
        self.stats = ReaderStats()
        ends = model.generation_config.eos_token_id
        writer = Writer(
            spec,
            self._tokenizer,
            frozenset({ends} if isinstance(ends, int) else set(ends or ())),
        )
        positions = int(getattr(config, "max_position_embeddings", 0) or 0)
        self._longest = positions - max(1, writer.most) if positions else None
        self._begin = self._encode([""])[0]
        self._head = self._encode([spec.shared_prefix])[0] if spec.shared_prefix else []
        self._model: PackedModel | PaddedModel = (
            PackedModel(model, writer, self.stats, head=self._head)
            if packs
            else PaddedModel(model, writer, self.stats, shares=shares)
        )
        if measured := device.token_cost(self._device, self._model.probe, most=positions or None):
            self._model.learn(*measured)
            self.stats.token_bytes = int(measured[1])
        self.stats.prompt_tokens = self.stats.padded_tokens = 0  # without those of the probes
        self._most_tokens = device.max_batch_tokens(self._device)
        weights = sum(p.numel() * p.element_size() for p in model.parameters())
        self._allowance = batching.Allowance(device.batch_memory(spec, self._device, weights))

    def read(self, inputs: Sequence[Sequence[str]]) -> list[ReadOutput]:
        """Continue each read's prompt. See ``engine.reading.protocol.Reader``."""
        return self.start(inputs)()

    def start(self, inputs: Sequence[Sequence[str]]) -> Finish:
        """Tokenize prompts. See ``engine.reading.protocol.StartingReader``."""
        texts = ["".join(pieces) for pieces in inputs]
        heads = self._heads(inputs)
        prompts = [
            self._fit(tokens, head, text)
            for tokens, head, text in zip(self._encode(texts), heads, texts, strict=True)
        ]
        return partial(self._continued, prompts, heads)

    def _continued(self, prompts: list[Fitted], heads: list[list[int]]) -> list[ReadOutput]:
        outputs = [
            ReadOutput.failed(DOES_NOT_FIT, prompt_tokens=prompt.length, truncated=True)
            if prompt.tokens is None
            else None
            for prompt in prompts
        ]
        readable = [
            # Tokens may merge across the end of a head's text, so what is shared is decided on tokens.
            (i, TokenizedPrompt(prompt.tokens, common_length(head, prompt.tokens)))
            for i, (prompt, head) in enumerate(zip(prompts, heads, strict=True))
            if prompt.tokens is not None
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
                outputs[i] = _output(prompts[i], result, self._rule)
        if self.stats.memory_halvings > before:
            # Reads of later calls start smaller: what failed once would fail again, for a while.
            self._allowance.ran_out()
        elif self._allowance.went_well():
            self._model.grow()
        self.stats.peak_memory = device.peak_memory(self._device)
        return [output for output in outputs if output is not None]

    def _count_halving(self) -> None:
        self.stats.memory_halvings += 1
        self._model.shrink()

    def _encode(self, texts: list[str]) -> list[list[int]]:
        return self._tokenizer(
            texts, return_attention_mask=False, add_special_tokens=self._spec.special_tokens
        )["input_ids"]

    def _heads(self, inputs: Sequence[Sequence[str]]) -> list[list[int]]:
        """The tokens that each prompt shares: of all pieces but the last, or of the template."""
        texts = ["".join(pieces[:-1]) for pieces in inputs]
        unique = [text for text in dict.fromkeys(texts) if text]
        tokens = dict(zip(unique, self._encode(unique), strict=True)) if unique else {}
        return [tokens.get(text, self._head) for text in texts]

    def _fit(self, tokens: list[int], head: list[int], text: str) -> Fitted:
        limit = self._spec.max_input_tokens or self._longest
        return fit(
            tokens,
            text,
            head=head or self._begin,
            limit=len(tokens) if limit is None else limit,
            tail_marker=self._spec.tail_marker,
            encode=lambda tail: self._tokenizer.encode(tail, add_special_tokens=False),
        )


def _output(prompt: Fitted, result: Written | str, rule: Rule) -> ReadOutput:
    if isinstance(result, str):
        return ReadOutput.failed(result, prompt_tokens=prompt.length)
    tokens, truncated = len(result.tokens), prompt.truncated
    if result.confidence is None:
        return rule.output(result.text, prompt.length, tokens, truncated=truncated)
    return ReadOutput(
        result.text.strip(), prompt.length, tokens, truncated, confidence=result.confidence
    )


def _positions_vary(config: PretrainedConfig) -> bool:
    """Whether position codes depend on the longest text of a forward pass."""
    kind = (getattr(config, "rope_parameters", None) or {}).get("rope_type")
    return kind in ("dynamic", "longrope")


def _has_window(config: PretrainedConfig) -> bool:
    """Whether some layer of the model looks back only so far."""
    kinds = getattr(config, "layer_types", None) or []
    return bool(getattr(config, "sliding_window", None)) or any(
        kind != "full_attention" for kind in kinds
    )
