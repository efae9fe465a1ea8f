"""Do planned reads by requests from this process, many at a time, whichever units they belong to.

Requests only wait, so one process makes as many as any server answers, and bounds their costs.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter, defaultdict, deque
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import asdict
from itertools import repeat

import polars as pl

from engine.machine.remote.client import Client
from engine.machine.remote.limits import FEWEST_TOKENS, Limits, StoppedAskingError, limits_of
from engine.messages.errors import InputError, ReadError
from engine.reading.costs import UnitResult
from engine.reading.local import Local, refuse_alike
from engine.reading.plan import INPUTS, Plans, PlansInMemory, Unit
from engine.reading.protocol import ReaderStats, ReadOutput
from engine.reading.remote.reader import ApiReader, Reply
from engine.reading.remote.specify import CUT_PROMPT, PromptSize, Window, find_window, is_in_doubt

# Reads in a handover. A killed process may lose as many.
_PIECE = 16
# Consecutive failures per concurrent request after which the server counts as gone.
_GONE = 3
# Reads with tokens counted by a server before all tokens are predicted: the longest come first.
_COUNTED = 8


class _Handover:
    """Reads that are handed on together, with their outputs."""

    def __init__(self, unit: Unit) -> None:
        self.unit, self.left = unit, unit.length
        self.outputs: list[ReadOutput | None] = [None] * unit.length
        self.sizes = [0] * unit.length
        self.seconds, self.computed = 0.0, 0


class Requests(Local):
    """Reads units by requests; its readers count over all shards, like an actor's."""

    bounds_itself = True

    def __init__(self, local: Local) -> None:
        super().__init__(local.specs, local.places, local.bounds)
        self.stats = [ReaderStats() for _ in self.specs]
        # Bytes of the prompts of later shards; reads that have ended, and the latest in a row without an answer.
        self.ahead = self.ended = self.unanswered = 0
        self.windows: dict[int, Window] = {}  # by role: those to which servers cut prompts
        # By role: bytes of the longest doubtful prompt that was read whole.
        self.whole = Counter[int]()

    def read(self, plans: Plans) -> Iterator[UnitResult]:
        """As ``Backend.read``; the prompts of all shards are counted before the first request if a bound needs it."""
        if not isinstance(plans, PlansInMemory):
            self.ahead = sum(
                spec.api.size("".join(inputs))
                for role, spec in enumerate(self.specs)
                if spec.api and spec.api.settings.is_bounded
                for shard in plans.shards
                for inputs in plans(shard, role).reads[INPUTS].to_list()
            )
        return super().read(plans)

    def run(self, plan: pl.DataFrame, units: Sequence[Unit]) -> Iterator[UnitResult]:
        """Read the units of a plan; results come as reads end, in pieces of units.

        An InputError if the prompts alone exceed the bounds, before any request; a ReadError if requests must stop (a
        bound is reached, the key is refused, the server is gone). Finished reads are handed on first, as before an
        interrupt.
        """
        apis = [spec.api for spec in self.specs if spec.api]
        (settings,) = {api.settings for api in apis}
        models = sorted({api.model for api in apis})
        if settings.max_cost is not None and settings.price_in is not None and len(models) > 1:
            problem = f"`max_cost` with the models {', '.join(models)}, whose prices may differ"
            remedy = "bound tokens with `max_tokens`, or ask one model at a time"
            raise InputError(problem, remedy, "server.costs")
        limits = limits_of(settings)
        client = Client(settings, limits)
        readers = [ApiReader(*each) for each in zip(self.specs, repeat(client), self.stats)]
        work = _ShardRequests(plan, readers, limits, self)
        try:
            limits.refuse_beyond(work.prepare(units), rate=FEWEST_TOKENS)
        except StoppedAskingError as stop:
            if self.proven:
                raise ReadError(f"{stop}; every finished LLM call is cached") from None
            raise InputError(stop.problem, stop.remedy, "server.stopped") from None
        try:
            yield from work.results()
        finally:
            work.close()
            client.close()


class _ShardRequests:
    def __init__(
        self, plan: pl.DataFrame, readers: Sequence[ApiReader], limits: Limits, job: Requests
    ) -> None:
        settings = limits.settings
        self._plan, self._readers, self._limits, self._job = plan, readers, limits, job
        self._concurrency, self._host = settings.concurrency, settings.host
        self._threads = ThreadPoolExecutor(settings.concurrency)
        self._waiting: deque[_Handover] = deque()
        self._open: list[_Handover] = []
        # By pending request: its piece, its place there, and the bytes of its prompt.
        self._pending: dict[Future[tuple[Reply, float]], tuple[_Handover, int, int]] = {}
        # By reader: sizes and prompts of its first reads, which are held until the reader is checked.
        self._seen: defaultdict[int, list[tuple[PromptSize, str]]] = defaultdict(list)
        self._checked = set(range(len(readers))) if settings.is_batch else set[int]()
        # Bytes of all prompts: of earlier shards and of this one.
        self._size = limits.ended

    def prepare(self, units: Sequence[Unit]) -> int:
        """Queue units in pieces; return the bytes of their prompts and of later shards' prompts."""
        for unit in units:
            for start in range(0, unit.length, _PIECE):
                length = min(_PIECE, unit.length - start)
                part = Unit(unit.number, unit.offset + start, length, unit.reader)
                self._waiting.append(_Handover(part))
        size = sum(
            self._readers[piece.unit.reader].size(inputs)
            for piece in self._waiting
            for inputs in self._inputs(piece)
        )
        self._size += size
        self._job.ahead = max(0, self._job.ahead - size)
        return size + self._job.ahead

    def close(self) -> None:
        if self._pending:
            self._limits.end()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def results(self) -> Iterator[UnitResult]:
        try:
            while self._submit():
                for future in wait(self._pending, return_when=FIRST_COMPLETED).done:
                    self._take(future)
                for piece in [piece for piece in self._open if not piece.left]:
                    if self._is_checked(piece.unit.reader):
                        self._open.remove(piece)
                        result = self._result(piece)
                        self._prove(result)
                        yield result
        except (ReadError, StoppedAskingError, KeyboardInterrupt) as stop:
            # Pending requests are paid for.
            yield from self._rest(answered=not isinstance(stop, KeyboardInterrupt))
            if isinstance(stop, StoppedAskingError):
                raise stop.kind(f"{stop}; every finished LLM call is cached") from None
            raise

    def _inputs(self, piece: _Handover) -> list[list[str]]:
        return self._plan[INPUTS].slice(piece.unit.offset, piece.unit.length).to_list()

    def _submit(self) -> bool:
        """Submit enough requests to keep all threads busy; return whether any is pending."""
        while self._waiting and len(self._pending) < 2 * self._concurrency:
            piece = self._waiting.popleft()
            self._open.append(piece)
            reader = self._readers[piece.unit.reader]
            for place, inputs in enumerate(self._inputs(piece)):
                future = self._threads.submit(_timed, reader, inputs)
                self._pending[future] = piece, place, reader.size(inputs)
        return bool(self._pending)

    def _take(self, future: Future[tuple[Reply, float]]) -> None:
        piece, place, size = self._pending.pop(future)
        reply, seconds = future.result()
        reader, job = piece.unit.reader, self._job
        if reader not in self._checked:
            counted = PromptSize(size, reply.output.prompt_tokens)
            self._seen[reader].append((counted, "".join(self._inputs(piece)[place])))
        piece.outputs[place], piece.sizes[place] = reply.output, size
        piece.left -= 1
        piece.computed += reply.computed
        # Each request counts its share of the time, as if requests were sequential.
        piece.seconds += seconds / self._concurrency
        job.ended += 1
        job.unanswered = 0 if reply.answered else job.unanswered + 1
        if job.unanswered >= _GONE * self._concurrency:
            raise StoppedAskingError(
                f"{job.unanswered} LLM calls failed one after the other ({reply.output.failure})",
                f"run again when {self._host} answers",
            )
        if job.ended == _COUNTED:
            self._limits.refuse_beyond(self._size + job.ahead)

    def _is_checked(self, reader: int) -> bool:
        """Whether the server's limit on a reader's prompts is certain; measures the limit if it is in doubt."""
        seen, job = self._seen[reader], self._job
        if reader not in self._checked:
            left = [*self._waiting, *(piece for piece in self._open if piece.left)]
            if len(seen) < _COUNTED and any(piece.unit.reader == reader for piece in left):
                return False
            self._checked.add(reader)
            longest, text = max(seen)
            if self._is_in_doubt(reader) and longest.size > job.whole[reader]:
                if window := find_window(self._readers[reader].tokens, text, longest.size):
                    job.windows[reader] = window
                else:
                    job.whole[reader] = longest.size
        return True

    def _is_in_doubt(self, reader: int) -> bool:
        return is_in_doubt([size for size, _ in self._seen[reader]], self._readers[reader].trial)

    def _result(self, piece: _Handover) -> UnitResult:
        missing, unit = ReadOutput.failed("it was not asked for"), piece.unit
        outputs = [output or missing for output in piece.outputs]
        if window := self._job.windows.get(unit.reader):
            outputs = list(map(window.judge, outputs, piece.sizes))
        worker, stats = f"requests to {self._host}", asdict(self._readers[unit.reader].stats)
        computed = piece.computed
        return UnitResult(unit, outputs, worker, piece.seconds, stats, computed, computed)

    def _prove(self, result: UnitResult) -> None:
        """Refuse to go on if a reader's first reads all failed alike."""
        # A batch may hold answers to other reads, and shorter prompts may succeed where cut ones fail.
        is_cut = all((output.failure or "").startswith(CUT_PROMPT) for output in result.outputs)
        if is_cut or self._limits.settings.is_batch:
            return
        if result.unit.reader not in self._job.proven:
            refuse_alike(result.outputs)
        self._job.proven.add(result.unit.reader)

    def _rest(self, *, answered: bool) -> Iterator[UnitResult]:
        """Finished pieces after requests stop; waits for pending answers if ``answered``."""
        for future in [future for future in self._pending if future.cancel()]:
            del self._pending[future]
        self._limits.end()  # no further request starts
        for future in wait(self._pending, None if answered else 0).done:
            with contextlib.suppress(StoppedAskingError):
                self._take(future)
        for piece in self._open:
            if (reader := piece.unit.reader) not in self._checked and self._is_in_doubt(reader):
                continue  # these reads will be repeated
            if any(output is not None and output.failure is None for output in piece.outputs):
                yield self._result(piece)


def _timed(reader: ApiReader, inputs: Sequence[str]) -> tuple[Reply, float]:
    begun = time.perf_counter()
    return reader.ask(inputs), time.perf_counter() - begun
