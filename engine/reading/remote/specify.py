"""Specify a reader behind an API, and learn its server's features from a first request and from its counts of tokens.

Some servers cut prompts that are too long, and answer with status 200. The counted tokens of the trial and of the first
reads, the longest ones, show doubtful cases. The longest prompt is then sent again, whole and in halves, behind random
letters, so that no cache helps: an uncut prompt has as many tokens as its halves together.
"""

from __future__ import annotations

import contextlib
import json
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from engine.machine.remote.api_settings import ApiSettings, ApiSpec, model_of
from engine.machine.remote.limits import StoppedAskingError, Usage, limits_of
from engine.messages.errors import InputError, ReadError
from engine.reading.answers import ROOM, Rule, ended_by, tags_in
from engine.reading.prompting.controls import COMMON
from engine.reading.prompting.prompts import Prompt, Template, make_prompt, read_template
from engine.reading.protocol import THINK, ReaderSpec, ReadOutput, Scores
from engine.reading.reader_settings import ReaderAsk

if TYPE_CHECKING:  # the client of openai may be missing
    from engine.machine.remote.client import Answer, Client, RefusedError

# Numbers of likeliest tokens to request log-probabilities for: the most of common servers, and of the strictest.
_LIKELIEST = (20, 5)
_STOPS = 4  # servers take at most so many stop sequences; the rest end answers here
# Parameters that are dropped if a server refuses them.
_LEFT_OUT = ("seed", "temperature", "stop")
_STYLES = {"chat": "chat", "completions": "completion"}


def specify_api(
    ask: ReaderAsk, settings: ApiSettings, *, tried: bool = True
) -> tuple[ReaderSpec, Prompt]:
    """The specification of a reader behind an API and its prompt.

    Args:
        tried: whether to send a trial request now, which shows the server's features and identity. A program
            that stands in for the reader needs no trial.

    Raises:
        InputError: a prompt that the server cannot use, no openai client, or no usable server.
        ReadError: the server does not answer.
    """
    name, scores = ask.model, ask.scores
    model = model_of(name)
    if ask.augmentation == "fid":
        problem = f"reader {name!r} is behind an API and cannot do Fusion-in-Decoder"
        raise InputError(problem, "use `augmentation` in-prompt, or a T5 reader", "reader.fid")
    if tried:
        settings.require_server(f"reader {name!r}")
    template = read_template(ask.prompt or _STYLES[settings.endpoint], ask.task)
    if template.max_input_tokens:
        raise InputError(
            f"max_input_tokens with {name!r}: a server's tokens are not known here, nothing is cut",
            "leave it out",
            "reader.tokens",
            path=template.path,
        )
    if template.chat and settings.endpoint == "completions":
        problem = "a chat's prompt, and `endpoint` completions continues a text"
        remedy = "use `endpoint` chat, or a prompt without chat: true"
        raise InputError(problem, remedy, "server.endpoint", path=template.path)
    prompt = make_prompt(template, ask.task, "causal", "in-prompt", controls=COMMON)
    output = 1 if template.choices else prompt.max_new_tokens
    parameters = _written(_parameters(template, settings, output, scores))
    api = ApiSpec(model=model, settings=settings, system=template.system, parameters=parameters)
    if scores == "target" and settings.endpoint == "chat":
        raise _no_log_probabilities(name, api)
    if tried:
        api = _tried(name, api, template, output, scores)
    spec = ReaderSpec(
        max_new_tokens=prompt.max_new_tokens,
        stop=template.stop,
        name=name,
        choices=template.choices,
        thought=api.thought or template.thought,
        room=max(0, api.sent[_most(api)] - output),
        shared_prefix=prompt.prefix,
        engine="openai",
        api=api,
    )
    return spec, prompt


def _parameters(
    template: Template, settings: ApiSettings, output: int, scores: Scores
) -> dict[str, Any]:
    """Request parameters besides model and prompt: greedy decoding, as far as a server supports it."""
    sent: dict[str, Any] = {"max_tokens": output, "temperature": 0, "seed": 0}
    if scores == "target":  # one token, since some servers take 0 for no limit
        return sent | {"max_tokens": 1, "echo": True, "logprobs": 1}
    if scores:
        sent |= {"logprobs": 1 if settings.endpoint == "completions" else True}
    if template.choices:
        return sent | _log_probabilities(settings, _LIKELIEST[0])
    return sent | ({"stop": list(template.stop[:_STOPS])} if template.stop else {})


def _log_probabilities(settings: ApiSettings, likeliest: int) -> dict[str, Any]:
    if settings.endpoint == "completions":
        return {"logprobs": likeliest}
    return {"logprobs": True, "top_logprobs": likeliest}


def _written(parameters: dict[str, Any]) -> str:
    return json.dumps(parameters, sort_keys=True, ensure_ascii=False)


def _tried(name: str, api: ApiSpec, template: Template, output: int, scores: Scores) -> ApiSpec:
    """The specification after a trial, once per evaluation: without refused parameters, with the server's identity."""
    from engine.machine.remote.client import Client, UnansweredError

    settings = api.settings
    limits = limits_of(settings)
    if api in limits.known:
        return limits.known[api]
    client = Client(settings, limits)
    try:
        trial, answer, needed = _first_answer(name, client, api, template, output)
    except StoppedAskingError as error:
        raise InputError(error.problem, error.remedy, "server.stopped") from None
    except UnansweredError as error:
        raise ReadError(f"{error}; {error.remedy}") from None
    finally:
        client.close()
    tokens = "".join(text for text, _ in answer.tokens or ())
    lacks = TRIAL not in tokens if scores == "target" else not tokens
    if lacks if scores else template.choices and answer.likeliest is None:
        raise _no_log_probabilities(name, api)
    priced = settings.max_cost is not None and settings.price_in is not None
    bounds = settings.max_tokens or priced or settings.tokens_per_minute
    if bounds and answer.usage is None:
        problem = f"{settings.host} does not report tokens, and nothing else can count them"
        remedy = "leave out `max_tokens`, `max_cost` and `tokens_per_minute`"
        raise InputError(problem, remedy, "server.usage")
    writes = not template.choices and scores != "target"
    text, tags = answer.text or "", _tags(answer, template) if writes else template.thought
    parts = Rule(template.stop, settings.endpoint == "chat", tags).parts(text)
    opened = parts.thought is not None and not text.lstrip().startswith(tags[0])
    is_cut = writes and ended_by(answer.finish) == "length" and not parts.is_ended
    limits.known[api] = replace(
        trial,
        server=answer.server,
        named=answer.model,
        trial_answer="" if "temperature" in trial.refused else text[:200],
        opened=opened,
        cut=needed if is_cut else None,
        thought=None if tags == template.thought else tags,
        trial_tokens=answer.usage.prompt if answer.usage else 0,
    )
    return limits.known[api]


def _first_answer(
    name: str, client: Client, api: ApiSpec, template: Template, output: int
) -> tuple[ApiSpec, Answer, int]:
    """The accepted specification, with room for a thought; the answer; tokens that a cut answer needs, 0 if unknown."""
    from engine.machine.remote.client import RefusedError, UnansweredError, names_parameter

    most = output + ROOM
    while True:
        try:
            answer = client.ask(api, TRIAL, api.sent[_most(api)], calibrates=False)
            break
        except RefusedError as error:
            try:
                api = _without_refused(name, api, error)
            except InputError:
                # Models that think may refuse a limit of a few tokens, and name the parameter.
                limits = ("max_tokens", "max_completion_tokens", "max_output_tokens")
                named = any(names_parameter(error, limit, anywhere=True) for limit in limits)
                if template.choices or not named or api.sent[_most(api)] >= most:
                    raise
                api = _with_most(api, most)
    if api.sent[_most(api)] == most:
        return api, answer, 0
    # A few tokens are too few for a thought, and may not even show it.
    needed, is_cut = 0, ended_by(answer.finish) == "length" and "echo" not in api.sent
    if not template.choices and (_thinks(answer, template) or is_cut):
        longer, begun = _with_most(api, most), time.monotonic()

        def give_up() -> None:
            # A model that writes for so long would repeat it, and may not be thinking at all.
            if time.monotonic() - begun >= api.settings.request_timeout:
                raise UnansweredError

        with contextlib.suppress(RefusedError, UnansweredError, StoppedAskingError):
            second = client.ask(longer, TRIAL, most, calibrates=False, on_retry=give_up)
            if _thinks(second, template):
                return longer, second, 0
            if ended_by(second.finish) == "stop":
                words = len((second.text or "").split())  # not every server counts
                needed = max(words, second.usage.output if second.usage else 0)
    return api, answer, needed


def _tags(answer: Answer, template: Template) -> tuple[str, str]:
    """The opening and closing tags of thoughts: from the prompt, or from the answer."""
    shown = tags_in(answer.text or "") if template.thought == THINK else None
    return shown or template.thought


def _thinks(answer: Answer, template: Template) -> bool:
    parts = Rule(tags=_tags(answer, template)).parts(answer.text or "")
    used = answer.usage or Usage()
    return bool(answer.thought or used.thought or parts.is_thinking or parts.thought is not None)


def _with_most(api: ApiSpec, most: int) -> ApiSpec:
    return replace(api, parameters=_written({**json.loads(api.parameters), _most(api): most}))


def _most(api: ApiSpec) -> str:
    return "max_tokens" if "max_tokens" in api.sent else "max_completion_tokens"


def _without_refused(name: str, api: ApiSpec, error: RefusedError) -> ApiSpec:
    """The specification without a refused parameter; an InputError if it is needed, or the error names no parameter."""
    from engine.machine.remote.client import names_parameter

    sent = json.loads(api.parameters)
    if "max_tokens" in sent and names_parameter(error, "max_completion_tokens", anywhere=True):
        sent["max_completion_tokens"] = sent.pop("max_tokens")
        return replace(api, parameters=_written(sent))
    if "echo" in sent and any(names_parameter(error, key) for key in ("echo", "logprobs")):
        raise _no_log_probabilities(name, api)
    if any(names_parameter(error, key) and key in sent for key in ("logprobs", "top_logprobs")):
        fewer = _log_probabilities(api.settings, _LIKELIEST[1])
        if all(sent[key] == value for key, value in fewer.items()):
            raise _no_log_probabilities(name, api)
        return replace(api, parameters=_written(sent | fewer))
    if "stream" not in api.refused and names_parameter(error, "stream"):
        return replace(api, refused=(*api.refused, "stream"))
    for parameter in _LEFT_OUT:
        if parameter in sent and names_parameter(error, parameter):
            del sent[parameter]
            refused = (*api.refused, parameter)
            return replace(api, parameters=_written(sent), refused=refused)
    problem = f"{api.settings.host} refuses a first request to {api.model!r} ({error})"
    raise InputError(problem, "check the model, `endpoint` and the prompt", "server.refused")


def _no_log_probabilities(name: str, api: ApiSpec) -> InputError:
    kind = "completions" if api.endpoint == "chat" else "chat"
    return InputError(
        f"{api.settings.host} gives no log-probabilities of {name!r}, which choosing between answers and "
        "scoring texts need",
        "leave out annotators that judge passages, let the reader decline or score texts, or give them a model "
        f"of this machine, or try `endpoint` {kind}",
        "server.scores",
    )


# The prompt of the trial request, which shows the server's features.
TRIAL = "Reply with OK."
# Prefix of the failure of a read whose prompt was cut.
CUT_PROMPT = "the server cut the prompt"
_MOST_BYTES = 9  # bytes per further token above which a cut is suspected; English has 4.5
# The longest prompt is compared with prompts of at most this share of its bytes; so many equal counts are suspect.
_SHORTER, _ALIKE = 0.9, 3


class PromptSize(NamedTuple):
    """The bytes of a prompt, and its tokens as counted by a server; 0 if the server does not count."""

    size: int
    tokens: int


class Window(NamedTuple):
    """The most tokens of a prompt that a server reads, and the tokens per byte of a cut prompt."""

    tokens: int
    rate: float

    def judge(self, output: ReadOutput, size: int) -> ReadOutput:
        """The output of a read; a failed output if its prompt was cut."""
        reached = output.prompt_tokens >= self.tokens - self.tokens // 64
        # Some servers drop whole blocks, so that the rest may be far below the window.
        dropped = 2 * output.prompt_tokens >= self.tokens < self.rate * size / 1.2
        if output.failure is not None or not (reached or dropped):
            return output
        return ReadOutput.failed(
            f"{CUT_PROMPT}, of which it read {self.tokens:,} tokens at most: give it a longer context, or the reader "
            "fewer passages",
            prompt_tokens=output.prompt_tokens,
        )


def is_in_doubt(counts: Sequence[PromptSize], trial: PromptSize) -> bool:
    """Whether the longest of some prompts may have been cut: it has hardly more tokens than shorter prompts."""
    known = [count for count in counts if count.tokens]
    longest = max(known, default=trial)
    if not trial.tokens or longest.tokens <= trial.tokens:  # the counts are no prompt tokens
        return False
    alike = [count.size for count in known if count.tokens == longest.tokens]
    return (len(alike) >= _ALIKE and min(alike) < max(alike)) or any(
        longest.size - count.size > _MOST_BYTES * (longest.tokens - count.tokens)
        for count in (*known, trial)
        if count.size <= _SHORTER * longest.size
    )


def find_window(count: Callable[[str], int], text: str, size: int) -> Window | None:
    """The window of a server that cuts a prompt; None if it reads the prompt whole, or its ``count`` of tokens is 0."""
    half = len(text) // 2
    parts = (text, text[:half], text[half:], "")
    whole, first, second, nothing = (count(f"#{uuid.uuid4().hex[:6]} {part}") for part in parts)
    tokens = first + second - nothing
    if min(whole, first, second, nothing) and tokens > 1.05 * whole + 4:
        return Window(whole, tokens / size)
    return None
