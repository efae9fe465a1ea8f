"""Options before they are converted: those of a YAML file and of the environment are added, and numbers are looked at."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, get_args, get_origin

from cyclopts import App, ArgumentCollection, Token
from cyclopts.config import Dict

from engine.messages.errors import InputError, masked
from engine.messages.gone import GONE, replacement
from engine.messages.wording import quoted
from engine.sources.io.lines import read_text
from engine.sources.io.yaml_text import read_settings
from jobs._terminal import tell

# 30.0 is a whole number; what Python writes as 1_000 or in other scripts' digits is no number here.
_WHOLE = re.compile(r"[-+]?([0-9]{1,4000}(\.0*)?|0x[0-9a-f]+|0o[0-7]+|0b[01]+)")
_DECIMAL = re.compile(r"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)(e[-+]?[0-9]+)?|[-+]?(inf|nan|infinity)")
# Of variables in the environment that stand for options.
_PREFIX = "ERAG_"
_OFF = ("false", "no", "f", "n", "0")
# What cyclopts knows beside numbers.
_WORDS = ("true", "yes", "t", "y", "none", "null", *_OFF[:-1])
_SWITCHES = {"on": "true", "off": "false"}


def options_from(path: Path | None) -> list[Any]:
    """What adds the options of a file to those of the command line, as cyclopts wants it.

    A value means what it would mean on the command line: it is taken as it is written, whatever YAML
    makes of it (``010`` is 10, ``no`` is a text where a text is wanted).

    Raises:
        InputError: no such file, or not YAML with a value or a list of values for each option; a key
            ``no-x`` in the place of ``x: off``.
    """
    if path is None:
        return []
    settings = read_settings(read_text(path, "a YAML file of options"), path)

    def from_file(app: App, commands: tuple[str, ...], arguments: ArgumentCollection) -> None:
        # cyclopts would take "no-x: on" for "x: on".
        opposites = {_field(name) for argument in arguments for name in argument.negatives}
        if key := next((key for key in settings if _field(key) in opposites), None):
            problem, line = f"the key {quoted(key)} turns an option off", settings[key].line
            raise InputError(problem, 'write "off" behind the option', path=path, line=line)
        for key, setting in settings.items():
            if instead := replacement("option", _field(key)):
                problem = f"the option {quoted(key)} is gone"
                raise InputError(problem, instead, path=path, line=setting.line)
        if "config" in settings:
            problem, line = "a file of options within a file of options", settings["config"].line
            raise InputError(problem, "write its options into this one", path=path, line=line)
        options: dict[str, Any] = {key: setting.value for key, setting in settings.items()}
        # Without its command above it, an option that is named like a command would be left out: ``index``
        # and ``fuse`` of ``erag retrieve``.
        for command in reversed(commands):
            options = {command: options}
        Dict(options, source=str(path))(app, commands, arguments)

    return [from_file]


def variable(field: str) -> str:
    """The variable of the environment that stands for an option."""
    return f"{_PREFIX}{field.upper()}"


def from_environment(app: App, commands: tuple[str, ...], arguments: ArgumentCollection) -> None:
    """Take options that the command line leaves out from variables: ``ERAG_END_TO_END_K=5``.

    A value means what it would mean on the command line; several are separated by spaces, and quoted as in a
    shell. Variables that are none of the command's options are another command's, and passed over.

    Raises:
        InputError: several values, with a quotation that does not end; a variable of an option that is gone.
    """
    for kind, gone in GONE:
        if kind == "option" and os.environ.get(variable(gone)):
            problem = f"the variable {variable(gone)} stands for an option that is gone"
            raise InputError(problem, f"unset it: {GONE[kind, gone]}")
    # cyclopts' Env does not split as a shell does, and takes ERAG_NO_X=on for X=on.
    for argument in arguments:
        if argument.tokens or argument.children or not argument.parse or not argument.name:
            continue
        name = variable(_field(argument.name))
        text = os.environ.get(name, "")
        one = argument.token_count() in ((0, False), (1, False))
        try:
            values = [text] if text and one else shlex.split(text)
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
        if kinds & {str, Path} or argument.parameter.converter is not None:
            continue
        pattern, what = (_DECIMAL, "a number") if float in kinds else (_WHOLE, "a whole number")
        for place, token in enumerate(argument.tokens):
            text = token.value.strip().lower()
            if bool in kinds and text in _SWITCHES:
                argument.tokens[place] = token.evolve(value=_SWITCHES[text])
            elif text in _WORDS and kinds & {bool, NoneType}:
                continue
            elif text and kinds & {int, float} and not pattern.fullmatch(text):
                of_variable = token.source == variable(_field(argument.name))
                where = f", from the variable {token.source}" if of_variable else ""
                raise InputError(
                    f"`{_field(argument.name)}` is {quoted(token.value)}{where}",
                    f"give {what}, in decimal digits",
                    path=None if of_variable or token.source == "cli" else Path(token.source),
                )


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
