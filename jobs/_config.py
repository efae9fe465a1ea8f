"""Options before they are converted: those of a YAML file and of the environment are added, and numbers are looked at."""

from __future__ import annotations

import functools
import os
import re
import shlex
from functools import partial
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin

from cyclopts import App, ArgumentCollection, Token
from cyclopts.config import Dict

from engine.messages.errors import InputError, masked
from engine.messages.gone import GONE, replacement
from engine.messages.wording import quoted
from engine.sources.io.records import read_settings, read_text
from jobs._terminal import tell

# What cyclopts takes in a number: underscores, other scripts' digits, and decimals of a whole number (30.0 is one).
_ODD = re.compile(r"_|[^\x00-\x7f]|\d{400}")
_ODD_WHOLE = re.compile(rf"{_ODD.pattern}|\.0*[^0]")
# Of variables in the environment that stand for options.
_PREFIX = "ERAG_"
_OFF = ("false", "no", "f", "n", "0")
_SWITCHES = {"on": "true", "off": "false"}


def options_from(path: Path | None) -> list[Any]:
    """The options of a file, as cyclopts adds them to those of the command line; none without a file.

    Raises:
        InputError: no such file, not YAML with a value or a list of values for each option, or an option that is gone;
            a key ``no-x`` in the place of ``x: false``.
    """
    if path is None:
        return []
    # cyclopts' Yaml would keep neither lines nor what comes through a pipe.
    values, lines = read_settings(read_text(path, "a YAML file of options"), path)

    def from_file(app: App, commands: tuple[str, ...], arguments: ArgumentCollection) -> None:
        # cyclopts would take "no-x: true" for "x: true".
        opposites = {_field(name) for argument in arguments for name in argument.negatives}
        known = {_field(name) for argument in arguments for name in argument.names}
        for key, line in lines.items():
            fault = partial(InputError, path=path, line=line)
            if _field(key) not in known and (instead := replacement("option", _field(key))):
                raise fault(f"the option {quoted(key)} is gone", instead)
            if _field(key) in opposites:
                problem = f"the key {quoted(key)} turns an option off"
                raise fault(problem, 'write "false" behind the option')
            if key == "config":
                problem = "a file of options within a file of options"
                raise fault(problem, "write its options into this one")
        # Without its command above it, an option that is named like a command would be left out: ``index``
        # and ``fuse`` of ``erag retrieve``.
        options = functools.reduce(lambda inner, command: {command: inner}, commands[::-1], values)
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
    known = {_field(name) for argument in arguments for name in argument.names}
    for kind, gone in GONE:
        if kind == "option" and gone not in known and os.environ.get(variable(gone)):
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
    """Refuse what cyclopts would round or misread, 2.5 where a whole number is wanted and 1_000; take on and off."""
    for argument in arguments:
        kinds = _kinds(argument.hint)
        if kinds & {str, Path} or argument.parameter.converter is not None:
            continue
        odd, what = (_ODD, "a number") if float in kinds else (_ODD_WHOLE, "a whole number")
        for place, token in enumerate(argument.tokens):
            if bool in kinds and (value := _SWITCHES.get(token.value.lower())):
                argument.tokens[place] = token.evolve(value=value)
            elif kinds & {int, float} and odd.search(token.value):
                where = "" if token.source == "cli" else f", from {masked(token.source)}"
                raise InputError(
                    f"`{_field(argument.name)}` is {quoted(token.value)}{where}",
                    f"give {what}, in decimal digits",
                )


def _field(name: str) -> str:
    return name.removeprefix("--").replace("-", "_")


def _kinds(hint: Any) -> set[Any]:
    if get_origin(hint) is None:
        return {hint}
    inner = [part for part in get_args(hint) if part is not Ellipsis]
    if get_origin(hint) is Annotated:
        inner = inner[:1]
    return {kind for part in inner for kind in _kinds(part)}
