"""Do planned reads by requests from this process, many at a time, whichever units they belong to.

Requests wait and compute nothing, so one process makes as many as any server answers, and counts what they may cost.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter, defaultdict, deque
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass, field

import polars as pl

from engine.machine.remote.api_settings import ApiSettings
from engine.machine.remote.client import Client
from engine.machine.remote.limits import FEWEST_TOKENS, Limits, StoppedAskingError, limits_of
from engine.messages.errors import InputError, ReadError
from engine.reading.costs import UnitResult
from engine.reading.local import Local, refuse_alike
from engine.reading.plan import INPUTS, MadePlans, Plans, Unit
from engine.reading.protocol import ReaderSpec, ReaderStats, ReadOutput
from engine.reading.remote.reader import ApiReader, Reply
from engine.reading.remote.specify import (
    CUT_PROMPT,
    PromptSize,
    Window,
    find_window,
    is_in_doubt,
)

# Reads that are handed on together. As many more may be lost where a process is killed.
_PIECE = 16
# Reads that fail one after the other, for each request under way, before the server is taken to be gone.
_GONE = 3
# Reads whose tokens a server has counted before those of all prompts are foreseen: the longest come first.
_COUNTED = 8
_NOT_ASKED = "it was not asked for"


class _Handover:
    """Reads that are handed on together, and what has come of them."""

    def __init__(self, unit: Unit) -> None:
        self.unit, self.left = unit, unit.length
        self.outputs: list[ReadOutput | None] = [None] * unit.length
        self.sizes = [0] * unit.length
        self.seconds, self.computed = 0.0, 0


@dataclass
class _Job:
    """What is known of all calls together.

    Attributes:
        ahead: bytes of the prompts of calls that are still to come.
        done: reads that have ended.
        unanswered: the last of them, one after the other, that the server said nothing to.
        proven: places of readers that have done a read.
        windows: of readers, by their places, whose server cuts prompts.
        whole: bytes of the longest prompts that were in doubt, and were read whole.
    """

    ahead: int = 0
    done: int = 0
    unanswered: int = 0
    proven: set[int] = field(default_factory=set)
    windows: dict[int, Window] = field(default_factory=dict)
    whole: Counter[int] = field(default_factory=Counter)


class Requests(Local):
    """Reads units by requests; its readers count over all calls, as those of an actor do."""

    bounds_itself = True

    def __init__(self, local: Local) -> None:
        super().__init__(local.specs, local.places, local.bounds)
        self._stats: list[ReaderStats] = []
        self._job = _Job()

    def read(self, plans: Plans) -> Iterator[UnitResult]:
        """As ``Backend.read``; where a bound needs it, the prompts of all shards are counted before the first is asked."""
        if not isinstance(plans, MadePlans):
            self._job.ahead = sum(
                spec.api.size("".join(inputs))
                for role, spec in enumerate(self.specs)
                if spec.api and spec.api.settings.is_bounded
                for shard in plans.shards
                for inputs in plans(shard, role).reads[INPUTS].to_list()
            )
        return super().read(plans)

    def run(self, plan: pl.DataFrame, units: Sequence[Unit]) -> Iterator[UnitResult]:
        """Read the units of a plan; results come as reads end, in pieces of units.

        Where no more can be asked (a bound is reached, the key is refused, the server is gone), and where the process is
        interrupted, finished reads are handed on before the error is raised.

        Raises:
            InputError: the prompts alone go beyond the bounds; no read was asked for.
            ReadError: no more can be asked.
        """
        specs = self.specs
        settings = _settings_of(specs)
        limits = limits_of(settings)
        self._stats = self._stats or [ReaderStats() for _ in specs]
        client = Client(settings, limits)
        readers = [
            ApiReader(spec, client, stats) for spec, stats in zip(specs, self._stats, strict=True)
        ]
        work = _JobRequests(plan, readers, limits, self._job)
        try:
            limits.refuse_beyond(work.prepare(units), rate=FEWEST_TOKENS)
        except StoppedAskingError as stop:
            if self._job.proven:
                raise ReadError(f"{stop}; every finished LLM call is cached") from None
            raise InputError(stop.problem, stop.remedy, "server.stopped") from None
        try:
            yield from work.results()
        finally:
            work.close()
            client.close()


def _settings_of(specs: Sequence[ReaderSpec]) -> ApiSettings:
    (settings,) = {spec.api.settings for spec in specs if spec.api}
    models = sorted({spec.api.model for spec in specs if spec.api})
    if settings.max_cost is not None and settings.price_in is not None and len(models) > 1:
        raise InputError(
            f"`max_cost` with the models {', '.join(models)}, whose prices may differ",
            "bound tokens with `max_tokens`, or ask one model at a time",
            "server.costs",
        )
    return settings


class _JobRequests:
    def __init__(
        self,
        plan: pl.DataFrame,
        readers: Sequence[ApiReader],
        limits: Limits,
        job: _Job,
    ) -> None:
        settings = limits.settings
        self._plan, self._readers, self._limits = plan, readers, limits
        self._concurrency, self._host = settings.concurrency, settings.host
        self._threads = ThreadPoolExecutor(settings.concurrency)
        self._waiting: deque[_Handover] = deque()
        self._open: list[_Handover] = []
        # The pieces of reads that are asked for, their places there, and the bytes of their prompts.
        self._asked: dict[Future[tuple[Reply, float]], tuple[_Handover, int, int]] = {}
        self._job = job
        # Of each reader, what was counted of its first reads, which are held until it is checked, with their prompts.
        self._seen: defaultdict[int, list[tuple[PromptSize, str]]] = defaultdict(list)
        self._checked = set(range(len(readers))) if settings.is_batch else set[int]()
        # Of all prompts, in bytes: those that ended before, and of these calls.
        self._size = limits.ended

    def prepare(self, units: Sequence[Unit]) -> int:
        """Take on units, in pieces; the bytes of their prompts, and of those that are still to come."""
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
        if self._asked:
            self._limits.end()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def results(self) -> Iterator[UnitResult]:
        try:
            while self._ask():
                for future in wait(self._asked, return_when=FIRST_COMPLETED).done:
                    self._take(future)
                for piece in self._ended():
                    result = self._result(piece)
                    self._prove(result)
                    yield result
        except (ReadError, StoppedAskingError, KeyboardInterrupt) as stop:
            # What is under way is paid for.
            yield from self._rest(answered=not isinstance(stop, KeyboardInterrupt))
            if isinstance(stop, StoppedAskingError):
                raise stop.kind(f"{stop}; every finished LLM call is cached") from None
            raise

    def _inputs(self, piece: _Handover) -> list[list[str]]:
        return self._plan[INPUTS].slice(piece.unit.offset, piece.unit.length).to_list()

    def _ask(self) -> bool:
        """Have enough reads waiting for their turn; whether there are any."""
        while self._waiting and len(self._asked) < 2 * self._concurrency:
            piece = self._waiting.popleft()
            self._open.append(piece)
            reader = self._readers[piece.unit.reader]
            for place, inputs in enumerate(self._inputs(piece)):
                future = self._threads.submit(_timed, reader, inputs)
                self._asked[future] = piece, place, reader.size(inputs)
        return bool(self._asked)

    def _take(self, future: Future[tuple[Reply, float]]) -> None:
        piece, place, size = self._asked.pop(future)
        done, seconds = future.result()
        piece.sizes[place] = size
        reader = piece.unit.reader
        if reader not in self._checked:
            counted = PromptSize(size, done.output.prompt_tokens)
            self._seen[reader].append((counted, "".join(self._inputs(piece)[place])))
        piece.outputs[place] = done.output
        piece.left -= 1
        piece.computed += done.computed
        # As if requests had been made one after the other, each in its share of the time.
        piece.seconds += seconds / self._concurrency
        job = self._job
        job.done += 1
        job.unanswered = 0 if done.answered else job.unanswered + 1
        if job.unanswered >= _GONE * self._concurrency:
            raise StoppedAskingError(
                f"{job.unanswered} LLM calls failed one after the other ({done.output.failure})",
                f"run again when {self._host} answers",
            )
        if job.done == _COUNTED:
            self._limits.refuse_beyond(self._size + job.ahead)

    def _ended(self) -> Iterator[_Handover]:
        for piece in [piece for piece in self._open if not piece.left]:
            if self._is_checked(piece.unit.reader):
                self._open.remove(piece)
                yield piece

    def _is_checked(self, reader: int) -> bool:
        """Whether it is known that a reader's prompts are read whole, or up to where; found out where that is in doubt."""
        seen, job = self._seen[reader], self._job
        if reader not in self._checked:
            left = [*self._waiting, *(piece for piece in self._open if piece.left)]
            if len(seen) < _COUNTED and any(piece.unit.reader == reader for piece in left):
                return False
            self._checked.add(reader)
            longest, text = max(seen)
            if self._is_in_doubt(reader) and longest.size > job.whole[reader]:
                window = find_window(self._readers[reader].tokens, text, longest.size)
                if window is None:
                    job.whole[reader] = longest.size
                else:
                    job.windows[reader] = window
        return True

    def _is_in_doubt(self, reader: int) -> bool:
        return is_in_doubt([size for size, _ in self._seen[reader]], self._readers[reader].trial)

    def _result(self, piece: _Handover) -> UnitResult:
        outputs = [output or ReadOutput.failed(_NOT_ASKED) for output in piece.outputs]
        if window := self._job.windows.get(piece.unit.reader):
            outputs = list(map(window.judged, outputs, piece.sizes))
        return UnitResult(
            piece.unit,
            outputs,
            f"requests to {self._host}",
            piece.seconds,
            asdict(self._readers[piece.unit.reader].stats),
            piece.computed,
            piece.computed,
        )

    def _prove(self, result: UnitResult) -> None:
        """Refuse to go on where a reader's first reads all failed alike."""
        # A batch may have answers to the others, and prompts that were cut say nothing of shorter ones.
        cut = all((output.failure or "").startswith(CUT_PROMPT) for output in result.outputs)
        if cut or self._limits.settings.is_batch:
            return
        if result.unit.reader not in self._job.proven:
            refuse_alike(result.outputs)
        self._job.proven.add(result.unit.reader)

    def _rest(self, *, answered: bool) -> Iterator[UnitResult]:
        """What is finished, when no more is asked; ``answered``: with the answers that are under way."""
        for future in [future for future in self._asked if future.cancel()]:
            del self._asked[future]
        self._limits.end()  # nobody makes a request again
        for future in wait(self._asked, None if answered else 0).done:
            with contextlib.suppress(StoppedAskingError):
                self._take(future)
        for piece in self._open:
            if (reader := piece.unit.reader) not in self._checked and self._is_in_doubt(reader):
                continue  # the same reads are asked for again
            if any(output is not None and output.failure is None for output in piece.outputs):
                yield self._result(piece)


def _timed(reader: ApiReader, inputs: Sequence[str]) -> tuple[Reply, float]:
    begun = time.perf_counter()
    return reader.ask(inputs), time.perf_counter() - begun
