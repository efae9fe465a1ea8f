"""Run decoder-only models on a CPU on packed tokens: without padding, and with shared beginnings computed once.

The tokens of many texts stand in one row (``engine.reading.models.attention``). A shared beginning (the template's
examples, the query, the passage) is a segment of its own, whose keys and values the texts copy
(``engine.reading.models.tokenizing``). Prompts run in chunks small enough for a processor's caches. A step writes
a token of every answer, since it costs about as much for one answer as for many. Steps are cheapest together
with a chunk of unread prompts, from the same batch or a later one.

Layers of some models attend only within a window. A text that fits this window with its answer runs packed, too.
Longer texts are padded, with transformers' own attention.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from itertools import accumulate
from threading import Lock
from typing import Any
from weakref import WeakKeyDictionary

import torch

from engine.machine import batching
from engine.reading.models import attention
from engine.reading.models.attention import Cache, KeysAreKept, PackedPass, Span
from engine.reading.models.decoding import Continuation, Writer, log_probabilities, padded_length
from engine.reading.models.padded import PaddedModel, activation_bytes, layer_sizes
from engine.reading.models.tokenizing import PromptRead, Segment, common_length, segments
from engine.reading.protocol import ReaderStats

# Larger chunks leave a processor's caches, and matrix products are at full speed from 256 rows on.
_WHOLE_CHUNK = 1024
# Smaller chunks waste the processor, so less memory does not shrink them further.
_LEAST_CHUNK = 64
# Readers share a model, perhaps in several threads, and each pass sets the model up for itself.
_LOCKS: WeakKeyDictionary[torch.nn.Module, Lock] = WeakKeyDictionary()
_Piece = tuple[int, int, int]  # a segment, its first token, and the end (exclusive)
# Parts of texts, their beginnings in the cache, and the common end.
_Places = tuple[Sequence[Segment], Sequence[int], int]


class PackedModel:
    """A decoder-only model that answers many prompts of any lengths together.

    Args:
        model: of a family in ``engine.reading.models.attention.FAMILIES``.
        head: tokens that most prompts begin with; their keys and values are kept.
        fused: whether prompts of any length go through the flash kernel.
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
        self._lock = _LOCKS.setdefault(model, Lock())
        self._writer = writer
        self._stats = stats
        layers: int = config.num_hidden_layers
        _, groups, width, inner = layer_sizes(config)
        self._shape = {"layers": layers, "groups": groups, "width": width, "dtype": model.dtype}
        self._fused = fused
        self._head = list(head)
        self._head_cache: Cache | None = None
        self._cache: Cache | None = None
        self._room = 0  # of the cache from the first batch on
        self._bound = batching.UNBOUNDED  # of a cache that is kept
        self._going: list[Continuation] = []  # answers under way
        self._chunk = _LEAST_CHUNK
        self._most = _WHOLE_CHUNK
        item = torch.empty((), dtype=model.dtype).element_size()
        self._cached_token_bytes = 2 * layers * groups * width * item
        # Until measured.
        self._chunk_bytes = 0.0
        self._token_bytes = activation_bytes(config.hidden_size, inner, item)
        self._logits_bytes = 2 * item * config.vocab_size

    @torch.inference_mode()
    def probe(self, tokens: int) -> None:
        """Run a text of so many tokens, to measure its memory."""
        self._head_states()
        span = Span(0, tokens, self._make_room(tokens), 0)
        self._forward(self._pack([0] * tokens, [span], [span.last]))
        self.drop()

    def learn(self, fixed: float, per_token: float) -> None:
        """Use the measured bytes of a probe: a fixed part, and a part per token."""
        self._chunk_bytes = fixed
        # A token's states in and out of a layer are a lower bound for any measurement.
        least = 4.0 * self._model.config.hidden_size
        self._token_bytes = max(per_token - self._cached_token_bytes, least)

    def shrink(self) -> None:
        """Run smaller chunks and free unused memory, after memory ran out."""
        self._most = max(_LEAST_CHUNK, self._most // 2)
        self._chunk = min(self._chunk, self._most)
        self._room = 0
        self._make_room(0, fresh=True)

    def grow(self) -> None:
        """Return to chunks of the original size, as far as the memory of a call allows."""
        self._most = _WHOLE_CHUNK

    def batches(
        self, reads: Sequence[PromptRead], *, memory: float, max_tokens: int
    ) -> Iterator[list[int]]:
        """Places of ``reads`` in groups, of at least one, that fit ``memory`` bytes and ``max_tokens``.

        Texts that begin alike stand together. Chunks take half of the memory at most; keys and values of texts and of
        answers under way take the rest. Answers are continued until the next text fits beside them.
        """
        # If targets are scored, any token of a chunk may need logits.
        token_bytes = self._token_bytes + self._logits_bytes * any(read.target for read in reads)
        by_memory = int((memory / 2 - self._chunk_bytes) / token_bytes)
        self._chunk = max(_LEAST_CHUNK, min(self._most, by_memory))
        left = memory - self._chunk_bytes - token_bytes * self._chunk
        left -= self._cached_token_bytes * len(self._head)
        order = sorted(range(len(reads)), key=lambda place: reads[place].tokens)

        most = min(max_tokens, int(left / self._cached_token_bytes))
        # One size from the first batch on: a growing cache leaves gaps too small for its successor.
        needed = sum(padded_length(read.room(self._writer.most)) for read in reads)
        self._room, self._bound = (most if needed > most else 0), most

        group: list[int] = []
        taken = 0
        for place in order:
            tokens, target = reads[place].tokens, reads[place].target
            before = reads[group[-1]].tokens if group else []
            room = padded_length(reads[place].room(self._writer.most))
            if target:  # it stands apart, behind a prompt that targets may share
                room = padded_length(len(target)) + (tokens != before) * padded_length(len(tokens))
            shared = 0
            if group:  # a beginning shared with its neighbour may become a separate segment
                length = common_length(tokens, before)
                alone = length <= len(self._head) or (target and tokens == before)
                shared = 0 if alone else padded_length(length)
                if taken + room + shared > most:
                    yield group
                    group, shared = [], 0
                    room += bool(target and tokens == before) * padded_length(len(tokens))
            if not group:
                # A batch of few texts has few beginnings in common.
                worth = max(room, min(needed, most // 4))
                while self._going and worth + sum(self._rooms()) > most:
                    self.step()
                taken = sum(self._rooms())
            group.append(place)
            taken += room + shared
        if group:
            yield group

    @torch.inference_mode()
    def passes(self, reads: Sequence[PromptRead]) -> batching.Passes[list[Continuation]]:
        """Continue texts, or score the targets behind them.

        Only ``step`` may come between passes; answers may be under way at the end.
        """
        if any(read.target for read in reads):
            yield
            return self._scored(reads)
        written, before = [Continuation(prompt=read.tokens) for read in reads], [*self._going]
        try:
            texts = [read.tokens for read in reads]
            yield from self._prefill(texts, self._place(texts), written)
        except Exception:  # the caller may retry these texts
            self._going = [answer for answer in before if answer in self._going]
            raise
        return written

    def is_writing(self, answers: Collection[Continuation]) -> bool:
        return not set(answers).isdisjoint(self._going)

    @torch.inference_mode()
    def step(self) -> None:
        """Write the next token of all answers under way."""
        self._advance()

    def finish(self) -> None:
        """Write the answers under way to their ends."""
        while self._going:
            self.step()

    def drop(self) -> None:
        """Discard the answers under way and the cache."""
        self._going, self._cache = [], None

    def _scored(self, reads: Sequence[PromptRead]) -> list[Continuation]:
        """Score the targets, which attend to the keys and values of their prompt: it is computed once."""
        written = [Continuation() for _ in reads]
        texts = [[read.tokens[-1], *read.target[:-1]] for read in reads]  # from the prompt's last
        prompts = [tuple(read.tokens[:-1] or read.tokens) for read in reads]
        places = {prompt: place for place, prompt in enumerate(dict.fromkeys(prompts))}
        rooms = [padded_length(len(text)) for text in texts]
        stems = [*map(list, places)]
        parts, begun, end = placed = self._place(stems, more=sum(rooms))
        for _ in self._prefill(stems, placed):
            pass
        offsets = {part.sample: at for part, at in zip(parts, begun, strict=True) if part.whole}
        begins = list(accumulate(rooms, initial=end))
        for pieces in _chunks([(i, 0, len(text)) for i, text in enumerate(texts)], self._chunk):
            spans: list[Span] = []
            ids: list[int] = []
            for i, first, last in pieces:
                before, stem = len(reads[i].tokens) - 1, offsets[places[prompts[i]]]
                spans.append(Span(len(ids), last - first, begins[i], before + first, stem, before))
                ids += texts[i][first:last]
            logits = self._forward(self._pack(ids, spans, range(len(ids))))
            targets = [(i, token) for i, *at in pieces for token in reads[i].target[slice(*at)]]
            logs = log_probabilities(logits, [token for _, token in targets])
            for (i, _), log in zip(targets, logs, strict=True):
                written[i].logs.append(log)
        return written

    def _place(self, sequences: Sequence[list[int]], *, more: int | None = None) -> _Places:
        """Places of texts in the cache, with room for their answers, or for ``more`` tokens after all texts."""
        computed = [min(common_length(self._head, s), len(s) - 1) for s in sequences]
        parts = segments(sequences, computed)
        most = self._writer.most if more is None else 0
        rooms = [padded_length(part.end + most * part.whole) for part in parts]
        first = self._make_room(sum(rooms) + (more or 0))
        *offsets, end = accumulate(rooms, initial=first)
        return parts, offsets, end

    def _prefill(
        self, sequences: Sequence[list[int]], placed: _Places, written: Sequence[Continuation] = ()
    ) -> Iterator[None]:
        """Run the texts, and take each answer's first token, chunk by chunk."""
        parts, offsets, _ = placed
        head = self._head_states()
        assert self._cache is not None
        for part, offset in zip(parts, offsets, strict=True):
            if part.start and part.parent < 0:
                for layer, states in zip(self._cache.layers, head.layers, strict=True):
                    layer[:, :, offset : offset + part.start] = states[:, :, : part.start]
        every = [(i, part.start, part.end) for i, part in enumerate(parts)]
        for pieces in _chunks(every, self._chunk):
            spans: list[Span] = []
            ids: list[int] = []
            begun: list[tuple[Span, Continuation]] = []
            copies: list[tuple[int, int, int]] = []
            for i, start, last in pieces:
                part, sequence = parts[i], sequences[parts[i].sample]
                spans.append(Span(len(ids), last - start, offsets[i], start))
                ids += sequence[start:last]
                if part.parent >= 0 and start == part.start:
                    copies.append((offsets[part.parent], offsets[i], start))
                if written and part.whole and last == part.end:
                    answer = written[part.sample]
                    answer.offset = offsets[i]
                    begun.append((spans[-1], answer))
            self._stats.prompt_tokens += len(ids)
            self._stats.padded_tokens += len(ids)
            self._advance(ids, spans, begun, copies)
            yield

    def _advance(
        self,
        ids: Sequence[int] = (),
        spans: Sequence[Span] = (),
        begun: Sequence[tuple[Span, Continuation]] = (),
        copies: Sequence[tuple[int, int, int]] = (),
    ) -> None:
        """Run tokens of prompts, and write the next token of every answer, under way or beginning in this pass."""
        going = self._going
        lasts = [answer.tokens[-1] for answer in going]
        # Their last tokens are not in the cache yet.
        writing = [
            Span(at, 1, answer.offset, _length(answer) - 1, writing=True)
            for at, answer in enumerate(going, start=len(ids))
        ]
        rows = [span.last for span in (*(span for span, _ in begun), *writing)]
        logits = self._forward(self._pack([*ids, *lasts], [*spans, *writing], rows, copies))
        if not rows:
            return
        going = [*(answer for _, answer in begun), *going]
        try:
            on = self._writer.write(going, logits)
        except ArithmeticError:  # the cache may hold NaN, too
            self._cache = None
            raise
        self._going = [going[place] for place in on]

    def _make_room(self, room: int, *, fresh: bool = False) -> int:
        """Move the answers under way to the cache's beginning, with ``room`` behind them; return the room's beginning."""
        cache, self._cache = self._cache, None
        if cache is None and self._going:
            raise RuntimeError("the keys and values of answers under way are lost")
        self._going.sort(key=lambda answer: answer.offset)
        *begins, end = accumulate(self._rooms(), initial=0)
        cache = cache or Cache.empty(0, **self._shape)
        needed = max(end + room, self._room)
        # A larger cache is left of a call with more memory.
        fresh = fresh or cache.layers[0].shape[2] > padded_length(max(needed, self._bound))
        places = list(zip(self._going, begins, strict=True))
        moves = [(answer.offset, begin, _length(answer)) for answer, begin in places]
        cache.gather(moves, needed, fresh=fresh)
        for answer, begin in places:
            answer.offset = begin
        self._cache = cache
        return end

    def _rooms(self) -> list[int]:
        return [padded_length(len(answer.prompt) + self._writer.most) for answer in self._going]

    def _head_states(self) -> Cache:
        if self._head_cache is None:
            cache = Cache.empty(len(self._head), **self._shape)
            if self._head:
                spans = [Span(0, len(self._head), 0, 0)]
                self._forward(PackedPass(cache, spans, self._head, fused=self._fused))
                self._stats.prompt_tokens += len(self._head)
                self._stats.padded_tokens += len(self._head)
            self._head_cache = cache
        return self._head_cache

    def _pack(
        self,
        ids: Sequence[int],
        spans: Sequence[Span],
        rows: Sequence[int],
        copies: Sequence[tuple[int, int, int]] = (),
    ) -> PackedPass:
        assert self._cache is not None
        return PackedPass(self._cache, spans, ids, rows, copies, self._fused)

    def _forward(self, packing: PackedPass) -> torch.Tensor:
        """The logits of the pass's rows, (rows, vocabulary). Beyond keys and values, the last layer runs on them alone."""
        ids, rows = _at_least_two(packing.tokens), _at_least_two(packing.rows)
        positions = [at for s in packing.spans for at in range(s.have, s.have + s.tokens)]

        def narrow(layer: Any, inputs: tuple[Any, ...], more: dict[str, Any]) -> Any:
            try:
                layer.forward(*inputs, **more | {"packing": replace(packing, attends=False)})
            except KeysAreKept:
                if not packing.rows:
                    raise
            turned = tuple(part[:, rows] for part in more["position_embeddings"])
            more = more | {"position_embeddings": turned, "packing": packing.narrow}
            return (inputs[0][:, rows], *inputs[1:]), more

        config = self._model.config
        with self._lock:
            own, config._attn_implementation = config._attn_implementation, attention.ATTENTION
            narrows = len(rows) < len(ids)
            last = self._model.get_decoder().layers[-1]
            hook = last.register_forward_pre_hook(narrow, with_kwargs=True) if narrows else None
            try:
                out = self._model(
                    input_ids=ids.unsqueeze(0),
                    position_ids=_at_least_two(positions).unsqueeze(0),
                    use_cache=False,
                    logits_to_keep=0 if narrows else rows,
                    packing=packing,
                )
            except KeysAreKept:
                return torch.empty((0, config.vocab_size))
            finally:  # other users of the model may run it with its own attention
                config._attn_implementation = own
                if hook:
                    hook.remove()
        return out.logits[0, : len(packing.rows)]


def _at_least_two(numbers: Sequence[int]) -> torch.Tensor:
    """A single one twice: products with one row take another code path, which rounds differently."""
    return torch.tensor([*numbers] * (2 if len(numbers) == 1 else 1), dtype=torch.long)


def _length(answer: Continuation) -> int:
    return len(answer.prompt) + len(answer.tokens)


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


class WindowedModel(PackedModel):
    """A model with layers that attend within a ``window``: texts that fit run packed, others ``padded``."""

    def __init__(
        self, *parts: Any, window: int, padded: PaddedModel, head: list[int], **options: Any
    ) -> None:
        self._padded, self._window = padded, window
        super().__init__(*parts, head=head[:window], **options)

    def batches(self, reads: Sequence[PromptRead], **most: Any) -> Iterator[list[int]]:
        """See ``PackedModel``. All texts of a batch run the same way."""
        for fits, way in ((True, super().batches), (False, self._padded.batches)):
            own = [place for place, text in enumerate(reads) if self._fits(text) is fits]
            if own and not fits:  # padded batches may have all of the memory
                self.finish()
                self.drop()
            for batch in way([reads[place] for place in own], **most):
                yield [own[place] for place in batch]

    def passes(self, reads: Sequence[PromptRead]) -> batching.Passes[list[Continuation]]:
        return super().passes(reads) if self._fits(reads[0]) else self._padded.passes(reads)

    def _fits(self, text: PromptRead) -> bool:
        # No pass runs on the last token.
        return text.room(max(1, self._writer.most)) - 1 <= self._window
