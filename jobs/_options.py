"""Options: the types of lists and sizes, and options that are fields of the engine's dataclasses.

The engine names fields, in its docstrings and messages; here they become options. Commands let cyclopts flatten
dataclasses, but for ``erag evaluate``, ``plan`` and ``train``: their options depend on which annotators are
registered, take other types and defaults than the fields, and must be known by name, without a value.
"""

from __future__ import annotations

import ast
import inspect
import itertools
import re
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_type_hints

import docstring_parser
from cyclopts import App, Group, Parameter

from engine.messages.errors import InputError
from engine.messages.wording import quoted

Instance = TypeVar("Instance")

_UNITS = {"": 1, "b": 1, "kib": 2**10, "mib": 2**20, "gib": 2**30, "kb": 10**3, "mb": 10**6}
_UNITS |= {"gb": 10**9, "k": 2**10, "m": 2**20, "g": 2**30}

# Items of a list of names: commas and white space separate them, but not in parentheses.
_ITEM = re.compile(r"(?:\([^)]*\)|[^\s,])+")
_FIELD = re.compile(r"(?<!`)(`{1,2})([a-z][a-z0-9_]*)\1(?!`)")


def items_of(value: str | Sequence[str]) -> tuple[str, ...]:
    """The items of a list of names, however it is given: one text, or several, each with one item or more.

    ``"P@10 nDCG@10"``, ``"P@10,nDCG@10"`` and ``("P@10", "nDCG@10")`` are the same.
    """
    texts = [value] if isinstance(value, str) else value
    return tuple(item for text in texts for item in _ITEM.findall(text))


def parts_of(values: Sequence[str]) -> list[str]:
    """The items of a list of paths or models: commas separate them, unless a file is named so."""
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
    # The help says what an empty list stands for.
    return Parameter(
        consume_multiple=True,
        negative=(),
        converter=lambda kind, tokens: convert([token.value for token in tokens]),
        show_default=lambda values: ", ".join(map(str, values or ())) or "none",
    )


# Lists, everywhere: separated by commas or spaces, or the option given several times.
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
        raise InputError(f"{quoted(text)} is not a size", "write it like 1.5GiB or 800MB")
    return int(size)


Size = Annotated[int, Parameter(converter=lambda kind, tokens: parse_bytes(tokens[0].value))]


def with_options(text: str, known: Collection[str] | None = None) -> str:
    """The text with every `` `field_name` `` in backticks written as the option ``--field-name``.

    Args:
        known: the fields that are options; other words in backticks are a user's and stay. None for
            text of the engine alone, in which every such word is one.
    """

    def written(field: re.Match[str]) -> str:
        if known is not None and field[2] not in known:
            return field[0]
        return "--" + field[2].replace("_", "-")

    return _FIELD.sub(written, text)


def with_options_of(app: App, text: str) -> str:
    """``with_options`` for the options of an app and of its commands."""
    # Every command is loaded for its options: not for a text that names none.
    return with_options(text, fields_of(app)) if "`" in text else text


def fields_of(app: App) -> set[str]:
    """The fields that the options of an app, and of its commands, stand for."""
    arguments = app.assemble_argument_collection() if app.default_command else ()
    names = {name for argument in arguments for name in argument.names}
    fields = {name.removeprefix("--").replace("-", "_") for name in names}
    for command in app:
        if not command.startswith("-"):
            fields |= fields_of(app[command])
    return fields


def option(
    name: str, kind: Any, group: Group, description: str, default: Any = MISSING
) -> inspect.Parameter:
    """A keyword-only parameter of a command; required where no default is given."""
    shown: Any = (lambda values: ", ".join(values)) if isinstance(default, tuple) else None
    if default in ("", ()):
        shown = False  # the help says what an empty text stands for
    described = Parameter(group=group, help=with_options(description), show_default=shown)
    default = inspect.Parameter.empty if default is MISSING else default
    return keyword(name, Annotated[kind, described], default)


def keyword(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    """A parameter as commands have them."""
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

    Types, defaults and helps are those of the command line where it has others; ``more_help`` is added to the help.
    """
    hints = get_type_hints(owner, include_extras=True) | dict(types or {})
    documented = [docstring_parser.parse(_documentation(one)).params for one in owner.__mro__[::-1]]
    described = itertools.chain.from_iterable(documented)
    texts = {param.arg_name: " ".join((param.description or "").split()) for param in described}
    texts |= helps or {}
    given = {
        field.name: field.default if field.default_factory is MISSING else field.default_factory()
        for field in fields(owner)
    } | dict(defaults or {})
    return [
        option(
            field.name,
            hints[field.name],
            group,
            " ".join(filter(None, [texts[field.name], (more_help or {}).get(field.name)])),
            given[field.name],
        )
        for field in fields(owner)
        if field.name not in leave_out
    ]


def _documentation(owner: type) -> str:
    """The docstring of a class, from its file where Python leaves docstrings out (``PYTHONOPTIMIZE=2``)."""
    if sys.flags.optimize < 2 or owner is object:
        return owner.__doc__ or ""
    (definition,) = ast.parse(inspect.getsource(owner)).body
    return ast.get_docstring(definition) or "" if isinstance(definition, ast.ClassDef) else ""


def take(owner: type[Instance], options: Mapping[str, Any], **changed: Any) -> Instance:
    """The dataclass that options stand for; those of other owners are passed over."""
    names = {field.name for field in fields(owner)}  # type: ignore[arg-type]
    values = {name: value for name, value in options.items() if name in names}
    return owner(**values | changed)


def with_signature(
    command: Callable[..., None], parameters: Sequence[inspect.Parameter]
) -> Callable[..., None]:
    """The command, which takes ``**options``, with the signature that its command line is made of; ``with_verbosity`` gives it the defaults."""
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {known.name: known.annotation for known in parameters}
    return command
