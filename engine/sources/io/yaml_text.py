"""Settings in YAML: keys with texts, numbers, or lists of these, without the surprises of YAML 1.1.

YAML 1.1 takes ``010`` for 8, ``1:30`` for 90, ``no`` for false, and of equal keys the last. Here a value
either is what it looks like, or is refused.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import yaml

from engine.errors import InputError
from engine.sources.io.locations import Location

_REMEDY = 'write "key: value", one a line'
_TAG = "tag:yaml.org,2002:"
_WHOLE = re.compile(r"[-+]?(0|[1-9][0-9]*)", re.ASCII)
_DECIMAL = re.compile(r"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?", re.ASCII)
# What a scalar without an explicit tag can be; of dates, and of = and <<, the text counts.
_TEXTS = ("str", "timestamp", "value", "merge")
_SCALARS = (*_TEXTS, "int", "float", "bool", "null")


@dataclass(frozen=True)
class Setting:
    """The value of one key.

    Attributes:
        node: the value, a scalar or a list of scalars.
        line: of the key, from 1.
    """

    node: yaml.Node
    line: int
    path: Location

    def as_written(self) -> str | list[str | None] | None:
        """Texts as they are written, whatever they stand for; None for null."""
        return _each(self.node, lambda node: None if node.tag == f"{_TAG}null" else str(node.value))

    def value(self) -> Any:
        """The text, number, truth value or null that a scalar stands for, or a list of these.

        Raises:
            InputError: a number that is not written in plain decimal digits.
        """
        return _each(self.node, self._value)

    def _value(self, node: yaml.ScalarNode) -> Any:
        kind, text = node.tag.removeprefix(_TAG), str(node.value)
        if kind == "null":
            return None
        if kind == "bool" and text.lower() in yaml.SafeLoader.bool_values:
            return yaml.SafeLoader.bool_values[text.lower()]
        if kind in _TEXTS:
            return text
        pattern, number = (_WHOLE, int) if kind == "int" else (_DECIMAL, float)
        if kind == "bool" or not pattern.fullmatch(text) or len(text) > 100:
            raise InputError(
                f"{text[:40]} is not a plain decimal number",
                "write it in decimal digits, or a text in quotes",
                path=self.path,
                line=self.line,
            )
        return number(text)


def read_settings(text: str, path: Location, *, first_line: int = 1) -> dict[str, Setting]:
    """The settings of a YAML text, by key, in its order; none for an empty text.

    Args:
        text: the YAML.
        path: the file, for errors.
        first_line: the line of the file in which the text begins.

    Raises:
        InputError: broken YAML, a key that is given twice or is not a text, a value that is neither a
            scalar nor a list of scalars, or a tag.
    """
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.reader.ReaderError as error:
        line = first_line + text.count("\n", 0, error.position)
        problem = f"broken YAML (the character U+{error.character:04X} is not allowed)"
        raise InputError(problem, "remove it", path=path, line=line) from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = None if mark is None else first_line + mark.line
        problem = f"broken YAML ({error.problem or error.context})"
        raise InputError(problem, _REMEDY, path=path, line=place) from None
    except RecursionError:
        raise InputError("broken YAML (brackets are nested too deep)", _REMEDY, path=path) from None
    if node is None or (isinstance(node, yaml.ScalarNode) and node.tag == f"{_TAG}null"):
        return {}
    if not isinstance(node, yaml.MappingNode):
        raise InputError("holds no keys", _REMEDY, path=path, line=first_line)
    settings: dict[str, Setting] = {}
    for key, value in node.value:
        line = first_line + key.start_mark.line
        if not isinstance(key, yaml.ScalarNode) or key.tag == f"{_TAG}null":
            raise InputError("a key that is not a text", _REMEDY, path=path, line=line)
        if key.value in settings:
            problem = (
                f"the key {key.value[:80]!r} is given twice (see line {settings[key.value].line})"
            )
            raise InputError(problem, "give it once", path=path, line=line)
        items = value.value if isinstance(value, yaml.SequenceNode) else [value]
        if not all(isinstance(item, yaml.ScalarNode) for item in items):
            problem = f"{key.value[:80]!r} is neither a value nor a list of values"
            raise InputError(problem, _REMEDY, path=path, line=line)
        for item in (value, *items):
            kind = item.tag.removeprefix(_TAG)
            if kind not in (*_SCALARS, "seq"):
                problem = f"{key.value[:80]!r} has a value with the tag {item.tag[:40]}"
                raise InputError(problem, "leave the tag out", path=path, line=line)
        settings[key.value] = Setting(value, line, path)
    return settings


def _each(node: yaml.Node, convert: Any) -> Any:
    if isinstance(node, yaml.SequenceNode):
        return [convert(item) for item in node.value]
    return convert(node)
