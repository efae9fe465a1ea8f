"""Users' functions as readers: their prompts, and the key of their reads."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from engine.machine.functions import ByValue
from engine.machine.remote.api_settings import is_api
from engine.messages.errors import InputError
from engine.messages.wording import name_of

# A message of a chat: a role (system or user) and a content.
Message = dict[str, str]
Answers = Callable[[list[Any]], Sequence[str] | Awaitable[Sequence[str]]]


@dataclass(frozen=True, eq=False)
class ReaderFunction:
    """An LLM behind a function of yours.

    Attributes:
        function: takes a list of prompts and returns a list of as many texts, in the same order; it may be an
            ``async def``. The output of a prompt must not depend on other prompts in the list.
        name: the reader's name in results.
        version: version of all that decides the outputs (model, settings, code). Reads are stored under name and version;
            without a version they are neither stored nor looked up, since the outputs may have changed.
        messages: whether a prompt is a list of messages, ``{"role": …, "content": …}``, and not a text.

    Raises:
        InputError: a name that is empty or means something else, or an empty version.
    """

    function: Answers
    name: str = ""
    version: str | None = None
    messages: bool = False

    def __post_init__(self) -> None:
        if not callable(self.function):
            problem = f"the reader {self.function!r} is not a function"
            raise InputError(problem, "give a function", "reader.uncallable")
        if not self.name:
            object.__setattr__(self, "name", name_of(self.function))
        if not isinstance(self.name, str) or not self.name.strip() or is_api(self.name):
            problem = f"a reader function called {self.name!r}"
            raise InputError(problem, "give it another name", "reader.name")
        if self.version is not None and not str(self.version).strip():
            problem = f"the reader {self.name} has an empty version"
            raise InputError(problem, "give one, or leave it out", "reader.version")
        object.__setattr__(self, "function", _by_value(self.function))

    @property
    def is_kept(self) -> bool:
        """Whether its reads go to the store."""
        return self.version is not None

    def require_sendable(self) -> None:
        """Refuse a function that cannot be sent to other processes."""
        _by_value(self.function).require_sendable()


@dataclass(frozen=True, kw_only=True)
class FunctionSpec:
    """The part of a specification that only functions have; a non-empty ``system`` precedes each prompt."""

    reader: ReaderFunction
    system: str = ""

    @property
    def decisive(self) -> list[object]:
        """All known settings that outputs depend on."""
        return [self.reader.name, self.reader.version, self.reader.messages, self.system]

    def prompt(self, text: str) -> str | list[Message]:
        """The argument of the function for a prompt."""
        if not self.reader.messages:
            return f"{self.system}\n\n{text}" if self.system else text
        system = [{"role": "system", "content": self.system}] if self.system else []
        return [*system, {"role": "user", "content": text}]


# Values of settings that select a reader: a name, or a function.
ReaderChoice = str | ReaderFunction | Answers


def reader_function(function: Answers | ReaderFunction, name: str | None = None) -> ReaderFunction:
    """A user's function as a reader; its attributes ``name`` (before the argument), ``version``, ``messages`` count."""
    if isinstance(function, ReaderFunction):
        return function
    name, version = str(getattr(function, "name", name or "")), getattr(function, "version", None)
    version = None if version is None else str(version)
    return ReaderFunction(function, name, version, bool(getattr(function, "messages", False)))


def _by_value(function: Answers) -> ByValue:
    return function if isinstance(function, ByValue) else ByValue(function)
