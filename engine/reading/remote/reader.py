"""Read through an API: turn prompts into requests, and responses into outputs."""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import NamedTuple

from engine.machine.remote.client import (
    NO_ANSWER,
    Answer,
    Client,
    RefusedError,
    UnansweredError,
    answer_of,
)
from engine.machine.remote.limits import Limits, StoppedAskingError, Usage, limits_of
from engine.reading.answers import chosen, ended_by, not_ended, rule_of, scored, weighed, with_own
from engine.reading.protocol import ReaderSpec, ReaderStats, ReadOutput
from engine.reading.remote.specify import TRIAL, PromptSize


class Reply(NamedTuple):
    """The result of a read, with the number of prompt tokens that were not in the server's cache."""

    output: ReadOutput
    computed: int = 0
    answered: bool = True  # even if the server refused the request


class ApiReader:
    """A model that a server runs; safe for threads. By default it makes its own client and new counters."""

    def __init__(
        self, spec: ReaderSpec, client: Client | None = None, stats: ReaderStats | None = None
    ) -> None:
        if spec.api is None:
            raise ValueError(f"{spec.name!r} is not behind an API")
        self._spec, self._api, self._rule = spec, spec.api, rule_of(spec)
        self._limits: Limits = limits_of(self._api.settings)
        self._client = client or Client(self._api.settings, self._limits)
        self._lock = threading.Lock()
        self.stats = stats or ReaderStats()
        self.trial = PromptSize(self._api.size(TRIAL), self._api.trial_tokens)

    def read(self, inputs: Sequence[Sequence[str]]) -> list[ReadOutput]:
        """Send the prompts of reads, some at a time. See ``engine.reading.protocol.Reader``."""
        with ThreadPoolExecutor(self._api.settings.concurrency) as threads:
            return [reply.output for reply in threads.map(self.ask, inputs)]

    def ask(self, inputs: Sequence[str]) -> Reply:
        """Request a read; a StoppedAskingError if no further requests are possible."""
        if self._api.settings.is_batch:
            return self._reply_in_batch(inputs)
        text, most = "".join(inputs), self._spec.most_new_tokens
        try:
            answer = self._client.ask(self._api, text, most, on_retry=self._retried)
        except (RefusedError, UnansweredError) as error:
            self._limits.give_up(self.size(inputs))
            return Reply(ReadOutput.failed(str(error)), answered=isinstance(error, RefusedError))
        return self._reply(answer, inputs)

    def _reply_in_batch(self, inputs: Sequence[str]) -> Reply:
        answer = self._limits.batch.answer(self._api, "".join(inputs))
        if isinstance(answer, str):
            return Reply(ReadOutput.failed(answer))
        try:
            return self._reply(answer_of(answer, chat=self._api.endpoint == "chat"), inputs)
        except NO_ANSWER:
            reason = "its answer in the batch is none, as the protocol has it"
            return Reply(ReadOutput.failed(reason))

    def _reply(self, answer: Answer, inputs: Sequence[str]) -> Reply:
        used = answer.usage or Usage()
        computed = used.prompt - used.cached
        with self._lock:
            self.stats.prompt_tokens += computed
            self.stats.padded_tokens += computed
            self.stats.unreported += answer.usage is None
            named, first = (answer.model, answer.server), (self._api.named, self._api.server)
            self.stats.changed_servers += named != first
            self._limits.seen[self._api.model].add(named)
        output = self._output(answer, used, inputs[-1])
        if self._spec.scores == "own":
            output = with_own(output, [log for _, log in answer.tokens or ()])
        return Reply(replace(output, seconds=answer.seconds), computed)

    def _target(self, answer: Answer, used: Usage, target: str) -> ReadOutput:
        logs = following(answer.tokens or (), target)
        if logs is None:
            reason = "the server gives no log-probabilities of tokens that are the text to score"
            return ReadOutput.failed(reason, prompt_tokens=used.prompt)
        return scored(target, logs, max(0, used.prompt - len(logs)), truncated=False)

    def size(self, inputs: Sequence[str]) -> int:
        """The bytes of a read's prompt, with the system message."""
        return self._api.size("".join(inputs))

    def tokens(self, text: str) -> int:
        """The tokens of a prompt, by the server's count; 0 if it gives none."""
        with contextlib.suppress(RefusedError, UnansweredError, StoppedAskingError):
            most = self._spec.most_new_tokens
            answer = self._client.ask(self._api, text, most, calibrates=False)
            return answer.usage.prompt if answer.usage else 0
        return 0

    def _retried(self) -> None:
        with self._lock:
            self.stats.retried += 1

    def _output(self, answer: Answer, used: Usage, target: str = "") -> ReadOutput:
        if (broken := _broken(answer, used)) is not None:
            return broken
        if self._spec.scores == "target":
            return self._target(answer, used, target)
        if self._spec.choices:
            return self._choice(answer, used)
        if answer.text is None and not answer.thought:
            return ReadOutput.failed("the server gave no answer", prompt_tokens=used.prompt)
        ended, most = ended_by(answer.finish), self._spec.most_new_tokens
        # Some servers always report stop. A count above the limit includes tokens besides the output.
        at_limit = ended == "stop" and used.output - used.beside == most
        output = self._rule.output(
            answer.text or "", used.prompt, used.output, ended="length" if at_limit else ended
        )
        if output.failure is not None:
            return output
        output = replace(output, thought=answer.thought or output.thought)
        # An empty answer counts if it ended by itself, or at a stop string, and without a thought.
        is_whole = ended == "stop" or output.ended == "stop"
        if not output.output and (output.thought or not is_whole):
            why = f"ended ({answer.finish or 'without a reason'}) before its answer, with {most} tokens at most"
            remedy = "a model that thinks needs more of them (max_new_tokens of the prompt)"
            return ReadOutput.failed(f"the server {why}: {remedy}", prompt_tokens=used.prompt)
        return output

    def _choice(self, answer: Answer, used: Usage) -> ReadOutput:
        likeliest, reason = answer.likeliest, "gives no log-probabilities"
        if likeliest is not None:
            if choice := choose(self._spec.choices, likeliest):
                return chosen(*choice, used.prompt, truncated=False)
            reason = f"lists {len(likeliest)} first tokens, none of which begins a choice"
        return ReadOutput.failed(f"the server {reason}", prompt_tokens=used.prompt)


def _broken(answer: Answer, used: Usage) -> ReadOutput | None:
    """The failed read of an answer with an abnormal end; None for other answers."""
    if not answer.finish or ended_by(answer.finish) is not None:
        return None
    reason = not_ended(answer.finish)
    if answer.finish == "content_filter":
        reason = "the server held its answer back (content_filter)"
    return ReadOutput.failed(reason, prompt_tokens=used.prompt)


def choose(
    choices: Sequence[str], likeliest: Mapping[str, float]
) -> tuple[str, float, float | None] | None:
    """The likeliest choice, by the rule of readers on this machine, with its confidence and mass (``answers.weighed``).

    The server's tokenizer is unknown: the first token of a choice is the longest listed token that begins this choice and
    no other. A choice without a listed token counts as 0, since its probability is below all listed ones.

    None if several choices are weighed and none has a listed token. ``likeliest`` are log-probabilities by text.
    """
    logs = [_log_probability(place, choices, likeliest) for place in range(len(choices))]
    return None if len(logs) > 1 and max(logs) == -math.inf else weighed(choices, logs)


def following(tokens: Sequence[tuple[str, float]], target: str) -> list[float] | None:
    """Log-probabilities of the target's tokens, the last or before a generated token; None if no tokens match."""
    for end in (len(tokens) - 1, len(tokens)):
        text, at = "", end
        while at > 0 and len(text) < len(target):
            at -= 1
            text = tokens[at][0] + text
        logs = [log for _, log in tokens[at:end]]
        if text == target and not any(map(math.isnan, logs)):
            return logs
    return None


def _log_probability(place: int, choices: Sequence[str], likeliest: Mapping[str, float]) -> float:
    """The log-probability of a choice's first token: as written, else with blanks before it ignored."""
    for trimmed in (str, str.lstrip):
        texts = [trimmed(choice) for choice in choices]
        others = [text for other, text in enumerate(texts) if other != place]
        fitting = [
            (len(trimmed(token)), value)
            for token, value in likeliest.items()
            if trimmed(token)
            and texts[place].startswith(trimmed(token))
            and not any(text.startswith(trimmed(token)) for text in others)
        ]
        if fitting:
            return max(fitting)[1]
    return -math.inf
