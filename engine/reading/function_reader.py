"""Specify and call readers that are users' functions."""

from __future__ import annotations

import asyncio
import functools
import inspect
import threading
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any

from engine.machine.functions import ByValue
from engine.messages.errors import InputError
from engine.messages.wording import counted, reason_of
from engine.reading.answers import rule_of
from engine.reading.function import FunctionSpec, ReaderFunction
from engine.reading.prompting.controls import COMMON
from engine.reading.prompting.prompts import Prompt, make_prompt, read_template
from engine.reading.protocol import ReaderSpec, ReaderStats, ReadOutput
from engine.reading.reader_settings import ReaderAsk

_STYLE = "chat"  # the template of models that were trained on conversations


def specify_function(reader: ReaderFunction, ask: ReaderAsk) -> tuple[ReaderSpec, Prompt]:
    """The specification of a reading function and its prompt; the template's ends of outputs are not used.

    An InputError if the prompt needs more than a text (Fusion-in-Decoder, choices, a limit of tokens), or is invalid.
    """
    if ask.augmentation == "fid":
        problem = f"the reader {reader.name} is a function and cannot do Fusion-in-Decoder"
        raise InputError(problem, "use `augmentation` in-prompt, or a T5 reader", "reader.fid")
    template = read_template(ask.prompt or _STYLE, ask.task)
    if template.choices:
        raise InputError(
            f"the reader {reader.name} is a function and gives no probabilities, which choosing between answers needs",
            "leave out annotators that judge passages or let the reader decline, or give them a model",
            "reader.choices",
        )
    if template.max_input_tokens:
        raise InputError(
            f"max_input_tokens with {reader.name}, a function: its tokens are not known here, nothing is cut",
            "leave it out",
            "reader.tokens",
            path=template.path,
        )
    rendered = make_prompt(template, ask.task, "causal", "in-prompt", controls=COMMON)
    spec = ReaderSpec(
        max_new_tokens=rendered.max_new_tokens,
        name=reader.name,
        thought=template.thought,
        shared_prefix=rendered.prefix,
        engine="function",
        function=FunctionSpec(reader=reader, system=template.system),
    )
    return spec, rendered


@functools.cache
def _loop() -> asyncio.AbstractEventLoop:
    """The event loop that all users' functions share, in a thread: clients belong to the loop of their first use."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="async functions", daemon=True).start()
    return loop


def awaited(value: Any) -> Any:
    """The result of a user's function; a coroutine of an ``async def`` is run in the shared event loop."""
    if not inspect.iscoroutine(value):
        return value
    answer = asyncio.run_coroutine_threadsafe(value, _loop())
    try:
        return answer.result()
    finally:
        answer.cancel()  # an interrupt does not wait for the answer


class FunctionReader:
    """A user's function as a reader. See ``engine.reading.protocol.Reader``."""

    def __init__(self, spec: ReaderSpec) -> None:
        if spec.function is None:
            raise ValueError(f"{spec.name!r} is not a function")
        self._function, call = spec.function, spec.function.reader.function
        # The user's own function, so that stack inspection finds no wrapper in between.
        self._call = call.function if isinstance(call, ByValue) else call
        self._rule = rule_of(spec)
        self.stats = ReaderStats()

    def read(self, inputs: Sequence[Sequence[str]]) -> list[ReadOutput]:
        """Call the function, which may be an ``async def``, once for all reads.

        An exception or None in the place of a text fails that read; an exception of a generator fails all remaining
        reads, and is raised before the first text. An InputError if there is no text for each prompt, in order.
        """
        name = self._function.reader.name
        prompts = [self._function.prompt("".join(pieces)) for pieces in inputs]
        try:
            outputs: Any = self._call(prompts)
        except SystemExit as error:  # a reader must not end the evaluation
            raise RuntimeError(f"the function ends the program ({error})") from error
        outputs = awaited(outputs)
        is_list = isinstance(outputs, Iterable) and not isinstance(outputs, str | Mapping | Set)
        texts: list[Any] = []
        try:
            texts.extend(outputs if is_list else ())  # keeps the texts before an error
        except Exception as error:
            if not texts:
                raise
            texts += [error] * (len(inputs) - len(texts))
        if not is_list or len(texts) != len(inputs):
            returned = counted(len(texts), "output[|s]") if is_list else type(outputs).__name__
            raise InputError(
                f"the reader {name} returns {returned} for {counted(len(inputs), 'prompt[|s]')}",
                "return a list with one text for each prompt",
                "reader.count",
            )
        if wrong := [text for text in texts if not isinstance(text, str | BaseException | None)]:
            problem = f"the reader {name} returns {type(wrong[0]).__name__} for a prompt"
            raise InputError(problem, "return a text for each prompt", "reader.type")
        return list(map(self._output, texts))

    def _output(self, text: str | BaseException | None) -> ReadOutput:
        if isinstance(text, str):
            return self._rule.output(text, 0, 0)
        reason = "the function gives None for it" if text is None else reason_of(text)
        return ReadOutput.failed(reason)
