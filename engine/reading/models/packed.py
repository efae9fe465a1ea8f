"""Decoder-only models run on packed tokens: no padding, and what texts begin with computed once.

The tokens of many texts stand behind each other in one row (``engine.reading.models.attention``). What
several begin with in common - the template's examples, the query or the passage, whichever stands
first - is a segment of its own, whose keys and values the others copy (``engine.reading.models.sharing``).
Prompts run in chunks small enough for a processor's caches; answers are then written together, a
token of each in a step, since a step costs about as much for one as for many.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from engine.reading.models import sharing
from engine.reading.models.attention import KEYS, Cache, Packing, Span, round_up
from engine.reading.models.decoding import Asked, Writer, Written
from engine.reading.protocol import ReaderStats

# On a CPU larger chunks leave its caches, and matrix products are at full speed from 256 rows on.
_CPU_CHUNK = 1024
_GPU_CHUNK = 8192
# Fewer tokens at once waste the processor, whatever the memory.
_LEAST_CHUNK = 64


@dataclass(frozen=True)
class _Piece:
    """Tokens ``first`` to ``last`` of a segment."""

    segment: int
    first: int
    last: int


class PackedModel:
    """A decoder-only model that answers many prompts together, of whatever lengths.

    Args:
        model: loaded with the attention ``engine.reading.models.attention.ATTENTION``.
        writer: continues the answers.
        stats: counts the tokens.
        head: tokens that most prompts begin with; their keys and values are kept.
        padded: whether attention pads; None means on a GPU only.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        writer: Writer,
        stats: ReaderStats,
        *,
        head: Sequence[int] = (),
        padded: bool | None = None,
    ) -> None:
        config = model.config
        self._model = model
        self._writer = writer
        self._stats = stats
        self._layers: int = config.num_hidden_layers
        self._groups: int = getattr(config, "num_key_value_heads", 0) or config.num_attention_heads
        self._width: int = (
            getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        )
        self._device: torch.device = model.device
        self._dtype: torch.dtype = model.dtype
        self._padded = self._device.type == "cuda" if padded is None else padded
        self._head = list(head)
        self._head_cache: Cache | None = None
        self._chunk = _LEAST_CHUNK
        self._whole_chunk = _GPU_CHUNK if self._device.type == "cuda" else _CPU_CHUNK
        self._most = self._whole_chunk
        item = torch.empty((), dtype=self._dtype).element_size()
        self._cached_token_bytes = 2 * self._layers * self._groups * self._width * item
        # Until measured: the states in and out, the gate and up projections and their product, and
        # one copy of the states in fp32 (norms).
        inner = getattr(config, "intermediate_size", None) or 4 * config.hidden_size
        self._chunk_bytes = 0.0
        self._token_bytes = float(item * (6 * config.hidden_size + 3 * inner))
        self._token_bytes += 4 * config.hidden_size

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
        self._most = self._whole_chunk

    def batches(
        self, asked: Sequence[Asked], *, memory: float, max_tokens: int
    ) -> Iterator[list[int]]:
        """Places of ``asked`` in groups that fit ``memory`` bytes and ``max_tokens``, of at least one.

        Texts that begin alike stand together. Chunks take half of the memory at most, keys and
        values the rest.
        """
        by_memory = int((memory / 2 - self._chunk_bytes) / self._token_bytes)
        self._chunk = max(_LEAST_CHUNK, min(self._most, by_memory))
        left = memory - self._chunk_bytes - self._token_bytes * self._chunk
        room = min(max_tokens, int(left / self._cached_token_bytes) - len(self._head))
        order = sorted(range(len(asked)), key=lambda place: asked[place].tokens)
        group: list[int] = []
        taken = 0
        for place in order:
            tokens = asked[place].tokens
            needed = len(tokens) + self._writer.most + KEYS
            if group:  # what it shares with its neighbour may become a separate segment
                shared = sharing.common_length(tokens, asked[group[-1]].tokens)
                needed += shared + KEYS if shared > len(self._head) else 0
            if group and taken + needed > room:
                yield group
                group, taken, needed = [], 0, len(tokens) + self._writer.most + KEYS
            group.append(place)
            taken += needed
        if group:
            yield group

    @torch.inference_mode()
    def answer(self, asked: Sequence[Asked]) -> list[Written]:
        """Continue each text."""
        tokens = [a.tokens for a in asked]
        written = [Written(goal=a.goal) for a in asked]
        cache, offsets, alive = self._prefill(tokens, written, chunk=self._chunk)
        while alive:
            spans = [
                # The last token written is not in the cache yet.
                Span(at, 1, offsets[i], len(tokens[i]) + len(written[i].tokens) - 1)
                for at, i in enumerate(alive)
            ]
            ids = [written[i].tokens[-1] for i in alive]
            logits = self._forward(ids, spans, cache, writing=True)
            going = self._writer.write([written[i] for i in alive], logits)
            alive = [alive[place] for place in going]
        return written

    @torch.inference_mode()
    def _prefill(
        self,
        sequences: Sequence[list[int]],
        written: Sequence[Written] | None = None,
        *,
        chunk: int,
    ) -> tuple[Cache, list[int], list[int]]:
        """Run the texts and take each answer's first token.

        Returns:
            the cache, where in it each text begins, and which answers go on.
        """
        head = self._head_states()
        done = [min(sharing.common_length(self._head, s), len(s) - 1) for s in sequences]
        parts = sharing.segments(sequences, done)
        offsets: list[int] = []
        room = 0
        for part in parts:
            offsets.append(room)
            room += round_up(part.end + (self._writer.most if part.whole else 0))
        cache = self._new_cache(room)
        begins = [0] * len(sequences)
        alive: list[int] = []
        for level in range(max((part.level for part in parts), default=-1) + 1):
            own = [i for i, part in enumerate(parts) if part.level == level]
            for i in own:
                part = parts[i]
                source = head if part.parent < 0 else cache
                if part.start:
                    start = 0 if part.parent < 0 else offsets[part.parent]
                    cache.copy(source, start, offsets[i], part.start)
                if part.whole:
                    begins[part.sample] = offsets[i]
            if self._padded:  # to the longest of a chunk: let it be no longer than the others
                own.sort(key=lambda i: parts[i].end)
            runs = [(i, parts[i].start, parts[i].end) for i in own]
            for pieces in _chunks(runs, chunk, padded=self._padded):
                spans: list[Span] = []
                ids: list[int] = []
                for piece in pieces:
                    size = piece.last - piece.first
                    spans.append(Span(len(ids), size, offsets[piece.segment], piece.first))
                    ids += sequences[parts[piece.segment].sample][piece.first : piece.last]
                logits = self._forward(ids, spans, cache)
                self._stats.prompt_tokens += len(ids)
                self._stats.padded_tokens += len(ids)
                ended = [
                    (row, parts[piece.segment].sample)
                    for row, piece in enumerate(pieces)
                    if parts[piece.segment].whole and piece.last == parts[piece.segment].end
                ]
                if written is not None and ended:
                    rows = [row for row, _ in ended]
                    going = self._writer.write([written[i] for _, i in ended], logits[rows])
                    alive += [ended[place][1] for place in going]
        return cache, begins, sorted(alive)

    def _head_states(self) -> Cache:
        if self._head_cache is None:
            cache = self._new_cache(len(self._head))
            if self._head:
                self._forward(self._head, [Span(0, len(self._head), 0, 0)], cache)
                self._stats.prompt_tokens += len(self._head)
                self._stats.padded_tokens += len(self._head)
            self._head_cache = cache
        return self._head_cache

    def _new_cache(self, room: int) -> Cache:
        shape = (self._groups, round_up(room), self._width)

        def make() -> list[torch.Tensor]:
            return [
                torch.zeros(shape, dtype=self._dtype, device=self._device)
                for _ in range(self._layers)
            ]

        return Cache(make(), make())

    def _forward(
        self, ids: Sequence[int], spans: Sequence[Span], cache: Cache, *, writing: bool = False
    ) -> torch.Tensor:
        """Run packed tokens; the logits after the last of each span: (spans, vocabulary)."""
        asked, ids, spans = len(spans), list(ids), list(spans)
        if len(ids) == 1:
            # Products with a single row take another way through the library, and round otherwise.
            ids *= 2
            spans.append(replace(spans[0], at=1))
        last = [s.at + s.tokens - 1 for s in spans]
        positions = torch.cat([torch.arange(s.have, s.have + s.tokens) for s in spans])
        out = self._model(
            input_ids=torch.tensor([ids], device=self._device),
            position_ids=positions.unsqueeze(0).to(self._device),
            use_cache=False,
            logits_to_keep=torch.tensor(last if len(last) > 1 else last * 2, device=self._device),
            packing=Packing(cache, spans, self._padded, self._device, writing),
        )
        return out.logits[0, :asked]


def _chunks(
    parts: Sequence[tuple[int, int, int]], most: int, *, padded: bool
) -> Iterator[list[_Piece]]:
    """Cut (segment, start, end) into chunks of at most ``most`` tokens, in order.

    Where attention pads, a chunk ends before its padding would be more than its tokens may be.
    """
    pieces: list[_Piece] = []
    free = most
    for segment, start, end in parts:
        longest = max([end - start, *(piece.last - piece.first for piece in pieces)])
        if padded and pieces and (len(pieces) + 1) * longest > 2 * most:
            yield pieces
            pieces, free = [], most
        while start < end:
            last = min(end, start + free)
            pieces.append(_Piece(segment, start, last))
            free -= last - start
            start = last
            if not free:
                yield pieces
                pieces, free = [], most
    if pieces:
        yield pieces
