"""Send one request to a server, and retry it through passing failures."""

from __future__ import annotations

import email.utils
import itertools
import json
import math
import operator
import os
import random
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import unquote, urlsplit

import openai

from engine.machine.remote import transport
from engine.machine.remote.api_settings import ApiSettings, ApiSpec
from engine.machine.remote.limits import Limits, StoppedAskingError, Usage
from engine.machine.remote.transport import UntakenError
from engine.messages.errors import MASK, InputError, masked
from engine.messages.wording import as_unicode, listed

# Attempts before a request counts as failed: one request in 400,000, at a failure rate of 20%.
ATTEMPTS = 8
# Seconds before a retry: doubled each time, up to the longest, less up to a half by chance. Requests fail at once if a
# server demands more than the longest of all.
FIRST_WAIT, LONGEST_WAIT, LONGEST_ASKED = 0.5, 30.0, 600.0
# Statuses that allow a retry: timeouts, conflicts, too many requests, faults of servers.
_PASSING = frozenset({408, 409, 425, 429})
# Statuses that concern every request: no key or a wrong one, no credit, no such model. 403 may concern a single text.
_FINAL = frozenset({401, 402, 404, 407})
_NO_CREDIT = frozenset({"insufficient_quota", "billing_hard_limit_reached"})
_LONGEST_REASON, _LONGEST_NAME = 300, 200
# Letters of a key that hardly ever occur in a message by chance, and letters that servers leave of a masked key.
_PART, _END = 8, 3
_MASKED = re.compile(r"\*\*|\.\.|…")
# An impossible number of tokens, and a log-probability of 1, with rounding.
_MOST_TOKENS, _SURE = 1e9, 0.01
# Exceptions of a body that does not follow the protocol.
NO_ANSWER = (ValueError, KeyError, TypeError, IndexError, AttributeError)
_NO_STREAM = 'have the server answer in one piece, as "stream": false asks it to, or ask another'
_FIRST_ATTEMPTS = 3  # attempts until a server's first answer: its address may be wrong


class RefusedError(Exception):
    """The server rejects this request, but maybe not others; ``parameter`` is the rejected one, if named."""

    def __init__(self, reason: str, parameter: str = "") -> None:
        super().__init__(reason)
        self.parameter = parameter


class UnansweredError(Exception):
    """An unanswered request, despite any useful retries; ``remedy`` is for when no request is answered."""

    def __init__(self, reason: str = "", remedy: str = "check `base_url`") -> None:
        super().__init__(reason)
        self.remedy = remedy


class _PassingError(Exception):
    """A failure that a retry may cure; ``wait`` is the server's requested delay, ``reached`` whether it responded."""

    def __init__(self, reason: str, wait: float | None = None, *, reached: bool = True) -> None:
        super().__init__(reason)
        self.wait, self.reached = wait, reached


class _StreamedError(ValueError):
    """The response is a piece of a stream."""


@dataclass(frozen=True)
class Answer:
    """A server's answer."""

    text: str | None  # as received; None if the server gave none
    usage: Usage | None  # as the server reports it; None if it does not
    finish: str  # why the answer ended, in the protocol's words; empty if not reported
    # Log-probabilities of the likeliest first tokens, by their text; None if not reported.
    likeliest: Mapping[str, float] | None
    server: str  # the server's own fingerprint; empty for none
    thought: str | None = None  # the preceding one, if the server separates it from the answer
    # Tokens of the answer, without an echoed prompt, with log-probabilities or NaN; None for none.
    tokens: Sequence[tuple[str, float]] | None = None
    # Seconds from the start of the last attempt to the answer; None in a batch.
    seconds: float | None = None
    vectors: Sequence[Any] = ()  # records of a vector and its text's place, for embedding requests
    model: str = ""  # that the answer names


class Client:
    """Sends requests to one server, within limits; safe for threads.

    An InputError if the environment has an unusable key, header, proxy or certificate.
    """

    def __init__(self, settings: ApiSettings, limits: Limits) -> None:
        self._limits = limits
        self._host = settings.host
        self._key_variable, key = settings.api_key_env, settings.key
        parts = urlsplit(settings.address)
        secrets = {key, parts.password or "", unquote(parts.password or "")}
        # Keys of three letters protect nothing, and would occur in any message.
        self._secrets = [secret for secret in secrets if len(secret) > 3]
        client = transport.bounded_client(settings.request_timeout)
        proxy = transport.proxy_variable(client, settings.address)
        # Words about a request's route, and the remedy if no request succeeds.
        self._via, self._remedy = "", "start the server, or check `base_url`"
        if proxy:
            self._via = f" through the proxy of {proxy}"
            self._remedy = f"start the proxy, unset {proxy}, or name {parts.hostname} in NO_PROXY"
        self._client = openai.OpenAI(
            # The client requires a key; private servers accept any.
            api_key=key or "none",
            base_url=settings.address,
            http_client=client,
            timeout=settings.request_timeout,
            max_retries=0,  # ``ask`` retries, with limits on waiting and spending
        )
        self._reached = False
        _refuse_headers(self._client.default_headers)

    def close(self) -> None:
        """Abort open requests."""
        self._client.close()

    def ask(
        self,
        spec: ApiSpec,
        text: str,
        output: int,
        *,
        calibrates: bool = True,
        on_retry: Callable[[], None] = lambda: None,
    ) -> Answer:
        """The server's answer to a prompt, of at most ``output`` tokens; ``calibrates`` as in ``Limits.settle``.

        Raises:
            RefusedError: the server rejects the request.
            UnansweredError: ``ATTEMPTS`` attempts failed.
            StoppedAskingError: no more requests are allowed.
        """
        body = spec.request(text)
        size = spec.size(text)
        for attempt in itertools.count(1):
            ticket = self._limits.take(size, output)
            used: Usage | None = None
            begun = time.perf_counter()
            try:
                answer = self._once(spec, body)
                # Unreported usage counts as reserved, so that bounds hold.
                used = answer.usage or ticket.expected
                self._reached = True
                return replace(answer, seconds=time.perf_counter() - begun)
            except _PassingError as error:
                failed = error
            finally:
                self._limits.settle(ticket, used, calibrates=calibrates)
            self._reached = self._reached or failed.reached
            if failed.wait is not None:
                self._limits.pause(failed.wait)
            if attempt >= (ATTEMPTS if self._reached else _FIRST_ATTEMPTS):
                reason = f"{self._host} was asked {attempt} times: {failed}"
                if self._via and not self._reached:
                    raise StoppedAskingError(reason, self._remedy)
                raise UnansweredError(reason, self._remedy)
            on_retry()
            backoff = min(LONGEST_WAIT, FIRST_WAIT * 2 ** (attempt - 1)) * random.uniform(0.5, 1)
            self._limits.sleep(max(backoff, failed.wait or 0.0))
        raise AssertionError

    def _once(self, spec: ApiSpec, body: dict[str, Any]) -> Answer:
        chat = spec.endpoint == "chat"
        resource: Any = self._client.chat.completions if chat else self._client.completions
        resource = self._client.embeddings if spec.embeds else resource
        create: Callable[..., Any] = resource.with_raw_response.create
        try:
            response = create(**body).http_response
            content = response.content
        except openai.APITimeoutError:
            raise _PassingError("no answer in time (`request_timeout`)", reached=False) from None
        except openai.APIConnectionError as error:
            cause = error.__cause__ or error
            if isinstance(cause, UntakenError) and cause.is_final:
                raise StoppedAskingError(self._shown(str(cause)), "check `base_url`") from None
            if isinstance(cause, UntakenError):
                remedy = _NO_STREAM if cause.streams else self._remedy
                raise UnansweredError(self._shown(f"{self._host}: {cause}"), remedy) from None
            reason = self._shown(f"the connection failed{self._via} ({cause})")
            if "CERTIFICATE_VERIFY_FAILED" in reason:
                named = transport.certificates_variable() or "SSL_CERT_FILE"
                remedy = f"name the certificate of who vouches for the server in {named}"
                raise StoppedAskingError(reason, remedy) from None
            raise _PassingError(reason, reached=False) from None
        except openai.APIStatusError as error:
            raise self._error_of(error) from None
        shown = self._shown(content[:4096].decode("utf-8", "replace"))[:80]
        try:
            parsed = json.loads(content, parse_int=_whole)
            if (within := _error_within(parsed, response)) is not None:
                raise self._error_of(within)
            if spec.embeds:
                used = _usage(parsed.get("usage"))
                return Answer(None, used, "", None, "", vectors=list(parsed["data"]))
            return answer_of(parsed, chat=chat)
        except NO_ANSWER as error:
            # Further JSON after the first is chunks, one a line.
            if isinstance(error, _StreamedError) or getattr(error, "msg", "") == "Extra data":
                raise UnansweredError(f"{self._host}: its answer is a stream", _NO_STREAM) from None
            is_page = shown.startswith("<")
            # A truncated answer may arrive whole on a retry.
            if not is_page and isinstance(error, json.JSONDecodeError | UnicodeDecodeError):
                raise _PassingError(f"no answer as the protocol has it: {shown}") from None
            kind = "a page, not" if is_page else "JSON, but not"
            reason = f"{self._host} answers with {kind} as the protocol has it: {shown}"
            raise UnansweredError(reason) from None
        except RecursionError:
            reason = f"{self._host} answers with JSON that is nested too deep"
            raise UnansweredError(reason) from None

    def _error_of(self, error: openai.APIStatusError) -> Exception:
        try:
            reason = self._shown(f"status {error.status_code}{self._via}: {_message(error)}")
        except RecursionError:
            reason = f"status {error.status_code}{self._via}"
        if str(error.code) in _NO_CREDIT:
            problem = f"{self._host} answers no more ({reason})"
            return StoppedAskingError(problem, "run again when there is credit")
        if error.status_code in _FINAL:
            remedy = f"give a key that may ask this in the environment, as {self._key_variable}"
            if error.status_code == 404:
                remedy = "check the name of the model, `base_url` and `endpoint`"
            if error.status_code == 407:
                remedy = self._remedy
            return StoppedAskingError(f"{self._host} refuses what it is asked ({reason})", remedy)
        if error.status_code in _PASSING or not 400 <= error.status_code < 500:
            wait = requested_wait(error.response.headers)
            if wait is not None and wait > LONGEST_ASKED:
                problem = f"{self._host} asks to wait {wait:.0f} s ({reason})"
                return StoppedAskingError(problem, "run again then")
            return _PassingError(reason, wait)
        return RefusedError(reason, str(error.param or ""))

    def _shown(self, text: str) -> str:
        """A server's words in one line, shortened, with secrets masked."""
        for secret in self._secrets:
            text = text.replace(secret, MASK)
        for word in text.split():
            if any(_is_part(word, secret) for secret in self._secrets):
                text = text.replace(word, MASK)
        return as_unicode(masked(" ".join(text.split())))[:_LONGEST_REASON]


def _is_part(word: str, secret: str) -> bool:
    """Whether a word shows part of a secret, as in servers' messages about a key."""
    if any(secret[i : i + _PART] in word for i in range(len(secret) - _PART + 1)):
        return True
    ends = secret[:_END], secret[-_END:]
    return bool(_MASKED.search(word)) and word != MASK and any(end in word for end in ends)


def _refuse_headers(headers: Mapping[str, Any]) -> None:
    """Refuse invalid headers that the openai client takes from the environment."""
    for name, value in headers.items():
        if isinstance(value, str) and not all(" " <= letter <= "~" for letter in name + value):
            names = [key for key, text in os.environ.items() if value in text and "OPENAI" in key]
            raise InputError(
                f"{listed(names) or 'the environment'} gives requests a header that is not of printable ASCII characters",
                "correct it, or unset it",
                "server.header",
            )


def _message(error: openai.APIStatusError) -> str:
    body = error.body
    if isinstance(body, dict):
        # Some servers wrap it once more, some rename it, and some have only a text.
        inner = body.get("error", body)
        if isinstance(inner, dict):
            inner = inner.get("message") or inner.get("detail") or inner
        return str(inner)
    return str(body or error.message)


def _error_within(content: Any, response: Any) -> openai.APIStatusError | None:
    """An error in the body of a response with status 200, or in a choice, as an error of its own status."""
    choices = content.get("choices") if isinstance(content, dict) else None
    for part in (content, *(choices if isinstance(choices, list) else ())):
        body = part.get("error") if isinstance(part, dict) else None
        if body and isinstance(body, dict | str):
            body = body if isinstance(body, dict) else {"message": body}
            error = openai.APIStatusError("", response=response, body=body)
            if re.fullmatch("[45][0-9]{2}", code := str(body.get("code"))):
                error.status_code = int(code)
            return error
    return None


def requested_wait(headers: Mapping[str, str]) -> float | None:
    """Seconds to wait before the next request, from a server's headers; None if not stated."""
    for name, scale in (("retry-after-ms", 1000.0), ("retry-after", 1.0)):
        value = headers.get(name)
        if value is None:
            continue
        try:
            seconds = float(value) / scale
        except ValueError:
            try:
                seconds = email.utils.parsedate_to_datetime(value).timestamp() - time.time()
            except (ValueError, OverflowError):
                continue
        if math.isfinite(seconds):
            return max(0.0, seconds)
    return None


def answer_of(content: Any, *, chat: bool) -> Answer:
    """The answer in the body of a response; an exception of ``NO_ANSWER`` if the body does not follow the protocol."""
    choice = (content["choices"] or [{}])[0]
    message = (choice.get("message") or {}) if chat else choice
    if chat and not message and choice.get("delta"):
        raise _StreamedError
    text = message.get("content" if chat else "text")
    if isinstance(text, list):  # a list of parts; only texts count
        text = "".join(part.get("text") or "" for part in text)
    # The field's name depends on the server.
    thought = message.get("reasoning_content") or message.get("reasoning")
    if not isinstance(text, str | None):
        raise TypeError("the answer is not a text")
    finish = "error" if choice.get("error") else str(choice.get("finish_reason") or "")
    return Answer(
        text=text,
        usage=_usage(content.get("usage"), answered=bool((text or "").strip() or thought)),
        finish=finish[:_LONGEST_NAME],
        likeliest=_likeliest(choice.get("logprobs")),
        server=as_unicode(str(content.get("system_fingerprint") or "")[:_LONGEST_NAME]),
        model=as_unicode(str(content.get("model") or "")[:_LONGEST_NAME]),
        thought=thought if isinstance(thought, str) else None,
        tokens=_tokens(choice.get("logprobs")),
    )


def _whole(digits: str) -> float:
    """A whole number of JSON, which may have thousands of digits."""
    return int(digits) if len(digits) < 20 else math.inf


def _usage(content: Any, *, answered: bool = False) -> Usage | None:
    """Tokens, under OpenAI's or Anthropic's names; None if numbers are missing, or a prompt or an answer has none."""
    if not isinstance(content, dict):
        return None

    def first(*names: str) -> Any:
        return next((content[name] for name in names if content.get(name)), None)

    def detail(name: str, *details: str) -> Any:
        record = first(*details)
        return record.get(name) if isinstance(record, dict) else 0

    reported = (
        first("prompt_tokens", "input_tokens"),
        first("completion_tokens", "output_tokens"),
        first("total_tokens"),
        detail("cached_tokens", "prompt_tokens_details", "input_tokens_details"),
        detail("reasoning_tokens", "completion_tokens_details", "output_tokens_details"),
    )
    # Python's JSON has NaN and infinities.
    known = [n for n in reported if n is not None]
    if not all(isinstance(n, int | float) and 0 <= n < _MOST_TOKENS for n in known):
        return None
    prompt, output, total, cached, thought = (int(n or 0) for n in reported)
    # Thoughts cost money, and some servers include them only in the total.
    beside = max(0, total - prompt - output)
    if not prompt or (answered and not output + beside):
        return None
    return Usage(prompt, output + beside, min(cached, prompt), thought, beside)


def _tokens(content: Any) -> list[tuple[str, float]] | None:
    """Tokens with log-probabilities: as records in chats, as records or two lists in completions."""
    if not isinstance(content, dict):
        return None
    pairs = [(part.get("token"), part.get("logprob")) for part in content.get("content") or ()]
    pairs += zip(content.get("tokens") or (), content.get("token_logprobs") or (), strict=False)
    logs = [math.nan if log is None or not float(log) <= _SURE else float(log) for _, log in pairs]
    return [(str(text), log) for (text, _), log in zip(pairs, logs, strict=True)] or None


def _likeliest(content: Any) -> dict[str, float] | None:
    """Log-probabilities of the first token, from chats' records or a dictionary; None if any is invalid."""
    if not isinstance(content, dict):
        return None
    if tokens := content.get("content"):
        records = tokens[0].get("top_logprobs") or [tokens[0]]
        pairs = [(str(record["token"]), float(record["logprob"])) for record in records]
    elif tokens := content.get("top_logprobs"):
        pairs = [(str(token), float(value)) for token, value in tokens[0].items()]
    else:
        return None
    if not all(value <= _SURE for _, value in pairs):  # NaN is none either
        return None
    return dict(sorted(pairs, key=operator.itemgetter(1))) or None  # of equal texts, the likelier


def names_parameter(error: RefusedError, name: str, *, anywhere: bool = False) -> bool:
    """Whether a refusal is about a parameter; with ``anywhere``, whether it mentions the parameter at all."""
    about = str(error) if anywhere or not error.parameter else error.parameter
    return re.search(rf"(?<!\w){re.escape(name)}(?!\w)", about) is not None
