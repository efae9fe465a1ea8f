"""Encoder-decoder readers: Fusion-in-Decoder and, as its case of one input, plain generation.

Fusion-in-Decoder (Izacard & Grave, EACL 2021) encodes every (question, passage) on its own and lets
the decoder attend to all encodings at once. A read is a list of inputs; with one input this is the
model's ordinary generation, so in-prompt augmentation and eRAG's single passages need no second path.

The encodings of a passage are the same alone and fused. So inputs that several reads of a call share
are encoded once: eRAG and end-to-end evaluation together cost one encoder pass and two decodings.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer
from transformers.modeling_outputs import BaseModelOutput

from engine.reading import batching, device
from engine.reading.protocol import ReaderSpec, ReaderStats, ReadOutput
from engine.reading.weights import refuse_missing


@dataclass(frozen=True)
class _Input:
    """One tokenized encoder input."""

    tokens: list[int]
    truncated: bool


# An input with its encoder states, or with the reason why it has none.
_Encoded = tuple[_Input, torch.Tensor | str]


class EncoderDecoderReader:
    """A T5-type model that encodes each input alone and decodes greedily from all encodings."""

    def __init__(self, spec: ReaderSpec) -> None:
        self._spec = spec
        self._device = device.prepare(spec)
        self._tokenizer = AutoTokenizer.from_pretrained(spec.path, local_files_only=True)
        model, loading = AutoModelForSeq2SeqLM.from_pretrained(
            spec.path,
            dtype=getattr(torch, spec.dtype),
            local_files_only=True,
            output_loading_info=True,
        )
        refuse_missing(loading, spec.name)
        self._model = model.to(self._device).eval()
        self.stats = ReaderStats()
        config = self._model.config
        self._pad = int(config.pad_token_id or 0)
        # T5 has no largest position; other models say theirs.
        self._limit = spec.max_input_tokens or int(
            getattr(config, "max_position_embeddings", 0) or 512
        )
        item = torch.empty((), dtype=self._model.dtype).element_size()
        width, inner = config.d_model, config.num_heads * config.d_kv
        layers = getattr(config, "num_decoder_layers", None) or config.num_layers
        self._state_bytes = item * width
        # Encoder: states and feed-forward activations of the layer at work; unfused attention with
        # its position bias holds scores and probabilities of every head.
        self._encode_cost = batching.MemoryCost(
            per_row=0.0,
            per_token=item * (8 * width + 2 * config.d_ff + 4 * inner),
            per_pair=3 * item * config.num_heads,
        )
        # Decoder: the fused states and, in every layer, cross-attention keys and values of each token.
        self._decode_cost = batching.MemoryCost(
            per_row=4 * layers * inner * item * spec.max_new_tokens + 4 * config.vocab_size,
            per_token=item * (2 * width + 2 * layers * inner),
            per_pair=0.0,
        )
        weights = sum(p.numel() * p.element_size() for p in self._model.parameters())
        self._memory = device.batch_memory(spec, self._device, weights)

    def read(self, inputs: Sequence[Sequence[str]]) -> list[ReadOutput]:
        """Generate from each read's inputs. See ``engine.reading.protocol.Reader``."""
        unique = list(dict.fromkeys(text for texts in inputs for text in texts))
        items = dict(zip(unique, self._tokenize(unique), strict=True))
        outputs: list[ReadOutput] = []
        for first, last in self._encoded_together(inputs, items):
            wanted = list(dict.fromkeys(text for texts in inputs[first:last] for text in texts))
            states = dict(zip(wanted, self.encode([items[text] for text in wanted]), strict=True))
            reads = [
                [(items[text], states[text]) for text in texts] for texts in inputs[first:last]
            ]
            outputs += self._decode(reads)
        self.stats.peak_memory = device.peak_memory(self._device)
        return outputs

    def _encoded_together(
        self, inputs: Sequence[Sequence[str]], items: Mapping[str, _Input]
    ) -> Iterator[tuple[int, int]]:
        """Ranges of reads whose distinct encodings a quarter of the memory holds; at least one read."""
        most = self._memory / 4 / self._state_bytes
        first, held, tokens = 0, set[str](), 0
        for position, texts in enumerate(inputs):
            new = set(texts) - held
            more = sum(len(items[text].tokens) for text in new)
            if position > first and tokens + more > most:
                yield first, position
                first, held, tokens = position, set(), 0
                new, more = set(texts), sum(len(items[text].tokens) for text in set(texts))
            held |= new
            tokens += more
        if inputs:
            yield first, len(inputs)

    def _decode(self, reads: Sequence[Sequence[_Encoded]]) -> list[ReadOutput]:
        lengths = [sum(len(item.tokens) for item, _ in read) for read in reads]
        outputs: list[ReadOutput | None] = [None] * len(reads)
        ready: list[int] = []
        for i, read in enumerate(reads):
            reasons = [state for _, state in read if isinstance(state, str)]
            if reasons:
                outputs[i] = ReadOutput("", lengths[i], 0, False, f"an input: {reasons[0]}")
            else:
                ready.append(i)
        batches = batching.cut_batches(
            [lengths[i] for i in ready],
            cost=self._decode_cost,
            memory=self._memory / 2,  # the rest is for encodings and the encoder's activations
            max_tokens=self._spec.batch_tokens or device.max_batch_tokens(self._device),
        )
        for positions in batches:
            batch = [ready[position] for position in positions]
            before = self.stats.memory_halvings
            results = batching.run_halving(
                batch,
                lambda part: self._generate([reads[i] for i in part]),
                lambda i, reason: ReadOutput("", lengths[i], 0, False, reason),
                self._count_halving,
            )
            for i, result in zip(batch, results, strict=True):
                outputs[i] = result
            if self.stats.memory_halvings > before:
                # Reads that come later start smaller: what failed once would fail again.
                least = self._decode_cost.of(1, lengths[batch[0]])
                self._memory = max(self._memory / 2, 2 * least)
        return [output for output in outputs if output is not None]

    def _count_halving(self) -> None:
        self.stats.memory_halvings += 1

    def _tokenize(self, texts: Sequence[str]) -> list[_Input]:
        encoded = self._tokenizer(list(texts), return_attention_mask=False)["input_ids"]
        end = self._tokenizer.eos_token_id
        items: list[_Input] = []
        for tokens in encoded:
            if len(tokens) <= self._limit:
                items.append(_Input(tokens, False))
            else:  # the question stands first, so the end is what can be spared
                kept = [*tokens[: self._limit - 1], end] if tokens[-1] == end else tokens
                items.append(_Input(kept[: self._limit], True))
        return items

    @torch.inference_mode()
    def encode(self, items: Sequence[_Input]) -> list[torch.Tensor | str]:
        """Encoder states of each input, its own tokens only: (tokens, d_model) each.

        Inputs are sorted by length and encoded in batches that fit the memory budget. One that
        memory does not suffice for even alone gives the reason instead.
        """
        states: list[torch.Tensor | str] = [""] * len(items)
        for batch in batching.cut_batches(
            [len(item.tokens) for item in items],
            cost=self._encode_cost,
            memory=self._memory / 4,
            max_tokens=self._spec.batch_tokens or device.max_batch_tokens(self._device),
        ):
            encoded = batching.run_halving(
                batch,
                lambda part: self._encode_batch([items[i] for i in part]),
                lambda _, reason: reason,
                self._count_halving,
            )
            for i, state in zip(batch, encoded, strict=True):
                states[i] = state
        return states

    def _encode_batch(self, items: Sequence[_Input]) -> list[torch.Tensor | str]:
        longest = max(len(item.tokens) for item in items)
        ids = torch.full((len(items), longest), self._pad, dtype=torch.long)
        mask = torch.zeros((len(items), longest), dtype=torch.long)
        for row, item in enumerate(items):
            ids[row, : len(item.tokens)] = torch.tensor(item.tokens)
            mask[row, : len(item.tokens)] = 1
        self.stats.padded_tokens += ids.numel()
        self.stats.prompt_tokens += int(mask.sum())
        hidden = self._model.get_encoder()(
            input_ids=ids.to(self._device), attention_mask=mask.to(self._device)
        ).last_hidden_state
        # Copies: a view would keep the padded batch in memory for as long as the state is used.
        return [hidden[row, : len(item.tokens)].clone() for row, item in enumerate(items)]

    @torch.inference_mode()
    def _generate(self, reads: Sequence[Sequence[_Encoded]]) -> list[ReadOutput]:
        # Fusion: one sequence per read, its inputs' states end to end. The cross-attention has no
        # position of its own, so leaving the padding out between them changes nothing.
        fused = [
            torch.cat([state for _, state in read if isinstance(state, torch.Tensor)])
            for read in reads
        ]
        longest = max(len(states) for states in fused)
        hidden = fused[0].new_zeros((len(fused), longest, fused[0].shape[-1]))
        mask = torch.zeros((len(fused), longest), dtype=torch.long, device=self._device)
        for row, states in enumerate(fused):
            hidden[row, : len(states)] = states
            mask[row, : len(states)] = 1
        tokens = self._model.generate(
            encoder_outputs=BaseModelOutput(last_hidden_state=hidden),
            attention_mask=mask,
            max_new_tokens=self._spec.max_new_tokens,
            do_sample=False,
            num_beams=1,
        )
        special = set(self._tokenizer.all_special_ids) | {self._pad}
        outputs: list[ReadOutput] = []
        for read, row in zip(reads, tokens.tolist(), strict=True):
            text = self._tokenizer.decode(row, skip_special_tokens=True)
            for stop in self._spec.stop:
                text = text.split(stop)[0]
            outputs.append(
                ReadOutput(
                    output=text.strip(),
                    prompt_tokens=sum(len(item.tokens) for item, _ in read),
                    output_tokens=sum(token not in special for token in row),
                    truncated=any(item.truncated for item, _ in read),
                )
            )
        return outputs
