"""Options before they are converted: those of a YAML file are added, and numbers are looked at."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin

from cyclopts import App, ArgumentCollection, Token
from cyclopts.config import Dict

from engine.errors import InputError, masked
from engine.sources.io.lines import read_text
from engine.sources.io.locations import require_file
from engine.sources.io.yaml_text import read_settings
from engine.wording import quoted
from jobs._terminal import tell

# 30.0 is a whole number; what Python writes as 1_000 or in other scripts' digits is no number here.
_WHOLE = re.compile(
    r"[-+]?([0-9]{1,4000}(\.0*)?|0[xX][0-9a-fA-F]{1,1000}|0[oO][0-7]{1,1000}|0[bB][01]{1,1000})",
    re.ASCII,
)
_DECIMAL = re.compile(
    r"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?|[-+]?(inf|nan|infinity)", re.ASCII | re.I
)
# Of variables in the environment that stand for options.
_PREFIX = "ERAG_"
_OFF = ("false", "no", "f", "n", "0")
_SWITCHES = {"on": "true", "off": "false"}
_WHAT = "a YAML file of options"


class _Options(Dict):
    """Options of a file, for whatever command is run.

    cyclopts has a form for this, which leaves out options that are named like a command: ``index`` and
    ``fuse`` of ``erag retrieve``. So they are given as if they stood under the command's name.
    """

    _commands: tuple[str, ...] = ()

    @property
    def config(self) -> dict[str, Any]:
        options: dict[str, Any] = self.data
        for command in reversed(self._commands):
            options = {command: options}
        return options

    def __call__(self, app: App, commands: tuple[str, ...], arguments: ArgumentCollection) -> None:
        self._commands = commands
        super().__call__(app, commands, arguments)


def options_from(path: Path | None) -> list[Any]:
    """What adds the options of a file to those of the command line, as cyclopts wants it.

    A value means what it would mean on the command line: it is taken as it is written, whatever YAML
    makes of it (``010`` is 10, ``no`` is a text where a text is wanted).

    Raises:
        InputError: no such file, or not YAML with a value or a list of values for each option.
    """
    if path is None:
        return []
    require_file(path, _WHAT)
    settings = read_settings(read_text(path, _WHAT), path)
    options = {key: setting.as_written() for key, setting in settings.items()}
    return [_Options(options, source=str(path))]


def variable(field: str) -> str:
    """The variable of the environment that stands for an option."""
    return f"{_PREFIX}{field.upper()}"


def from_environment(app: App, commands: tuple[str, ...], arguments: ArgumentCollection) -> None:
    """Take options that the command line leaves out from variables: ``ERAG_END_TO_END_K=5``.

    A value means what it would mean on the command line; several are separated by spaces, and quoted as in a
    shell. Variables that are none of the command's options are another command's, and passed over.

    Raises:
        InputError: several values, with a quotation that does not end.
    """
    for argument in arguments:
        if argument.tokens or argument.children or not argument.parse or not argument.name:
            continue
        name = variable(_field(argument.name))
        text = os.environ.get(name, "")
        if not text:
            continue
        values = [text]
        if argument.token_count() not in ((0, False), (1, False)):
            try:
                values = shlex.split(text)
            except ValueError:
                problem = f"the variable {name} has a quotation that does not end"
                raise InputError(problem, "quote values as in a shell") from None
        for place, value in enumerate(values):
            argument.append(Token(keyword=name, value=value, source=name, index=place))


def tell_origins(app: App, commands: tuple[str, ...], arguments: ArgumentCollection) -> None:
    """With --verbose, say which options come from elsewhere than the command line; not their values."""
    tokens = {argument.name: argument.tokens for argument in arguments}
    if not any(token.value.lower() not in _OFF for token in tokens.get("--verbose", ())):
        return
    for name, given in tokens.items():
        if given and given[0].source != "cli":
            tell(f"erag: {name} comes from {masked(given[0].source)}")


def check_numbers(app: App, commands: tuple[str, ...], arguments: ArgumentCollection) -> None:
    """Refuse what cyclopts would round or misread: 2.5 where a whole number is wanted, 1_000.

    Raises:
        InputError: a value that is not a number in decimal digits.
    """
    for argument in arguments:
        kinds = _kinds(argument.hint)
        if str in kinds or Path in kinds or argument.parameter.converter is not None:
            continue
        for place, token in enumerate(argument.tokens):
            if bool in kinds and token.value.lower() in _SWITCHES:
                argument.tokens[place] = token.evolve(value=_SWITCHES[token.value.lower()])
            elif isinstance(token.value, str) and token.value:
                _check(token, argument.name, kinds)


def _check(token: Token, name: str, kinds: set[Any]) -> None:
    text = token.value.strip()
    if bool in kinds and text.lower() in ("true", "false", "yes", "no", "t", "f", "y", "n"):
        return
    if type(None) in kinds and text.lower() in ("none", "null"):
        return
    if float in kinds:
        fits, what = _DECIMAL.fullmatch(text), "a number"
    elif int in kinds:
        fits, what = _WHOLE.fullmatch(text), "a whole number"
    else:
        return
    if not fits:
        variable_of = token.source == variable(_field(name))
        path = None if variable_of or token.source in ("", "cli") else Path(token.source)
        where = f", from the variable {token.source}" if variable_of else ""
        problem = f"`{_field(name)}` is {quoted(token.value)}{where}"
        raise InputError(problem, f"give {what}, in decimal digits", path=path)


def _field(name: str) -> str:
    return name.removeprefix("--").replace("-", "_")


def _kinds(hint: Any) -> set[Any]:
    """The simple types that a type hint is made of."""
    if get_origin(hint) is None:
        return {hint}
    inner = [part for part in get_args(hint) if part is not Ellipsis]
    if get_origin(hint) is Annotated:
        inner = inner[:1]
    return {kind for part in inner for kind in _kinds(part)}
