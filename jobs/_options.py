"""Options: the types of lists and sizes, and options that are fields of the engine's dataclasses.

The engine names fields, in its docstrings and messages; here they become options. Commands let cyclopts flatten
dataclasses, except for ``erag evaluate``, ``plan`` and ``train``: their options depend on the registered annotators,
take other types and defaults than the fields, and their names are needed without values.
"""

from __future__ import annotations

import ast
import functools
import inspect
import os
import re
import shlex
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import MISSING, fields
from functools import cache, partial
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args, get_origin, get_type_hints

import docstring_parser
from cyclopts import App, ArgumentCollection, Group, Parameter, Token
from cyclopts.config import Dict

from engine.messages.errors import InputError, masked
from engine.messages.gone import GONE
from engine.messages.wording import quoted
from engine.sources.io.records import read_settings, read_text
from jobs._terminal import tell

Instance = TypeVar("Instance")

_UNITS = {"": 1, "b": 1, "kib": 2**10, "mib": 2**20, "gib": 2**30, "kb": 10**3, "mb": 10**6}
_UNITS |= {"gb": 10**9, "k": 2**10, "m": 2**20, "g": 2**30}

# Items of a list of names: commas and white space separate them, but not in parentheses.
_ITEM = re.compile(r"(?:\([^)]*\)|[^\s,])+")
_FIELD = re.compile(r"(?<!`)(`{1,2})([a-z][a-z0-9_]*)\1(?!`)")


def items_of(value: str | Sequence[str]) -> tuple[str, ...]:
    """The items of a list of names: one text or several, each with one item or more.

    ``"P@10 nDCG@10"``, ``"P@10,nDCG@10"`` and ``("P@10", "nDCG@10")`` are the same.
    """
    texts = [value] if isinstance(value, str) else value
    return tuple(item for text in texts for item in _ITEM.findall(text))


def parts_of(values: Sequence[str]) -> list[str]:
    """The items of a list of paths or models, separated by commas, unless a file has such a name."""
    return [
        part.strip()
        for value in values
        for part in ([value] if "," not in value or _exists(value) else value.split(","))
        if part.strip() or "," not in value
    ]


def _exists(value: str) -> bool:
    try:
        return Path(value).exists()
    except (OSError, ValueError):
        return False


def _several(convert: Callable[[list[str]], Any]) -> Parameter:
    # The help explains an empty list.
    return Parameter(
        consume_multiple=True,
        negative=(),
        converter=lambda kind, tokens: convert([token.value for token in tokens]),
        show_default=lambda values: ", ".join(map(str, values or ())) or "none",
    )


# Lists in all commands: separated by commas or spaces, or by repeating the option.
Words = Annotated[tuple[str, ...], _several(items_of)]
Models = Annotated[tuple[str, ...], _several(lambda values: tuple(parts_of(values)))]
Paths = Annotated[list[Path], _several(lambda values: [Path(part) for part in parts_of(values)])]
SEVERAL_TEXTS = _several(parts_of)
Texts = Annotated[list[str], SEVERAL_TEXTS]


def parse_bytes(text: str) -> int:
    """A size in bytes, from 1 byte to 8 EiB: 1.5GiB, 800MB, 1000000."""
    parts = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", text)
    size = float(parts[1]) * _UNITS.get(parts[2].lower(), 0) if parts else 0.0
    if not 1 <= size < 2**63:
        problem = f"{quoted(text)} is not a size"
        raise InputError(problem, "write it like 1.5GiB or 800MB", "settings.size")
    return int(size)


Size = Annotated[int, Parameter(converter=lambda kind, tokens: parse_bytes(tokens[0].value))]


def with_options(text: str, known: Collection[str] | None = None) -> str:
    """The text with every `` `field_name` `` in backticks written as the option ``--field-name``.

    If ``known`` names the fields that are options, other words in backticks are a user's and stay.
    """

    def written(field: re.Match[str]) -> str:
        if known is not None and field[2] not in known:
            return field[0]
        return "--" + field[2].replace("_", "-")

    return _FIELD.sub(written, text)


def with_options_of(app: App, text: str) -> str:
    """``with_options`` for the options of an app and of its commands."""
    # Loads every command for its options, so a text without names is returned early.
    return with_options(text, fields_of(app)) if "`" in text else text


def fields_of(app: App) -> set[str]:
    """The fields behind the options of an app, and of its commands."""
    arguments = app.assemble_argument_collection() if app.default_command else ()
    fields = {field_of(name) for argument in arguments for name in argument.names}
    commands = (app[command] for command in app if not command.startswith("-"))
    return fields.union(*map(fields_of, commands))


def option(
    name: str, kind: Any, group: Group, description: str, default: Any = MISSING
) -> inspect.Parameter:
    """A keyword-only parameter of a command; required without a default."""
    shown: Any = (lambda values: ", ".join(values)) if isinstance(default, tuple) else None
    if default in ("", ()):
        shown = False  # the help explains an empty text
    described = Parameter(group=group, help=with_options(description), show_default=shown)
    default = inspect.Parameter.empty if default is MISSING else default
    return keyword(name, Annotated[kind, described], default)


def keyword(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    kind = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, kind, annotation=annotation, default=default)


def options_of(
    owner: type,
    group: Group,
    *,
    types: Mapping[str, Any] | None = None,
    defaults: Mapping[str, Any] | None = None,
    helps: Mapping[str, str] | None = None,
    more_help: Mapping[str, str] | None = None,
    leave_out: Sequence[str] = (),
) -> list[inspect.Parameter]:
    """An option for every field of a dataclass, with the help of its docstring's ``Attributes``.

    ``types``, ``defaults`` and ``helps`` override the fields' for the command line; ``more_help`` is added to the help.
    """
    hints = get_type_hints(owner, include_extras=True) | dict(types or {})
    described = (param for base in owner.__mro__[::-1] for param in _documentation(base).params)
    texts = {param.arg_name: " ".join((param.description or "").split()) for param in described}
    texts |= helps or {}
    for name, more in (more_help or {}).items():
        texts[name] += f" {more}"
    known = {
        field.name: field.default if field.default_factory is MISSING else field.default_factory()
        for field in fields(owner)
    } | dict(defaults or {})
    return [
        option(name, hints[name], group, texts[name], default)
        for name, default in known.items()
        if name not in leave_out
    ]


@cache  # the texts of every condition of a study need the names of all options
def _documentation(owner: type) -> docstring_parser.Docstring:
    """The docstring of a class, from its file if Python leaves docstrings out (``PYTHONOPTIMIZE=2``)."""
    text = owner.__doc__
    if sys.flags.optimize >= 2 and owner is not object:
        (definition,) = ast.parse(inspect.getsource(owner)).body
        text = ast.get_docstring(definition) if isinstance(definition, ast.ClassDef) else ""
    return docstring_parser.parse(text or "")


def take(owner: type[Instance], options: Mapping[str, Any], **changed: Any) -> Instance:
    """The dataclass that options stand for; options of other dataclasses are ignored."""
    names = {field.name for field in fields(owner)}  # type: ignore[arg-type]
    values = {name: value for name, value in options.items() if name in names}
    return owner(**values | changed)


def with_signature(
    command: Callable[..., None], parameters: Sequence[inspect.Parameter]
) -> Callable[..., None]:
    """Give a command with ``**options`` the signature of its command line; ``with_verbosity`` fills in defaults."""
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {known.name: known.annotation for known in parameters}
    return command


# Numbers that only cyclopts accepts: underscores, other scripts' digits, decimals of a whole number (30.0 is one).
_ODD = re.compile(r"_|[^\x00-\x7f]|\d{400}")
_ODD_WHOLE = re.compile(rf"{_ODD.pattern}|\.0*[^0]")
_OFF = ("false", "no", "f", "n", "0")
_SWITCHES = {"on": "true", "off": "false"}


def options_from(path: Path | None) -> list[Any]:
    """The options of a file, as cyclopts adds them to options of the command line; none without a file.

    An InputError refuses a file that is not YAML with a value or a list of values for each option, an option that is
    gone, and a key ``no-x`` in the place of ``x: false``.
    """
    if path is None:
        return []
    # cyclopts' Yaml would lose line numbers and text from a pipe.
    values, lines = read_settings(read_text(path, "a YAML file of options"), path)

    def from_file(app: App, commands: tuple[str, ...], arguments: ArgumentCollection) -> None:
        # cyclopts would take "no-x: true" for "x: true".
        opposites = {field_of(name) for argument in arguments for name in argument.negatives}
        known = {field_of(name) for argument in arguments for name in argument.names}
        for key, line in lines.items():
            fault = partial(InputError, path=path, line=line)
            if field_of(key) not in known and (instead := GONE.get(("option", field_of(key)))):
                raise fault(f"the option {quoted(key)} is gone", instead, "settings.gone")
            if field_of(key) in opposites:
                problem = f"the key {quoted(key)} turns an option off"
                raise fault(problem, 'write "false" behind the option', "settings.unknown")
            if key == "config":
                problem = "a file of options within a file of options"
                raise fault(problem, "write its options into this one", "settings.nested")
        # An option with the name of a command would be left out without its command above it: ``index``
        # and ``fuse`` of ``erag retrieve``.
        options = functools.reduce(lambda inner, command: {command: inner}, commands[::-1], values)
        Dict(options, source=str(path))(app, commands, arguments)

    return [from_file]


def variable(field: str) -> str:
    return f"ERAG_{field.upper()}"


def from_environment(app: App, commands: tuple[str, ...], arguments: ArgumentCollection) -> None:
    """Take options that the command line leaves out from variables: ``ERAG_END_TO_END_K=5``.

    A value means the same as on the command line; several are separated by spaces, and quoted as in a shell. Variables
    of other commands are ignored; an InputError refuses those of options that are gone, and quotations without end.
    """
    known = {field_of(name) for argument in arguments for name in argument.names}
    for kind, gone in GONE:
        if kind == "option" and gone not in known and os.environ.get(variable(gone)):
            problem = f"the variable {variable(gone)} stands for an option that is gone"
            raise InputError(problem, f"unset it: {GONE[kind, gone]}", "settings.variable")
    # cyclopts' Env does not split as a shell does, and takes ERAG_NO_X=on for X=on.
    for argument in arguments:
        if argument.tokens or argument.children or not argument.parse or not argument.name:
            continue
        name = variable(field_of(argument.name))
        text = os.environ.get(name, "")
        is_single = argument.token_count() in ((0, False), (1, False))
        try:
            values = [text] if text and is_single else shlex.split(text)
        except ValueError:
            problem = f"the variable {name} has a quotation that does not end"
            raise InputError(problem, "quote values as in a shell", "settings.variable") from None
        for place, value in enumerate(values):
            argument.append(Token(keyword=name, value=value, source=name, index=place))


def tell_origins(app: App, commands: tuple[str, ...], arguments: ArgumentCollection) -> None:
    """With --verbose, list the options that come from elsewhere than the command line, without values."""
    tokens = {argument.name: argument.tokens for argument in arguments}
    if not any(token.value.lower() not in _OFF for token in tokens.get("--verbose", ())):
        return
    for name, values in tokens.items():
        if values and values[0].source != "cli":
            tell(f"erag: {name} comes from {masked(values[0].source)}")


def check_numbers(app: App, commands: tuple[str, ...], arguments: ArgumentCollection) -> None:
    """Refuse numbers that cyclopts would round or misread, such as 2.5 for a whole number or 1_000; take on and off."""
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
                problem = f"`{field_of(argument.name)}` is {quoted(token.value)}{where}"
                raise InputError(problem, f"give {what}, in decimal digits", "settings.value")


def field_of(name: str) -> str:
    return name.removeprefix("--").replace("-", "_")


def _kinds(hint: Any) -> set[Any]:
    if get_origin(hint) is None:
        return {hint}
    inner = [part for part in get_args(hint) if part is not Ellipsis]
    if get_origin(hint) is Annotated:
        inner = inner[:1]
    return {kind for part in inner for kind in _kinds(part)}
