"""Decoder-only models run on packed tokens: no padding, and what texts begin with computed once.

The tokens of many texts stand behind each other in one row (``engine.reading.models.attention``). What
several begin with in common - the template's examples, the query or the passage, whichever stands
first - is a segment of its own, whose keys and values the others copy (``engine.reading.models.sharing``).
Prompts run in chunks small enough for a processor's caches; answers are then written together, a
token of each in a step, since a step costs about as much for one as for many.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch

from engine.machine.batching import UNBOUNDED
from engine.reading.models import sharing
from engine.reading.models.attention import Beginnings, Cache, Layout, Pass, Span, Writing
from engine.reading.models.decoding import Asked, Writer, Written
from engine.reading.models.in_rows import InRows
from engine.reading.models.in_turn import InTurn
from engine.reading.protocol import ReaderStats

# On a CPU larger chunks leave its caches, and matrix products are at full speed from 256 rows on.
_CPU_CHUNK = 1024
_GPU_CHUNK = 8192
# Fewer tokens at once waste the processor, whatever the memory.
_LEAST_CHUNK = 64
# Where attention runs in rows, bounds of what it copies and hides, for each token of a chunk: queries with
# padding, keys with padding, and pairs of both.
_QUERIES, _KEYS, _PAIRS = 2, 4, 2048
# Reads that are written together on a GPU: more take as much longer a step.
_MOST_READS = 1024


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
        in_rows: whether attention runs in rows, as on a GPU; None means on a GPU only.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        writer: Writer,
        stats: ReaderStats,
        *,
        head: Sequence[int] = (),
        in_rows: bool | None = None,
    ) -> None:
        config = model.config
        self._model = model
        self._writer = writer
        self._stats = stats
        self._layers: int = config.num_hidden_layers
        heads: int = config.num_attention_heads
        groups: int = getattr(config, "num_key_value_heads", 0) or heads
        width: int = getattr(config, "head_dim", None) or config.hidden_size // heads
        device: torch.device = model.device
        self._in_rows = device.type == "cuda" if in_rows is None else in_rows
        shape = {"layers": self._layers, "groups": groups, "width": width, "dtype": model.dtype}
        self._layout: Layout = InRows(**shape, device=device) if self._in_rows else InTurn(**shape)
        self._head = list(head)
        self._head_cache: Cache | None = None
        self._chunk = _LEAST_CHUNK
        self._whole_chunk = _GPU_CHUNK if device.type == "cuda" else _CPU_CHUNK
        self._most = self._whole_chunk
        item = torch.empty((), dtype=model.dtype).element_size()
        self._cached_token_bytes = 2 * self._layers * groups * width * item
        # Until measured: the states in and out, the gate and up projections and their product, and
        # one copy of the states in fp32 (norms).
        inner = getattr(config, "intermediate_size", None) or 4 * config.hidden_size
        self._chunk_bytes = 0.0
        self._token_bytes = float(item * (6 * config.hidden_size + 3 * inner))
        self._token_bytes += 4 * config.hidden_size
        self._most_reads = _MOST_READS if self._in_rows else UNBOUNDED
        self._padding_bytes = 0.0
        self._logit_bytes = 0.0
        if self._in_rows:
            # Of each bounded token: queries and answers, which are as many as keys where there is no mask; keys
            # and values; which keys are seen, as it is told and as it is added. And the logits of a read.
            asked = 2 * heads * width * item
            masked = _QUERIES * asked + _PAIRS * heads // groups * (1 + item)
            self._padding_bytes = float(
                max(masked, _KEYS * asked) + _KEYS * 2 * groups * width * item
            )
            self._logit_bytes = 2.0 * item * config.vocab_size
            self._token_bytes += self._padding_bytes

    def probe(self, tokens: int) -> None:
        """Run a number of tokens as one text, to measure what they cost beside their cached states."""
        self._prefill([[0] * tokens], chunk=tokens)

    def learn(self, fixed: float, per_token: float) -> None:
        """Take the measured bytes of a probe: of any, and of each of its tokens."""
        self._chunk_bytes = fixed
        # The states of a token in and out of a layer are certain, whatever was measured.
        least = 4.0 * self._model.config.hidden_size
        self._token_bytes = max(per_token - self._cached_token_bytes, least) + self._padding_bytes

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
        left -= self._cached_token_bytes * len(self._head)
        order = sorted(range(len(asked)), key=lambda place: asked[place].tokens)
        group: list[int] = []
        tokens_taken, bytes_taken = 0, 0.0
        for place in order:
            tokens = asked[place].tokens
            room = self._layout.room(len(tokens) + self._writer.most)
            shared = 0
            if group:  # what it shares with its neighbour may become a separate segment
                length = sharing.common_length(tokens, asked[group[-1]].tokens)
                shared = self._layout.room(length) if length > len(self._head) else 0
                full = tokens_taken + room + shared > max_tokens
                if (
                    full
                    or bytes_taken + self._bytes(room, shared) > left
                    or len(group) == self._most_reads
                ):
                    yield group
                    group, tokens_taken, bytes_taken, shared = [], 0, 0.0, 0
            group.append(place)
            tokens_taken += room + shared
            bytes_taken += self._bytes(room, shared)
        if group:
            yield group

    def _bytes(self, room: int, shared: int) -> float:
        """What a read takes until it is written, with a segment that it shares."""
        # In rows, a layer of it is copied as others leave.
        copied = room / self._layers if self._in_rows else 0.0
        return self._cached_token_bytes * (room + shared + copied) + self._logit_bytes

    @torch.inference_mode()
    def answer(self, asked: Sequence[Asked]) -> list[Written]:
        """Continue each text."""
        tokens = [a.tokens for a in asked]
        written = [Written(goal=a.goal) for a in asked]
        writing, alive = self._prefill(tokens, written, chunk=self._chunk)
        while alive:
            rows = [row for row, i in enumerate(writing.reads) if i in alive]
            writing.keep(rows)
            reads = writing.reads
            # The last token written is not in the cache yet. Of reads that have ended any token will do.
            ids = [(written[i].tokens or [self._writer.padding])[-1] for i in reads]
            have = [len(tokens[i]) + max(len(written[i].tokens), 1) - 1 for i in reads]
            logits = self._forward(writing.step(ids, have))
            going = self._writer.write([written[i] if i in alive else None for i in reads], logits)
            alive = {reads[row] for row in going}
        return written

    @torch.inference_mode()
    def _prefill(
        self,
        sequences: Sequence[list[int]],
        written: Sequence[Written] | None = None,
        *,
        chunk: int,
    ) -> tuple[Writing, set[int]]:
        """Run the texts and take each answer's first token.

        Returns:
            what the others follow from, and which answers go on.
        """
        head = self._head_states()
        done = [min(sharing.common_length(self._head, s), len(s) - 1) for s in sequences]
        parts = sharing.segments(sequences, done)
        rooms = [self._layout.room(p.end + (self._writer.most if p.whole else 0)) for p in parts]
        # Reads that are written on stand first, in order of their room.
        order = sorted(range(len(parts)), key=lambda i: (not parts[i].whole, rooms[i]))
        begins = accumulate((rooms[i] for i in order), initial=0)
        offsets = dict(zip(order, begins, strict=False))
        cache = self._layout.new_cache(sum(rooms))
        alive: set[int] = set()
        for level in range(max((part.level for part in parts), default=-1) + 1):
            own = [i for i, part in enumerate(parts) if part.level == level]
            begin = _beginnings(parts, own, offsets, head, cache)
            if self._in_rows:  # to the longest of a chunk: let it be no longer than the others
                own.sort(key=lambda i: parts[i].end)
            runs = [(i, parts[i].start, parts[i].end) for i in own]
            for pieces in _chunks(runs, chunk, in_rows=self._in_rows):
                spans: list[Span] = []
                ids: list[int] = []
                for piece in pieces:
                    size = piece.last - piece.first
                    spans.append(Span(len(ids), size, offsets[piece.segment], piece.first))
                    ids += sequences[parts[piece.segment].sample][piece.first : piece.last]
                logits = self._forward(self._layout.prompts(ids, spans, cache, begin))
                begin = []
                self._stats.prompt_tokens += len(ids)
                self._stats.padded_tokens += len(ids)
                ended = [
                    parts[piece.segment].sample
                    if parts[piece.segment].whole and piece.last == parts[piece.segment].end
                    else None
                    for piece in pieces
                ]
                if written is not None and any(i is not None for i in ended):
                    answers = [None if i is None else written[i] for i in ended]
                    going = self._writer.write(answers, logits)
                    alive |= {i for row in going if (i := ended[row]) is not None}
        whole = [i for i in order if parts[i].whole]
        writing = self._layout.writing(
            cache,
            [parts[i].sample for i in whole],
            [offsets[i] for i in whole],
            [rooms[i] for i in whole],
        )
        return writing, alive

    def _head_states(self) -> Cache:
        if self._head_cache is None:
            cache = self._layout.new_cache(self._layout.room(len(self._head)))
            if self._head:
                self._forward(
                    self._layout.prompts(self._head, [Span(0, len(self._head), 0, 0)], cache)
                )
                self._stats.prompt_tokens += len(self._head)
                self._stats.padded_tokens += len(self._head)
            self._head_cache = cache
        return self._head_cache

    def _forward(self, of: Pass) -> torch.Tensor:
        """The logits that are asked for: (asked, vocabulary)."""
        out = self._model(
            input_ids=of.ids.unsqueeze(0),
            position_ids=of.positions.unsqueeze(0),
            use_cache=False,
            logits_to_keep=of.last,
            packing=of.packing,
        )
        return out.logits[0, : of.asked]


def _beginnings(
    parts: Sequence[sharing.Segment],
    own: Sequence[int],
    offsets: Mapping[int, int],
    head: Cache,
    cache: Cache,
) -> list[Beginnings]:
    """What stands before some segments, and is wanted where these begin: in the head, or their parents."""
    begun = [i for i in own if parts[i].start]
    from_head = [(0, offsets[i], parts[i].start) for i in begun if parts[i].parent < 0]
    from_parents = [
        (offsets[parts[i].parent], offsets[i], parts[i].start)
        for i in begun
        if parts[i].parent >= 0
    ]
    sources = ((head, from_head), (cache, from_parents))
    return [Beginnings(source, moves) for source, moves in sources if moves]


def _chunks(
    parts: Sequence[tuple[int, int, int]], most: int, *, in_rows: bool
) -> Iterator[list[_Piece]]:
    """Cut (segment, start, end) into chunks of at most ``most`` tokens, in order.

    Where attention pads, a chunk ends before its padding would be more than its tokens may be.
    """
    pieces: list[_Piece] = []
    free = most
    for segment, start, end in parts:
        if in_rows and pieces:
            rows = len(pieces) + 1
            longest = max(end - start, *(piece.last - piece.first for piece in pieces))
            seen = max(end, *(piece.last for piece in pieces))
            shapes = ((longest, _QUERIES), (seen, _KEYS), (longest * seen, _PAIRS))
            if any(rows * size > times * most for size, times in shapes):
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
