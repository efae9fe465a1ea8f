"""Decoder-only models run on a CPU on packed tokens: no padding, and what texts begin with computed once.

The tokens of many texts stand behind each other in one row (``engine.reading.models.attention``). What
several begin with in common - the template's examples, the query or the passage, whichever stands
first - is a segment of its own, whose keys and values the others copy (``engine.reading.models.sharing``).
Prompts run in chunks small enough for a processor's caches; answers are then written together, a
token of each in a step, since a step costs about as much for one as for many.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate

import torch

from engine.reading.models import sharing
from engine.reading.models.attention import ATTENTION, Cache, Pass, Span, pack, round_up
from engine.reading.models.decoding import TokenizedPrompt, Writer, Written, scored_tokens
from engine.reading.protocol import ReaderStats

# Larger chunks leave a processor's caches, and matrix products are at full speed from 256 rows on.
_WHOLE_CHUNK = 1024
# Fewer tokens at once waste the processor, whatever the memory.
_LEAST_CHUNK = 64
_Piece = tuple[int, int, int]  # of a segment, its tokens from one to before another


class PackedModel:
    """A decoder-only model that answers many prompts together, of whatever lengths.

    Args:
        model: of a family in ``engine.reading.models.attention.FAMILIES``.
        writer: continues the answers.
        stats: counts the tokens.
        head: tokens that most prompts begin with; their keys and values are kept.
        fused: whether prompts go through the flash kernel, however long they are.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        writer: Writer,
        stats: ReaderStats,
        *,
        head: Sequence[int] = (),
        fused: bool = False,
    ) -> None:
        config = model.config
        self._model = model
        self._writer = writer
        self._stats = stats
        layers: int = config.num_hidden_layers
        heads: int = config.num_attention_heads
        groups: int = getattr(config, "num_key_value_heads", 0) or heads
        width: int = getattr(config, "head_dim", None) or config.hidden_size // heads
        self._shape = {"layers": layers, "groups": groups, "width": width, "dtype": model.dtype}
        self._fused = fused
        self._head = list(head)
        self._head_cache: Cache | None = None
        self._chunk = _LEAST_CHUNK
        self._most = _WHOLE_CHUNK
        item = torch.empty((), dtype=model.dtype).element_size()
        self._cached_token_bytes = 2 * layers * groups * width * item
        # Until measured: the states in and out, the gate and up projections and their product, and
        # one copy of the states in fp32 (norms).
        inner = getattr(config, "intermediate_size", None) or 4 * config.hidden_size
        self._chunk_bytes = 0.0
        self._token_bytes = float(item * (6 * config.hidden_size + 3 * inner))
        self._token_bytes += 4 * config.hidden_size
        self._logits_bytes = 2 * item * config.vocab_size

    def probe(self, tokens: int) -> None:
        """Run a number of tokens as one text, to measure what they cost beside their cached states."""
        self._prefill([[0] * tokens], chunk=tokens)

    def learn(self, fixed: float, per_token: float) -> None:
        """Take the measured bytes of a probe: of any, and of each of its tokens."""
        self._chunk_bytes = fixed
        # The states of a token in and out of a layer are certain, whatever was measured.
        least = 4.0 * self._model.config.hidden_size
        self._token_bytes = max(per_token - self._cached_token_bytes, least)

    def shrink(self) -> None:
        """Run smaller chunks from now on: memory ran out."""
        self._most = max(_LEAST_CHUNK, self._most // 2)
        self._chunk = min(self._chunk, self._most)

    def grow(self) -> None:
        """Run chunks as large as at the beginning again, as far as the memory of a call allows."""
        self._most = _WHOLE_CHUNK

    def batches(
        self, asked: Sequence[TokenizedPrompt], *, memory: float, max_tokens: int
    ) -> Iterator[list[int]]:
        """Places of ``asked`` in groups that fit ``memory`` bytes and ``max_tokens``, of at least one.

        Texts that begin alike stand together. Chunks take half of the memory at most, keys and
        values the rest.
        """
        # Any token of a chunk may be one whose logits are wanted, where targets are scored.
        token_bytes = self._token_bytes + self._logits_bytes * any(a.target for a in asked)
        by_memory = int((memory / 2 - self._chunk_bytes) / token_bytes)
        self._chunk = max(_LEAST_CHUNK, min(self._most, by_memory))
        left = memory - self._chunk_bytes - token_bytes * self._chunk
        left -= self._cached_token_bytes * len(self._head)
        order = sorted(range(len(asked)), key=lambda place: asked[place].tokens)
        group: list[int] = []
        taken = 0
        for place in order:
            tokens, target = asked[place].tokens, asked[place].target
            before = asked[group[-1]].tokens if group else []
            room = round_up(asked[place].room(self._writer.most))
            if target:  # it stands apart, behind a prompt that several may have
                room = round_up(len(target)) + (tokens != before) * round_up(len(tokens))
            shared = 0
            if group:  # what it shares with its neighbour may become a separate segment
                length = sharing.common_length(tokens, before)
                alone = length <= len(self._head) or (target and tokens == before)
                shared = 0 if alone else round_up(length)
                together = taken + room + shared
                if together > max_tokens or together * self._cached_token_bytes > left:
                    yield group
                    group, taken, shared = [], 0, 0
                    room += bool(target and tokens == before) * round_up(len(tokens))
            group.append(place)
            taken += room + shared
        if group:
            yield group

    @torch.inference_mode()
    def answer(self, asked: Sequence[TokenizedPrompt]) -> list[Written]:
        """Continue each text, or score the targets behind them."""
        if any(a.target for a in asked):
            return self._scored(asked)
        tokens, written = [a.tokens for a in asked], [Written() for _ in asked]
        cache, offsets, alive = self._prefill(tokens, written, chunk=self._chunk)
        while alive:
            # The last token written is not in the cache yet.
            spans = [
                Span(row, 1, offsets[i], len(tokens[i]) + len(written[i].tokens) - 1)
                for row, i in enumerate(alive)
            ]
            last = [written[i].tokens[-1] for i in alive]
            logits = self._forward(pack(last, spans, cache, writing=True))
            alive = [alive[row] for row in self._writer.write([written[i] for i in alive], logits)]
        return written

    def _scored(self, asked: Sequence[TokenizedPrompt]) -> list[Written]:
        """Score the targets, which look back at the keys and values of their prompt: it is computed once."""
        written = [Written() for _ in asked]
        texts = [[a.tokens[-1], *a.target[:-1]] for a in asked]  # from the prompt's last
        prompts = [tuple(a.tokens[:-1] or a.tokens) for a in asked]
        places = {prompt: place for place, prompt in enumerate(dict.fromkeys(prompts))}
        rooms = [round_up(len(text)) for text in texts]
        cache, offsets, _ = self._prefill([*map(list, places)], chunk=self._chunk, more=sum(rooms))
        begins = list(accumulate(rooms, initial=cache.keys[0].shape[1] - sum(rooms)))
        for pieces in _chunks([(i, 0, len(text)) for i, text in enumerate(texts)], self._chunk):
            spans: list[Span] = []
            ids: list[int] = []
            for i, first, last in pieces:
                kept, stem = len(asked[i].tokens) - 1, offsets[places[prompts[i]]]
                spans.append(Span(len(ids), last - first, begins[i], kept + first, stem, kept))
                ids += texts[i][first:last]
            of = self._pack(ids, spans, cache)
            logits = self._forward(of._replace(last=torch.arange(len(of.ids)), asked=len(ids)))
            given = [(i, token) for i, *at in pieces for token in asked[i].target[slice(*at)]]
            tokens, entropies = [token for _, token in given], self._writer.entropies
            steps = scored_tokens(logits, tokens, entropies=entropies)
            for (i, _), step in zip(given, steps, strict=True):
                written[i].steps.append(step)
        return written

    @torch.inference_mode()
    def _prefill(
        self,
        sequences: Sequence[list[int]],
        written: Sequence[Written] | None = None,
        *,
        chunk: int,
        more: int = 0,
    ) -> tuple[Cache, dict[int, int], list[int]]:
        """Run the texts and take each answer's first token; ``more`` is room at the end of the cache.

        Returns:
            what the others follow from, where each text begins in it, and which answers go on.
        """
        head = self._head_states()
        done = [min(sharing.common_length(self._head, s), len(s) - 1) for s in sequences]
        parts = sharing.segments(sequences, done)
        most = 0 if more else self._writer.most
        rooms = [round_up(p.end + (most if p.whole else 0)) for p in parts]
        *offsets, room = accumulate(rooms, initial=0)
        cache = Cache.empty(room + more, **self._shape)
        alive: list[int] = []
        for level in range(max((part.level for part in parts), default=-1) + 1):
            own = [i for i, part in enumerate(parts) if part.level == level]
            for i in own:
                if parts[i].parent >= 0:
                    cache.copy_from(cache, offsets[parts[i].parent], offsets[i], parts[i].start)
                elif parts[i].start:
                    cache.copy_from(head, 0, offsets[i], parts[i].start)
            for pieces in _chunks([(i, parts[i].start, parts[i].end) for i in own], chunk):
                spans: list[Span] = []
                ids: list[int] = []
                for i, first, last in pieces:
                    spans.append(Span(len(ids), last - first, offsets[i], first))
                    ids += sequences[parts[i].sample][first:last]
                logits = self._forward(self._pack(ids, spans, cache))
                self._stats.prompt_tokens += len(ids)
                self._stats.padded_tokens += len(ids)
                ended = [
                    parts[i].sample if parts[i].whole and last == parts[i].end else None
                    for i, _, last in pieces
                ]
                if written is not None and any(i is not None for i in ended):
                    answers = [None if i is None else written[i] for i in ended]
                    going = self._writer.write(answers, logits)
                    alive += [read for row in going if (read := ended[row]) is not None]
        begins = {p.sample: at for p, at in zip(parts, offsets, strict=True) if p.whole}
        return cache, begins, alive

    def _head_states(self) -> Cache:
        if self._head_cache is None:
            cache = Cache.empty(len(self._head), **self._shape)
            if self._head:
                self._forward(self._pack(self._head, [Span(0, len(self._head), 0, 0)], cache))
                self._stats.prompt_tokens += len(self._head)
                self._stats.padded_tokens += len(self._head)
            self._head_cache = cache
        return self._head_cache

    def _pack(self, ids: Sequence[int], spans: Sequence[Span], cache: Cache) -> Pass:
        return pack(ids, spans, cache, fused=self._fused)

    def _forward(self, of: Pass) -> torch.Tensor:
        """The logits that are asked for: (asked, vocabulary)."""
        config = self._model.config
        own, config._attn_implementation = config._attn_implementation, ATTENTION
        try:
            out = self._model(
                input_ids=of.ids.unsqueeze(0),
                position_ids=of.positions.unsqueeze(0),
                use_cache=False,
                logits_to_keep=of.last,
                packing=of.packing,
            )
        finally:  # others that have the model may run it with its own
            config._attn_implementation = own
        return out.logits[0, : of.asked]


def _chunks(parts: Sequence[_Piece], most: int) -> Iterator[list[_Piece]]:
    """Cut (segment, start, end) into chunks of at most ``most`` tokens, in order."""
    pieces: list[_Piece] = []
    free = most
    for segment, start, end in parts:
        while start < end:
            last = min(end, start + free)
            pieces.append((segment, start, last))
            free -= last - start
            start = last
            if not free:
                yield pieces
                pieces, free = [], most
    if pieces:
        yield pieces
