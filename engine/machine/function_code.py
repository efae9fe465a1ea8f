"""The code of a user's function, as far as files tell: what is compared where its name and version are the same."""

from __future__ import annotations

import ast
import contextlib
import functools
import hashlib
import inspect
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from engine.machine.functions import ByValue, is_users, users_modules

_DEFINED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


class Code(NamedTuple):
    """A digest of a function's source and the file that it is in; both empty where there is no source."""

    who: str
    file: str


def code_of(function: Callable[..., Any]) -> Code:
    """The code of a function, or of an object that is called, without comments, docstrings and layout.

    It is what defines it, and statements at the top of the user's files: that made the object, and that bind names which
    these use, in modules that they import, too.
    """
    objects: list[Any] = [function.function if isinstance(function, ByValue) else function]
    waiting: list[tuple[ast.AST, ast.Module]] = []
    file = ""
    for value in objects:
        objects += [one for one in _inside(value) if not any(one is known for known in objects)]
        kind = value if inspect.isfunction(value) or inspect.isclass(value) else type(value)
        try:
            lines, first = inspect.findsource(kind)
            place = inspect.getsourcefile(kind) or ""
            tree = ast.parse("".join(lines))
        except (OSError, TypeError, SyntaxError):
            continue
        if not is_users(Path(place)):
            continue
        file = file or place
        module = vars(sys.modules.get(kind.__module__, sys))
        made = {name for name, one in module.items() if any(one is known for known in objects)}
        waiting += [(one, tree) for one in tree.body if not made.isdisjoint(_bound(one))]
        defined = (one for one in ast.walk(tree) if isinstance(one, (*_DEFINED, ast.Lambda)))
        waiting += [(one, tree) for one in defined if _first(one) == first + 1]
    if not waiting:
        return Code("", "")
    forms: set[str] = set()
    while waiting:
        node, tree = waiting.pop()
        if (form := json.dumps(_form(node))) not in forms:
            forms.add(form)
            used = {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}
            waiting += [(one, tree) for one in tree.body if not used.isdisjoint(_bound(one))]
            waiting += [pair for one in ast.walk(node) for pair in _imported(one)]
    return Code(hashlib.sha256(json.dumps(sorted(forms)).encode()).hexdigest()[:32], file)


def _inside(value: Any) -> list[Any]:
    """What an object calls: that of a partial, a method's own, what it wraps, functions that it closes over."""
    if isinstance(value, functools.partial):
        return [value.func]
    if inspect.ismethod(value):
        return [value.__self__]
    held = [getattr(value, "__wrapped__", None)]
    for cell in getattr(value, "__closure__", None) or ():
        with contextlib.suppress(ValueError):  # nothing is in it yet
            held.append(cell.cell_contents)
    return [one for one in held if callable(one)]


def _imported(node: ast.AST) -> list[tuple[ast.stmt, ast.Module]]:
    """The statements of the user's modules that bind what a statement imports, with their files."""
    if not isinstance(node, ast.Import | ast.ImportFrom):
        return []
    found: list[tuple[ast.stmt, ast.Module]] = []
    base = node.module or "" if isinstance(node, ast.ImportFrom) else ""
    for module in users_modules():
        names = {one.name for one in node.names}
        if not base or not f".{module.__name__}".endswith(f".{base}"):
            # Of a module as a whole, all statements count.
            wholes = {f"{base}.{name}".strip(".") for name in names}
            if not any(f".{module.__name__}".endswith(f".{one}") for one in wholes):
                continue
            names = {"*"}
        tree = ast.parse(inspect.getsource(module))
        found += [(s, tree) for s in tree.body if "*" in names or not names.isdisjoint(_bound(s))]
    return found


def _first(statement: Any) -> int:
    return min(one.lineno for one in (statement, *getattr(statement, "decorator_list", ())))


def _bound(node: ast.AST) -> set[str]:
    if isinstance(node, _DEFINED):
        return {node.name}
    if isinstance(node, ast.Import | ast.ImportFrom):
        return {alias.asname or alias.name.split(".")[0] for alias in node.names}
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        return {node.id}
    return set[str]().union(*map(_bound, ast.iter_child_nodes(node)))


def _form(node: Any) -> Any:
    """A statement without comments, docstrings and layout, alike in all versions of Python."""
    if isinstance(node, list):
        forms = [_form(one) for one in node]
        texts = [bool(form) and form[0] == "Expr" and form[1][1][0] == "Constant" for form in forms]
        return [form for form, is_text in zip(forms, texts, strict=True) if not is_text]
    if not isinstance(node, ast.AST):
        return None if node is None else repr(node)
    left_out = ("ctx", "kind", "type_comment")
    fields = ((name, _form(one)) for name, one in ast.iter_fields(node) if name not in left_out)
    return [type(node).__name__, *([name, form] for name, form in fields if form not in (None, []))]
