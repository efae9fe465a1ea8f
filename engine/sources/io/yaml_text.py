"""Read settings in YAML: keys with texts or lists of texts, without the surprises of YAML 1.1.

YAML 1.1 takes ``010`` for 8, ``1:30`` for 90, ``no`` for false, and of equal keys the last. Here values are texts,
as they are written; whoever wants a number says which texts are one.
"""

from __future__ import annotations

from typing import NamedTuple

import yaml

from engine.messages.errors import InputError
from engine.sources.io.locations import Location

_REMEDY = 'write "key: value", one a line'
_TAG = "tag:yaml.org,2002:"
_NULL = f"{_TAG}null"
# What a scalar without a tag of its own can be.
_KINDS = ("str", "timestamp", "value", "merge", "int", "float", "bool", "null")
_SCALARS = {f"{_TAG}{kind}" for kind in _KINDS}


class Setting(NamedTuple):
    """What stands behind one key: a text, None for null, or a list of these; and the line of the key, from 1."""

    value: str | list[str | None] | None
    line: int


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

    def fault(problem: str, at: int, remedy: str = _REMEDY) -> InputError:
        line = first_line + text.count("\n", 0, at)
        return InputError(problem, remedy, path=path, line=line)

    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.reader.ReaderError as error:
        problem = f"broken YAML (the character U+{error.character:04X} is not allowed)"
        raise fault(problem, error.position, "remove it") from None
    except yaml.MarkedYAMLError as error:
        at = error.problem_mark.index if error.problem_mark else 0
        raise fault(f"broken YAML ({error.problem or error.context})", at) from None
    except RecursionError:
        raise InputError("broken YAML (brackets are nested too deep)", _REMEDY, path=path) from None
    if node is None or node.tag == _NULL:
        return {}
    if not isinstance(node, yaml.MappingNode):
        raise fault("holds no keys", 0)
    settings: dict[str, Setting] = {}
    for key, value in node.value:
        at = key.start_mark.index
        if not isinstance(key, yaml.ScalarNode) or key.tag == _NULL:
            raise fault("a key that is not a text", at)
        name = repr(key.value[:80])
        if key.value in settings:
            problem = f"the key {name} is given twice (see line {settings[key.value].line})"
            raise fault(problem, at, "give it once")
        several = isinstance(value, yaml.SequenceNode)
        items = value.value if several else [value]
        if not all(isinstance(item, yaml.ScalarNode) for item in items):
            raise fault(f"{name} is neither a value nor a list of values", at)
        tags = {item.tag for item in (value, *items)} - {f"{_TAG}seq"}
        if tags - _SCALARS:
            problem = f"{name} has a value with the tag {min(tags - _SCALARS)[:40]}"
            raise fault(problem, at, "leave the tag out")
        texts = [None if item.tag == _NULL else str(item.value) for item in items]
        settings[key.value] = Setting(
            texts if several else texts[0], first_line + key.start_mark.line
        )
    return settings
