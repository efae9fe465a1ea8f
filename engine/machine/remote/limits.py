"""Limit requests to a server: requests and tokens per minute, and tokens or money in total; or write them into files.

All callers in a process with the same settings share one ``Limits``, whatever their role. A provider answers requests
in files later, in OpenAI's batch format, with a file of answers.
"""

from __future__ import annotations

import hashlib
import json
import math
import operator
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from engine.machine.remote.api_settings import HOUR, ApiSettings, ApiSpec
from engine.messages.errors import BoundError, InputError, LaterError, ReadError
from engine.messages.wording import counted, listed, quoted
from engine.sources.io.files import write_text
from engine.sources.io.locations import locate
from engine.sources.io.records import read_json_records

# OpenAI's limits per file, which has requests to one model (https://platform.openai.com/docs/guides/batch).
MOST_REQUESTS, MOST_BYTES = 50_000, 200_000_000
# Reason why a read is not done yet.
WRITTEN = "its request was written into the file of `batch_out`"


class Batch:
    """The files of an evaluation; safe for threads. An InputError if answers are invalid, or requests are there."""

    def __init__(self, settings: ApiSettings) -> None:
        files, self._out = settings.batch_in, settings.batch_out
        self._in = (files,) if isinstance(files, Path) else files
        # By their name: the model, and the line of the file.
        self._requests: dict[str, tuple[str, str]] = {}
        self._answers, self._errors = dict[str, Any](), dict[str, str]()
        self._lock = threading.Lock()
        if self._out is not None:
            _refuse_present([self._out, _numbered(self._out, 1)])
        for path in map(locate, self._in):
            for line, record in read_json_records(path, "answers to a batch"):
                name = record.get("custom_id")
                response = record.get("response") or record.get("error")
                if not isinstance(name, str) or not isinstance(response, dict):
                    problem = "no answer of a batch: it lacks custom_id, or response and error"
                    remedy = "give the file that the provider wrote, with a line for each request"
                    raise InputError(problem, remedy, "server.batch", path=path, line=line)
                if response.get("status_code") == 200:
                    self._answers[name] = response.get("body")
                else:
                    self._errors[name] = f"{path} has an error in its place: {quoted(response)}"

    def answer(self, spec: ApiSpec, text: str) -> Any:
        """Body of the answer to a prompt; if it is missing, a text with the reason, and the request is written."""
        body = spec.body(text)
        name = f"erag-{hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()[:40]}"
        if name in self._answers:
            return self._answers[name]
        if self._out is not None:
            path = "chat/completions" if spec.endpoint == "chat" else "completions"
            request = {"custom_id": name, "method": "POST", "url": f"/v1/{path}", "body": body}
            with self._lock:
                self._requests[name] = (spec.model, f"{json.dumps(request)}\n")
            return WRITTEN
        return self._errors.get(name, f"no answer to it is in {listed([*map(str, self._in)])}")

    def write(self) -> None:
        """Write the requests, each file whole or not at all, and say by a LaterError how to go on, if there are any.

        An InputError if a file exists, a WriteError if it cannot be written.
        """
        if self._out is None or not self._requests:
            return
        parts: list[list[str]] = []
        part_model, size = "", 0
        for model, line in sorted(self._requests.values(), key=operator.itemgetter(0)):
            size += len(line)
            if model != part_model or len(parts[-1]) == MOST_REQUESTS or size > MOST_BYTES:
                parts.append([])
                part_model, size = model, len(line)
            parts[-1].append(line)
        paths = [_numbered(self._out, n) for n in range(1, len(parts) + 1)]
        paths = paths if len(parts) > 1 else [self._out]
        _refuse_present(paths)
        for path, part in zip(paths, parts, strict=True):
            write_text("".join(part), path)
        requests, files = counted(len(self._requests), "request[|s]"), listed([*map(str, paths)])
        answering = "file that answers" if len(paths) == 1 else "files that answer"
        raise LaterError(f"{requests} in {files}; give the {answering} them as `batch_in`")


def _numbered(path: Path, number: int) -> Path:
    return path.with_name(f"{path.stem}-{number}{path.suffix}")


def _refuse_present(paths: Iterable[Path]) -> None:
    """Refuse to overwrite requests, which a provider may be answering."""
    for path in paths:
        if path.exists():
            remedy = "give another file, or delete it"
            raise InputError("is there already", remedy, "files.exists", path=path)


_MINUTE = 60.0
# Tokens per byte of text until a server reports usage: English has about 4.5 bytes per token.
_TOKENS_OF_BYTE = 0.22
# Lower bound on the tokens per byte of any text: prompts beyond the bounds even so are refused before any request.
FEWEST_TOKENS = 0.125
_NAP = 1.0  # longest sleep at once: another thread may have changed the awaited state


class Usage(NamedTuple):
    """Tokens of requests: of prompts, and of answers."""

    prompt: int = 0
    output: int = 0
    cached: int = 0  # prompt tokens from a server's cache
    thought: int = 0  # answer tokens of thoughts
    # Answer tokens that only the server's total includes (thoughts, on some servers).
    beside: int = 0

    @property
    def total(self) -> int:
        return self.prompt + self.output

    def plus(self, other: Usage) -> Usage:
        return Usage(*(a + b for a, b in zip(self, other, strict=True)))


class StoppedAskingError(Exception):
    """The server accepts no more requests, or none are allowed; raised as a ``kind`` of error to users."""

    def __init__(self, problem: str, remedy: str, kind: type[ReadError] = ReadError) -> None:
        super().__init__(f"{problem}; {remedy}")
        self.problem, self.remedy, self.kind = problem, remedy, kind


@dataclass(eq=False)  # two requests are never the same
class Ticket:
    """A request, ``ended`` at its answer or failure; its minute counts so many ``tokens``."""

    expected: Usage
    size: int
    tokens: int
    ended: float = math.inf


class Limits:
    """Starts requests as the limits allow; safe for threads. Requests of ``after`` count in the first minute, too."""

    def __init__(
        self,
        settings: ApiSettings,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] | None = None,
        after: Limits | None = None,
    ) -> None:
        self.settings, self.spent, self._clock = settings, Usage(), clock
        self._ended, self._lock = threading.Event(), threading.Lock()
        self._sleep = sleep or self._ended.wait
        # Requests that ended in the last minute, in order; and open requests. A server counts a request on its
        # arrival, between start and end.
        self._recent: deque[Ticket] = deque(after.counting() if after else ())
        self._open: list[Ticket] = []
        self._paused_until = -math.inf
        # Bytes of texts with a token count from a server, and their tokens.
        self._counted, self._tokens = 0, 0
        # Most tokens per byte of any prompt, and most tokens of an answer beyond its limit.
        self._densest, self._beyond = 0.0, 0
        self.ended = 0  # bytes of finished texts: answered, or given up
        # Results of trials of the server's models, from the first caller that needs them.
        self.known: dict[ApiSpec, ApiSpec] = {}
        # By requested model: models named by answers, with the server's fingerprint.
        self.seen: defaultdict[str, set[tuple[str, str]]] = defaultdict(set)
        self.batch = Batch(settings)
        self.took: deque[float] = deque(maxlen=64)  # seconds of the last units of reads
        # Time of the last count of actors, their number, and the seconds of all until then.
        self._begun = clock()
        self._actors = self._begun, 0, 0.0

    def end(self) -> None:
        """Wake all waiting threads: no more requests, unless an evaluation begins anew."""
        self._ended.set()
        with _LOCK:
            if _LIMITS.get(self.settings) is self:
                del _LIMITS[self.settings]

    def _estimate(self, size: int) -> int:
        ratio = self._tokens / self._counted if self._counted else _TOKENS_OF_BYTE
        return math.ceil(size * ratio)

    def counting(self) -> list[Ticket]:
        """Requests that count in this minute; open requests as if they ended now."""
        with self._lock:
            now = self._clock()
            return [*self._recent, *(replace(ticket, ended=now) for ticket in self._open)]

    def take(self, size: int, output: int) -> Ticket:
        """Wait until a request may start, with a prompt of ``size`` bytes and an answer of at most ``output`` tokens.

        A StoppedAskingError if it may exceed the evaluation's bounds, or requests have been stopped.
        """
        while True:
            with self._lock:
                expected = Usage(self._estimate(size), output + self._beyond)
                most = max(expected.prompt, math.ceil(size * self._densest))
                ticket = Ticket(expected, size, most + expected.output)
                wait = self._wait(ticket)
                if wait <= 0:
                    self._open.append(ticket)
                    return ticket
            self.sleep(min(wait, _NAP))

    def sleep(self, seconds: float) -> None:
        """Wait so long; raises a StoppedAskingError once requests are stopped."""
        self._sleep(seconds)
        if self._ended.is_set():
            raise StoppedAskingError("the evaluation was stopped", "run it again")

    def settle(self, ticket: Ticket, used: Usage | None, *, calibrates: bool = True) -> None:
        """Record a request's usage, None for no answer; it ``calibrates`` estimates if its prompt is like others."""
        with self._lock:
            self._open.remove(ticket)
            self._recent.append(ticket)
            ticket.ended = self._clock()
            reserved, ticket.expected = ticket.expected, used or Usage()
            self.spent = self.spent.plus(ticket.expected)
            if used is None:  # the server may have counted the work of an unanswered request
                return
            ticket.tokens = used.total
            if not calibrates:
                return
            self.ended += ticket.size
            if used is not reserved:  # else the server reported no usage
                self._counted += ticket.size if used.prompt else 0
                self._tokens += used.prompt
                self._densest = max(self._densest, used.prompt / max(1, ticket.size))
                self._beyond += max(0, used.output - reserved.output)

    def give_up(self, size: int) -> None:
        """Record that a prompt of so many bytes will not be sent again: it was refused or not answered."""
        with self._lock:
            self.ended += size

    def pause(self, seconds: float) -> None:
        """Hold all requests for so long, as the server demands."""
        with self._lock:
            self._paused_until = max(self._paused_until, self._clock() + seconds)

    def refuse_beyond(self, size: int, *, rate: float | None = None) -> None:
        """Refuse prompts that, with the usage so far, alone exceed the evaluation's bounds, by a StoppedAskingError.

        Args:
            size: bytes of the remaining prompts; without ``rate``, finished prompts (``ended``) included, so that a
                request counts once right after its answer.
            rate: tokens per byte; by default the server's rate so far.
        """
        with self._lock:
            left = max(0, size - self.ended)
            prompt = math.ceil(size * rate) if rate is not None else self._estimate(left)
            expected = self.spent.plus(Usage(prompt))
        if bound := self._bound_passed(expected):
            price = self.settings.cost(expected.prompt, expected.output)
            cost = "" if price is None else f", {price:.4g} by their price"
            if not self._bound_passed(Usage(expected.prompt)):
                cost = f" beside {expected.output:,} of answers{cost}"
            raise StoppedAskingError(
                f"about {expected.prompt:,} tokens of prompts are needed in all{cost}, and {bound}",
                "raise it, or read less",
            )

    def _wait(self, ticket: Ticket) -> float:
        """Estimated seconds until a request may start; 0 or less for now."""
        expected = self.spent
        for other in (*self._open, ticket):
            expected = expected.plus(other.expected)
        if bound := self.passed(expected):
            if not self._open:
                problem = f"{self.used()} are used, and {bound}"
                raise StoppedAskingError(problem, "raise it", BoundError)
            return _NAP / 20  # open requests may use less than their maximum
        now = self._clock()
        while self._recent and self._recent[0].ended + _MINUTE <= now:
            self._recent.popleft()
        waits = [self._paused_until - now]
        minute = [*self._recent, *self._open]
        if most := self.settings.requests_per_minute:
            waits.append(self._until_without(len(minute) + 1 - most, lambda _: 1))
        # A request with more tokens than a minute allows goes alone.
        if minute and (most := self.settings.tokens_per_minute):
            surplus = sum(other.tokens for other in (*minute, ticket)) - most
            waits.append(self._until_without(surplus, operator.attrgetter("tokens")))
        return max(waits)

    def _until_without(self, surplus: int, counts: Callable[[Ticket], int]) -> float:
        """Seconds until requests with a total count of ``surplus`` have left the last minute."""
        now, wait = self._clock(), -math.inf
        for ticket in self._recent:
            if surplus <= 0:
                return wait
            surplus -= counts(ticket)
            wait = ticket.ended + _MINUTE - now
        # The minute of an open request has not begun.
        return _MINUTE if surplus > 0 and self._open else wait

    def see(self, actors: int) -> None:
        """Record the number of actors from now on; this process counts as an actor if it reads."""
        then, before, seconds = self._actors
        now = self._clock()
        self._actors = now, actors, seconds + before * (now - then)

    def passed(self, usage: Usage | None = None) -> str:
        """The bound that this usage passes, after one more unit per actor, as long as the last ones."""
        end = self._clock() + sum(self.took) / max(1, len(self.took))
        most = self.settings.max_hours
        if most is not None and end > self._begun + most * HOUR:
            return f"`max_hours` is {most:g}"
        then, actors, seconds = self._actors
        return self._bound_passed(usage or self.spent, seconds + actors * (end - then))

    def require(self, bound: str = "") -> None:
        """Raise a BoundError for ``bound``, or if another unit would pass a bound; the first unit never does."""
        if self.took and (bound := bound or self.passed()):
            raise BoundError(f"{bound}, which the next LLM calls would pass; run again")

    def _bound_passed(self, usage: Usage, seconds: float | None = None) -> str:
        """The bound that this usage passes, with the seconds of actors if they count; empty for none."""
        most_tokens, most_cost = self.settings.max_tokens, self.settings.max_cost
        if most_tokens is not None and usage.total > most_tokens:
            return f"`max_tokens` is {most_tokens:,}"
        cost = self.settings.cost(usage.prompt, usage.output, seconds) or 0.0
        return f"`max_cost` is {most_cost:g}" if most_cost is not None and cost > most_cost else ""

    def used(self) -> str:
        """Tokens, and their price, in words."""
        cost = self.settings.cost(self.spent.prompt, self.spent.output)
        price = "" if cost is None else f" for {cost:.4g}"
        return f"{self.spent.total:,} tokens{price}"


_LIMITS: dict[ApiSettings, Limits] = {}
# The last limits by address: a minute does not end with an evaluation.
_LAST: dict[str, Limits] = {}
_LOCK = threading.Lock()


def limits_of(settings: ApiSettings) -> Limits:
    """The limits shared by all callers in this process with these settings."""
    with _LOCK:
        if settings not in _LIMITS:
            address = settings.address
            _LAST[address] = _LIMITS[settings] = Limits(settings, after=_LAST.get(address))
        return _LIMITS[settings]


def forget() -> None:
    """Reset the usage that counts toward bounds: an evaluation begins."""
    with _LOCK:
        _LIMITS.clear()
