"""Read settings in YAML: keys with texts or lists of texts, each as it is written.

YAML 1.1 takes ``010`` for 8, ``1:30`` for 90 and ``no`` for false, YAML 1.2 ``1e3`` for a number. A value that some YAML
would change is refused, so that nobody has to know which.
"""

from __future__ import annotations

import re
from typing import Any

import yaml

from engine.messages.errors import InputError
from engine.messages.wording import cut, quoted
from engine.sources.io.locations import Location

_REMEDY = 'write "key: value", one a line'
_TAG = "tag:yaml.org,2002:"
# A number that every YAML takes for the same one; true, false and null are written in one way, too.
_NUMBER = re.compile(r"-?(0|[1-9][0-9]{0,17})(\.[0-9]{1,15})?")


def read_settings(
    text: str, path: Location, *, first_line: int = 1
) -> tuple[dict[str, Any], dict[str, int]]:
    """The values of a YAML text by key, each a text, None for null, or a list of these; and the line of each key.

    An empty text has no settings. It begins in ``first_line`` of the file.

    Raises:
        InputError: broken YAML, a key that is given twice or is not a text, a value that is neither a
            scalar nor a list of scalars, or one without quotes that YAML takes for something else.
    """

    def fault(problem: str, at: int, remedy: str = _REMEDY) -> InputError:
        return InputError(problem, remedy, path=path, line=first_line + text.count("\n", 0, at))

    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        at = mark.index if mark else getattr(error, "position", 0)
        raise fault(f"broken YAML ({getattr(error, 'problem', None) or error})", at) from None
    except RecursionError:
        raise InputError("broken YAML (brackets are nested too deep)", _REMEDY, path=path) from None
    if node is None or node.tag == f"{_TAG}null":
        return {}, {}
    if not isinstance(node, yaml.MappingNode):
        raise fault("holds no keys", 0)
    values: dict[str, Any] = {}
    lines: dict[str, int] = {}
    for key, value in node.value:
        at = key.start_mark.index
        if not isinstance(key, yaml.ScalarNode) or key.tag == f"{_TAG}null":
            raise fault("a key that is not a text", at)
        name = quoted(key.value)
        if key.value in values:
            problem = f"the key {name} is given twice (see line {lines[key.value]})"
            raise fault(problem, at, "give it once")
        several = isinstance(value, yaml.SequenceNode)
        items = value.value if several else [value]
        if not all(isinstance(item, yaml.ScalarNode) for item in items):
            raise fault(f"{name} is neither a value nor a list of values", at)
        if wrong := next(filter(_is_changed, items), None):
            problem = f"{name} is {cut(wrong.value, 80)}, which YAML takes for something else"
            raise fault(problem, wrong.start_mark.index, "put it in quotes")
        texts = [None if item.tag == f"{_TAG}null" else item.value for item in items]
        values[key.value] = texts if several else texts[0]
        lines[key.value] = first_line + key.start_mark.line
    return values, lines


def _is_changed(node: yaml.ScalarNode) -> bool:
    """Whether a value is not the text that it is written as, for YAML 1.1 or 1.2."""
    if node.style is not None or node.tag == f"{_TAG}null":
        return node.tag not in (f"{_TAG}str", f"{_TAG}null")
    if node.tag == f"{_TAG}str":
        try:
            float(node.value.replace("0o", "0"))  # 1e3 and 0o17 are numbers of YAML 1.2
        except ValueError:
            return False
    return node.value not in ("true", "false") and not _NUMBER.fullmatch(node.value)
